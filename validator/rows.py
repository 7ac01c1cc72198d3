"""What stands in one row of the table: a record, its image's sibling where there is one, and what is to be said of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from validator.cells import LOUD, Cell, Column, Grouping, alike, cases_of, cell_of
from validator.faults import fault_of
from validator.model import CaseResult, ImageIdentity, Outcome, Record, Verdict, VerdictClass, part
from validator.profiles import missing
from validator.sibling import Sibling, borrowed


@dataclass(frozen=True, kw_only=True)
class Row:
    """One image as one record saw it. age in whole days; notes are numbers into the table's notes.

    sibling: the image whose outcomes stand in for those that this one has none of. verdict: None for an image without a record
    of its own, of which everything is its sibling's or what its row declares.
    """

    image: str
    family: str
    torch: str
    cuda: str
    python: str
    os: str
    size_bytes: int | None
    identity: str
    host: str
    probe: str
    tested: str
    age_days: int
    cells: tuple[Cell, ...]
    verdict: VerdictClass | None
    cause: str
    sibling: str = ""
    notes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one row is made of: the image's own record, its sibling, or both."""

    record: Record | None
    sibling: Sibling | None

    @property
    def seen(self) -> Record:
        """The record that was made where something ran."""
        record = self.record or (self.sibling and self.sibling.record)
        assert record
        return record

    @property
    def image(self) -> str:
        return self.record.image.id if self.record else self.sibling.image.id if self.sibling else ""

    @property
    def host(self) -> str:
        return self.seen.host.key

    @cached_property
    def cases(self) -> tuple[CaseResult, ...]:
        return borrowed(self.record, self.sibling.record) if self.sibling else self.seen.cases


def moment_of(text: str) -> datetime:
    """The moment that a record names; the beginning of time for a text that is none."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC)


def make_row(
    one: Shown, columns: tuple[Column, ...], by: Grouping, notes: list[str], moment: datetime, untested_since: Verdict | None
) -> Row:
    """One row. notes: those of the table so far, to which its own are added; moment: from which its age counts."""
    record, borrowed_from = one.seen, one.sibling.record.image.id if one.sibling else ""
    sound = one.record is not None and record.complete and record.trusted
    cells = tuple(cell_of(cases, sound=sound) for cases in cases_of(one.cases, columns, by))
    texts = _sibling_texts(one) + (_texts(record, untested_since) if one.record else [])
    torch, python, system = (part(record.facts, name) for name in ("torch", "python", "system"))
    version = str(torch.get("version") or "")
    texts += missing(one.cases, columns, by) if by.needed else _loud_texts(one.cases, version)
    numbers, host = _numbers(texts, notes), host_name(record)
    if one.record is None and one.sibling:
        image = one.sibling.image
        return Row(
            image=image.id, family=image.family, torch=image.declares("torch"), cuda=image.declares("cuda"),
            python=image.declares("python"), os=image.declares("os"), size_bytes=None, identity="", probe=record.probe,
            tested="", age_days=0, verdict=None, cause="", cells=cells, notes=numbers, sibling=borrowed_from, host=host,
        )  # fmt: skip
    return Row(
        image=record.image.id,
        family=record.image.family,
        torch=version,
        cuda=str(torch.get("cuda") or ("" if not torch else "none")),
        python=str(python.get("version") or ""),
        os=str(part(system, "os").get("pretty_name") or ""),
        size_bytes=record.image.size_bytes,
        identity=_identity(record.image),
        probe=record.probe,
        tested=record.started[:10],
        age_days=max(0, (moment - moment_of(record.started)).days),
        verdict=record.verdict.cls,
        cause=record.verdict.cause,
        cells=cells,
        notes=numbers,
        sibling=borrowed_from,
        host=host,
    )


def _identity(image: ImageIdentity) -> str:
    return image.digest[:19] or (f"recipe {image.dockerfile_sha256[:12]}" if image.dockerfile_sha256 else "no image")


def host_name(record: Record) -> str:
    """The host in a few words: its GPUs and driver, or its CPU."""
    host = record.host
    gpus = ", ".join(sorted({gpu.name for gpu in host.gpus}))
    return f"{gpus}, driver {host.driver}" if gpus else f"{host.cpu or host.architecture}, no GPU"


def _sibling_texts(one: Shown) -> list[str]:
    if one.sibling is None:
        return []
    record = one.sibling.record
    torch = part(record.facts, "torch")
    what = "the CUDA outcomes" if one.record else "not tested itself; the outcomes"
    return [
        f"sibling: {what} are those of {record.image.id} (torch {torch.get('version')}, CUDA {torch.get('cuda')}), "
        f"seen {record.started[:10]} on {host_name(record)}"
    ]


def _texts(record: Record, untested_since: Verdict | None) -> list[str]:
    """What is to be said of a record beside its outcomes, the most important first."""
    texts = [finding.message for finding in record.findings]
    asked = record.options.get("cases")
    if isinstance(asked, list) and asked:
        texts.insert(0, f"only the cases {', '.join(map(str, asked))} were asked for; the counts are of those")
    if record.options.get("tier", "standard") != "standard":
        texts.insert(0, f"tier {record.options['tier']}: the counts are of its cases")
    if untested_since is not None:
        texts.insert(
            0, f"an earlier record; the newest run could not test it: {untested_since.cls.value}: {untested_since.cause}"
        )
    if record.verdict.cls is not VerdictClass.OK:
        texts.insert(0, f"{record.verdict.cls.value}: {record.verdict.cause}")
    return texts


def _loud_texts(cases: Iterable[CaseResult], torch: str) -> list[str]:
    """What must not be overlooked: known faults by their title, whatever nobody explains by its case, plain errors in one line."""
    loud = [(case, fault_of(case, torch)) for case in cases if case.outcome in LOUD]
    known = {fault.id: fault for _, fault in loud if fault is not None}
    texts = [
        f"known fault, {fault.outcome.value}: {fault.title} ({fault.issue or 'docs/findings.md'})"
        for fault in sorted(known.values(), key=lambda one: (LOUD.index(one.outcome), one.title))
    ]
    new = [case for case, fault in loud if fault is None]
    texts += [
        f"NEW {outcome.value}: {stem} ({len(details)} case{'s' * (len(details) > 1)}): {details[0]}"
        for outcome, stem, details in alike(new, tuple(one for one in LOUD if one is not Outcome.ERROR))
    ]
    failed = [stem.rpartition(".")[0] for _, stem, _ in alike(new, (Outcome.ERROR,))]
    if failed:
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        texts.append(f"error: failed in an unforeseen way, neither refused nor wrong: {', '.join(failed[:5])}{more}")
    return texts


def _numbers(texts: Iterable[str], notes: list[str]) -> tuple[int, ...]:
    """Numbers of these notes; equal notes of several images share a number."""
    numbers = []
    for text in texts:
        if text not in notes:
            notes.append(text)
        numbers.append(notes.index(text) + 1)
    return tuple(numbers)

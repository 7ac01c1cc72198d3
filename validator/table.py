"""Records -> Table: what every view shows, decided once. Pure: the moment to count ages from is given.

Executed, not-run and untested never look alike: a cell that ran shows passes of cases, one that did not shows why, and an image
that was not tested has no cells at all. Only a complete pass, executed, in a whole report of a probe whose controls held, is good.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from validator.cells import LOUD, SYMBOLS, Cell, Column, alike, cells_of, columns_of
from validator.faults import fault_of
from validator.model import CaseResult, ImageIdentity, Outcome, Record, Run, Verdict, VerdictClass, part


@dataclass(frozen=True, kw_only=True)
class Row:
    """One image as one record saw it. age in whole days; notes are numbers into the table's notes."""

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
    verdict: VerdictClass
    cause: str
    notes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Untested:
    """Images of the newest run that have no record and share one reason."""

    verdict: VerdictClass
    cause: str
    images: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The view model: what terminal, Markdown, JSON and pages are made from."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    untested: tuple[Untested, ...]
    outcomes: tuple[Outcome, ...]
    as_of: str

    def data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "as_of": self.as_of,
            "columns": [{"group": c.group, "device": c.device, "label": c.label} for c in self.columns],
            "rows": [_row_data(row, self) for row in self.rows],
            "untested": [{"class": u.verdict.value, "cause": u.cause, "images": list(u.images)} for u in self.untested],
        }


def _row_data(row: Row, table: Table) -> dict[str, Any]:
    plain = {
        name: getattr(row, name)
        for name in (
            "image",
            "family",
            "torch",
            "cuda",
            "python",
            "os",
            "size_bytes",
            "identity",
            "host",
            "probe",
            "tested",
            "age_days",
            "cause",
        )
    }
    cells = {
        column.label: {
            "evidence": cell.evidence.value,
            "outcomes": {outcome.value: number for outcome, number in sorted(cell.counts.items())},
            "reasons": list(cell.reasons),
        }
        for column, cell in zip(table.columns, row.cells, strict=True)
    }
    return {**plain, "verdict": row.verdict.value, "cells": cells, "notes": [table.notes[number - 1] for number in row.notes]}


def build(
    records: Mapping[tuple[str, str], Record],
    runs: Sequence[Run] = (),
    order: Sequence[str] = (),
    only: frozenset[str] | None = None,
    as_of: datetime | None = None,
) -> Table:
    """Make the table. records: the newest of each (image id, host key); order: ids in the matrix's order; only: the ids to show.

    as_of: the moment from which ages count, by default that of the newest record, so that the same records give the same table.
    """
    place = {ident: number for number, ident in enumerate(order)}
    shown = [r for r in records.values() if only is None or r.image.id in only]
    shown.sort(key=lambda r: (place.get(r.image.id, len(place)), r.image.id, r.host.key))
    moment = as_of or max((_moment(r.started) for r in shown), default=datetime(1970, 1, 1, tzinfo=UTC))
    columns = columns_of(shown)
    notes: list[str] = []
    stale = {
        entry.id: entry.verdict for entry in (runs[-1].entries if runs else ()) if entry.state == "untested" and entry.verdict
    }
    since = _moment(runs[-1].started) if runs else moment  # a record made after that run is not an earlier one
    rows = tuple(
        _row(record, columns, notes, moment, stale.get(record.image.id) if _moment(record.started) <= since else None)
        for record in shown
    )
    present = {case.outcome for record in shown for case in record.cases}
    return Table(
        columns=columns,
        rows=rows,
        notes=tuple(notes),
        untested=_untested(runs, {r.image.id for r in records.values()}, only),
        outcomes=tuple(outcome for outcome in SYMBOLS if outcome in present),
        as_of=moment.date().isoformat() if shown else "",
    )


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC)


def _row(
    record: Record, columns: tuple[Column, ...], notes: list[str], moment: datetime, untested_since: Verdict | None
) -> Row:
    torch, python, system = (part(record.facts, name) for name in ("torch", "python", "system"))
    image = record.image
    return Row(
        image=image.id,
        family=image.family,
        torch=str(torch.get("version") or ""),
        cuda=str(torch.get("cuda") or ("" if not torch else "none")),
        python=str(python.get("version") or ""),
        os=str(part(system, "os").get("pretty_name") or ""),
        size_bytes=image.size_bytes,
        identity=_identity(image),
        host=host_name(record),
        probe=record.probe,
        tested=record.started[:10],
        age_days=max(0, (moment - _moment(record.started)).days),
        cells=cells_of(record, columns),
        verdict=record.verdict.cls,
        cause=record.verdict.cause,
        notes=_notes(record, notes, untested_since),
    )


def _identity(image: ImageIdentity) -> str:
    return image.digest[:19] or (f"recipe {image.dockerfile_sha256[:12]}" if image.dockerfile_sha256 else "no image")


def host_name(record: Record) -> str:
    """The host in a few words: its GPUs and driver, or its CPU."""
    host = record.host
    gpus = ", ".join(sorted({gpu.name for gpu in host.gpus}))
    return f"{gpus}, driver {host.driver}" if gpus else f"{host.cpu or host.architecture}, no GPU"


def _notes(record: Record, notes: list[str], untested_since: Verdict | None) -> tuple[int, ...]:
    """Numbers of the notes of this record; equal notes of several images share a number."""
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
    texts += _loud(record)
    numbers = []
    for text in texts:
        if text not in notes:
            notes.append(text)
        numbers.append(notes.index(text) + 1)
    return tuple(numbers)


def _loud(record: Record) -> list[str]:
    """What must not be overlooked: known faults by their title, whatever nobody explains by its case, plain errors in one line."""
    torch = str(part(record.facts, "torch").get("version") or "")
    loud = [(case, fault_of(case, torch)) for case in record.cases if case.outcome in LOUD]
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


def _untested(runs: Sequence[Run], recorded: set[str], only: frozenset[str] | None) -> tuple[Untested, ...]:
    if not runs:
        return ()
    grouped: dict[tuple[VerdictClass, str], list[str]] = {}
    for entry in runs[-1].entries:
        if entry.state == "untested" and entry.verdict and entry.id not in recorded and (only is None or entry.id in only):
            grouped.setdefault((entry.verdict.cls, entry.verdict.cause), []).append(entry.id)
    return tuple(Untested(verdict=cls, cause=cause, images=tuple(ids)) for (cls, cause), ids in grouped.items())


@dataclass(frozen=True, kw_only=True)
class CaseView:
    """The other way round: rows are cases, columns are images; "" where an image's record does not have the case."""

    images: tuple[str, ...]
    cases: tuple[tuple[str, tuple[CaseResult | None, ...]], ...]


def case_view(records: Iterable[Record], pattern: str) -> CaseView:
    """The cases that match a glob, in every record given."""
    chosen = tuple(records)
    columns = [{case.id: case for case in record.cases} for record in chosen]
    ids = dict.fromkeys(ident for column in columns for ident in column if fnmatch.fnmatchcase(ident, pattern))
    return CaseView(
        images=tuple(record.image.id for record in chosen),
        cases=tuple((ident, tuple(column.get(ident) for column in columns)) for ident in ids),
    )

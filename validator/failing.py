"""What `--fail-on` looks for in a run that is over, and which images `--last-failed` means. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from validator.errors import UsageError
from validator.faults import gone, unexplained
from validator.model import Outcome, Record, Run, VerdictClass, part


class FailOn(StrEnum):
    """The names that `--fail-on` takes. UNEXPECTED: loud outcomes that no known fault explains, and known faults that are gone."""

    WRONG = "wrong"
    CRASH = "crash"
    FALLBACK = "fallback"
    TIMEOUT = "timeout"
    ERROR = "error"
    UNEXPECTED = "unexpected"
    REGRESSED = "regressed"
    UNTESTED = "untested"


OUTCOMES = {name: Outcome(name.value) for name in FailOn if name.value in set(Outcome)}


def parse(text: str) -> frozenset[FailOn]:
    """`wrong,crash` -> names. Raises UsageError naming those there are."""
    names = [one.strip() for one in text.split(",") if one.strip()]
    unknown = [name for name in names if name not in set(FailOn)]
    if unknown:
        raise UsageError(f"--fail-on does not know {', '.join(unknown)}", f"it takes {', '.join(FailOn)}, separated by commas")
    return frozenset(FailOn(name) for name in names)


def found(
    wanted: Iterable[FailOn], run: Run, records: Sequence[Record], before: Mapping[tuple[str, str], Record]
) -> tuple[str, ...]:
    """One line for each thing that was looked for and is there.

    records: those that stand for the run's tested and known images; before: what stood for (image id, host key) before the run.
    """
    names, lines = frozenset(wanted), []
    for record in records:
        torch = str(part(record.facts, "torch").get("version") or "")
        for name, outcome in OUTCOMES.items():
            ids = [case.id for case in record.cases if case.outcome is outcome]
            if name in names and ids:
                lines.append(_line(record, name.value, ids))
        if FailOn.UNEXPECTED in names:
            ids = [case.id for case in unexplained(record.cases, torch)]
            news = [finding.message for finding in record.findings if finding.code == "unexpected-outcome"]
            news += [f"a known fault does not show: {fault.title}" for fault in gone(record.cases, torch)]
            lines += ([_line(record, "no known fault explains", ids)] if ids else []) + [
                f"{record.image.id}: {n}" for n in news
            ]
        if FailOn.REGRESSED in names:
            ids = regressed(before.get((record.image.id, record.host.key)), record)
            if ids:
                lines.append(_line(record, "passed before and does not now", ids))
    if FailOn.UNTESTED in names:
        lines += [
            f"{entry.id}: could not be tested: {entry.verdict.cause if entry.verdict else 'the run did not come to it'}"
            for entry in run.entries
            if entry.state in ("untested", "pending")
        ]
    return tuple(lines)


def regressed(before: Record | None, now: Record) -> list[str]:
    """Cases that passed in the earlier record and did run, but not pass, in the newer one."""
    if before is None or before.key == now.key:
        return []
    passed = {case.id for case in before.cases if case.outcome is Outcome.PASS}
    return [c.id for c in now.cases if c.id in passed and c.outcome not in (Outcome.PASS, Outcome.NOT_RUN)]


def _line(record: Record, what: str, ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{record.image.id}: {what}: {', '.join(ids[:3])}{more}"


def last_failed(runs: Sequence[Run], records: Sequence[Record]) -> tuple[str, ...]:
    """Ids of the newest run that it could not test, did not come to, or found something new or not good in."""
    if not runs:
        return ()
    newest = {record.key: record for record in records}
    ids = []
    for entry in runs[-1].entries:
        record = newest.get(entry.record)
        bad = entry.state in ("untested", "pending") or (
            record is not None
            and (
                record.verdict.cls is not VerdictClass.OK
                or bool(unexplained(record.cases, str(part(record.facts, "torch").get("version") or "")))
            )
        )
        if bad:
            ids.append(entry.id)
    return tuple(ids)

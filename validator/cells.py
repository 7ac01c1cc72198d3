"""Cases to columns and cells: which column a case belongs to, and what came of the cases of one column. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from validator.model import CaseResult, Evidence, Outcome, Record

GROUPS = ("COO", "CSR", "CSC", "BSR", "BSC", "nn", "work")
_GROUP_OF = {"hybrid": "COO", "strided": "COO", "module": "nn", "work": "work", "lib": "work"}
# Outcomes that a reader must not overlook, the loudest first. Refusals and absent functions are counted, not shouted.
LOUD = (Outcome.WRONG, Outcome.CRASH, Outcome.FALLBACK, Outcome.TIMEOUT, Outcome.ERROR)
SYMBOLS = {
    Outcome.PASS: "✓", Outcome.WRONG: "✕", Outcome.CRASH: "☠", Outcome.FALLBACK: "↩", Outcome.TIMEOUT: "⧖", Outcome.ERROR: "!",
    Outcome.UNSUPPORTED: "⊘", Outcome.ABSENT: "∅", Outcome.NOT_RUN: "–",
}  # fmt: skip
MEANINGS = {
    Outcome.PASS: "ran on the asked device and agrees with the dense reference",
    Outcome.WRONG: "ran, and the result differs from the reference",
    Outcome.CRASH: "killed its process (a signal)",
    Outcome.FALLBACK: "ran, but result or work were not on the asked device",
    Outcome.TIMEOUT: "did not come to an end",
    Outcome.ERROR: "failed in an unforeseen way",
    Outcome.UNSUPPORTED: "torch refuses it cleanly",
    Outcome.ABSENT: "this torch has no such function",
    Outcome.NOT_RUN: "was not tried; the reason stands beside it",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One group of cases on one device; group "" stands for all of them (a device on which nothing ran anywhere)."""

    group: str
    device: str

    @property
    def label(self) -> str:
        return f"{self.group} {self.device}".strip() if self.group else self.device.upper()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What came of one column's cases in one image. counts: outcome -> number; reasons: why cases were not run.

    executed: how many of the cases ran in this image itself. sound: the report is whole and its negative controls held.
    """

    counts: Mapping[Outcome, int] = field(default_factory=dict)
    executed: int = 0
    sound: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def ran(self) -> int:
        return self.total - self.counts.get(Outcome.NOT_RUN, 0)

    @property
    def evidence(self) -> Evidence:
        if not self.ran:
            return Evidence.NONE
        return Evidence.EXECUTED if self.executed else Evidence.SIBLING

    @property
    def complete(self) -> bool:
        """Every case of the column ran here and passed, and the probe can be believed: the only good cell."""
        return self.sound and self.total > 0 and self.counts.get(Outcome.PASS, 0) == self.total == self.executed

    @property
    def loud(self) -> tuple[tuple[Outcome, int], ...]:
        return tuple((outcome, self.counts[outcome]) for outcome in LOUD if self.counts.get(outcome))


@cache  # the same few thousand ids stand in every record
def device_of(case_id: str) -> str:
    """The device piece of a case id."""
    pieces = case_id.split(".")
    return "cuda" if "cuda" in pieces else "cpu"


@cache
def group_of(case_id: str) -> str:
    """The column group of a case id: its first layout, or nn (modules) and work (whole workloads)."""
    head = case_id.partition(".")[0].partition("-")[0]
    return _GROUP_OF.get(head, head.upper() if head.upper() in GROUPS else "nn")


def columns_of(records: Iterable[Record]) -> tuple[Column, ...]:
    """CPU and CUDA groups that some record has; a device on which nothing ran anywhere gets one column for its reason."""
    groups: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    asked: set[str] = set()
    for record in records:
        for case in record.cases:
            device = device_of(case.id)
            asked.add(device)
            if case.outcome is not Outcome.NOT_RUN:
                groups[device].add(group_of(case.id))
    found = []
    for device in ("cpu", "cuda"):
        if groups[device]:
            found += [Column(group=group, device=device) for group in GROUPS if group in groups[device]]
        elif device in asked:
            found.append(Column(group="", device=device))
    return tuple(found)


def cells_of(record: Record, columns: Sequence[Column]) -> tuple[Cell, ...]:
    """What came of each column's cases in one record."""
    found: dict[tuple[str, str], list[CaseResult]] = {}
    for case in record.cases:
        device = device_of(case.id)
        found.setdefault((group_of(case.id), device), []).append(case)
        found.setdefault(("", device), []).append(case)
    sound = record.complete and record.trusted
    return tuple(cell_of(found.get((column.group, column.device), []), sound) for column in columns)


def cell_of(cases: list[CaseResult], sound: bool) -> Cell:
    reasons = Counter(case.detail for case in cases if case.outcome is Outcome.NOT_RUN)
    return Cell(
        counts=Counter(case.outcome for case in cases),
        executed=sum(case.evidence is Evidence.EXECUTED for case in cases),
        sound=sound,
        reasons=tuple(reason for reason, _ in reasons.most_common(3)),
    )


def stem_of(case_id: str) -> str:
    """Layouts and operation: what is left without dtype, shape and index."""
    pieces = case_id.split(".")
    return ".".join((*pieces[:2], device_of(case_id)))


def alike(cases: Iterable[CaseResult], outcomes: Sequence[Outcome]) -> list[tuple[Outcome, str, list[str]]]:
    """Cases with one of `outcomes`, in that order, those of one operation together: (outcome, operation, details)."""
    grouped: dict[tuple[Outcome, str], list[str]] = {}
    for case in cases:
        if case.outcome in outcomes:
            grouped.setdefault((case.outcome, stem_of(case.id)), []).append(case.detail)
    ranked = sorted(grouped.items(), key=lambda item: (outcomes.index(item[0][0]), item[0][1]))
    return [(outcome, stem, details) for (outcome, stem), details in ranked]

"""Cases to columns and cells: which column a case belongs to, and what came of the cases of one column. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from validator.model import CaseResult, Declared, Evidence, Outcome, Record

GROUPS = ("COO", "CSR", "CSC", "BSR", "BSC", "2:4", "nn", "work")
_GROUP_OF = {"hybrid": "COO", "strided": "COO", "semi": "2:4", "module": "nn", "work": "work", "lib": "work"}
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
    declared: of the cases that were not run, for how many the build registers the kernels that they need (yes), lacks one
    (no), or cannot be asked (unknown). It says nothing of any outcome.
    """

    counts: Mapping[Outcome, int] = field(default_factory=dict)
    executed: int = 0
    sound: bool = False
    reasons: tuple[str, ...] = ()
    declared: Mapping[Declared, int] = field(default_factory=dict)

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
    def is_declared(self) -> bool:
        """Whether anything is known of the kernels of the cases that did not run."""
        return any(self.declared.get(said) for said in (Declared.YES, Declared.NO))

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
    """The column group of a case id: its first layout, 2:4, nn (modules) or work (whole workloads)."""
    if case_id.startswith("module.linear-2to4-"):
        return "2:4"
    head = case_id.partition(".")[0].partition("-")[0]
    return _GROUP_OF.get(head, head.upper() if head.upper() in GROUPS else "nn")


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which columns there are and which cases stand in them. names: in the order of the columns.

    needed: (group, device) -> the cases that must be there, whether a record has them or not; empty: those that it has.
    of: what a number in a cell is out of.
    """

    names: tuple[str, ...]
    groups_of: Callable[[str], tuple[str, ...]]
    of: str = "cases"
    needed: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


BY_LAYOUT = Grouping(names=GROUPS, groups_of=lambda case_id: (group_of(case_id),))


def columns_of(cases: Iterable[CaseResult], by: Grouping = BY_LAYOUT) -> tuple[Column, ...]:
    """CPU and CUDA groups of which some case ran or is declared; a device without any gets one column for its reason."""
    groups: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    asked: set[str] = set()
    for case in cases:
        device = device_of(case.id)
        asked.add(device)
        if case.outcome is not Outcome.NOT_RUN or case.declared in (Declared.YES, Declared.NO):
            groups[device].update(by.groups_of(case.id))
    found = []
    for device in ("cpu", "cuda"):
        if groups[device]:
            found += [Column(group=group, device=device) for group in by.names if group in groups[device]]
        elif device in asked:
            found.append(Column(group="", device=device))
    return tuple(found)


def cases_of(cases: Iterable[CaseResult], columns: Sequence[Column], by: Grouping = BY_LAYOUT) -> tuple[list[CaseResult], ...]:
    """Each column's cases. A needed case that is not there counts as not run."""
    found: dict[tuple[str, str], dict[str, CaseResult]] = {}
    for case in cases:
        device = device_of(case.id)
        for group in (*by.groups_of(case.id), ""):
            found.setdefault((group, device), {})[case.id] = case
    places = [(column.group, column.device) for column in columns]
    return tuple(
        [found.get(place, {}).get(ident) or _not_there(ident) for ident in by.needed[place]]
        if place in by.needed
        else list(found.get(place, {}).values())
        for place in places
    )


def _not_there(case_id: str) -> CaseResult:
    return CaseResult(id=case_id, outcome=Outcome.NOT_RUN, detail="not among the cases of this record")


def cell_of(cases: Sequence[CaseResult], *, sound: bool) -> Cell:
    """What came of some cases. sound: see Cell."""
    not_run = [case for case in cases if case.outcome is Outcome.NOT_RUN]
    return Cell(
        counts=Counter(case.outcome for case in cases),
        executed=sum(case.evidence is Evidence.EXECUTED for case in cases),
        sound=sound,
        reasons=tuple(reason for reason, _ in Counter(case.detail for case in not_run).most_common(3)),
        declared=Counter(case.declared for case in not_run if case.declared is not None),
    )


def cells_of(record: Record, columns: Sequence[Column], by: Grouping = BY_LAYOUT) -> tuple[Cell, ...]:
    """What came of each column's cases in one record."""
    sound = record.complete and record.trusted
    return tuple(cell_of(cases, sound=sound) for cases in cases_of(record.cases, columns, by))


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

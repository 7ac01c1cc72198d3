"""Faults of torch that are known: shipped with the product, each shown by cases in the versions that have it and in no other.

docs/findings.md is written from this list and the records; a test compares the two.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from validator.model import CaseResult, Expectation, Outcome

PATH = Path(__file__).with_name("known_faults.json")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """cases: globs over case ids, all of which show it in every version of the range; also: globs of cases that may show it, too.

    torch: PEP 440 range; issue: link, "" where we know of none; instead: what to do meanwhile."""

    id: str
    title: str
    cases: tuple[str, ...]
    torch: str
    outcome: Outcome
    issue: str
    what: str
    instead: str
    also: tuple[str, ...] = ()

    def shown_by(self, case_id: str) -> bool:
        return any(fnmatch.fnmatchcase(case_id, pattern) for pattern in self.cases)

    def concerns(self, case_id: str) -> bool:
        return self.shown_by(case_id) or any(fnmatch.fnmatchcase(case_id, pattern) for pattern in self.also)

    def expectations(self) -> tuple[Expectation, ...]:
        """The same as entries under `expect:` in images.yaml."""
        return tuple(
            Expectation(case=one, outcome=self.outcome, issue=self.issue or self.id, torch=self.torch) for one in self.cases
        )


@cache
def known() -> tuple[Fault, ...]:
    """The shipped list. Raises ValueError, TypeError or KeyError when it was edited wrongly, which a test would have told."""
    return tuple(
        Fault(
            **entry
            | {"cases": tuple(entry["cases"]), "also": tuple(entry.get("also", ())), "outcome": Outcome(entry["outcome"])}
        )
        for entry in json.loads(PATH.read_text(encoding="utf-8"))
    )


def applies(specifier: str, torch: str) -> bool:
    """Whether a torch version (its local part does not count) is in a range; an unreadable version is in none but the empty."""
    try:
        return Version(Version(torch).public) in SpecifierSet(specifier, prereleases=True)
    except InvalidVersion:
        return not specifier


def fault_of(case: CaseResult, torch: str) -> Fault | None:
    """The known fault that explains this outcome in this torch, or None."""
    return next((f for f in known() if f.outcome is case.outcome and applies(f.torch, torch) and f.concerns(case.id)), None)


def unexplained(cases: Iterable[CaseResult], torch: str) -> tuple[CaseResult, ...]:
    """Cases whose outcome a reader must not overlook (wrong, crash, fallback, timeout) and that no known fault explains."""
    loud = {Outcome.WRONG, Outcome.CRASH, Outcome.FALLBACK, Outcome.TIMEOUT}
    return tuple(case for case in cases if case.outcome in loud and fault_of(case, torch) is None)


def gone(cases: Iterable[CaseResult], torch: str) -> tuple[Fault, ...]:
    """Known faults that this torch should show, and whose cases pass instead: news, too."""
    chosen = tuple(cases)
    return tuple(
        fault
        for fault in known()
        if applies(fault.torch, torch) and any(fault.shown_by(case.id) and case.outcome is Outcome.PASS for case in chosen)
    )

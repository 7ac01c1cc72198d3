"""Known faults (`expect:` in images.yaml) against what was seen. They never change an outcome; they only say what is news."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from validator.faults import applies
from validator.model import CaseResult, Expectation, Finding, Outcome, Severity


def compare(expectations: Iterable[Expectation], cases: Sequence[CaseResult], torch: str) -> tuple[Finding, ...]:
    """One finding for each expectation that applies to this torch: the known fault was seen, or it was not.

    torch: the version measured inside the image; its local part (+cu126) does not count. Cases that did not run say nothing.
    """
    found = []
    for expectation in expectations:
        if not applies(expectation.torch, torch):
            continue
        ran = [c for c in cases if fnmatch.fnmatchcase(c.id, expectation.case) and c.outcome is not Outcome.NOT_RUN]
        if not ran:
            continue
        other = [c for c in ran if c.outcome is not expectation.outcome]
        what = f"{expectation.case} {expectation.outcome.value} ({expectation.issue})"
        if not other:
            found.append(Finding(code="known-fault", severity=Severity.NOTE, message=f"known fault, as expected: {what}"))
            continue
        first = other[0]
        found.append(
            Finding(
                code="unexpected-outcome",
                severity=Severity.WARNING,
                message=f"expected {what}, but {len(other)} of {len(ran)} came out otherwise: {first.id} {first.outcome.value}",
                remedy="narrow or remove the entry under `expect:` in images.yaml if the fault is gone",
            )
        )
    return tuple(found)

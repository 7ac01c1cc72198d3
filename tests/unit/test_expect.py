"""Known faults never change an outcome; what differs from them is news."""

from __future__ import annotations

import pytest

from tests.unit.records import case
from validator.expect import compare
from validator.model import Expectation, Outcome

KNOWN = Expectation(case="csc-csc.mm.*", outcome=Outcome.WRONG, issue="https://example.org/1", torch=">=2.0,<2.14")
CASES = (case("csc-csc.mm.float32.cpu", Outcome.WRONG), case("csc-csc.mm.float64.cpu", Outcome.WRONG))


def test_a_known_fault_that_is_seen_is_a_note() -> None:
    (finding,) = compare((KNOWN,), CASES, "2.13.0+cpu")
    assert (finding.code, finding.severity.value) == ("known-fault", "note")
    assert "https://example.org/1" in finding.message


def test_an_unexpected_pass_is_reported() -> None:
    (finding,) = compare((KNOWN,), (*CASES, case("csc-csc.mm.float16.cpu")), "2.13.0+cpu")
    assert finding.code == "unexpected-outcome"
    assert "1 of 3 came out otherwise: csc-csc.mm.float16.cpu pass" in finding.message


@pytest.mark.parametrize(
    ("torch", "applies"), [("2.14.0", False), ("2.13.1+cu130", True), ("1.13.1", False), ("2.10.0a0+b55", True)]
)
def test_only_in_its_range_of_versions(torch: str, applies: bool) -> None:
    assert bool(compare((KNOWN,), CASES, torch)) is applies


def test_what_did_not_run_says_nothing() -> None:
    assert compare((KNOWN,), (case("csc-csc.mm.float32.cuda", Outcome.NOT_RUN),), "2.13.0") == ()

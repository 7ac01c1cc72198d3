"""--fail-on and --last-failed."""

from __future__ import annotations

import pytest

from tests.unit.records import case, latest, record, run, untested
from validator.errors import UsageError
from validator.failing import FailOn, found, last_failed, parse, regressed
from validator.model import Finding, Outcome, RunEntry, Severity, Verdict, VerdictClass

WRONG = case("coo.mm.float32.cpu", Outcome.WRONG)
KNOWN = case("csc-csc.mm.float32.cpu", Outcome.WRONG)


def an_entry(key: str, ident: str = "a", verdict: Verdict | None = None) -> RunEntry:
    return RunEntry(id=ident, state="tested", record=key, verdict=verdict)


def test_names_are_read_and_an_unknown_one_is_an_error_with_all_names() -> None:
    assert parse(" wrong, crash,,") == {FailOn.WRONG, FailOn.CRASH}
    assert parse("") == frozenset()
    with pytest.raises(UsageError, match="wrongly") as error:
        parse("wrongly,crash")
    assert all(name in error.value.hint for name in FailOn)


@pytest.mark.parametrize(("name", "outcome"), [
    (FailOn.WRONG, Outcome.WRONG), (FailOn.CRASH, Outcome.CRASH), (FailOn.FALLBACK, Outcome.FALLBACK),
    (FailOn.TIMEOUT, Outcome.TIMEOUT), (FailOn.ERROR, Outcome.ERROR),
])  # fmt: skip
def test_an_outcome_is_found_only_when_it_is_asked_for(name: FailOn, outcome: Outcome) -> None:
    made = record("a", *(case(f"coo.op{n}.float32.cpu", outcome) for n in range(5)), case("coo.fine.float32.cpu"))
    (line,) = found({name}, run(an_entry(made.key)), (made,), {})
    assert line == f"a: {outcome.value}: coo.op0.float32.cpu, coo.op1.float32.cpu, coo.op2.float32.cpu and 2 more"
    assert found(set(FailOn) - {name, FailOn.UNEXPECTED}, run(an_entry(made.key)), (made,), {}) == ()


def test_unexpected_is_what_nobody_explains_and_what_is_gone() -> None:
    made = record("a", WRONG, KNOWN, torch="2.6.0+cpu")
    (line,) = found({FailOn.UNEXPECTED}, run(an_entry(made.key)), (made,), {})
    assert "coo.mm.float32.cpu" in line and "csc" not in line
    better = record("a", case("csc-csc.mm.float32.cpu"), torch="2.6.0+cpu", findings=(
        Finding(code="unexpected-outcome", severity=Severity.WARNING, message="expected x, but"),))  # fmt: skip
    lines = found({FailOn.UNEXPECTED}, run(an_entry(better.key)), (better,), {})
    assert any("a known fault does not show" in one for one in lines)
    assert any("expected x, but" in one for one in lines)


def test_regressed_compares_with_what_stood_before_and_not_with_itself() -> None:
    old = record("a", case("coo.mm.float32.cpu"), case("coo.add.float32.cpu"), key="0" * 16)
    new = record("a", WRONG, case("coo.add.float32.cpu", Outcome.NOT_RUN), case("coo.new.float32.cpu", Outcome.CRASH))
    assert regressed(old, new) == ["coo.mm.float32.cpu"]
    assert regressed(new, new) == regressed(None, new) == []
    assert len(found({FailOn.REGRESSED}, run(an_entry(new.key)), (new,), latest(old))) == 1


def test_untested_images_are_named_with_their_reason() -> None:
    lines = found({FailOn.UNTESTED}, run(untested("b"), RunEntry(id="c", state="pending")), (), {})
    assert lines == (
        "b: could not be tested: registry unreachable: nvcr.io (no such host)",
        "c: could not be tested: the run did not come to it",
    )


def test_last_failed_is_what_was_untested_or_not_good() -> None:
    good, bad, broken = (
        record("good", KNOWN, key="1" * 16),
        record("bad", WRONG, key="2" * 16),
        record("broken", key="3" * 16, verdict=Verdict(cls=VerdictClass.IMAGE, code="no-torch", cause="no torch")),
    )
    newest = run(an_entry("1" * 16, "good"), an_entry("2" * 16, "bad"), an_entry("3" * 16, "broken"), untested("away"))
    assert last_failed((run(untested("long-ago")), newest), (good, bad, broken)) == ("bad", "broken", "away")
    assert last_failed((), ()) == ()

"""Known faults of torch: each is shown by a case in the versions that have it, in the committed records, and in no other."""

from __future__ import annotations

import fnmatch

import pytest
from packaging.version import Version

from tests.unit.records import case, record
from validator import faults, probe
from validator.data import data_path
from validator.faults import applies, fault_of, known, unexplained
from validator.model import Outcome
from validator.publish import findings
from validator.store import Store

RECORDS = tuple(Store(data_path("results")).latest().values())
VERSIONS = findings.by_torch(RECORDS)


def test_there_are_records_to_compare_with() -> None:
    assert {"1.9.1", "1.11.0", "1.13.1", "2.0.1", "2.1.2", "2.4.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"} <= set(
        VERSIONS
    )


@pytest.mark.parametrize("fault", known(), ids=lambda fault: fault.id)
def test_a_fault_is_seen_where_it_is_said_to_be_and_nowhere_else(fault: faults.Fault) -> None:
    for pattern in fault.cases:
        assert fnmatch.filter((entry["id"] for entry in probe.cases()), pattern), f"{pattern} names no case"
    for version, (shows, ran) in findings.seen_in(fault, VERSIONS).items():
        assert shows == (ran if applies(fault.torch, version) else 0), f"torch {version}: {shows} of {ran} cases"
    assert any(shows for shows, _ in findings.seen_in(fault, VERSIONS).values()), "no record shows it"


def test_at_least_five_faults_come_or_go_between_versions() -> None:
    moving = [f for f in known() if {bool(shows) for shows, _ in findings.seen_in(f, VERSIONS).values()} == {True, False}]
    assert len([f for f in moving if f.issue]) >= 5


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_every_loud_outcome_of_the_committed_records_is_explained(version: str) -> None:
    left = unexplained(VERSIONS[version].values(), version)
    assert not [(one.id, one.outcome.value, one.detail) for one in left]


def test_the_range_decides_not_the_local_part() -> None:
    wrong = case("csc-csc.mm.float32.cpu", Outcome.WRONG)
    assert fault_of(wrong, "2.6.0+cu124") is fault_of(wrong, "2.6.0") is not None
    assert fault_of(wrong, "1.12.1") is None
    assert fault_of(case("csc-csc.mm.float32.cpu"), "2.6.0") is None, "an outcome that is not the fault's is not the fault"


def test_what_nobody_knows_is_told_apart() -> None:
    cases = (case("coo.mm.float32.cpu", Outcome.WRONG), case("csc-csc.mm.float32.cpu", Outcome.WRONG), case("coo.a.cpu"))
    assert unexplained(cases, "2.6.0") == cases[:1]


def test_versions_are_in_order_and_partial_records_do_not_count() -> None:
    made = [
        record("a", case("coo.a.cpu"), torch=version, options={"tier": tier}, complete=complete)
        for version, tier, complete in (
            ("2.10.0+cpu", "full", True), ("2.9.1", "full", True), ("2.8.0", "standard", True), ("2.7.0", "full", False))
    ]  # fmt: skip
    assert list(findings.by_torch(made)) == ["2.9.1", "2.10.0"]
    assert sorted(VERSIONS, key=Version) == list(VERSIONS)

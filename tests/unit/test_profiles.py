"""A profile is complete when everything that it needs passes, and the note says what does not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.unit.records import case, latest, record
from tests.unit.test_cli import IMAGE, run
from validator import probe
from validator.model import Evidence, Outcome
from validator.profiles import NAMES, by_profile
from validator.publish import markdown, terminal
from validator.store import Store
from validator.table import Table, build

CATALOGUE: list[dict[str, Any]] = [
    {"id": "coo.a.cpu", "device": "cpu", "profiles": ["core", "gnn"]},
    {"id": "csr.b.cpu", "device": "cpu", "profiles": ["gnn"]},
    {"id": "coo.a.cuda", "device": "cuda", "profiles": ["core", "gnn"]},
    {"id": "coo.c.cpu", "device": "cpu"},
]
BY = by_profile(CATALOGUE)


def table(*cases: Any) -> Table:
    return build(latest(record("a", *cases)), by=BY)


def test_columns_are_the_profiles_that_some_case_names() -> None:
    assert BY.names == ("core", "gnn")
    made = table(case("coo.a.cpu"), case("csr.b.cpu"), case("coo.c.cpu"), case("coo.a.cuda", Outcome.NOT_RUN, "no GPU"))
    assert [column.label for column in made.columns] == ["core cpu", "gnn cpu", "CUDA"]
    assert [cell.complete for cell in made.rows[0].cells] == [True, True, False]
    assert made.notes == ()


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.PASS])
def test_one_needed_case_that_is_not_good_and_it_is_not_complete(outcome: Outcome) -> None:
    made = table(case("coo.a.cpu"), case("csr.b.cpu", outcome))
    core, gnn = made.rows[0].cells
    assert core.complete and not gnn.complete and (gnn.counts[Outcome.PASS], gnn.total) == (1, 2)
    assert made.notes == (f"gnn cpu needs 2 cases; not good: csr.b.cpu {outcome.value}",)


def test_a_needed_case_that_the_record_does_not_have_is_not_good_either() -> None:
    made = table(case("coo.a.cpu"))
    assert [cell.complete for cell in made.rows[0].cells] == [True, False]
    assert made.rows[0].cells[1].reasons == ("not among the cases of this record",)
    assert "csr.b.cpu not-run" in made.notes[0]


def test_a_case_that_nobody_needs_does_not_matter() -> None:
    made = table(case("coo.a.cpu"), case("csr.b.cpu"), case("coo.c.cpu", Outcome.CRASH))
    assert all(cell.complete for cell in made.rows[0].cells) and made.notes == ()


def test_the_worst_is_named_first() -> None:
    made = table(case("coo.a.cpu", Outcome.ABSENT), case("csr.b.cpu", Outcome.WRONG))
    assert made.notes[1] == "gnn cpu needs 2 cases; not good: csr.b.cpu wrong, coo.a.cpu absent"


def test_a_profile_seen_in_a_sibling_is_not_complete() -> None:
    made = table(case("coo.a.cpu", evidence=Evidence.SIBLING))
    assert not made.rows[0].cells[0].complete


def test_it_says_what_the_numbers_are_of() -> None:
    made = table(case("coo.a.cpu"), case("csr.b.cpu", Outcome.WRONG))
    text = terminal.render(made, width=200)
    assert (
        "✓ 1/1" in text and "1/2 ✕1" in text and "passes/the cases that a profile needs" in text and "csr.b.cpu wrong" in text
    )
    assert "passes of the cases that a profile needs" in markdown.render(made)


def test_the_profiles_of_the_probe_are_known_and_short() -> None:
    by = by_profile(probe.cases())
    assert set(by.names) == set(NAMES)
    assert all(5 <= len(needed) <= 40 for needed in by.needed.values()), Counter({k: len(v) for k, v in by.needed.items()})


def test_on_the_command_line(tmp_path: Path) -> None:
    ids = [one["id"] for one in probe.cases() if "core" in one.get("profiles", ()) and one["device"] == "cpu"]
    Store(tmp_path).write_record(record(IMAGE, *(case(ident) for ident in ids)))
    row = json.loads(run("--results", str(tmp_path), "table", "--profiles", "--json").stdout)["rows"][0]
    assert row["cells"]["core cpu"]["complete"] and row["cells"]["core cpu"]["outcomes"] == {"pass": len(ids)}
    assert not any(cell["complete"] for label, cell in row["cells"].items() if label != "core cpu")
    done = run("table", "--cases", "coo.mm.*", "--profiles")
    assert done.returncode == 2 and "leave --profiles" in done.stderr

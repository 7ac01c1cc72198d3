"""A sibling is another image with the same torch for the same CUDA; what was seen there is never taken for seen here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.records import CPU_HOST, GPU_HOST, OK, UNREACHABLE, case, control, latest, record
from tests.unit.test_cli import IMAGE, run
from validator.cells import Cell
from validator.model import Declared, Evidence, Image, Outcome, Pull, Record
from validator.publish import markdown, terminal
from validator.sibling import Build, borrowed, declared_build, measured_build, siblings
from validator.store import Store
from validator.table import Table, build

NOT_RUN = case("coo.a.cuda", Outcome.NOT_RUN, "no GPU runtime")


def image(ident: str = "pulled", torch: str = "2.6.0", cuda: str = "12.4", **more: str) -> Image:
    said = {"torch": torch, "cuda": cuda, **more}
    return Image(id=ident, family="f", source=Pull(reference="r"), declared=tuple((k, v) for k, v in said.items() if v))


def seen(ident: str = "slim", torch: str = "2.6.0+cu124", cuda: str = "12.4", *, gpu: bool = True, **over: Any) -> Record:
    cases = (case("coo.a.cpu"), case("coo.a.cuda") if gpu else NOT_RUN)
    return record(ident, *cases, torch=torch, cuda=cuda, host=GPU_HOST if gpu else CPU_HOST, **over)


def table(images: tuple[Image, ...], *records: Record) -> Table:
    return build(latest(*records), siblings=siblings(images, records), order=tuple(one.id for one in images))


@pytest.mark.parametrize(
    ("torch", "cuda", "matches"),
    [
        ("2.6.0", "12.4", True),
        ("2.6.0", "12.4.1", True),
        ("2.6.0+cu124", "12.4", True),
        ("2.6.0", "12.6", False),
        ("2.6.0", "12.40", False),
        ("2.6.0", "12", False),
        ("2.6.1", "12.4", False),
        ("2.6.0a0+ecf3bae40a", "12.4", False),
        ("2.6.0", "cpu", False),
        ("2.6.0", "", False),
        ("", "12.4", False),
    ],
)
def test_torch_and_cuda_must_both_be_the_same(torch: str, cuda: str, matches: bool) -> None:
    assert bool(siblings((image(torch=torch, cuda=cuda),), (seen(),))) is matches


def test_the_torch_of_ngc_matches_itself() -> None:
    ours = "2.6.0a0+ecf3bae40a"
    assert declared_build(image(torch=ours)) == Build(torch="2.6.0a0", cuda="12.4") == measured_build(seen(torch=ours))


def test_a_cpu_build_is_nobodys_sibling() -> None:
    assert measured_build(seen(torch="2.6.0+cpu", cuda="")) is None
    assert siblings((image(cuda="cpu"),), (seen(torch="2.6.0+cpu", cuda=""),)) == ()


@pytest.mark.parametrize("over", [
    {"complete": False},
    {"controls": (control(Outcome.PASS),)},
    {"controls": ()},
    {"verdict": UNREACHABLE},
])  # fmt: skip
def test_a_record_that_is_not_whole_or_not_trusted_is_not_offered(over: dict[str, Any]) -> None:
    assert siblings((image(),), (seen(**over),)) == ()


def test_a_record_of_its_own_takes_its_place() -> None:
    own = seen("pulled")
    assert siblings((image(),), (seen(), own)) == ()
    (row,) = table((image(),), own).rows
    assert row.sibling == "" and row.cells[0].evidence is Evidence.EXECUTED


def test_an_image_is_not_its_own_sibling() -> None:
    assert siblings((image("slim"),), (seen("slim", gpu=False),)) == ()


def test_with_a_record_but_no_gpu_only_the_cuda_cases_are_borrowed_and_by_what_was_measured() -> None:
    own = seen("pulled", torch="2.6.0+cu124", gpu=False)
    wrong_row = image(torch="9.9", cuda="9.9")  # what the row says does not count once the image was looked into
    (found,) = siblings((wrong_row,), (own, seen()))
    cpu, cuda = borrowed(own, found.record)
    assert (cpu.evidence, cuda.evidence) == (Evidence.EXECUTED, Evidence.SIBLING)
    assert siblings((image(),), (own, seen(gpu=False))) == (), "a sibling that saw no GPU either has nothing to offer"


def test_the_best_sibling_saw_a_gpu_then_has_the_same_python_then_is_the_newest() -> None:
    def chosen(*records: Record, **more: str) -> str:
        return siblings((image(**more),), records)[0].record.image.id

    old, new = seen("old", gpu=False), seen("new", gpu=False, started="2026-12-02T00:00:00Z")
    assert chosen(new, seen("gpu")) == "gpu"
    assert chosen(old, new) == "new"
    facts = {"torch": {"version": "2.6.0", "cuda": "12.4"}, "python": {"version": "3.13.1"}}
    assert chosen(old.model_copy(update={"facts": facts}), new, python="3.13") == "old"


def test_nothing_of_a_sibling_is_executed_declared_or_complete_here() -> None:
    there = seen(gpu=False).model_copy(
        update={"cases": (case("coo.a.cpu"), NOT_RUN.model_copy(update={"declared": Declared.YES}))}
    )
    for one in borrowed(None, there):
        assert one.evidence in (Evidence.SIBLING, Evidence.NONE) and one.declared is None
    rows = {row.image: row for row in table((image("slim"), image()), seen()).rows}
    assert all(cell.complete for cell in rows["slim"].cells)
    assert not any(cell.complete for cell in rows["pulled"].cells)
    assert not Cell(counts={Outcome.PASS: 1}, executed=0, sound=True).complete


def test_a_row_of_a_sibling_says_so_and_names_it_in_every_format() -> None:
    made = table((image("slim"), image()), seen())
    assert [row.image for row in made.rows] == ["slim", "pulled"]
    row = made.rows[1]
    assert (row.verdict, row.tested, row.torch, row.sibling) == (None, "", "2.6.0", "slim")
    assert made.notes[row.notes[0] - 1].startswith(
        "sibling: not tested itself; the outcomes are those of slim (torch 2.6.0+cu124"
    )
    text = terminal.render(made, width=250, colour=True)
    line = next(line for line in text.splitlines() if line.startswith("pulled"))
    assert "1/1 sibling" in line and "untested" in line and "✓" not in line and "\x1b[32m" not in line
    assert "sibling of pulled: slim" in text and "not tested in this one" in text
    mark = markdown.render(made)
    assert "| `pulled`" in mark and "**sibling**" in mark and "those of slim" in mark and "not tested in this one" in mark
    data = made.data()["rows"][1]
    assert (data["verdict"], data["sibling"]) == (None, "slim")
    assert {cell["evidence"] for cell in data["cells"].values()} == {"sibling"}
    assert not any(cell["complete"] for cell in data["cells"].values())


def test_without_siblings_the_table_is_what_it_was() -> None:
    made = build(latest(seen()))
    assert "sibling" not in terminal.render(made, width=250) and "sibling" not in markdown.render(made)


def test_the_command_line_shows_them_for_images_that_are_named(tmp_path: Path) -> None:
    facts = {"torch": {"version": "2.6.0+cu124", "cuda": "12.4"}, "python": {"version": "3.11.2"}}
    Store(tmp_path).write_record(record(IMAGE, case("coo.mm.float32.cpu"), facts=facts, verdict=OK))
    pulled = "pytorch-2.6.0-cuda12.4-cudnn9-runtime"
    table = ("--results", str(tmp_path), "table")
    assert pulled not in run(*table).stdout and "--siblings` shows them" in run(*table).stdout
    assert pulled in run(*table, "--siblings", COLUMNS="200").stdout
    rows = json.loads(run(*table, "--json", pulled).stdout)["rows"]
    assert [(row["image"], row["sibling"]) for row in rows] == [(pulled, IMAGE)]
    assert json.loads(run(*table, "--json", "--no-siblings", pulled).stdout)["rows"] == []

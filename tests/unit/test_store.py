"""results/: atomic, append-only, safe names; damaged files are named and left alone."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.records import GPU_HOST, UNREACHABLE, case, record, run
from validator.errors import EnvironmentProblem
from validator.model import CaseResult, Declared, Evidence, ImageIdentity, Outcome
from validator.store import Store


def test_an_absent_directory_is_read_as_empty_and_not_made(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    assert (store.records(), store.runs(), store.latest(), store.known("x")) == ((), (), {}, None)
    assert not (tmp_path / "results").exists()


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    made = record("slim-a", case("coo.mm.float32.cpu", Outcome.WRONG, "π ≠ 3\n\ud7ff"), host=GPU_HOST)
    path = Store(tmp_path).write_record(made)
    assert path == tmp_path / "records/slim-a/20261201T000000Z-01234567.json"
    assert Store(tmp_path).records() == (made,)


def test_a_number_that_is_none_is_null_and_refused_when_read(tmp_path: Path) -> None:
    made = record(
        "slim-a", CaseResult(id="coo.a.cpu", outcome=Outcome.PASS, duration_ms=float("inf"), data={"x": float("nan")})
    )
    path = Store(tmp_path).write_record(made)
    assert not {"NaN", "Infinity"} & set(re.findall(r"\w+", path.read_text()))
    assert Store(tmp_path).records()[0].cases[0].duration_ms is None
    path.write_text(path.read_text().replace("null", "NaN", 1))
    again = Store(tmp_path)
    assert again.records() == () and "NaN is not JSON" in again.problems[0]


def test_the_same_record_gives_the_same_bytes_one_case_a_line(tmp_path: Path) -> None:
    made = record("slim-a", case("coo.a.cpu"), case("coo.b.cpu"))
    texts = [Store(tmp_path / name).write_record(made).read_text() for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert texts[0].endswith("}\n")
    assert sum('"coo.' in line for line in texts[0].splitlines()) == 2
    assert '"class": "ok"' in texts[0] and '"schema": "image-matrix/record/2"' in texts[0]


def test_a_second_record_of_the_same_second_does_not_replace_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = record("slim-a", case("coo.a.cpu")), record("slim-a", case("coo.b.cpu"))
    assert store.write_record(first) != store.write_record(second)
    assert {r.cases[0].id for r in store.records()} == {"coo.a.cpu", "coo.b.cpu"}


def test_records_come_oldest_first_across_images(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for image, day in (("b", 2), ("a", 3), ("c", 1)):
        store.write_record(record(image, started=f"2026-12-0{day}T00:00:00Z"))
    assert [r.image.id for r in store.records()] == ["c", "b", "a"]


@pytest.mark.parametrize("text", ["", "{", '{"key": 1}', "[" * 100_000, '{"key": "a", "key": "b"}', "null", "\x00", "NaN"])
def test_a_damaged_file_is_named_kept_and_costs_nothing_else(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    good = store.write_record(record())
    bad = good.with_name("bad.json")
    bad.write_text(text)
    again = Store(tmp_path)
    assert len(again.records()) == 1
    assert len(again.problems) == 1 and str(bad) in again.problems[0]
    assert bad.read_text() == text


def test_a_failed_write_leaves_nothing_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem) as caught:
        Store(tmp_path).write_record(record())
    assert "No space left" in caught.value.message and "free some space" in caught.value.hint
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_place_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "results")
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        store.write_record(record())
    with pytest.raises(EnvironmentProblem, match="cannot write"), store.lock():
        pass


def test_latest_is_per_image_and_host_and_passing_trouble_hides_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good = record("a")
    trouble = record("a", started="2026-12-02T00:00:00Z", verdict=UNREACHABLE)
    other = record("a", host=GPU_HOST, key="f" * 16)
    for made in (good, trouble, other):
        store.write_record(made)
    assert store.latest() == {("a", good.host.key): good, ("a", GPU_HOST.key): other}


def test_a_narrower_selection_of_cases_does_not_hide_a_fuller_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    full = record("slim-a", case("coo.a.cpu"), started="2026-12-01T00:00:00Z")
    for hour, options in ((1, {"cases": ["coo.*"], "tier": "standard"}), (2, {"cases": [], "tier": "quick"})):
        store.write_record(record("slim-a", case("coo.a.cpu"), started=f"2026-12-01T0{hour}:00:00Z", options=options))
    store.write_record(full)
    assert list(store.latest().values()) == [full]


def test_only_a_complete_record_about_the_image_is_known(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_record(record("a", key="1" * 16, complete=False))
    store.write_record(record("a", key="2" * 16, verdict=UNREACHABLE))
    store.write_record(record("a", key="3" * 16))
    assert store.known("1" * 16) is None
    assert store.known("2" * 16) is None
    assert store.known("3" * 16) is not None


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "a..b", "x" * 200, "a\n"])
def test_no_name_leaves_the_directory(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "results")
    image = ImageIdentity(id=name, family="f", kind="pull")
    for write in (
        lambda: store.write_record(record(image=name).model_copy(update={"image": image})),
        lambda: store.write_run(run(ident=name)),
        lambda: store.log_path("r", name),
        lambda: store.log_path(name, "i"),
    ):
        with pytest.raises(EnvironmentProblem):
            write()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_key_or_moment_cannot_leave_the_directory_either(tmp_path: Path) -> None:
    for over in ({"key": "../../xx"}, {"started": "../../x"}):
        with pytest.raises(EnvironmentProblem):
            Store(tmp_path).write_record(record(**over))


def test_a_run_is_written_over_and_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_run(run().model_copy(update={"complete": False}))
    store.write_run(run())
    assert store.runs() == (run(),)


def test_a_log_has_its_folder(tmp_path: Path) -> None:
    path = Store(tmp_path).log_path("20261201T000000Z-aaaa", "slim-a")
    assert path == tmp_path / "logs/20261201T000000Z-aaaa/slim-a.log"
    path.write_text("x")


HOLD = """
import sys
from pathlib import Path
from typing import Any
from validator.store import Store
with Store(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(EnvironmentProblem, match=rf"another run uses .* \(process {holder.pid}\)"), Store(tmp_path).lock():
            pass
        holder.communicate()
    with Store(tmp_path).lock():
        assert (tmp_path / "run.pid").read_text() == f"{os.getpid()}\n"


def test_a_packed_record_says_the_same_and_says_reasons_once(tmp_path: Path) -> None:
    cases = [
        CaseResult(id="csr.mm.float32.cpu", outcome=Outcome.PASS, evidence=Evidence.EXECUTED, duration_ms=0.25),
        CaseResult(id="coo.mm.float32.cpu", outcome=Outcome.PASS, evidence=Evidence.EXECUTED, data={"gradients": {"A": "coo"}}),
        *(
            CaseResult(
                id=f"coo.op{n}.float32.cuda", outcome=Outcome.NOT_RUN, kind="no-device", detail="no GPU here", declared=known
            )
            for n, known in enumerate((Declared.YES, Declared.NO, Declared.YES))
        ),
    ]
    store = Store(tmp_path)
    path = store.write_record(record("a", *cases))
    assert path.read_text(encoding="utf-8").count("no GPU here") == 2
    (read,) = Store(tmp_path).records()
    assert read.cases == tuple(sorted(cases, key=lambda case: case.id))


def test_a_record_of_schema_1_is_still_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write_record(record("a", case("coo.a.cpu")))
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["outcomes"]
    data |= {"schema": "image-matrix/record/1", "cases": [{"id": "coo.a.cpu", "outcome": "wrong", "detail": "old"}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    (read,) = Store(tmp_path).records()
    assert [(c.id, c.outcome, c.detail) for c in read.cases] == [("coo.a.cpu", Outcome.WRONG, "old")]


@pytest.mark.parametrize("outcomes", [
    {"pass": []}, [{"outcome": "pass"}], [{"outcome": "pass", "cases": {"a": 1}}, {"outcome": "wrong", "cases": {"a": 1}}],
    [{"outcome": "pass", "cases": {"a": 1}, "data": {"b": {}}}],
])  # fmt: skip
def test_packed_cases_that_make_no_sense_are_a_problem_and_no_record(tmp_path: Path, outcomes: Any) -> None:
    path = Store(tmp_path).write_record(record("a", case("coo.a.cpu")))
    data = json.loads(path.read_text(encoding="utf-8")) | {"outcomes": outcomes}
    path.write_text(json.dumps(data), encoding="utf-8")
    store = Store(tmp_path)
    assert store.records() == ()
    assert store.problems

"""The probe's report gets out whole, or what is missing is said: no outcome is lost unnoticed and none is invented."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from validator import probe
from validator.model import Declared, Evidence, Outcome
from validator.preflight import GpuState
from validator.probe.channel import Reader
from validator.run import ImageRunner

NONCE = "0123456789abcdef" * 2


def frame(number: int, body: dict[str, object], nonce: str = NONCE) -> bytes:
    text = json.dumps(body)
    digest = hashlib.sha256(f"{nonce} {number} {text}".encode()).hexdigest()[:16]
    return f"\n@image-matrix {nonce} {number} {len(text)} {digest} {text}\n".encode()


BODIES: list[dict[str, object]] = [
    {"frame": "hello"},
    *({"frame": "case", "id": f"coo.op{n}.cpu", "outcome": "pass"} for n in range(5)),
    {"frame": "end", "complete": True},
]
WHOLE = b"".join(frame(number, body) for number, body in enumerate(BODIES))


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=20), noise=st.binary(max_size=40).filter(lambda b: b"@" not in b))
def test_chunks_and_noise_between_frames_lose_nothing(cuts: list[int], noise: bytes) -> None:
    data = b"".join(noise + b"\n" + frame(number, body) for number, body in enumerate(BODIES))
    reader = Reader(NONCE)
    places = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        reader.feed(data[start:end])
    report = reader.report()
    assert report.complete
    assert len(report.cases) == 5


@settings(deadline=None)
@given(end=st.integers(0, len(WHOLE)))
def test_a_cut_report_keeps_what_came_and_is_not_complete(end: int) -> None:
    reader = Reader(NONCE)
    reader.feed(WHOLE[:end])
    report = reader.report()
    assert [case.id for case in report.cases] == [f"coo.op{n}.cpu" for n in range(len(report.cases))]
    assert report.complete == (end == len(WHOLE))


@settings(deadline=None)
@given(place=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255))
def test_a_changed_byte_never_invents_an_outcome(place: int, value: int) -> None:
    reader = Reader(NONCE)
    reader.feed(WHOLE[:place] + bytes([value]) + WHOLE[place + 1 :])
    report = reader.report()
    assert {case.id for case in report.cases} <= {f"coo.op{n}.cpu" for n in range(5)}
    assert {case.outcome for case in report.cases} <= {Outcome.PASS}


def test_frames_of_another_run_nan_and_double_keys_are_problems_not_outcomes() -> None:
    reader = Reader(NONCE)
    reader.feed(frame(0, {"frame": "case", "id": "x.y.cpu", "outcome": "pass"}, nonce="f" * 32))
    for number, text in enumerate(('{"frame": "facts", "data": {"a": NaN}}', '{"frame": "case", "frame": "case"}')):
        digest = hashlib.sha256(f"{NONCE} {number} {text}".encode()).hexdigest()[:16]
        reader.feed(f"\n@image-matrix {NONCE} {number} {len(text)} {digest} {text}\n".encode())
    report = reader.report()
    assert report.cases == ()
    assert len(report.problems) == 3


def test_half_a_surrogate_pair_becomes_text_that_a_record_can_hold() -> None:
    reader = Reader(NONCE)
    reader.feed(frame(0, {"frame": "facts", "data": {"environment": {"PATH": "/a\udc80"}, "list": ["\udcff"]}}))
    reader.feed(frame(1, {"frame": "case", "id": "coo.op.cpu", "outcome": "error", "detail": "x\udcff"}))
    report = reader.report()
    assert report.facts == {"environment": {"PATH": "/a?"}, "list": ["?"]}
    assert report.cases[0].model_dump_json()
    assert report.problems == ()


def test_only_what_ran_counts_as_executed() -> None:
    reader = Reader(NONCE)
    reader.feed(frame(0, {"frame": "case", "id": "a.b.cpu", "outcome": "unsupported"}))
    reader.feed(frame(1, {"frame": "case", "id": "a.b.cuda", "outcome": "not-run", "kind": "no-device"}))
    found = {case.id: (case.evidence, case.kind) for case in reader.report().cases}
    assert found == {"a.b.cpu": (Evidence.EXECUTED, ""), "a.b.cuda": (Evidence.NONE, "no-device")}


def test_an_endless_line_does_not_fill_the_memory() -> None:
    reader = Reader(NONCE)
    for _ in range(80):
        reader.feed(b"x" * (1 << 20))
    report = reader.report()
    assert any("dropped" in problem for problem in report.problems)
    assert len(report.noise_head) + len(report.noise_tail) < 1 << 20


def test_the_real_probe_without_torch_gives_a_whole_report() -> None:
    command = [sys.executable, *probe.command({"cases": ["coo.mm.*"]}, NONCE)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    reader = Reader(NONCE)
    reader.feed(done.stdout)
    report = reader.report()
    assert report.complete
    assert report.facts["torch_import"]["state"] == "absent"
    assert report.cases
    assert {case.outcome for case in report.cases} == {Outcome.NOT_RUN}
    assert max(map(len, command)) < 128 * 1024


def test_the_catalogue_on_disk_is_that_of_the_probe() -> None:
    listed = subprocess.run([sys.executable, str(probe.PROBE_PATH), "--list"], capture_output=True, check=True).stdout
    assert listed.decode() == probe.CASES_PATH.read_text(encoding="utf-8"), "run `make cases`"


def test_what_a_build_declares_of_a_case_that_was_not_run_is_kept() -> None:
    reader = Reader(NONCE)
    said = {
        "frame": "case",
        "id": "coo.a.cuda",
        "outcome": "not-run",
        "detail": "no GPU",
        "declared": "no",
        "missing": "aten::mm",
    }
    reader.feed(frame(0, said))
    (case,) = reader.report().cases
    assert (case.evidence, case.declared, case.missing) == (Evidence.NONE, Declared.NO, "aten::mm")
    # The host may know better why it was not run; what the build declares stays.
    runner = SimpleNamespace(preflight=SimpleNamespace(gpu=GpuState.REFUSED, gpu_reason="no driver"))
    explained = ImageRunner._explain(runner, case, {"cuda": {"state": "no-device"}})  # type: ignore[arg-type]
    assert explained.kind == "no-gpu-runtime" and (explained.declared, explained.missing) == (Declared.NO, "aten::mm")

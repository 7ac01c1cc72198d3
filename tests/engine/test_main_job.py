"""The main job, for real: images.yaml to a record and a table, through the command line, with a real torch in a real image."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.conftest import CPU_IMAGE, LABELS, ROOT, image_matrix
from validator.engine import LABEL, ContainerSpec, DockerEngine
from validator.model import Outcome, Record
from validator.store import Store


@pytest.fixture(scope="session")
def record(cpu_run: Path) -> Record:
    (found,) = Store(cpu_run).records()
    return found


def outcome(record: Record, case: str) -> Outcome:
    return next(result.outcome for result in record.cases if result.id == case)


def test_the_record_is_complete_and_its_controls_held(record: Record) -> None:
    assert record.complete
    assert record.trusted
    assert {control.expected for control in record.controls} >= {Outcome.WRONG, Outcome.CRASH, Outcome.TIMEOUT, Outcome.PASS}
    assert record.verdict.code == "tested"


def test_what_everyone_needs_passes_on_the_cpu(record: Record) -> None:
    for case in ("coo.create.float32.cpu", "coo.mm.float32.cpu", "coo.mm.float32.cpu.backward", "csr.mm.float32.cpu"):
        assert outcome(record, case) is Outcome.PASS, case


def test_cuda_cases_are_not_run_with_the_reason(record: Record) -> None:
    cuda = [case for case in record.cases if ".cuda" in case.id]
    assert cuda
    assert {case.outcome for case in cuda} == {Outcome.NOT_RUN}
    assert {case.detail for case in cuda} == {"this torch is built without CUDA"}


def test_the_record_says_what_image_it_was(record: Record, engine: DockerEngine) -> None:
    assert record.facts["torch"]["version"].startswith("2.13.0")
    assert record.image.base_source.startswith(("registry", "mmdebstrap"))
    local = engine.image(record.image.image_id)
    assert local is not None
    assert local.size == record.image.size_bytes
    assert not [finding for finding in record.findings if finding.code.startswith("declared-")]


def test_nothing_of_the_build_is_left(record: Record, engine: DockerEngine, cpu_run: Path) -> None:
    script = "ls -d /build /tmp/* /var/lib/apt/lists/* ~/.cache; find / -xdev -name '*.whl' -o -xdev -name uv -type f -o -xdev -name ca.pem"
    out = bytearray()
    spec = ContainerSpec(image_id=record.image.image_id, command=("/bin/sh", "-c", script), labels=LABELS)
    engine.run(spec, out.extend, lambda _: None)
    assert out.decode() == ""
    layers = set(re.findall(r"^ ---> ([0-9a-f]{12})$", (cpu_run / record.log).read_text(), re.MULTILINE))
    left = {image.id.removeprefix("sha256:")[:12] for image in engine.labelled_images(f"{LABEL}.stage=build")}
    assert not layers & left


def test_the_table_is_on_stdout_and_talk_on_stderr(cpu_run: Path) -> None:
    table, talk = (cpu_run / "stdout").read_text(), (cpu_run / "stderr").read_text()
    assert "slim-torch2.13" in table
    assert "plan" in talk
    assert "plan" not in table


def test_a_second_run_builds_nothing_and_says_why(cpu_run: Path, engine: DockerEngine) -> None:
    before = time.monotonic()
    done = image_matrix("--results", str(cpu_run), "matrix", CPU_IMAGE)
    assert done.returncode == 0
    assert "1 known (nothing changed since their record)" in done.stderr
    assert time.monotonic() - before < 30
    assert len(list(cpu_run.glob("records/*/*.json"))) == 1


def test_a_gpu_that_is_required_and_missing_ends_it_before_any_image(tmp_path: Path, engine: DockerEngine) -> None:
    if engine.info().gpu_runtimes:
        pytest.skip("this engine has a GPU runtime")
    done = image_matrix("--results", str(tmp_path), "matrix", "--gpu", "required", CPU_IMAGE)
    assert done.returncode == 4
    assert "a GPU is required" in done.stderr
    assert "hint:" in done.stderr
    assert not list(tmp_path.glob("records/*"))


def start_until(results: Path, word: str) -> subprocess.Popen[str]:
    """Start a run and come back when it says `word`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "validator", "--results", str(results), "run", "--keep", "--refresh", CPU_IMAGE],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return process
    raise AssertionError(f"it ended without saying {word!r}")


def ours(engine: DockerEngine) -> int:
    return len(engine.containers(f"{LABEL}.owner"))


def wait_for_container(engine: DockerEngine) -> None:
    for _ in range(200):
        if ours(engine):
            return
        time.sleep(0.05)
    raise AssertionError("no container came up")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_cleans_up_and_keeps_what_is_known(number: int, cpu_run: Path, tmp_path: Path, engine: DockerEngine) -> None:
    process = start_until(tmp_path, "probing")
    wait_for_container(engine)
    process.send_signal(number)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 130, talk
    assert "what was tested so far is kept" in talk
    assert ours(engine) == 0
    (run,) = Store(tmp_path).runs()
    assert not run.complete
    assert run.entries[0].state == "pending"


def test_what_a_killed_run_left_is_removed_by_the_next(cpu_run: Path, tmp_path: Path, engine: DockerEngine) -> None:
    process = start_until(tmp_path, "probing")
    wait_for_container(engine)
    process.kill()
    process.communicate(timeout=60)
    assert ours(engine) >= 1
    done = image_matrix("--results", str(tmp_path), "matrix", "--dry-run", CPU_IMAGE)
    assert done.returncode == 0, done.stderr
    assert "container(s) that a killed run of ours had left" in done.stderr
    assert ours(engine) == 0


def test_unknown_case_and_image_are_usage_errors() -> None:
    assert image_matrix("run", "--cases", "coo.mmm.*", CPU_IMAGE).returncode == 2
    nothing = image_matrix("run", "slim-torch2.13.0-cpu-py3.11-bookwrom")
    assert nothing.returncode == 3
    assert f"did you mean {CPU_IMAGE}" in nothing.stderr


def test_no_engine_is_one_message_with_everything_tried() -> None:
    done = image_matrix("run", CPU_IMAGE, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 4
    assert "unix:///nowhere/docker.sock  (DOCKER_HOST): no such socket" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_of_the_table_has_the_row(cpu_run: Path) -> None:
    data = json.loads(image_matrix("--results", str(cpu_run), "table", "--json").stdout)
    (row,) = data["rows"]
    assert row["image"] == CPU_IMAGE
    assert row["cells"]["COO cpu"]["evidence"] == "executed"
    assert row["cells"]["CUDA"]["evidence"] == "none"


def test_doctor_looks_at_the_real_host_and_leaves_nothing_behind(engine: DockerEngine) -> None:
    before = {image.id for image in engine.labelled_images("io.image-matrix.run")}
    done = image_matrix("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert engine.info().version in checks["engine"]["text"]
    assert checks["GPU request"]["state"] in ("ok", "warning")
    assert checks["disk"]["text"]
    assert checks["packages"]["state"] == "ok", checks["packages"]
    assert (done.returncode == 4) == any(check["state"] == "problem" for check in checks.values())
    assert {image.id for image in engine.labelled_images("io.image-matrix.run")} == before
    assert engine.containers("io.image-matrix.run=doctor") == ()

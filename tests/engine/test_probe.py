"""The probe inside a real image with a real torch: what its own list says about itself, and CUDA cases with the CPU injected."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import CPU_IMAGE
from validator import probe
from validator.model import Outcome
from validator.probe.channel import Reader, Report
from validator.store import Store

PYTHON = "/opt/venv/bin/python3"
NONCE = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def image(cpu_run: Path) -> str:
    """The image of the run, which is still on the engine."""
    (record,) = Store(cpu_run).records()
    assert record.image.id == CPU_IMAGE
    return record.image.image_id


def inside(image: str, *arguments: str) -> str:
    """Standard output of the probe, run by hand in the image."""
    done = subprocess.run(
        ["docker", "run", "--rm", "-i", "--network", "none", "--tmpfs", "/work:exec", "--entrypoint", "sh", image, "-c",
         f'cat > /work/probe.py && exec {PYTHON} -W ignore /work/probe.py "$@"', "sh", *arguments],
        input=probe.source(), capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    return done.stdout


def report(image: str, **options: Any) -> Report:
    """A report as the host gets it."""
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", "--entrypoint", PYTHON, image, *probe.command(options, NONCE)],
        capture_output=True, check=True, timeout=600,
    )  # fmt: skip
    reader = Reader(NONCE)
    reader.feed(done.stdout)
    return reader.report()


def test_every_sparse_kernel_of_this_torch_is_reached_or_explained(image: str) -> None:
    rows = json.loads(inside(image, "--coverage"))
    assert len(rows) > 150
    assert [row["operator"] for row in rows if not row["cases"] and not row["reason"]] == []
    assert [row["operator"] for row in rows if row["cases"] and row["reason"]] == [], "an explanation that is no longer true"
    assert sum(bool(row["cases"]) for row in rows) > 0.9 * len(rows)


def test_cuda_cases_run_with_the_cpu_in_place_of_the_gpu(image: str) -> None:
    """No GPU here: the code that runs CUDA cases is exercised, and the report says that the device was not real."""
    seen = report(image, devices=["cuda"], device_map={"cuda": "cpu"}, cases=["*.mm.*", "semi-*", "work.gcn*"])
    assert seen.complete
    assert seen.facts["cuda"]["state"] == "injected"
    outcomes = {case.id: case.outcome for case in seen.cases}
    assert outcomes["coo.mm.float32.cuda.backward"] is Outcome.PASS
    assert outcomes["work.gcn-csr.float32.cuda"] is Outcome.PASS
    assert outcomes["semi-cutlass.mm.float16.cuda"] is Outcome.UNSUPPORTED
    assert all(control.held for control in seen.controls)
    assert not any("fallback" in control.id or "detour" in control.id for control in seen.controls), (
        "nothing falls from the CPU"
    )


def test_what_is_declared_for_the_cpu_is_mostly_what_happens(image: str) -> None:
    rows = json.loads(inside(image, "--declared"))
    yes = [row["outcome"] for row in rows if row["declared"] == "yes"]
    no = [row["outcome"] for row in rows if row["declared"] == "no"]
    assert len(yes) > 1000 and len(no) > 50
    assert yes.count("pass") / len(yes) > 0.9
    assert "pass" not in no, "a case cannot pass without the kernel that it needs"


def test_the_same_cases_in_one_lane_and_in_three_give_the_same(image: str) -> None:
    one, three = (
        {case.id: (case.outcome, case.detail) for case in report(image, devices=["cpu"], lanes=lanes, cases=["c??.*"]).cases}
        for lanes in (1, 3)
    )
    assert len(one) > 500
    assert one == three

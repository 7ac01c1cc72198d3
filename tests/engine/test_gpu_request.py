"""`--gpus all` reaches the engine, and an engine that attaches nothing is reported as exactly that.

A private engine takes GPU requests because a stub of NVIDIA's hook is on its PATH; the stub attaches nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import CPU_IMAGE, image_matrix
from tests.engine.private_engine import private_engine
from validator.engine import LABEL, DockerEngine
from validator.model import Outcome
from validator.store import Store

CUDA_IMAGE = "slim-torch2.6.0-cu124-py3.11-bookworm"


@pytest.fixture
def gpu_engine() -> Iterator[tuple[str, Path]]:
    """(endpoint, the file in which the stub hook notes its calls)."""
    if os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("ip"):
        pytest.skip("a private engine needs root, dockerd and ip")
    # A short path: containerd's socket lies below it, and the name of a socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="im-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with private_engine(folder, gpu_hook=True) as endpoint:
            yield endpoint, folder / "hook-calls"


def copy_image(reference: str, endpoint: str) -> None:
    """Take an image, and the base it is built on, from the default engine to another."""
    with subprocess.Popen(["docker", "save", reference, "image-matrix/base:bookworm"], stdout=subprocess.PIPE) as save:
        load = ["docker", "--host", endpoint, "load", "--quiet"]
        subprocess.run(load, stdin=save.stdout, stdout=subprocess.DEVNULL, check=True)
    assert save.returncode == 0


def test_the_request_reaches_the_engine_and_nothing_is_attached(
    engine: DockerEngine, cpu_run: Path, gpu_engine: tuple[str, Path], tmp_path: Path
) -> None:
    endpoint, calls = gpu_engine
    copy_image(f"image-matrix/{CPU_IMAGE}", endpoint)
    results = tmp_path / "results"
    done = image_matrix("--docker-host", endpoint, "--results", str(results), "run", CPU_IMAGE)
    assert done.returncode == 0, done.stderr
    assert "--gpus is accepted" in done.stderr
    # Once for the preflight's empty container, once for the probe's.
    assert calls.read_text().split().count("prestart") >= 2
    (record,) = Store(results).records()
    finding = next(finding for finding in record.findings if finding.code == "gpu-not-attached")
    assert finding.message.startswith("GPU requested, none attached")
    assert record.options["gpu_request"] == "accepted"
    assert not [case for case in record.cases if ".cuda" in case.id and case.outcome is not Outcome.NOT_RUN]


def test_required_is_refused_when_the_machine_shows_no_gpu(gpu_engine: tuple[str, Path], tmp_path: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have a GPU")
    endpoint, _ = gpu_engine
    done = image_matrix("--docker-host", endpoint, "--results", str(tmp_path / "r"), "run", "--gpu", "required", CPU_IMAGE)
    assert done.returncode == 4
    assert "nvidia-smi shows no GPU" in done.stderr


@pytest.mark.cuda_image
def test_a_cuda_build_says_that_nothing_was_attached(
    engine: DockerEngine, gpu_engine: tuple[str, Path], tmp_path: Path
) -> None:
    if not engine.labelled_images(f"{LABEL}.id={CUDA_IMAGE}"):
        assert image_matrix("--results", str(tmp_path / "first"), "run", "--keep", CUDA_IMAGE).returncode == 0
    endpoint, _ = gpu_engine
    copy_image(f"image-matrix/{CUDA_IMAGE}", endpoint)
    results = tmp_path / "results"
    done = image_matrix("--docker-host", endpoint, "--results", str(results), "run", CUDA_IMAGE)
    assert done.returncode == 0, done.stderr
    (record,) = Store(results).records()
    cuda = [case for case in record.cases if ".cuda" in case.id]
    assert cuda
    assert {case.detail for case in cuda} == {"GPU requested, none attached"}
    assert record.facts["torch"]["arch_list"], "a CUDA build tells its arch list without a GPU"

"""Real full disks, of a few kilobytes and megabytes: below the results directory, and below an engine of the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine.conftest import CPU_IMAGE, build, image_matrix
from tests.engine.private_engine import private_engine
from tests.engine.registry import local_registry
from tests.engine.test_pulls import docker
from validator.engine import DockerEngine
from validator.store import Store


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    if os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("ip"):
        pytest.skip("small disks and a private engine need root, dockerd and ip")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)  # the engine may have done it


def test_results_on_a_full_disk_end_the_run_with_the_reason(cpu_run: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    with small_disk(results, "64k"):
        with pytest.raises(OSError, match="No space"), (results / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(b"0" * 4096):
                pass
        done = image_matrix("--results", str(results), "run", "--cases", "coo.mm.float32.cpu", CPU_IMAGE)
        assert done.returncode == 4, done.stderr
        assert "No space left on device" in done.stderr
        assert "free some space" in done.stderr
        assert "Traceback" not in done.stderr
        (results / "ballast").unlink()
        done = image_matrix("--results", str(results), "run", "--cases", "coo.mm.float32.cpu", CPU_IMAGE)
        assert done.returncode == 0, done.stderr
        assert [record.image.id for record in Store(results).records()] == [CPU_IMAGE]


def test_an_engine_on_a_full_disk_is_infra_and_a_proxy_that_is_not_there_is_named(engine: DockerEngine, tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="im-", dir="/tmp", ignore_cleanup_errors=True) as name,
        local_registry(tmp_path / "registry") as there,
    ):
        host = there.host
        image = build(engine, "FROM scratch\nCOPY noise /noise\n", {"noise": os.urandom(25_000_000).hex()}, tag=f"{host}/big:1")
        try:
            docker("push", f"{host}/big:1")
            matrix = tmp_path / "images.yaml"
            matrix.write_text(
                f'families: [{{name: a, pull: "{host}/big:{{tag}}", id: "big-{{tag}}", axes: {{tag: ["1"]}}}},\n'
                '  {name: b, pull: "registry.example.test/b:{tag}", id: "b-{tag}", axes: {tag: ["1"]}}]\n',
                encoding="utf-8",
            )
            trouble = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
            with (
                small_disk(Path(name) / "data", "40m"),
                private_engine(Path(name), gpu_hook=False, environment=trouble) as endpoint,
            ):
                results = tmp_path / "results"
                done = image_matrix("--docker-host", endpoint, "-c", str(matrix), "--results", str(results), "run")
            assert done.returncode == 0, done.stderr
            (run,) = Store(results).runs()
            found = {entry.id: entry.verdict for entry in run.entries}
            assert {ident: (v.cls.value, v.code) for ident, v in found.items() if v} == {
                "big-1": ("infra", "no-space"),
                "b-1": ("infra", "registry-unreachable"),
            }
            verdict = found["b-1"]
            assert verdict is not None
            assert "proxyconnect" in verdict.cause
        finally:
            engine.remove_image(image.id)

"""scripts/facts-check: what an index tells, how it differs from the facts, and the command against a small index of our own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from validator.facts import load
from validator.facts.derive import cuda_of, derive, differences, new_toolkits, wheels

ROOT = Path(__file__).parents[2]
FACTS = load()
OLD = (
    "Metadata-Version: 2.1\nName: torch\nRequires-Dist: filelock\n"
    'Requires-Dist: nvidia-cuda-runtime-cu12 (==12.4.127) ; platform_system == "Linux" and platform_machine == "x86_64"\n'
    'Requires-Dist: nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == "Linux"\nRequires-Dist: broken (\n'
    "\nThe description says Requires-Dist: cuda-toolkit==99.0\n"
)
NEW = 'Name: torch\nRequires-Dist: cuda-toolkit[cudart,nvrtc]==13.0.2; platform_system == "Linux"\nRequires-Dist: numpy; extra == "x"\n'


def file(name: str, size: int = 766_624_563, **more: Any) -> dict[str, Any]:
    return {
        "filename": name,
        "size": size,
        "upload-time": "2025-01-29T16:23:19Z",
        "requires-python": ">=3.9.0",
        "url": name,
    } | more


def test_only_linux_wheels_of_finished_releases_count() -> None:
    found = wheels(
        {
            "files": [
                file("torch-2.6.0-cp312-cp312-manylinux1_x86_64.whl"),
                file("torch-2.6.0-cp313-cp313t-manylinux_2_28_aarch64.whl"),
                file("torch-2.6.0-cp312-none-macosx_11_0_arm64.whl"),
                file("torch-2.6.0-cp312-cp312-win_amd64.whl"),
                file("torch-2.7.0rc1-cp312-cp312-manylinux1_x86_64.whl"),
                file("torch-2.5.0-cp312-cp312-manylinux1_x86_64.whl", yanked="broken"),
                file("torch-2.6.0.tar.gz"),
                {},
            ]
        }
    )
    assert [(wheel.version, wheel.python, wheel.machine) for wheel in found] == [
        (Version("2.6.0"), "3.12", "x86_64"),
        (Version("2.6.0"), "3.13t", "aarch64"),
    ]


@pytest.mark.parametrize(
    ("metadata", "machine", "cuda"),
    [(OLD, "x86_64", "12.4"), (OLD, "aarch64", None), (NEW, "x86_64", "13.0"), (NEW, "aarch64", "13.0"), ("Name: torch\n", "x86_64", None)],
)  # fmt: skip
def test_the_requirements_of_a_wheel_tell_its_cuda(metadata: str, machine: str, cuda: str | None) -> None:
    assert cuda_of(metadata, machine) == cuda


def listing_of(version: str, names: list[str], **more: Any) -> dict[str, Any]:
    return {"files": [file(f"torch-{version}-{name}.whl", **more) for name in names]}


def test_an_index_that_says_what_the_facts_say_differs_in_nothing_but_what_it_lacks() -> None:
    pythons = ["cp39", "cp310", "cp311", "cp312", "cp313"]
    listing = listing_of("2.6.0", [f"{p}-{p}-manylinux1_x86_64" for p in pythons])
    found = derive("2.6.0", wheels(listing), "12.4")
    told = [one for one in differences([found], FACTS) if one.version == "2.6.0"]
    assert told == []


def test_each_field_that_differs_is_told() -> None:
    listing = listing_of("2.6.0", ["cp314-cp314-manylinux1_x86_64"], size=1_000_000_000, **{"requires-python": ">=3.12"})
    listing["files"][0]["upload-time"] = "2025-02-01T00:00:00Z"
    found = derive("2.6.0", wheels(listing), "12.9", "12.9")
    told = {one.field: one.index for one in differences([found], FACTS) if one.version == "2.6.0"}
    assert told == {
        "released": "2025-02-01",
        "requires_python": ">=3.12",
        "pythons": ("3.14",),
        "wheel_mb": (1000, 1000),
        "index_cuda": "12.9",
        "index_arm64_cuda": "12.9",
    }


def test_a_new_release_and_one_that_is_gone_are_told() -> None:
    found = derive("9.0.0", wheels(listing_of("9.0.0", ["cp314-cp314-manylinux1_x86_64"])), None)
    told = list(differences([found], FACTS))
    assert str(told[0]) == "torch 9.0.0: release is None in the facts, '2025-01-29' on the index"
    assert {one.version for one in told[1:]} == {release.version for release in FACTS.torch.releases}


def test_toolkits_that_the_facts_lack_are_told() -> None:
    names = [
        "cuda_toolkit-13.0.2-py2.py3-none-any.whl",
        "cuda_toolkit-99.1.0-py2.py3-none-any.whl",
        "cuda_toolkit-9.0.0-py3-none-any.whl",
    ]
    assert new_toolkits({"files": [file(name) for name in [*names, "junk"]]}, FACTS) == ("99.1",)


# --------------------------------------------------------------------------- the command, against an index of our own


def wheel_bytes() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("torch/lib/big.so", os.urandom(600_000))
        archive.writestr("torch-9.9.0.dist-info/METADATA", NEW)
    return whole.getvalue()


class Index(BaseHTTPRequestHandler):
    """Serves a listing of one release, its wheel in parts, and no metadata apart; counts the bytes it gave away of the wheel."""

    wheel = wheel_bytes()
    given = 0
    parts = True

    def do_GET(self) -> None:
        name = "torch-9.9.0-cp312-cp312-manylinux_2_28_x86_64.whl"
        if self.path == "/simple/torch/":
            body = json.dumps({"files": [file(name, size=len(self.wheel), url=f"../../files/{name}#sha256=0")]}).encode()
        elif self.path == "/simple/cuda-toolkit/":
            body = json.dumps({"files": [file("cuda_toolkit-99.1.0-py2.py3-none-any.whl")]}).encode()
        elif self.path == f"/files/{name}":
            start, _, end = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            body = self.wheel[int(start) : int(end) + 1] if self.parts else self.wheel
            type(self).given += len(body)
            self.send_response(206 if self.parts else 200)
            self.end_headers()
            self.wfile.write(body)
            return
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    Index.given, Index.parts = 0, True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def check(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "UV_DEFAULT_INDEX", "UV_INDEX_URL"), "")
    return subprocess.run(
        [sys.executable, "scripts/facts-check", *arguments],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **proxies, "PIP_INDEX_URL": url, "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip


def test_what_changed_is_shown_and_the_wheel_is_read_only_in_part(index: str) -> None:
    done = check(index)
    assert done.returncode == 1, done.stderr
    assert "torch 9.9.0: release is None in the facts" in done.stdout
    assert "CUDA 99.1: a toolkit that the facts do not have" in done.stdout
    assert "CUDA not named by: none" in done.stderr
    assert 0 < Index.given < len(Index.wheel)


def test_json_gives_what_was_derived(index: str) -> None:
    (one,) = json.loads(check(index, "--json").stdout)
    assert (one["version"], one["cuda"], one["pythons"]) == ("9.9.0", "13.0", ["3.12"])


def test_an_index_that_gives_no_parts_is_not_downloaded_whole_for_nothing(index: str) -> None:
    Index.parts = False
    done = check(index)
    assert done.returncode == 1
    assert "CUDA not named by: 9.9.0" in done.stderr


def test_an_index_that_cannot_be_asked_is_one_message() -> None:
    done = check("http://127.0.0.1:1/simple")
    assert (done.returncode, done.stdout) == (4, "")
    assert "cannot read http://127.0.0.1:1/simple/torch/" in done.stderr and "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_address_of_an_index_stands_in_the_command() -> None:
    for name in ("scripts/facts-check", "validator/facts/derive.py"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8")

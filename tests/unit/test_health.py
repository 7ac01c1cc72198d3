"""Facts on libraries -> findings; and the probe's look-up of libraries against the system's own loader."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from validator import health
from validator.probe import PROBE_PATH

FINE: dict[str, Any] = {
    "system": {"libc": "glibc 2.36"},
    "libraries": {
        "missing": [], "shadowed": [], "broken": [],
        "needs": {"GLIBC": "2.28", "GLIBCXX": "3.4.22"}, "has": {"GLIBCXX": "3.4.30", "CXXABI": "1.3.13"},
    },
    "torch": {
        "config": "CUDA_VERSION=12.4, CUDNN_VERSION=9.1.0", "numpy": {"state": "ok", "version": "2.1.0"},
        "loaded": {"cudart": {"path": "/a", "version": "12040"}, "cudnn": {"path": "/b", "version": "90100"}},
    },
    "user": {"shm_bytes": 1 << 30},
}  # fmt: skip


def changed(**parts: dict[str, Any]) -> dict[str, Any]:
    return {**FINE, **{name: {**FINE[name], **values} for name, values in parts.items()}}


def test_libraries_that_go_together_are_no_finding() -> None:
    assert health.findings(FINE) == ()
    assert health.findings({}) == (), "a record of an older probe says nothing of them"


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        (changed(libraries={"missing": [{"library": "libx.so", "needed_by": "/t/libtorch.so"}]}), "library-missing", "libx.so (needed by libtorch.so)"),
        (changed(libraries={"missing": [{"library": f"lib{n}.so", "needed_by": "/t/a.so"} for n in range(5)]}), "library-missing", "and 2 more"),
        (changed(libraries={"broken": [{"path": "/t/a.so", "needed_by": "", "detail": "no 64-bit ELF file"}]}), "library-broken", "/t/a.so is no shared library"),
        (changed(libraries={"shadowed": [{"library": "a", "path": "/x/a", "instead_of": "/t/a", "needed_by": "/t/b"}]}), "library-shadowed", "/x/a instead of /t/a"),
        (changed(libraries={"needs": {"GLIBC": "2.38"}}), "libc-too-old", "torch needs GLIBC_2.38, the image has GLIBC_2.36"),
        (changed(libraries={"needs": {"GLIBCXX": "3.4.32"}}), "libstdc++-too-old", "GLIBCXX_3.4.32"),
        (changed(torch={"loaded": {"cudnn": {"path": "/b", "version": "8907"}}}), "library-older", "cudnn 9.1.0, loaded is 8.9.7"),
        (changed(torch={"loaded": {"cudart": {"path": "/b", "version": "12010"}}}), "library-older", "cudart 12.4, loaded is 12.1"),
        (changed(torch={"numpy": {"state": "broken", "version": "2.0", "detail": "_ARRAY_API not found"}}), "numpy-bridge", "_ARRAY_API"),
        (changed(user={"shm_bytes": 1 << 20}), "small-shm", "/dev/shm has 1 MiB"),
    ],
)  # fmt: skip
def test_each_trouble_is_one_finding_with_a_remedy(facts: dict[str, Any], code: str, words: str) -> None:
    (finding,) = health.findings(facts)
    assert finding.code == code
    assert words in finding.message
    assert finding.remedy


@pytest.mark.parametrize(
    "facts",
    [
        {"libraries": {"missing": "nothing", "shadowed": [3], "needs": {"GLIBC": {}}, "has": []}},
        {"libraries": [1], "torch": {"loaded": {"cudnn": 3}, "config": 4}, "user": {"shm_bytes": "much"}},
    ],
)
def test_what_an_image_makes_up_does_no_harm(facts: dict[str, Any]) -> None:
    health.findings(facts)


@pytest.mark.parametrize(
    ("name", "said", "release"),
    [
        ("cudart", "12040", (12, 4)), ("cudart", "11080", (11, 8)), ("cudnn", "90100", (9, 1, 0)), ("cudnn", "8902", (8, 9, 2)),
        ("nccl", "22105", (2, 21, 5)), ("cublas", "12.4.5", (12, 4, 5)), ("nccl", "", ()), ("cudnn", "x", ()),
    ],
)  # fmt: skip
def test_version_numbers_of_libraries(name: str, said: str, release: tuple[int, ...]) -> None:
    assert health.release(name, said) == release


# --------------------------------------------------------------------------- the probe's side

LOOK = (
    "import importlib.util, json, sys;"
    "s = importlib.util.spec_from_file_location('probe', sys.argv[1]); m = importlib.util.module_from_spec(s); sys.modules['probe'] = m;"
    "s.loader.exec_module(m); print(json.dumps(m.library_health(sys.argv[2])))"
)
compiler = pytest.mark.skipif(not shutil.which("cc"), reason="makes shared libraries with cc")


def look(top: Path, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(PROBE_PATH), str(top)], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A folder as torch's: lib/libtorch.so needs libouter.so in a folder beside, by RUNPATH, which needs libinner.so there."""
    top, beside = tmp_path / "torch", tmp_path / "nvidia"
    (top / "lib").mkdir(parents=True)
    beside.mkdir()

    def library(path: Path, *needed: str, runpath: str = "") -> None:
        source = tmp_path / "empty.c"
        source.write_text("int nothing;\n")
        flags = [f"-Wl,-rpath,{runpath},--enable-new-dtags"] if runpath else []
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed", "-o", path, source, f"-L{beside}", *flags,
             *(f"-l{name}" for name in needed)], check=True)  # fmt: skip

    library(beside / "libinner.so")
    library(beside / "libouter.so", "inner", runpath="$ORIGIN")
    library(top / "lib" / "libtorch.so", "outer", runpath="$ORIGIN/../../nvidia")
    return top


@compiler
def test_what_the_loader_finds_is_not_missing_and_what_it_misses_is(torch: Path) -> None:
    assert look(torch)["missing"] == []
    (torch.parent / "nvidia" / "libinner.so").unlink()
    (missing,) = look(torch)["missing"]
    assert missing["library"] == "libinner.so"
    assert missing["needed_by"].endswith("libouter.so")
    said = subprocess.run(["ldd", torch / "lib" / "libtorch.so"], capture_output=True, text=True, check=False).stdout
    assert re.findall(r"(\S+) => not found", said) == ["libinner.so"], "the system's own loader says the same"


@compiler
def test_a_folder_of_ld_library_path_shadows_and_the_loader_agrees(torch: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(torch.parent / "nvidia" / "libouter.so", other)
    (found,) = look(torch, LD_LIBRARY_PATH=str(other))["shadowed"]
    assert found["library"] == "libouter.so"
    assert found["path"] == str(other / "libouter.so")
    assert Path(found["instead_of"]).resolve() == (torch.parent / "nvidia" / "libouter.so").resolve()
    said = subprocess.run(
        ["ldd", torch / "lib" / "libtorch.so"], capture_output=True, text=True, check=False, env={"LD_LIBRARY_PATH": str(other)}
    ).stdout
    assert f"libouter.so => {other}/libouter.so" in said
    assert look(torch, LD_LIBRARY_PATH=str(tmp_path))["shadowed"] == []


@compiler
@pytest.mark.parametrize("spoilt", [b"", b"\x7fELF\x02\x01", b"no library", b"\x7fELF\x02\x01" + b"\xff" * 400])
def test_a_file_that_is_no_library_is_named(torch: Path, spoilt: bytes) -> None:
    (torch.parent / "nvidia" / "libinner.so").write_bytes(spoilt)
    (broken,) = look(torch)["broken"]
    assert broken["path"].endswith("libinner.so")

"""`image-matrix forecast` as a process: its text, its JSON, its mistakes, and the GPUs of a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = "slim-torch2.6.0-cu124-py3.11-bookworm"
NEWER = "slim-torch2.13.0-cu130-py3.13-trixie"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "validator", "forecast", *arguments],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "COLUMNS": "160", **environment},
        stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    """A folder with a nvidia-smi that tells what a host with two GPUs of one kind and one of another tells."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!{sys.executable}\n"
        "print('535.104.05, NVIDIA A100-SXM4-80GB, 8.0, 81920')\n"
        "print('535.104.05, NVIDIA A100-SXM4-80GB, 8.0, 81920')\n"
        "print('535.104.05, NVIDIA GeForce RTX 4090, 8.9, 24564')\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "name one or more: --gpu 'RTX 4090'"),
        (("--gpu", "RTX 4900"), 2, "did you mean GeForce RTX 4090"),
        (("--gpu", "toaster"), 2, "A compute capability will do"),
        (("--gpu", "A100", "--driver", "newest"), 2, "'newest' is no driver version"),
        (("--gpu", "A100", "--driver", "12.4"), 2, "'12.4' is no driver version"),
        (("--gpu", "A100", "slim-torch99*"), 3, "no image matches"),
        (("--gpu", "host"), 4, "this machine shows no NVIDIA GPU"),
    ],
)
def test_a_mistake_is_one_message_and_one_code(arguments: tuple[str, ...], code: int, words: str, tmp_path: Path) -> None:
    done = run(*arguments, PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_of_words_with_reasons_and_no_sign_of_a_result() -> None:
    done = run(IMAGE, NEWER, "--gpu", "RTX 4090", "--gpu", "sm_120", "--driver", "535.104")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split("  ")[0] == "image"
    assert "GeForce RTX 4090 (8.9)" in lines[0] and "compute capability 12.0" in lines[0]
    first = next(line for line in lines if line.startswith(IMAGE))
    assert "runs [1]" in first and "cannot run [2]" in first
    assert "forecast for driver 535.104" in done.stdout and "nothing was run" in done.stdout
    assert any(line.startswith("[1] Torch's sm_86 runs on") for line in lines)
    assert not set("✓✕☠↩⧖⊘∅–") & set(done.stdout), "signs are for results"
    assert "\x1b" not in done.stdout
    assert done.stderr.count("GeForce RTX 4090: ") == 1


def test_without_a_driver_the_cell_says_which_is_needed() -> None:
    done = run(IMAGE, "--gpu", "RTX 4090")
    assert "runs, driver >= 525.60.13 [1]" in done.stdout


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_ids_give_way_on_a_narrow_terminal(columns: int) -> None:
    done = run(IMAGE, NEWER, "--gpu", "A100", COLUMNS=str(columns))
    table = done.stdout.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= columns
    assert all("driver >= " in line for line in table[2:])


def test_json_holds_what_the_table_says_and_more() -> None:
    found = json.loads(run(IMAGE, "--gpu", "RTX 4090", "--gpu", "8.0", "--json").stdout)
    assert (found["kind"], found["gpus"][0]["class"], found["gpus"][1]["class"]) == ("forecast", "consumer", None)
    (line,) = found["images"]
    assert (line["image"], line["known_by"], line["cuda"]) == (IMAGE, "measured", "12.4")
    assert [one["driver_needed"] for one in line["forecasts"]] == ["525.60.13", "525.60.13"]
    assert {"gpu", "forecast", "reason", "rule", "sources", "confidence", "notes"} <= line["forecasts"][0].keys()


def test_the_gpus_of_this_host_with_its_own_driver(smi: Path) -> None:
    found = json.loads(run(NEWER, "--gpu", "host", "--json", PATH=str(smi)).stdout)
    assert [(gpu["name"], gpu["class"], gpu["driver"]) for gpu in found["gpus"]] == [
        ("A100-SXM4-80GB", "datacenter", "535.104.05"),
        ("GeForce RTX 4090", "consumer", "535.104.05"),
    ]
    assert [one["forecast"] for one in found["images"][0]["forecasts"]] == ["needs forward compatibility", "cannot run"]


def test_a_driver_that_is_given_is_tried_on_the_gpus_of_this_host(smi: Path) -> None:
    done = run(NEWER, "--gpu", "host", "--gpu", "H100", "--driver", "580.95.05", PATH=str(smi))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs [") == 3

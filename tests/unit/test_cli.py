"""The command line as a process: data on stdout, talk on stderr, one message and one exit code for each mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.records import case, record
from validator.model import Outcome
from validator.store import Store

ROOT = Path(__file__).parents[2]
IMAGE = "slim-torch2.6.0-cu124-py3.11-bookworm"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "validator", *arguments],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "DOCKER_HOST": "unix:///nowhere.sock", **environment},
        stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--nonsense",), 2, "No such option"),
        (("tabel",), 2, "No such command"),
        (("list", "slim-torch9*"), 3, "no image matches"),
        (("list", "-k", "slim and ("), 2, "cannot read the expression"),
        (("table", "-f", "pdf"), 2, "use terminal, md or json"),
        (("table", "--cases", "coo.mm.nothing"), 2, "no case matches"),
        (("table", "--into", "/nowhere/README.md"), 2, "cannot read /nowhere/README.md"),
        (("table", "--out", "/nowhere/x"), 2, "cannot use /nowhere/x: No such file or directory"),
        (("render", "--out", "/proc/x"), 2, "cannot use /proc/x"),
        (("-c", "/nowhere/images.yaml", "list"), 2, "the file is not there"),
        (("matrix", IMAGE), 4, "no Docker engine answers"),
        (("matrix", "--tier", "huge", IMAGE), 2, "use quick, standard or full"),
        (("matrix", "--gpu", "maybe", IMAGE), 2, "use preferred or required"),
        (("matrix", "--wheels", "/nowhere", IMAGE), 2, "wheel directory"),
        (("doctor", "--engine"), 4, "unix:///nowhere.sock  (DOCKER_HOST): no such socket"),
    ],
)
def test_a_mistake_is_one_message_and_one_code(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_broken_ca_variable_is_named() -> None:
    done = run("matrix", IMAGE, SSL_CERT_FILE="/nowhere/ca.pem")
    assert done.returncode == 2
    assert "SSL_CERT_FILE names a CA bundle that is not there" in done.stderr


def test_a_docker_context_that_does_not_exist_is_not_replaced_by_another_engine() -> None:
    done = run("doctor", "--engine", DOCKER_HOST="", DOCKER_CONTEXT="nonexistent")
    assert done.returncode == 4
    assert "docker has no context named 'nonexistent'" in done.stderr


def test_list_is_data_and_its_count_is_talk() -> None:
    done = run("list", "slim-torch2.6.0-*")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [IMAGE, "slim-torch2.6.0-cu118-py3.11-bookworm"]
    assert "2 of " in done.stderr
    rows = json.loads(run("list", "--json", IMAGE).stdout)
    assert rows[0]["declared"] == {"torch": "2.6.0", "cuda": "12.4", "python": "3.11"}


def test_lint_and_render_agree_with_what_is_committed() -> None:
    assert run("lint").returncode == 0
    assert run("render", "--check").returncode == 0


def test_render_of_one_image_is_its_dockerfile() -> None:
    done = run("render", IMAGE)
    assert done.stdout == (ROOT / f"dockerfiles/rendered/{IMAGE}/Dockerfile").read_text()


def test_render_check_finds_drift(tmp_path: Path) -> None:
    done = run("render", "--check", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "image-matrix render" in done.stderr


def test_the_table_needs_no_engine(tmp_path: Path) -> None:
    cases = (case("coo.mm.float32.cpu"), case("csr.mm.float32.cpu", Outcome.WRONG, "differs"))
    Store(tmp_path).write_record(record(IMAGE, *cases, torch="2.10.0"))
    done = run("--results", str(tmp_path), "table")
    assert done.returncode == 0
    assert "2.10.0" in done.stdout
    assert "✓ 1/1" in done.stdout
    assert "✕1" in done.stdout
    assert json.loads(run("--results", str(tmp_path), "table", "--json").stdout)["rows"][0]["torch"] == "2.10.0"
    assert "wrong" in run("--results", str(tmp_path), "table", "--cases", "csr.mm.float32.cpu").stdout


def test_a_damaged_record_is_told_and_the_rest_shown(tmp_path: Path) -> None:
    path = Store(tmp_path).write_record(record(IMAGE, case("coo.mm.float32.cpu")))
    path.with_name("20261231T000000Z-broken.json").write_text("{")
    done = run("--results", str(tmp_path), "table")
    assert "left out, cannot be read" in done.stderr
    assert "1/1" in done.stdout


def test_a_terminal_without_our_signs_still_gets_the_table(tmp_path: Path) -> None:
    Store(tmp_path).write_record(record(IMAGE, case("coo.mm.float32.cpu")))
    done = run("--results", str(tmp_path), "table", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "? 1/1" in done.stdout


def test_a_reader_that_leaves_early_is_no_mistake() -> None:
    command = f"{sys.executable} -m validator list | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("slim-")
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


def test_no_records_is_said(tmp_path: Path) -> None:
    assert "no records yet" in run("--results", str(tmp_path), "table").stdout


def test_colour_follows_the_conventions(tmp_path: Path) -> None:
    Store(tmp_path).write_record(record(IMAGE, case("coo.mm.float32.cpu")))
    arguments = ("--results", str(tmp_path), "table")
    assert "\x1b[" not in run(*arguments).stdout
    assert "\x1b[" in run(*arguments, FORCE_COLOR="1").stdout
    assert "\x1b[" not in run(*arguments, FORCE_COLOR="1", NO_COLOR="1").stdout


def test_the_version_is_that_of_the_package() -> None:
    from validator import __version__

    assert run("--version").stdout.strip() == f"image-matrix {__version__}"

"""The probe without a container: exactly the interpreter that was named, and a record like any other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_cli import run
from validator import probe
from validator.errors import UsageError
from validator.local import find_python, local_id, test_here
from validator.model import Evidence, Outcome, Record, VerdictClass
from validator.probe import ProbeOptions
from validator.store import Store, record_of, record_text

test_here.__test__ = False  # type: ignore[attr-defined]  # pytest: a function of ours, no test
SMALL = ("probe", "--tier", "quick", "--cases", "coo.mm.*", "--cases", "csr.mm.*")


def here(python: str, options: ProbeOptions | None = None, **over: Any) -> Record:
    values: dict[str, Any] = {"name": "", "now": lambda: datetime.now(UTC), "clock": time.monotonic, "told": lambda _line: None}
    return test_here(python, options or ProbeOptions(cases=("coo.mm.float32.cpu",)), **(values | over))


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_python_without_torch_gives_a_whole_record_that_says_so() -> None:
    done = run(*SMALL, "--json")
    assert done.returncode == 0, done.stderr
    record = record_of(done.stdout)
    assert (record.image.kind, record.complete, record.probe) == ("local", True, probe.version())
    assert record.image.id.startswith("local-no-torch-py3.")
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "no-torch")
    assert sys.executable in record.verdict.cause and "--python" in record.verdict.remedy
    assert {case.outcome for case in record.cases} == {Outcome.NOT_RUN} and len(record.cases) > 5
    assert {case.evidence for case in record.cases} == {Evidence.NONE}


def test_another_interpreter_with_torch_does_not_take_over(tmp_path: Path) -> None:
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '2.0.0'\nclass version: git_version = cuda = hip = None\n")
    (tmp_path / "bin").mkdir()
    other = script(tmp_path / "bin" / "python3", f'PYTHONPATH={package.parent} exec {sys.executable} "$@"')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert "torch    none" in run(*SMALL, "--python", sys.executable, PATH=path).stdout
    assert "torch    2.0.0" in run(*SMALL, "--python", other).stdout


def test_saved_it_stands_in_the_table_under_an_id_that_no_image_bears(tmp_path: Path) -> None:
    done = run("--results", str(tmp_path), *SMALL, "--save", "lab")
    assert done.returncode == 0 and "local-lab" in done.stdout and str(tmp_path) in done.stderr
    (record,) = Store(tmp_path).records()
    assert record.image.id == "local-lab" == local_id("local-lab")
    assert "local-lab" in run("--results", str(tmp_path), "table").stdout


def test_the_record_on_stdout_is_that_of_the_file(tmp_path: Path) -> None:
    record = here(sys.executable)
    assert Store(tmp_path).write_record(record).read_text() == record_text(record)


def test_one_device_only() -> None:
    record = here(sys.executable, ProbeOptions(cases=("coo.mm.float32.*",), devices=("cuda",)))
    assert record.cases and all(".cuda" in case.id for case in record.cases)
    assert record.options["devices"] == ["cuda"]
    assert "devices" not in ProbeOptions().key(), "the keys of records that exist stay"


def test_what_is_emitted_is_the_probe(tmp_path: Path) -> None:
    text = run("probe", "--emit").stdout
    assert text == probe.source()
    path = tmp_path / "carried.py"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path), "--list"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == probe.CASES_PATH.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--python", "/nowhere/python"), "no interpreter at /nowhere/python"),
        (("--python", "/"), "no interpreter at /"),
        (("--python", "/bin/true"), "/bin/true gave no report: it said nothing and ended with exit code 0"),
        (("--tier", "huge"), "use quick, standard or full"),
        (("--device", "tpu"), "use cpu or cuda"),
        (("--cases", "coo.mm.nothing"), "no case matches"),
        (("--save", "My Lab"), "cannot be an id"),
    ],
)
def test_a_mistake_is_one_message_and_one_code(arguments: tuple[str, ...], words: str) -> None:
    done = run("probe", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_program_that_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(UsageError, match=r"cannot start .*: Exec format error"):
        here(find_python(str(path)))


def test_an_old_python_is_named(tmp_path: Path) -> None:
    python = script(tmp_path / "python2", f"echo '{probe.OLD_PYTHON_MARK} 2.7.18'; exit {probe.OLD_PYTHON_EXIT}")
    with pytest.raises(UsageError, match=r"is Python 2\.7\.18; the probe needs 3\.6"):
        here(python)


class Newer(ProbeOptions):
    """Options of a host that is newer than the probe's text."""

    def given(self) -> dict[str, object]:
        return {**super().given(), "profile": "gnn"}


def test_an_option_that_the_probe_does_not_know_is_said() -> None:
    with pytest.raises(UsageError, match="does not know what it was asked: unknown option: profile"):
        here(sys.executable, Newer())


def test_one_that_hangs_is_ended_and_what_came_is_kept(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os, time\nopen(os.environ['PID'], 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    told = tmp_path / "pid"
    python = script(tmp_path / "python", f'PID={told} PYTHONPATH={tmp_path} exec {sys.executable} "$@"')
    record = here(python, timeout=3.0)
    assert not record.complete
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.INFRA, "probe-timeout")
    until = time.monotonic() + 10
    while Path(f"/proc/{told.read_text()}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{told.read_text()}").exists(), "nothing that it started is left"


def test_with_a_real_torch_sparse_operations_run(torch_python: Path) -> None:
    done = run("probe", "--python", str(torch_python), "--cases", "coo.mm.*", "--device", "cpu", "--json")
    record = record_of(done.stdout)
    assert record.verdict.cls is VerdictClass.OK, record.verdict
    assert record.trusted and record.facts["torch"]["version"]
    counts = Counter(case.outcome for case in record.cases)
    assert counts[Outcome.PASS] > 5 and not counts[Outcome.NOT_RUN]
    assert {case.evidence for case in record.cases} == {Evidence.EXECUTED}

"""The scripts that make the environment and bring an engine, run as they are in a scratch project and a private machine.

The network is never asked: the lock of the scratch project is empty, and apt-get, dockerd and systemctl are stand-ins.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEBIAN = any(
    line.startswith(("ID=", "ID_LIKE=")) and ("debian" in line or "ubuntu" in line)
    for line in (Path("/etc/os-release").read_text("utf-8").splitlines() if Path("/etc/os-release").exists() else ())
)
needs_debian = pytest.mark.skipif(
    not (DEBIAN and shutil.which("apt-get")), reason="the script installs on Debian and Ubuntu only"
)


def stand_in(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


# --- scripts/setup ---------------------------------------------------------------------------------------------------

# Answers `doctor --engine` with the exit code in the file `doctor`, and 0 once the stand-in of ensure-engine has run.
STAND_IN_CLI = """
import pathlib, sys
top = pathlib.Path(__file__).parents[1]
def main():
    code = 0 if (top / "engine-made").exists() else int((top / "doctor").read_text())
    print("no Docker engine answers" if code else "unix:///an/engine", file=sys.stderr if code else sys.stdout)
    sys.exit(code)
"""


@dataclass(frozen=True)
class Project:
    """A scratch checkout with the real scripts/setup, a package that only knows `doctor`, and an empty lock."""

    top: Path

    def setup(self, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k not in {"DOCKER_HOST", "DOCKER_CONTEXT", "VENV", "PYTHON"}}
        environment |= {"PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "DOCKER_CONFIG": str(self.top)}
        environment |= {"PATH": f"{self.top / 'bin'}:{environment['PATH']}"} | environ
        command = [str(self.top / "scripts/setup"), *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    @property
    def tool(self) -> Path:
        return self.top / ".venv/bin/image-matrix"

    def stamps(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (self.top / ".venv").glob("stamp-*")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    top = tmp_path_factory.mktemp("project")
    (top / "scripts").mkdir()
    (top / "validator").mkdir()
    shutil.copy(ROOT / "scripts/setup", top / "scripts/setup")
    stand_in(top / "scripts/ensure-engine", f"touch {top}/engine-made")
    (top / "validator/__init__.py").touch()
    shutil.copy(ROOT / "validator/endpoint.py", top / "validator/endpoint.py")
    shutil.copy(ROOT / "validator/errors.py", top / "validator/errors.py")
    (top / "validator/cli.py").write_text(STAND_IN_CLI, encoding="utf-8")
    for name in ("requirements.lock", "requirements-dev.lock", "pyproject.toml"):
        (top / name).write_text("# nothing\n", encoding="utf-8")
    project = Project(top)
    done = project.setup()
    assert done.returncode == 0, done.stderr
    assert "ready: .venv/bin/image-matrix" in done.stderr
    return project


@pytest.fixture
def project(made: Project) -> Project:
    """As `made`, with an engine that answers and the user being root."""
    (made.top / "doctor").write_text("0", encoding="utf-8")
    (made.top / "engine-made").unlink(missing_ok=True)
    stand_in(made.top / "bin/id", "echo 0")
    return made


def test_a_second_call_does_nothing_and_says_nothing(project: Project) -> None:
    before, tool = project.stamps(), project.tool.stat().st_mtime_ns
    # A pip that is asked for anything would fail here.
    done = project.setup(PIP_INDEX_URL="http://127.0.0.1:9/", PIP_NO_INDEX="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert before
    assert project.stamps() == before
    assert project.tool.stat().st_mtime_ns == tool


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_changed_input_is_installed_again(project: Project, name: str) -> None:
    path = project.top / name
    path.write_text(path.read_text("utf-8") + "# changed\n", encoding="utf-8")
    done = project.setup()
    assert "setting up .venv" in done.stderr
    assert project.setup().stderr == "", "and only once"


def test_the_environment_of_developers_serves_users_too(project: Project) -> None:
    assert "requirements-dev.lock" in project.setup("--dev").stderr
    (project.top / ".venv/stamp-requirements.lock").unlink(missing_ok=True)
    assert project.setup().stderr == ""


def test_an_environment_whose_interpreter_is_gone_is_made_again(project: Project) -> None:
    for link in (project.top / ".venv/bin").glob("python*"):
        link.unlink()
    (project.top / ".venv/bin/python").symlink_to("/gone/python")
    done = project.setup()
    assert done.returncode == 0, done.stderr
    assert "setting up" in done.stderr
    assert subprocess.run([project.tool], capture_output=True, text=True, check=True).stdout == "unix:///an/engine\n"


def test_a_python_that_was_named_is_used_or_refused_but_never_replaced(project: Project) -> None:
    stand_in(project.top / "old-python", "exit 1")
    before = project.stamps()
    done = project.setup(PYTHON=str(project.top / "old-python"))
    assert done.returncode == 4
    assert f"PYTHON={project.top / 'old-python'} is not a Python 3.11" in done.stderr
    assert project.stamps() == before, "what is there still works"


def test_an_installation_that_breaks_off_is_not_taken_for_a_finished_one(project: Project) -> None:
    lock = project.top / "requirements.lock"
    good = lock.read_text("utf-8")
    lock.write_text(f"no-such-package==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    done = project.setup()
    assert done.returncode == 4
    assert "pip could not install requirements.lock" in done.stderr
    assert not project.stamps()
    lock.write_text(good, encoding="utf-8")
    assert "ready" in project.setup().stderr


def test_an_unknown_option_is_a_usage_error(project: Project) -> None:
    done = project.setup("--engin")
    assert done.returncode == 2
    assert "--engin" in done.stderr


def test_calls_at_the_same_time_install_once(project: Project) -> None:
    with (project.top / "pyproject.toml").open("a", encoding="utf-8") as stream:
        stream.write("# changed for three\n")
    environment = os.environ | {"PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    calls = [
        subprocess.Popen([project.top / "scripts/setup"], env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    talk = [call.communicate(timeout=120)[1] for call in calls]
    assert [call.returncode for call in calls] == [0, 0, 0]
    assert "".join(talk).count("setting up") == 1


def test_an_engine_that_answers_is_left_alone(project: Project) -> None:
    done = project.setup("--engine")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (project.top / "engine-made").exists()


@needs_debian
def test_where_no_engine_answers_root_gets_one(project: Project) -> None:
    (project.top / "doctor").write_text("4", encoding="utf-8")
    assert project.setup("--engine").returncode == 0
    assert (project.top / "engine-made").exists()


@pytest.mark.parametrize(
    ("code", "user", "environ"),
    [
        (2, "0", {}),
        (70, "0", {}),
        (4, "1000", {}),
        (4, "0", {"DOCKER_HOST": "tcp://127.0.0.1:9"}),
        (4, "0", {"DOCKER_CONTEXT": "elsewhere"}),
    ],
    ids=["usage", "bug", "not-root", "named-host", "named-context"],
)
def test_no_engine_is_made_where_that_is_not_the_remedy(
    project: Project, code: int, user: str, environ: dict[str, str]
) -> None:
    (project.top / "doctor").write_text(str(code), encoding="utf-8")
    stand_in(project.top / "bin/id", f"echo {user}")
    done = project.setup("--engine", **environ)
    assert done.returncode == code
    assert "no Docker engine answers" in done.stderr
    assert not (project.top / "engine-made").exists()


# --- scripts/ensure-engine -------------------------------------------------------------------------------------------

UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
TOOLS = [
    "bash",
    "cat",
    "env",
    "flock",
    "grep",
    "head",
    "id",
    "mkdir",
    "mount",
    "ps",
    "seq",
    "setsid",
    "sed",
    "sleep",
    "tail",
    "touch",
    "cp",
    "chmod",
    "wc",
]
# An engine as far as a ping can tell; it keeps a line for each start, and refuses the options named in $REFUSES.
DOCKERD = f"""
echo "start $*" >> "$HOME/calls"
echo "dockerd $*: failed to start daemon" >&2
case " $* " in *" --iptables=false "*) [ "$REFUSES" = all ] && exit 1 ;; *) [ -n "$REFUSES" ] && exit 1 ;; esac
exec {sys.executable} -c '
import socket
with socket.socket(socket.AF_UNIX) as s:
    s.bind("/var/run/docker.sock")
    s.listen()
    while True:
        c = s.accept()[0]
        c.recv(4096)
        c.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nOK")
        c.close()
'
"""


@dataclass(frozen=True)
class Machine:
    """A machine of our own for one script: its own /run and processes, so the engine that runs here cannot be seen or met."""

    home: Path

    def run(self, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inside = f"mount -t tmpfs none /run && mkdir -p /run/lock && {script}"
        environment = {"HOME": str(self.home), "PATH": str(self.home / "bin"), "DOCKERD_LOG": str(self.home / "log")}
        environment |= {"ENSURE": str(ROOT / "scripts/ensure-engine"), "PYTHON": sys.executable, "REFUSES": ""} | environ
        command = [shutil.which("unshare") or "unshare", *UNSHARE[1:], str(self.home / "bin/bash"), "-c", inside]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)

    def calls(self) -> list[str]:
        path = self.home / "calls"
        return path.read_text("utf-8").splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if (
        not shutil.which("unshare")
        or subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/run"], capture_output=True).returncode
    ):
        pytest.skip("a private /run needs root and the right to make namespaces")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    stand_in(tmp_path / "bin/apt-get", 'echo "apt-get $*" >> "$HOME/calls"')
    stand_in(tmp_path / "bin/dockerd", DOCKERD)
    return Machine(tmp_path)


@pytest.mark.parametrize("user", ["0", "1000"])
def test_a_running_engine_is_not_touched(machine: Machine, user: str) -> None:
    (machine.home / "bin/id").unlink()
    stand_in(machine.home / "bin/id", f"echo {user}")
    done = machine.run('(dockerd by-hand &) && sleep 1 && "$ENSURE"')
    assert (done.returncode, machine.calls()) == (0, ["start by-hand"]), done.stderr
    assert "image-matrix:" not in done.stderr


@needs_debian
def test_a_missing_engine_is_installed_and_started(machine: Machine) -> None:
    (machine.home / "bin/dockerd").rename(machine.home / "dockerd")
    stand_in(machine.home / "bin/apt-get", 'echo "apt-get $*" >> "$HOME/calls"; cp "$HOME/dockerd" "$HOME/bin/dockerd"')
    done = machine.run('"$ENSURE" && "$ENSURE"')
    assert done.returncode == 0, done.stderr
    install, start = machine.calls()
    assert install.startswith("apt-get install") and "docker.io" in install
    assert start == "start "
    assert "installing docker.io with apt-get" in done.stderr
    assert done.stderr.strip().endswith("image-matrix: the Docker engine answers")


@needs_debian
def test_stale_package_lists_are_renewed_once(machine: Machine) -> None:
    (machine.home / "bin/dockerd").rename(machine.home / "dockerd")
    stand_in(
        machine.home / "bin/apt-get",
        'echo "apt-get $1" >> "$HOME/calls"; [ "$1" = update ] && touch "$HOME/fresh"; [ -e "$HOME/fresh" ] || exit 100\n'
        'cp "$HOME/dockerd" "$HOME/bin/dockerd"',
    )
    assert machine.run('"$ENSURE"').returncode == 0
    assert machine.calls() == ["apt-get install", "apt-get update", "apt-get install", "start "]


@needs_debian
def test_without_iptables_it_is_tried_again_and_said(machine: Machine) -> None:
    done = machine.run('"$ENSURE"', REFUSES="iptables")
    assert done.returncode == 0, done.stderr
    assert machine.calls() == ["start ", "start --iptables=false"]
    assert "without touching iptables" in done.stderr


@needs_debian
def test_a_failure_names_the_command_and_shows_the_log(machine: Machine) -> None:
    done = machine.run('"$ENSURE"', REFUSES="all")
    assert done.returncode == 4
    assert "dockerd --iptables=false: failed to start daemon" in done.stderr
    assert "by hand: apt-get install -y docker.io" in done.stderr


@needs_debian
def test_two_at_once_start_one_engine(machine: Machine) -> None:
    done = machine.run('"$ENSURE" & a=$!; "$ENSURE" & wait $a && wait $!')
    assert done.returncode == 0, done.stderr
    assert machine.calls() == ["start "]


@needs_debian
def test_one_who_is_not_root_is_told_what_to_do(machine: Machine) -> None:
    (machine.home / "bin/id").unlink()
    stand_in(machine.home / "bin/id", "echo 1000")
    done = machine.run('"$ENSURE"')
    assert (done.returncode, machine.calls()) == (4, [])
    assert "only root can install one" in done.stderr
    assert "apt-get install -y docker.io" in done.stderr


def test_without_python_nothing_is_started(machine: Machine) -> None:
    done = machine.run('"$ENSURE"', PYTHON="no-such-python")
    assert (done.returncode, machine.calls()) == (4, [])
    assert "no-such-python was not found" in done.stderr


# --- what is locked and what is shipped ------------------------------------------------------------------------------


def test_the_versions_in_the_list_of_dependencies_are_those_of_the_lock() -> None:
    lock = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements-dev.lock").read_text("utf-8"), re.MULTILINE))
    listed = dict(
        re.findall(r"^\| ([\w-]+) \| (\d[\w.]*) \|", (ROOT / "docs/dependencies.md").read_text("utf-8"), re.MULTILINE)
    )
    assert len(listed) > 20
    # torch is an extra: no lock holds it.
    assert {name: lock.get(name) for name in listed if name != "torch"} == {k: v for k, v in listed.items() if k != "torch"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an unpacked wheel of this checkout."""
    pytest.importorskip("hatchling", reason="scripts/setup --dev installs it")
    top = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(top)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = top.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(top / "site")
    return top / "site"


def test_the_wheel_carries_the_matrix_and_its_templates(installed: Path) -> None:
    data = installed / "validator/_data"
    for name in ("images.yaml", "images.schema.json"):
        assert (data / name).read_bytes() == (ROOT / name).read_bytes()
    assert {path.name for path in (data / "dockerfiles").glob("*.j2")} == {p.name for p in (ROOT / "dockerfiles").glob("*.j2")}


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("--results", "{shipped}", "table"),
        ("table",),
    ],
    ids=["list", "table-of-named-records", "table"],
)
def test_the_wheel_says_the_same_outside_a_checkout(installed: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    def said(source: Path, stand: Path, shipped: Path) -> str:
        code = f"import sys; sys.path.insert(0, {str(source)!r}); from validator.cli import main; main()"
        command = [sys.executable, "-c", code, *(a.format(shipped=shipped) for a in arguments)]
        text = subprocess.run(command, cwd=stand, capture_output=True, text=True, check=True).stdout
        # What was not tested stands in the runs, and the wheel carries the records only.
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("untested: "))

    there = said(installed, tmp_path, installed / "validator/_data/results")
    assert there == said(ROOT, ROOT, ROOT / "results")
    assert there

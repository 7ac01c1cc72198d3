"""What a user may hand us or stand on that cannot work: each gives one message with cause and remedy, and its exit code."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = "slim-torch2.6.0-cu124-py3.11-bookworm"
# Root may read everything; without these two rights it may not, and remains root, so that its own files stay readable.
AS_ONE_OF_MANY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")
NOBODY = 65534


def run(*arguments: str, before: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-m", "validator", *arguments],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "DOCKER_HOST": "unix:///nowhere.sock", **environment},
        stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip


def one_message(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    said = " ".join(done.stderr.split())  # wrapped to the width of the terminal
    for word in words:
        assert word in said, done.stderr


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name: that of a socket may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="im-", dir="/tmp") as name:
        yield Path(name)


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="gives up rights that only root has, by setpriv"
)


# --------------------------------------------------------------------------- files


def broken(text: bytes) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        path = place / "images.yaml"
        path.write_bytes(text)
        return path

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (broken(b""), "images.yaml"),
        (broken(b"families: [\n"), "not YAML"),
        (broken(b"\tfamilies:\n"), "images.yaml:1:1: not YAML"),
        (broken(b"\xff\xfe"), "not UTF-8"),
        (broken(b"families: 3\n"), "images.yaml:1:11"),
        (broken(b"families:\n  - name: x\n    colour: red\n"), "unknown key"),
        (broken(b"families:\n  - name: x\n    pull: 'a/b:{nothing}'\n    id: x\n"), "nothing"),
        (lambda place: place, "cannot be read: Is a directory"),
        (lambda place: place / "nowhere.yaml", "the file is not there"),
    ],
)
@pytest.mark.parametrize("verb", [("lint",), ("list",), ("matrix",)])
def test_a_matrix_file_that_is_none(verb: tuple[str, ...], make: Callable[[Path], Path], words: str, place: Path) -> None:
    done = run("-c", str(make(place)), *verb)
    one_message(done, 2, words)


@needs_root
def test_files_that_may_not_be_read_or_written(place: Path) -> None:
    matrix = place / "images.yaml"
    matrix.write_text("families: []\n", encoding="utf-8")
    closed = place / "results"
    matrix.chmod(0o600)
    os.chown(matrix, NOBODY, NOBODY)
    one_message(run("-c", str(matrix), "list", before=AS_ONE_OF_MANY), 2, "cannot be read: Permission denied", "check the path")
    for inside in ((), ("records",), ("records", IMAGE)):
        folder = closed.joinpath(*inside)
        folder.mkdir(exist_ok=True)
        for path in (closed, *closed.rglob("*")):
            path.chmod(0o700 if path == folder else 0o755)
            os.chown(path, NOBODY, NOBODY)
        done = run("--results", str(closed), "table", before=AS_ONE_OF_MANY)
        one_message(done, 4, f"cannot read {folder}", "Permission denied", "--results")


# --------------------------------------------------------------------------- engines


class OldEngine(BaseHTTPRequestHandler):
    """What an engine of 2018 answers (Docker 18.03): it knows nothing of `--gpus`. A double, since no such engine can be had."""

    API = "1.37"

    def do_GET(self) -> None:
        answers = {"_ping": "OK", "version": {"ApiVersion": self.API, "Version": "18.03.1-ce", "Os": "linux", "Arch": "amd64"},
                   "info": {"ServerVersion": "18.03.1-ce", "OSType": "linux", "Architecture": "x86_64"}}  # fmt: skip
        body = json.dumps(answers.get(self.path.rsplit("/", 1)[-1], {})).encode()
        self.send_response(200)
        self.send_header("Api-Version", self.API)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:  # type: ignore[override]
        connection, _ = super().get_request()
        return connection, ("", 0)


@contextmanager
def served(path: Path) -> Iterator[str]:
    with Server(str(path), OldEngine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


@pytest.mark.parametrize("verb", [("doctor", "--engine"), ("matrix", IMAGE), ("run", IMAGE), ("clean",)])
def test_an_engine_that_is_too_old(verb: tuple[str, ...], place: Path) -> None:
    with served(place / "docker.sock") as endpoint:
        done = run("--results", str(place / "results"), *verb, DOCKER_HOST=endpoint)
    one_message(done, 4, "the engine is too old: API 1.37, at least 1.40 (Docker 19.03)", "update the engine")


@needs_root
@pytest.mark.parametrize("verb", [("doctor", "--engine"), ("matrix", IMAGE)])
def test_a_socket_that_is_not_ours(verb: tuple[str, ...], place: Path) -> None:
    with served(place / "docker.sock") as endpoint:
        os.chown(place / "docker.sock", NOBODY, NOBODY)
        (place / "docker.sock").chmod(0o600)
        done = run("--results", str(place / "results"), *verb, before=AS_ONE_OF_MANY, DOCKER_HOST=endpoint)
    one_message(done, 4, "permission denied: add yourself to the group that owns the socket", "run as root")


def test_a_socket_that_nobody_serves_and_one_that_speaks_something_else(place: Path) -> None:
    dead = place / "dead.sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(dead))
    one_message(run("matrix", IMAGE, DOCKER_HOST=f"unix://{dead}"), 4, "a socket without an engine behind it")
    other = place / "other.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(other))
        server.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.sendall(b"220 mail.example.test ESMTP\r\n")

        threading.Thread(target=answer, daemon=True).start()
        one_message(run("matrix", IMAGE, DOCKER_HOST=f"unix://{other}"), 4, "no Docker engine answers", str(other))
        server.shutdown(socket.SHUT_RDWR)

"""The probe in a Python of this machine, without a container: interpreter and options in, a Record of kind `local` out."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from validator import probe
from validator.errors import UsageError
from validator.machine import this_machine
from validator.model import ImageIdentity, Record, Verdict, VerdictClass, content_key, part
from validator.probe import ProbeOptions
from validator.probe.channel import Reader
from validator.record import Probed, make_record
from validator.verdict import ExitState

PREFIX = "local-"
# What the probe is told when the interpreter was chosen already: it then looks for no other (see choose_interpreter there).
STAY = {"IMAGE_MATRIX_PROBE_INTERPRETERS": "[]"}
_ERROR_LIMIT = 65536


def local_id(name: str) -> str:
    """`name` as the id of a local record, which no image of a matrix bears."""
    return name if name.startswith(PREFIX) else PREFIX + name


def find_python(name: str) -> str:
    """The interpreter that a path or a name on PATH means. Raises UsageError."""
    found = shutil.which(name)
    if found is None:
        raise UsageError(
            f"no interpreter at {name}: it is not there, not on PATH or not executable",
            "name one with --python: a path, or a name like python3.11",
        )
    return found


def test_here(
    python: str,
    options: ProbeOptions,
    *,
    name: str,
    now: Callable[[], datetime],
    clock: Callable[[], float],
    told: Callable[[str], None],
    timeout: float = 900.0,
) -> Record:
    """Run the probe with the interpreter `python` and judge. name: the record's id, "" for one made of what was found.

    timeout: seconds for the whole probe; told: gets a line for each case. Raises UsageError when no report comes out.
    """
    started, began = now(), clock()
    probed = _run(python, options, timeout, told)
    if not probed.report.hello:
        raise _no_report(python, probed)
    facts = probed.report.facts
    host = this_machine()
    torch = str(part(facts, "torch").get("version") or "")
    version = str(part(facts, "python").get("version") or "")
    ident = local_id(name or _describe(torch, version))
    record = make_record(
        probed,
        cases=probed.report.cases,
        image=ImageIdentity(id=ident, family="local", kind="local", platform=f"linux/{host.architecture}"),
        host=host,
        key=content_key(id=ident, host=host.key, cpu=host.cpu, python=python, torch=torch, **options.key()),
        run=f"{started:%Y%m%dT%H%M%SZ}-local",
        started=started,
        seconds={"probe": round(clock() - began, 1)},
        options=options.key(),
    )
    if record.verdict.code != "no-torch":
        return record
    verdict = Verdict(
        cls=VerdictClass.IMAGE,
        code="no-torch",
        cause=f"this Python has no torch ({python})",
        remedy="name one that has with --python",
    )
    return record.model_copy(update={"verdict": verdict})


def beside(python: str, what: str, arguments: Sequence[str] = (), timeout: float = 1800.0) -> str:
    """What the probe prints for `bench` or `oracle` with this interpreter. Raises UsageError with its own words when it cannot."""
    command = [python, "-W", "ignore", str(probe.PROBE_PATH), f"--{what}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"--{what} did not end within {timeout:.0f} s", "try it on a machine that is less busy") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(f"--{what} failed with {python}: {last[:300]}", "name a Python with torch (and numpy for --oracle)")
    return done.stdout


def _describe(torch: str, python: str) -> str:
    text = f"torch{torch}-py{python}" if torch else f"no-torch-py{python}"
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:100]


def _run(python: str, options: ProbeOptions, timeout: float, told: Callable[[str], None]) -> Probed:
    nonce = uuid.uuid4().hex
    try:
        process = subprocess.Popen(
            [python, *probe.command(options.given(), nonce)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **STAY},
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"cannot start {python}: {error.strerror}", "name a Python interpreter with --python") from error
    try:
        return _follow(process, Reader(nonce), time.monotonic() + timeout, told)
    finally:
        with suppress(ProcessLookupError):  # its workers die with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _follow(process: subprocess.Popen[bytes], reader: Reader, deadline: float, told: Callable[[str], None]) -> Probed:
    """Read both outputs to their end, or until the deadline (monotonic seconds)."""
    errors = bytearray()
    late = False
    assert process.stdout and process.stderr
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map() and not late:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            late = not ready
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    errors += data
                    del errors[: max(0, len(errors) - _ERROR_LIMIT)]
                else:
                    for frame in reader.feed(data):
                        if frame.kind == "case":
                            told(f"{frame.data.get('id', '')} {frame.data.get('outcome', '')}")
    if late:
        process.kill()
    code = process.wait()
    state = ExitState(exit_code=code, timed_out=late, started=True)
    return Probed(report=reader.report(), state=state, error_output=errors.decode("utf-8", "replace"))


def _no_report(python: str, probed: Probed) -> UsageError:
    """Why nothing came out, in the probe's own words where it has any."""
    written = probed.report.noise_head + probed.report.noise_tail
    if probe.OLD_PYTHON_MARK in written:
        version = written.split(probe.OLD_PYTHON_MARK)[1].split()[0]
        return UsageError(f"{python} is Python {version}; the probe needs 3.6 or newer", "name another with --python")
    lines = [line.strip() for line in (probed.error_output + "\n" + written).splitlines() if line.strip()]
    last = lines[-1][:200] if lines else f"it said nothing and ended with exit code {probed.state.exit_code}"
    if last.startswith("unknown option"):
        return UsageError(f"the probe does not know what it was asked: {last}", "leave it out, or update image-matrix")
    return UsageError(f"{python} gave no report: {last}", "name a Python interpreter with --python")

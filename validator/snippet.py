"""One case of one image as something to run by hand: a program of a few lines and the command that runs it there.

The program comes from the probe's own text (`probe.py --snippet`), in a process of its own, since the host never imports it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from validator.errors import InternalError
from validator.model import Record, part
from validator.probe import PROBE_PATH

# How the probe begins what does not stand alone (CARRIED there): the case then runs by the probe itself.
_CARRIED = "# This case needs the probe file"


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """program: Python text, needing torch alone ("" where the case needs the probe itself); command: for a shell."""

    program: str
    command: str


def snippet(case_id: str, record: Record) -> Snippet:
    """How to see what `case_id` gives in the image of `record`. case_id must be one of the probe's catalogue."""
    done = subprocess.run(
        [sys.executable, str(PROBE_PATH), "--snippet", case_id],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    if done.returncode:
        raise InternalError(f"the probe gave no snippet of {case_id}: {done.stderr.strip()[-300:]}")
    where = _where(record, cuda="cuda" in case_id.split("."))
    # Only the probe sees, under the profiler, that work was done on the CPU though the result is on the GPU.
    detour = any(case.id == case_id and case.kind == "cpu-detour" for case in record.cases)
    if detour or done.stdout.startswith(_CARRIED):
        asked = f"--tier full --cases {shlex.quote(case_id)}"
        if record.image.kind == "local":
            return Snippet(program="", command=f"image-matrix probe --python {where} {asked}")
        inside = f"cat > /tmp/probe.py; {_python(record)} /tmp/probe.py {asked}"
        return Snippet(program="", command=f"image-matrix probe --emit | {where} sh -c {shlex.quote(inside)}")
    program = _for_torch(done.stdout, str(part(record.facts, "torch").get("version") or ""))
    python = where if record.image.kind == "local" else f"{where} {_python(record)}"
    return Snippet(program=program, command=f"{python} - <<'EOF'\n{program}EOF")


def _for_torch(program: str, version: str) -> str:
    """torch 1.9 has the CSR constructor under a private name only; the probe takes that one there, too."""
    try:
        old = Version(version) < Version("1.10.dev0")
    except InvalidVersion:
        old = False
    return program.replace("torch.sparse_csr_tensor(", "torch._sparse_csr_tensor(") if old else program


def _where(record: Record, *, cuda: bool) -> str:
    """What starts a container of the image, or the interpreter of a local record."""
    image = record.image
    if image.kind == "local":
        return _python(record)
    name = f"image-matrix/{image.id}"
    if image.kind == "pull" and image.reference:
        name = re.sub(r"(:[^/:@]+|@[^@]+)$", "", image.reference) + f"@{image.digest}" if image.digest else image.reference
    gpus = f"--gpus {shlex.quote(str(record.options.get('gpus') or 'all'))} " if cuda else ""
    # An entrypoint that does not run what it is given was overridden by us, too.
    entry = "--entrypoint '' " if any(finding.code == "entrypoint-swallows" for finding in record.findings) else ""
    return f"docker run --rm -i {gpus}{entry}{shlex.quote(name)}"


def _python(record: Record) -> str:
    """The interpreter that the probe found torch with; the text comes from the image."""
    return shlex.quote(str(part(record.facts, "python").get("executable") or "python3"))

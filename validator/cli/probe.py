"""The verb `probe`: the probe in a Python of this machine, without a container."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from validator.cli.given import check_cases, check_tier, now, the_store
from validator.cli.options import Cases, Tier
from validator.cli.output import coloured, put, talk, width
from validator.errors import UsageError


def probe(
    python: Annotated[
        str, typer.Option("--python", help="the interpreter: a path, or a name on PATH [default: ours]", show_default=False)
    ] = "",
    cases: Cases = None,
    tier: Tier = "standard",
    device: Annotated[str, typer.Option("--device", help="cpu | cuda [default: both]", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="the record as JSON on stdout, as results/ holds them")] = False,
    save: Annotated[
        str, typer.Option("--save", metavar="ID", help="also write the record to results/, as local-ID", show_default=False)
    ] = "",
    emit: Annotated[bool, typer.Option("--emit", help="print the probe itself (one Python file) and stop")] = False,
    bench: Annotated[
        bool, typer.Option("--bench", help="time sparse against dense instead (on --device, by default cpu)")
    ] = False,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="compare with torch's own OpInfo database instead (needs numpy there)")
    ] = False,
) -> None:
    """Test the torch of a Python of this machine, without a container.

    With --emit, `... | docker run --rm -i --gpus all IMAGE sh -c 'cat > /tmp/probe.py; python3 /tmp/probe.py'` carries the
    probe into any container. The interpreter that is named is used, and no other is looked for.
    """
    from validator import probe as program
    from validator.local import beside, find_python, local_id, test_here
    from validator.model import IMAGE_ID
    from validator.publish.report import render
    from validator.store import record_text

    if emit:
        put(program.source())
        return
    check_tier(tier)
    check_cases(cases or [])
    if device not in ("", "cpu", "cuda"):
        raise UsageError(f"unknown device {device!r}", "use cpu or cuda, or leave --device out for both")
    if save and not IMAGE_ID.fullmatch(local_id(save)):
        raise UsageError(f"{save!r} cannot be an id", "use small letters, digits, dots, dashes and underscores")
    options = program.ProbeOptions(cases=tuple(cases or ()), tier=tier, devices=(device,) if device else ())
    chosen = find_python(python or sys.executable)
    talk(f"probing with {chosen}")
    if bench or oracle:
        if bench and oracle:
            raise UsageError("--bench and --oracle are two things", "ask for one of them")
        given = ["--devices", device or "cpu", *(["--json"] if as_json else [])] if bench else []
        put(beside(chosen, "bench" if bench else "oracle", given))
        return
    record = test_here(chosen, options, name=save, now=now, clock=time.monotonic, told=lambda _line: None)
    if save:
        talk(f"written to {the_store().write_record(record)}")
    put(record_text(record) if as_json else render(record, width=width(), colour=coloured()))

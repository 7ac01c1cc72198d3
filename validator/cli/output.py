"""Where text goes: stdout is data, stderr is talk. Nobody else writes to either."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from validator.progress import Reporter


def put(text: str) -> None:
    """Data: to stdout."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough (`| head`): the job is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def talk(text: str) -> None:
    """What is said to a person meanwhile: to stderr."""
    sys.stderr.write(text if text.endswith("\n") else text + "\n")
    sys.stderr.flush()


def ask(question: str) -> str:
    """One line from the person at the terminal; the question goes to stderr. "" for an empty line, and at the end of the input."""
    sys.stderr.write(f"{question}: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def put_json(data: Any) -> None:
    """Plain data as JSON, to stdout."""
    put(json.dumps(data, indent=1, sort_keys=True))


def width() -> int:
    """Columns of the terminal that reads stdout."""
    return shutil.get_terminal_size((160, 24)).columns


def coloured() -> bool:
    """Whether stdout takes colours, by the usual conventions."""
    return not os.environ.get("NO_COLOR") and (sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")))


def reporter() -> Reporter:
    """Progress on stderr: live where that is a terminal, else one line for each event."""
    from rich.console import Console

    from validator.progress import LiveDisplay, Plain

    forced = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")
    console = Console(stderr=True, highlight=False, force_terminal=True if forced else None)
    return LiveDisplay(console, time.monotonic) if sys.stderr.isatty() else Plain(console)

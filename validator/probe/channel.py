"""How the probe's report gets out whole: frames are picked out of whatever else a container writes.

A frame is one line: `@image-matrix NONCE NUMBER LENGTH CHECKSUM JSON`. The nonce is ours, new for each container, so banners
and frames of another run are told apart; number, length and checksum show what is missing or cut.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic import ValidationError

from validator.model import CaseResult, Control, Evidence, Outcome

LINE_LIMIT = 4 << 20
HEAD_LIMIT, TAIL_LIMIT = 16 << 10, 48 << 10
PROBLEM_LIMIT = 20
_FRAME = re.compile(rb"@image-matrix ([0-9a-f]{32}) (\d{1,9}) (\d{1,9}) ([0-9a-f]{16}) (.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One message of the probe: its number, its kind (hello, facts, case, control, note, end) and its content."""

    number: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that came out whole. complete: the probe said that it was done and no frame is missing."""

    hello: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    cases: tuple[CaseResult, ...] = ()
    controls: tuple[Control, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = False
    problems: tuple[str, ...] = ()
    noise_head: str = ""
    noise_tail: str = ""


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _whole_text(value: Any) -> Any:
    """JSON may hold half a surrogate pair (a byte of a path that is no UTF-8), which no file of ours could hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_whole_text(one) for one in value]
    if isinstance(value, dict):
        return {_whole_text(name): _whole_text(one) for name, one in value.items()}
    return value


class Reader:
    """Takes the container's standard output in pieces of any size. Memory is bounded, whatever the container writes."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._buffer = bytearray()
        self._skipping = False
        self._seen: set[int] = set()
        self._hello = False
        self._facts: dict[str, Any] = {}
        self._cases: dict[str, CaseResult] = {}
        self._controls: dict[str, Control] = {}
        self._notes: list[str] = []
        self._last: int | None = None
        self._said_complete = False
        self._problems: list[str] = []
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Add output; the frames that are whole now, in order."""
        frames = []
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if self._skipping:
                self._skipping = False
                continue
            frame = self._line(line)
            if frame is not None:
                frames.append(frame)
        if len(self._buffer) > LINE_LIMIT:
            self._noise(bytes(self._buffer[: HEAD_LIMIT + TAIL_LIMIT]))
            self._buffer.clear()
            self._skipping = True
            self._problem(f"a line of more than {LINE_LIMIT >> 20} MiB was dropped")
        return frames

    def report(self) -> Report:
        """What came so far; for the end of the container's output."""
        problems = list(self._problems)
        rest = bytes(self._buffer)
        tail = self._tail + rest[-TAIL_LIMIT:]
        if b"@image-matrix " + self._nonce.encode() in rest:
            problems.append("the last frame was cut")
        missing = 0 if self._last is None else self._last + 1 - len(self._seen)
        if missing > 0:
            problems.append(f"{missing} frame(s) are missing")
        return Report(
            hello=self._hello,
            facts=self._facts,
            cases=tuple(self._cases.values()),
            controls=tuple(self._controls.values()),
            notes=tuple(self._notes),
            complete=self._said_complete and missing == 0,
            problems=tuple(problems),
            noise_head=self._head.decode("utf-8", "replace"),
            noise_tail=tail[-TAIL_LIMIT:].decode("utf-8", "replace"),
        )

    def _problem(self, text: str) -> None:
        if len(self._problems) < PROBLEM_LIMIT:
            self._problems.append(text)

    def _noise(self, line: bytes) -> None:
        line = line + b"\n"
        room = HEAD_LIMIT - len(self._head)
        self._head += line[:room]
        self._tail += line[room:] if room > 0 else line
        del self._tail[: max(0, len(self._tail) - TAIL_LIMIT)]

    def _line(self, line: bytes) -> Frame | None:
        start = line.find(b"@image-matrix ")
        found = _FRAME.fullmatch(line[start:].rstrip(b"\r")) if start >= 0 else None
        if found is None:
            if line:
                self._noise(line)
            if self._nonce.encode() in line and start >= 0:
                self._problem("a frame was damaged")
            return None
        if found[1].decode() != self._nonce:
            self._problem("a frame of another run was ignored")
            return None
        if start:
            self._noise(line[:start])
        number, text = int(found[2]), found[5]
        digest = hashlib.sha256(b"%s %d %s" % (found[1], number, text)).hexdigest()[:16]
        if int(found[3]) != len(text) or digest != found[4].decode():
            self._problem(f"frame {number} was damaged on the way")
            return None
        if number in self._seen:
            self._problem(f"frame {number} came twice")
            return None
        return self._accept(number, text)

    def _accept(self, number: int, text: bytes) -> Frame | None:
        try:
            data = _whole_text(json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse))
            kind = data.pop("frame")
            self._keep(kind, number, data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ValidationError) as error:
            first = (str(error).splitlines() or [""])[0][:120]
            self._problem(f"frame {number} holds something that is not a report ({type(error).__name__}: {first})")
            self._seen.add(number)
            return None
        self._seen.add(number)
        return Frame(number=number, kind=kind, data=data)

    def _keep(self, kind: str, number: int, data: dict[str, Any]) -> None:
        if kind == "hello":
            self._hello = True
        elif kind == "facts":
            for name, value in data["data"].items():
                old = self._facts.get(name)
                self._facts[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        elif kind == "case":
            case = CaseResult.model_validate(data)
            evidence = Evidence.NONE if case.outcome is Outcome.NOT_RUN else Evidence.EXECUTED
            self._cases.setdefault(case.id, case.model_copy(update={"evidence": evidence}))
        elif kind == "control":
            control = Control.model_validate(data)
            self._controls.setdefault(control.id, control)
        elif kind == "note":
            self._notes.append(str(data.get("message", "")))
        elif kind == "end":
            self._last = number
            self._said_complete = data.get("complete") is True
        else:
            raise ValueError(f"unknown kind {kind!r}")

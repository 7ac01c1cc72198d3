"""Forecasts -> text for a terminal, or plain data. Words only, no signs and no colours: nothing here was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from validator.builds import Known
from validator.facts import Confidence
from validator.facts.names import Target
from validator.forecast import Forecast, Prospect
from validator.publish.terminal import SHORTEST_ID, clean, shorten, width_of

# What goes first when the terminal is narrow.
DISPENSABLE = ("torch", "CUDA", "known")
MEANING = (
    "nothing was run: from rules and facts (docs/facts.md). known: the arch list was measured in that image by a probe,\n"
    "or is declared for its torch by row and facts; (inferred): something it rests on was not seen. A test tells: image-matrix run"
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One image: what is known of it, and a forecast for each GPU asked for."""

    known: Known
    forecasts: tuple[Forecast, ...]


def render(lines: Sequence[Line], asked: Sequence[tuple[Target, str]], *, width: int) -> str:
    """asked: each GPU with its driver ("" = not given). Reasons that forecasts share stand once, below the table."""
    reasons: dict[str, int] = {}
    installed = {driver for _, driver in asked}
    shared = f"forecast for driver {installed.pop()}" if len(installed) == 1 and "" not in installed else "forecast"
    headers = ["image", "torch", "CUDA", "known", *(_header(gpu, driver if installed else "") for gpu, driver in asked)]
    rows = [
        [clean(t) for t in (line.known.image, line.known.torch, line.known.cuda, line.known.basis.value)]
        + [_cell(forecast, driver, reasons) for forecast, (_, driver) in zip(line.forecasts, asked, strict=True)]
        for line in lines
    ]
    table = _fit(headers, rows, width)
    told = [f"[{number}] {clean(text)}" for text, number in reasons.items()]
    return "\n".join([table, "", f"{shared}, {MEANING}", "", *told]) + "\n"


def _header(gpu: Target, driver: str) -> str:
    name = gpu.name if gpu.cc in gpu.name else f"{gpu.name} ({gpu.cc})"
    return clean(f"{name}, driver {driver}" if driver else name)


def _cell(forecast: Forecast, driver: str, reasons: dict[str, int]) -> str:
    text = " ".join((forecast.reason, *(f"Note: {note}." for note in forecast.notes)))
    number = reasons.setdefault(text, len(reasons) + 1)
    inferred = forecast.confidence is Confidence.INFERRED and forecast.prospect is not Prospect.UNKNOWN
    mark = " (inferred)" if inferred else ""
    need = f", driver >= {forecast.driver}" if forecast.driver and not driver else ""
    return f"{forecast.prospect.value}{mark}{need} [{number}]"


def _fit(headers: list[str], rows: list[list[str]], width: int) -> str:
    """The table without what does not fit: first the dispensable columns, then the middles of ids."""
    longest = max(width_of(row[0]) for row in rows)
    dropped: list[str] = []
    for name in ("", *DISPENSABLE):
        dropped.append(name)
        keep = [number for number, header in enumerate(headers) if header not in dropped]
        body = [[row[number] for number in keep] for row in rows]
        text = tabulate(body, [headers[number] for number in keep], tablefmt="simple", disable_numparse=True)
        over = max(map(width_of, text.splitlines())) - width
        if over <= 0:
            return text
    body = [[shorten(row[0], max(SHORTEST_ID, longest - over)), *row[1:]] for row in body]
    return tabulate(body, [headers[number] for number in keep], tablefmt="simple", disable_numparse=True)


def data(lines: Sequence[Line], asked: Sequence[tuple[Target, str]], as_of: str) -> dict[str, Any]:
    """Plain data for JSON. as_of: the date of the facts."""
    return {
        "kind": "forecast",
        "meaning": "expected by rules and facts; nothing was run",
        "facts_as_of": as_of,
        "gpus": [
            {"name": gpu.name, "compute_capability": gpu.cc, "class": gpu.kind or None, "driver": driver or None}
            for gpu, driver in asked
        ],
        "images": [_line(line) for line in lines],
    }


def _line(line: Line) -> dict[str, Any]:
    known = line.known
    return {
        "image": known.image,
        "platform": known.platform,
        "torch": known.torch or None,
        "cuda": known.cuda or None,
        "arch_list": None if known.arch is None else list(known.arch),
        "known_by": known.basis.value,
        "forecasts": [
            {
                "gpu": forecast.gpu,
                "forecast": forecast.prospect.value,
                "reason": forecast.reason,
                "rule": forecast.rule,
                "sources": list(forecast.sources),
                "confidence": forecast.confidence.value,
                "driver_needed": forecast.driver or None,
                "notes": list(forecast.notes),
            }
            for forecast in line.forecasts
        ],
    }

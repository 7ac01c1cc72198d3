"""What images can do beside sparse operations -> text for a terminal, or plain data. Lack is no failure and looks like none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from validator.capabilities import NAMES, Capability, Known, capabilities
from validator.model import Record
from validator.publish.terminal import SHORTEST_ID, clean, shorten, width_of
from validator.rows import host_name

LEGEND = (
    "yes, no: done in the image, or refused there. (yes), (no): nothing was tried; what it takes is there, or is not. -: not known.\n"
    "float16 and bfloat16: the layouts whose product with a dense matrix passes. What each rests on: image-matrix show ID"
)
_BY_LAYOUT = ("fp16", "bf16")


def render(records: Sequence[Record], *, width: int) -> str:
    """One line for each record, one column for each capability."""
    if not records:
        return "no records yet: `make matrix` makes them\n"
    rows = [[clean(one.image.id), *(cell(name, found) for name, found in capabilities(one).items())] for one in records]
    text = _text(rows)
    over = max(map(width_of, text.splitlines())) - width
    if over > 0:
        longest = max(width_of(row[0]) for row in rows)
        text = _text([[shorten(row[0], max(SHORTEST_ID, longest - over)), *row[1:]] for row in rows])
    hosts = sorted({host_name(one) for one in records})
    return "\n".join((text, "", LEGEND, "", *(f"seen on {clean(host)}" for host in hosts))) + "\n"


def _text(rows: list[list[str]]) -> str:
    return tabulate(rows, ["image", *NAMES], tablefmt="simple", disable_numparse=True)


def cell(name: str, found: Capability) -> str:
    """`yes`, `no`, `(yes)`, `(no)`, `-`; for a dtype the layouts where it passes."""
    if found.able is None:
        return "-"
    word = "yes" if found.able else "no"
    if name in _BY_LAYOUT and found.able:
        word = clean(found.detail.partition(": ")[2].replace(", ", " "))
    return word if found.known is Known.EXECUTED else f"({word})"


def lines(record: Record) -> list[str]:
    """For the report on one image: each capability with what it rests on."""
    found = capabilities(record)
    wide = max(map(len, NAMES.values()))
    return [
        f"{NAMES[name]:{wide}}  {cell(name, one):6} "
        + clean(f"{one.known.value}: {one.detail}" if one.detail else one.known.value)
        for name, one in found.items()
        if one.able is not None
    ]


def data(records: Sequence[Record]) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "kind": "capabilities",
        "names": NAMES,
        "rows": [
            {
                "image": one.image.id,
                "host": one.host.key,
                "tested": one.started,
                "capabilities": {
                    name: {"able": found.able, "known": found.known.value, "detail": found.detail}
                    for name, found in capabilities(one).items()
                },
            }
            for one in records
        ],
    }

"""Checks of this host -> text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from validator.doctor import Check
from validator.publish.terminal import clean


def render(checks: Iterable[Check], width: int) -> str:
    """One line for each check, below it what is to be done."""
    lines = []
    for one in checks:
        lines.append(_wrapped(f"{one.state.value:8} {one.name:12} ", one.text, width))
        if one.remedy:
            lines.append(_wrapped(" " * 22 + "to do: ", one.remedy, width))
    return "\n".join(lines) + "\n"


def _wrapped(start: str, text: str, width: int) -> str:
    indent = " " * 22
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(start + clean(text), max(width, 60), subsequent_indent=indent, drop_whitespace=True, **options)  # type: ignore[arg-type]

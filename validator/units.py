"""Seconds and bytes as people read them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """ "42 s", "3 min 05 s", "2 h 10 min"; "?" for None."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: int | None) -> str:
    """ "1.4 GB" in units of 1000; "?" for None."""
    if count is None:
        return "?"
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"

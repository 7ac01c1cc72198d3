"""What a run tells: harmless text, readable figures, and a live display that works from its first to its last call."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from validator.progress import LiveDisplay, Plain, Reporter, printable
from validator.units import duration, size


def test_text_from_an_image_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\r") == "a [2Jb c "
    assert len(printable("x" * 1000)) == 300


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.2, "4.2 s"), (59, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (None, "?")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(1_440_000_000, "1.4 GB"), (12_000_000, "12 MB"), (None, "?")])
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_every_event_is_told(kind: str) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=kind == "live", highlight=False)
    reporter: Reporter = Plain(console) if kind == "plain" else LiveDisplay(console, lambda: 0.0)
    reporter.begin(2)
    reporter.image_started("image-a", 1, 75.0)
    reporter.step("image-a", "building")
    reporter.say("a word")
    reporter.image_done("image-a", "cpu 1/2 pass", 12.0, True)
    reporter.end()
    text = stream.getvalue()
    for word in ("image-a", "a word", "cpu 1/2 pass", "12 s"):
        assert word in text

"""What a run tells while it works. Core code talks to a Reporter; only the command line chooses which one."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from validator.units import duration


class Reporter(Protocol):
    """Told of everything that takes time. Every text may come from an image: it is shown, never interpreted."""

    def say(self, text: str) -> None: ...
    def begin(self, total: int) -> None: ...
    def image_started(self, image_id: str, position: int, expected_seconds: float | None) -> None: ...
    def step(self, image_id: str, text: str) -> None: ...
    def image_done(self, image_id: str, summary: str, seconds: float, good: bool) -> None: ...
    def end(self) -> None: ...


class Silent:
    """A Reporter that says nothing."""

    def say(self, text: str) -> None: ...
    def begin(self, total: int) -> None: ...
    def image_started(self, image_id: str, position: int, expected_seconds: float | None) -> None: ...
    def step(self, image_id: str, text: str) -> None: ...
    def image_done(self, image_id: str, summary: str, seconds: float, good: bool) -> None: ...
    def end(self) -> None: ...


def printable(text: str, limit: int = 300) -> str:
    """One line without control characters, cut at `limit`: what came from an image must not drive the terminal."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


class Plain:
    """One line for every event, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def say(self, text: str) -> None:
        self._line(printable(text, 2000))

    def begin(self, total: int) -> None:
        self._total = total

    def image_started(self, image_id: str, position: int, expected_seconds: float | None) -> None:
        about = f" (about {duration(expected_seconds)})" if expected_seconds else ""
        self._line(f"[{position}/{self._total}] {image_id}{about}")

    def step(self, image_id: str, text: str) -> None:
        if not text.startswith("  "):
            self._line(f"    {printable(text)}")

    def image_done(self, image_id: str, summary: str, seconds: float, good: bool) -> None:
        self._line(f"    {'ok' if good else '--'} {printable(summary)}  [{duration(seconds)}]")

    def end(self) -> None: ...


class LiveDisplay:
    """A display that renews itself on a terminal: the image in hand, its step, what is done, the time left."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._total = 0
        self._done = 0
        self._image = ""
        self._step = ""
        self._began = self._image_began = clock()
        self._expected: float | None = None
        # Last, because it draws once while it is made.
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def say(self, text: str) -> None:
        self._console.print(Text(printable(text, 2000)))

    def begin(self, total: int) -> None:
        self._total = total
        self._began = self._clock()
        self._live.start()

    def image_started(self, image_id: str, position: int, expected_seconds: float | None) -> None:
        self._image, self._step, self._expected = image_id, "", expected_seconds
        self._image_began = self._clock()
        self._done = position - 1

    def step(self, image_id: str, text: str) -> None:
        self._step = printable(text.strip())

    def image_done(self, image_id: str, summary: str, seconds: float, good: bool) -> None:
        self._done += 1
        self._image = ""
        mark = Text("✓ " if good else "– ", style="green" if good else "yellow")
        self._console.print(mark + Text(f"{image_id}  {printable(summary)}  [{duration(seconds)}]"))

    def end(self) -> None:
        self._live.stop()

    def _render(self) -> RichTable:
        grid = RichTable.grid(padding=(0, 1))
        now = self._clock()
        elapsed = now - self._began
        left = f", about {duration(elapsed / self._done * (self._total - self._done))} left" if self._done else ""
        if self._image:
            about = f" of about {duration(self._expected)}" if self._expected else ""
            grid.add_row(
                Text("▶", style="cyan"), Text(f"{self._image}  {duration(now - self._image_began)}{about}", style="bold")
            )
            grid.add_row("", Text(self._step, style="dim", overflow="ellipsis", no_wrap=True))
        grid.add_row("", Text(f"{self._done} of {self._total} done in {duration(elapsed)}{left}"))
        return grid


class Clock(Protocol):
    """Seconds that only go forward."""

    def __call__(self) -> float: ...

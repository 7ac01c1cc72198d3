"""The engine's many events of one pull -> one line now and then: how much, how fast, how many layers. Pure: the clock is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from validator.units import size


@dataclass(kw_only=True)
class PullProgress:
    """Feed it events of `docker pull` (decoded JSON); it gives a line at most every `interval` seconds, else "".

    Layers that the engine has already are counted as done and cost nothing.
    """

    clock: Callable[[], float]
    interval: float = 2.0
    _current: dict[str, int] = field(default_factory=dict)
    _total: dict[str, int] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _kept: set[str] = field(default_factory=set)
    _began: float | None = None
    _told: float = 0.0

    def feed(self, event: Mapping[str, Any]) -> str:
        status, layer = str(event.get("status") or ""), str(event.get("id") or "")
        now = self.clock()
        self._began = now if self._began is None else self._began
        if not layer or ":" in layer or status.startswith("Pulling from"):
            return status  # about the whole image: digest, status
        self._seen.add(layer)
        detail = event.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._current[layer], self._total[layer] = int(detail.get("current") or 0), int(detail["total"])
        elif status == "Already exists":
            self._done.add(layer)
            self._kept.add(layer)
        elif status in ("Download complete", "Verifying Checksum"):
            self._current[layer] = self._total.get(layer, self._current.get(layer, 0))
        elif status == "Pull complete":
            self._done.add(layer)
        if now - self._told < self.interval:
            return ""
        self._told = now
        return self.line()

    @property
    def received(self) -> int:
        """Bytes (compressed) that came from the registry so far."""
        return sum(self._current.values())

    def line(self) -> str:
        """`312.0 MB of 5.1 GB, 24.3 MB/s, 9 of 14 layers (3 were here)`; the total grows while layers become known."""
        seconds = max(self.clock() - (self._began or 0.0), 0.001)
        total = sum(self._total.values())
        amount = f"{size(self.received)} of {size(total)}, {self.received / seconds / 1e6:.1f} MB/s, " if total else ""
        kept = f" ({len(self._kept)} were here)" if self._kept else ""
        return f"{amount}{len(self._done)} of {len(self._seen)} layers{kept}"

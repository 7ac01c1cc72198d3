"""Before an expensive step: what will be done, in which order, how big and how long, from past records where there are any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from packaging.version import InvalidVersion, Version

from validator.model import Image, Record, Slim

# Rough figures for images of which there is no record, in bytes unpacked and seconds. Measured on the builds of this
# project (CPU and CUDA slim images); for pulled tags the compressed sizes that pytorch/pytorch issue 116696 reports, doubled.
GUESSES: dict[str, tuple[int, float]] = {
    "slim-cpu": (1_100_000_000, 75.0),
    "slim-cuda": (5_500_000_000, 160.0),
    "runtime": (7_000_000_000, 240.0),
    "devel": (17_000_000_000, 500.0),
    "ngc": (22_000_000_000, 700.0),
    "other": (12_000_000_000, 400.0),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One image of the plan. size in bytes unpacked, seconds for everything; measured: from a record, else a rough guess."""

    image: Image
    known: bool
    size: int
    seconds: float
    measured: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps in the order in which they will be done."""

    steps: tuple[Step, ...]

    @property
    def todo(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.known)

    @property
    def bytes_needed(self) -> int:
        """Unpacked bytes of everything that is not known yet, as if all were kept."""
        return sum(step.size for step in self.todo)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.todo)


def make_plan(images: Iterable[Image], records: Iterable[Record], known: frozenset[str]) -> Plan:
    """Known rows first (they cost nothing), then the quick ones, so that a table is there early; among equals the newest torch."""
    past: dict[str, list[Record]] = {}
    for record in records:
        past.setdefault(record.image.id, []).append(record)
    steps = [_step(image, past.get(image.id, []), image.id in known) for image in images]
    return Plan(steps=tuple(sorted(steps, key=_order)))


def _step(image: Image, records: list[Record], known: bool) -> Step:
    sizes = [r.image.size_bytes for r in records if r.image.size_bytes]
    times = [sum(r.seconds.values()) for r in records if r.seconds]
    if sizes and times:
        return Step(image=image, known=known, size=max(sizes), seconds=median(times), measured=True)
    size, seconds = GUESSES[_class(image)]
    return Step(image=image, known=known, size=size, seconds=seconds, measured=False)


def _class(image: Image) -> str:
    if isinstance(image.source, Slim):
        return "slim-cpu" if image.source.index == "cpu" else "slim-cuda"
    reference = image.source.reference
    if "nvcr.io/nvidia/pytorch" in reference:
        return "ngc"
    if reference.endswith("-devel"):
        return "devel"
    return "runtime" if reference.endswith("-runtime") else "other"


def _order(step: Step) -> tuple[bool, int, float, tuple[int, ...], str]:
    kind = {"build": 0, "extend": 1, "pull": 2}[step.image.kind]
    guess = GUESSES[_class(step.image)][1]
    return (not step.known, kind, guess, tuple(-part for part in _release(step.image)), step.image.id)


def _release(image: Image) -> tuple[int, ...]:
    try:
        return Version(image.declares("torch")).release
    except InvalidVersion:
        return (0,)

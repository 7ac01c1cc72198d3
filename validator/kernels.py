"""Which GPUs the kernels of a build run on: names as torch lists them (sm_90a, compute_120) against a compute capability. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_KERNEL = re.compile(r"(sm|compute)_(\d{1,2})(\d)([af]?)")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Machine code (sm_) or PTX (compute_) for a compute capability. suffix: "a" for exactly it, "f" for its family."""

    name: str
    ptx: bool
    capability: tuple[int, int]
    suffix: str = ""

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability can run it, given a driver that is new enough."""
        if self.suffix == "a":
            return capability == self.capability
        if self.ptx and not self.suffix:
            return capability >= self.capability
        return capability[0] == self.capability[0] and capability[1] >= self.capability[1]

    @property
    def rule(self) -> str:
        """The id of the rule that decides where it runs."""
        return {"a": "exact", "f": "family"}.get(self.suffix, "ptx" if self.ptx else "cubin")


def parse(name: str) -> Kernel | None:
    """A name of an arch list; None for what is none of NVIDIA's (gfx90a)."""
    match = _KERNEL.fullmatch(name)
    if match is None:
        return None
    return Kernel(name=name, ptx=match[1] == "compute", capability=(int(match[2]), int(match[3])), suffix=match[4])


def best(names: Iterable[str], capability: tuple[int, int], boards: Collection[tuple[int, int]] = ()) -> Kernel | None:
    """What a GPU of this compute capability would use: machine code before PTX, the nearest before the older; None for nothing.

    boards: the compute capabilities of Jetson boards. NVIDIA promises that machine code runs on a newer minor for desktop GPUs
    only: not on a board, and not on a desktop GPU when it was made for a board.
    """
    fitting = [kernel for kernel in map(parse, names) if kernel is not None and kernel.runs_on(capability)]
    sure = [k for k in fitting if k.ptx or k.capability == capability or not {k.capability, capability} & set(boards)]
    return max(sure, key=lambda k: (not k.ptx, k.capability, bool(k.suffix)), default=None)

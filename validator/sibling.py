"""What an image that was not tested has in common with one that was: the same torch for the same CUDA. Pure.

A sibling's outcomes are shown as such, with its name; they are never counted as seen in the image itself. A record of the
image's own always takes their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from validator.cells import device_of
from validator.model import CaseResult, Evidence, Image, Outcome, Record, VerdictClass, part


@dataclass(frozen=True, kw_only=True)
class Build:
    """A torch build: version without its local part (+cu126), CUDA as major.minor."""

    torch: str
    cuda: str


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """`record` is of another image; its outcomes stand in for what `image` has none of."""

    image: Image
    record: Record


def declared_build(image: Image) -> Build | None:
    """What a row says of its torch; None when it does not say both, or says that it is for the CPU."""
    return _build(image.declares("torch"), image.declares("cuda"))


def measured_build(record: Record) -> Build | None:
    """What was measured inside; None for a torch without CUDA, or none at all."""
    torch = part(record.facts, "torch")
    return _build(str(torch.get("version") or ""), str(torch.get("cuda") or ""))


def _build(torch: str, cuda: str) -> Build | None:
    found = re.match(r"(\d+\.\d+)(?:\.|$)", cuda)
    if not torch or not found:
        return None
    try:
        return Build(torch=Version(torch).public, cuda=found[1])
    except InvalidVersion:
        return Build(torch=torch.partition("+")[0], cuda=found[1])


def siblings(images: Iterable[Image], records: Sequence[Record]) -> tuple[Sibling, ...]:
    """For each image without an outcome on CUDA of its own: the best record of another image with the same torch and CUDA.

    An image with no record at all is looked up by what its row declares, one with a record by what was measured in it; the
    latter gets a sibling only if that one ran CUDA cases. Records that are not whole or not trusted are not offered.
    """
    own: dict[str, list[Record]] = {}
    offered: dict[Build, list[Record]] = {}
    for record in records:
        own.setdefault(record.image.id, []).append(record)
        build = measured_build(record)
        if build and record.complete and record.trusted and record.verdict.cls is VerdictClass.OK:
            offered.setdefault(build, []).append(record)
    found = []
    for image in images:
        mine = own.get(image.id, [])
        if any(_ran(record, "cuda") for record in mine):
            continue
        build = next(filter(None, map(measured_build, mine)), None) if mine else declared_build(image)
        others = (
            [r for r in offered.get(build, ()) if r.image.id != image.id and (_ran(r, "cuda") or not mine)] if build else []
        )
        if others:
            found.append(Sibling(image=image, record=max(others, key=lambda record: _rank(record, image))))
    return tuple(found)


def _rank(record: Record, image: Image) -> tuple[bool, int, bool, str, str]:
    """Most telling first: CUDA outcomes, how many, the same Python, the newest; the id makes it one."""
    python = str(part(record.facts, "python").get("version") or "")
    same = bool(image.declares("python")) and (python + ".").startswith(image.declares("python") + ".")
    return _ran(record, "cuda") > 0, _ran(record, "cuda") + _ran(record, "cpu"), same, record.started, record.image.id


def _ran(record: Record, device: str) -> int:
    return sum(c.evidence is Evidence.EXECUTED and device_of(c.id) == device for c in record.cases)


def borrowed(own: Record | None, sibling: Record) -> tuple[CaseResult, ...]:
    """The cases of an image with its sibling's outcomes put in, marked as such.

    Without a record of its own: all that ran in the sibling. With one: only CUDA cases that were not run here and were there.
    """
    there = {c.id: _marked(c) for c in sibling.cases if c.evidence is Evidence.EXECUTED}
    if own is None:
        return tuple(there.get(case.id) or _neither(case) for case in sibling.cases)
    return tuple(
        there.get(case.id, case) if case.outcome is Outcome.NOT_RUN and device_of(case.id) == "cuda" else case
        for case in own.cases
    )


def _marked(case: CaseResult) -> CaseResult:
    return case.model_copy(update={"evidence": Evidence.SIBLING, "duration_ms": None})


def _neither(case: CaseResult) -> CaseResult:
    """What the sibling's build declares is no fact of this image."""
    return CaseResult(id=case.id, outcome=Outcome.NOT_RUN, detail=f"not tested, and in its sibling: {case.detail}")

"""What is known of the torch inside an image without running it: from a record where there is one, else from row and facts. Pure.

A record counts whatever machine it was made on: which kernels a build holds does not depend on the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from packaging.version import InvalidVersion, Version

from validator import require
from validator.facts import Build, Confidence, Facts, NgcImage
from validator.model import Image, Record, Slim, VerdictClass, part

NO_CUDA = "none"
NGC = "nvcr.io/nvidia/pytorch"


class Basis(StrEnum):
    """Where the knowledge comes from: read inside the image by the probe, or said by tag, row and facts."""

    MEASURED = "measured"
    DECLARED = "declared"


@dataclass(frozen=True, kw_only=True)
class Known:
    """One image's torch. cuda: "12.4", NO_CUDA, or "" when not known; arch None when not known (why says why).

    perhaps: kernels that may be there, too. minimum: the compute capability from which its vendor supports it.
    required: the image's NVIDIA_REQUIRE_* (only a record knows them). trouble: what a test found wrong with the image itself.
    """

    image: str
    platform: str
    basis: Basis
    torch: str = ""
    cuda: str = ""
    arch: tuple[str, ...] | None = None
    perhaps: tuple[str, ...] = ()
    minimum: str = ""
    why: str = ""
    confidence: Confidence = Confidence.SEEN
    source: tuple[str, ...] = ()
    required: tuple[tuple[str, str], ...] = ()
    trouble: str = ""


def known(image: Image, records: Iterable[Record], facts: Facts) -> Known:
    """What is known of one image. records: those of this image, any order; the newest that tells something counts."""
    newest = sorted(records, key=lambda record: (record.started, record.key), reverse=True)
    for record in newest:
        found = _measured(image, record)
        if found is not None:
            return found
    trouble = next((r.verdict.cause for r in newest if r.verdict.cls in (VerdictClass.IMAGE, VerdictClass.BUILD)), "")
    declared = _declared(image, facts)
    return Known(**{**vars(declared), "trouble": trouble})


# --------------------------------------------------------------------------- measured


def _measured(image: Image, record: Record) -> Known | None:
    """None when the record does not say which kernels its torch has."""
    torch = part(record.facts, "torch")
    version, cuda, arch = torch.get("version"), torch.get("cuda"), torch.get("arch_list")
    if not isinstance(version, str) or not isinstance(arch, list):
        return None
    if not cuda:
        why = "its torch is built for ROCm" if torch.get("hip") else "its torch is built without CUDA"
        return _of_record(image, record, torch=version, cuda=NO_CUDA, arch=(), why=why)
    return _of_record(image, record, torch=version, cuda=str(cuda), arch=tuple(map(str, arch))) if arch else None


def _of_record(image: Image, record: Record, *, torch: str, cuda: str, arch: tuple[str, ...], why: str = "") -> Known:
    environment = {str(k): str(v) for k, v in part(record.facts, "environment").items()}
    return Known(
        image=image.id,
        platform=record.image.platform or image.run.platform,
        basis=Basis.MEASURED,
        torch=torch,
        cuda=cuda,
        arch=arch,
        why=why,
        confidence=Confidence.MEASURED,
        source=(f"record of {record.started[:10]}",),
        required=require.required(environment),
        trouble=record.verdict.cause if record.verdict.cls in (VerdictClass.IMAGE, VerdictClass.BUILD) else "",
    )


# --------------------------------------------------------------------------- declared


def _declared(image: Image, facts: Facts) -> Known:
    if isinstance(image.source, Slim):
        return _official(image, image.source.torch, _slim_channel(image.source), facts)
    repository, tag = _split(image.source.reference)
    if repository == NGC:
        return _monthly(image, next((one for one in facts.ngc.images if one.tag == tag), None), facts)
    torch = image.declares("torch")
    if not torch:
        return _unknown(image, "neither the tag nor the row says which torch is inside, and there is no record yet")
    return _official(image, torch, _origin(repository, torch, facts), facts)


def _slim_channel(source: Slim) -> str:
    """Which index a slim image's torch comes from: "" for one that we do not know."""
    if source.index == "pypi":
        return "index"
    if source.index == "cpu":
        return NO_CUDA
    return "pytorch" if re.fullmatch(r"cu\d+", source.index) else ""


def _origin(repository: str, torch: str, facts: Facts) -> str:
    return next(
        (
            origin.channel
            for origin in facts.torch.images
            if origin.repository == repository and _within(torch, origin.first, origin.last)
        ),
        "",
    )


def _official(image: Image, torch: str, channel: str, facts: Facts) -> Known:
    """An image with binaries of the PyTorch project, or (channel "") with binaries that its row describes as such."""
    cuda = image.declares("cuda")
    release = next((one for one in facts.torch.releases if one.version == torch.partition("+")[0]), None)
    if channel == "index" and release is not None:
        cuda = cuda if image.run.platform == "linux/amd64" else release.index_arm64_cuda or NO_CUDA
        cuda = cuda or release.index_cuda
    if channel == NO_CUDA or cuda in ("cpu", NO_CUDA) or torch.endswith("+cpu"):
        return _of_row(image, torch=torch, cuda=NO_CUDA, arch=(), why=f"torch {torch} is taken from a build without CUDA")
    if not cuda:
        return _unknown(image, f"the row says torch {torch}, but not which CUDA it is built for", torch=torch)
    builds = _builds(torch, cuda, image.run.platform, channel, facts)
    if not builds:
        what = f"the arch list of torch {torch} for CUDA {cuda} on {image.run.platform}"
        return _unknown(image, f"{what} is not among the facts", torch=torch, cuda=cuda)
    return _from_builds(image, torch, cuda, builds, facts, exact=bool(channel))


def _builds(torch: str, cuda: str, platform: str, channel: str, facts: Facts) -> tuple[Build, ...]:
    minor = ".".join(cuda.split(".")[:2])
    return tuple(
        build
        for build in facts.torch.builds
        if (build.cuda, build.platform) == (minor, platform)
        and channel in ("", build.channel)
        and _within(torch, build.first, build.last)
    )


def _within(torch: str, first: str, last: str) -> bool:
    """Whether a version's release (2.6.0 -> 2.6) lies in the range; a build of its own (2.14.0a0+b2c75dd) does in none."""
    try:
        version = Version(torch)
        low, high = Version(first), Version(last)
    except InvalidVersion:
        return False
    return not version.is_prerelease and low.release <= version.release[:2] <= high.release


def _from_builds(image: Image, torch: str, cuda: str, builds: tuple[Build, ...], facts: Facts, *, exact: bool) -> Known:
    """The kernels that all of `builds` hold, and as perhaps those that some do or may hold."""
    arch = tuple(kernel for kernel in builds[0].arch if all(kernel in build.arch for build in builds))
    rest = dict.fromkeys(kernel for build in builds for kernel in (*build.arch, *build.perhaps) if kernel not in arch)
    sure = all(build.confidence is not Confidence.INFERRED for build in builds)
    return _of_row(
        image,
        torch=torch,
        cuda=cuda,
        arch=arch,
        perhaps=tuple(rest),
        confidence=Confidence.SEEN if sure and exact else Confidence.INFERRED,
        source=tuple(dict.fromkeys(facts.torch.sources[key] for build in builds for key in build.source)),
    )


def _monthly(image: Image, one: NgcImage | None, facts: Facts) -> Known:
    """One of NVIDIA's monthly images: its torch is a build of its own, so the facts are about the image."""
    torch = image.declares("torch") or (one.torch if one else "")
    cuda = image.declares("cuda") or (one.cuda if one else "")
    if one is None:
        return _unknown(image, "nothing is known of this month's image", torch=torch, cuda=cuda)
    arch = one.arch.get(image.run.platform)
    return _of_row(
        image,
        torch=torch,
        cuda=cuda,
        arch=arch,
        minimum=one.minimum,
        why="" if arch else "the arch list of this month's torch is not known",
        confidence=one.sure("arch") if arch else Confidence.INFERRED,
        source=tuple(facts.ngc.sources[key] for key in one.source),
    )


def _of_row(image: Image, **more: Any) -> Known:
    return Known(image=image.id, platform=image.run.platform, basis=Basis.DECLARED, **more)


def _unknown(image: Image, why: str, torch: str = "", cuda: str = "") -> Known:
    return _of_row(image, torch=torch, cuda=cuda or image.declares("cuda"), why=why)


def _split(reference: str) -> tuple[str, str]:
    """Repository, without the registry that is docker's own, and tag of a reference."""
    name, colon, tag = reference.partition("@")[0].rpartition(":")
    if not colon or "/" in tag:
        name, tag = reference.partition("@")[0], "latest"
    return name.removeprefix("docker.io/"), tag

"""What a Python package index says of torch and CUDA -> facts, and how they differ from those we have. Pure: texts in, data out.

Only what an index can tell: releases, Pythons, sizes, the CUDA that a wheel's requirements name. Kernels, drivers and GPUs it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from validator.facts.schema import Facts, Release

# Requirements whose version tells the CUDA of a wheel, the surest first. Before 1.13 wheels held CUDA inside and require nothing.
_TELLING = (
    "cuda-toolkit",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime-cu11",
    "nvidia-cuda-nvrtc-cu11",
)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One Linux wheel of an index's listing. python: "3.12", "3.13t"; size in bytes (None: the index does not say)."""

    name: str
    version: Version
    python: str
    machine: str
    size: int | None
    uploaded: str
    requires_python: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A release as the index shows it. cuda, arm64_cuda None: no requirement tells; sizes in MB, least and most."""

    version: str
    released: str
    requires_python: str
    pythons: tuple[str, ...]
    wheel_mb: tuple[int, int] | None
    arm64_wheel_mb: tuple[int, int] | None
    cuda: str | None
    arm64_cuda: str | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field that the index tells otherwise than our facts."""

    version: str
    field: str
    facts: Any
    index: Any

    def __str__(self) -> str:
        return f"torch {self.version}: {self.field} is {self.facts!r} in the facts, {self.index!r} on the index"


def wheels(listing: Mapping[str, Any]) -> tuple[Wheel, ...]:
    """The Linux wheels of finished releases in a listing (JSON of the simple repository API). Files that are yanked are left out."""
    found = (_wheel(file) for file in listing.get("files", ()) if not file.get("yanked"))
    return tuple(wheel for wheel in found if wheel is not None)


def _wheel(file: Mapping[str, Any]) -> Wheel | None:
    name = str(file.get("filename", ""))
    try:
        _, version, _, tags = parse_wheel_filename(name)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    tag = min(tags, key=str)
    machine = next((m for m in ("x86_64", "aarch64") if tag.platform.endswith(m) and "linux" in tag.platform), "")
    python = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
    if not machine or not python or version.is_prerelease:
        return None
    size = file.get("size")
    return Wheel(
        name=name,
        version=version,
        python=f"{python[1]}.{python[2]}{'t' if tag.abi.endswith('t') else ''}",
        machine=machine,
        size=size if isinstance(size, int) else None,
        uploaded=str(file.get("upload-time") or "")[:10],
        requires_python=str(file.get("requires-python") or ""),
        url=str(file.get("url", "")),
    )


def cuda_of(metadata: str, machine: str) -> str | None:
    """The CUDA ("12.4") that a wheel's METADATA requires on Linux on that machine; None where it does not say."""
    host = {"platform_machine": machine, "platform_system": "Linux", "sys_platform": "linux", "extra": ""}
    versions: dict[str, str] = {}
    for line in metadata.split("\n\n", 1)[0].splitlines():
        if line.startswith("Requires-Dist:"):
            try:
                requirement = Requirement(line.partition(":")[2].strip())
            except InvalidRequirement:
                continue
            pinned = re.search(r"==\s*(\d+\.\d+)", str(requirement.specifier))
            if pinned and (requirement.marker is None or requirement.marker.evaluate(host)):
                versions[requirement.name.lower()] = pinned[1]
    return next((versions[name] for name in _TELLING if name in versions), None)


def derive(version: str, of_release: Sequence[Wheel], cuda: str | None, arm64_cuda: str | None = None) -> Derived:
    """One release from its wheels; cuda and arm64_cuda as `cuda_of` read them in one of each machine."""
    amd64 = [wheel for wheel in of_release if wheel.machine == "x86_64"]
    return Derived(
        version=version,
        released=min((wheel.uploaded for wheel in of_release if wheel.uploaded), default=""),
        requires_python=next((wheel.requires_python for wheel in of_release if wheel.requires_python), ""),
        pythons=tuple(sorted({wheel.python for wheel in amd64}, key=_python_order)),
        wheel_mb=_sizes(amd64),
        arm64_wheel_mb=_sizes([wheel for wheel in of_release if wheel.machine == "aarch64"]),
        cuda=cuda,
        arm64_cuda=arm64_cuda,
    )


def _python_order(python: str) -> tuple[int, bool]:
    return int(python.rstrip("t").partition(".")[2]), python.endswith("t")


def _sizes(of_machine: Iterable[Wheel]) -> tuple[int, int] | None:
    sizes = [round(wheel.size / 1e6) for wheel in of_machine if wheel.size]
    return (min(sizes), max(sizes)) if sizes else None


def differences(derived: Iterable[Derived], facts: Facts) -> Iterator[Difference]:
    """Field by field; what the index does not tell is no difference. Releases older than our oldest are not asked for."""
    ours = {release.version: release for release in facts.torch.releases}
    seen = set()
    for one in derived:
        seen.add(one.version)
        release = ours.get(one.version)
        if release is None:
            yield Difference(version=one.version, field="release", facts=None, index=one.released)
            continue
        for field, had, has in _pairs(release, one):
            if has and had != has:
                yield Difference(version=one.version, field=field, facts=had, index=has)
    for version in ours.keys() - seen:
        yield Difference(version=version, field="release", facts=ours[version].released, index=None)


def _pairs(release: Release, one: Derived) -> Iterator[tuple[str, Any, Any]]:
    yield "released", release.released, one.released
    yield "requires_python", release.requires_python, one.requires_python
    yield "pythons", release.pythons, one.pythons
    yield "wheel_mb", release.wheel_mb, one.wheel_mb
    yield "index_cuda", release.index_cuda, one.cuda
    yield "index_arm64_cuda", release.index_arm64_cuda, one.arm64_cuda
    if one.arm64_wheel_mb is not None:
        low, high = one.arm64_wheel_mb
        near = release.arm64_wheel_mb is not None and low <= release.arm64_wheel_mb <= high
        yield "arm64_wheel_mb", release.arm64_wheel_mb, None if near else one.arm64_wheel_mb


def new_toolkits(listing: Mapping[str, Any], facts: Facts) -> tuple[str, ...]:
    """CUDA versions ("13.6") of the toolkit's metapackage that our facts do not have."""
    known = {toolkit.cuda for toolkit in facts.cuda.toolkits}
    found = set()
    for file in listing.get("files", ()):
        try:
            version = parse_wheel_filename(str(file.get("filename", "")))[1]
        except (InvalidWheelFilename, InvalidVersion):
            continue
        found.add(f"{version.major}.{version.minor}")
    oldest = min((Version(cuda) for cuda in known), default=Version("0"))
    return tuple(sorted((cuda for cuda in found - known if Version(cuda) > oldest), key=Version))

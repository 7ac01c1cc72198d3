"""The shape of the facts files. Every entry names its sources and how sure it is; "" and () stand for what nobody saw.

Versions are strings ("12.10" is not 12.1); compute capabilities are written "8.9", kernels as torch writes them: sm_90 is
machine code, compute_90 is PTX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from pydantic import ConfigDict


class Confidence(StrEnum):
    """MEASURED: read by this project where it is true. SEEN: read in the source named. INFERRED: follows from it."""

    MEASURED = "measured"
    SEEN = "seen"
    INFERRED = "inferred"


class Forward(StrEnum):
    """Whether GPUs of a kind can use the forward compatibility package; LISTED: only parts on a list of NVIDIA's."""

    YES = "yes"
    NO = "no"
    LISTED = "listed"


JETSON = "jetson"  # the kind of GPU whose rules differ: a board with a system of its own


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One fact. source: keys into the file's sources, at least one. inferred: fields that are inferred in a seen entry."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=False)

    source: tuple[str, ...]
    confidence: Confidence
    inferred: tuple[str, ...] = ()
    note: str = ""

    def sure(self, name: str) -> Confidence:
        """How sure the field `name` is."""
        return Confidence.INFERRED if name in self.inferred else self.confidence


# --------------------------------------------------------------------------- gpus.json


@dataclass(frozen=True, kw_only=True)
class Kind(Entry):
    """A class of GPUs: datacenter, workstation, consumer, soc, jetson. brands: what NVML may call them (NVIDIA_REQUIRE_*)."""

    kind: str
    forward: Forward
    brands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DriverEnd(Entry):
    """The last driver branch ("580") for GPUs of these architectures."""

    architectures: tuple[str, ...]
    last_branch: str


@dataclass(frozen=True, kw_only=True)
class Gpu(Entry):
    """A GPU. host: the platform of every machine that has it, "" where it can be in any. brands: if not those of its kind."""

    name: str
    capability: str
    architecture: str
    kind: str
    aliases: tuple[str, ...] = ()
    host: str = ""
    brands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """gpus.json."""

    schema: str
    as_of: str
    sources: Mapping[str, str]
    kinds: tuple[Kind, ...]
    driver_ends: tuple[DriverEnd, ...]
    gpus: tuple[Gpu, ...]


# --------------------------------------------------------------------------- cuda.json


@dataclass(frozen=True, kw_only=True)
class Rule(Entry):
    """A rule of compatibility in one sentence."""

    id: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class MinorVersion(Entry):
    """The first driver (Linux) that runs machine code of any minor of this CUDA major."""

    cuda: str
    driver: str


@dataclass(frozen=True, kw_only=True)
class Branch(Entry):
    """The highest CUDA that drivers of a branch ("550") support in full."""

    branch: str
    cuda: str


@dataclass(frozen=True, kw_only=True)
class Update:
    """One update of a toolkit ("12.4.1") and the first driver (Linux) that has all it can ask for."""

    version: str
    driver: str


@dataclass(frozen=True, kw_only=True)
class Toolkit(Entry):
    """A CUDA toolkit ("12.4"). branch: its driver branch where no exact driver is known. targets: what its compiler can build."""

    cuda: str
    updates: tuple[Update, ...] = ()
    branch: str = ""
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """cuda.json."""

    schema: str
    as_of: str
    sources: Mapping[str, str]
    rules: tuple[Rule, ...]
    minor_version: tuple[MinorVersion, ...]
    branches: tuple[Branch, ...]
    toolkits: tuple[Toolkit, ...]


# --------------------------------------------------------------------------- torch.json


@dataclass(frozen=True, kw_only=True)
class CudaBuild:
    """A release's build for one CUDA, and what the project calls it (stable, experimental, legacy, conda, found, ...)."""

    cuda: str
    status: str


@dataclass(frozen=True, kw_only=True)
class Release(Entry):
    """A torch release. index_cuda: CUDA of the package index's Linux wheels ("" = CPU only); sizes in MB, least and most."""

    version: str
    released: str
    requires_python: str
    pythons: tuple[str, ...]
    index_cuda: str
    wheel_mb: tuple[int, int]
    builds: tuple[CudaBuild, ...]
    index_arm64_cuda: str = ""
    arm64_wheel_mb: int | None = None


@dataclass(frozen=True, kw_only=True)
class Build(Entry):
    """What official binaries of releases `first` to `last` ("2.6") for one CUDA hold: kernels as torch lists them.

    channel: index (the Python package index), pytorch (the project's own index), conda. perhaps: what may be there, too.
    """

    channel: str
    first: str
    last: str
    cuda: str
    platform: str
    arch: tuple[str, ...]
    perhaps: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Origin(Entry):
    """Which channel's binaries the images of a repository hold, for releases `first` to `last`."""

    repository: str
    first: str
    last: str
    channel: str


@dataclass(frozen=True, kw_only=True)
class Torch:
    """torch.json."""

    schema: str
    as_of: str
    sources: Mapping[str, str]
    images: tuple[Origin, ...]
    builds: tuple[Build, ...]
    releases: tuple[Release, ...]


# --------------------------------------------------------------------------- ngc.json


@dataclass(frozen=True, kw_only=True)
class NgcImage(Entry):
    """A monthly image of NVIDIA's. minimum: the compute capability from which NVIDIA supports it. arch: platform -> kernels."""

    tag: str
    torch: str = ""
    cuda: str = ""
    minimum: str = ""
    platforms: tuple[str, ...] = ()
    arch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Report(Entry):
    """What somebody saw of an image on a GPU: runs or fails. Only to hold the rules against; never shown as our result."""

    tag: str
    platform: str
    gpu: str
    result: str
    driver: str = ""


@dataclass(frozen=True, kw_only=True)
class Ngc:
    """ngc.json."""

    schema: str
    as_of: str
    sources: Mapping[str, str]
    reports: tuple[Report, ...]
    images: tuple[NgcImage, ...]


# --------------------------------------------------------------------------- all of them


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that is known without running anything."""

    gpus: Gpus
    cuda: Cuda
    torch: Torch
    ngc: Ngc

    @cached_property
    def _rules(self) -> dict[str, Rule]:
        return {rule.id: rule for rule in self.cuda.rules}

    def rule(self, ident: str) -> Rule:
        """The rule with this id; KeyError is a bug of ours."""
        return self._rules[ident]

    @cached_property
    def boards(self) -> frozenset[tuple[int, int]]:
        """The compute capabilities that Jetson boards have, and nothing else."""
        of_boards = {gpu.capability for gpu in self.gpus.gpus if gpu.kind == JETSON}
        pairs = (text.split(".") for text in of_boards - {gpu.capability for gpu in self.gpus.gpus if gpu.kind != JETSON})
        return frozenset((int(major), int(minor)) for major, minor in pairs)

    def kind(self, name: str) -> Kind | None:
        return next((kind for kind in self.gpus.kinds if kind.kind == name), None)

    def toolkit(self, cuda: str) -> Toolkit | None:
        """The toolkit of "12.4", "12.4.1" or "12.4.131"."""
        wanted = ".".join(cuda.split(".")[:2])
        return next((toolkit for toolkit in self.cuda.toolkits if toolkit.cuda == wanted), None)

"""Whether a driver can run what a CUDA toolkit built: full support, minor version compatibility, forward compatibility. Pure.

Linux drivers only. A driver may be given in short ("535"): what that leaves open is not decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from validator.facts import Facts, Forward
from validator.facts.names import Target
from validator.facts.schema import JETSON
from validator.require import compare


class Fit(StrEnum):
    """What a driver means for a build: it runs it, it needs help for it, it cannot, or that is not known."""

    RUNS = "runs"
    FORWARD = "forward"
    CANNOT = "cannot"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Fit, the clause that says why, and the id of the rule behind it."""

    fit: Fit
    words: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class Floors:
    """First drivers (Linux) for a CUDA: full = all that its newest known update asks for; minor = machine code; jit = its PTX.

    "" where it is not known.
    """

    full: str = ""
    minor: str = ""
    jit: str = ""


def floors(cuda: str, facts: Facts) -> Floors:
    """cuda: "12.4" or a full version like "12.4.1", of which the update counts where it is known."""
    toolkit = facts.toolkit(cuda)
    if toolkit is None:
        return Floors()
    updates = {update.version: update.driver for update in toolkit.updates}
    drivers = list(updates.values())
    full = updates.get(".".join(cuda.split(".")[:3])) or (drivers[-1] if drivers else "")
    minor = next((rule.driver for rule in facts.cuda.minor_version if rule.cuda == toolkit.cuda.split(".")[0]), "")
    jit = drivers[0] if drivers else ""
    if not minor or (jit and compare(jit, minor) == -1):  # before CUDA 11, and 11.0 itself
        minor = jit
    return Floors(full=full, minor=minor, jit=jit)


def needed(cuda: str, gpu: Target, facts: Facts, *, jit: bool) -> str:
    """The oldest driver that is known to do: for machine code of that CUDA or for its PTX, and for the GPU. "" if not known."""
    if gpu.kind == JETSON:
        return ""
    found = floors(cuda, facts)
    own, first = found.jit if jit else found.minor, _first_driver(gpu, facts)
    return first if own and first and compare(own, first) == -1 else own


def judge(driver: str, cuda: str, gpu: Target, facts: Facts, *, jit: bool) -> Judgement:
    """driver: as nvidia-smi gives it, or the front of it. jit: whether the driver has to compile PTX of that CUDA."""
    if gpu.kind == JETSON:
        return Judgement(
            fit=Fit.UNKNOWN,
            words=f"drivers of Jetson boards come with JetPack, so {driver} cannot be compared",
            rule="jetson-driver",
        )
    end = _past_its_end(driver, gpu, facts)
    if end is not None:
        return end
    judgement = _against_toolkit(driver, cuda, gpu, facts, jit=jit)
    start = _before_its_start(driver, gpu, facts) if judgement.fit in (Fit.RUNS, Fit.FORWARD) else None
    return start or judgement


def _against_toolkit(driver: str, cuda: str, gpu: Target, facts: Facts, *, jit: bool) -> Judgement:
    if not cuda:
        return Judgement(fit=Fit.UNKNOWN, words="for which CUDA its torch is built is not known", rule="not-known")
    found = floors(cuda, facts)
    if not found.minor:
        return Judgement(fit=Fit.UNKNOWN, words=f"which driver CUDA {cuda} needs is not known", rule="not-known")
    order = compare(driver, found.full) if found.full else None
    if order is not None and order >= 0:
        words = f"driver {driver} supports CUDA {cuda} in full (from {found.full} on)"
        return Judgement(fit=Fit.RUNS, words=words, rule="driver")
    return _short_of_full(driver, cuda, gpu, facts, found, jit=jit)


def _short_of_full(driver: str, cuda: str, gpu: Target, facts: Facts, found: Floors, *, jit: bool) -> Judgement:
    need = found.jit if jit else found.minor
    if not need:
        return Judgement(fit=Fit.UNKNOWN, words=f"which driver compiles PTX of CUDA {cuda} is not known", rule="not-known")
    order = compare(driver, need)
    if order is None:
        return Judgement(fit=Fit.UNKNOWN, words=f"driver {driver} is too short to compare with {need}", rule="not-known")
    if order >= 0 and jit:
        return Judgement(fit=Fit.RUNS, words=f"driver {driver} is new enough to compile it (from {need} on)", rule="driver")
    if order >= 0:
        words = f"driver {driver} runs CUDA {cuda} by minor version compatibility (from {need} on)"
        return Judgement(fit=Fit.RUNS, words=words, rule="minor-version")
    what = f"compiling PTX of CUDA {cuda}" if jit else f"CUDA {cuda}"
    return _forward(f"driver {driver} is too old for {what} (from {need} on)", cuda, gpu, facts, jit=jit)


def _forward(old: str, cuda: str, gpu: Target, facts: Facts, *, jit: bool) -> Judgement:
    kind = facts.kind(gpu.kind)
    package = "cuda-compat-" + "-".join(cuda.split(".")[:2])
    if kind is None:
        return Judgement(
            fit=Fit.UNKNOWN, words=f"{old}, and whether this GPU allows forward compatibility is not known", rule="forward"
        )
    if kind.forward is Forward.YES:
        return Judgement(
            fit=Fit.FORWARD,
            words=f"{old}, which the package {package} in the image may bridge on this class of GPU",
            rule="forward",
        )
    if kind.forward is Forward.LISTED:
        words = f"{old}, and forward compatibility is for selected workstation cards only; whether this is one is not known"
        return Judgement(fit=Fit.UNKNOWN, words=words, rule="forward")
    rule = "minor-version-ptx" if jit else "driver-too-old"
    return Judgement(fit=Fit.CANNOT, words=f"{old}, and forward compatibility is not for {kind.kind} GPUs", rule=rule)


def _past_its_end(driver: str, gpu: Target, facts: Facts) -> Judgement | None:
    """Newer drivers leave old architectures behind."""
    for end in facts.gpus.driver_ends:
        if gpu.architecture in end.architectures and int(driver.split(".")[0]) > int(end.last_branch) and not gpu.driven:
            words = f"driver {driver} does not drive {gpu.architecture} GPUs: branch {end.last_branch} is their last"
            return Judgement(fit=Fit.CANNOT, words=words, rule="driver-end")
    return None


def _before_its_start(driver: str, gpu: Target, facts: Facts) -> Judgement | None:
    """Older drivers need not know a new GPU."""
    first = _first_driver(gpu, facts)
    if not first or gpu.driven or compare(driver, first) != -1:
        return None
    words = f"driver {driver} is older than the first that is known to drive compute capability {gpu.cc} ({first})"
    return Judgement(fit=Fit.UNKNOWN, words=words, rule="first-toolkit")


def _first_driver(gpu: Target, facts: Facts) -> str:
    """The driver of the first toolkit that could build for the GPU: the oldest sure sign. "" where that is before our facts."""
    older = None
    for toolkit in reversed(facts.cuda.toolkits):  # oldest first
        if gpu.cc in toolkit.targets:
            return toolkit.updates[0].driver if older and toolkit.updates else ""
        older = toolkit if toolkit.targets else older
    return ""

"""What is to be expected of an image on a GPU with a driver, by rules and facts. Pure; nothing is run, and a forecast is no result.

Each forecast says which rule decided, in one sentence, and what that rule and the arch list rest on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from validator import drivers, require
from validator.builds import NO_CUDA, Basis, Known
from validator.drivers import Fit, Judgement
from validator.facts import Confidence, Facts
from validator.facts.names import Target
from validator.kernels import Kernel, best

# The probe cuts values of an image's environment at this length, so the end of a longer one was not seen.
CUT = 1000
_SURENESS = (Confidence.MEASURED, Confidence.SEEN, Confidence.INFERRED)


class Prospect(StrEnum):
    """What is to be expected. RUNS: torch has machine code for the GPU and the driver runs it."""

    RUNS = "runs"
    JIT = "runs by PTX JIT"
    FORWARD = "needs forward compatibility"
    CANNOT = "cannot run"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """reason: one sentence. rule: its id; sources: what rule and arch list rest on. confidence: that of the weakest part.

    driver: the oldest driver (Linux) that will do, "" where it is not known or nothing would help. notes: what else to know.
    """

    image: str
    gpu: str
    prospect: Prospect
    reason: str
    rule: str
    sources: tuple[str, ...]
    basis: Basis
    confidence: Confidence
    driver: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Match:
    """What the arch list says of a GPU: a prospect (RUNS, JIT, CANNOT, UNKNOWN), the clause why, the rule."""

    prospect: Prospect
    words: str
    rule: str
    confidence: Confidence


def forecast(image: Known, gpu: Target, driver: str, facts: Facts) -> Forecast:
    """driver: "535.104.05", its front, or "" for one that is new enough: the forecast then says which that is."""
    match = _match(image, gpu, facts)
    judgement = _judge(image, gpu, driver, match, facts)
    prospect, reason, rule = _both(match, judgement)
    lasting = prospect is not Prospect.CANNOT or (judgement is not None and judgement.rule in _CURABLE)
    jit = match.prospect is Prospect.JIT
    weakest = max((match.confidence, gpu.confidence, facts.rule(rule).confidence), key=_SURENESS.index)
    return Forecast(
        image=image.image,
        gpu=gpu.name,
        prospect=prospect,
        reason=reason[:1].upper() + reason[1:] + ".",
        rule=rule,
        sources=_sources(rule, image, facts),
        basis=image.basis,
        confidence=weakest,
        driver=drivers.needed(image.cuda, gpu, facts, jit=jit) if lasting and image.cuda not in ("", NO_CUDA) else "",
        notes=_notes(image, gpu, driver, jit=jit, facts=facts),
    )


# A newer driver helps against these.
_CURABLE = ("driver-too-old", "minor-version-ptx")


def _judge(image: Known, gpu: Target, driver: str, match: _Match, facts: Facts) -> Judgement | None:
    if not driver or match.prospect is Prospect.CANNOT:
        return None
    return drivers.judge(driver, image.cuda, gpu, facts, jit=match.prospect is Prospect.JIT)


def _both(match: _Match, judgement: Judgement | None) -> tuple[Prospect, str, str]:
    """Arch list and driver together: what cannot be comes first, then what is not known, then what helps."""
    if judgement is None:
        return match.prospect, match.words, match.rule
    if judgement.fit is Fit.CANNOT:
        return Prospect.CANNOT, judgement.words, judgement.rule
    if match.prospect is Prospect.UNKNOWN:
        return match.prospect, match.words, match.rule
    if judgement.fit is Fit.UNKNOWN:
        return Prospect.UNKNOWN, judgement.words, judgement.rule
    prospect = Prospect.FORWARD if judgement.fit is Fit.FORWARD else match.prospect
    rule = match.rule if judgement.fit is Fit.RUNS and judgement.rule == "driver" else judgement.rule
    return prospect, f"{match.words}, and {judgement.words}" if judgement.fit is Fit.RUNS else judgement.words, rule


# --------------------------------------------------------------------------- kernels against the GPU


def _match(image: Known, gpu: Target, facts: Facts) -> _Match:
    def found(prospect: Prospect, words: str, rule: str, confidence: Confidence = image.confidence) -> _Match:
        return _Match(prospect=prospect, words=words, rule=rule, confidence=confidence)

    if image.cuda == NO_CUDA:
        return found(Prospect.CANNOT, image.why, "no-cuda")
    if gpu.host and image.platform and gpu.host != image.platform:
        words = f"the image is for {image.platform}, and hosts with this GPU are {gpu.host}"
        return found(Prospect.CANNOT, words, "platform", Confidence.SEEN)
    if image.arch is None:
        return _without_list(image, gpu, facts)
    boards = facts.boards
    kernel = best(image.arch, gpu.capability, boards)
    if kernel is not None:
        return found(Prospect.JIT if kernel.ptx else Prospect.RUNS, _fits(kernel, gpu), kernel.rule)
    perhaps = best(image.perhaps, gpu.capability, boards)
    lists = f"torch has {_listed(image.arch)}"
    if perhaps is not None:
        words = f"{lists}, none of which fits compute capability {gpu.cc}; whether it has {perhaps.name}, too, is not known"
        return found(Prospect.UNKNOWN, words, "not-known")
    unsure = best((*image.arch, *image.perhaps), gpu.capability)
    if unsure is not None:
        words = f"NVIDIA does not promise that {unsure.name} runs on compute capability {gpu.cc}: one of the two is a Jetson board's"
        return found(Prospect.UNKNOWN, words, "jetson-cubin")
    words = f"torch has no kernels for compute capability {gpu.cc}: it has {_listed(image.arch)}"
    return found(Prospect.CANNOT, words, "no-kernel")


def _fits(kernel: Kernel, gpu: Target) -> str:
    if kernel.ptx:
        return f"the driver compiles torch's PTX {kernel.name} for compute capability {gpu.cc}"
    return f"torch's {kernel.name} runs on compute capability {gpu.cc}"


def _listed(arch: tuple[str, ...]) -> str:
    """ "sm_50 to sm_90 and no PTX", as short as it can be said."""
    code = [name for name in arch if name.startswith("sm_")]
    ptx = [name for name in arch if name.startswith("compute_")]
    span = f"{code[0]} to {code[-1]}" if len(code) > 2 else " and ".join(code) or "no machine code"
    return f"{span} and {'PTX ' + ', '.join(ptx) if ptx else 'no PTX'}"


def _without_list(image: Known, gpu: Target, facts: Facts) -> _Match:
    """What vendor and compiler say where the arch list is not known."""

    def found(prospect: Prospect, words: str, rule: str) -> _Match:
        return _Match(prospect=prospect, words=words, rule=rule, confidence=Confidence.INFERRED)

    toolkit = facts.toolkit(image.cuda) if image.cuda else None
    targets = [tuple(map(int, t.split("."))) for t in toolkit.targets if t[-1].isdigit()] if toolkit else []
    if targets and gpu.capability < min(targets):
        words = f"the compiler of CUDA {image.cuda} has no target for compute capability {gpu.cc} or older"
        return found(Prospect.CANNOT, words, "compiler")
    if not image.minimum:
        return found(Prospect.UNKNOWN, image.why, "not-known")
    minimum = tuple(map(int, image.minimum.split(".")))
    if gpu.capability < minimum:
        words = f"NVIDIA supports this image from compute capability {image.minimum} on, and {image.why}"
        return found(Prospect.UNKNOWN, words, "not-known")
    if gpu.capability in facts.boards:
        return found(Prospect.UNKNOWN, f"{image.why}, and NVIDIA has images of its own for Jetson boards", "not-known")
    if gpu.capability in targets:
        words = f"NVIDIA supports this image from compute capability {image.minimum} on and its CUDA {image.cuda} builds for {gpu.cc}"
        return found(Prospect.RUNS, words, "vendor-support")
    why = f"CUDA {image.cuda} has no target for {gpu.cc}" if targets else "its CUDA is not known"
    return found(Prospect.UNKNOWN, f"{image.why}, and {why}", "not-known")


# --------------------------------------------------------------------------- what else to know


def _sources(rule: str, image: Known, facts: Facts) -> tuple[str, ...]:
    texts = [facts.cuda.sources[key] for key in facts.rule(rule).source]
    return tuple(dict.fromkeys((*texts, *image.source)))


def _notes(image: Known, gpu: Target, driver: str, *, jit: bool, facts: Facts) -> tuple[str, ...]:
    notes = []
    if image.trouble:
        notes.append(f"a test found the image itself in trouble: {image.trouble}")
    if jit:
        notes.append("the arch list is torch's own; cuSPARSE, cuBLAS and cuDNN have theirs, which are not known here")
    if driver:
        notes += [note for name, value in image.required if (note := _refusal(name, value, gpu, driver, facts))]
    return tuple(notes)


def _refusal(name: str, value: str, gpu: Target, driver: str, facts: Facts) -> str:
    """What to say of one NVIDIA_REQUIRE_* variable; "" when it holds."""
    try:
        requirement = require.parse(value)
    except ValueError as error:
        return f"{name} cannot be read: {error}"
    cuda = next((branch.cuda for branch in facts.cuda.branches if branch.branch == driver.split(".")[0]), "")
    host = {"cuda": cuda, "driver": driver, "arch": gpu.cc}
    verdicts = {require.holds(requirement, host | {"brand": brand}) for brand in gpu.brands or ("",)}
    if verdicts == {True}:
        return ""
    runtime = "the legacy NVIDIA runtime; Container Toolkit 1.18 and later do not look at it by default"
    if verdicts == {False} and len(value) < CUT:
        return f"{name} does not hold here, so the container is not started by {runtime}"
    return f"whether {name} holds here is not known; if not, the container is not started by {runtime}"

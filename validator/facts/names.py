"""What a user calls a GPU -> a `Target`: "RTX 4090", "NVIDIA A100-SXM4-80GB", "sm_89" or "8.9"."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from validator.facts.schema import Confidence, Facts, Gpu

_CAPABILITY = re.compile(r"(?:(?:sm|compute)_?(\d{1,2})(\d)[af]?|(\d{1,2})\.(\d))", re.IGNORECASE)
# What stands before and after a model's name and says nothing of its compute capability: maker, brand, memory, form, edition.
# A size of memory must be a word of its own: "A100 40GB" is no A10 with 040 GB.
_BRANDS = re.compile(r"^(?:nvidia|geforce|tesla|quadro)+")
_MEMORY = re.compile(r"[\W_]+\d{1,3}\s?gi?b(?=\W|$)", re.IGNORECASE)
_FORMS = re.compile(
    r"(?:sxm\d?|pcie|nvl|hbm\d?e?|laptop|gpu|mobile|maxq|generation|sff|(?:server|workstation)edition|superchip)$"
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A GPU to forecast for. kind, architecture, host: "" where the name does not tell. driven: its driver is known to drive it."""

    name: str
    capability: tuple[int, int]
    kind: str = ""
    architecture: str = ""
    host: str = ""
    brands: tuple[str, ...] = ()
    confidence: Confidence = Confidence.SEEN
    driven: bool = False

    @property
    def cc(self) -> str:
        """The compute capability as NVIDIA writes it."""
        return f"{self.capability[0]}.{self.capability[1]}"


class UnknownGpuError(ValueError):
    """No GPU is called that. near: the most similar names."""

    def __init__(self, text: str, near: tuple[str, ...]) -> None:
        super().__init__(f"no GPU is known as {text!r}")
        self.near = near


def target(text: str, facts: Facts) -> Target:
    """The GPU that `text` names. Raises UnknownGpuError."""
    match = _CAPABILITY.fullmatch(text.strip())
    if match:
        major, minor = (match[1], match[2]) if match[1] else (match[3], match[4])
        return _bare(f"compute capability {int(major)}.{minor}", (int(major), int(minor)), facts)
    gpu = _find(text, facts)
    if gpu is None:
        raise UnknownGpuError(text, _near(text, facts))
    return _known(gpu, facts)


def seen(name: str, capability: str, facts: Facts) -> Target:
    """A GPU that a driver reported with its name and compute capability ("" from old drivers): these count, not the facts.

    Raises UnknownGpuError where neither tells what it is.
    """
    match = _CAPABILITY.fullmatch(capability)
    gpu = _find(name, facts)
    if match is None or not match[3]:
        found = target(name, facts)
    else:
        found = _known(gpu, facts) if gpu else _bare(name, (0, 0), facts)
        found = _with_capability(found, (int(match[3]), int(match[4])), facts)
    consumer = found.kind or ("consumer" if "geforce" in name.lower() else "")
    return Target(**{**vars(found), "name": name.removeprefix("NVIDIA "), "kind": consumer, "driven": True})


def _known(gpu: Gpu, facts: Facts) -> Target:
    kind = facts.kind(gpu.kind)
    major, minor = gpu.capability.split(".")
    return Target(
        name=gpu.name,
        capability=(int(major), int(minor)),
        kind=gpu.kind,
        architecture=gpu.architecture,
        host=gpu.host,
        brands=gpu.brands or (kind.brands if kind else ()),
        confidence=gpu.sure("capability"),
    )


def _bare(name: str, capability: tuple[int, int], facts: Facts) -> Target:
    return _with_capability(Target(name=name, capability=capability), capability, facts)


def _with_capability(found: Target, capability: tuple[int, int], facts: Facts) -> Target:
    written = f"{capability[0]}.{capability[1]}"
    model = next((gpu for gpu in facts.gpus.gpus if gpu.capability == written), None)
    told = {"capability": capability, "architecture": model.architecture if model else ""}
    if model and capability in facts.boards:  # nothing else has it
        told |= {"kind": model.kind, "host": model.host}
    return Target(**{**vars(found), **told})


def _find(text: str, facts: Facts) -> Gpu | None:
    """By name or alias; if that fails, without what memory size, form factor and edition add at the end."""
    names = _index(facts)
    wanted = _plain(_MEMORY.sub("", text))
    while wanted:
        for key in (wanted, _BRANDS.sub("", wanted)):
            if key in names:
                return names[key]
        shorter = _FORMS.sub("", wanted)
        if shorter == wanted:
            return None
        wanted = shorter
    return None


def _index(facts: Facts) -> dict[str, Gpu]:
    """Plain name -> GPU; full names win over names without their brand."""
    full = {_plain(name): gpu for gpu in facts.gpus.gpus for name in (gpu.name, *gpu.aliases)}
    short = {_BRANDS.sub("", key): gpu for key, gpu in full.items()}
    return short | full


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _near(text: str, facts: Facts) -> tuple[str, ...]:
    names = _index(facts)
    wanted = _BRANDS.sub("", _plain(text))
    digits = re.sub(r"\D", "", wanted)
    close = difflib.get_close_matches(wanted, names, n=6, cutoff=0.5)
    # A number that is right says more than letters that are alike: "RTX4900" is closer to no 49 than "A4090" to 4090.
    close.sort(key=lambda key: re.sub(r"\D", "", key) != digits)
    return tuple(dict.fromkeys(names[key].name for key in close))[:3]

"""A record -> what its image can do beside sparse operations: columns, no failures. Pure.

Each says how it is known: `executed` (it was done in the image), `measured` (what it takes is there, or is not), or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from validator.model import Outcome, Record, part


class Known(StrEnum):
    """How a capability is known. UNKNOWN: nothing was seen that tells."""

    EXECUTED = "executed"
    MEASURED = "measured"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Capability:
    """able None: not known. detail: one line that says what was seen."""

    able: bool | None
    known: Known
    detail: str = ""


NAMES = {
    "compile": "torch.compile through Inductor",
    "cusparselt": "cuSPARSELt (2:4 sparsity)",
    "cutlass": "CUTLASS kernels for 2:4 sparsity",
    "mkl": "Intel MKL",
    "fp16": "float16, by layout",
    "bf16": "bfloat16, by layout",
    "extensions": "builds CUDA extensions",
    "any-user": "runs as any user",
    "read-only": "runs on a read-only root",
    "offline": "runs without a network",
}
LAYOUTS = ("coo", "csr", "csc", "bsr", "bsc")
UNKNOWN = Capability(able=None, known=Known.UNKNOWN)


def capabilities(record: Record) -> dict[str, Capability]:
    """Every capability of NAMES, in that order."""
    if part(record.facts, "torch_import").get("state") != "ok":
        return dict.fromkeys(NAMES, UNKNOWN)
    judged: Mapping[str, Callable[[], Capability]] = {
        "compile": lambda: _compile(record),
        "cusparselt": lambda: _cusparselt(record),
        "cutlass": lambda: _cutlass(record),
        "mkl": lambda: _mkl(record),
        "fp16": lambda: _dtype(record, "float16"),
        "bf16": lambda: _dtype(record, "bfloat16"),
        "extensions": lambda: _extensions(record),
        "any-user": lambda: _restricted(record, "any_user"),
        "read-only": lambda: _restricted(record, "read_only"),
        "offline": lambda: Capability(able=True, known=Known.EXECUTED, detail="the container had no network"),
    }
    return {name: judged[name]() for name in NAMES}


def _tools(record: Record) -> Mapping[str, object] | None:
    """The compilers in the image; None where the probe was too old to look."""
    return part(record.facts, "tools") if isinstance(record.facts.get("tools"), Mapping) else None


def _compile(record: Record) -> Capability:
    """Executed where the full tier tried it, on the GPU if there is one; else what it takes: compilers, and Triton for CUDA."""
    tried = part(record.facts, "compile_cuda") or part(record.facts, "compile_cpu")
    if tried.get("state"):
        return Capability(able=tried["state"] == "ok", known=Known.EXECUTED, detail=str(tried.get("detail") or ""))
    tools = _tools(record)
    if tools is None:
        return UNKNOWN
    torch = part(record.facts, "torch")
    lacks = [what for what in ("cc", "c++") if what not in tools]
    if torch.get("cuda") and not any("triton" in name for name in part(torch, "packages")):
        lacks.append("triton")
    return Capability(
        able=not lacks, known=Known.MEASURED, detail=f"lacks {', '.join(lacks)}" if lacks else "what it takes is there"
    )


def _cusparselt(record: Record) -> Capability:
    torch = part(record.facts, "torch")
    found = part(torch, "cusparselt")
    if torch.get("cuda") is None:
        return Capability(able=False, known=Known.MEASURED, detail="a build without CUDA")
    if not found:
        return Capability(able=False, known=Known.MEASURED, detail="this torch does not know it")
    said = f"version {found.get('version')}" if found.get("available") else "not part of this build"
    return Capability(able=bool(found.get("available")), known=Known.MEASURED, detail=said)


def _cutlass(record: Record) -> Capability:
    """From the cases of 2:4 through CUTLASS where a GPU ran them, else by the kernels that the build registers."""
    ran = [c for c in record.cases if re.match(r"semi-cutlass\.mm\..*\.cuda$", c.id) and c.outcome is not Outcome.NOT_RUN]
    if ran:
        passed = [case.id for case in ran if case.outcome is Outcome.PASS]
        return Capability(able=bool(passed), known=Known.EXECUTED, detail=f"{len(passed)} of {len(ran)} cases pass")
    torch = part(record.facts, "torch")
    kernels = part(torch, "semi_structured")
    if not kernels:
        return UNKNOWN
    able = bool(kernels.get("_sparse_semi_structured_linear") or kernels.get("_sparse_semi_structured_mm"))
    return Capability(able=able, known=Known.MEASURED, detail="kernels are registered" if able else "no kernel is registered")


def _mkl(record: Record) -> Capability:
    torch = part(record.facts, "torch")
    if torch.get("mkl") is None:
        return UNKNOWN
    version = re.search(r"Math Kernel Library Version ([\d.]+)", str(torch.get("config") or ""))
    return Capability(able=bool(torch.get("mkl")), known=Known.MEASURED, detail=f"version {version[1]}" if version else "")


def _dtype(record: Record, dtype: str) -> Capability:
    """The layouts whose product with a dense matrix passes in this dtype, on the GPU where one was there, else on the CPU."""
    for device in ("cuda", "cpu"):
        ran = {
            case.id.split(".")[0]: case.outcome
            for case in record.cases
            if case.id in {f"{layout}.mm.{dtype}.{device}" for layout in LAYOUTS} and case.outcome is not Outcome.NOT_RUN
        }
        if ran:
            passed = [layout for layout in LAYOUTS if ran.get(layout) is Outcome.PASS]
            return Capability(able=bool(passed), known=Known.EXECUTED, detail=f"{device}: {', '.join(passed) or 'no layout'}")
    return UNKNOWN


def _extensions(record: Record) -> Capability:
    tools = _tools(record)
    if tools is None:
        return UNKNOWN
    lacks = [what for what in ("c++", "nvcc") if what not in tools]
    return Capability(
        able=not lacks, known=Known.MEASURED, detail=f"lacks {', '.join(lacks)}" if lacks else "c++ and nvcc are there"
    )


def _restricted(record: Record, way: str) -> Capability:
    found = part(part(record.facts, "restricted"), way)
    if found.get("state") not in ("ok", "failed"):
        return UNKNOWN
    return Capability(able=found["state"] == "ok", known=Known.EXECUTED, detail=str(found.get("detail") or ""))

"""The claims that users repeat about sparse tensors in PyTorch images -> docs/claims.md, answered from the records.

Pure. A claim has parts; each part is a question that some cases answer. A version's answer is the share of those cases that pass
on the CPU, or what its CUDA build declares. What no record can answer is said to be open.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from validator.model import CaseResult, Declared, Outcome, Record


@dataclass(frozen=True, kw_only=True)
class Part:
    """A question: label, globs of the cases that answer it, and whether the claim says that they pass."""

    label: str
    cases: tuple[str, ...]
    passes: bool = True


@dataclass(frozen=True, kw_only=True)
class Claim:
    """number and words of the claim; parts: what is counted; answer: our conclusion, which the counts must bear out."""

    number: int
    claim: str
    answer: str
    parts: tuple[Part, ...] = field(default=())


CORE = ("coo.create.float32.cpu", "coo.coalesce.float32.dup.cpu", "coo.mm.float32.cpu", "coo.mm.float32.cpu.backward")
CLAIMS = (
    Claim(
        number=1,
        claim="COO stores only the coordinates and values of the non-zeros, so memory falls drastically.",
        answer="**Half true: it depends on the density.** A float32 element costs 4 bytes in a dense matrix and 4 + 2 x 8 = 20 bytes in COO, whose indices are always int64: below a density of 0.20 COO is the smaller one. CSR with int64 indices pays below about 0.33, with int32 below about 0.5. Memory is not time: `image-matrix probe --bench` measures both.",
    ),
    Claim(
        number=2,
        claim="CUDA support for sparse tensors came with 1.9 and grew step by step; torch.sparse.mm on the GPU is its key.",
        answer="**Half true.** 1.9 brought CSR; COO is older, and `torch.sparse.mm` of COO passes in every version here. What grew afterwards is CSR and the other compressed layouts, as the counts show.",
        parts=(
            Part(label="torch.sparse.mm, COO", cases=("coo.mm.float32.*", "coo.mm.float64.*")),
            Part(label="torch.sparse.mm, CSR", cases=("csr.mm.float32.*", "csr.mm.float64.*")),
            Part(label="the same, CSC", cases=("csc.mm.float32.*", "csc.mm.float64.*")),
            Part(label="the same, BSR", cases=("bsr.mm.float32.*", "bsr.mm.float64.*")),
        ),
    ),
    Claim(
        number=3,
        claim="An image qualifies when it holds an official CUDA build of PyTorch and the operations used have CUDA kernels.",
        answer="**Half true.** A registered kernel is needed, not sufficient: the column `CUDA build declares` counts cases whose kernels are registered. How often such a declaration holds is measured on the CPU, where cases can be run: see docs/probe.md.",
        parts=(Part(label="all cases", cases=("*",)),),
    ),
    Claim(
        number=4,
        claim="coalesce() must be called before the tensor moves to the device, or duplicate indices raise an error.",
        answer="**False on the CPU**: products, conversion to dense and sums of a COO tensor with repeated indices are right without it. It is needed before `indices()` and `values()`, and before a COO tensor is used as a mask. Moving to a GPU has not been run.",
        parts=(Part(label="COO with repeated indices", cases=("coo.*.dup.*", "coo-coo.*.dup.*")),),
    ),
    Claim(
        number=5,
        claim="Not every operation may mix devices.",
        answer="**Open**: needs a GPU.",
    ),
    Claim(
        number=6,
        claim="Supported: sparse x dense with torch.sparse.mm, autograd through it, basic arithmetic in part. Not supported: convolutions, most nn layers (Linear needs conversion), softmax, norm, dropout.",
        answer="**Half true.** The supported part is true for COO and CSR. Convolutions, dropout and plain softmax are refused as claimed; but `torch.sparse.softmax` and the norm of COO work, and Linear takes a sparse weight from torch 2.0 on without any conversion (COO only without bias).",
        parts=(
            Part(label="torch.sparse.mm and its gradient, COO and CSR", cases=("coo.mm.float32.*", "csr.mm.float32.*")),
            Part(label="add, sub, mul of COO", cases=("coo-coo.add.float32.*", "coo-coo.sub.float32.*", "coo-coo.mul.float32.*")),
            Part(label="convolutions", cases=("module.conv*",), passes=False),
            Part(label="softmax (plain)", cases=("*.softmax.float32.*",), passes=False),
            Part(label="torch.sparse.softmax, COO", cases=("coo.sparse-softmax-dim1.float32.cpu*",), passes=False),
            Part(label="norm, COO", cases=("coo.norm.float32.cpu",), passes=False),
            Part(label="dropout", cases=("module.dropout-*",), passes=False),
            Part(label="Linear with a sparse weight", cases=("module.linear-*-weight.float32.*",), passes=False),
        ),
    ),
    Claim(
        number=7,
        claim="LayerNorm and Dropout cannot be applied to sparse tensors.",
        answer="**True** in every version for all five layouts (in 1.9 dropout of CSR runs and does nothing, which is worse).",
        parts=(
            Part(label="LayerNorm", cases=("module.layernorm-*",), passes=False),
            Part(label="Dropout", cases=("module.dropout-*",), passes=False),
        ),
    ),
    Claim(
        number=8,
        claim="NGC images, Hugging Face images and pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime are built CUDA-aware with the sparse kernels.",
        answer="**Open**: none of them could be pulled where the committed records were made. Rows of the table that name a sibling say what an image with the same torch and CUDA gave.",
    ),
    Claim(
        number=9,
        claim="A tag that says CUDA and a version of at least 1.9 (better 2.0) has basic sparse ability on the GPU.",
        answer="**Not shown, and plausible**: on the CPU the needed cases pass in every version, and every CUDA build since 1.13 registers their kernels. Nothing has run on a GPU.",
        parts=(Part(label="create, coalesce, multiply, differentiate", cases=CORE),),
    ),
    Claim(
        number=10,
        claim="Light or self-built images may lack libraries of sparse operations: the move succeeds and torch.sparse.mm then falls back to the CPU, is very slow, or deadlocks.",
        answer="**Not seen.** All records here are of slim images that we built. Missing parts (MKL) give clear refusals. The one deadlock found has another cause: before 2.2 a DataLoader worker that returns a sparse tensor never answers.",
        parts=(Part(label="sparse tensors out of DataLoader workers", cases=("work.dataloader-worker-*",)),),
    ),
    Claim(
        number=11,
        claim="The reliable test: create, coalesce, move, torch.sparse.mm with a dense matrix, and check that the result is on the GPU.",
        answer="**Half true**: needed, not sufficient. The result can be on the GPU although the work was done on the CPU in between, and it can be wrong; the probe therefore compares with a dense reference and looks at the kernels that ran.",
    ),
    Claim(
        number=12,
        claim="Graph networks: edge list -> COO adjacency -> coalesce -> move with the features -> torch.sparse.mm in each layer -> backward.",
        answer="**True on the CPU in every version here**: three training steps agree with the dense twin.",
        parts=(
            Part(label="GCN from an edge list, COO", cases=("work.gcn-edge-list.*", "work.gcn-coo.*")),
            Part(label="GCN, CSR", cases=("work.gcn-csr.*",)),
            Part(label="attention over neighbours", cases=("work.gat.*",)),
        ),
    ),
    Claim(number=13, claim="PyTorch Geometric wraps this but is bound by what PyTorch's sparse support can do.", answer="**Open**: libraries are not tested yet."),
    Claim(
        number=14,
        claim="Prefer block or structured sparsity; limit conversions; choose PyTorch >= 2.0 with CUDA 11.8 or newer.",
        answer="**Half true.** Block layouts have the fewest operations of all, so preferring them costs functions; conversions are indeed dear (see `probe --bench`); and 2.2 is a better floor than 2.0, because only then sparse tensors pass between processes and most known faults of the first 2.x are gone.",
        parts=(
            Part(label="all COO cases", cases=("coo*",)),
            Part(label="all CSR cases", cases=("csr*",)),
            Part(label="all BSR cases", cases=("bsr*",)),
        ),
    ),
    Claim(number=15, claim="Alternatives: TorchSparse, DeepSpeed's sparse attention, CUTLASS.", answer="**Open**: libraries are not tested yet."),
    Claim(
        number=16,
        claim="Current official images do basic sparse CUDA work, enough for graph networks and recommenders; one may use them without setting up anything by hand.",
        answer="**Open for CUDA. On the CPU true** for graph networks and, with one exception, for recommenders: `clip_grad_norm_` on sparse gradients is silently without effect in 1.13 and refused from 2.0 to 2.13.",
        parts=(
            Part(label="graph networks", cases=("work.gcn-coo.*", "work.gcn-csr.*", "work.sage-*", "work.gat.*")),
            Part(label="recommenders", cases=("work.embedding-sgd.*", "work.embedding-sparse-adam.*", "work.embedding-bag-sum.*", "work.recommender.*")),
            Part(label="clip_grad_norm_", cases=("work.clip-grad-norm.*",)),
        ),
    ),
)  # fmt: skip

HEAD = """# Claims about sparse tensors in PyTorch images, and what the records say

A widely read article makes these claims (in our words, in its order). Written by `make docs` from the committed records; a test
compares. `3/4` means that 3 of the 4 cases that answer the question passed on the CPU in that version. `decl. 3/4` means that a
CUDA build of that version registers every kernel that 3 of 4 cases need: it is no result, nothing here has run on a GPU.
"""


def render(records: Iterable[Record]) -> str:
    """The whole page. records: complete and trusted ones count, those of the full tier; a CUDA build goes before a CPU build."""
    versions: dict[str, Record] = {}
    for record in records:
        torch = record.facts.get("torch") or {}
        version = str(torch.get("version") or "").partition("+")[0]
        usable = record.complete and record.trusted and record.options.get("tier") == "full"
        if version and usable and (version not in versions or torch.get("cuda")):
            versions[version] = record
    ordered = {version: versions[version] for version in sorted(versions, key=Version)}
    return "\n".join([HEAD, *(_claim(claim, ordered) for claim in CLAIMS)]).rstrip() + "\n"


def _claim(claim: Claim, versions: Mapping[str, Record]) -> str:
    lines = [f"## {claim.number}. {claim.claim}\n", f"{claim.answer}\n"]
    if claim.parts and versions:
        lines.append(f"| | {' | '.join(versions)} |")
        lines.append("|---|" + "---|" * len(versions))
        for part in claim.parts:
            said = "" if part.passes else " (claimed not to work)"
            lines.append(
                f"| {part.label}{said} | " + " | ".join(passed(part, record.cases) for record in versions.values()) + " |"
            )
            declared = [declares(part, record.cases) for record in versions.values()]
            if any(declared):
                lines.append(f"| ... CUDA build declares | {' | '.join(declared)} |")
        lines.append("")
    return "\n".join(lines)


def _of(part: Part, cases: Iterable[CaseResult], device: str) -> list[CaseResult]:
    """The part's cases on a device; globs name the CPU or neither."""
    chosen = []
    for case in cases:
        pieces = case.id.split(".")
        twin = case.id.replace(".cuda", ".cpu") if device == "cuda" else case.id
        if device in pieces and any(fnmatch.fnmatchcase(twin, pattern) for pattern in part.cases):
            chosen.append(case)
    return chosen


def passed(part: Part, cases: Iterable[CaseResult]) -> str:
    ran = [case for case in _of(part, cases, "cpu") if case.outcome is not Outcome.NOT_RUN]
    return f"{sum(case.outcome is Outcome.PASS for case in ran)}/{len(ran)}" if ran else ""


def declares(part: Part, cases: Iterable[CaseResult]) -> str:
    """ "" where the build says nothing: it has no CUDA, or cannot be asked."""
    told = [case for case in _of(part, cases, "cuda") if case.declared in (Declared.YES, Declared.NO)]
    asked = [case for case in _of(part, cases, "cuda") if case.declared is not None]
    return f"decl. {sum(case.declared is Declared.YES for case in told)}/{len(asked)}" if told else ""

"""A choice -> text for a terminal, or plain data. What was executed, what is declared and what is forecast are never one word."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from validator.cells import device_of
from validator.choose import EVIDENCE, PROOFS, Candidate, Choice, Fit, Miss, Proof, alternatives, nearest, relaxations
from validator.model import Pull
from validator.publish.terminal import clean
from validator.units import size

MEANS = {
    Proof.EXECUTED: "executed there and passed",
    Proof.SIBLING: "executed and passed in an image with the same torch and CUDA",
    Proof.DECLARED: "declared: the build registers the kernels, nothing ran",
    Proof.FORECAST: "not known: no record tells",
}
NEAREST = 3


def render(choice: Choice, asked: Sequence[str], *, width: int, limit: int, explain: bool = False) -> str:
    """asked: the needed cases. limit: how many fits are shown. explain: also every image that does not fit, with its reasons."""
    parts = [_fit(number, fit, asked, width) for number, fit in enumerate(choice.fits[:limit], 1)]
    parts.append(_count(choice, limit))
    if not choice.fits:
        parts.append(_misses(choice, asked, width))
    if explain:
        parts.append("\n".join(_miss(miss, width) for miss in choice.misses))
    return "\n\n".join(part for part in parts if part) + "\n"


def why_not(miss: Miss, width: int) -> str:
    """Every reason against one image."""
    return _miss(miss, width) + "\n"


def _fit(number: int, fit: Fit, asked: Sequence[str], width: int) -> str:
    lines = [f"{number}. {fit.candidate.image.id}", _facts(fit.candidate)]
    lines += [f"{one.gpu}: forecast: {one.prospect.value}. {clean(one.reason)}" for one in fit.forecasts]
    lines += [f"{count} of {len(asked)} needed cases {_where(asked)}{MEANS[kind]}" for kind, count in fit.proofs.items()]
    lines.append(_seen(fit.candidate))
    text = "\n".join(_wrapped(line, width, "" if line is lines[0] else "   ") for line in lines)
    return text + ("\n\n" + textwrap.indent(from_line(fit.candidate), "   ") if number == 1 else "")


def _where(asked: Sequence[str]) -> str:
    """On which device the needed cases are, where it is one."""
    devices = {device_of(case) for case in asked}
    return {"cpu": "(CPU): ", "cuda": "(CUDA): "}.get(devices.pop(), "") if len(devices) == 1 else ": "


def _facts(candidate: Candidate) -> str:
    known = candidate.known
    told = [
        f"torch {known.torch or 'not known'}",
        f"CUDA {known.cuda or 'not known'}",
        f"Python {candidate.python or 'not known'}",
    ]
    return clean(", ".join((*told, size(candidate.size) if candidate.size else "size not known")))


def _seen(candidate: Candidate) -> str:
    record = candidate.record
    if record is None:
        tested = "not tested: what is said of it is declared by its row and the facts"
        return f"{tested}; outcomes are those of {candidate.sibling}" if candidate.sibling else tested
    gpus = ", ".join(gpu.name for gpu in record.host.gpus) or "no GPU"
    return clean(f"tested {record.started[:10]} on {record.host.cpu or 'a host of unknown kind'}, {gpus}")


def from_line(candidate: Candidate) -> str:
    """What to put into a Dockerfile: pinned where a record knows the digest; for an image that we build, how to build it."""
    image, record = candidate.image, candidate.record
    if isinstance(image.source, Pull) and not image.source.packages:
        digest = record.image.digest if record else ""
        if digest and "@" not in image.source.reference:
            return f"FROM {image.source.reference}@{clean(digest)}"
        return f"FROM {image.source.reference}" + (
            "" if "@" in image.source.reference else "  # not pinned: no record holds its digest"
        )
    build = f"docker build --network host -t image-matrix/{image.id} dockerfiles/rendered/{image.id}"
    return f"# built by: image-matrix run --keep {image.id}\n#       or: {build}\nFROM image-matrix/{image.id}"


def _count(choice: Choice, limit: int) -> str:
    total = len(choice.fits) + len(choice.misses)
    shown = f"; the best {limit} are shown" if len(choice.fits) > limit else ""
    rest = " Why not the others: --explain, or --why-not ID." if choice.misses else ""
    return f"{len(choice.fits)} of {total} images fit{shown}.{rest}"


def _misses(choice: Choice, asked: Sequence[str], width: int) -> str:
    """What to give up, and which images come nearest."""
    relaxed = [
        f"{'With a weaker ' + EVIDENCE if one.wish == EVIDENCE else 'Without ' + one.wish} {one.count} would fit; "
        f"the best of them is {one.best}."
        for one in relaxations(choice)
    ]
    lines = [_wrapped(line, width, "") for line in relaxed or ["No single wish is what keeps them out."]]
    near = nearest(choice.misses)[:NEAREST]
    lines += ["", *(["Nearest:"] if near else []), *(_miss(miss, width) for miss in near)]
    for miss in near:
        for need, others in alternatives(asked, miss.candidate).items():
            text = f"in {miss.candidate.image.id}, instead of {need}: {', '.join(others)} (executed there and passed)"
            lines.append(_wrapped(text, width, "   "))
    return "\n".join(lines)


def _miss(miss: Miss, width: int) -> str:
    reasons = [_wrapped(f"{refusal.wish}: {clean(refusal.reason)}", width, "   ") for refusal in miss.refusals]
    return "\n".join((miss.candidate.image.id, *reasons))


def _wrapped(line: str, width: int, indent: str) -> str:
    return textwrap.fill(
        line, width=max(width, 40), initial_indent=indent, subsequent_indent=indent or "", break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def data(choice: Choice, asked: Sequence[str]) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "kind": "choice",
        "meaning": {kind.value: MEANS[kind] for kind in PROOFS},
        "needs": list(asked),
        "fits": [_fit_data(fit) for fit in choice.fits],
        "misses": [
            {"image": miss.candidate.image.id, "reasons": [{"wish": r.wish, "reason": r.reason} for r in miss.refusals]}
            for miss in choice.misses
        ],
        "relax": [] if choice.fits else [{"wish": r.wish, "images": r.count, "best": r.best} for r in relaxations(choice)],
    }


def _fit_data(fit: Fit) -> dict[str, Any]:
    candidate = fit.candidate
    record = candidate.record
    return {
        "image": candidate.image.id,
        "from": from_line(candidate),
        "torch": candidate.known.torch or None,
        "cuda": candidate.known.cuda or None,
        "python": candidate.python or None,
        "size_bytes": candidate.size,
        "known_by": candidate.known.basis.value,
        "evidence": fit.weakest.value if fit.weakest else None,
        "needs": {kind.value: count for kind, count in fit.proofs.items()},
        "sibling": candidate.sibling or None,
        "forecasts": [{"gpu": f.gpu, "forecast": f.prospect.value, "reason": f.reason, "rule": f.rule} for f in fit.forecasts],
        "tested": record.started if record else None,
        "host": record.host.key if record else None,
    }

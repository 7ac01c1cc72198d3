"""Wishes and what is known of each image -> the images that fit, ranked, and for every other one the reasons why not. Pure.

Every wish is judged by itself, so taking one away can only let more images through. What is not known does not fulfil a wish.
The rules stand in docs/choosing.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from validator.builds import NO_CUDA, Known
from validator.facts import Facts
from validator.facts.names import Target
from validator.forecast import Forecast, Prospect, forecast
from validator.model import CaseResult, Declared, Evidence, Image, Outcome, Record, VerdictClass, part
from validator.units import size


class Proof(StrEnum):
    """How a needed case is known to work, the surest first. FORECAST: torch starts there, and of the case nothing is known."""

    EXECUTED = "executed"
    SIBLING = "sibling"
    DECLARED = "declared"
    FORECAST = "forecast"


PROOFS = tuple(Proof)
_PROSPECTS = (Prospect.RUNS, Prospect.JIT, Prospect.FORWARD)
_BROKEN = (VerdictClass.IMAGE, VerdictClass.BUILD, VerdictClass.PAIRING)

# The wishes, as the options of the command line; HEALTH is nobody's wish and cannot be relaxed.
HEALTH = "works"
GPU, TORCH, PYTHON, CUDA, NEED, SIZE, PLATFORM, FAMILY, EVIDENCE = (
    "--gpu", "--torch", "--python", "--cuda", "--need", "--max-size", "--platform", "--family", "--evidence",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asks for; what is empty is not asked. gpus: each with its driver ("" for one that is new enough).

    needs: case ids. max_size: bytes. families: globs. weakest: the weakest proof of a needed case that will do.
    """

    gpus: tuple[tuple[Target, str], ...] = ()
    torch: SpecifierSet | None = None
    python: SpecifierSet | None = None
    cuda: SpecifierSet | str | None = None
    needs: tuple[str, ...] = ()
    max_size: int | None = None
    platform: str = ""
    families: tuple[str, ...] = ()
    weakest: Proof = Proof.DECLARED


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One image: what is known of its torch, the record that speaks for it, and its cases (a sibling's marked as such)."""

    image: Image
    known: Known
    record: Record | None = None
    cases: Mapping[str, CaseResult]
    sibling: str = ""

    @property
    def python(self) -> str:
        """The version of its Python: measured, else as the row says, else ""."""
        measured = part(self.record.facts, "python").get("version") if self.record else ""
        return str(measured or self.image.declares("python"))

    @property
    def size(self) -> int | None:
        """Bytes on disk, where a record knows them."""
        return self.record.image.size_bytes if self.record else None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One wish that an image does not fulfil, and why."""

    wish: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fit:
    """An image that fulfils every wish. proofs: how many needed cases are known in which way; weakest: the weakest of them."""

    candidate: Candidate
    forecasts: tuple[Forecast, ...]
    proofs: Mapping[Proof, int]
    weakest: Proof | None


@dataclass(frozen=True, kw_only=True)
class Miss:
    """An image that does not, with every reason."""

    candidate: Candidate
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """Without this wish `count` more images would fit; the best of them is named."""

    wish: str
    count: int
    best: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Every image, either among the fits (best first) or among the misses (in the order of the matrix)."""

    fits: tuple[Fit, ...]
    misses: tuple[Miss, ...]


def versions(text: str) -> SpecifierSet:
    """A range as pip writes it (">=2.4,<2.6"), or the front of a version ("2.6": any 2.6.x). Raises ValueError."""
    text = text.strip()
    if text and text[0].isdigit():
        text = f"=={text}" if text.endswith(".*") else f"=={text}.*"
    try:
        return SpecifierSet(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no version or range of versions") from error


def choose(candidates: Iterable[Candidate], wishes: Wishes, facts: Facts) -> Choice:
    """Judge every candidate by every wish."""
    fits, misses = [], []
    for candidate in candidates:
        forecasts = tuple(forecast(candidate.known, gpu, driver, facts) for gpu, driver in wishes.gpus)
        known = {need: proof(candidate.cases.get(need)) for need in wishes.needs}
        refusals = (*_health(candidate), *_of_gpus(forecasts), *_of_facts(candidate, wishes), *_of_needs(known, wishes.weakest))
        if refusals:
            misses.append(Miss(candidate=candidate, refusals=refusals))
            continue
        found = [one for one in known.values() if isinstance(one, Proof)]
        counted = {kind: found.count(kind) for kind in PROOFS if kind in found}
        weakest = max(found, key=PROOFS.index, default=None)
        fits.append(Fit(candidate=candidate, forecasts=forecasts, proofs=counted, weakest=weakest))
    return Choice(fits=tuple(sorted(fits, key=rank)), misses=tuple(misses))


def rank(fit: Fit) -> tuple[object, ...]:
    """Sorts the best first: surest proof, then how it runs, more executed, tested at all, newer torch, smaller, id."""
    prospects = [_PROSPECTS.index(one.prospect) for one in fit.forecasts]
    size_ = fit.candidate.size
    return (
        PROOFS.index(fit.weakest) if fit.weakest else 0,
        max(prospects, default=0),
        -fit.proofs.get(Proof.EXECUTED, 0),
        -fit.proofs.get(Proof.SIBLING, 0),
        fit.candidate.record is None,
        _newest_first(fit.candidate.known.torch),
        size_ is None,
        size_ or 0,
        fit.candidate.image.id,
    )


def proof(case: CaseResult | None) -> Proof | str:
    """How one needed case is known to work in an image; a text when it is known not to."""
    if case is None:
        return Proof.FORECAST
    if case.outcome is Outcome.PASS:
        return Proof.SIBLING if case.evidence is Evidence.SIBLING else Proof.EXECUTED
    if case.outcome is not Outcome.NOT_RUN:
        whose = " in its sibling" if case.evidence is Evidence.SIBLING else ""
        return f"{case.id} came out {case.outcome.value}{whose}"
    if case.declared is Declared.NO:
        return f"{case.id}: this build has no kernel{' for ' + case.missing if case.missing else ''}"
    return Proof.DECLARED if case.declared is Declared.YES else Proof.FORECAST


def relaxations(choice: Choice) -> tuple[Relaxation, ...]:
    """Which single wish keeps how many images out, the most rewarding first."""
    alone: dict[str, list[Miss]] = {}
    for miss in choice.misses:
        wishes = {refusal.wish for refusal in miss.refusals}
        if len(wishes) == 1 and HEALTH not in wishes:
            alone.setdefault(wishes.pop(), []).append(miss)
    found = [
        Relaxation(wish=wish, count=len(misses), best=nearest(misses)[0].candidate.image.id) for wish, misses in alone.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.count, one.wish)))


def nearest(misses: Sequence[Miss]) -> list[Miss]:
    """Those that miss the fewest wishes first; among equals the tested, those with fewer reasons, the newer torch, the id."""
    return sorted(
        (miss for miss in misses if all(refusal.wish != HEALTH for refusal in miss.refusals)),
        key=lambda miss: (
            len({refusal.wish for refusal in miss.refusals}),
            miss.candidate.record is None,
            len(miss.refusals),
            _newest_first(miss.candidate.known.torch),
            miss.candidate.image.id,
        ),
    )


def alternatives(needs: Sequence[str], candidate: Candidate) -> dict[str, tuple[str, ...]]:
    """For each need that is known not to work in this image: what was executed there and passed instead.

    The same operation on the same device, with another layout (dense among them) or another dtype; at most four, the same
    dtype first.
    """
    passed = [c.id for c in candidate.cases.values() if c.outcome is Outcome.PASS and c.evidence is Evidence.EXECUTED]
    found = {}
    for need in needs:
        if isinstance(proof(candidate.cases.get(need)), Proof):
            continue
        wanted = need.split(".")
        others = [ident for ident in passed if stands_in(ident.split("."), wanted)]
        if others:
            found[need] = tuple(sorted(others, key=lambda ident: (ident.split(".")[2] != wanted[2], ident))[:4])
    return found


def stands_in(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether two ids name the same operation and device with either another layout or another dtype."""
    if parts[0].count("-") != wanted[0].count("-"):  # sparse by sparse is not sparse by dense
        return False
    if len(parts) != len(wanted) or len(parts) < 4 or parts[1] != wanted[1] or parts[3:] != wanted[3:]:
        return False
    return (parts[0] != wanted[0]) != (parts[2] != wanted[2])


# --------------------------------------------------------------------------- one wish each


def _health(candidate: Candidate) -> Iterable[Refusal]:
    record = candidate.record
    if record is not None and record.verdict.cls in _BROKEN:
        yield Refusal(wish=HEALTH, reason=f"a test found it in trouble: {record.verdict.cause}")


def _of_gpus(forecasts: Iterable[Forecast]) -> Iterable[Refusal]:
    for one in forecasts:
        if one.prospect not in _PROSPECTS:
            words = "cannot run" if one.prospect is Prospect.CANNOT else "it is not known whether it runs"
            yield Refusal(wish=GPU, reason=f"{one.gpu}: {words}: {one.reason}")


def _of_facts(candidate: Candidate, wishes: Wishes) -> Iterable[Refusal]:
    image, known = candidate.image, candidate.known
    yield from _version(TORCH, "torch", known.torch, wishes.torch)
    yield from _version(PYTHON, "Python", candidate.python, wishes.python)
    if isinstance(wishes.cuda, str):
        if known.cuda != NO_CUDA:
            yield Refusal(
                wish=CUDA, reason=f"its torch is built for CUDA {known.cuda}" if known.cuda else "its CUDA is not known"
            )
    elif known.cuda == NO_CUDA and wishes.cuda is not None:
        yield Refusal(wish=CUDA, reason="its torch is built without CUDA")
    else:
        yield from _version(CUDA, "CUDA", known.cuda, wishes.cuda)
    if wishes.max_size is not None and candidate.size is None:
        yield Refusal(wish=SIZE, reason="its size is not known")
    elif wishes.max_size is not None and (candidate.size or 0) > wishes.max_size:
        yield Refusal(wish=SIZE, reason=f"it has {size(candidate.size)}")
    if wishes.platform and known.platform != wishes.platform:
        yield Refusal(wish=PLATFORM, reason=f"it is for {known.platform}")
    if wishes.families and not any(fnmatchcase(image.family, glob) for glob in wishes.families):
        yield Refusal(wish=FAMILY, reason=f"its family is {image.family}")


def _version(wish: str, what: str, seen: str, wanted: SpecifierSet | None) -> Iterable[Refusal]:
    if wanted is None:
        return
    try:
        version = Version(Version(seen).public)
    except InvalidVersion:
        yield Refusal(wish=wish, reason=f"its {what} is {seen}, which is no version" if seen else f"its {what} is not known")
        return
    if not wanted.contains(version, prereleases=True):
        yield Refusal(wish=wish, reason=f"its {what} is {seen}")


def _of_needs(known: Mapping[str, Proof | str], weakest: Proof) -> Iterable[Refusal]:
    """What fails is one wish (the needs), what is not known surely enough another (the evidence)."""
    for found in known.values():
        if not isinstance(found, Proof):
            yield Refusal(wish=NEED, reason=found)
    weak = [need for need, found in known.items() if isinstance(found, Proof) and PROOFS.index(found) > PROOFS.index(weakest)]
    if weak:
        found = max((known[need] for need in weak), key=lambda one: PROOFS.index(Proof(one)))
        how = "nothing is known" if found is Proof.FORECAST else f"nothing surer than {found} is known"
        yield Refusal(wish=EVIDENCE, reason=f"of {len(weak)} of {len(known)} needed cases {how} ({weak[0]} is one)")


def _newest_first(torch: str) -> tuple[int, ...]:
    """Sorts newer versions first and what is no version last."""
    try:
        version = Version(torch)
    except InvalidVersion:
        return (1,)
    release = (*version.release, 0, 0, 0)[:4]
    return (*(-number for number in release), version.is_prerelease)

"""Registries: which one a reference belongs to, its mirrors, and whether it can be reached at all in this run.

The engine asks (its network, proxy and credentials are the ones a pull would use), so that the answer is true for pulls.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from validator.engine import Engine, EngineError
from validator.model import Verdict, VerdictClass
from validator.verdict import pull_verdict

DEFAULT_REGISTRY = "docker.io"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """`registry/repository:tag` or `registry/repository@digest` in parts."""

    registry: str
    repository: str
    suffix: str

    @property
    def text(self) -> str:
        return f"{self.registry}/{self.repository}{self.suffix}"


def parse_reference(text: str) -> Reference:
    """Split a reference as docker does: the first part is a registry only with a dot, a colon, or when it is localhost."""
    first, slash, rest = text.partition("/")
    is_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, name = (first, rest) if is_registry else (DEFAULT_REGISTRY, text)
    if registry in ("index.docker.io", "registry-1.docker.io"):
        registry = DEFAULT_REGISTRY
    if "@" in name:
        name, _, digest = name.partition("@")
        suffix = f"@{digest}"
        head, colon, tag = name.rpartition(":")
        name = head if colon and "/" not in tag else name
    else:
        head, colon, tag = name.rpartition(":")
        name, suffix = (head, f":{tag}") if colon and "/" not in tag else (name, ":latest")
    if registry == DEFAULT_REGISTRY and "/" not in name:
        name = f"library/{name}"
    return Reference(registry=registry, repository=name, suffix=suffix)


class Registries:
    """What this run knows of registries. A registry that did not answer is not asked again in the same run."""

    def __init__(self, engine: Engine, mirrors: dict[str, tuple[str, ...]] | None = None) -> None:
        self._engine = engine
        self._mirrors = mirrors or {}
        self._unreachable: dict[str, Verdict] = {}

    def sources(self, reference: str) -> tuple[str, ...]:
        """The references to try for `reference`, in order: its registry's mirrors, then itself; unreachable ones left out."""
        parsed = parse_reference(reference)
        hosts = (*self._mirrors.get(parsed.registry, ()), parsed.registry)
        return tuple(f"{h}/{parsed.repository}{parsed.suffix}" for h in hosts if self._host(h) not in self._unreachable)

    @staticmethod
    def _host(mirror: str) -> str:
        return mirror.partition("/")[0]

    def examine(self, references: tuple[str, ...]) -> dict[str, Verdict]:
        """Ask each registry behind `references` once, all at the same time; {registry: verdict} of those out of reach."""
        samples: dict[str, str] = {}
        for reference in references:
            for source in self.sources(reference):
                samples.setdefault(parse_reference(source).registry, source)
        with ThreadPoolExecutor(max_workers=max(1, len(samples))) as pool:
            for registry, verdict in zip(samples, pool.map(self._ask, samples.values()), strict=True):
                if verdict is not None:
                    self._unreachable[registry] = verdict
        return dict(self._unreachable)

    def _ask(self, reference: str) -> Verdict | None:
        try:
            self._engine.remote(reference)
        except EngineError as error:
            verdict = pull_verdict(str(error))
            return verdict if verdict.code in ("registry-unreachable", "registry-certificate") else None
        return None

    def unreachable(self, reference: str) -> Verdict | None:
        """The verdict on `reference` when neither its registry nor a mirror can be reached in this run."""
        if self.sources(reference):
            return None
        registry = parse_reference(reference).registry
        known = self._unreachable[registry]
        return Verdict(cls=VerdictClass.INFRA, code=known.code, cause=known.cause, remedy=known.remedy)

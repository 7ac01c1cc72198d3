"""Frozen data that every other module speaks: images, cases, outcomes, facts, hosts, verdicts, records, runs.

Imports nothing of ours but errors. Rows of the matrix are dataclasses; what is read back from JSON (records, runs) is
pydantic, because that text is not ours once it is on disk. Words and ids: docs/design.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

RECORD_SCHEMA = "image-matrix/record/2"
RUN_SCHEMA = "image-matrix/run/1"

# Ids are file names, tags and URL parts, so they keep to what all three allow; dots stay (2.10 is not 2.1).
IMAGE_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,119}")


class Outcome(StrEnum):
    """What a case gave. Only PASS is good; everything else says what kind of not-good it is."""

    PASS = "pass"
    WRONG = "wrong"
    FALLBACK = "fallback"
    UNSUPPORTED = "unsupported"
    ABSENT = "absent"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    NOT_RUN = "not-run"


class Evidence(StrEnum):
    """How an outcome is known."""

    EXECUTED = "executed"
    SIBLING = "sibling"
    NONE = "none"


class Declared(StrEnum):
    """Whether a build registers the kernels that a CUDA case needs. Never an outcome."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class VerdictClass(StrEnum):
    """Whose matter it is. OK means: the image was tested and its cases speak for themselves."""

    OK = "ok"
    HOST = "host"
    PAIRING = "pairing"
    IMAGE = "image"
    BUILD = "build"
    INFRA = "infra"
    CAPABILITY = "capability"


class Severity(StrEnum):
    """How loud a finding is."""

    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class GpuWish(StrEnum):
    """Whether a GPU must be there (`gpu:` in images.yaml, `--gpu` on the command line)."""

    PREFERRED = "preferred"
    REQUIRED = "required"


# --------------------------------------------------------------------------- the matrix


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the container of an image is started.

    gpus: docker's `--gpus` text ("all", "2", '"device=0,1"', ""=none). shm_size, memory: docker sizes ("1g").
    timeout: seconds allowed for the whole probe. environment: name -> value. entrypoint: None keeps the image's own.
    """

    gpu: GpuWish = GpuWish.PREFERRED
    gpus: str = "all"
    shm_size: str = "1g"
    memory: str = ""
    timeout: int = 900
    environment: tuple[tuple[str, str], ...] = ()
    platform: str = "linux/amd64"
    user: str = ""
    entrypoint: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class BaseSource:
    """One place a slim image's base can come from: `registry` (reference) or `mmdebstrap` (suite)."""

    kind: str
    reference: str = ""
    suite: str = ""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base for slim images, its sources in the order they are tried; python is what its distribution ships."""

    name: str
    python: str
    sources: tuple[BaseSource, ...]


@dataclass(frozen=True, kw_only=True)
class Pull:
    """An image that a registry has; `reference` is repository:tag or repository@digest. `packages` are added on top."""

    reference: str
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Slim:
    """An image that we build: base + Python + torch. index: "pypi", "cpu", "cu126", ... or a URL."""

    base: Base
    python: str
    torch: str
    index: str = "pypi"
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A known fault: case glob, torch range (PEP 440 specifier, empty = any), what outcome is expected, issue link."""

    case: str
    outcome: Outcome
    issue: str
    torch: str = ""


@dataclass(frozen=True, kw_only=True)
class Image:
    """One expanded row of the matrix.

    declared: what tag or row say (keys among torch, cuda, cudnn, python, os); versions are strings.
    inferred: the tag was derived from a release pattern, nobody saw it. line: where in images.yaml it stands.
    """

    id: str
    family: str
    source: Pull | Slim
    run: RunOptions = field(default_factory=RunOptions)
    declared: tuple[tuple[str, str], ...] = ()
    expect: tuple[Expectation, ...] = ()
    inferred: bool = False
    line: int = 0

    @property
    def kind(self) -> str:
        """`pull`, `extend` (pull plus packages) or `build`."""
        if isinstance(self.source, Slim):
            return "build"
        return "extend" if self.source.packages else "pull"

    def declares(self, key: str) -> str:
        """What the row says of `key` (`torch`, `cuda`, ...), or ""."""
        return dict(self.declared).get(key, "")


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """A row that `exclude` took out, with its reason."""

    id: str
    family: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """images.yaml, expanded. mirrors: registry host -> mirror hosts, tried in order before the registry itself."""

    path: str
    sha256: str
    images: tuple[Image, ...]
    excluded: tuple[Excluded, ...] = ()
    mirrors: tuple[tuple[str, tuple[str, ...]], ...] = ()


# --------------------------------------------------------------------------- records (JSON)


class Frozen(BaseModel):
    """Base of everything read from or written to JSON: frozen; unknown keys are kept out but not refused (newer writer)."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class CaseResult(Frozen):
    """One case's outcome in one image. detail: exception class and first line, or the reason of `not-run`.

    declared: for a CUDA case that was not run, whether the build registers the kernels that it needs; missing: the operator
    that has none.
    """

    id: str
    outcome: Outcome
    evidence: Evidence = Evidence.NONE
    detail: str = ""
    kind: str = ""
    declared: Declared | None = None
    missing: str = ""
    duration_ms: float | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Control(Frozen):
    """A negative control: a case that must come out as `expected`, or the probe cannot be trusted here."""

    id: str
    expected: Outcome
    outcome: Outcome

    @property
    def held(self) -> bool:
        return self.expected == self.outcome


class Finding(Frozen):
    """Went on, tell the user: code (stable), what was seen, what to do."""

    code: str
    severity: Severity
    message: str
    remedy: str = ""


class Verdict(Frozen):
    """The judgement of one image on one host. cause: one sentence; remedy: what to do, "" when there is nothing to do."""

    cls: VerdictClass = Field(validation_alias=AliasChoices("class", "cls"), serialization_alias="class")
    code: str
    cause: str = ""
    remedy: str = ""


class Gpu(Frozen):
    """One GPU of the host; memory in MiB; compute capability as "9.0"."""

    name: str
    compute_capability: str = ""
    memory_mib: int | None = None


class Host(Frozen):
    """The machine the engine runs on. No host name and no UUID: records are published."""

    cpu: str = ""
    cores: int | None = None
    memory_mib: int | None = None
    architecture: str = ""
    os: str = ""
    kernel: str = ""
    engine: str = ""
    api: str = ""
    gpu_runtime: str = ""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def key(self) -> str:
        """Short stable name of this kind of host: what decides an outcome (GPU kinds, driver, CPU architecture)."""
        gpus = "+".join(sorted({g.name for g in self.gpus})) or "cpu"
        text = f"{gpus}-{self.driver or 'nodriver'}-{self.architecture}"
        return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-")


class ImageIdentity(Frozen):
    """Which image exactly was probed. A pulled one is known by digest, a slim one by recipe (Dockerfile, base, packages)."""

    id: str
    family: str
    kind: str
    reference: str = ""
    digest: str = ""
    image_id: str = ""
    platform: str = ""
    size_bytes: int | None = None
    size_method: str = ""
    created: str = ""
    base_source: str = ""
    base_id: str = ""
    dockerfile_sha256: str = ""
    packages: tuple[str, ...] = ()
    declared: dict[str, str] = Field(default_factory=dict)


class Record(Frozen):
    """One image x one host x one probe version, as found. Times are UTC ISO 8601; durations in seconds."""

    schema_: str = Field(
        default=RECORD_SCHEMA, validation_alias=AliasChoices("schema", "schema_"), serialization_alias="schema"
    )
    key: str
    run: str
    image: ImageIdentity
    host: Host
    probe: str
    started: str
    seconds: dict[str, float] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    complete: bool
    facts: dict[str, Any] = Field(default_factory=dict)
    cases: tuple[CaseResult, ...] = ()
    controls: tuple[Control, ...] = ()
    findings: tuple[Finding, ...] = ()
    verdict: Verdict
    log: str = ""

    @property
    def trusted(self) -> bool:
        """Whether every negative control came out as it must."""
        return bool(self.controls) and all(c.held for c in self.controls)


def part(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One group of facts; an image may send anything, so what is not a mapping counts as nothing."""
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


class RunEntry(Frozen):
    """What became of one image in a run.

    state: `tested` (a new record), `known` (an earlier record still holds), `untested` (verdict says why), `pending`.
    """

    id: str
    state: str
    record: str = ""
    verdict: Verdict | None = None


class Run(Frozen):
    """One execution of a selection of the matrix. `complete` is False until every selected image has its state."""

    schema_: str = Field(default=RUN_SCHEMA, validation_alias=AliasChoices("schema", "schema_"), serialization_alias="schema")
    id: str
    started: str
    ended: str = ""
    complete: bool = False
    matrix_sha256: str = ""
    selection: tuple[str, ...] = ()
    probe: str = ""
    host: Host = Field(default_factory=Host)
    entries: tuple[RunEntry, ...] = ()


def content_key(**parts: Any) -> str:
    """16 hex digits over `parts` (JSON-able): rows with equal keys need not be run again."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

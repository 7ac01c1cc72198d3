"""The base of a slim image: from a registry, else the same Debian release made here by mmdebstrap."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from validator.engine import LABEL, STALL, Engine, EngineError, LocalImage
from validator.errors import EnvironmentProblem
from validator.model import Base, Verdict, VerdictClass
from validator.registry import Registries
from validator.verdict import pull_verdict

MIRROR_VARIABLE = "IMAGE_MATRIX_DEBIAN_MIRROR"


@dataclass(frozen=True, kw_only=True)
class FoundBase:
    """The base that a build starts from. source says which of the row's sources gave it, as the record shows it."""

    reference: str
    source: str
    image_id: str


class BaseUnavailable(Exception):
    """No source of a base worked; the verdict says why for each."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.cause)
        self.verdict = verdict


def find_base(
    engine: Engine, base: Base, registries: Registries, *, platform: str, say: Callable[[str], None], environ: Mapping[str, str]
) -> FoundBase:
    """The first source of `base` that works. Raises BaseUnavailable with all the causes when none does."""
    problems: list[str] = []
    for source in base.sources:
        if source.kind == "registry":
            try:
                return _from_registry(engine, source.reference, registries, platform, say)
            except EngineError as error:
                problems.append(f"{source.reference}: {pull_verdict(str(error)).cause}")
        else:
            try:
                return _from_mmdebstrap(engine, base.name, source.suite, platform, say, environ)
            except (EnvironmentProblem, EngineError) as error:
                problems.append(f"mmdebstrap {source.suite}: {error}")
    raise BaseUnavailable(
        Verdict(
            cls=VerdictClass.INFRA,
            code="no-base",
            cause=f"no source of the base {base.name} works: " + "; ".join(problems),
            remedy="make one of its sources reachable, or add one under `bases:` in images.yaml",
        )
    )


def _from_registry(
    engine: Engine, reference: str, registries: Registries, platform: str, say: Callable[[str], None]
) -> FoundBase:
    unreachable = registries.unreachable(reference)
    if unreachable is not None:
        raise EngineError(unreachable.cause)
    last: EngineError | None = None
    for candidate in registries.sources(reference):
        try:
            say(f"pulling {candidate}")
            image = engine.pull(candidate, platform, lambda _event: None, STALL)
        except EngineError as error:
            last = error
            continue
        return FoundBase(reference=image.id, source=f"registry {candidate}", image_id=image.id)
    raise last or EngineError(f"{reference}: no source")


def _from_mmdebstrap(
    engine: Engine, name: str, suite: str, platform: str, say: Callable[[str], None], environ: Mapping[str, str]
) -> FoundBase:
    reference = f"image-matrix/base:{name}"
    image = engine.image(reference)
    if image is not None and image.labels.get(f"{LABEL}.base") == name:
        return FoundBase(reference=image.id, source=f"mmdebstrap {suite}", image_id=image.id)
    tool = _mmdebstrap(say)
    if engine.info().platform != platform:
        raise EnvironmentProblem(f"mmdebstrap makes a base for this machine only, not for {platform}")
    say(f"making the Debian {suite} base with mmdebstrap (about half a minute, once)")
    image = _make(engine, tool, suite, reference, name, environ.get(MIRROR_VARIABLE, ""))
    return FoundBase(reference=image.id, source=f"mmdebstrap {suite}", image_id=image.id)


def _make(engine: Engine, tool: str, suite: str, reference: str, name: str, mirror: str) -> LocalImage:
    with tempfile.TemporaryDirectory(prefix="image-matrix-base-") as directory:
        archive = Path(directory) / "root.tar"
        command = [tool, "--quiet", "--variant=minbase", suite, str(archive), *([mirror] if mirror else [])]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EnvironmentProblem(
                f"`{' '.join(command)}` failed: {last}", f"set {MIRROR_VARIABLE} to a Debian mirror in reach"
            )
        with archive.open("rb") as stream:
            return engine.import_rootfs(stream, reference=reference, changes=(f"LABEL {LABEL}.base={name}", 'CMD ["/bin/sh"]'))


def _mmdebstrap(say: Callable[[str], None]) -> str:
    found = shutil.which("mmdebstrap")
    if found:
        return found
    by_hand = "install it: apt-get install mmdebstrap"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise EnvironmentProblem("mmdebstrap is not installed", by_hand)
    say("installing mmdebstrap with apt-get")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap", "debian-archive-keyring"]
    for command in (install, ["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False)
        found = shutil.which("mmdebstrap")
        if found:
            return found
    raise EnvironmentProblem(f"apt-get could not install mmdebstrap: {(done.stderr.strip().splitlines() or [''])[-1]}", by_hand)

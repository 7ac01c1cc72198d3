"""One image onto the engine: pulled by tag, or built from its rendered Dockerfile. Gives the exact image id that is tested."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import stamina

from validator.base import BaseUnavailable, find_base
from validator.context import HostSettings, build_context, local_wheels, sha256
from validator.engine import LABEL, STALL, Engine, EngineError, LocalImage
from validator.model import Image, ImageIdentity, Pull, Slim, Verdict
from validator.pulling import PullProgress
from validator.registry import Registries
from validator.render import render
from validator.tags import nearest
from validator.verdict import build_verdict, platform_verdict, pull_verdict, same_platform

# What goes away by itself. A registry that is stopped and started again shows the first ones of the second line.
TRANSIENT = (
    "timeout", "timed out", "stalled", "connection reset", "unexpected EOF", "TLS handshake", "temporarily", "502", "503", "504",
    "connection refused", "EOF", "broken pipe", "toomanyrequests", "429",
)  # fmt: skip


ATTEMPTS = 4


class Untested(Exception):
    """The image could not be brought here; the verdict (build or infra) says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.cause)
        self.verdict = verdict


@dataclass(frozen=True, kw_only=True)
class Acquired:
    """An image on the engine. brought: it was not there before this run. seconds: what getting it took, by step."""

    image: LocalImage
    identity: ImageIdentity
    brought: bool


@dataclass(kw_only=True)
class Acquirer:
    """Gets images. `log` takes every line of engine output, for the image's log file; `step` tells the user."""

    engine: Engine
    registries: Registries
    settings: HostSettings
    environ: Mapping[str, str]
    labels: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    stall: float = STALL
    _digests: dict[str, str] = field(default_factory=dict)

    def identity_before(self, image: Image) -> dict[str, object]:
        """What identifies the image without building or pulling it: recipe for a slim one, digest for a pulled one.

        A pulled image whose registry is out of reach has no digest here; its row cannot be known.
        """
        recipe: dict[str, object] = {"dockerfile": sha256(render(image))}
        if isinstance(image.source, Slim):
            wheels = local_wheels(image, self.settings.wheel_directories)
            return recipe | {"wheels": [wheel.name for wheel in wheels]}
        return recipe | {"digest": self._digest(image)}

    def _digest(self, image: Image) -> str:
        """The digest behind a pulled row's tag. Raises Untested when no source gives one."""
        assert isinstance(image.source, Pull)
        reference = image.source.reference
        if reference in self._digests:
            return self._digests[reference]
        unreachable = self.registries.unreachable(reference)
        if unreachable is not None:
            raise Untested(unreachable)
        error: EngineError | None = None
        for source in self.registries.sources(reference):
            try:
                found = self.engine.remote(source)
            except EngineError as problem:
                error = problem
                continue
            wanted = image.run.platform
            if found.platforms and not any(same_platform(wanted, one) for one in found.platforms):
                raise Untested(platform_verdict(reference, wanted, found.platforms))
            self._digests[reference] = found.digest
            return found.digest
        raise Untested(self._refused(reference, str(error)))

    def _refused(self, reference: str, text: str) -> Verdict:
        """What the registry's refusal means; for a tag that is not there with the names of its neighbours."""
        verdict = pull_verdict(text)
        if verdict.code != "not-found":
            return verdict
        near = nearest(reference, self.engine.credentials)
        cause = f"{verdict.cause}: {reference}"
        return verdict.model_copy(
            update={"cause": cause, "remedy": f"nearest existing tags: {', '.join(near)}" if near else verdict.remedy}
        )

    def acquire(self, image: Image, step: Callable[[str], None], log: Callable[[str], None]) -> Acquired:
        """Build or pull. Raises Untested with a verdict when it cannot be had."""
        if isinstance(image.source, Slim):
            return self._build(image, image.source, step, log)
        pulled, brought, reference = self._pull(image, image.source, step, log)
        identity = self._identity(image, pulled, reference=reference, digest=self._digest(image))
        if not image.source.packages:
            return Acquired(image=pulled, identity=identity, brought=brought)
        built = self._build_on(image, pulled, step, log)
        return Acquired(
            image=built, identity=identity.model_copy(update={"image_id": built.id, "size_bytes": built.size}), brought=True
        )

    def _pull(
        self, image: Image, source: Pull, step: Callable[[str], None], log: Callable[[str], None]
    ) -> tuple[LocalImage, bool, str]:
        digest = self._digest(image)
        error: EngineError | None = None
        for reference in self.registries.sources(source.reference):
            pinned = f"{re.sub(r'(:[^/:@]+|@[^@]+)$', '', reference)}@{digest}"
            here = self.engine.image(pinned)
            if here is not None:
                step(f"{pinned} is here already")
                return here, False, pinned
            step(f"pulling {reference}")
            try:
                return self._pull_with_retries(pinned, image.run.platform, step, log), True, pinned
            except EngineError as problem:
                log(f"pull of {pinned}: {problem}")
                error = problem
        raise Untested(self._refused(source.reference, str(error)))

    def _pull_with_retries(
        self, reference: str, platform: str, step: Callable[[str], None], log: Callable[[str], None]
    ) -> LocalImage:
        def transient(error: Exception) -> bool:
            return isinstance(error, EngineError) and any(sign in str(error) for sign in TRANSIENT)

        progress = PullProgress(clock=self.clock)

        def event(one: Mapping[str, Any]) -> None:
            line = progress.feed(one)
            if line:
                log(line)
                step(f"  {line}")

        for attempt in stamina.retry_context(on=transient, attempts=ATTEMPTS, timeout=None, wait_initial=2.0, wait_max=20.0):
            with attempt:
                if attempt.num > 1:
                    step(f"  trying again ({attempt.num} of {ATTEMPTS})")
                pulled = self.engine.pull(reference, platform, event, self.stall)
                log(progress.line())
                return pulled
        raise EngineError(f"{reference}: no attempt was made")

    def _build(self, image: Image, source: Slim, step: Callable[[str], None], log: Callable[[str], None]) -> Acquired:
        try:
            base = find_base(
                self.engine, source.base, self.registries, platform=image.run.platform, say=step, environ=self.environ
            )
        except BaseUnavailable as error:
            raise Untested(error.verdict) from error
        dockerfile = render(image)
        context = build_context(image, dockerfile, self.settings, base.reference)
        log(f"base: {base.source} ({base.image_id})")
        recipe = sha256("\n".join((dockerfile, base.image_id, *context.wheels)))[:16]
        here = self.engine.labelled_images(f"{LABEL}.recipe={recipe}")
        with context.archive:
            if here:
                step("built before from the same recipe, still here")
                built = here[0]
            else:
                step("building" + (f" with {', '.join(context.wheels)}" if context.wheels else ""))
                built = self._run_build(context.archive, context.arguments, image, recipe, step, log)
        identity = self._identity(image, built, base_source=base.source, base_id=base.image_id)
        return Acquired(image=built, identity=identity, brought=True)

    def _build_on(
        self, image: Image, pulled: LocalImage, step: Callable[[str], None], log: Callable[[str], None]
    ) -> LocalImage:
        context = build_context(image, render(image), self.settings, pulled.id)
        step("adding packages")
        with context.archive:
            return self._run_build(context.archive, context.arguments, image, "", step, log)

    def _run_build(
        self,
        archive: BinaryIO,
        arguments: Mapping[str, str],
        image: Image,
        recipe: str,
        step: Callable[[str], None],
        log: Callable[[str], None],
    ) -> LocalImage:
        tail: list[str] = []
        layers: set[str] = set()

        def line(text: str) -> None:
            log(text)
            layers.update(re.findall(r"^ ---> ([0-9a-f]{12})$", text))
            tail.append(text)
            del tail[:-60]
            step(text[:100] if text.startswith("Step ") else f"  {text}")

        labels = {f"{LABEL}.run": self.labels[f"{LABEL}.run"], f"{LABEL}.id": image.id, f"{LABEL}.recipe": recipe}
        try:
            return self.engine.build(archive, tag=f"image-matrix/{image.id}", arguments=arguments, labels=labels, on_line=line)
        except EngineError as error:
            log(str(error))
            raise Untested(build_verdict("\n".join((*tail, str(error))))) from error
        finally:
            self.engine.remove_untagged(f"{LABEL}.stage=build", frozenset(layers))

    def _identity(
        self,
        image: Image,
        local: LocalImage,
        *,
        reference: str = "",
        digest: str = "",
        base_source: str = "",
        base_id: str = "",
    ) -> ImageIdentity:
        return ImageIdentity(
            id=image.id,
            family=image.family,
            kind=image.kind,
            image_id=local.id,
            platform=local.platform,
            size_bytes=local.size,
            size_method="unpacked layers, as the engine reports",
            created=local.created,
            dockerfile_sha256=sha256(render(image)),
            declared=dict(image.declared),
            reference=reference,
            digest=digest,
            base_source=base_source,
            base_id=base_id,
        )

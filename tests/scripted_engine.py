"""A scripted engine: the double for faults that a real one cannot be made to show, held to the real one's contract tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from validator.engine import ContainerSpec, EngineError, EngineInfo, Exit, LocalImage, RemoteImage

Program = Callable[[ContainerSpec, Callable[[bytes], None], Callable[[bytes], None]], Exit]


@dataclass
class ScriptedEngine:
    """Images are entries of a dict, programs are Python functions by their first word, refusals are texts by operation."""

    endpoint: str = "unix:///scripted"
    accepts_gpus: bool = False
    platform: str = "linux/amd64"
    programs: dict[str, Program] = field(default_factory=dict)
    files: dict[str, frozenset[str]] = field(default_factory=dict)
    registry: dict[str, RemoteImage] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    images: dict[str, LocalImage] = field(default_factory=dict)
    left_containers: dict[str, Mapping[str, str]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def _call(self, operation: str, argument: str = "") -> None:
        self.calls.append(f"{operation} {argument}".strip())
        for key, text in self.refusals.items():
            if operation == key or f"{operation} {argument}".startswith(key):
                raise EngineError(text)

    def info(self) -> EngineInfo:
        self._call("info")
        return EngineInfo(
            version="20.10.24", api="1.41", platform=self.platform, os="Debian", kernel="6.1", cores=2, memory=8 << 30,
            root="/nowhere", storage="overlay2", gpu_runtimes=(), id="scripted",
        )  # fmt: skip

    def image(self, reference: str) -> LocalImage | None:
        self._call("image", reference)
        for image in self.images.values():
            if reference in (image.id, *image.tags, *image.digests):
                return image
        return None

    def remote(self, reference: str) -> RemoteImage:
        self._call("remote", reference)
        if reference not in self.registry:
            raise EngineError("manifest unknown: manifest unknown")
        return self.registry[reference]

    def credentials(self, registry: str) -> tuple[str, str] | None:
        self._call("credentials", registry)
        return None

    def pull(self, reference: str, platform: str, on_event: Callable[[Mapping[str, Any]], None], stall: float) -> LocalImage:
        self._call("pull", reference)
        on_event({"status": "Downloading", "id": "0123456789ab", "progressDetail": {"current": 1, "total": 2}})
        return self._add(digests=(reference,))

    def build(
        self,
        context: BinaryIO,
        *,
        tag: str,
        arguments: Mapping[str, str],
        labels: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> LocalImage:
        self._call("build")
        on_line("Step 1/1 : FROM scratch")
        return self._add(tags=(tag,), labels=dict(labels))

    def import_rootfs(self, archive: BinaryIO, *, reference: str, changes: tuple[str, ...]) -> LocalImage:
        self._call("import", reference)
        labels = dict(change.removeprefix("LABEL ").split("=", 1) for change in changes if change.startswith("LABEL "))
        return self._add(tags=(reference,), labels=labels)

    def _add(self, **parts: object) -> LocalImage:
        image = LocalImage(id=f"sha256:{next(self._numbers):064x}", platform=self.platform, size=1000)
        image = replace(image, **parts)  # type: ignore[arg-type]
        self.images[image.id] = image
        return image

    def remove_image(self, image_id: str) -> bool:
        self._call("remove_image", image_id)
        for key, image in list(self.images.items()):
            if image_id in (key, *image.tags):
                del self.images[key]
                return True
        return False

    def remove_untagged(self, label: str, only: frozenset[str] | None = None) -> int:
        self._call("remove_untagged", label)
        return 0

    def labelled_images(self, label: str) -> tuple[LocalImage, ...]:
        key, sign, value = label.partition("=")
        return tuple(i for i in self.images.values() if key in i.labels and (not sign or i.labels[key] == value))

    def run(self, spec: ContainerSpec, on_output: Callable[[bytes], None], on_error_output: Callable[[bytes], None]) -> Exit:
        self._call("run", " ".join(spec.command[:1]))
        if spec.gpus is not None and not self.accepts_gpus:
            return Exit(error='could not select device driver "" with capabilities: [[gpu]]')
        words = (*(spec.entrypoint or ()), *spec.command)
        program = self.programs.get(words[0])
        if program is None:
            return Exit(error=f'exec: "{words[0]}": stat {words[0]}: no such file or directory: unknown')
        return program(spec, on_output, on_error_output)

    def paths_present(self, image_id: str, paths: tuple[str, ...], labels: Mapping[str, str]) -> tuple[str, ...]:
        self._call("paths_present")
        return tuple(path for path in paths if path in self.files.get(image_id, frozenset()))

    def containers(self, label: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
        self._call("containers", label)
        return tuple((ident, labels) for ident, labels in self.left_containers.items() if label in labels)

    def remove_container(self, container_id: str) -> None:
        self._call("remove_container", container_id)
        self.left_containers.pop(container_id, None)

"""The Docker engine: the only module that knows the Docker SDK. Everything it gives back is our own data.

`Engine` is what the rest of the product needs of an engine; `DockerEngine` is the real one. A scripted double lives in the
tests and passes the same contract tests.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, Protocol

import docker
import docker.auth
import docker.errors
import docker.models.containers
import requests
import urllib3
from docker.context import ContextAPI
from docker.types import DeviceRequest, LogConfig, Ulimit
from docker.utils.socket import STDERR, frames_iter

from validator.errors import EngineUnavailable
from validator.gpus import GpuRequest

LABEL = "io.image-matrix"
STALL = (
    120.0  # seconds of silence in a pull after which it is given up; the engine tells of downloads and unpacking as they go on
)
MINIMUM_API = (1, 40)  # device requests (`--gpus`) came with API 1.40, Docker 19.03

Line = Callable[[str], None]
Event = Callable[[Mapping[str, Any]], None]
Chunk = Callable[[bytes], None]


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """What the engine says of itself and its machine. memory in bytes; gpu_runtimes: runtimes and CDI devices it names.

    product: who answers behind Docker's API. security: names of what is switched on, such as seccomp or rootless.
    """

    version: str
    api: str
    platform: str
    os: str
    kernel: str
    cores: int
    memory: int
    root: str
    storage: str
    gpu_runtimes: tuple[str, ...]
    id: str
    product: str = "Docker"
    security: tuple[str, ...] = ()
    cgroup_driver: str = ""


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """An image that the engine has. size in bytes as the engine reports it (unpacked layers)."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    platform: str = ""
    size: int = 0
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    user: str = ""
    layers: int = 0


@dataclass(frozen=True, kw_only=True)
class RemoteImage:
    """What a registry says of a reference without a pull: the manifest's digest, and the platforms behind it (may be empty)."""

    digest: str
    platforms: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """One container. command follows the image's entrypoint unless `entrypoint` is given. sizes in docker's text form.

    hardened: no new privileges, no capabilities, limits on pids and memory; else Docker's defaults. Never any network.
    read_only: nothing can be written but an empty /tmp.
    """

    image_id: str
    command: tuple[str, ...]
    labels: Mapping[str, str]
    gpus: GpuRequest | None = None
    entrypoint: tuple[str, ...] | None = None
    environment: tuple[tuple[str, str], ...] = ()
    user: str = ""
    shm_size: str = ""
    memory: str = ""
    platform: str = ""
    hardened: bool = True
    read_only: bool = False
    timeout: float = 900.0
    output_limit: int = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a container ended. error: the engine's refusal when it never started. truncated: the output limit was hit."""

    code: int | None = None
    started: bool = False
    oom_killed: bool = False
    timed_out: bool = False
    truncated: bool = False
    error: str = ""


class EngineError(Exception):
    """The engine refused or failed one operation; the text is the engine's own."""


class Engine(Protocol):
    """What the product needs of a Docker engine."""

    endpoint: str

    def info(self) -> EngineInfo: ...
    def image(self, reference: str) -> LocalImage | None: ...
    def remote(self, reference: str) -> RemoteImage: ...
    def credentials(self, registry: str) -> tuple[str, str] | None: ...
    def pull(self, reference: str, platform: str, on_event: Event, stall: float) -> LocalImage: ...
    def build(
        self, context: BinaryIO, *, tag: str, arguments: Mapping[str, str], labels: Mapping[str, str], on_line: Line
    ) -> LocalImage: ...
    def import_rootfs(self, archive: BinaryIO, *, reference: str, changes: tuple[str, ...]) -> LocalImage: ...
    def remove_image(self, image_id: str) -> bool: ...
    def remove_untagged(self, label: str, only: frozenset[str] | None = None) -> int: ...
    def labelled_images(self, label: str) -> tuple[LocalImage, ...]: ...
    def run(self, spec: ContainerSpec, on_output: Chunk, on_error_output: Chunk) -> Exit: ...
    def paths_present(self, image_id: str, paths: tuple[str, ...], labels: Mapping[str, str]) -> tuple[str, ...]: ...
    def containers(self, label: str) -> tuple[tuple[str, Mapping[str, str]], ...]: ...
    def remove_container(self, container_id: str) -> None: ...


# --------------------------------------------------------------------------- the real one


def _parse_api(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _product(version: Mapping[str, Any]) -> str:
    """Docker, or Podman, whose service answers as Docker does; the components tell, the version number does not."""
    names = " ".join(str(one.get("Name") or "") for one in version.get("Components") or ())
    return "Podman" if "podman" in names.lower() else "Docker"


def _local_image(attrs: Mapping[str, Any]) -> LocalImage:
    config = attrs.get("Config") or {}
    pairs = (entry.partition("=") for entry in config.get("Env") or ())
    variant = f"/{attrs['Variant']}" if attrs.get("Variant") else ""
    return LocalImage(
        id=attrs["Id"],
        tags=tuple(attrs.get("RepoTags") or ()),
        digests=tuple(attrs.get("RepoDigests") or ()),
        platform=f"{attrs.get('Os', '')}/{attrs.get('Architecture', '')}{variant}",
        size=int(attrs.get("Size") or 0),
        created=attrs.get("Created") or "",
        labels=config.get("Labels") or {},
        environment={key: value for key, _, value in pairs},
        entrypoint=tuple(config.get("Entrypoint") or ()),
        user=config.get("User") or "",
        layers=len((attrs.get("RootFS") or {}).get("Layers") or ()),
    )


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn the SDK's and its transport's exceptions into EngineError with the engine's own words."""
    try:
        yield
    except docker.errors.APIError as error:
        raise EngineError(str(error.explanation or error)) from error
    except docker.errors.DockerException as error:
        raise EngineError(str(error)) from error
    except requests.exceptions.Timeout as error:
        raise EngineError(f"the engine did not answer in time: {error}") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise EngineError(f"the connection to the engine broke: {error}") from error


class DockerEngine:
    """A Docker engine reached through the SDK (unix, tcp, ssh)."""

    def __init__(self, client: docker.DockerClient, endpoint: str) -> None:
        self._client = client
        self.endpoint = endpoint

    def close(self) -> None:
        """Close the connections; nothing on the engine changes."""
        self._client.close()

    def info(self) -> EngineInfo:
        with _refusals():
            info = self._client.info()
            version = self._client.version()
        runtimes = [name for name in info.get("Runtimes") or {} if "nvidia" in name]
        runtimes += [d["ID"] for d in info.get("DiscoveredDevices") or () if d.get("Source") == "cdi" and "gpu" in d["ID"]]
        return EngineInfo(
            version=info.get("ServerVersion") or "",
            api=version.get("ApiVersion") or "",
            platform=f"{info.get('OSType', 'linux')}/{version.get('Arch', '')}",
            os=info.get("OperatingSystem") or "",
            kernel=info.get("KernelVersion") or "",
            cores=int(info.get("NCPU") or 0),
            memory=int(info.get("MemTotal") or 0),
            root=info.get("DockerRootDir") or "",
            storage=info.get("Driver") or "",
            gpu_runtimes=tuple(runtimes),
            id=info.get("ID") or "",
            product=_product(version),
            security=tuple(re.findall(r"name=([\w-]+)", " ".join(info.get("SecurityOptions") or ()))),
            cgroup_driver=info.get("CgroupDriver") or "",
        )

    def image(self, reference: str) -> LocalImage | None:
        with _refusals():
            try:
                return _local_image(self._client.images.get(reference).attrs)
            except docker.errors.NotFound:
                return None

    def remote(self, reference: str) -> RemoteImage:
        """What a registry has under `reference`; the engine asks, with its own network and mirrors and Docker's credentials."""
        with _refusals():
            data = self._client.images.get_registry_data(reference)
        platforms = {_platform(one) for one in data.attrs.get("Platforms") or () if one.get("architecture") != "unknown"}
        return RemoteImage(digest=str(data.id), platforms=tuple(sorted(platforms)))

    def credentials(self, registry: str) -> tuple[str, str] | None:
        """(user, password) that Docker's configuration or its credential helper has for a registry, or None."""
        with contextlib.suppress(docker.errors.DockerException):
            found = docker.auth.load_config().resolve_authconfig(None if registry == "docker.io" else registry) or {}
            if found.get("username") and found.get("password"):
                return str(found["username"]), str(found["password"])
        return None

    def pull(self, reference: str, platform: str, on_event: Event, stall: float) -> LocalImage:
        """Pull. stall: seconds without any event after which it is given up; there is no limit on the whole."""
        api = self._client.api
        header = docker.auth.get_config_header(api, docker.auth.resolve_repository_name(reference)[0])
        name, _, tag = reference.rpartition("@") if "@" in reference else reference.rpartition(":")
        with _refusals():
            # The SDK's own pull leaves no way to say how long silence may last; its session does.
            answer = api.post(
                f"{api.base_url}/v{api.api_version}/images/create",
                params={"fromImage": name, "tag": tag, **({"platform": platform} if platform else {})},
                headers={"X-Registry-Auth": header} if header else {},
                stream=True,
                timeout=(30, stall),
            )
            try:
                if not answer.ok:
                    raise EngineError(_message(answer))
                for line in filter(None, answer.iter_lines()):
                    event = json.loads(line)
                    if event.get("error"):
                        raise EngineError(str(event["error"]).strip())
                    on_event(event)
            except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
                if "timed out" in str(error):
                    raise EngineError(f"the pull stalled: nothing arrived for {stall:.0f} s") from error
                raise
            finally:
                answer.close()  # the engine gives up a pull that nobody listens to
        image = self.image(reference)
        if image is None:
            raise EngineError(f"{reference} was pulled but the engine does not have it")
        return image

    def build(
        self, context: BinaryIO, *, tag: str, arguments: Mapping[str, str], labels: Mapping[str, str], on_line: Line
    ) -> LocalImage:
        """Build from a tar archive with the classic builder (host network, so that proxies on loopback work)."""
        image_id = ""
        with _refusals():
            stream = self._client.api.build(
                fileobj=context,
                custom_context=True,
                tag=tag or None,
                decode=True,
                rm=True,
                forcerm=True,
                network_mode="host",
                buildargs=dict(arguments),
                labels=dict(labels),
            )
            with contextlib.closing(stream):
                for event in stream:
                    if event.get("error"):
                        raise EngineError(str(event["error"]).strip())
                    image_id = (event.get("aux") or {}).get("ID") or image_id
                    for line in (event.get("stream") or "").splitlines():
                        if line.strip():
                            on_line(line.rstrip())
        image = self.image(image_id) if image_id else None
        if image is None:
            raise EngineError("the build ended without an image")
        return image

    def import_rootfs(self, archive: BinaryIO, *, reference: str, changes: tuple[str, ...]) -> LocalImage:
        """`docker import`: a tar archive of a root file system becomes the image `reference`."""
        repository, _, tag = reference.rpartition(":")
        # A generator, because the SDK announces a chunked body and requests sends one only for data of unknown length.
        chunks = iter(lambda: archive.read(1 << 20), b"")
        with _refusals():
            self._client.api.import_image_from_stream(
                (chunk for chunk in chunks), repository=repository, tag=tag, changes=list(changes)
            )
        image = self.image(reference)
        if image is None:
            raise EngineError(f"{reference} was imported but the engine does not have it")
        return image

    def remove_image(self, image_id: str) -> bool:
        """Remove one image; False when something still uses it or it is gone."""
        with _refusals():
            try:
                self._client.api.remove_image(image_id)
            except docker.errors.APIError as error:
                if error.status_code in (404, 409):
                    return False
                raise
        return True

    def remove_untagged(self, label: str, only: frozenset[str] | None = None) -> int:
        """Remove the untagged images that carry `label` (what a build leaves of its first stage), child before parent.

        only: short ids, so that another build's stages are left alone. Parents without the label stay: they are the cache
        that the next build shares.
        """
        removed = 0
        while True:
            with _refusals():
                found = self._client.api.images(filters={"label": label, "dangling": True})
            ids = [image["Id"] for image in found]
            ours = [i for i in ids if only is None or i.removeprefix("sha256:")[:12] in only]
            gone = [i for i in ours if self._remove_only(i)]
            if not gone:
                return removed
            removed += len(gone)

    def _remove_only(self, image_id: str) -> bool:
        try:
            with _refusals():
                self._client.api.remove_image(image_id, noprune=True)
        except EngineError:
            return False
        return True

    def labelled_images(self, label: str) -> tuple[LocalImage, ...]:
        """Every image that carries `label` in its final form (not the stages of a build)."""
        with _refusals():
            return tuple(_local_image(image.attrs) for image in self._client.images.list(filters={"label": label}))

    def run(self, spec: ContainerSpec, on_output: Chunk, on_error_output: Chunk) -> Exit:
        """Create, start, stream, wait, remove. Blocks until the container ended or was killed at its deadline."""
        container = None
        try:
            try:
                with _refusals():
                    container = self._client.containers.create(spec.image_id, **_create_options(spec))
            except EngineError as error:
                return Exit(error=str(error))
            return self._supervise(container, spec, on_output, on_error_output)
        finally:
            if container is not None:
                self.remove_container(str(container.id))

    def _supervise(
        self, container: docker.models.containers.Container, spec: ContainerSpec, on_output: Chunk, on_error_output: Chunk
    ) -> Exit:
        with _refusals():
            parameters = {"stdout": 1, "stderr": 1, "stream": 1}
            stream = self._client.api.attach_socket(str(container.id), params=parameters)
        with contextlib.closing(stream), contextlib.closing(getattr(stream, "_response", stream)):
            frames = frames_iter(stream, tty=False)  # type: ignore[no-untyped-call]
            return self._follow(container, frames, spec, on_output, on_error_output)

    def _follow(
        self,
        container: docker.models.containers.Container,
        frames: Iterator[tuple[int, bytes]],
        spec: ContainerSpec,
        on_output: Chunk,
        on_error_output: Chunk,
    ) -> Exit:
        timed_out = threading.Event()
        truncated = False
        try:
            with _refusals():
                container.start()
        except EngineError as error:
            return Exit(error=str(error))

        def kill(event: threading.Event | None) -> None:
            if event is not None:
                event.set()
            with contextlib.suppress(docker.errors.DockerException, requests.exceptions.RequestException):
                container.kill()

        watchdog = threading.Timer(spec.timeout, kill, [timed_out])
        watchdog.daemon = True
        watchdog.start()
        seen = 0
        try:
            with _refusals():
                for stream, data in frames:
                    if not truncated:
                        (on_error_output if stream == STDERR else on_output)(data)
                    seen += len(data)
                    if seen > spec.output_limit and not truncated:
                        truncated = True
                        # In a thread, because the engine ends a container only when somebody goes on reading its output.
                        threading.Thread(target=kill, args=(None,), daemon=True).start()
            return self._exit(container, timed_out=timed_out.is_set(), truncated=truncated)
        finally:
            watchdog.cancel()

    def _exit(self, container: docker.models.containers.Container, *, timed_out: bool, truncated: bool) -> Exit:
        # The pipe may close before the process ends (closed stdout) or after (a forked child holds it): ask for the state.
        for _ in range(100):
            with _refusals():
                state = self._client.api.inspect_container(str(container.id))["State"]
            if not state.get("Running"):
                break
            time.sleep(0.1)
        else:
            with contextlib.suppress(docker.errors.DockerException):
                container.kill()
            return Exit(started=True, timed_out=timed_out, truncated=truncated, error="it closed its output and went on")
        return Exit(
            code=int(state.get("ExitCode", -1)),
            started=True,
            oom_killed=bool(state.get("OOMKilled")),
            timed_out=timed_out,
            truncated=truncated,
            error=str(state.get("Error") or ""),
        )

    def paths_present(self, image_id: str, paths: tuple[str, ...], labels: Mapping[str, str]) -> tuple[str, ...]:
        """Which of `paths` exist in the image, found without running anything in it (a created, never started container)."""
        with _refusals():
            container = self._client.api.create_container(image_id, command=["-"], entrypoint=["-"], labels=dict(labels))
            try:
                return tuple(path for path in paths if self._has_path(container["Id"], path))
            finally:
                self.remove_container(container["Id"])

    def _has_path(self, container_id: str, path: str) -> bool:
        # The SDK can only fetch a path; to ask for its existence is one small request of the same API.
        api = self._client.api
        url = f"{api.base_url}/v{api.api_version}/containers/{container_id}/archive"
        return bool(api.head(url, params={"path": path}, timeout=api.timeout).status_code == 200)

    def containers(self, label: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
        """Every container, running or not, that carries `label`: (id, labels)."""
        with _refusals():
            found = self._client.api.containers(all=True, filters={"label": label})
        return tuple((c["Id"], c.get("Labels") or {}) for c in found)

    def remove_container(self, container_id: str) -> None:
        with contextlib.suppress(docker.errors.DockerException, requests.exceptions.RequestException):
            self._client.api.remove_container(container_id, force=True, v=True)


def _create_options(spec: ContainerSpec) -> dict[str, Any]:
    options: dict[str, Any] = {
        "command": list(spec.command),
        "labels": dict(spec.labels),
        "network_mode": "none",
        "environment": dict(spec.environment),
        "log_config": LogConfig(type="none"),
        "stdin_open": False,
        "healthcheck": {"test": ["NONE"]},
    }
    if spec.hardened:
        options |= {
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "pids_limit": 1024,
            "ulimits": [Ulimit(name="core", soft=0, hard=0)],
        }
    if spec.read_only:
        options |= {"read_only": True, "tmpfs": {"/tmp": ""}}
    for name, value in (
        ("user", spec.user),
        ("shm_size", spec.shm_size),
        ("mem_limit", spec.memory),
        ("platform", spec.platform),
    ):
        if value:
            options[name] = value
    if spec.entrypoint is not None:
        options["entrypoint"] = list(spec.entrypoint)
    if spec.gpus is not None:
        options["device_requests"] = [
            DeviceRequest(
                driver=spec.gpus.driver,
                count=spec.gpus.count,
                device_ids=list(spec.gpus.device_ids),
                capabilities=[list(spec.gpus.capabilities)],
                options=dict(spec.gpus.options),
            )
        ]
    return options


def _message(answer: requests.Response) -> str:
    """What the engine says in an answer that is a refusal."""
    try:
        return str(answer.json()["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason}"


def _platform(one: Mapping[str, Any]) -> str:
    variant = f"/{one['variant']}" if one.get("variant") else ""
    return f"{one.get('os', '')}/{one.get('architecture', '')}{variant}"


def logins() -> tuple[str, ...]:
    """The registries that Docker's configuration holds a login or a credential helper for; the logins themselves stay there."""
    with contextlib.suppress(docker.errors.DockerException):
        config = docker.auth.load_config()
        store = (f"all, in {config.creds_store}",) if config.creds_store else ()
        return (*store, *sorted({*config.auths, *config.cred_helpers}))
    return ()


def created_at(image: LocalImage) -> datetime | None:
    """When the image was created, if the engine says so in a readable way."""
    try:
        return datetime.fromisoformat(image.created[:19] + "+00:00")
    except ValueError:
        return None


# --------------------------------------------------------------------------- finding one


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One endpoint that was tried: where the idea came from and why it failed."""

    source: str
    endpoint: str
    problem: str


def connect(
    candidates: tuple[tuple[str, str], ...], *, exclusive: bool, timeout: float = 60.0, install_hint: str = ""
) -> DockerEngine:
    """The first engine that answers among `candidates` ((source, endpoint) pairs, see endpoint.candidates).

    exclusive: the user named the first one, so nothing else is tried. Raises EngineUnavailable with all that was tried.
    """
    attempts: list[Attempt] = []
    for source, endpoint in candidates[:1] if exclusive else candidates:
        try:
            return DockerEngine(_client(source, endpoint, timeout), endpoint)
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError, ValueError) as error:
            attempts.append(Attempt(source=source, endpoint=endpoint, problem=_problem(endpoint, error)))
    tried = "\n".join(f"    {a.endpoint or '(none)'}  ({a.source}): {a.problem}" for a in attempts)
    raise EngineUnavailable(f"no Docker engine answers. Tried:\n{tried}", install_hint)


def _client(source: str, endpoint: str, timeout: float) -> docker.DockerClient:
    if endpoint.startswith("unix://"):
        # The SDK's own error for a socket without an engine is long, and it leaves its connection open.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(endpoint.removeprefix("unix://"))
    context = source.partition("context ")[2]
    client: docker.DockerClient
    if context:
        if ContextAPI.get_context(context) is None:  # the SDK would quietly take the default engine instead
            raise ValueError(f"docker has no context named {context!r} (`docker context ls` lists them)")
        client = docker.DockerClient.from_context(context, version="auto", timeout=int(timeout))
    elif source == "DOCKER_HOST":
        client = docker.from_env(version="auto", timeout=int(timeout))
    else:
        client = docker.DockerClient(
            base_url=endpoint, version="auto", timeout=int(timeout), use_ssh_client=endpoint.startswith("ssh://")
        )
    try:
        client.ping()
        if _parse_api(client.api.api_version) < MINIMUM_API:
            least = ".".join(map(str, MINIMUM_API))
            raise ValueError(
                f"the engine is too old: API {client.api.api_version}, at least {least} (Docker 19.03) is needed for `--gpus`; "
                "update the engine, or name another one with --docker-host"
            )
    except BaseException:
        client.close()
        raise
    return client


def _problem(endpoint: str, error: Exception) -> str:
    text = str(error)
    if isinstance(error, PermissionError) or "Permission denied" in text:
        return "permission denied: add yourself to the group that owns the socket (usually `docker`), or run as root"
    if isinstance(error, FileNotFoundError) or "No such file" in text:
        return "no such socket"
    if isinstance(error, ConnectionRefusedError) or "Connection refused" in text:
        return (
            "connection refused: a socket without an engine behind it" if endpoint.startswith("unix") else "connection refused"
        )
    return text.splitlines()[0][:200] if text else type(error).__name__

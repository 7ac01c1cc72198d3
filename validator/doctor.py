"""What is known of this host and its engine -> one line each: ok, warning or problem, with what to do. Pure.

Sources of the rules: the issues named beside them, each of NVIDIA's or Docker's own trackers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from validator.engine import EngineInfo
from validator.preflight import GpuState
from validator.units import size

RESERVE = 20_000_000_000  # bytes: one large image, unpacked
OLD_ENGINE = (20, 10)
PODMAN_WITH_GPUS = (5, 4)  # from here on it honours a device request, as a CDI name


class State(StrEnum):
    """How bad a line is. PROBLEM: some of the product cannot work here."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line. remedy is empty where there is nothing to do."""

    name: str
    state: State
    text: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was looked up. local: the engine is on this machine, so that the rest below speaks of the engine's host.

    kernel_driver: version of the loaded kernel module; driver_error: what nvidia-smi says when it fails. cdi: specification
    files; toolkit: `nvidia-ctk --version`. logins: registries that Docker's configuration holds a login for. packages: name ->
    (installed, wanted) of our own dependencies. disk_free in bytes on the engine's data root.
    """

    info: EngineInfo
    endpoint: str
    source: str
    gpu: GpuState
    gpu_reason: str = ""
    local: bool = True
    wsl: bool = False
    gpu_devices: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    driver: str = ""
    kernel_driver: str = ""
    driver_error: str = ""
    toolkit: str = ""
    cdi: tuple[str, ...] = ()
    logins: tuple[str, ...] = ()
    disk_free: int | None = None
    packages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    settings: tuple[tuple[str, str], ...] = ()


def examine(seen: Seen) -> tuple[Check, ...]:
    """Every check, in the order in which a person would look."""
    return (
        *_engine(seen), *_kind(seen), *_gpu(seen), *_driver(seen), *_cgroups(seen), *_disk(seen),
        *_logins(seen), *_settings(seen), *_packages(seen),
    )  # fmt: skip


def _ok(name: str, text: str) -> Check:
    return Check(name=name, state=State.OK, text=text)


def _engine(seen: Seen) -> Iterator[Check]:
    info = seen.info
    text = f"{info.product} {info.version} (API {info.api}) at {seen.endpoint}, found by {seen.source}"
    old = tuple(int(part) for part in info.version.split(".")[:2] if part.isdigit()) < OLD_ENGINE
    if old and info.product == "Docker":
        yield Check(
            name="engine",
            state=State.WARNING,
            text=text,
            remedy="older than Docker 20.10: update it; what we test with begins there",
        )
    else:
        yield _ok("engine", text)
    yield _ok(
        "machine", f"{info.os}, {info.platform}, {info.cores} cores, {info.memory >> 30} GiB memory, kernel {info.kernel}"
    )


def _kind(seen: Seen) -> Iterator[Check]:
    info = seen.info
    if info.root.startswith("/var/snap"):
        yield Check(
            name="snap", state=State.WARNING, text=f"the engine is a snap (data root {info.root}): it cannot see the NVIDIA Container Toolkit",
            remedy="for GPUs remove it and install Docker from Docker's own repository (nvidia-docker issues 1637, 1642)",
        )  # fmt: skip
    if "rootless" in info.security:
        yield Check(
            name="rootless", state=State.WARNING, text="the engine runs without root: the toolkit's cgroup rules fail there",
            remedy="use CDI (`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`), or set no-cgroups = true in "
            "/etc/nvidia-container-runtime/config.toml (nvidia-container-toolkit issue 85)",
        )  # fmt: skip
    if info.product == "Podman":
        release = tuple(int(part) for part in info.version.split(".")[:2] if part.isdigit())
        if release < PODMAN_WITH_GPUS:
            yield Check(
                name="podman", state=State.PROBLEM, text=f"this is Podman {info.version} behind Docker's API: it ignores GPU requests silently",
                remedy="update to Podman 5.4 and make a CDI specification, or use Docker (podman issue 22645)",
            )  # fmt: skip
        else:
            yield Check(
                name="podman", state=State.WARNING, text=f"this is Podman {info.version} behind Docker's API: GPUs come by CDI only",
                remedy="have a CDI specification: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
            )  # fmt: skip
    if seen.wsl:
        yield Check(
            name="WSL", state=State.WARNING, text="Windows Subsystem for Linux: the driver is the one of Windows",
            remedy="install no Linux driver inside; update the driver in Windows",
        )  # fmt: skip


def _gpu(seen: Seen) -> Iterator[Check]:
    runtimes = ", ".join(seen.info.gpu_runtimes)
    if seen.gpu is GpuState.ACCEPTED:
        if seen.local and not seen.gpu_devices and not seen.wsl:
            yield Check(
                name="GPU request", state=State.WARNING, text="`--gpus` is accepted, and this machine shows no GPU device",
                remedy="images are tested on the CPU; for CUDA cases check the driver (nvidia-smi) on the engine's host",
            )  # fmt: skip
        else:
            yield _ok("GPU request", "`--gpus` is accepted" + (f" ({runtimes})" if runtimes else ""))
    elif seen.gpu is GpuState.REFUSED:
        yield Check(
            name="GPU request", state=State.WARNING, text=f"`--gpus` is refused: {seen.gpu_reason}", remedy=_gpu_remedy(seen)
        )
    if seen.local and seen.gpu_devices and not seen.toolkit:
        yield Check(
            name="toolkit", state=State.WARNING, text="a GPU, and no NVIDIA Container Toolkit (nvidia-ctk) on this machine",
            remedy="install nvidia-container-toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart the engine",
        )  # fmt: skip
    elif seen.toolkit:
        yield _ok("toolkit", seen.toolkit)
    if seen.cdi:
        yield _ok("CDI", ", ".join(seen.cdi))


def _gpu_remedy(seen: Seen) -> str:
    if seen.local and not seen.gpu_devices:
        return "this machine shows no GPU; images are tested on the CPU, CUDA cases are not run"
    if seen.toolkit:
        return "`nvidia-ctk runtime configure --runtime=docker`, then restart the engine"
    return "install the NVIDIA driver and nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart the engine"


def _driver(seen: Seen) -> Iterator[Check]:
    if not seen.local:
        return
    if "version mismatch" in seen.driver_error.lower():
        yield Check(
            name="driver", state=State.PROBLEM,
            text=f"the kernel module ({seen.kernel_driver or 'version unknown'}) and the driver's libraries differ: {seen.driver_error}",
            remedy="reboot, or unload and load the nvidia modules: the driver was updated under a running kernel",
        )  # fmt: skip
    elif seen.driver_error:
        yield Check(
            name="driver",
            state=State.PROBLEM,
            text=f"nvidia-smi fails: {seen.driver_error}",
            remedy="repair the driver; `dmesg | grep -i nvidia` says more",
        )
    elif seen.driver:
        yield _ok("driver", f"{seen.driver}: {', '.join(seen.gpus)}")
    elif seen.gpu_devices:
        yield Check(
            name="driver",
            state=State.WARNING,
            text="a GPU device, and no nvidia-smi",
            remedy="install the driver's tools (nvidia-utils)",
        )
    else:
        yield _ok("driver", "no NVIDIA GPU on this machine: CPU cases run, CUDA cases are not-run")


def _cgroups(seen: Seen) -> Iterator[Check]:
    if seen.info.cgroup_driver == "systemd" and seen.gpu is GpuState.ACCEPTED and seen.gpu_devices:
        yield Check(
            name="cgroups", state=State.WARNING, text="cgroup driver systemd: any `systemctl daemon-reload` takes the GPU from running containers",
            remedy='use CDI, or "exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json (nvidia-container-toolkit issue 48)',
        )  # fmt: skip


def _disk(seen: Seen) -> Iterator[Check]:
    if seen.disk_free is None:
        yield Check(name="disk", state=State.UNKNOWN, text=f"the data root {seen.info.root} is not ours to see")
    elif seen.disk_free < RESERVE:
        yield Check(
            name="disk", state=State.PROBLEM, text=f"{size(seen.disk_free)} free on {seen.info.root}; one large image takes {size(RESERVE)}",
            remedy="free some: `docker system df`, `image-matrix clean --images`",
        )  # fmt: skip
    else:
        yield _ok("disk", f"{size(seen.disk_free)} free on {seen.info.root} ({seen.info.storage})")


def _logins(seen: Seen) -> Iterator[Check]:
    there = ", ".join(seen.logins) or "none"
    yield _ok("logins", f"{there} (public tags need none; Docker Hub limits pulls without one)")


def _settings(seen: Seen) -> Iterator[Check]:
    if seen.settings:
        yield _ok("network", ", ".join(f"{name}={value}" for name, value in seen.settings) + " (builds get them)")


def _packages(seen: Seen) -> Iterator[Check]:
    wrong = [
        f"{name} {there or 'missing'} (wanted {wanted})" for name, (there, wanted) in seen.packages.items() if there != wanted
    ]
    if wrong:
        yield Check(
            name="packages", state=State.WARNING, text="other versions than those we test with: " + ", ".join(wrong),
            remedy="`make setup` installs those of requirements.lock",
        )  # fmt: skip
    elif seen.packages:
        yield _ok("packages", f"{len(seen.packages)} of our dependencies, as locked")

"""Once per run, before any image: the engine, its machine, its disk, and whether a GPU request is accepted there."""

from __future__ import annotations

import io
import platform
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from validator.engine import ContainerSpec, Engine, EngineInfo
from validator.errors import EnvironmentProblem
from validator.gpus import GpuRequest
from validator.machine import cpu_name, nvidia_smi
from validator.model import Host


class GpuState(StrEnum):
    """What happens to a `--gpus` request on this engine. Whether a device is attached only the probe can see."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNTRIED = "untried"


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What holds for every image of the run. disk_free in bytes on the engine's data root, None where it is not ours to see."""

    host: Host
    info: EngineInfo
    gpu: GpuState
    gpu_reason: str
    local: bool

    def disk_free(self) -> int | None:
        """Bytes free on the engine's data root now; None for a remote engine or where the path is not visible."""
        if not self.local:
            return None
        path = Path(self.info.root)
        try:
            return shutil.disk_usage(path).free
        except OSError:
            return None


def examine(engine: Engine, labels: Mapping[str, str], gpus: GpuRequest | None) -> Preflight:
    """Look at engine and host. gpus: the request to try with an empty container, so that no image is charged with a refusal."""
    info = engine.info()
    local = engine.endpoint.startswith("unix://")
    state, reason = _try_gpus(engine, labels, gpus)
    driver, found = nvidia_smi() if local else ("", ())
    cpu, memory = (cpu_name(), info.memory >> 20)
    host = Host(
        cpu=cpu if local else "",
        cores=info.cores or None,
        memory_mib=memory or None,
        architecture=info.platform.partition("/")[2],
        os=info.os,
        kernel=info.kernel if not local else platform.release(),
        engine=info.version,
        api=info.api,
        gpu_runtime=", ".join(info.gpu_runtimes) or ("accepted" if state is GpuState.ACCEPTED else ""),
        driver=driver,
        gpus=found,
    )
    return Preflight(host=host, info=info, gpu=state, gpu_reason=reason, local=local)


def require_gpu(preflight: Preflight) -> None:
    """Raise EnvironmentProblem when a GPU is required and the engine refuses the request or its machine shows none."""
    if preflight.gpu is GpuState.REFUSED:
        raise EnvironmentProblem(
            f"a GPU is required, but this engine refuses `--gpus`: {preflight.gpu_reason}",
            "install the NVIDIA driver and the NVIDIA Container Toolkit (`nvidia-ctk runtime configure --runtime=docker`), "
            "or run with `--gpu preferred` to test the CPU cases",
        )
    if preflight.local and not preflight.host.gpus:
        raise EnvironmentProblem(
            "a GPU is required; this engine accepts `--gpus`, but nvidia-smi shows no GPU on this machine",
            "check the driver with nvidia-smi, or run with `--gpu preferred` to test the CPU cases",
        )


def _try_gpus(engine: Engine, labels: Mapping[str, str], gpus: GpuRequest | None) -> tuple[GpuState, str]:
    if gpus is None:
        return GpuState.UNTRIED, "no GPU is asked for"
    reference = f"image-matrix/preflight:{labels['io.image-matrix.run'].lower()}"
    changes = tuple(f"LABEL {key}={value}" for key, value in labels.items())
    image = engine.import_rootfs(_empty_rootfs(), reference=reference, changes=changes)
    try:
        # The program is not there. An engine that takes the request gets as far as saying so; one without a GPU runtime
        # refuses before ("could not select device driver"), and a broken one fails in its hook.
        spec = ContainerSpec(image_id=image.id, command=("/image-matrix-preflight",), labels=labels, gpus=gpus, timeout=30)
        exit_ = engine.run(spec, lambda _data: None, lambda _data: None)
    finally:
        engine.remove_image(reference)
    if exit_.started or "image-matrix-preflight" in exit_.error:
        return GpuState.ACCEPTED, ""
    return GpuState.REFUSED, exit_.error.strip().splitlines()[-1] if exit_.error.strip() else "no reason given"


def _empty_rootfs() -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("etc")
        info.type = tarfile.DIRTYPE
        info.mode = 0o755
        tar.addfile(info)
    buffer.seek(0)
    return buffer

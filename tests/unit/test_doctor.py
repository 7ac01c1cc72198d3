"""Each trouble of a host that has a name in NVIDIA's or Docker's trackers is one line with what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.scripted_engine import ScriptedEngine
from validator.doctor import Check, Seen, State, examine
from validator.preflight import GpuState
from validator.publish.doctor import render

INFO = replace(ScriptedEngine().info(), root="/var/lib/docker", cgroup_driver="cgroupfs")
GPU: dict[str, Any] = {
    "gpu": GpuState.ACCEPTED, "gpu_devices": ("/dev/nvidia0",), "gpus": ("NVIDIA H200",), "driver": "550.54.15",
    "toolkit": "NVIDIA Container Toolkit CLI version 1.16.2",
}  # fmt: skip
FINE = Seen(
    info=INFO, endpoint="unix:///var/run/docker.sock", source="default socket", gpu=GpuState.REFUSED,
    gpu_reason="could not select device driver", disk_free=90_000_000_000, packages={"docker": ("7.1.0", "7.1.0")},
)  # fmt: skip


def found(name: str, seen: Seen) -> Check | None:
    return next((check for check in examine(seen) if check.name == name), None)


def test_a_host_with_a_gpu_in_order_has_nothing_to_do() -> None:
    checks = examine(replace(FINE, **GPU))
    assert {check.state for check in checks} == {State.OK}
    assert not [check for check in checks if check.remedy]
    assert {"engine", "machine", "GPU request", "toolkit", "driver", "disk", "logins", "packages"} <= {c.name for c in checks}


def test_a_host_without_a_gpu_says_once_that_cuda_cases_will_not_run() -> None:
    checks = examine(FINE)
    assert [check.name for check in checks if check.state is not State.OK] == ["GPU request"]
    assert "CUDA cases are not run" in (found("GPU request", FINE) or checks[0]).remedy


@pytest.mark.parametrize(
    ("name", "seen", "state", "words"),
    [
        ("engine", replace(FINE, info=replace(INFO, version="19.03.15")), State.WARNING, "older than Docker 20.10"),
        ("snap", replace(FINE, info=replace(INFO, root="/var/snap/docker/common")), State.WARNING, "Docker's own repository"),
        ("rootless", replace(FINE, info=replace(INFO, security=("seccomp", "rootless"))), State.WARNING, "no-cgroups = true"),
        ("podman", replace(FINE, info=replace(INFO, product="Podman", version="4.9.3")), State.PROBLEM, "Podman 5.4"),
        ("podman", replace(FINE, info=replace(INFO, product="Podman", version="5.4.0")), State.WARNING, "nvidia-ctk cdi generate"),
        ("WSL", replace(FINE, wsl=True), State.WARNING, "in Windows"),
        ("GPU request", replace(FINE, gpu_devices=("/dev/nvidia0",)), State.WARNING, "install the NVIDIA driver and nvidia-container-toolkit"),
        ("GPU request", replace(FINE, gpu_devices=("/dev/nvidia0",), toolkit="1.16"), State.WARNING, "nvidia-ctk runtime configure"),
        ("GPU request", replace(FINE, gpu=GpuState.ACCEPTED), State.WARNING, "check the driver"),
        ("toolkit", replace(FINE, gpu_devices=("/dev/nvidia0",)), State.WARNING, "install nvidia-container-toolkit"),
        ("driver", replace(FINE, driver_error="Failed to initialize NVML: Driver/library version mismatch", kernel_driver="510.73.05"), State.PROBLEM, "reboot"),
        ("driver", replace(FINE, driver_error="NVIDIA-SMI has failed"), State.PROBLEM, "repair the driver"),
        ("driver", replace(FINE, gpu_devices=("/dev/nvidia0",)), State.WARNING, "nvidia-utils"),
        ("cgroups", replace(FINE, **GPU, info=replace(INFO, cgroup_driver="systemd")), State.WARNING, "cgroupfs"),
        ("disk", replace(FINE, disk_free=5_000_000_000), State.PROBLEM, "docker system df"),
        ("packages", replace(FINE, packages={"docker": ("6.0", "7.1.0")}), State.WARNING, "make setup"),
    ],
)  # fmt: skip
def test_each_trouble_has_its_line(name: str, seen: Seen, state: State, words: str) -> None:
    check = found(name, seen)
    assert check is not None
    assert check.state is state
    assert words in check.remedy


def test_an_engine_elsewhere_is_not_charged_with_this_machine() -> None:
    far = replace(FINE, local=False, disk_free=None, gpu=GpuState.ACCEPTED)
    assert found("driver", far) is None
    assert (found("disk", far) or examine(far)[0]).state is State.UNKNOWN
    assert (found("GPU request", far) or examine(far)[0]).state is State.OK


def test_the_text_fits_and_names_state_and_remedy() -> None:
    text = render(examine(replace(FINE, disk_free=1)), 70)
    assert max(map(len, text.splitlines())) <= 70
    assert "problem  disk" in text
    assert "to do: " in text
    assert "\x1b" not in render(examine(replace(FINE, gpu_reason="\x1b[31m")), 70)

"""This machine as it describes itself: processor, GPUs and driver. Needs no engine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from validator.model import Gpu, Host

# Docker's names for what `uname -m` says, so that one machine is one host however it was looked at.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def this_machine() -> Host:
    """The Host of a run without an engine."""
    driver, gpus = nvidia_smi()
    machine = platform.machine()
    return Host(
        cpu=cpu_name(),
        cores=os.cpu_count(),
        memory_mib=_memory_mib(),
        architecture=_ARCHITECTURES.get(machine, machine),
        os=_pretty_name(),
        kernel=platform.release(),
        driver=driver,
        gpus=gpus,
    )


def cpu_name() -> str:
    """The processor's name as /proc/cpuinfo has it, else what Python knows."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.startswith(("model name", "Model")):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


def nvidia_smi() -> tuple[str, tuple[Gpu, ...]]:
    """Driver version and GPUs as nvidia-smi names them; ("", ()) where it is not there or fails."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return "", ()
    query = "driver_version,name,compute_cap,memory.total"
    try:
        done = subprocess.run(
            [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return "", ()
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.count(",") == 3]
    if done.returncode or not rows:
        return "", ()
    gpus = tuple(
        Gpu(name=name, compute_capability=capability, memory_mib=int(memory) if memory.isdigit() else None)
        for _, name, capability, memory in rows
    )
    return rows[0][0], gpus


def kernel_driver() -> str:
    """Version of the loaded NVIDIA kernel module; "" where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return found[1] if found else ""


def said(*command: str) -> tuple[int | None, str]:
    """(exit code, first line that a program says); (None, "") where it is not there or does not end."""
    tool = shutil.which(command[0])
    if not tool:
        return None, ""
    try:
        done = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode, lines[0] if lines else ""


def gpu_devices() -> tuple[str, ...]:
    """The GPU devices in /dev (on WSL the one that stands for all)."""
    found = [*Path("/dev").glob("nvidia[0-9]*"), *(p for p in (Path("/dev/dxg"),) if p.exists())]
    return tuple(str(path) for path in sorted(found))


def is_wsl() -> bool:
    """Whether this is the Windows Subsystem for Linux."""
    return "microsoft" in platform.release().lower()


def cdi_files() -> tuple[str, ...]:
    """The CDI specifications of this machine."""
    return tuple(str(path) for folder in ("/etc/cdi", "/var/run/cdi") for path in sorted(Path(folder).glob("*.[yj][as]*")))


def _memory_mib() -> int | None:
    try:
        return (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) >> 20
    except (OSError, ValueError):
        return None


def _pretty_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()

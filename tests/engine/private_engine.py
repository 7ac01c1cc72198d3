"""A second Docker engine of the tests' own: own data root, socket and bridge, with a stub GPU hook that attaches nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from validator.engine import connect
from validator.errors import EngineUnavailable

BRIDGE = "imtest0"


@contextmanager
def private_engine(directory: Path, *, gpu_hook: bool, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start dockerd below `directory` (as root) and give its endpoint; stopped and its bridge removed at the end.

    gpu_hook: put a `nvidia-container-runtime-hook` on its PATH, which is all that dockerd looks for before it takes `--gpus`.
    environment: variables for dockerd besides our own.
    """
    environment = {**os.environ, **(environment or {})}
    if gpu_hook:
        hooks = directory / "hooks"
        hooks.mkdir()
        hook = hooks / "nvidia-container-runtime-hook"
        hook.write_text(f'#!/bin/sh\necho "$@" >> {directory}/hook-calls\ncat > {directory}/hook-state\nexit 0\n')
        hook.chmod(0o755)
        environment["PATH"] = f"{hooks}:{environment['PATH']}"
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    subprocess.run(["ip", "addr", "add", "172.30.251.1/24", "dev", BRIDGE], check=True)
    socket = directory / "docker.sock"
    command = [
        "dockerd", "--host", f"unix://{socket}", "--data-root", str(directory / "data"), "--exec-root", str(directory / "exec"),
        "--pidfile", str(directory / "pid"), "--bridge", BRIDGE, "--iptables=false", "--ip-masq=false",
    ]  # fmt: skip
    try:
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(socket, process, directory / "log")
            yield f"unix://{socket}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            # dockerd makes its data root a mount of its own and leaves it when it did not come up.
            subprocess.run(["umount", "--lazy", str(directory / "data")], check=False, capture_output=True)
    finally:
        subprocess.run(["ip", "link", "delete", BRIDGE], check=True)


def _wait(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        if process.poll() is not None:
            break
        with suppress(EngineUnavailable):
            connect((("private", f"unix://{socket}"),), exclusive=True).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"the private engine did not start:\n{log.read_text()[-2000:]}")

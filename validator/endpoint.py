"""Where an engine may be, in the order in which the docker command line and the desktop products look."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from validator.errors import UsageError


def candidates(explicit: str, environ: Mapping[str, str], home: Path) -> tuple[tuple[tuple[str, str], ...], bool]:
    """((source, endpoint), ...) and whether the first one was named by the user, so that no other may be tried.

    explicit: the value of `--docker-host`. Order: that, DOCKER_HOST, the current docker context, then the usual sockets.
    """
    if explicit:
        return (("--docker-host", explicit),), True
    if environ.get("DOCKER_HOST"):
        return (("DOCKER_HOST", environ["DOCKER_HOST"]),), True
    config = Path(environ.get("DOCKER_CONFIG") or home / ".docker")
    context = environ.get("DOCKER_CONTEXT") or _current_context(config / "config.json")
    if context and context != "default":
        return ((f"docker context {context}", f"context://{context}"),), True
    runtime = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    sockets = (
        ("default socket", Path("/var/run/docker.sock")),
        ("rootless", runtime / "docker.sock"),
        ("rootless", home / ".docker/run/docker.sock"),
        ("Docker Desktop", home / ".docker/desktop/docker.sock"),
        ("Rancher Desktop", home / ".rd/docker.sock"),
        ("Colima", home / ".colima/default/docker.sock"),
        ("OrbStack", home / ".orbstack/run/docker.sock"),
        ("podman", runtime / "podman/podman.sock"),
        ("podman", Path("/run/podman/podman.sock")),
    )
    return tuple((source, f"unix://{path}") for source, path in sockets), False


def _current_context(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ""
    try:
        return str(json.loads(text).get("currentContext") or "")
    except (json.JSONDecodeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not valid JSON: {error}", "repair or remove the file; docker itself cannot read it"
        ) from error

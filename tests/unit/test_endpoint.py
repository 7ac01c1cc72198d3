"""Where an engine is looked for: what the user names is used alone; else the usual sockets in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validator.endpoint import candidates
from validator.errors import UsageError


def test_the_option_stands_over_the_variable_and_that_over_the_context(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(json.dumps({"currentContext": "lab"}))
    environment = {"DOCKER_HOST": "tcp://h:1"}
    assert candidates("ssh://x", environment, tmp_path) == ((("--docker-host", "ssh://x"),), True)
    assert candidates("", environment, tmp_path) == ((("DOCKER_HOST", "tcp://h:1"),), True)
    assert candidates("", {}, tmp_path) == ((("docker context lab", "context://lab"),), True)
    assert candidates("", {"DOCKER_CONTEXT": "other"}, tmp_path)[0][0][0] == "docker context other"


def test_with_nothing_named_the_usual_sockets_are_tried_in_order(tmp_path: Path) -> None:
    found, named = candidates("", {"XDG_RUNTIME_DIR": "/run/user/7"}, tmp_path)
    assert not named
    assert [endpoint for _, endpoint in found[:3]] == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/7/docker.sock",
        f"unix://{tmp_path}/.docker/run/docker.sock",
    ]
    assert any("podman" in endpoint for _, endpoint in found)


def test_the_default_context_means_the_usual_sockets(tmp_path: Path) -> None:
    assert candidates("", {"DOCKER_CONTEXT": "default"}, tmp_path)[1] is False


def test_a_broken_docker_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json is not valid JSON"):
        candidates("", {"DOCKER_CONFIG": str(tmp_path)}, tmp_path)

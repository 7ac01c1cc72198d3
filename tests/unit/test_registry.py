"""References, mirrors, and registries that are out of reach: asked once, never charged to an image."""

from __future__ import annotations

import pytest

from tests.scripted_engine import ScriptedEngine
from validator.model import VerdictClass
from validator.registry import Registries, parse_reference


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("debian:bookworm-slim", "docker.io/library/debian:bookworm-slim"),
        ("pytorch/pytorch:2.6.0", "docker.io/pytorch/pytorch:2.6.0"),
        ("nvcr.io/nvidia/pytorch:24.07-py3", "nvcr.io/nvidia/pytorch:24.07-py3"),
        ("localhost:5000/x:1", "localhost:5000/x:1"),
        ("localhost/x", "localhost/x:latest"),
        ("x/y@sha256:ab", "docker.io/x/y@sha256:ab"),
        ("x/y:1@sha256:ab", "docker.io/x/y@sha256:ab"),
    ],
)
def test_references_are_read_as_docker_reads_them(text: str, full: str) -> None:
    assert parse_reference(text).text == full


def unreachable() -> ScriptedEngine:
    text = 'Get "https://nvcr.io/v2/": dial tcp: lookup nvcr.io on 10.0.0.1:53: no such host'
    return ScriptedEngine(refusals={"remote nvcr.io": text})


def test_a_registry_out_of_reach_is_asked_once_for_all_its_tags() -> None:
    engine = unreachable()
    registries = Registries(engine)
    references = tuple(f"nvcr.io/nvidia/pytorch:24.{n:02}-py3" for n in range(1, 13))
    assert list(registries.examine(references)) == ["nvcr.io"]
    assert len(engine.calls) == 1
    verdict = registries.unreachable(references[5])
    assert verdict is not None
    assert (verdict.cls, verdict.code) == (VerdictClass.INFRA, "registry-unreachable")


def test_a_registry_that_answers_no_such_tag_is_reachable() -> None:
    registries = Registries(ScriptedEngine())
    assert registries.examine(("docker.io/x/y:1",)) == {}
    assert registries.unreachable("x/y:1") is None


def test_a_mirror_is_asked_first_and_saves_a_registry_out_of_reach() -> None:
    registries = Registries(unreachable(), {"nvcr.io": ("mirror.example.com",)})
    registries.examine(("nvcr.io/nvidia/pytorch:24.07-py3",))
    assert registries.unreachable("nvcr.io/nvidia/pytorch:24.07-py3") is None
    assert registries.sources("nvcr.io/nvidia/pytorch:24.07-py3")[0] == "mirror.example.com/nvidia/pytorch:24.07-py3"

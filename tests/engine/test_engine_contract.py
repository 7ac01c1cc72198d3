"""What the product relies on in an engine, asked of the real one and of the scripted double alike."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.engine.conftest import LABELS
from tests.scripted_engine import ScriptedEngine
from validator.engine import ContainerSpec, DockerEngine, Engine, EngineError, Exit, LocalImage
from validator.gpus import parse_gpus


@dataclass(frozen=True)
class Subject:
    """An engine and an image in which the programs of the tests exist."""

    engine: Engine
    image: LocalImage


def _echo(spec, out, err):  # type: ignore[no-untyped-def]
    out(" ".join(spec.command[1:]).encode() + b"\n")
    return Exit(code=0, started=True)


def _shell(spec, out, err):  # type: ignore[no-untyped-def]
    script = spec.command[-1]
    if script == "echo out; echo err >&2; exit 7":
        out(b"out\n")
        err(b"err\n")
        return Exit(code=7, started=True)
    if script == "echo first; sleep 30":
        out(b"first\n")
        return Exit(code=137, started=True, timed_out=True)
    if script == "yes":
        out(b"y\n" * 2000)
        return Exit(code=137, started=True, truncated=True)
    raise AssertionError(script)


@pytest.fixture(params=["real", "scripted"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "real":
        yield Subject(request.getfixturevalue("engine"), request.getfixturevalue("base"))
        return
    engine = ScriptedEngine(programs={"/bin/echo": _echo, "/bin/sh": _shell})
    image = engine.import_rootfs(io.BytesIO(), reference="scripted:base", changes=())
    engine.files[image.id] = frozenset({"/bin/sh", "/bin/echo"})
    yield Subject(engine, image)


def run(subject: Subject, *command: str, **options: object) -> tuple[Exit, bytes, bytes]:
    out, err = bytearray(), bytearray()
    spec = ContainerSpec(image_id=subject.image.id, command=command, labels=LABELS, **options)  # type: ignore[arg-type]
    ended = subject.engine.run(spec, out.extend, err.extend)
    return ended, bytes(out), bytes(err)


def test_output_and_exit_code_come_back(subject: Subject) -> None:
    ended, out, err = run(subject, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ended.started, ended.code, out, err) == (True, 7, b"out\n", b"err\n")


def test_entrypoint_replaces_the_images_own(subject: Subject) -> None:
    ended, out, _ = run(subject, "x", "hello", entrypoint=("/bin/echo",))
    assert ended.code == 0
    assert b"hello" in out


def test_a_program_that_is_not_there_never_starts(subject: Subject) -> None:
    ended, _, _ = run(subject, "/not/there")
    assert not ended.started
    assert "/not/there" in ended.error


def test_a_deadline_kills_and_keeps_what_came_before(subject: Subject) -> None:
    before = time.monotonic()
    ended, out, _ = run(subject, "/bin/sh", "-c", "echo first; sleep 30", timeout=2.0)
    assert ended.timed_out
    assert out == b"first\n"
    assert time.monotonic() - before < 20


def test_endless_output_is_stopped_at_the_limit(subject: Subject) -> None:
    ended, out, _ = run(subject, "/bin/sh", "-c", "yes", output_limit=1000, timeout=30.0)
    assert ended.truncated
    assert not ended.timed_out
    assert len(out) >= 1000


def test_a_gpu_request_is_refused_before_the_start_where_there_is_no_runtime(subject: Subject) -> None:
    if subject.engine.info().gpu_runtimes:
        pytest.skip("this engine has a GPU runtime")
    ended, _, _ = run(subject, "/bin/echo", "hello", gpus=parse_gpus("all"))
    assert not ended.started
    assert "could not select device driver" in ended.error


def test_no_container_is_left_behind(subject: Subject) -> None:
    run(subject, "/bin/echo", "hello")
    run(subject, "/not/there")
    assert subject.engine.containers("io.image-matrix.test") == ()


def test_paths_are_found_without_running_anything(subject: Subject) -> None:
    assert subject.engine.paths_present(subject.image.id, ("/bin/sh", "/bin/no-such"), LABELS) == ("/bin/sh",)
    assert subject.engine.containers("io.image-matrix.test") == ()


def test_import_inspect_remove(subject: Subject) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("etc-release"))
    archive.seek(0)
    made = subject.engine.import_rootfs(archive, reference="image-matrix/contract:1", changes=("LABEL a.b=c",))
    assert subject.engine.image("image-matrix/contract:1") == made
    assert made.labels["a.b"] == "c"
    assert [image.id for image in subject.engine.labelled_images("a.b")] == [made.id]
    assert subject.engine.remove_image("image-matrix/contract:1") is True
    assert subject.engine.image(made.id) is None
    assert subject.engine.remove_image(made.id) is False


def test_an_unknown_image_is_none_and_an_unknown_tag_an_engine_error(subject: Subject) -> None:
    assert subject.engine.image("image-matrix/never-made:1") is None
    with pytest.raises(EngineError):
        subject.engine.remote("registry.invalid/nothing:1")


def test_hardened_containers_have_no_network_and_no_capabilities(engine: DockerEngine, base: LocalImage) -> None:
    ended, out, _ = run(
        Subject(engine, base), "/bin/sh", "-c", "grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /sys/class/net"
    )
    assert ended.code == 0
    assert b"CapEff:\t0000000000000000" in out
    assert b"NoNewPrivs:\t1" in out
    assert out.split()[-1] == b"lo"

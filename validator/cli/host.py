"""Verbs about this host and its engine: doctor, clean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from validator.cli.given import the_engine
from validator.cli.options import Json, settings
from validator.cli.output import put, put_json, talk, width
from validator.errors import EnvironmentProblem

if TYPE_CHECKING:
    from validator.doctor import Seen
    from validator.engine import Engine


def doctor(
    engine: Annotated[bool, typer.Option("--engine", help="only say which engine answers; exit 4 when none does")] = False,
    as_json: Json = False,
) -> None:
    """Look at engine, GPU, driver, disk and logins; each line says ok, warning or problem, and what to do. Changes nothing."""
    from dataclasses import asdict

    from validator.doctor import State, examine
    from validator.publish.doctor import render

    found = the_engine()
    if engine:
        put(found.endpoint)
        return
    checks = examine(_seen(found))
    if as_json:
        put_json([asdict(check) for check in checks])
    else:
        put(render(checks, width()))
    if any(check.state is State.PROBLEM for check in checks):
        raise EnvironmentProblem("something cannot work on this host", "do what the lines say that are marked problem")


def _seen(engine: Engine) -> Seen:
    """Look around. The GPU request is tried with an empty container, which is removed again."""
    import os
    from importlib import metadata

    from validator import machine
    from validator.context import host_settings
    from validator.doctor import Seen
    from validator.engine import logins
    from validator.gpus import GpuRequest
    from validator.preflight import examine
    from validator.run import mask
    from validator.schedule import run_labels

    before = examine(engine, run_labels("doctor"), GpuRequest(count=-1))
    _, failed = (0, "") if before.host.gpus else machine.said("nvidia-smi", "-L")
    given = host_settings(os.environ)
    installed = {}
    for name, wanted in _locked().items():
        try:
            installed[name] = (metadata.version(name), wanted)
        except metadata.PackageNotFoundError:
            installed[name] = ("", wanted)
    return Seen(
        info=before.info, endpoint=engine.endpoint, source=_source(engine.endpoint), gpu=before.gpu, gpu_reason=before.gpu_reason, local=before.local,
        wsl=machine.is_wsl(), gpu_devices=machine.gpu_devices(), gpus=tuple(gpu.name for gpu in before.host.gpus), driver=before.host.driver,
        kernel_driver=machine.kernel_driver(), driver_error=failed, toolkit=machine.said("nvidia-ctk", "--version")[1],
        cdi=machine.cdi_files(), logins=logins(), disk_free=before.disk_free(), packages=installed,
        settings=(
            *((("CA bundle", str(given.ca_bundle)),) if given.ca_bundle else ()),
            *((("wheels", " ".join(map(str, given.wheel_directories))),) if given.wheel_directories else ()),
            *((name, mask(value)) for name, value in given.proxies),
        ),
    )  # fmt: skip


def _source(endpoint: str) -> str:
    """Where the idea of this endpoint came from."""
    import os
    from pathlib import Path

    from validator.endpoint import candidates

    found, _ = candidates(settings.docker_host, os.environ, Path.home())
    return next((source for source, one in found if one == endpoint), found[0][0])


def _locked() -> dict[str, str]:
    """Our own dependencies with the versions that we test with; {} outside a checkout, where pip has seen to them."""
    import re

    from validator.data import data_path

    try:
        text = data_path("requirements.lock").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(re.findall(r"^([\w.-]+)==(\S+)(?! ;)(?: \\)?$", text, re.MULTILINE))


def clean(images: Annotated[bool, typer.Option("--images", help="also remove the images that we built")] = False) -> None:
    """Remove what we left on the engine: containers of dead runs, build stages and, when asked, our images. Nothing else."""
    from validator.engine import LABEL

    engine = the_engine()
    sweep_engine(engine)
    stages = sum(engine.remove_untagged(f"{LABEL}.stage={stage}") for stage in ("build", "tools"))
    removed = 0
    if images:
        for label in (f"{LABEL}.id", f"{LABEL}.base"):
            removed += sum(engine.remove_image(image.id) for image in engine.labelled_images(label))
    talk(f"removed {stages} build stage(s) and {removed} image(s)")


def sweep_engine(engine: Engine) -> None:
    from validator.schedule import sweep

    left = sweep(engine)
    if left:
        talk(f"removed {left} container(s) that a killed run of ours had left")

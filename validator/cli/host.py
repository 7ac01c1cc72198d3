"""Verbs about this host and its engine: doctor, clean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from validator.cli.given import the_engine
from validator.cli.options import Json
from validator.cli.output import put, put_json, talk

if TYPE_CHECKING:
    from validator.engine import Engine


def doctor(
    engine: Annotated[bool, typer.Option("--engine", help="only say which engine answers; exit 4 when none does")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with this host. Changes nothing."""
    found = the_engine()
    if engine:
        put(found.endpoint)
        return
    info = found.info()
    lines = {
        "endpoint": found.endpoint,
        "engine": f"{info.version} (API {info.api})",
        "machine": f"{info.os}, {info.cores} cores, {info.memory >> 30} GiB memory, {info.platform}",
        "data root": info.root,
        "GPU runtimes": ", ".join(info.gpu_runtimes) or "none named; `--gpus` may be refused",
    }
    if as_json:
        put_json(lines)
    else:
        for name, text in lines.items():
            put(f"{name:13} {text}")


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

"""Verbs about the matrix itself: list, lint, schema, render. None needs an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from validator.cli.given import chosen_images, the_matrix
from validator.cli.options import Json, Keyword, Selection
from validator.cli.output import put, put_json, talk
from validator.errors import FindingsFound

if TYPE_CHECKING:
    from validator.model import Image


def list_(select: Selection = None, keyword: Keyword = "", as_json: Json = False) -> None:
    """Show the images of the matrix, expanded, and what was excluded and why."""
    matrix, images = chosen_images(select, keyword)
    if as_json:
        put_json([_row(image) for image in images])
        return
    width = max(len(image.id) for image in images)
    for image in images:
        mark = "  (tag inferred, not seen)" if image.inferred else ""
        put(f"{image.id:{width}}  {image.kind:6}  {_reference(image)}{mark}")
    talk(f"{len(images)} of {len(matrix.images)} images selected, {len(matrix.excluded)} excluded")


def _reference(image: Image) -> str:
    from validator.model import Slim

    source = image.source
    if isinstance(source, Slim):
        return f"torch {source.torch} from index {source.index} on {source.base.name} (Python {source.python})"
    return source.reference


def _row(image: Image) -> dict[str, Any]:
    return {
        "id": image.id,
        "family": image.family,
        "kind": image.kind,
        "from": _reference(image),
        "declared": dict(image.declared),
        "inferred": image.inferred,
    }


def lint() -> None:
    """Check images.yaml, its JSON Schema and the templates, without an engine."""
    from validator.data import data_path
    from validator.matrix import schema
    from validator.render import render

    matrix = the_matrix()
    for image in matrix.images:
        render(image)
    path = data_path("images.schema.json")
    if json.loads(path.read_text(encoding="utf-8")) != schema():
        raise FindingsFound(f"{path} is not what the code generates", "run `image-matrix lint --write-schema` or `make schema`")
    talk(f"{matrix.path}: {len(matrix.images)} images, {len(matrix.excluded)} excluded, templates render, no problem found")


def schema(write: Annotated[bool, typer.Option("--write", help="write images.schema.json beside the matrix")] = False) -> None:
    """Print the JSON Schema of images.yaml (for editors)."""
    from validator.data import data_path
    from validator.matrix import schema as make

    text = json.dumps(make(), indent=2, sort_keys=True) + "\n"
    if write:
        data_path("images.schema.json").write_text(text, encoding="utf-8")
    else:
        put(text)


def render_(
    select: Selection = None,
    keyword: Keyword = "",
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 when a file would change")] = False,
    out: Annotated[
        Path | None, typer.Option(help="where to write [default: dockerfiles/rendered/]", show_default=False)
    ] = None,
) -> None:
    """Write every image's Dockerfile to dockerfiles/rendered/, or print one when a single id is given."""
    from validator.data import data_path
    from validator.render import drift, render, write_all

    matrix, images = chosen_images(select, keyword)
    target = out or data_path("dockerfiles") / "rendered"
    if check:
        changed = drift(matrix, target)
        if changed:
            raise FindingsFound(
                "rendered Dockerfiles differ: " + ", ".join(changed[:5]), "run `image-matrix render` and commit the result"
            )
        talk(f"{len(matrix.images)} Dockerfiles are current")
    elif len(images) == 1 and select and out is None:
        put(render(images[0]))
    else:
        write_all(matrix, target)
        talk(f"{len(matrix.images)} Dockerfiles written to {target}")

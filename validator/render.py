"""An image to its Dockerfile text: deterministic, every variable defined, and the same by hand as through the SDK."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import jinja2

from validator.data import data_path
from validator.errors import UsageError
from validator.model import Image, Matrix, Pull

UV_VERSION = "0.13.9"
TORCH_INDEX = "https://download.pytorch.org/whl/"


def index_url(index: str) -> str:
    """The package index that a row's `index` stands for: "" for the default one, PyTorch's own for "cpu", "cu126", ..."""
    if index == "pypi":
        return ""
    return index if "://" in index else TORCH_INDEX + index


@cache
def _environment(folder: Path) -> jinja2.Environment:
    # No autoescape: these are Dockerfiles. What comes from the matrix file is checked there and quoted by the filters here.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["shell"] = shlex.quote
    environment.filters["label"] = lambda text: json.dumps(str(text)).replace("$", "\\$")
    return environment


def render(image: Image, folder: Path | None = None) -> str:
    """The Dockerfile of `image`. folder: where the templates are. Raises UsageError naming template and line."""
    source = image.source
    if isinstance(source, Pull):
        template = "extended.Dockerfile.j2" if source.packages else "pulled.Dockerfile.j2"
        values = {"reference": source.reference}
    else:
        template = "slim.Dockerfile.j2"
        registry = next(
            (s.reference for s in source.base.sources if s.kind == "registry"), f"image-matrix/base:{source.base.name}"
        )
        values = {"reference": registry, "index_url": index_url(source.index), "uv_version": UV_VERSION}
    place = folder or data_path("dockerfiles")
    try:
        return _environment(place).get_template(template).render(image=image, source=source, packages=source.packages, **values)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"{place / template}:{error.lineno}: {error.message}", "correct the template") from error
    except jinja2.TemplateNotFound as error:
        raise UsageError(f"the template {place / str(error)} is not there", "restore it from the repository") from error
    except jinja2.UndefinedError as error:
        line = _line_in(template, error)
        raise UsageError(
            f"{place / template}:{line}: {error.message} (rendering {image.id})",
            "the templates know: image, source, packages, reference; slim ones also index_url and uv_version",
        ) from error


def _line_in(template: str, error: BaseException) -> int:
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith(template):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def write_all(matrix: Matrix, out: Path) -> None:
    """Write <out>/<id>/Dockerfile for every image, and remove those of images that are no more."""
    for image in matrix.images:
        path = out / image.id / "Dockerfile"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(image), encoding="utf-8")
    for path in _stale(matrix, out):
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def drift(matrix: Matrix, out: Path) -> list[str]:
    """The ids whose file on disk differs from what would be rendered, missing and stale ones included."""
    wrong = []
    for image in matrix.images:
        path = out / image.id / "Dockerfile"
        if not path.is_file() or path.read_text(encoding="utf-8") != render(image):
            wrong.append(image.id)
    return wrong + [path.parent.name for path in _stale(matrix, out)]


def _stale(matrix: Matrix, out: Path) -> list[Path]:
    ids = {image.id for image in matrix.images}
    return [path for path in sorted(out.glob("*/Dockerfile")) if path.parent.name not in ids]

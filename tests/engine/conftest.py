"""A real engine, and the images that the tests need: the Debian base, one image with Python only, one with torch for the CPU."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from validator.base import find_base
from validator.endpoint import candidates
from validator.engine import LABEL, DockerEngine, LocalImage, connect
from validator.matrix import load
from validator.registry import Registries

ROOT = Path(__file__).parents[2]
LABELS = {f"{LABEL}.run": "tests", f"{LABEL}.test": "yes"}


@pytest.fixture(scope="session")
def engine() -> DockerEngine:
    """The engine that `make test` has seen to. Its absence is a failure, not a skip: these tests are the product's proof."""
    found, exclusive = candidates("", os.environ, Path.home())
    return connect(found, exclusive=exclusive)


@pytest.fixture(scope="session")
def base(engine: DockerEngine) -> LocalImage:
    """Debian bookworm as the default matrix would get it here: pulled, or made by mmdebstrap. No Python in it."""
    matrix = load(ROOT / "images.yaml")
    row = next(image for image in matrix.images if image.id == "slim-torch2.13.0-cpu-py3.11-bookworm")
    registries = Registries(engine, dict(matrix.mirrors))
    found = find_base(engine, row.source.base, registries, platform="linux/amd64", say=print, environ=os.environ)
    image = engine.image(found.reference)
    assert image is not None
    return image


def build(engine: DockerEngine, dockerfile: str, files: dict[str, str] | None = None) -> LocalImage:
    """Build a small image from a Dockerfile text and a few files, labelled as ours."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in {"Dockerfile": dockerfile, **(files or {})}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            info.mode = 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    buffer.seek(0)
    return engine.build(buffer, arguments={}, labels=LABELS, on_line=lambda line: None)


@pytest.fixture(scope="session")
def python_image(engine: DockerEngine, base: LocalImage) -> Iterator[LocalImage]:
    """Debian with Python and no torch."""
    image = build(
        engine,
        f"FROM {base.id}\nRUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*\n",
    )
    yield image
    engine.remove_image(image.id)

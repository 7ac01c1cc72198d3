"""A real engine, and the images that the tests need: the Debian base, Debian with Python, torch for the CPU."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from validator.base import find_base
from validator.endpoint import candidates
from validator.engine import LABEL, DockerEngine, LocalImage, connect
from validator.matrix import load
from validator.model import Slim
from validator.registry import Registries

ROOT = Path(__file__).parents[2]
LABELS = {f"{LABEL}.run": "tests", f"{LABEL}.test": "yes"}
CPU_IMAGE = "slim-torch2.13.0-cpu-py3.11-bookworm"


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    """The engine that `make test` has seen to. Its absence is a failure, not a skip: these tests are the product's proof."""
    found, exclusive = candidates("", os.environ, Path.home())
    engine = connect(found, exclusive=exclusive)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def base(engine: DockerEngine) -> LocalImage:
    """Debian bookworm as the default matrix would get it here: pulled, or made by mmdebstrap. No Python in it."""
    matrix = load(ROOT / "images.yaml")
    row = next(image for image in matrix.images if image.id == CPU_IMAGE)
    assert isinstance(row.source, Slim)
    registries = Registries(engine, dict(matrix.mirrors))
    registries.examine(("debian:bookworm-slim",))
    found = find_base(engine, row.source.base, registries, platform="linux/amd64", say=lambda _: None, environ=os.environ)
    image = engine.image(found.reference)
    assert image is not None
    return image


def build(engine: DockerEngine, dockerfile: str, files: dict[str, str] | None = None, tag: str = "") -> LocalImage:
    """Build a small image from a Dockerfile text and a few files, labelled as the tests'."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in {"Dockerfile": dockerfile, **(files or {})}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            info.mode = 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    buffer.seek(0)
    return engine.build(buffer, tag=tag, arguments={}, labels=LABELS, on_line=lambda _: None)


@pytest.fixture(scope="session")
def python_image(engine: DockerEngine, base: LocalImage) -> Iterator[LocalImage]:
    """Debian with Python and no torch: the small image of the tests."""
    install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*"
    # Tagged, because the engine removes untagged parents together with their last child.
    image = build(engine, f"FROM {base.id}\nRUN {install}\n", tag="image-matrix/tests:python")
    yield image
    engine.remove_image(image.id)


def image_matrix(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "validator", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=900,
    )


@pytest.fixture(scope="session")
def cpu_run(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results directory of one real run: torch for the CPU built (or taken from the engine's build cache) and probed."""
    results = tmp_path_factory.mktemp("results")
    done = image_matrix("--results", str(results), "matrix", "--keep", CPU_IMAGE)
    assert done.returncode == 0, done.stderr
    (results / "stderr").write_text(done.stderr)
    (results / "stdout").write_text(done.stdout)
    return results

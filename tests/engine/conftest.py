"""A real engine, and the images that the tests need: the Debian base, Debian with Python, torch for the CPU."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import pytest

from validator.acquire import Acquired, Acquirer
from validator.base import find_base
from validator.context import HostSettings
from validator.endpoint import candidates
from validator.engine import LABEL, DockerEngine, LocalImage, connect
from validator.matrix import load
from validator.model import GpuWish, Image, ImageIdentity, Pull, Record, RunOptions, Slim
from validator.preflight import examine
from validator.probe import ProbeOptions
from validator.registry import Registries
from validator.run import ImageRunner
from validator.store import Store

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


@dataclass(kw_only=True)
class Here(Acquirer):
    """An Acquirer for an image that is on the engine already."""

    local: LocalImage

    def acquire(self, image: Image, step: Callable[[str], None], log: Callable[[str], None]) -> Acquired:
        identity = ImageIdentity(
            id=image.id, family=image.family, kind=image.kind, image_id=self.local.id, declared=dict(image.declared)
        )
        return Acquired(image=self.local, identity=identity, brought=False)


Probe = Callable[..., Record]


@pytest.fixture
def probe(engine: DockerEngine, python_image: LocalImage, tmp_path: Path) -> Iterator[Probe]:
    """Build an image on top of Debian + Python (or another), probe it, and give the record."""
    made: list[str] = []

    def run(
        dockerfile: str = "", files: dict[str, str] | None = None, *, on: LocalImage = python_image, tier: str = "quick",
        cases: tuple[str, ...] = (),         import_timeout: float = 5.0, declared: tuple[tuple[str, str], ...] = (), **options: object,
    ) -> Record:  # fmt: skip
        local = on
        if dockerfile or files:
            copies = "".join(f"COPY {name} {name}\n" for name in files or {})
            local = build(engine, f"FROM {on.id}\n{copies}{dockerfile}\n", files)
            made.append(local.id)
        acquirer = Here(
            engine=engine,
            registries=Registries(engine),
            settings=HostSettings(),
            environ=os.environ,
            labels=LABELS,
            local=local,
        )
        runner = ImageRunner(
            engine=engine, acquirer=acquirer, preflight=examine(engine, LABELS, None), options=ProbeOptions(tier=tier, import_timeout=import_timeout, cases=cases),
            labels=LABELS, run_id="tests", now=lambda: datetime.now(UTC), clock=monotonic,
        )  # fmt: skip
        row = Image(
            id="under-test",
            family="tests",
            source=Pull(reference="x:1"),
            declared=declared,
            run=RunOptions(gpu=GpuWish.PREFERRED, **options),  # type: ignore[arg-type]
        )
        lines: list[str] = []
        record, _ = runner.test(row, "0" * 16, lambda _: None, lines.append)
        return record

    yield run
    for ident in made:
        engine.remove_image(ident)
    assert engine.containers("io.image-matrix.test") == ()


def codes(record: Record) -> set[str]:
    return {finding.code for finding in record.findings}


@pytest.fixture(scope="session")
def torch_image(engine: DockerEngine, cpu_run: Path) -> LocalImage:
    """The image of `cpu_run`, which is still on the engine: torch for the CPU in /opt/venv."""
    (record,) = Store(cpu_run).records()
    image = engine.image(record.image.image_id)
    assert image is not None
    return image

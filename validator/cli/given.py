"""What the options before the verb and the selection lead to: matrix, images, results, engine, cases."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from validator.cli.options import settings
from validator.cli.output import talk
from validator.errors import UsageError

if TYPE_CHECKING:
    from validator.engine import Engine
    from validator.model import Image, Matrix, Record
    from validator.store import Store

INSTALL_HINT = "start the engine you have, name one with --docker-host or DOCKER_HOST, or on Debian and Ubuntu as root run: scripts/ensure-engine"


def now() -> datetime:
    """The moment, in UTC."""
    return datetime.now(UTC)


def the_matrix() -> Matrix:
    """The matrix file that was named, else the project's."""
    from validator.data import data_path
    from validator.matrix import load

    return load(settings.config or data_path("images.yaml"))


def chosen_images(patterns: list[str] | None, keyword: str) -> tuple[Matrix, tuple[Image, ...]]:
    """The matrix and those of its images that the selection means."""
    from validator.select import select

    matrix = the_matrix()
    return matrix, select(matrix, tuple(patterns or ()), keyword)


def the_store(*, reading: bool = False, only: Sequence[str] | None = None) -> Store:
    """The results directory. reading: where the user has none, the records that came with the product; only: as Store takes it."""
    from validator.data import data_path, shipped_results
    from validator.store import Store

    return Store(settings.results or (shipped_results() if reading else data_path("results")), only)


def records_by_image(only: Sequence[str]) -> tuple[dict[str, list[Record]], tuple[Record, ...]]:
    """All records by image, and those that stand for each image and host, with the cases `only`.

    What cannot be read is named and left out.
    """
    store = the_store(reading=True, only=only)
    found: dict[str, list[Record]] = {}
    for record in store.records():
        found.setdefault(record.image.id, []).append(record)
    for problem in store.problems:
        talk(f"image-matrix: left out, cannot be read: {problem}")
    return found, tuple(store.latest().values())


def the_engine() -> Engine:
    """The engine that answers."""
    from validator.endpoint import candidates
    from validator.engine import connect

    found, exclusive = candidates(settings.docker_host, os.environ, Path.home())
    return connect(found, exclusive=exclusive, install_hint=INSTALL_HINT)


def check_cases(globs: Sequence[str]) -> None:
    """Raise UsageError for a glob that no case of the probe matches."""
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    from validator import probe

    ids = [case["id"] for case in probe.cases()]
    for glob in globs:
        if not any(fnmatchcase(ident, glob) for ident in ids):
            near = get_close_matches(glob, ids, n=3)
            raise UsageError(
                f"no case matches {glob!r}",
                f"did you mean {', '.join(near)}?" if near else "a glob over ids like 'csr.mm.*.cpu'",
            )


def check_tier(tier: str) -> None:
    """Raise UsageError for a tier that is none."""
    if tier not in ("quick", "standard", "full"):
        raise UsageError(f"unknown tier {tier!r}", "use quick, standard or full")

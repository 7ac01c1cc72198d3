"""The facts files -> `Facts`. They are ours, so a mistake in one is a bug: the tests read them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from validator.facts.schema import Cuda, Entry, Facts, Gpus, Ngc, Torch

HERE = Path(__file__).parent
FILES: dict[str, type[Any]] = {"gpus": Gpus, "cuda": Cuda, "torch": Torch, "ngc": Ngc}
File = TypeVar("File")


@cache
def load() -> Facts:
    """All facts. Raises ValueError (pydantic's) naming file and place when one has not the shape of schema.py."""
    return Facts(gpus=read("gpus", Gpus), cuda=read("cuda", Cuda), torch=read("torch", Torch), ngc=read("ngc", Ngc))


def read(name: str, kind: type[File]) -> File:
    """One file as `kind`; keys that the schema does not know are refused."""
    return TypeAdapter(kind).validate_python(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))


def entries(file: Any) -> Iterator[Entry]:
    """Every entry of a file, in the file's order."""
    for value in vars(file).values():
        if isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Entry))

"""The options of the command line: those that stand before the verb, and those that several verbs share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass
class Settings:
    """The options that stand before the verb."""

    config: Path | None = None
    results: Path | None = None
    docker_host: str = ""


settings = Settings()

Selection = Annotated[
    list[str] | None, typer.Argument(help="image ids or globs: 'slim-*', 'ngc-24.*', '!*-devel'", show_default=False)
]
Keyword = Annotated[str, typer.Option("-k", help="expression over ids: 'slim and not cpu'", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="machine-readable output on stdout")]
Cases = Annotated[
    list[str] | None, typer.Option("--cases", help="only these cases (globs); may be repeated", show_default=False)
]
Tier = Annotated[str, typer.Option(help="quick | standard | full")]

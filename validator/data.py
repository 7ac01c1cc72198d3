"""Where the product's data files are: beside pyproject.toml in a checkout, in the package of an installed wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def data_path(name: str) -> Path:
    """The path of images.yaml, images.schema.json, dockerfiles or results.

    In a wheel the shipped records are read-only history, so `results` is the folder of that name where the user stands;
    `shipped_results` gives the records of the wheel for those who have none of their own yet.
    """
    checkout = PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "images.yaml").exists():
        return checkout / name
    return Path.cwd() / name if name == "results" else PACKAGE / "_data" / name


def shipped_results() -> Path:
    """Where to read records from: the user's own results where there are any, else those that came with the product."""
    own = data_path("results")
    shipped = PACKAGE / "_data" / "results"
    return own if own.exists() or not shipped.exists() else shipped

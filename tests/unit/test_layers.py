"""The structure of docs/design.md, as a failing test: who may import what."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "validator"
HOMES = {
    "docker": {"engine.py"},
    "yaml": {"matrix.py", "yaml_nodes.py"},
    "jinja2": {"render.py"},
    "tabulate": {"publish/terminal.py", "publish/capabilities.py", "publish/markdown.py", "publish/forecast.py"},
    "torch": {"probe/probe.py"},
    "typer": {
        f"cli/{part}.py"
        for part in ("app", "choose", "forecast", "host", "matrix", "options", "output", "probe", "results", "run", "show")
    },
    "rich": {"cli/output.py", "progress.py"},
}
PURE = (
    "model.py",
    "errors.py",
    "select.py",
    "gpus.py",
    "table.py",
    "plan.py",
    "verdict.py",
    "cells.py",
    "rows.py",
    "profiles.py",
    "sibling.py",
    "record.py",
    "builds.py",
    "capabilities.py",
    "choose.py",
    "drivers.py",
    "forecast.py",
    "health.py",
    "kernels.py",
    "require.py",
    "facts/schema.py",
    "facts/names.py",
    "publish/capabilities.py",
    "publish/choose.py",
    "publish/forecast.py",
    "publish/terminal.py",
    "publish/report.py",
    "publish/markdown.py",
)
EFFECTS = {"validator.engine", "validator.store", "validator.run", "validator.schedule", "validator.acquire", "validator.cli"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("library", HOMES)
def test_each_library_stays_in_its_own_files(library: str) -> None:
    users = {name(path) for path in FILES if any(i.split(".")[0] == library for i in imports(path))}
    assert users <= HOMES[library]
    assert users, f"nobody uses {library}: take it out of the table"


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_know_no_effects(module: str) -> None:
    assert not imports(PACKAGE / module) & EFFECTS


def test_the_probe_knows_only_the_standard_library_and_torch() -> None:
    # expecttest is looked up, and stood in for, only when a person asks for the comparison with torch's own OpInfo database.
    # numpy likewise, after torch: whether the two share memory is a fact of an image.
    allowed = set(sys.stdlib_module_names) | {"torch", "expecttest", "numpy"}
    assert {i.split(".")[0] for i in imports(PACKAGE / "probe/probe.py")} <= allowed


def test_nobody_imports_the_probe() -> None:
    assert not [name(path) for path in FILES if "validator.probe.probe" in imports(path)]


def test_only_the_command_line_knows_the_command_line() -> None:
    def knows(path: Path) -> bool:
        return any(i == "validator.cli" or i.startswith("validator.cli.") for i in imports(path))

    assert {name(path) for path in FILES if knows(path) and not name(path).startswith("cli/")} == {"__main__.py"}


def test_only_the_command_line_prints_or_exits() -> None:
    def talks(path: Path) -> bool:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        texts = {ast.unparse(func) for func in calls}
        return bool(texts & {"print", "sys.exit", "sys.stdout.write", "sys.stderr.write"})

    assert {name(path) for path in FILES if talks(path)} == {"cli/app.py", "cli/output.py", "probe/probe.py"}

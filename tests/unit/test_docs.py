"""What the documents say is what the program does."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from validator import errors
from validator.cli import app
from validator.matrix import load

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "options"),
    [("README.md", ["--profiles"]), ("README.zh-CN.md", ["--profiles"]), ("docs/table.md", [])],
)
def test_the_table_is_what_the_records_say(name: str, options: list[str]) -> None:
    assert "| `slim-" in text(name), "the table is there at all"
    done = subprocess.run(
        [sys.executable, "-m", "validator", "table", *options, "--into", name, "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"run `make readme`: {done.stderr}"


def test_findings_and_claims_are_what_the_records_say() -> None:
    done = subprocess.run([sys.executable, "scripts/docs", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `make readme`: {done.stderr}"


@pytest.mark.parametrize("name", READMES)
def test_exit_codes_are_those_of_the_program(name: str) -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text(name), re.MULTILINE)}
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.ImageMatrixError)]
    assert documented == {0} | {c.exit_code for c in classes}


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads(text("pyproject.toml"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
    names = {re.split(r"[<>=\[]", requirement)[0] for requirement in wanted}
    explained = set(
        re.findall(r"[a-z][\w-]+", "\n".join(re.findall(r"^\| ([^|]+) \|", text("docs/dependencies.md"), re.MULTILINE)))
    )
    assert names <= explained


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_the_lock_holds_every_dependency_with_hashes(lock: str) -> None:
    project = tomllib.loads(text("pyproject.toml"))
    wanted = project["project"]["dependencies"] + (project["dependency-groups"]["dev"] if "dev" in lock else [])
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", text(lock), re.MULTILINE))
    assert {re.split(r"[<>=]", requirement)[0].lower() for requirement in wanted} <= pinned.keys()
    blocks = re.split(r"\n(?=\S)", text(lock).strip())
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_modules_of_the_design_are_those_that_exist() -> None:
    named = set(re.findall(r"`([a-z_]+\.py)`", text("docs/design.md")))
    there = {path.name for path in (ROOT / "validator").glob("*.py") if not path.name.startswith("__")}
    assert there <= named
    assert named <= there | {"test_layers.py", "output.py", "app.py"}


def test_the_example_of_the_matrix_file_is_valid(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", text("docs/matrix.md"), re.DOTALL)
    assert example
    (tmp_path / "images.yaml").write_text(example[1], encoding="utf-8")
    matrix = load(tmp_path / "images.yaml")
    assert {image.kind for image in matrix.images} == {"extend", "build"}
    assert len(matrix.excluded) == 1


def test_every_target_of_make_is_in_its_help() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert targets == set(re.findall(r"^make ([a-z-]+) ", shown, re.MULTILINE))


@pytest.mark.parametrize("script", ["setup", "ensure-engine", "lock", "picture"])
def test_scripts_are_shell_that_parses_and_can_be_executed(script: str) -> None:
    path = ROOT / "scripts" / script
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_every_verb_has_a_sentence_of_help() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        assert (command.callback.__doc__ or "").strip().endswith("."), command.callback.__name__


def test_links_of_the_readme_lead_somewhere() -> None:
    for name in READMES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text(name)):
            assert (ROOT / target).exists(), f"{name}: {target}"

"""Dockerfiles: the committed ones are current, plain, and leave nothing of the first stage behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from validator.errors import UsageError
from validator.matrix import load
from validator.model import Pull
from validator.render import drift, index_url, render, write_all

ROOT = Path(__file__).parents[2]
MATRIX = load(ROOT / "images.yaml")
SLIM = next(image for image in MATRIX.images if image.family == "slim")


def test_the_committed_files_are_current() -> None:
    assert drift(MATRIX, ROOT / "dockerfiles/rendered") == []


def test_drift_finds_changed_missing_and_stale_files_and_writing_mends_all(tmp_path: Path) -> None:
    write_all(MATRIX, tmp_path)
    (tmp_path / SLIM.id / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "ngc-24.07-py3/Dockerfile").unlink()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/Dockerfile").write_text("FROM scratch\n")
    assert set(drift(MATRIX, tmp_path)) == {SLIM.id, "ngc-24.07-py3", "gone"}
    write_all(MATRIX, tmp_path)
    assert drift(MATRIX, tmp_path) == []
    assert not (tmp_path / "gone").exists()


def test_only_what_the_classic_builder_knows() -> None:
    for image in MATRIX.images:
        text = render(image)
        assert "--mount" not in text
        assert "<<" not in text
        assert "syntax=" not in text


def test_the_second_stage_takes_the_environment_and_nothing_else() -> None:
    last = render(SLIM).rpartition("\nFROM ")[2]
    assert [line for line in last.splitlines() if line.startswith("COPY")] == ["COPY --from=build /opt/venv /opt/venv"]
    assert "NVIDIA_VISIBLE_DEVICES=all" in last
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in last
    assert "uv" not in last.replace("/opt/venv", "")


def test_packages_are_quoted_for_the_shell() -> None:
    image = replace(SLIM, source=Pull(reference="x/y:1", packages=("numpy<2; rm -rf x",)))
    assert "'numpy<2; rm -rf x'" in render(image)


@pytest.mark.parametrize(("text", "words"), [("FROM x\n{{ nothing }}\n", ":2: 'nothing' is undefined"), ("{% if %}", ":1:")])
def test_a_mistake_in_a_template_names_file_and_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "slim.Dockerfile.j2").write_text(text)
    with pytest.raises(UsageError) as caught:
        render(SLIM, tmp_path)
    assert f"slim.Dockerfile.j2{words}" in str(caught.value)


def test_indexes() -> None:
    assert index_url("pypi") == ""
    assert index_url("cu126") == "https://download.pytorch.org/whl/cu126"
    assert index_url("https://example.org/simple") == "https://example.org/simple"

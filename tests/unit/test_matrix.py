"""images.yaml: what it expands to, and every mistake with its place and its fix, all in one pass."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from validator.errors import MatrixError
from validator.matrix import load, schema

ROOT = Path(__file__).parents[2]
GOOD = 'families:\n  - name: a\n    pull: "x/y:{tag}"\n    id: "a-{tag}"\n    axes: {tag: ["1", "2"]}\n'


def problems(tmp_path: Path, text: str) -> str:
    (tmp_path / "m.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(MatrixError) as caught:
        load(tmp_path / "m.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (GOOD.replace('"1"', "2.10"), "m.yaml:5:18", 'quote it: "2.10"'),
        (GOOD.replace('"1"', "24.10"), "m.yaml:5:18", 'quote it: "24.10"'),
        (GOOD.replace("    pull:", "    pul:"), "m.yaml:3:5", "did you mean 'pull'?"),
        (GOOD + "    name: b\n", "m.yaml:6:5", "stands twice"),
        (GOOD.replace('["1", "2"]', '["1", "1"]'), "m.yaml:5:11", "the id 'a-1' stands twice"),
        (GOOD + '    exclude:\n      - {tag: "3", reason: x}\n', "m.yaml:7:9", "matches nothing"),
        (GOOD + '    exclude:\n      - {tag: "1"}\n', "m.yaml:7:9", "lacks 'reason'"),
        (GOOD.replace("x/y:{tag}", "x/y"), "m.yaml:5:11", "has no tag"),
        (GOOD + "    gpus: two\n", "m.yaml:6:11", "invalid count"),
        (GOOD + "    shm_size: lots\n", "m.yaml:6:15", "cannot be 'lots'"),
        (GOOD.replace("a-{tag}", "a-{[tag}"), "m.yaml:4:9", "a brace without its partner"),
        ("families: [", "m.yaml:1:12", "not YAML"),
    ],
)
def test_a_mistake_has_its_place_and_its_fix(text: str, place: str, words: str, tmp_path: Path) -> None:
    message = problems(tmp_path, text)
    assert place in message
    assert words in message


def test_all_mistakes_are_found_in_one_pass(tmp_path: Path) -> None:
    message = problems(tmp_path, GOOD.replace('"1"', "2.10") + "    gpus: two\n    colour: red\n")
    assert "3 problem(s)" in message
    assert message.index("2.10") < message.index("two") < message.index("colour")


def test_the_default_matrix_is_what_it_promises() -> None:
    images = load(ROOT / "images.yaml").images
    ids = [image.id for image in images]
    assert sum(i.startswith("ngc-") for i in ids) >= 50
    assert sum(i.startswith("pytorch-") for i in ids) >= 60
    assert {i.rpartition("-")[2] for i in ids if i.startswith("pytorch-")} == {"runtime", "devel"}
    assert sum(image.family == "other" for image in images) >= 10
    slim = [image for image in images if image.family == "slim"]
    assert len(slim) >= 16
    assert {"1.9.1", "2.15.0"} <= {image.declares("torch") for image in slim}


def test_the_schema_is_current_and_the_file_fits_it() -> None:
    committed = json.loads((ROOT / "images.schema.json").read_text(encoding="utf-8"))
    assert committed == schema()
    jsonschema.validate(yaml.safe_load((ROOT / "images.yaml").read_text(encoding="utf-8")), committed)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, len(GOOD)), junk=st.text(max_size=12))
def test_no_text_gives_anything_but_a_matrix_or_its_error(start: int, junk: str, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes((GOOD[:start] + junk + GOOD[start:]).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(MatrixError):
        load(tmp_path / "m.yaml")

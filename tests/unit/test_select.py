"""Which images are meant: globs, braces, negation, `-k`; what matches nothing names the nearest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.errors import NothingSelected, UsageError
from validator.matrix import load
from validator.select import select

MATRIX = load(Path(__file__).parents[2] / "images.yaml")
CPU = "slim-torch2.13.0-cpu-py3.11-bookworm"


def ids(*patterns: str, keyword: str = "") -> list[str]:
    return [image.id for image in select(MATRIX, patterns, keyword)]


def test_nothing_said_means_everything_in_the_files_order() -> None:
    assert ids() == [image.id for image in MATRIX.images]


@pytest.mark.parametrize(
    ("patterns", "keyword", "expected"),
    [
        ((CPU,), "", [CPU]),
        (("slim-torch2.13.0-*", "!*-cu130-*"), "", [CPU]),
        (("slim-torch2.13.0-{cpu,cu999}-*",), "", None),
        ((f"ngc-24.07-py3,{CPU}",), "", [CPU, "ngc-24.07-py3"]),
        ((f"ngc-24.07-py3 {CPU}",), "", [CPU, "ngc-24.07-py3"]),
        ((), "slim and torch2.13.0 and not cu130", [CPU]),
        ((), "(torch2.13.0 and cpu) or 24.07", [CPU, "ngc-24.07-py3"]),
    ],
)
def test_selections(patterns: tuple[str, ...], keyword: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(NothingSelected, match="cu999"):
            ids(*patterns, keyword=keyword)
    else:
        assert ids(*patterns, keyword=keyword) == expected


def test_a_misspelt_id_names_the_nearest() -> None:
    with pytest.raises(NothingSelected) as caught:
        ids("slim-torch2.13.0-cpu-py3.11-bookwrom")
    assert CPU in caught.value.hint


@given(st.text(max_size=30))
def test_no_expression_gives_anything_but_images_or_a_clear_error(text: str) -> None:
    try:
        select(MATRIX, (), text)
    except (UsageError, NothingSelected) as error:
        assert error.message

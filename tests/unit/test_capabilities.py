"""What an image can do beside sparse operations: how it is known never changes what is said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.records import case, record
from validator.capabilities import NAMES, UNKNOWN, Known, capabilities
from validator.model import Outcome
from validator.publish.capabilities import cell, data, lines, render

IMPORTED = {"torch_import": {"state": "ok"}}


def able(name: str, facts: dict[str, Any], *cases: Any) -> tuple[bool | None, Known]:
    found = capabilities(record("slim-a", *cases, facts={**IMPORTED, **facts}))[name]
    return found.able, found.known


def test_where_torch_was_not_imported_nothing_is_known() -> None:
    found = capabilities(record("slim-a", facts={"torch_import": {"state": "error"}, "tools": {"nvcc": {}, "c++": {}}}))
    assert set(found) == set(NAMES)
    assert set(found.values()) == {UNKNOWN}


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("compile", {"compile_cpu": {"state": "ok"}}, (True, Known.EXECUTED)),
        ("compile", {"compile_cpu": {"state": "ok"}, "compile_cuda": {"state": "failed"}}, (False, Known.EXECUTED)),
        ("compile", {"compile_cpu": {"state": "not-compiled"}}, (False, Known.EXECUTED)),
        ("compile", {"tools": {"cc": {}, "c++": {}}, "torch": {}}, (True, Known.MEASURED)),
        ("compile", {"tools": {"cc": {}, "c++": {}}, "torch": {"cuda": "12.4", "packages": {}}}, (False, Known.MEASURED)),
        ("compile", {"tools": {"cc": {}, "c++": {}}, "torch": {"cuda": "12.4", "packages": {"triton": "3"}}}, (True, Known.MEASURED)),
        ("compile", {}, (None, Known.UNKNOWN)),
        ("cusparselt", {"torch": {"cuda": "12.4", "cusparselt": {"available": True, "version": 602}}}, (True, Known.MEASURED)),
        ("cusparselt", {"torch": {"cuda": "12.4", "cusparselt": {"available": False}}}, (False, Known.MEASURED)),
        ("cusparselt", {"torch": {"cuda": None}}, (False, Known.MEASURED)),
        ("cutlass", {"torch": {"semi_structured": {"_sparse_semi_structured_mm": True}}}, (True, Known.MEASURED)),
        ("cutlass", {"torch": {"semi_structured": {"_sparse_semi_structured_mm": False}}}, (False, Known.MEASURED)),
        ("cutlass", {"torch": {}}, (None, Known.UNKNOWN)),
        ("mkl", {"torch": {"mkl": True, "config": "Math Kernel Library Version 2024.2-x"}}, (True, Known.MEASURED)),
        ("mkl", {"torch": {}}, (None, Known.UNKNOWN)),
        ("extensions", {"tools": {"c++": {}, "nvcc": {}}}, (True, Known.MEASURED)),
        ("extensions", {"tools": {"c++": {}}}, (False, Known.MEASURED)),
        ("extensions", {}, (None, Known.UNKNOWN)),
        ("any-user", {"restricted": {"any_user": {"state": "failed"}}}, (False, Known.EXECUTED)),
        ("read-only", {"restricted": {"read_only": {"state": "ok"}}}, (True, Known.EXECUTED)),
        ("read-only", {}, (None, Known.UNKNOWN)),
        ("offline", {}, (True, Known.EXECUTED)),
    ],
)  # fmt: skip
def test_from_facts(name: str, facts: dict[str, Any], expected: tuple[bool | None, Known]) -> None:
    assert able(name, facts) == expected


def test_a_gpu_that_ran_the_cases_says_more_than_registered_kernels() -> None:
    facts = {"torch": {"semi_structured": {"_sparse_semi_structured_mm": True}}}
    assert able("cutlass", facts, case("semi-cutlass.mm.float16.cuda", Outcome.ERROR)) == (False, Known.EXECUTED)
    assert able("cutlass", facts, case("semi-cutlass.mm.float16.cuda", Outcome.NOT_RUN)) == (True, Known.MEASURED)
    assert able("cutlass", facts, case("semi-cutlass.mm.float16.cpu", Outcome.UNSUPPORTED)) == (True, Known.MEASURED)


def test_dtypes_are_told_by_layout_and_the_gpu_speaks_first() -> None:
    cpu = (case("coo.mm.float16.cpu"), case("csr.mm.float16.cpu", Outcome.UNSUPPORTED))
    found = capabilities(record("slim-a", *cpu, facts=IMPORTED))["fp16"]
    assert (found.able, found.detail) == (True, "cpu: coo")
    found = capabilities(record("slim-a", *cpu, case("csr.mm.float16.cuda"), facts=IMPORTED))["fp16"]
    assert (found.able, found.detail) == (True, "cuda: csr")
    assert cell("fp16", found) == "csr"
    assert able("bf16", {}, *cpu) == (None, Known.UNKNOWN)


def test_what_was_done_and_what_only_seems_possible_never_look_alike() -> None:
    one = record("slim-a", facts={**IMPORTED, "tools": {"c++": {}, "nvcc": {}}, "restricted": {"any_user": {"state": "ok"}}})
    found = capabilities(one)
    assert (cell("extensions", found["extensions"]), cell("any-user", found["any-user"])) == ("(yes)", "yes")
    assert cell("read-only", found["read-only"]) == "-"
    text = render([one], width=200)
    assert "(yes)" in text
    assert "nothing was tried" in text
    assert max(map(len, render([one], width=60).splitlines()[:3])) < max(map(len, text.splitlines()[:3])) + 1
    assert data([one])["rows"][0]["capabilities"]["extensions"] == {
        "able": True,
        "known": "measured",
        "detail": "c++ and nvcc are there",
    }
    assert any("executed" in line for line in lines(one))
    assert render([], width=80).startswith("no records yet")


def test_hostile_text_is_made_harmless() -> None:
    one = record("slim-a", facts={**IMPORTED, "compile_cpu": {"state": "failed", "detail": "\x1b[31m\x07"}})
    assert "\x1b" not in "".join(lines(one))

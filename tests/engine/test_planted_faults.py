"""A working torch, spoilt in one way at a time in a real container: the right verdict or finding, with its remedy."""

from __future__ import annotations

import pytest

from tests.engine.conftest import Probe, codes
from validator.capabilities import Known, capabilities
from validator.engine import LocalImage
from validator.model import Record, VerdictClass

LIB = "/opt/venv/lib/python3.11/site-packages/torch/lib"
CASE = ("coo.mm.float32.cpu",)


def remedy(record: Record, code: str) -> str:
    return next(finding.remedy for finding in record.findings if finding.code == code)


def message(record: Record, code: str) -> str:
    return next(finding.message for finding in record.findings if finding.code == code)


def test_a_library_that_is_gone(probe: Probe, torch_image: LocalImage) -> None:
    record = probe(f"RUN rm {LIB}/libc10.so", on=torch_image, cases=CASE, import_timeout=60.0)
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "missing-library")
    assert "libc10.so" in record.verdict.cause
    assert "libc10.so (needed by libtorch" in message(record, "library-missing")
    assert "--force-reinstall" in remedy(record, "library-missing")


def test_a_library_that_is_shadowed_and_no_library(probe: Probe, torch_image: LocalImage) -> None:
    record = probe(
        "ENV LD_LIBRARY_PATH=/shadow", {"/shadow/libgomp.so.1": "no library"}, on=torch_image, cases=CASE, import_timeout=60.0
    )
    assert record.verdict.cls is VerdictClass.IMAGE
    assert {"library-shadowed", "library-broken"} <= codes(record)
    assert message(record, "library-shadowed").startswith(
        "LD_LIBRARY_PATH puts other libraries before torch's own: /shadow/libgomp.so.1 instead of /"
    )
    assert "LD_LIBRARY_PATH" in remedy(record, "library-shadowed")


def test_a_library_that_is_shadowed_by_one_that_works(probe: Probe, torch_image: LocalImage) -> None:
    copy = "RUN mkdir /shadow && cp -L $(ldconfig -p | sed -n 's/.*libgomp.so.1.*=> //p' | head -n 1) /shadow/libgomp.so.1"
    record = probe(f"{copy}\nENV LD_LIBRARY_PATH=/shadow", on=torch_image, cases=CASE, import_timeout=60.0)
    assert record.verdict.cls is VerdictClass.OK
    assert codes(record) >= {"library-shadowed"}


def test_a_torch_for_a_newer_glibc(probe: Probe, torch_image: LocalImage) -> None:
    record = probe(f"RUN sed -i s/GLIBC_2.14/GLIBC_2.99/ {LIB}/libc10.so", on=torch_image, cases=CASE, import_timeout=60.0)
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "glibc-too-old")
    assert "torch needs GLIBC_2.99, the image has GLIBC_2.36" in message(record, "libc-too-old")
    assert "newer distribution" in remedy(record, "libc-too-old")


def test_a_cpu_build_under_a_cuda_name(probe: Probe, torch_image: LocalImage) -> None:
    record = probe(on=torch_image, cases=CASE, import_timeout=60.0, declared=(("torch", "2.12.0"), ("cuda", "12.4")))
    assert record.verdict.cls is VerdictClass.OK, "it is what it is; the tag is what is wrong"
    said = " ".join(finding.message for finding in record.findings)
    assert "12.4" in said
    assert "2.12.0" in said


def test_shared_memory_that_is_too_small_for_workers(probe: Probe, torch_image: LocalImage) -> None:
    record = probe(on=torch_image, cases=CASE, import_timeout=60.0, shm_size="1m")
    assert "/dev/shm has 1 MiB" in message(record, "small-shm")
    assert "--shm-size" in remedy(record, "small-shm")


def test_what_the_image_of_our_own_can_and_cannot(probe: Probe, torch_image: LocalImage) -> None:
    record = probe(on=torch_image, cases=CASE, import_timeout=60.0, tier="full")
    assert codes(record) & {"library-missing", "library-shadowed", "library-broken", "libc-too-old", "small-shm"} == set()
    found = capabilities(record)
    assert found["compile"].able is False
    assert found["compile"].known is Known.EXECUTED
    assert "compiler" in found["compile"].detail
    assert found["extensions"].able is False
    assert "nvcc" in found["extensions"].detail
    for name in ("any-user", "read-only", "offline"):
        assert (found[name].able, found[name].known) == (True, Known.EXECUTED), name
    assert record.facts["config"]["labels"]["io.image-matrix.id"]
    assert record.facts["libraries"]["looked_at"] > 5
    assert record.facts["libraries"]["needs"]["GLIBC"]


@pytest.mark.parametrize(
    ("spoil", "able", "unable"),
    [
        ("RUN chmod 700 /opt/venv", "read-only", "any-user"),
        ("RUN echo \"open('/opt/venv/seen', 'w')\" >> /opt/venv/lib/python3.11/site-packages/torch/__init__.py && chmod 777 /opt/venv", "any-user", "read-only"),
    ],
    ids=["closed to others", "writes beside itself"],
)  # fmt: skip
def test_an_image_that_cannot_live_under_restrictions(
    probe: Probe, torch_image: LocalImage, spoil: str, able: str, unable: str
) -> None:
    record = probe(spoil, on=torch_image, cases=CASE, import_timeout=60.0, tier="full")
    assert record.verdict.cls is VerdictClass.OK, "a capability that is lacking is no failure"
    found = capabilities(record)
    assert (found[able].able, found[unable].able) == (True, False)
    assert found[unable].detail


def test_a_compiler_in_the_image_is_used(probe: Probe, torch_image: LocalImage) -> None:
    # Inductor of torch 2.13 also calls the program openssl, to name a precompiled header.
    programs = "g++ libc6-dev python3-dev openssl"
    install = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {programs} >/dev/null"
    record = probe(f"RUN {install}", on=torch_image, cases=CASE, import_timeout=60.0, tier="full")
    assert record.facts["tools"]["c++"]["version"].startswith("12.")
    found = capabilities(record)["compile"]
    assert (found.able, found.known) == (True, Known.EXECUTED), found

"""What a build gets from this host: exactly the wheels that fit, its CA bundle, proxies, and no more."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from validator.context import HostSettings, build_context, host_settings, local_wheels
from validator.errors import UsageError
from validator.matrix import load
from validator.model import Image, Slim

IMAGES = {image.id: image for image in load(Path(__file__).parents[2] / "images.yaml").images}
CPU = IMAGES["slim-torch2.13.0-cpu-py3.11-bookworm"]
CUDA = IMAGES["slim-torch2.6.0-cu124-py3.11-bookworm"]
GOOD = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def wheels(image: Image, folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).write_bytes(b"wheel")
    return [path.name for path in local_wheels(image, (folder,))]


def test_the_wheel_that_fits_is_taken(tmp_path: Path) -> None:
    assert wheels(CPU, tmp_path, GOOD, "numpy-2.0.0-cp311-cp311-manylinux_2_28_x86_64.whl", "not a wheel.whl") == [GOOD]


@pytest.mark.parametrize(
    "name",
    [
        "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",  # the CUDA build
        "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
        "torch-2.13.0+cpu-cp311-cp311-win_amd64.whl",
        "torch-2.13.1+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.1.3+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
    ],
)
def test_a_wheel_of_another_kind_is_not(name: str, tmp_path: Path) -> None:
    assert wheels(CPU, tmp_path, name) == []


def test_a_cpu_wheel_never_stands_in_for_a_cuda_row(tmp_path: Path) -> None:
    assert wheels(CUDA, tmp_path, "torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl") == []
    assert wheels(CUDA, tmp_path, "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl") == [
        "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"
    ]


def test_packages_of_the_row_are_taken_too(tmp_path: Path) -> None:
    assert isinstance(CPU.source, Slim)
    row = replace(CPU, source=replace(CPU.source, packages=("numpy<2",)))
    assert wheels(row, tmp_path, "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl") == [
        "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl"
    ]


def test_the_archive_holds_dockerfile_bundle_and_wheel_and_the_torch_index_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / GOOD).write_bytes(b"wheel")
    (tmp_path / "bundle.pem").write_text("CERT")
    settings = HostSettings(
        ca_bundle=tmp_path / "bundle.pem",
        wheel_directories=(tmp_path,),
        index_url="https://example.org",
        proxies=(("HTTPS_PROXY", "p"),),
    )
    made = build_context(CPU, "FROM x\n", settings, base="sha256:1")
    with made.archive, tarfile.open(fileobj=made.archive) as tar:
        assert tar.getnames() == ["Dockerfile", "ca.pem", GOOD]
    expected = {"HTTPS_PROXY": "p", "BASE": "sha256:1", "INDEX_URL": "https://example.org", "TORCH_INDEX_URL": ""}
    assert made.arguments == expected


def test_without_a_wheel_the_torch_index_stays() -> None:
    made = build_context(CPU, "FROM x\n", HostSettings())
    made.archive.close()
    assert made.arguments == {}


def test_the_environment_is_read_in_order(tmp_path: Path) -> None:
    for name in ("a.pem", "b.pem"):
        (tmp_path / name).write_text("CERT")
    environment = {
        "SSL_CERT_FILE": str(tmp_path / "a.pem"), "PIP_CERT": str(tmp_path / "b.pem"), "https_proxy": "x",
        "PIP_FIND_LINKS": f"https://example.org/wheels {tmp_path}", "UV_DEFAULT_INDEX": "u", "PIP_INDEX_URL": "p",
    }  # fmt: skip
    found = host_settings(environment)
    assert found == HostSettings(
        ca_bundle=tmp_path / "a.pem", wheel_directories=(tmp_path,), index_url="u", proxies=(("https_proxy", "x"),)
    )


def test_what_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="PIP_CERT names a CA bundle that is not there"):
        host_settings({"PIP_CERT": "/nowhere/ca.pem"})
    with pytest.raises(UsageError, match="wheel directory"):
        host_settings({}, (tmp_path / "nowhere",))

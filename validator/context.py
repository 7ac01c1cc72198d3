"""What a build gets from this host: its CA bundle, local wheels, package index and proxies, packed with the Dockerfile."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from validator.errors import UsageError
from validator.model import Image, Slim

# The variables by which OpenSSL, requests, curl and pip are told of a CA bundle, in the order of how general they are.
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """What this host's environment says about network access and wheels. ca_bundle None: nothing of its own."""

    ca_bundle: Path | None = None
    wheel_directories: tuple[Path, ...] = ()
    index_url: str = ""
    proxies: tuple[tuple[str, str], ...] = ()


def host_settings(environ: Mapping[str, str], wheels: tuple[Path, ...] = ()) -> HostSettings:
    """Read the settings. wheels: directories named on the command line; PIP_FIND_LINKS (space-separated) adds to them.

    Raises UsageError when a named CA bundle or wheel directory cannot be read.
    """
    bundle = None
    for variable in CA_VARIABLES:
        if environ.get(variable):
            bundle = Path(environ[variable])
            if not bundle.is_file():
                raise UsageError(f"{variable} names a CA bundle that is not there: {bundle}", f"correct or unset {variable}")
            break
    for directory in wheels:
        if not directory.is_dir():
            raise UsageError(f"the wheel directory {directory} is not there", "correct --wheels")
    links = (Path(part.removeprefix("file://")) for part in environ.get("PIP_FIND_LINKS", "").split())
    return HostSettings(
        ca_bundle=bundle,
        wheel_directories=(*wheels, *(path for path in links if path.is_dir())),
        index_url=environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or environ.get("PIP_INDEX_URL") or "",
        proxies=tuple((name, environ[name]) for up in PROXY_VARIABLES for name in (up, up.lower()) if environ.get(name)),
    )


def local_wheels(image: Image, directories: tuple[Path, ...]) -> tuple[Path, ...]:
    """The wheels in `directories` that satisfy the row's torch and packages exactly, best directory first.

    A torch wheel must carry the local version that the row's index stands for: `+cpu` for "cpu", `+cu126` for "cu126",
    none for the default index. A wheel for another Python, platform or version is never taken.
    """
    if not isinstance(image.source, Slim):
        return ()
    wanted = {"torch": f"=={image.source.torch}"} | {_name(p): p for p in image.source.packages}
    found: dict[str, Path] = {}
    for directory in directories:
        for path in sorted(directory.glob("*.whl")):
            try:
                name, version, _, tags = parse_wheel_filename(path.name)
            except (InvalidWheelFilename, InvalidVersion):
                continue
            if name in found or name not in wanted or not _fits(tags, image.source.python, image.run.platform):
                continue
            if name == "torch" and not _is_torch(version, image.source):
                continue
            found[name] = path
    return tuple(found[name] for name in sorted(found))


def _name(requirement: str) -> str:
    for position, character in enumerate(requirement):
        if not (character.isalnum() or character in "._-"):
            return canonicalize_name(requirement[:position])
    return canonicalize_name(requirement)


def _is_torch(version: Version, source: Slim) -> bool:
    local = "" if source.index == "pypi" else source.index
    return Version(version.public) == Version(source.torch) and (version.local or "") == local


def _fits(tags: frozenset[Tag], python: str, platform: str) -> bool:
    machine = ARCHITECTURES.get(platform.split("/")[1] if "/" in platform else "", "")
    wanted = "cp" + python.replace(".", "")
    return any(
        (tag.interpreter == wanted or tag.interpreter == "py3")
        and (tag.platform == "any" or (tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(machine)))
        for tag in tags
    )


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """A tar archive ready for the engine, the build arguments that go with it, and what identifies its content."""

    archive: BinaryIO
    arguments: Mapping[str, str]
    wheels: tuple[str, ...]


def build_context(image: Image, dockerfile: str, settings: HostSettings, base: str = "") -> BuildContext:
    """Pack Dockerfile, CA bundle and local wheels; base: the reference that stands for `ARG BASE`, "" keeps the default."""
    wheels = local_wheels(image, settings.wheel_directories)
    archive = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the build reads it
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, "Dockerfile", dockerfile.encode())
        if settings.ca_bundle is not None:
            _add(tar, "ca.pem", settings.ca_bundle.read_bytes())
        for wheel in wheels:
            tar.add(wheel, arcname=wheel.name, filter=_plain)
    archive.seek(0)
    arguments = dict(settings.proxies)
    if base:
        arguments["BASE"] = base
    if settings.index_url:
        arguments["INDEX_URL"] = settings.index_url
    if any(wheel.name.startswith("torch-") for wheel in wheels):
        arguments["TORCH_INDEX_URL"] = ""  # the wheel is here: do not ask an index that may be out of reach
    return BuildContext(archive=archive, arguments=arguments, wheels=tuple(wheel.name for wheel in wheels))


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o644
    return info


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = _plain(tarfile.TarInfo(name))
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def sha256(text: str) -> str:
    """Hex SHA-256 of a text, as records carry it for Dockerfiles."""
    return hashlib.sha256(text.encode()).hexdigest()

"""Facts that a torch and its libraries do not go together, found inside the image -> findings. Pure.

They are findings, not verdicts: an image with a library in the wrong place may still pass every case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from validator.model import Finding, Severity, part

DOCKERS_SHM = 64 << 20  # bytes that a container gets when nothing is said
_FEW = 3  # libraries named in one finding; the record holds all


def findings(facts: Mapping[str, Any]) -> tuple[Finding, ...]:
    """What the libraries of the image, as looked up and as loaded, say against each other."""
    return (*_missing(facts), *_shadowed(facts), *_floors(facts), *_versions(facts), *_numpy(facts), *_shared_memory(facts))


def _entries(facts: Mapping[str, Any], kind: str) -> list[Mapping[str, str]]:
    found = part(facts, "libraries").get(kind)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _warning(code: str, message: str, remedy: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, message=message, remedy=remedy)


def _missing(facts: Mapping[str, Any]) -> Iterator[Finding]:
    missing = _entries(facts, "missing")
    names = ", ".join(f"{one.get('library')} (needed by {_base(one.get('needed_by'))})" for one in missing[:_FEW])
    if missing:
        more = f" and {len(missing) - _FEW} more" if len(missing) > _FEW else ""
        yield _warning(
            "library-missing",
            f"nothing in the image provides {names}{more}",
            "install the package that holds it; torch's own libraries come back with `pip install --force-reinstall` of torch",
        )
    broken = _entries(facts, "broken")
    if broken:
        yield _warning(
            "library-broken",
            f"{broken[0].get('path')} is no shared library: {broken[0].get('detail')}",
            "install the package that holds it again; a download that was cut leaves such files",
        )


def _shadowed(facts: Mapping[str, Any]) -> Iterator[Finding]:
    shadowed = _entries(facts, "shadowed")
    if shadowed:
        names = ", ".join(f"{one.get('path')} instead of {one.get('instead_of')}" for one in shadowed[:_FEW])
        yield _warning(
            "library-shadowed",
            f"LD_LIBRARY_PATH puts other libraries before torch's own: {names}",
            "take that folder out of LD_LIBRARY_PATH: `ENV LD_LIBRARY_PATH=` in a derived image, or `environment:` of the row",
        )


def _floors(facts: Mapping[str, Any]) -> Iterator[Finding]:
    libraries = part(facts, "libraries")
    needs, has = part(libraries, "needs"), part(libraries, "has")
    libc = re.search(r"[\d.]+$", str(part(facts, "system").get("libc") or ""))
    have = {"GLIBC": libc[0] if libc else "", "GLIBCXX": has.get("GLIBCXX"), "CXXABI": has.get("CXXABI")}
    for family, there in have.items():
        needed = str(needs.get(family) or "")
        if needed and there and _release(str(there)) < _release(needed):
            yield _warning(
                "libc-too-old" if family == "GLIBC" else "libstdc++-too-old",
                f"torch needs {family}_{needed}, the image has {family}_{there}",
                "take an image with a newer distribution, or an older torch",
            )


def _versions(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Loaded libraries that are older than those that torch was compiled against (CUDA and cuDNN say theirs)."""
    torch = part(facts, "torch")
    loaded = part(torch, "loaded")
    config = str(torch.get("config") or "")
    compiled = {"cudnn": re.search(r"CUDNN_VERSION=([\d.]+)", config), "cudart": re.search(r"CUDA_VERSION=([\d.]+)", config)}
    for name, found in compiled.items():
        entry = part(loaded, name)
        there = release(name, str(entry.get("version") or ""))
        if found and there and there[:2] < _release(found[1])[:2]:
            yield _warning(
                "library-older",
                f"torch was compiled against {name} {found[1]}, loaded is {'.'.join(map(str, there))} from {entry.get('path')}",
                "install the version that torch asks for, or remove what is found before it",
            )


def release(name: str, said: str) -> tuple[int, ...]:
    """A library's own version number as (major, minor, ...): cudart says 12040, cuDNN 90100 or 8902, NCCL 22105."""
    if "." in said:
        return _release(said)
    if not said.isdigit():
        return ()
    number = int(said)
    if name == "cudart":
        return (number // 1000, number % 1000 // 10)
    if number >= 10000:
        return (number // 10000, number % 10000 // 100, number % 100)
    return (number // 1000, number % 1000 // 100, number % 100)


def _numpy(facts: Mapping[str, Any]) -> Iterator[Finding]:
    numpy = part(part(facts, "torch"), "numpy")
    if numpy.get("state") in ("broken", "wrong"):
        yield _warning(
            "numpy-bridge",
            f"numpy {numpy.get('version') or ''} is there and torch cannot share memory with it: {numpy.get('detail') or 'wrong values'}",
            "pin the numpy that this torch was built for (`numpy<2` for torch before 2.3)",
        )


def _shared_memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    there = part(facts, "user").get("shm_bytes")
    if isinstance(there, int) and there < DOCKERS_SHM:
        yield _warning(
            "small-shm",
            f"/dev/shm has {there >> 20} MiB: workers of a DataLoader die there with a bus error",
            "start the container with more: `docker run --shm-size 1g`, or `shm_size:` of the row",
        )


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", text))


def _base(path: object) -> str:
    return str(path or "?").rsplit("/", 1)[-1]

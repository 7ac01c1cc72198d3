"""The facts files: shape, a source for every number, and agreement with what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from validator.facts import FILES, Build, Confidence, Entry, entries, load
from validator.facts.load import HERE, read

CAPABILITY = re.compile(r"\d{1,2}\.\d")
KERNEL = re.compile(r"(sm|compute)_\d{2,3}[af]?")
DRIVER = re.compile(r"\d{3}\.\d{2,3}(\.\d{2})?")


def raw(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", FILES)
class TestEveryFile:
    def test_has_the_shape_of_the_schema(self, name: str) -> None:
        file = read(name, FILES[name])
        assert file.schema == f"image-matrix/facts/{name}/1"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", file.as_of)

    def test_every_entry_has_sources_that_the_file_explains(self, name: str) -> None:
        file = read(name, FILES[name])
        found = list(entries(file))
        assert found
        for entry in found:
            assert entry.source, f"no source: {entry}"
            assert set(entry.source) <= set(file.sources), entry
        assert set(file.sources) == {key for entry in found for key in entry.source}, "a source that nothing rests on"
        assert all(len(text) > 15 for text in file.sources.values())

    def test_no_number_stands_outside_an_entry(self, name: str) -> None:
        """All that is not an entry with sources is the head: schema, date, and the sources themselves."""
        for key, value in raw(name).items():
            if key not in ("schema", "as_of", "sources"):
                assert isinstance(value, list)
                assert all(item.get("source") and item.get("confidence") for item in value), key

    def test_inferred_names_fields_of_the_entry(self, name: str) -> None:
        for entry in entries(read(name, FILES[name])):
            for field in entry.inferred:
                assert hasattr(entry, field.partition(".")[0]), (entry, field)

    def test_a_key_that_the_schema_does_not_know_is_refused(self, name: str) -> None:
        data = raw(name)
        part = next(key for key, value in data.items() if isinstance(value, list))
        data[part][0]["guessed"] = 1
        with pytest.raises(ValidationError):
            TypeAdapter(FILES[name]).validate_python(data)

    def test_an_entry_without_a_source_is_refused(self, name: str) -> None:
        data = raw(name)
        part = next(key for key, value in data.items() if isinstance(value, list))
        del data[part][0]["source"]
        with pytest.raises(ValidationError):
            TypeAdapter(FILES[name]).validate_python(data)

    def test_names_no_address_and_no_path_of_a_machine(self, name: str) -> None:
        text = (HERE / f"{name}.json").read_text(encoding="utf-8")
        assert not re.search(r"://|[ \"(]/(work|tmp|opt|home|root)/", text)

    def test_one_entry_stands_on_one_line(self, name: str) -> None:
        """So that a change of a fact is a change of a line."""
        lines = (HERE / f"{name}.json").read_text(encoding="utf-8").splitlines()
        assert sum('"confidence"' in line for line in lines) == len(list(entries(read(name, FILES[name]))))


def test_gpus_are_well_formed_and_their_kinds_known() -> None:
    gpus = load().gpus
    kinds = {kind.kind for kind in gpus.kinds}
    assert kinds == {"datacenter", "workstation", "consumer", "soc", "jetson"}
    assert len({gpu.name for gpu in gpus.gpus}) == len(gpus.gpus) > 100
    for gpu in gpus.gpus:
        assert CAPABILITY.fullmatch(gpu.capability)
        assert gpu.kind in kinds
        assert gpu.host in ("", "linux/arm64")


def test_gpus_of_one_capability_are_of_one_architecture() -> None:
    seen: dict[str, str] = {}
    for gpu in load().gpus.gpus:
        assert seen.setdefault(gpu.capability, gpu.architecture) == gpu.architecture


def test_toolkits_and_their_drivers_are_well_formed() -> None:
    cuda = load().cuda
    for toolkit in cuda.toolkits:
        for update in toolkit.updates:
            assert update.version.startswith(f"{toolkit.cuda}.")
            assert DRIVER.fullmatch(update.driver)
        drivers = [tuple(map(int, update.driver.split("."))) for update in toolkit.updates]
        assert drivers == sorted(drivers), toolkit.cuda
    assert {rule.cuda for rule in cuda.minor_version} == {"11", "12", "13"}
    assert len({rule.id for rule in cuda.rules}) == len(cuda.rules)


def test_a_driver_branch_supports_the_toolkit_that_asks_for_it() -> None:
    cuda = load().cuda
    highest = {branch.branch: branch.cuda for branch in cuda.branches}
    for toolkit in cuda.toolkits:
        for update in toolkit.updates:
            assert highest[update.driver.split(".")[0]] == toolkit.cuda


def test_builds_are_well_formed_and_each_is_there_once() -> None:
    torch = load().torch
    places: set[tuple[str, str, str, str]] = set()
    released = {minor(release.version) for release in torch.releases}
    for build in torch.builds:
        assert build.channel in ("index", "pytorch", "conda")
        assert build.arch
        assert all(KERNEL.fullmatch(kernel) for kernel in (*build.arch, *build.perhaps))
        for release in sorted(released):
            if covers(build, release):
                place = (build.channel, release, build.cuda, build.platform)
                assert place not in places, place
                places.add(place)


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def covers(build: Build, release: str) -> bool:
    def key(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")))

    return key(build.first) <= key(release) <= key(build.last)


def test_the_index_wheels_of_every_release_have_an_arch_list() -> None:
    torch = load().torch
    for release in torch.releases:
        for platform, cuda in (("linux/amd64", release.index_cuda), ("linux/arm64", release.index_arm64_cuda)):
            if cuda:
                found = [
                    b
                    for b in torch.builds
                    if (b.channel, b.cuda, b.platform) == ("index", cuda, platform) and covers(b, minor(release.version))
                ]
                assert len(found) == 1, (release.version, platform)


def test_kernels_are_only_such_as_the_toolkit_can_build() -> None:
    facts = load()
    for build in facts.torch.builds:
        toolkit = facts.toolkit(build.cuda)
        assert toolkit is not None
        for kernel in build.arch:
            digits = kernel.split("_")[1]
            if toolkit.targets:
                assert f"{digits[:-1]}.{digits[-1]}" in toolkit.targets, (build, kernel)


def test_sure_tells_an_inferred_field_from_a_seen_entry() -> None:
    entry = Entry(source=("a",), confidence=Confidence.SEEN, inferred=("name",))
    assert entry.sure("name") is Confidence.INFERRED
    assert entry.sure("capability") is Confidence.SEEN


def test_the_facts_files_are_in_the_wheel() -> None:
    """The build takes the package as it is, so the files must stand in it."""
    assert {f"{name}.json" for name in FILES} == {path.name for path in Path(HERE).glob("*.json")}

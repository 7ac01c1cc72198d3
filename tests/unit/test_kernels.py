"""Arch lists, drivers and NVIDIA_REQUIRE_*: each rule by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator import require
from validator.drivers import Fit, floors, judge, needed
from validator.facts import load
from validator.facts.names import Target, UnknownGpuError, seen, target
from validator.kernels import best, parse
from validator.require import compare, holds, required

FACTS = load()


class TestKernels:
    @pytest.mark.parametrize(
        ("name", "runs", "fails"),
        [
            ("sm_80", ["8.0", "8.6", "8.7", "8.9"], ["7.5", "9.0", "12.0"]),
            ("sm_86", ["8.6", "8.9"], ["8.0", "9.0"]),
            ("sm_90", ["9.0"], ["8.9", "10.0"]),
            ("sm_100", ["10.0", "10.3", "10.7"], ["9.0", "12.0"]),
            ("sm_120", ["12.0", "12.1"], ["10.0", "11.0"]),
            ("sm_90a", ["9.0"], ["8.9", "9.1", "10.0"]),
            ("compute_90a", ["9.0"], ["10.0", "12.0"]),
            ("sm_100f", ["10.0", "10.3"], ["9.0", "11.0", "12.0"]),
            ("compute_100f", ["10.0", "10.3"], ["12.0"]),
            ("compute_37", ["3.7", "5.2", "8.9", "12.1"], ["3.5"]),
            ("compute_120", ["12.0", "12.1"], ["10.3", "11.0"]),
        ],
    )
    def test_runs_where_nvidia_says(self, name: str, runs: list[str], fails: list[str]) -> None:
        kernel = parse(name)
        assert kernel is not None
        assert [c for c in runs if not kernel.runs_on(capability(c))] == []
        assert [c for c in fails if kernel.runs_on(capability(c))] == []

    def test_machine_code_comes_before_ptx_and_the_nearest_before_the_older(self) -> None:
        names = ["compute_50", "sm_80", "sm_86", "compute_90"]
        assert best(names, (8, 9)) == parse("sm_86")
        assert best(names, (8, 0)) == parse("sm_80")
        assert best(names, (7, 5)) == parse("compute_50")
        assert best(names, (12, 0)) == parse("compute_90")
        assert best(names, (3, 7)) is None

    def test_machine_code_of_a_board_and_of_a_desktop_gpu_do_not_stand_in_for_each_other(self) -> None:
        assert FACTS.boards == {(5, 3), (6, 2), (7, 2), (8, 7), (11, 0)}
        for board in FACTS.boards:
            own, older = f"sm_{board[0]}{board[1]}", f"sm_{board[0]}0"
            assert best([own], board, FACTS.boards) == parse(own)
            assert own == older or best([older], board, FACTS.boards) is None
            assert best([own], (board[0], 9), FACTS.boards) is None
            assert best([older, "compute_50"], board, FACTS.boards) in (parse(own), parse("compute_50"))
        assert best(["sm_80"], (8, 6), FACTS.boards) == parse("sm_80")

    @pytest.mark.parametrize("name", ["gfx90a", "sm", "sm_8", "sm_9000", "", "compute90", "sm_90b"])
    def test_what_is_no_kernel_of_nvidias_is_none(self, name: str) -> None:
        assert parse(name) is None
        assert best([name], (9, 0)) is None


def capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


class TestDrivers:
    @pytest.mark.parametrize(
        ("driver", "cuda", "jit", "gpu", "fit", "rule"),
        [
            ("550.54.15", "12.4", False, "RTX 4090", Fit.RUNS, "driver"),
            ("550.54.14", "12.4.0", False, "RTX 4090", Fit.RUNS, "driver"),
            ("550.54.14", "12.4.1", False, "RTX 4090", Fit.RUNS, "minor-version"),
            ("535.104.05", "12.4", False, "RTX 4090", Fit.RUNS, "minor-version"),
            ("535.104.05", "12.4", True, "RTX 4090", Fit.CANNOT, "minor-version-ptx"),
            ("535.104.05", "12.4", True, "H100", Fit.FORWARD, "forward"),
            ("550.54.14", "12.4", True, "RTX 4090", Fit.RUNS, "driver"),
            ("520.61.05", "12.4", False, "RTX 4090", Fit.CANNOT, "driver-too-old"),
            ("520.61.05", "12.4", False, "L4", Fit.FORWARD, "forward"),
            ("520.61.05", "12.4", False, "RTX 6000 Ada", Fit.UNKNOWN, "forward"),
            ("520.61.05", "12.4", False, "8.9", Fit.UNKNOWN, "forward"),
            ("535", "12.4", False, "RTX 4090", Fit.RUNS, "minor-version"),
            ("550", "12.4", True, "RTX 4090", Fit.UNKNOWN, "not-known"),
            ("525", "12.4", False, "RTX 4090", Fit.UNKNOWN, "not-known"),
            ("440.33", "10.2", False, "T4", Fit.RUNS, "driver"),
            ("430.50", "10.2", False, "RTX 2080", Fit.CANNOT, "driver-too-old"),
            ("450.51.06", "11.0", False, "T4", Fit.RUNS, "driver"),
            ("615.61", "13.4", False, "H100", Fit.RUNS, "minor-version"),
            ("615.61", "13.4", True, "H100", Fit.UNKNOWN, "not-known"),
            ("590.44.01", "12.6", False, "V100", Fit.CANNOT, "driver-end"),
            ("580.65.06", "12.6", False, "V100", Fit.RUNS, "driver"),
            ("535.104.05", "12.8", False, "RTX 5090", Fit.UNKNOWN, "first-toolkit"),
            ("535.104.05", "13.0", False, "RTX 5090", Fit.CANNOT, "driver-too-old"),
            ("540.4.0", "12.6", False, "Jetson AGX Orin", Fit.UNKNOWN, "jetson-driver"),
            ("535.104.05", "14.0", False, "H100", Fit.UNKNOWN, "not-known"),
            ("535.104.05", "", False, "H100", Fit.UNKNOWN, "not-known"),
        ],
    )
    def test_judges_by_the_tables(self, driver: str, cuda: str, jit: bool, gpu: str, fit: Fit, rule: str) -> None:
        found = judge(driver, cuda, target(gpu, FACTS), FACTS, jit=jit)
        assert (found.fit, found.rule) == (fit, rule), found.words
        assert FACTS.rule(found.rule)
        assert driver in found.words or fit is Fit.UNKNOWN

    def test_a_driver_that_shows_a_gpu_drives_it(self) -> None:
        """What nvidia-smi lists needs no table of which driver came first."""
        card = seen("NVIDIA GeForce RTX 5090", "12.0", FACTS)
        assert judge("560.35.03", "12.8", card, FACTS, jit=False).fit is Fit.RUNS

    @pytest.mark.parametrize(
        ("cuda", "gpu", "jit", "driver"),
        [
            ("12.4", "A100", False, "525.60.13"),
            ("12.4", "A100", True, "550.54.14"),
            ("13.2", "A100", False, "580.65.06"),
            ("10.2", "T4", False, "440.33"),
            ("12.8", "RTX 5090", False, "570.26"),
            ("12.4", "RTX 4090", False, "525.60.13"),
            ("11.7", "RTX 4090", False, "520.61.05"),
            ("13.5", "A100", True, ""),
            ("99.0", "A100", False, ""),
        ],
    )
    def test_the_driver_needed_suits_toolkit_and_gpu(self, cuda: str, gpu: str, jit: bool, driver: str) -> None:
        assert needed(cuda, target(gpu, FACTS), FACTS, jit=jit) == driver

    def test_a_newer_driver_is_never_worse_until_the_gpus_end(self) -> None:
        order = [Fit.CANNOT, Fit.FORWARD, Fit.UNKNOWN, Fit.RUNS]
        drivers = sorted(
            {u.driver for t in FACTS.cuda.toolkits for u in t.updates}, key=lambda d: tuple(map(int, d.split(".")))
        )
        for gpu in ("A100", "RTX 3090"):
            for cuda in ("11.8", "12.4", "13.0"):
                for jit in (False, True):
                    fits = [order.index(judge(d, cuda, target(gpu, FACTS), FACTS, jit=jit).fit) for d in drivers]
                    assert fits == sorted(fits), (gpu, cuda, jit)

    def test_floors_are_ordered(self) -> None:
        for toolkit in FACTS.cuda.toolkits:
            found = floors(toolkit.cuda, FACTS)
            if found.full:
                assert compare(found.full, found.jit) in (0, 1)
                assert compare(found.jit, found.minor) in (0, 1)


LONG = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=geforce,driver>=535,driver<536"


class TestRequire:
    @pytest.mark.parametrize(
        ("text", "host", "wanted"),
        [
            (LONG, {"cuda": "12.4", "driver": "550.54", "brand": "geforce"}, True),
            (LONG, {"cuda": "12.2", "driver": "535.104", "brand": "geforce"}, True),
            (LONG, {"cuda": "12.2", "driver": "535.104", "brand": "tesla"}, False),
            (LONG, {"cuda": "11.4", "driver": "470.82.01", "brand": "tesla"}, True),
            (LONG, {"cuda": "12.0", "driver": "525.60", "brand": "tesla"}, False),
            (LONG, {"driver": "525.60", "brand": "tesla"}, None),
            (LONG, {"cuda": "12.0", "driver": "535.1"}, None),
            ("cuda>=9.0", {"cuda": "13.0"}, True),
            ("CUDA>=12.3", {"cuda": "12.2"}, False),
            ("arch>=8.0", {"arch": "8.9"}, True),
            ("arch>=8.0", {"arch": "7.5"}, False),
            ("brand!=geforce", {"brand": "geforce"}, False),
            ("driver!=535.1", {"driver": "535.2"}, True),
            ("driver<=535", {"driver": "535.1"}, False),
            ("driver>535", {"driver": "535.1"}, True),
            ("driver=535.1", {"driver": "535.1"}, True),
            ("driver>=535.104.05", {"driver": "535"}, None),
            ("jetpack>=6", {}, True),
            ("jetpack>=6,cuda>=12.0", {"cuda": "11.0"}, False),
            ("cuda>=new", {"cuda": "12.0"}, None),
            ("", {}, True),
        ],
    )
    def test_holds_as_the_toolkit_reads_it(self, text: str, host: dict[str, str], wanted: bool | None) -> None:
        assert holds(require.parse(text), host) is wanted

    @pytest.mark.parametrize("text", ["cuda", "cuda>=", ">=12", "cuda>=12.0,driver"])
    def test_what_is_no_condition_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="is no condition"):
            require.parse(text)

    def test_only_variables_that_count_are_taken(self) -> None:
        environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.0", "NVIDIA_REQUIRE_JETPACK": "6", "CUDA_VERSION": "12.0", "PATH": "/"}
        assert required(environment) == (("NVIDIA_REQUIRE_CUDA", "cuda>=12.0"),)
        assert required(environment | {"NVIDIA_DISABLE_REQUIRE": "true"}) == ()
        assert required(environment | {"NVIDIA_DISABLE_REQUIRE": "false"}) != ()

    @given(st.lists(st.integers(0, 999), min_size=1, max_size=3), st.lists(st.integers(0, 999), min_size=1, max_size=3))
    def test_comparing_is_antisymmetric_where_it_tells(self, a: list[int], b: list[int]) -> None:
        left, right = ".".join(map(str, a)), ".".join(map(str, b))
        there, back = compare(left, right), compare(right, left)
        if there is not None and back is not None:
            assert there == -back

    @given(st.text(max_size=40))
    def test_no_text_breaks_the_reader(self, text: str) -> None:
        try:
            found = require.parse(text)
        except ValueError:
            return
        assert holds(found, {"cuda": "12.4", "driver": "550.54"}) in (True, False, None)


class TestNames:
    @pytest.mark.parametrize(
        ("text", "name", "cc"),
        [
            ("RTX 4090", "GeForce RTX 4090", "8.9"),
            ("rtx4090", "GeForce RTX 4090", "8.9"),
            ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090", "8.9"),
            ("GTX 1080ti", "GeForce GTX 1080 Ti", "6.1"),
            ("NVIDIA A100-SXM4-80GB", "A100", "8.0"),
            ("A100 40GB", "A100", "8.0"),
            ("Tesla V100-SXM2-16GB", "Tesla V100", "7.0"),
            ("V100", "Tesla V100", "7.0"),
            ("T4", "Tesla T4", "7.5"),
            ("H100 NVL", "H100", "9.0"),
            ("A6000", "RTX A6000", "8.6"),
            ("RTX 6000 Ada", "RTX 6000 Ada Generation", "8.9"),
            ("RTX 3070 Laptop GPU", "GeForce RTX 3070", "8.6"),
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell", "12.0"),
            ("DGX Spark", "GB10", "12.1"),
            ("sm_89", "compute capability 8.9", "8.9"),
            ("SM120", "compute capability 12.0", "12.0"),
            ("sm_90a", "compute capability 9.0", "9.0"),
            ("8.9", "compute capability 8.9", "8.9"),
            (" 12.0 ", "compute capability 12.0", "12.0"),
        ],
    )
    def test_is_understood(self, text: str, name: str, cc: str) -> None:
        found = target(text, FACTS)
        assert (found.name, found.cc) == (name, cc)
        assert found.architecture

    @pytest.mark.parametrize(
        ("text", "near"),
        [("RTX 4900", "GeForce RTX 4090"), ("H10O", "H100"), ("GTX 4090", "GeForce RTX 4090"), ("MI300X", None), ("", None)],
    )
    def test_a_misspelt_one_gets_the_nearest(self, text: str, near: str | None) -> None:
        with pytest.raises(UnknownGpuError) as caught:
            target(text, FACTS)
        assert near is None or near in caught.value.near

    def test_every_name_and_alias_means_its_own_gpu(self) -> None:
        for gpu in FACTS.gpus.gpus:
            for name in (gpu.name, f"NVIDIA {gpu.name}", *gpu.aliases):
                assert target(name, FACTS).name == gpu.name

    def test_a_driver_knows_better_than_a_name(self) -> None:
        card = seen("NVIDIA GeForce RTX 9999", "13.0", FACTS)
        assert (card.cc, card.kind, card.driven) == ("13.0", "consumer", True)
        assert seen("NVIDIA Something", "9.0", FACTS) == Target(
            name="Something", capability=(9, 0), architecture="Hopper", driven=True
        )
        assert seen("NVIDIA H200", "9.0", FACTS).kind == "datacenter"
        assert seen("Tesla T4", "", FACTS).cc == "7.5"
        with pytest.raises(UnknownGpuError):
            seen("NVIDIA Something", "", FACTS)

    @given(st.text(max_size=30))
    def test_no_text_breaks_it(self, text: Any) -> None:
        try:
            assert target(text, FACTS).capability
        except UnknownGpuError as error:
            assert len(error.near) <= 3

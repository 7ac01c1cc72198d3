"""Forecasts: what is known of an image, the rules together, and the whole matrix on ten GPUs without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.records import record
from validator.builds import NO_CUDA, Basis, Known, known
from validator.facts import Confidence, load
from validator.facts.names import target
from validator.forecast import CUT, Forecast, Prospect, forecast
from validator.matrix import load as load_matrix
from validator.model import Base, Image, Pull, Record, RunOptions, Slim, Verdict, VerdictClass, part
from validator.store import Store

ROOT = Path(__file__).parents[2]
FACTS = load()
MATRIX = load_matrix(ROOT / "images.yaml")
GPUS = ("K80", "P100", "V100", "T4", "A100", "RTX 3090", "RTX 4090", "H100", "B200", "RTX 5090")


def slim(torch: str = "2.6.0", cuda: str = "12.4", index: str = "pypi", platform: str = "linux/amd64") -> Image:
    source = Slim(base=Base(name="bookworm", python="3.11", sources=()), python="3.11", torch=torch, index=index)
    declared = (("torch", torch), *((("cuda", cuda),) if cuda else ()))
    return Image(id="slim-a", family="slim", source=source, declared=declared, run=RunOptions(platform=platform))


def pull(reference: str, platform: str = "linux/amd64", **declared: str) -> Image:
    return Image(
        id="pulled",
        family="any",
        source=Pull(reference=reference),
        declared=tuple(declared.items()),
        run=RunOptions(platform=platform),
    )


def measured(arch: list[str], cuda: str | None = "12.4", **over: Any) -> Record:
    torch = {"version": "2.6.0+cu124", "cuda": cuda, "arch_list": arch} | over.pop("torch", {})
    environment = over.pop("environment", {})
    return record("slim-a", **({"facts": {"torch": torch, "environment": environment}} | over))


def foresee(image: Image, gpu: str, driver: str = "", *records: Record) -> Forecast:
    return forecast(known(image, records, FACTS), target(gpu, FACTS), driver, FACTS)


class TestKnown:
    def test_a_wheel_of_the_package_index(self) -> None:
        found = known(slim(), (), FACTS)
        assert found.basis is Basis.DECLARED
        assert found.arch == ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
        assert found.source and found.confidence is Confidence.SEEN

    def test_pytorchs_own_index_is_another_build(self) -> None:
        own = known(slim("2.7.1", "12.8", "cu128"), (), FACTS)
        assert own.arch is not None and "compute_120" in own.arch

    def test_the_index_says_which_cuda_where_the_row_does_not(self) -> None:
        assert known(slim(cuda=""), (), FACTS).cuda == "12.4"

    @pytest.mark.parametrize("image", [slim(index="cpu"), slim(cuda="cpu"), slim("2.9.1", "12.8", platform="linux/arm64")])
    def test_builds_without_cuda(self, image: Image) -> None:
        assert known(image, (), FACTS).cuda == NO_CUDA

    def test_the_arm64_wheel_of_the_index_has_its_own_kernels(self) -> None:
        assert known(slim("2.13.0", "13.0", platform="linux/arm64"), (), FACTS).arch == (
            "sm_80", "sm_90", "sm_100", "sm_110", "sm_120",
        )  # fmt: skip

    def test_the_projects_docker_images_changed_from_conda_to_wheels(self) -> None:
        conda = known(pull("pytorch/pytorch:2.0.1-cuda11.7-cudnn8-devel", torch="2.0.1", cuda="11.7"), (), FACTS)
        wheel = known(pull("docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel", torch="2.5.1", cuda="12.4"), (), FACTS)
        assert conda.arch is not None and {"sm_61", "compute_37"} <= set(conda.arch)
        assert wheel.arch is not None and not {"sm_61", "compute_37"} & set(wheel.arch)

    def test_another_vendors_image_has_for_sure_only_what_all_builds_have(self) -> None:
        found = known(pull("some/one:latest", torch="2.7.1", cuda="12.8.1"), (), FACTS)
        assert found.confidence is Confidence.INFERRED
        two = known(pull("some/one:latest", torch="2.4.1", cuda="12.1"), (), FACTS)
        assert two.arch is not None and "sm_61" not in two.arch and "sm_61" in two.perhaps

    def test_nvidias_months(self) -> None:
        listed = known(pull("nvcr.io/nvidia/pytorch:26.07-py3"), (), FACTS)
        assert listed.arch is not None and "compute_120" in listed.arch
        assert listed.cuda == "13.3.1"
        unlisted = known(pull("nvcr.io/nvidia/pytorch:26.06-py3", cuda="13.3.0"), (), FACTS)
        assert (unlisted.arch, unlisted.minimum) == (None, "7.5")
        assert known(pull("nvcr.io/nvidia/pytorch:99.01-py3"), (), FACTS).why

    @pytest.mark.parametrize(
        ("image", "why"),
        [
            (pull("some/one:latest"), "neither the tag nor the row"),
            (pull("some/one:latest", torch="2.8.0"), "not which CUDA"),
            (pull("some/one:latest", torch="2.14.0a0+b2c75dd", cuda="13.4"), "not among the facts"),
            (pull("some/one:latest", torch="9.9.9", cuda="12.4"), "not among the facts"),
            (slim(index="https://index.example/simple", torch="2.6.0", cuda="12.9"), "not among the facts"),
        ],
    )
    def test_what_is_not_known_says_why(self, image: Image, why: str) -> None:
        found = known(image, (), FACTS)
        assert found.arch is None
        assert why in found.why

    def test_a_measurement_comes_before_what_is_declared(self) -> None:
        found = known(slim(), [measured(["sm_75", "compute_75"])], FACTS)
        assert (found.basis, found.arch, found.confidence) == (Basis.MEASURED, ("sm_75", "compute_75"), Confidence.MEASURED)

    def test_the_newest_measurement_counts(self) -> None:
        old = measured(["sm_50"], started="2026-11-01T00:00:00Z")
        new = measured(["sm_90"], started="2026-12-01T00:00:00Z")
        assert known(slim(), [new, old], FACTS).arch == ("sm_90",)

    def test_a_record_that_tells_nothing_of_kernels_leaves_it_at_the_row_but_its_trouble_is_told(self) -> None:
        broken = record(
            "slim-a", facts={"torch": {}}, verdict=Verdict(cls=VerdictClass.IMAGE, code="import", cause="import torch fails")
        )
        found = known(slim(), [broken], FACTS)
        assert (found.basis, found.trouble) == (Basis.DECLARED, "import torch fails")
        assert any("import torch fails" in note for note in foresee(slim(), "A100", "", broken).notes)

    @pytest.mark.parametrize("torch", [{"version": 2, "arch_list": ["sm_50"]}, {"version": "2.6", "arch_list": "sm_50"}, {}])
    def test_an_image_may_send_anything(self, torch: dict[str, Any]) -> None:
        odd = record("slim-a", facts={"torch": torch, "environment": [1]})
        assert known(slim(), [odd], FACTS).basis is Basis.DECLARED

    def test_a_rocm_build_is_none_for_cuda(self) -> None:
        found = known(slim(), [measured([], cuda=None, torch={"hip": "6.2", "arch_list": ["gfx90a"]})], FACTS)
        assert (found.cuda, found.why) == (NO_CUDA, "its torch is built for ROCm")


class TestForecast:
    @pytest.mark.parametrize(
        ("image", "gpu", "driver", "prospect", "rule"),
        [
            (slim(), "RTX 4090", "535.104.05", Prospect.RUNS, "minor-version"),
            (slim(), "RTX 4090", "550.54.15", Prospect.RUNS, "cubin"),
            (slim(), "RTX 4090", "", Prospect.RUNS, "cubin"),
            (slim(), "RTX 5090", "", Prospect.CANNOT, "no-kernel"),
            (slim(), "RTX 5090", "580.95.05", Prospect.CANNOT, "no-kernel"),
            (slim("2.8.0", "12.8"), "GTX 1080", "", Prospect.CANNOT, "no-kernel"),
            (slim("2.8.0", "12.6", "cu126"), "GTX 1080", "", Prospect.RUNS, "cubin"),
            (slim("2.13.0", "13.0"), "RTX 4090", "535.104.05", Prospect.CANNOT, "driver-too-old"),
            (slim("2.13.0", "13.0"), "A100", "535.104.05", Prospect.FORWARD, "forward"),
            (slim("2.13.0", "13.0"), "RTX A6000", "535.104.05", Prospect.UNKNOWN, "forward"),
            (slim("2.13.0", "13.0"), "sm_86", "535.104.05", Prospect.UNKNOWN, "forward"),
            (slim(index="cpu"), "A100", "", Prospect.CANNOT, "no-cuda"),
            (slim("2.13.0", "13.0"), "GH200", "", Prospect.CANNOT, "platform"),
            (slim("2.13.0", "13.0", platform="linux/arm64"), "GH200", "", Prospect.RUNS, "cubin"),
            (pull("pytorch/pytorch:1.9.0-cuda10.2-x", torch="1.9.0", cuda="10.2"), "A100", "535.1", Prospect.JIT, "ptx"),
            (pull("pytorch/pytorch:2.1.2-cuda12.1-x", torch="2.1.2", cuda="12.1"), "B200", "", Prospect.UNKNOWN, "not-known"),
            (pull("nvcr.io/nvidia/pytorch:26.06-py3"), "H100", "580.178.04", Prospect.RUNS, "minor-version"),
            (pull("nvcr.io/nvidia/pytorch:26.06-py3"), "V100", "", Prospect.CANNOT, "compiler"),
            (pull("nvcr.io/nvidia/pytorch:25.03-py3"), "V100", "", Prospect.UNKNOWN, "not-known"),
            (pull("nvcr.io/nvidia/pytorch:24.12-py3"), "B200", "", Prospect.UNKNOWN, "not-known"),
            (pull("nvcr.io/nvidia/pytorch:24.12-py3"), "V100", "", Prospect.RUNS, "vendor-support"),
            (
                pull("nvcr.io/nvidia/pytorch:24.07-py3", platform="linux/arm64"),
                "Jetson AGX Orin",
                "",
                Prospect.UNKNOWN,
                "not-known",
            ),
            (slim(), "8.7", "", Prospect.CANNOT, "platform"),
            (pull("some/one:latest"), "A100", "580.95.05", Prospect.UNKNOWN, "not-known"),
            (pull("some/one:latest", cuda="13.0"), "RTX 4090", "535.104.05", Prospect.CANNOT, "driver-too-old"),
        ],
    )
    def test_the_rules_together(self, image: Image, gpu: str, driver: str, prospect: Prospect, rule: str) -> None:
        found = foresee(image, gpu, driver)
        assert (found.prospect, found.rule) == (prospect, rule), found.reason

    @pytest.mark.parametrize(
        ("arch", "gpu", "prospect", "rule"),
        [
            (["sm_80", "sm_86"], "8.7", Prospect.UNKNOWN, "jetson-cubin"),
            (["sm_87"], "Jetson AGX Orin", Prospect.RUNS, "cubin"),
            (["sm_80", "compute_80"], "Jetson AGX Orin", Prospect.JIT, "ptx"),
            (["sm_87"], "RTX 4090", Prospect.UNKNOWN, "jetson-cubin"),
            (["sm_72"], "7.5", Prospect.UNKNOWN, "jetson-cubin"),
        ],
    )
    def test_jetson_boards_have_machine_code_of_their_own(
        self, arch: list[str], gpu: str, prospect: Prospect, rule: str
    ) -> None:
        found = foresee(slim(platform="linux/arm64"), gpu, "", measured(arch))
        assert (found.prospect, found.rule) == (prospect, rule), found.reason
        assert found.driver == "" or target(gpu, FACTS).kind != "jetson"

    def test_ptx_is_not_covered_by_minor_version_compatibility(self) -> None:
        ptx = measured(["sm_80", "compute_80"])
        assert foresee(slim(), "RTX 4090", "535.104.05", ptx).prospect is Prospect.RUNS
        assert foresee(slim(), "RTX 5080", "570.26", ptx).prospect is Prospect.JIT
        only = measured(["compute_80"])
        assert foresee(slim(), "RTX 4090", "535.104.05", only).rule == "minor-version-ptx"
        assert foresee(slim(), "RTX 4090", "550.54.14", only).prospect is Prospect.JIT
        assert foresee(slim(), "L40S", "535.104.05", only).prospect is Prospect.FORWARD

    def test_without_a_driver_it_says_which_is_needed(self) -> None:
        assert foresee(slim(), "RTX 4090").driver == "525.60.13"
        assert foresee(slim(), "RTX 4090", "", measured(["compute_80"])).driver == "550.54.14"
        assert foresee(slim("2.8.0", "12.8"), "RTX 5090").driver == "570.26"
        assert foresee(slim(), "RTX 5090").driver == "", "no driver helps where there are no kernels"
        assert foresee(slim("2.13.0", "13.0"), "RTX 4090", "535.104.05").driver == "580.65.06"

    def test_is_never_surer_than_its_weakest_part(self) -> None:
        assert foresee(slim(), "A100", "", measured(["sm_80"])).confidence is Confidence.SEEN
        assert foresee(pull("nvcr.io/nvidia/pytorch:26.06-py3"), "H100").confidence is Confidence.INFERRED
        assert foresee(slim(), "H20").confidence is Confidence.INFERRED

    def test_jit_says_that_the_libraries_have_lists_of_their_own(self) -> None:
        assert any("cuSPARSE" in note for note in foresee(slim(), "B200", "", measured(["compute_80"])).notes)
        assert foresee(slim(), "A100", "").notes == ()

    def test_a_requirement_that_does_not_hold_is_a_note_with_who_enforces_it(self) -> None:
        image = measured(["sm_80"], environment={"NVIDIA_REQUIRE_CUDA": "cuda>=12.4 brand=tesla,driver>=470,driver<471"})
        assert foresee(slim(), "RTX 3090", "550.54.15", image).notes == ()
        (note,) = foresee(slim(), "RTX 3090", "535.104.05", image).notes
        assert "does not hold" in note and "legacy NVIDIA runtime" in note and "1.18" in note
        assert foresee(slim(), "RTX 3090", "535.104.05", image).prospect is Prospect.RUNS
        (note,) = foresee(slim(), "sm_86", "470.82.01", image).notes
        assert "is not known" in note, "the brand decides, and nobody knows it"
        assert foresee(slim(), "RTX 3090", "", image).notes == ()

    def test_a_requirement_that_was_cut_or_is_no_condition_decides_nothing(self) -> None:
        text = "cuda>=12.4 " + "brand=tesla,driver>=470,driver<471 " * 60
        cut = measured(["sm_80"], environment={"NVIDIA_REQUIRE_CUDA": text[:CUT].strip().ljust(CUT, "1")})
        (note,) = foresee(slim(), "RTX 3090", "535.104.05", cut).notes
        assert "is not known" in note
        odd = measured(["sm_80"], environment={"NVIDIA_REQUIRE_CUDA": "cuda"})
        (note,) = foresee(slim(), "RTX 3090", "535.104.05", odd).notes
        assert "cannot be read" in note

    def test_a_reason_is_one_sentence_with_sources(self) -> None:
        found = foresee(slim(), "RTX 4090", "535.104.05")
        assert found.reason == (
            "Torch's sm_86 runs on compute capability 8.9, and driver 535.104.05 runs CUDA 12.4 by minor version compatibility "
            "(from 525.60.13 on)."
        )
        assert any("Minor Version Compatibility" in source for source in found.sources)


class TestAgainstWhatWasSeen:
    def test_declared_arch_lists_are_those_that_were_measured(self) -> None:
        """Every committed record: what the facts declare for its row is exactly what its torch said inside the image."""
        rows = {image.id: image for image in MATRIX.images}
        compared, wrong = 0, []
        for one in Store(ROOT / "results").records():
            torch = part(one.facts, "torch")
            if one.image.id not in rows or not torch.get("version"):
                continue
            declared = known(rows[one.image.id], (), FACTS)
            cuda = torch.get("cuda") or NO_CUDA
            compared += 1
            if (declared.cuda, list(declared.arch or ())) != (cuda, torch.get("arch_list")):
                wrong.append((one.image.id, declared.arch, torch.get("arch_list")))
        assert wrong == []
        assert compared >= 21

    def test_reports_of_others_do_not_contradict_the_rules(self) -> None:
        for report in FACTS.ngc.reports:
            image = pull(f"nvcr.io/nvidia/pytorch:{report.tag}", report.platform)
            found = foresee(image, report.gpu, report.driver)
            if report.result == "runs":
                assert found.prospect in (Prospect.RUNS, Prospect.JIT, Prospect.FORWARD), (report, found.reason)
            else:  # a forecast of JIT says that the libraries beside torch may fail
                assert found.prospect is not Prospect.RUNS, (report, found.reason)


def all_forecasts(driver: str) -> Iterator[tuple[Known, Forecast]]:
    for image in MATRIX.images:
        found = known(image, (), FACTS)
        for gpu in GPUS:
            yield found, forecast(found, target(gpu, FACTS), driver, FACTS)


class TestTheWholeMatrix:
    @pytest.mark.parametrize("driver", ["", "450.80.02", "535.104.05", "580.95.05", "615.61"])
    def test_every_image_has_a_forecast_with_a_reason_a_rule_and_sources(self, driver: str) -> None:
        count = 0
        for found, one in all_forecasts(driver):
            count += 1
            assert one.image == found.image
            assert len(one.reason) > 20 and one.reason.endswith(".") and "  " not in one.reason
            assert FACTS.rule(one.rule) and one.sources
            if one.prospect is Prospect.RUNS:
                assert found.cuda and found.cuda != NO_CUDA
        assert count == len(MATRIX.images) * len(GPUS)

    def test_old_images_do_not_run_on_new_gpus_and_new_ones_not_on_old(self) -> None:
        got = {(k.image, f.gpu): f.prospect for k, f in all_forecasts("")}
        assert got["slim-torch1.12.1-cu102-py3.9-bullseye", "A100"] is Prospect.CANNOT
        assert got["slim-torch2.15.0-cu132-py3.13-trixie", "Tesla V100"] is Prospect.CANNOT
        assert got["slim-torch2.15.0-cu132-py3.13-trixie", "GeForce RTX 5090"] is Prospect.RUNS
        assert got["ngc-26.09-py3", "Tesla V100"] is Prospect.CANNOT

    def test_the_command_needs_no_network_and_no_engine(self) -> None:
        """All pulled tags of the default matrix get a forecast for ten GPUs while every socket is refused."""
        gpus = [part for gpu in GPUS for part in ("--gpu", gpu)]
        program = (
            "import socket, sys\n"
            "def refuse(*_, **__): raise AssertionError('a socket was opened')\n"
            "socket.socket = socket.create_connection = socket.getaddrinfo = refuse\n"
            "from validator.cli import main\n"
            "main(sys.argv[1:])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, "forecast", *gpus, "--driver", "535.104", "--json"],
            capture_output=True, text=True, cwd=ROOT, timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["kind"] == "forecast"
        images = {line["image"]: line["forecasts"] for line in found["images"]}
        pulled = [image.id for image in MATRIX.images if image.kind != "build"]
        assert len(pulled) > 150
        words = {prospect.value for prospect in Prospect}
        for ident in pulled:
            assert [one["gpu"] for one in images[ident]] == [target(gpu, FACTS).name for gpu in GPUS]
            assert all(one["forecast"] in words and one["reason"] and one["sources"] for one in images[ident])

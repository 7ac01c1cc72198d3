"""The plan: known rows first, then the quick and informative ones; figures from records where there are any."""

from __future__ import annotations

from pathlib import Path

from tests.unit.records import case, record
from validator.matrix import load
from validator.plan import make_plan

IMAGES = load(Path(__file__).parents[2] / "images.yaml").images
CPU = "slim-torch2.13.0-cpu-py3.11-bookworm"


def test_quick_builds_come_before_big_ones_and_those_before_pulls() -> None:
    steps = make_plan(IMAGES, (), frozenset()).steps
    kinds = [step.image.kind for step in steps]
    assert kinds == sorted(kinds, key=["build", "extend", "pull"].index)
    builds = [step.image for step in steps if step.image.kind == "build"]
    cpu = [image.declares("cuda") == "cpu" for image in builds]
    assert cpu == sorted(cpu, reverse=True)
    cuda = [image.declares("torch") for image in builds if image.declares("cuda") != "cpu"]
    assert cuda[0] == "2.15.0"
    assert cuda[-1] == "1.9.1"


def test_known_rows_cost_nothing() -> None:
    plan = make_plan(IMAGES, (), frozenset(image.id for image in IMAGES))
    assert (plan.todo, plan.bytes_needed, plan.seconds) == ((), 0, 0)


def test_a_record_gives_the_figures_of_its_image() -> None:
    images = [image for image in IMAGES if image.id == CPU]
    past = record(CPU, case("coo.mm.float32.cpu"), seconds={"acquire": 50.0, "probe": 10.0})
    (step,) = make_plan(images, (past,), frozenset()).steps
    assert (step.measured, step.seconds, step.size) == (True, 60.0, 1_500_000_000)
    (guess,) = make_plan(images, (), frozenset()).steps
    assert not guess.measured

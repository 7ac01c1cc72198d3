"""Choosing: each wish by itself, the ranking, what to relax; and that every image is either returned or refused with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from tests.unit.records import case, record
from validator.builds import NO_CUDA, Basis, Known
from validator.choose import (
    CUDA,
    EVIDENCE,
    FAMILY,
    GPU,
    HEALTH,
    NEED,
    PLATFORM,
    PROOFS,
    PYTHON,
    SIZE,
    TORCH,
    Candidate,
    Choice,
    Proof,
    Wishes,
    alternatives,
    choose,
    nearest,
    proof,
    relaxations,
    versions,
)
from validator.facts import load
from validator.facts.names import target
from validator.model import CaseResult, Declared, Evidence, Image, Outcome, Pull, Slim, Verdict, VerdictClass
from validator.publish.choose import data, from_line, render, why_not

ROOT = Path(__file__).parents[2]
FACTS = load()
RTX = (target("RTX 4090", FACTS), "550.54.15")
A, B = "coo.mm.float32.cuda", "csr.mm.float32.cuda"


def candidate(
    ident: str = "a", *cases: CaseResult, torch: str = "2.6.0", cuda: str = "12.4", arch: tuple[str, ...] | None = ("sm_86",),
    tested: bool = True, family: str = "slim", size: int | None = 5_000_000_000, platform: str = "linux/amd64",
    python: str = "3.11.7", verdict: VerdictClass = VerdictClass.OK, reference: str = "some/one:1",
) -> Candidate:  # fmt: skip
    made = record(ident, *cases, torch=torch)
    made = made.model_copy(
        update={
            "image": made.image.model_copy(update={"size_bytes": size, "digest": "sha256:" + "1" * 64}),
            "facts": {"python": {"version": python}},
            "verdict": Verdict(cls=verdict, code="x", cause="import torch fails"),
        }
    )
    return Candidate(
        image=Image(id=ident, family=family, source=Pull(reference=reference)),
        known=Known(image=ident, platform=platform, basis=Basis.MEASURED, torch=torch, cuda=cuda, arch=arch),
        record=made if tested else None,
        cases={one.id: one for one in cases},
    )


def declared(ident: str, value: Declared) -> CaseResult:
    return CaseResult(id=ident, outcome=Outcome.NOT_RUN, declared=value, missing="aten::mm" if value is Declared.NO else "")


def chosen(*candidates: Candidate, **wishes: Any) -> Choice:
    return choose(candidates, Wishes(**wishes), FACTS)


def refused(one: Candidate, **wishes: Any) -> list[tuple[str, str]]:
    choice = chosen(one, **wishes)
    return [(refusal.wish, refusal.reason) for miss in choice.misses for refusal in miss.refusals]


class TestOneWish:
    @pytest.mark.parametrize(
        ("one", "wishes", "wish", "words"),
        [
            (candidate(arch=("sm_90",)), {"gpus": (RTX,)}, GPU, "cannot run"),
            (candidate(arch=None), {"gpus": (RTX,)}, GPU, "not known whether"),
            (candidate(torch="2.3.1"), {"torch": versions(">=2.4")}, TORCH, "its torch is 2.3.1"),
            (candidate(torch=""), {"torch": versions(">=2.4")}, TORCH, "not known"),
            (candidate(torch="<b>"), {"torch": versions(">=2.4")}, TORCH, "no version"),
            (candidate(torch="2.10.0"), {"torch": versions("2.1")}, TORCH, "its torch is 2.10.0"),
            (candidate(python="3.13.1"), {"python": versions("3.11")}, PYTHON, "its Python is 3.13.1"),
            (candidate(tested=False), {"python": versions("3.11")}, PYTHON, "not known"),
            (candidate(cuda="11.8"), {"cuda": versions(">=12")}, CUDA, "its CUDA is 11.8"),
            (candidate(cuda=NO_CUDA), {"cuda": versions(">=12")}, CUDA, "without CUDA"),
            (candidate(), {"cuda": NO_CUDA}, CUDA, "built for CUDA 12.4"),
            (candidate(), {"max_size": 4_000_000_000}, SIZE, "it has 5.0 GB"),
            (candidate(size=None), {"max_size": 4_000_000_000}, SIZE, "not known"),
            (candidate(), {"platform": "linux/arm64"}, PLATFORM, "it is for linux/amd64"),
            (candidate(), {"families": ("ngc",)}, FAMILY, "its family is slim"),
            (candidate("a", case(A, Outcome.WRONG)), {"needs": (A,)}, NEED, f"{A} came out wrong"),
            (candidate("a", declared(A, Declared.NO)), {"needs": (A,)}, NEED, "no kernel for aten::mm"),
            (candidate("a", declared(A, Declared.UNKNOWN)), {"needs": (A,)}, EVIDENCE, "nothing is known"),
            (candidate("a"), {"needs": (A,)}, EVIDENCE, "nothing is known"),
            (candidate("a", declared(A, Declared.YES)), {"needs": (A,), "weakest": Proof.SIBLING}, EVIDENCE, "surer than declared"),
            (candidate(verdict=VerdictClass.IMAGE), {}, HEALTH, "import torch fails"),
        ],
    )  # fmt: skip
    def test_refuses_with_the_reason(self, one: Candidate, wishes: dict[str, Any], wish: str, words: str) -> None:
        ((found, reason),) = refused(one, **wishes)
        assert found == wish
        assert words in reason

    @pytest.mark.parametrize(
        "wishes",
        [
            {"gpus": (RTX,)}, {"torch": versions(">=2.4,<2.7")}, {"torch": versions("2.6")}, {"python": versions("3.11")},
            {"cuda": versions("12")}, {"max_size": 5_000_000_000}, {"platform": "linux/amd64"}, {"families": ("s*",)},
        ],
    )  # fmt: skip
    def test_lets_through_what_fulfils_it(self, wishes: dict[str, Any]) -> None:
        assert refused(candidate(), **wishes) == []

    def test_a_pre_release_is_not_the_release(self) -> None:
        assert refused(candidate(torch="2.5.0a0+872d972e41"), torch=versions(">=2.5"))
        assert not refused(candidate(torch="2.5.0a0+872d972e41"), torch=versions(">=2.4"))

    @pytest.mark.parametrize("text", ["newest", ">=", "2.x.y", "=2.4"])
    def test_what_is_no_range_is_said(self, text: str) -> None:
        with pytest.raises(ValueError, match="no version or range"):
            versions(text)


class TestProof:
    def test_each_kind(self) -> None:
        sibling = CaseResult(id=A, outcome=Outcome.PASS, evidence=Evidence.SIBLING)
        found = [proof(one) for one in (case(A), sibling, declared(A, Declared.YES), declared(A, Declared.UNKNOWN), None)]
        assert found == [Proof.EXECUTED, Proof.SIBLING, Proof.DECLARED, Proof.FORECAST, Proof.FORECAST]
        assert PROOFS == (Proof.EXECUTED, Proof.SIBLING, Proof.DECLARED, Proof.FORECAST)

    @pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.PASS, Outcome.NOT_RUN)])
    def test_whatever_ran_and_is_no_pass_refuses(self, outcome: Outcome) -> None:
        assert proof(case(A, outcome)) == f"{A} came out {outcome.value}"


class TestRanking:
    def ids(self, *candidates: Candidate, **wishes: Any) -> list[str]:
        return [fit.candidate.image.id for fit in chosen(*candidates, **wishes).fits]

    def test_the_surest_proof_comes_before_newer_torch(self) -> None:
        old = candidate("old", case(A), torch="2.4.0")
        new = candidate("new", declared(A, Declared.YES), torch="2.9.0")
        assert self.ids(new, old, needs=(A,)) == ["old", "new"]

    def test_machine_code_before_ptx(self) -> None:
        jit = candidate("jit", torch="2.9.0", arch=("compute_80",))
        assert self.ids(jit, candidate("code"), gpus=(RTX,)) == ["code", "jit"]

    def test_then_tested_then_newer_then_smaller_then_the_id(self) -> None:
        same = {"torch": "2.6.0"}
        order = [
            candidate("new", torch="2.10.0"), candidate("pre", torch="2.9.0"), candidate("small", size=10**9, **same),
            candidate("a", **same), candidate("b", **same), candidate("unknown-size", size=None, **same),
            candidate("untested", torch="2.12.0", tested=False),
        ]  # fmt: skip
        assert self.ids(*reversed(order)) == [one.image.id for one in order]


class TestNothingFits:
    def test_names_the_wish_to_relax_and_the_best_without_it(self) -> None:
        choice = chosen(
            candidate("a"), candidate("b", torch="2.7.0"), candidate("c", python="3.13.0", torch="2.8.0"),
            candidate("d", python="3.13.0", torch="2.3.0"),
            torch=versions(">=2.8"), python=versions("3.11"),
        )  # fmt: skip
        assert [(one.wish, one.count, one.best) for one in relaxations(choice)] == [(TORCH, 2, "b"), (PYTHON, 1, "c")]
        assert [miss.candidate.image.id for miss in nearest(choice.misses)] == ["c", "b", "a", "d"]

    def test_what_is_broken_is_never_near(self) -> None:
        choice = chosen(candidate(verdict=VerdictClass.IMAGE))
        assert nearest(choice.misses) == []
        assert relaxations(choice) == ()

    def test_alternatives_are_only_what_was_executed_there_and_passed(self) -> None:
        one = candidate(
            "a", case(A, Outcome.ERROR), case(B), case("coo.mm.float64.cuda"), case("csr.mm.float64.cuda"),
            case("coo-coo.mm.float32.cuda"), case("bsr.mm.float32.cuda", Outcome.WRONG), case("csc.mm.float32.cpu"),
            declared("csc.mm.float32.cuda", Declared.YES), case("coo.mm.float32.cuda.backward"),
        )  # fmt: skip
        assert alternatives((A, B), one) == {A: (B, "coo.mm.float64.cuda")}


# --------------------------------------------------------------------------- any images, any wishes

IDS = st.text("abc", min_size=1, max_size=3)
RESULTS = st.one_of(
    st.builds(case, st.sampled_from([A, B]), st.sampled_from(sorted(Outcome))),
    st.builds(declared, st.sampled_from([A, B]), st.sampled_from(sorted(Declared))),
)
CANDIDATES = st.lists(
    st.builds(
        lambda ident, cases, **over: candidate(ident, *cases, **over),
        IDS, st.lists(RESULTS, max_size=3), torch=st.sampled_from(["1.13.1", "2.4.0", "2.10.0", "", "weird"]),
        cuda=st.sampled_from(["12.4", "11.8", NO_CUDA, ""]), arch=st.sampled_from([("sm_86",), ("compute_80",), ("sm_90",), None]),
        tested=st.booleans(), family=st.sampled_from(["slim", "ngc"]), size=st.sampled_from([None, 10**9, 10**10]),
        python=st.sampled_from(["3.9.2", "3.11.7", ""]), verdict=st.sampled_from([VerdictClass.OK, VerdictClass.IMAGE]),
    ),
    max_size=6, unique_by=lambda one: one.image.id,
)  # fmt: skip
WISHES = st.builds(
    Wishes,
    gpus=st.sampled_from([(), (RTX,)]), torch=st.sampled_from([None, versions(">=2.4"), versions("2.10")]),
    python=st.sampled_from([None, versions("3.11")]), cuda=st.sampled_from([None, NO_CUDA, versions(">=12")]),
    needs=st.sampled_from([(), (A,), (A, B)]), max_size=st.sampled_from([None, 5 * 10**9]),
    platform=st.sampled_from(["", "linux/amd64"]), families=st.sampled_from([(), ("slim",)]), weakest=st.sampled_from(PROOFS),
)  # fmt: skip
WEAKER = {
    "gpus": (), "torch": None, "python": None, "cuda": None, "needs": (), "max_size": None, "platform": "", "families": (),
    "weakest": Proof.FORECAST,
}  # fmt: skip


@settings(deadline=None)
@given(CANDIDATES, WISHES)
def test_every_image_is_returned_or_refused_with_a_reason(candidates: list[Candidate], wishes: Wishes) -> None:
    choice = choose(candidates, wishes, FACTS)
    fits = [fit.candidate.image.id for fit in choice.fits]
    misses = [miss.candidate.image.id for miss in choice.misses]
    assert sorted(fits + misses) == sorted(one.image.id for one in candidates)
    assert all(miss.refusals and all(refusal.reason for refusal in miss.refusals) for miss in choice.misses)
    assert choose(list(reversed(candidates)), wishes, FACTS).fits == choice.fits


@settings(deadline=None)
@given(CANDIDATES, WISHES)
def test_every_returned_image_fulfils_every_wish(candidates: list[Candidate], wishes: Wishes) -> None:
    for fit in choose(candidates, wishes, FACTS).fits:
        one = fit.candidate
        assert all(forecast.prospect.value.startswith(("runs", "needs forward")) for forecast in fit.forecasts)
        assert wishes.torch is None or wishes.torch.contains(Version(one.known.torch))
        assert wishes.python is None or wishes.python.contains(Version(one.python))
        assert not isinstance(wishes.cuda, str) or one.known.cuda == NO_CUDA
        assert wishes.max_size is None or (one.size is not None and one.size <= wishes.max_size)
        assert not wishes.families or one.image.family in wishes.families
        known = [proof(one.cases.get(need)) for need in wishes.needs]
        assert all(isinstance(kind, Proof) and PROOFS.index(kind) <= PROOFS.index(wishes.weakest) for kind in known)
        assert one.record is None or one.record.verdict.cls is VerdictClass.OK


@settings(deadline=None)
@given(CANDIDATES, WISHES, st.sampled_from(sorted(WEAKER)))
def test_a_relaxed_wish_never_takes_an_image_away(candidates: list[Candidate], wishes: Wishes, name: str) -> None:
    before = {fit.candidate.image.id for fit in choose(candidates, wishes, FACTS).fits}
    after = {fit.candidate.image.id for fit in choose(candidates, replace(wishes, **{name: WEAKER[name]}), FACTS).fits}  # type: ignore[arg-type]
    assert before <= after


# --------------------------------------------------------------------------- what is shown


class TestShown:
    def test_the_first_has_a_line_for_a_dockerfile_pinned_by_its_digest(self) -> None:
        text = render(chosen(candidate("a", case(A)), needs=(A,)), (A,), width=100, limit=5)
        assert f"FROM some/one:1@sha256:{'1' * 64}" in text
        assert "1 of 1 needed cases (CUDA): executed there and passed" in text
        assert "1 of 1 images fit" in text

    def test_without_a_digest_it_says_that_it_is_not_pinned(self) -> None:
        assert from_line(candidate(tested=False)) == "FROM some/one:1  # not pinned: no record holds its digest"

    def test_an_image_of_ours_says_how_to_build_it(self) -> None:
        from validator.matrix import load as load_matrix

        image = next(one for one in load_matrix(ROOT / "images.yaml").images if isinstance(one.source, Slim))
        assert from_line(replace(candidate(), image=image)).splitlines()[-1] == f"FROM image-matrix/{image.id}"

    def test_declared_executed_and_forecast_are_never_one_word(self) -> None:
        one = candidate("a", declared(A, Declared.YES))
        text = render(chosen(one, needs=(A, B), weakest=Proof.FORECAST), (A, B), width=100, limit=5)
        assert "1 of 2 needed cases (CUDA): declared: the build registers the kernels, nothing ran" in text
        assert "1 of 2 needed cases (CUDA): not known: no record tells" in text
        assert "executed" not in text

    def test_hostile_text_does_no_harm(self) -> None:
        one = candidate("a", torch="2.6\x1b[31m\n\u202e" + "x" * 100)
        for choice in (chosen(one), chosen(one, torch=versions("2.7"))):
            text = render(choice, (), width=80, limit=5)
            assert "\x1b" not in text
            assert "\u202e" not in text
        (miss,) = chosen(one, torch=versions("2.7")).misses
        assert "\x1b" not in why_not(miss, 80)

    def test_json_has_every_image_with_its_reasons(self) -> None:
        found = data(chosen(candidate("a", case(A)), candidate("b", case(A, Outcome.CRASH)), needs=(A,)), (A,))
        assert [one["image"] for one in found["fits"]] == ["a"]
        assert found["fits"][0]["evidence"] == "executed"
        assert found["misses"] == [{"image": "b", "reasons": [{"wish": NEED, "reason": f"{A} came out crash"}]}]
        json.dumps(found)


# --------------------------------------------------------------------------- the command, on the committed records


def run(*arguments: str, input_: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "validator", *arguments],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "DOCKER_HOST": "unix:///nowhere.sock", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL if input_ is None else None, input=input_, timeout=60, check=False,
    )  # fmt: skip


def test_a_profile_on_the_cpu_is_answered_from_what_was_executed() -> None:
    done = run("choose", "--profile", "gnn", "--python", "3.11", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"][0]["evidence"] == "executed"
    assert found["fits"][0]["python"].startswith("3.11")
    assert len(found["fits"]) + len(found["misses"]) == len(json.loads(run("list", "--json").stdout))


def test_on_a_gpu_that_no_record_knows_nothing_is_called_executed() -> None:
    done = run("choose", "--gpu", "RTX 4090", "--driver", "550.54.15", "--profile", "gnn", "--json")
    assert done.returncode == 0, done.stderr
    assert {one["evidence"] for one in json.loads(done.stdout)["fits"]} == {"declared"}
    done = run("choose", "--gpu", "RTX 4090", "--profile", "gnn", "--evidence", "executed")
    assert done.returncode == 3
    assert "With a weaker --evidence" in done.stdout
    assert "no image fulfils every wish" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpu", "RTX 4900"), 2, "did you mean"),
        (("--driver", "550"), 2, "--driver without --gpu"),
        (("--gpu", "A100", "--driver", "new"), 2, "no driver version"),
        (("--torch", "newest"), 2, "no version or range"),
        (("--max-size", "big"), 2, "is no size"),
        (("--profile", "llm"), 2, "unknown profile"),
        (("--need", "coo.mn.float32.cpu"), 2, "no case matches"),
        (("--evidence", "rumour"), 2, "unknown evidence"),
        (("--device", "tpu"), 2, "unknown device"),
        (("--why-not", "nothing", "--torch", "2"), 3, "no image is called"),
    ],
)
def test_a_mistake_is_one_message(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run("choose", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_why_not_names_every_reason() -> None:
    done = run("choose", "--gpu", "RTX 5090", "--python", "3.9", "--why-not", "slim-torch2.6.0-cu124-py3.11-bookworm")
    assert done.returncode == 0
    assert "--gpu: GeForce RTX 5090: cannot run" in done.stdout
    assert "--python: its Python is 3.11.2" in done.stdout


def test_without_a_terminal_it_asks_nothing() -> None:
    done = run("choose", "-n", "1")
    assert done.returncode == 0
    assert "images fit; the best 1 are shown" in done.stdout
    assert "?" not in done.stderr


def test_on_a_terminal_it_asks_four_questions_and_says_the_command_that_does_the_same() -> None:
    person, terminal = os.openpty()
    os.write(person, b"RTX 4090\n550.54.15\ngnn\n2.6\n")
    done = subprocess.run(
        [sys.executable, "-m", "validator", "choose"], stdin=terminal, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )  # fmt: skip
    os.close(person)
    os.close(terminal)
    same = "image-matrix choose --gpu 'RTX 4090' --driver 550.54.15 --profile gnn --torch 2.6"
    assert same in done.stderr
    assert done.returncode == 0
    assert done.stdout.startswith("1. slim-torch2.6.0-cu124-py3.11-bookworm")

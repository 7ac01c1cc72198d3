"""The verb `choose`: from wishes to one image. Needs neither engine nor network."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from validator.cli.forecast import DRIVER, targets
from validator.cli.given import check_cases, records_by_image, the_matrix
from validator.cli.options import Json
from validator.cli.output import ask, put, put_json, talk, width
from validator.errors import NothingSelected, UsageError

if TYPE_CHECKING:
    from validator.choose import Candidate, Wishes
    from validator.facts import Facts
    from validator.model import Record

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GB|MB)", re.IGNORECASE)
_UNITS = {"gb": 10**9, "mb": 10**6}


def choose(
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="'RTX 4090', sm_89, 8.9 or host; may be repeated: all of them", show_default=False),
    ] = None,
    driver: Annotated[str, typer.Option(help="the driver, as nvidia-smi says it", show_default=False)] = "",
    torch: Annotated[str, typer.Option(help="'2.6' or '>=2.4,<2.8'", show_default=False)] = "",
    python: Annotated[str, typer.Option(help="'3.11' or '>=3.10'", show_default=False)] = "",
    cuda: Annotated[str, typer.Option(help="'12.4', '>=12', or none", show_default=False)] = "",
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile", help="core, gnn, recsys, attention, pruning, training, solvers; may be repeated", show_default=False
        ),
    ] = None,
    need: Annotated[
        list[str] | None, typer.Option("--need", help="cases that must work (globs); may be repeated", show_default=False)
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="where a profile must work: cuda or cpu [default: cuda with --gpu, else cpu]", show_default=False),
    ] = "",
    max_size: Annotated[str, typer.Option("--max-size", help="on disk: 6GB, 900MB", show_default=False)] = "",
    platform: Annotated[str, typer.Option(help="linux/amd64, linux/arm64", show_default=False)] = "",
    family: Annotated[
        list[str] | None, typer.Option("--family", help="families (globs): slim, ngc", show_default=False)
    ] = None,
    evidence: Annotated[
        str, typer.Option(help="the weakest that will do for a needed case: executed | sibling | declared | forecast")
    ] = "declared",
    limit: Annotated[int, typer.Option("-n", min=1, help="how many to show")] = 5,
    explain: Annotated[bool, typer.Option("--explain", help="also say of every other image why it does not fit")] = False,
    why_not: Annotated[
        str, typer.Option("--why-not", metavar="ID", help="say why this image does not fit", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Choose an image for a GPU, a driver and what must work; the best comes first, with its FROM line.

    Without wishes, on a terminal, it asks. Nothing is run: it says what records, rows and facts know.
    """
    from validator.choose import choose as judge
    from validator.facts import load
    from validator.publish.choose import data, render
    from validator.publish.choose import why_not as reasons

    if not any((gpu, driver, torch, python, cuda, profile, need, max_size, platform, family, why_not)) and sys.stdin.isatty():
        gpu, driver, profile, torch = _ask()
    facts = load()
    wishes = _wishes(facts, gpu, driver, torch, python, cuda, profile, need, device, max_size, platform, family, evidence)
    candidates = _candidates(wishes, facts)
    choice = judge(candidates, wishes, facts)
    if why_not:
        if why_not not in {one.image.id for one in candidates}:
            raise NothingSelected(f"no image is called {why_not!r}", "`image-matrix list` shows all")
        miss = next((miss for miss in choice.misses if miss.candidate.image.id == why_not), None)
        put(reasons(miss, width()) if miss else f"{why_not} fits.")
        return
    put_json(data(choice, wishes.needs)) if as_json else put(
        render(choice, wishes.needs, width=width(), limit=limit, explain=explain)
    )
    if not choice.fits:
        raise NothingSelected("no image fulfils every wish", "relax one: the lines above name those that would do")


def _ask() -> tuple[list[str], str, list[str], str]:
    """The four questions that matter; an empty answer is no wish. Says the command that asks for the same."""
    from validator.profiles import NAMES

    gpu = ask("GPU (name, sm_89, host; empty: none)")
    driver = ask("driver (nvidia-smi shows it; empty: new enough)") if gpu else ""
    profile = ask(f"what for ({', '.join(NAMES)}; empty: anything)")
    torch = ask("torch ('2.6', '>=2.4'; empty: any)")
    given = (("--gpu", gpu), ("--driver", driver), ("--profile", profile), ("--torch", torch))
    talk("the same: image-matrix choose " + " ".join(f"{name} {shlex.quote(text)}" for name, text in given if text))
    return [gpu] if gpu else [], driver, [profile] if profile else [], torch


def _wishes(
    facts: Facts, gpu: list[str] | None, driver: str, torch: str, python: str, cuda: str, profile: list[str] | None,
    need: list[str] | None, device: str, max_size: str, platform: str, family: list[str] | None, evidence: str,
) -> Wishes:  # fmt: skip
    from validator.builds import NO_CUDA
    from validator.choose import PROOFS, Proof, Wishes, versions

    def range_of(option: str, text: str):  # type: ignore[no-untyped-def]
        try:
            return versions(text) if text else None
        except ValueError as error:
            raise UsageError(
                f"{option}: {error}", f"write it as pip does: {option} '>=2.4,<2.8', or its front: {option} 2.6"
            ) from error

    if driver and not DRIVER.fullmatch(driver):
        raise UsageError(f"{driver!r} is no driver version", "nvidia-smi shows it at the top: --driver 535.104.05")
    if driver and not gpu:
        raise UsageError("--driver without --gpu says nothing", "name the GPU, too: --gpu 'RTX 4090'")
    if evidence not in PROOFS:
        raise UsageError(f"unknown evidence {evidence!r}", f"use {', '.join(PROOFS)}")
    if device not in ("", "cpu", "cuda"):
        raise UsageError(f"unknown device {device!r}", "use cpu or cuda")
    return Wishes(
        gpus=tuple(pair for text in gpu or [] for pair in targets(text, driver, facts)),
        torch=range_of("--torch", torch),
        python=range_of("--python", python),
        cuda=NO_CUDA if cuda in (NO_CUDA, "cpu") else range_of("--cuda", cuda),
        needs=_needs(profile or [], need or [], device or ("cuda" if gpu else "cpu")),
        max_size=_bytes(max_size) if max_size else None,
        platform=platform,
        families=tuple(family or ()),
        weakest=Proof(evidence),
    )


def _needs(profiles: list[str], globs: list[str], device: str) -> tuple[str, ...]:
    """The ids of the needed cases, in the order of the catalogue."""
    from fnmatch import fnmatchcase

    from validator import probe
    from validator.profiles import NAMES

    for name in profiles:
        if name not in NAMES:
            raise UsageError(f"unknown profile {name!r}", f"use {', '.join(NAMES)}")
    if globs:
        check_cases(globs)
    return tuple(
        case["id"]
        for case in (probe.cases() if profiles or globs else ())
        if (case["device"] == device and set(case.get("profiles", ())) & set(profiles))
        or any(fnmatchcase(case["id"], glob) for glob in globs)
    )


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{text!r} is no size", "write --max-size 6GB or 900MB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def _candidates(wishes: Wishes, facts: Facts) -> tuple[Candidate, ...]:
    """Every image of the matrix with what is known of it."""
    from validator.builds import known
    from validator.choose import Candidate
    from validator.sibling import borrowed, siblings

    images = the_matrix().images
    all_records, latest = records_by_image(_useful(wishes.needs))
    others = {one.image.id: one.record for one in siblings(images, latest)} if wishes.needs else {}
    speaking: dict[str, list[Record]] = {}
    for one in latest:
        speaking.setdefault(one.image.id, []).append(one)
    found: list[Candidate] = []
    for image in images:
        record = _best(speaking.get(image.id, []), wishes)
        sibling = others.get(image.id)
        cases = borrowed(record, sibling) if sibling else record.cases if record else ()
        wanted = {case.id: case for case in cases} if wishes.needs else {}
        found.append(
            Candidate(
                image=image,
                known=known(image, all_records.get(image.id, ()), facts),
                record=record,
                cases=wanted,
                sibling=sibling.image.id if sibling else "",
            )
        )
    return tuple(found)


def _useful(needs: tuple[str, ...]) -> tuple[str, ...]:
    """The cases to read: those that are needed, and those that may stand in for one of them."""
    from validator import probe
    from validator.choose import stands_in

    wanted = [need.split(".") for need in needs]
    return tuple(
        case["id"] for case in (probe.cases() if needs else ())
        if case["id"] in needs or any(stands_in(case["id"].split("."), one) for one in wanted)
    )  # fmt: skip


def _best(records: list[Record], wishes: Wishes) -> Record | None:
    """The record that speaks for an image: from a host with a GPU that was asked for, else the newest that was a test at all."""
    from validator.model import VerdictClass

    tested = [r for r in records if r.verdict.cls not in (VerdictClass.INFRA, VerdictClass.HOST)]
    capabilities = {gpu.cc for gpu, _ in wishes.gpus}

    def order(record: Record) -> tuple[bool, str, str]:
        return any(gpu.compute_capability in capabilities for gpu in record.host.gpus), record.started, record.key

    return max(tested, key=order, default=None)

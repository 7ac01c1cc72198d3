"""Verbs that test images: matrix, run."""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from validator.cli.given import check_cases, check_tier, chosen_images, now, the_engine, the_store
from validator.cli.host import sweep_engine
from validator.cli.options import Cases, Keyword, Selection, Tier
from validator.cli.output import put, reporter, talk
from validator.cli.results import table_text
from validator.errors import FindingsFound, Interrupted, NothingSelected, UsageError

if TYPE_CHECKING:
    from validator.engine import Engine
    from validator.failing import FailOn
    from validator.model import Image, Matrix, Record, Run
    from validator.plan import Plan
    from validator.preflight import Preflight
    from validator.schedule import Schedule
    from validator.store import Store

RESERVE = 20_000_000_000

GpuOption = Annotated[str, typer.Option("--gpu", help="preferred | required: over what images.yaml says", show_default=False)]
Wheels = Annotated[
    list[Path] | None, typer.Option("--wheels", help="directory with local wheels (also PIP_FIND_LINKS)", show_default=False)
]
Keep = Annotated[bool, typer.Option("--keep", help="never remove an image, however full the disk is")]
Refresh = Annotated[bool, typer.Option("--refresh", help="test also what is known")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show the plan and stop")]
FailOnNames = Annotated[
    str,
    typer.Option(
        "--fail-on", help="exit code 1 when there is any: wrong,crash,fallback,timeout,error,unexpected,regressed,untested",
        show_default=False,
    ),
]  # fmt: skip
LastFailed = Annotated[bool, typer.Option("--last-failed", help="only what the newest run could not test or found not good")]
ExitFirst = Annotated[
    bool, typer.Option("-x", "--exit-first", help="stop after the first image that cannot be tested or is not good")
]


def matrix(
    select: Selection = None, keyword: Keyword = "", gpu: GpuOption = "", cases: Cases = None, wheels: Wheels = None,
    keep: Keep = False, refresh: Refresh = False, dry_run: DryRun = False, tier: Tier = "standard", fail_on: FailOnNames = "",
    last_failed: LastFailed = False, exit_first: ExitFirst = False,
) -> None:  # fmt: skip
    """Test every image of the selection that is not known yet, then print the table."""
    wanted = _fail_on(fail_on)
    done = _test(select, keyword, gpu, cases, wheels, keep, refresh, dry_run, tier, last_failed, exit_first)
    if done is not None:
        put(table_text(None, "terminal", done.run))
        _closing(done, wanted)


def run(
    select: Selection = None, keyword: Keyword = "", gpu: GpuOption = "", cases: Cases = None, wheels: Wheels = None,
    keep: Keep = False, refresh: Refresh = False, dry_run: DryRun = False, tier: Tier = "standard", fail_on: FailOnNames = "",
    last_failed: LastFailed = False, exit_first: ExitFirst = False,
) -> None:  # fmt: skip
    """Test the selected images (as `matrix`, without the table)."""
    wanted = _fail_on(fail_on)
    done = _test(select, keyword, gpu, cases, wheels, keep, refresh, dry_run, tier, last_failed, exit_first)
    if done is not None:
        _closing(done, wanted)


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that is over; before: what stood for each image and host when it began."""

    run: Run
    store: Store
    before: dict[tuple[str, str], Record]


def _test(
    select: list[str] | None, keyword: str, gpu: str, cases: list[str] | None, wheels: list[Path] | None,
    keep: bool, refresh: bool, dry_run: bool, tier: str, last_failed: bool, exit_first: bool,
) -> Done | None:  # fmt: skip
    from validator import probe
    from validator.context import host_settings
    from validator.gpus import parse_gpus
    from validator.model import GpuWish
    from validator.preflight import examine, require_gpu
    from validator.probe import ProbeOptions
    from validator.run import effective
    from validator.schedule import run_labels

    check_tier(tier)
    if gpu not in ("", *GpuWish):
        raise UsageError(f"unknown value for --gpu: {gpu!r}", "use preferred or required")
    wish = GpuWish(gpu) if gpu else None
    store = the_store()
    if last_failed:
        select = _again(store, select)
    matrix_, chosen = chosen_images(select, keyword)
    images = tuple(effective(image, wish) for image in chosen)
    check_cases(cases or [])
    host = host_settings(os.environ, tuple(wheels or ()))
    options = ProbeOptions(cases=tuple(cases or ()), tier=tier)
    engine = the_engine()
    before = store.latest()
    run_id = f"{now():%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
    with store.lock(), _stoppable():
        labels = run_labels(run_id)
        sweep_engine(engine)
        first = next((image.run.gpus for image in images if image.run.gpus), "")
        preflight = examine(engine, labels, parse_gpus(first))
        if any(image.run.gpu is GpuWish.REQUIRED for image in images):
            require_gpu(preflight)
        _say_host(preflight)
        schedule = _schedule(
            engine,
            store,
            matrix_,
            preflight,
            host,
            options,
            labels,
            run_id,
            images,
            probe.version(),
            keep,
            refresh,
            exit_first,
        )
        plan, keys = schedule.examine(images)
        _say_plan(plan, preflight, len(images))
        if dry_run:
            return None
        try:
            return Done(run=schedule.execute(plan, keys), store=store, before=before)
        except KeyboardInterrupt:
            _sweep_run(engine, run_id)
            raise Interrupted("stopped; what was tested so far is kept", "run the same command again to go on") from None


def _schedule(
    engine: Engine, store: Store, matrix_: Matrix, preflight: Preflight, host: Any, options: Any, labels: dict[str, str],
    run_id: str, images: tuple[Image, ...], probe_version: str, keep: bool, refresh: bool,
    exit_first: bool,
) -> Schedule:  # fmt: skip
    from validator.acquire import Acquirer
    from validator.model import Run
    from validator.registry import Registries
    from validator.run import ImageRunner
    from validator.schedule import Schedule

    registries = Registries(engine, dict(matrix_.mirrors))
    acquirer = Acquirer(engine=engine, registries=registries, settings=host, environ=os.environ, labels=labels)
    runner = ImageRunner(
        engine=engine, acquirer=acquirer, preflight=preflight, options=options, labels=labels, run_id=run_id,
        now=now, clock=time.monotonic,
    )  # fmt: skip
    record = Run(
        id=run_id,
        started=now().isoformat(timespec="seconds").replace("+00:00", "Z"),
        matrix_sha256=matrix_.sha256,
        selection=tuple(image.id for image in images),
        probe=probe_version,
        host=preflight.host,
    )
    return Schedule(
        engine=engine, runner=runner, store=store, reporter=reporter(), run=record, reserve=RESERVE, keep=keep,
        refresh=refresh, exit_first=exit_first, now=now,
    )  # fmt: skip


def _sweep_run(engine: Engine, run_id: str) -> None:
    from validator.schedule import sweep_run

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it
    try:
        time.sleep(0.5)  # a request that was cut in the middle may still be carried out by the engine
        sweep_run(engine, run_id)
    finally:
        signal.signal(signal.SIGINT, before)


def _say_host(preflight: Preflight) -> None:
    from validator.preflight import GpuState
    from validator.progress import printable
    from validator.units import size

    host = preflight.host
    gpus = ", ".join(f"{g.name} (compute capability {g.compute_capability or '?'})" for g in host.gpus)
    free = preflight.disk_free()
    talk(f"host    {host.cpu or host.architecture}, {host.cores} cores, Docker {host.engine} (API {host.api})")
    if preflight.gpu is GpuState.REFUSED:
        talk(f"GPU     none: this engine refuses --gpus ({printable(preflight.gpu_reason)}); CUDA cases will be not-run")
    elif preflight.gpu is GpuState.ACCEPTED:
        talk(
            f"GPU     --gpus is accepted; {gpus + f', driver {host.driver}' if gpus else 'nvidia-smi shows none on this machine'}"
        )
    talk(f"disk    {size(free)} free under {preflight.info.root}" if free is not None else "disk    not visible from here")


def _say_plan(plan: Plan, preflight: Preflight, selected: int) -> None:
    from validator.units import duration, size

    todo = plan.todo
    known = len(plan.steps) - len(todo)
    builds = sum(step.image.kind == "build" for step in todo)
    out_of_reach = selected - len(plan.steps)
    parts = [f"{builds} to build", f"{len(todo) - builds} to pull", f"{known} known (nothing changed since their record)"]
    talk(f"plan    {selected} images: {', '.join(parts)}" + (f", {out_of_reach} out of reach" if out_of_reach else ""))
    if todo:
        rough = "" if all(step.measured for step in todo) else " (partly a rough guess)"
        talk(
            f"        about {size(plan.bytes_needed)} unpacked, {size(max(s.size for s in todo))} the largest; time {duration(plan.seconds)}{rough}"
        )


def _again(store: Store, select: list[str] | None) -> list[str]:
    from validator.failing import last_failed

    ids = last_failed(store.runs(), store.records())
    if not ids:
        raise NothingSelected(
            "the newest run left nothing untested and found nothing that is not good", "run without --last-failed"
        )
    if select:
        raise UsageError("--last-failed chooses the images itself", "leave the ids out, or leave --last-failed out")
    return list(ids)


def _closing(done: Done, wanted: frozenset[FailOn]) -> None:
    """The last lines of a run. Raises Found when what --fail-on names is there."""
    from validator.failing import found
    from validator.progress import printable

    run_ = done.run
    counts: dict[str, int] = {}
    for entry in run_.entries:
        counts[entry.state] = counts.get(entry.state, 0) + 1
    talk(f"run {run_.id}: " + ", ".join(f"{number} {state}" for state, number in sorted(counts.items())))
    causes: dict[str, list[str]] = {}
    for entry in run_.entries:
        if entry.state == "untested" and entry.verdict is not None:
            causes.setdefault(f"{entry.verdict.cls.value}: {entry.verdict.cause}", []).append(entry.id)
    for cause, ids in causes.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        talk(f"  could not be tested: {ids[0]}{more} ({cause})")
    keys = {entry.record for entry in run_.entries if entry.record}
    lines = found(wanted, run_, [r for r in done.store.records() if r.key in keys], done.before)
    for line in lines:
        talk(f"  found: {printable(line, 400)}")
    if lines:
        raise FindingsFound(
            f"{len(lines)} of the things that --fail-on names were found",
            "they are listed above; `image-matrix show ID` tells more",
        )


@contextmanager
def _stoppable() -> Any:
    """TERM means the same as Ctrl-C: stop, keep what is known, clean up."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail_on(text: str) -> frozenset[FailOn]:
    from validator.failing import parse

    return parse(text)

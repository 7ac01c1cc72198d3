"""The command line: arguments in, core called, text out. The only module that prints or exits."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from validator import __version__
from validator.errors import FindingsFound, ImageMatrixError, InternalError, Interrupted, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from validator.engine import Engine
    from validator.model import Image, Matrix, Run
    from validator.plan import Plan
    from validator.preflight import Preflight
    from validator.progress import Reporter
    from validator.schedule import Schedule
    from validator.store import Store
    from validator.table import Table

app = typer.Typer(
    name="image-matrix",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which PyTorch-CUDA image really runs sparse tensors on your GPU: answered by test.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

INSTALL_HINT = "start the engine you have, name one with --docker-host or DOCKER_HOST, or on Debian and Ubuntu as root run: scripts/ensure-engine"
RESERVE = 20_000_000_000

Selection = Annotated[
    list[str] | None, typer.Argument(help="image ids or globs: 'slim-*', 'ngc-24.*', '!*-devel'", show_default=False)
]
Keyword = Annotated[str, typer.Option("-k", help="expression over ids: 'slim and not cpu'", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="machine-readable output on stdout")]


@dataclass
class Settings:
    """The options that stand before the verb."""

    config: Path | None = None
    results: Path | None = None
    docker_host: str = ""


settings = Settings()


def _version(asked: bool) -> None:
    if asked:
        _out(f"image-matrix {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="the matrix file [default: images.yaml]", show_default=False)
    ] = None,
    results: Annotated[Path | None, typer.Option(help="where records are kept [default: results/]", show_default=False)] = None,
    docker_host: Annotated[str, typer.Option(help="the engine to use: unix://, tcp:// or ssh://", show_default=False)] = "",
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
) -> None:
    settings.config, settings.results, settings.docker_host = config, results, docker_host


# --------------------------------------------------------------------------- small parts


def _out(text: str) -> None:
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough (`| head`): the job is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def _talk(text: str) -> None:
    sys.stderr.write(text if text.endswith("\n") else text + "\n")
    sys.stderr.flush()


def _json(data: Any) -> None:
    _out(json.dumps(data, indent=1, sort_keys=True))


def _now() -> datetime:
    return datetime.now(UTC)


def _matrix() -> Matrix:
    from validator.data import data_path
    from validator.matrix import load

    return load(settings.config or data_path("images.yaml"))


def _images(patterns: list[str] | None, keyword: str) -> tuple[Matrix, tuple[Image, ...]]:
    from validator.select import select

    matrix = _matrix()
    return matrix, select(matrix, tuple(patterns or ()), keyword)


def _store(*, reading: bool = False) -> Store:
    from validator.data import data_path, shipped_results
    from validator.store import Store

    return Store(settings.results or (shipped_results() if reading else data_path("results")))


def _engine() -> Engine:
    from validator.endpoint import candidates
    from validator.engine import connect

    found, exclusive = candidates(settings.docker_host, os.environ, Path.home())
    return connect(found, exclusive=exclusive, install_hint=INSTALL_HINT)


def _console() -> Console:
    from rich.console import Console

    forced = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")
    return Console(stderr=True, highlight=False, force_terminal=True if forced else None)


def _reporter() -> Reporter:
    from validator.progress import LiveDisplay, Plain

    console = _console()
    return LiveDisplay(console, time.monotonic) if sys.stderr.isatty() else Plain(console)


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


# --------------------------------------------------------------------------- verbs


@app.command("list")
def list_(select: Selection = None, keyword: Keyword = "", as_json: Json = False) -> None:
    """Show the images of the matrix, expanded, and what was excluded and why."""
    matrix, images = _images(select, keyword)
    if as_json:
        _json([_row(image) for image in images])
        return
    width = max(len(image.id) for image in images)
    for image in images:
        mark = "  (tag inferred, not seen)" if image.inferred else ""
        _out(f"{image.id:{width}}  {image.kind:6}  {_reference(image)}{mark}")
    _talk(f"{len(images)} of {len(matrix.images)} images selected, {len(matrix.excluded)} excluded")


def _reference(image: Image) -> str:
    from validator.model import Slim

    source = image.source
    if isinstance(source, Slim):
        return f"torch {source.torch} from index {source.index} on {source.base.name} (Python {source.python})"
    return source.reference


def _row(image: Image) -> dict[str, Any]:
    return {
        "id": image.id,
        "family": image.family,
        "kind": image.kind,
        "from": _reference(image),
        "declared": dict(image.declared),
        "inferred": image.inferred,
    }


@app.command()
def lint() -> None:
    """Check images.yaml, its JSON Schema and the templates, without an engine."""
    from validator.data import data_path
    from validator.matrix import schema
    from validator.render import render

    matrix = _matrix()
    for image in matrix.images:
        render(image)
    path = data_path("images.schema.json")
    if json.loads(path.read_text(encoding="utf-8")) != schema():
        raise FindingsFound(f"{path} is not what the code generates", "run `image-matrix lint --write-schema` or `make schema`")
    _talk(f"{matrix.path}: {len(matrix.images)} images, {len(matrix.excluded)} excluded, templates render, no problem found")


@app.command()
def schema(write: Annotated[bool, typer.Option("--write", help="write images.schema.json beside the matrix")] = False) -> None:
    """Print the JSON Schema of images.yaml (for editors)."""
    from validator.data import data_path
    from validator.matrix import schema as make

    text = json.dumps(make(), indent=2, sort_keys=True) + "\n"
    if write:
        data_path("images.schema.json").write_text(text, encoding="utf-8")
    else:
        _out(text)


@app.command("render")
def render_(
    select: Selection = None,
    keyword: Keyword = "",
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 when a file would change")] = False,
    out: Annotated[
        Path | None, typer.Option(help="where to write [default: dockerfiles/rendered/]", show_default=False)
    ] = None,
) -> None:
    """Write every image's Dockerfile to dockerfiles/rendered/, or print one when a single id is given."""
    from validator.data import data_path
    from validator.render import drift, render, write_all

    matrix, images = _images(select, keyword)
    target = out or data_path("dockerfiles") / "rendered"
    if check:
        changed = drift(matrix, target)
        if changed:
            raise FindingsFound(
                "rendered Dockerfiles differ: " + ", ".join(changed[:5]), "run `image-matrix render` and commit the result"
            )
        _talk(f"{len(matrix.images)} Dockerfiles are current")
    elif len(images) == 1 and select and out is None:
        _out(render(images[0]))
    else:
        write_all(matrix, target)
        _talk(f"{len(matrix.images)} Dockerfiles written to {target}")


@app.command()
def doctor(
    engine: Annotated[bool, typer.Option("--engine", help="only say which engine answers; exit 4 when none does")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with this host. Changes nothing."""
    found = _engine()
    if engine:
        _out(found.endpoint)
        return
    info = found.info()
    lines = {
        "endpoint": found.endpoint,
        "engine": f"{info.version} (API {info.api})",
        "machine": f"{info.os}, {info.cores} cores, {info.memory >> 30} GiB memory, {info.platform}",
        "data root": info.root,
        "GPU runtimes": ", ".join(info.gpu_runtimes) or "none named; `--gpus` may be refused",
    }
    if as_json:
        _json(lines)
    else:
        for name, text in lines.items():
            _out(f"{name:13} {text}")


GpuOption = Annotated[str, typer.Option("--gpu", help="preferred | required: over what images.yaml says", show_default=False)]
Cases = Annotated[
    list[str] | None, typer.Option("--cases", help="only these cases (globs); may be repeated", show_default=False)
]
Wheels = Annotated[
    list[Path] | None, typer.Option("--wheels", help="directory with local wheels (also PIP_FIND_LINKS)", show_default=False)
]
Keep = Annotated[bool, typer.Option("--keep", help="never remove an image, however full the disk is")]
Refresh = Annotated[bool, typer.Option("--refresh", help="test also what is known")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show the plan and stop")]
Tier = Annotated[str, typer.Option(help="quick | standard | full")]


@app.command()
def matrix(
    select: Selection = None, keyword: Keyword = "", gpu: GpuOption = "", cases: Cases = None, wheels: Wheels = None,
    keep: Keep = False, refresh: Refresh = False, dry_run: DryRun = False, tier: Tier = "standard",
) -> None:  # fmt: skip
    """Test every image of the selection that is not known yet, then print the table."""
    run = _test(select, keyword, gpu, cases, wheels, keep, refresh, dry_run, tier)
    if run is not None:
        _out(_table_text(None, "terminal", run))
        _closing(run)


@app.command()
def run(
    select: Selection = None, keyword: Keyword = "", gpu: GpuOption = "", cases: Cases = None, wheels: Wheels = None,
    keep: Keep = False, refresh: Refresh = False, dry_run: DryRun = False, tier: Tier = "standard",
) -> None:  # fmt: skip
    """Test the selected images (as `matrix`, without the table)."""
    done = _test(select, keyword, gpu, cases, wheels, keep, refresh, dry_run, tier)
    if done is not None:
        _closing(done)


def _test(
    select: list[str] | None, keyword: str, gpu: str, cases: list[str] | None, wheels: list[Path] | None,
    keep: bool, refresh: bool, dry_run: bool, tier: str,
) -> Run | None:  # fmt: skip
    from validator import probe
    from validator.context import host_settings
    from validator.gpus import parse_gpus
    from validator.model import GpuWish
    from validator.preflight import examine, require_gpu
    from validator.run import ProbeOptions, effective

    if tier not in ("quick", "standard", "full"):
        raise UsageError(f"unknown tier {tier!r}", "use quick, standard or full")
    if gpu not in ("", *GpuWish):
        raise UsageError(f"unknown value for --gpu: {gpu!r}", "use preferred or required")
    wish = GpuWish(gpu) if gpu else None
    matrix_, chosen = _images(select, keyword)
    images = tuple(effective(image, wish) for image in chosen)
    _check_cases(cases or [])
    host = host_settings(os.environ, tuple(wheels or ()))
    options = ProbeOptions(cases=tuple(cases or ()), tier=tier)
    engine = _engine()
    store = _store()
    run_id = f"{_now():%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
    with store.lock(), _stoppable():
        labels = _labels(run_id)
        _sweep(engine)
        first = next((image.run.gpus for image in images if image.run.gpus), "")
        preflight = examine(engine, labels, parse_gpus(first))
        if any(image.run.gpu is GpuWish.REQUIRED for image in images):
            require_gpu(preflight)
        _say_host(preflight)
        schedule = _schedule(
            engine, store, matrix_, preflight, host, options, labels, run_id, images, probe.version(), keep, refresh
        )
        plan, keys = schedule.examine(images)
        _say_plan(plan, preflight, len(images))
        if dry_run:
            return None
        try:
            return schedule.execute(plan, keys)
        except KeyboardInterrupt:
            _sweep_run(engine, run_id)
            raise Interrupted("stopped; what was tested so far is kept", "run the same command again to go on") from None


def _check_cases(globs: list[str]) -> None:
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    from validator import probe

    ids = [case["id"] for case in probe.cases()]
    for glob in globs:
        if not any(fnmatchcase(ident, glob) for ident in ids):
            near = get_close_matches(glob, ids, n=3)
            raise UsageError(
                f"no case matches {glob!r}",
                f"did you mean {', '.join(near)}?" if near else "a glob over ids like 'csr.mm.*.cpu'",
            )


def _schedule(
    engine: Engine, store: Store, matrix_: Matrix, preflight: Preflight, host: Any, options: Any, labels: dict[str, str],
    run_id: str, images: tuple[Image, ...], probe_version: str, keep: bool, refresh: bool,
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
        now=_now, clock=time.monotonic,
    )  # fmt: skip
    record = Run(
        id=run_id,
        started=_now().isoformat(timespec="seconds").replace("+00:00", "Z"),
        matrix_sha256=matrix_.sha256,
        selection=tuple(image.id for image in images),
        probe=probe_version,
        host=preflight.host,
    )
    return Schedule(
        engine=engine, runner=runner, store=store, reporter=_reporter(), run=record, reserve=RESERVE, keep=keep,
        refresh=refresh, now=_now,
    )  # fmt: skip


def _labels(run_id: str) -> dict[str, str]:
    from validator.engine import LABEL
    from validator.schedule import OWNER, owner_token

    return {f"{LABEL}.run": run_id, OWNER: owner_token()}


def _sweep(engine: Engine) -> None:
    from validator.schedule import sweep

    left = sweep(engine)
    if left:
        _talk(f"removed {left} container(s) that a killed run of ours had left")


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
    from validator.progress import printable, size

    host = preflight.host
    gpus = ", ".join(f"{g.name} (compute capability {g.compute_capability or '?'})" for g in host.gpus)
    free = preflight.disk_free()
    _talk(f"host    {host.cpu or host.architecture}, {host.cores} cores, Docker {host.engine} (API {host.api})")
    if preflight.gpu is GpuState.REFUSED:
        _talk(f"GPU     none: this engine refuses --gpus ({printable(preflight.gpu_reason)}); CUDA cases will be not-run")
    elif preflight.gpu is GpuState.ACCEPTED:
        _talk(
            f"GPU     --gpus is accepted; {gpus + f', driver {host.driver}' if gpus else 'nvidia-smi shows none on this machine'}"
        )
    _talk(f"disk    {size(free)} free under {preflight.info.root}" if free is not None else "disk    not visible from here")


def _say_plan(plan: Plan, preflight: Preflight, selected: int) -> None:
    from validator.progress import duration, size

    todo = plan.todo
    known = len(plan.steps) - len(todo)
    builds = sum(step.image.kind == "build" for step in todo)
    out_of_reach = selected - len(plan.steps)
    parts = [f"{builds} to build", f"{len(todo) - builds} to pull", f"{known} known (nothing changed since their record)"]
    _talk(f"plan    {selected} images: {', '.join(parts)}" + (f", {out_of_reach} out of reach" if out_of_reach else ""))
    if todo:
        rough = "" if all(step.measured for step in todo) else " (partly a rough guess)"
        _talk(
            f"        about {size(plan.bytes_needed)} unpacked, {size(max(s.size for s in todo))} the largest; time {duration(plan.seconds)}{rough}"
        )


def _closing(run_: Run) -> None:
    counts: dict[str, int] = {}
    for entry in run_.entries:
        counts[entry.state] = counts.get(entry.state, 0) + 1
    _talk(f"run {run_.id}: " + ", ".join(f"{number} {state}" for state, number in sorted(counts.items())))
    causes: dict[str, list[str]] = {}
    for entry in run_.entries:
        if entry.state == "untested" and entry.verdict is not None:
            causes.setdefault(f"{entry.verdict.cls.value}: {entry.verdict.cause}", []).append(entry.id)
    for cause, ids in causes.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        _talk(f"  could not be tested: {ids[0]}{more} ({cause})")


@app.command()
def table(
    select: Selection = None,
    format_: Annotated[str, typer.Option("--format", "-f", help="terminal | md | json")] = "terminal",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="write to a file instead of stdout", show_default=False)
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="put the Markdown between the markers of this file", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="with --into: write nothing, exit 1 when the file is not current")
    ] = False,
    cases: Annotated[str, typer.Option("--cases", help="cases (glob) as rows, images as columns", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """Print the compatibility table built from results/. Needs no engine."""
    from validator.publish import markdown

    if into is not None:
        old = _read(into)
        new = markdown.replace_between_markers(old, "table", markdown.render(_table(select, None, with_runs=False)))
        if check and new != old:
            raise FindingsFound(
                f"the table in {into} is not what results/ says",
                f"run `image-matrix table --into {into}` and commit the result",
            )
        if not check:
            into.write_text(new, encoding="utf-8")
            _talk(f"{into} is current")
        return
    text = _case_text(select, cases, as_json) if cases else _table_text(select, "json" if as_json else format_, None)
    if out is None:
        _out(text)
    else:
        out.write_text(text, encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error


def _table(select: list[str] | None, run_: Run | None, *, with_runs: bool = True) -> Table:
    """with_runs: also say which images the newest run could not test; a document shows records only."""
    from validator.table import build

    matrix_, chosen = _images(select, "")
    store = _store(reading=run_ is None)
    runs = (run_,) if run_ is not None else store.runs() if with_runs else ()
    only = frozenset(image.id for image in chosen) if select else frozenset(run_.selection) if run_ is not None else None
    made = build(store.latest(), runs, tuple(image.id for image in matrix_.images), only)
    for problem in store.problems:
        _talk(f"image-matrix: left out, cannot be read: {problem}")
    return made


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((160, 24)).columns


def _table_text(select: list[str] | None, format_: str, run_: Run | None) -> str:
    from validator.publish import markdown, terminal

    if format_ not in ("terminal", "md", "json"):
        raise UsageError(f"unknown format {format_!r}", "use terminal, md or json")
    made = _table(select, run_)
    if format_ == "json":
        return json.dumps(made.data(), indent=1, sort_keys=True)
    if format_ == "md":
        return markdown.render(made)
    colour = not os.environ.get("NO_COLOR") and (sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")))
    return terminal.render(made, width=_width(), colour=colour)


def _case_text(select: list[str] | None, pattern: str, as_json: bool) -> str:
    from validator.publish import terminal
    from validator.table import case_view

    _check_cases([pattern])
    _, chosen = _images(select, "")
    wanted = {image.id: number for number, image in enumerate(chosen)}
    records = [record for record in _store(reading=True).latest().values() if record.image.id in wanted]
    view = case_view(sorted(records, key=lambda r: (wanted[r.image.id], r.host.key)), pattern)
    if not as_json:
        return terminal.render_cases(view, width=_width())
    rows = {
        ident: {
            name: {"outcome": r.outcome.value, "detail": r.detail} for name, r in zip(view.images, results, strict=True) if r
        }
        for ident, results in view.cases
    }
    return json.dumps(rows, indent=1, sort_keys=True)


@app.command()
def clean(images: Annotated[bool, typer.Option("--images", help="also remove the images that we built")] = False) -> None:
    """Remove what we left on the engine: containers of dead runs, build stages and, when asked, our images. Nothing else."""
    from validator.engine import LABEL

    engine = _engine()
    _sweep(engine)
    stages = sum(engine.remove_untagged(f"{LABEL}.stage={stage}") for stage in ("build", "tools"))
    removed = 0
    if images:
        for label in (f"{LABEL}.id", f"{LABEL}.base"):
            removed += sum(engine.remove_image(image.id) for image in engine.labelled_images(label))
    _talk(f"removed {stages} build stage(s) and {removed} image(s)")


# --------------------------------------------------------------------------- entry


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with a code of the table in the README; never a traceback for a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows "?" instead
    sys.exit(_guarded(lambda: app(args=arguments, prog_name="image-matrix", standalone_mode=False)))


def _guarded(call: Callable[[], Any]) -> int:
    try:
        code = call()
    except ImageMatrixError as error:
        _talk(f"image-matrix: {error}")
        return error.exit_code
    except typer.Abort:
        return Interrupted.exit_code
    except typer.TyperException as error:
        show = getattr(error, "show", None)
        show(sys.stderr) if show else _talk(f"image-matrix: {error}")
        return UsageError.exit_code
    except KeyboardInterrupt:
        _talk("image-matrix: stopped")
        return Interrupted.exit_code
    except OSError as error:
        if error.filename is None:
            return _bug(error)
        _talk(
            f"image-matrix: cannot use {error.filename}: {error.strerror}\n  hint: check the path, its permissions and the disk"
        )
        return UsageError.exit_code
    except Exception as error:
        return _bug(error)
    return code if isinstance(code, int) else 0


def _bug(error: Exception) -> int:
    """Say that it is ours, with what a report needs."""
    import traceback

    _talk("".join(traceback.format_exception(error)))
    _talk(f"image-matrix: this is a bug in image-matrix ({type(error).__name__}); please report it with the lines above")
    return InternalError.exit_code

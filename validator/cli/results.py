"""Verbs that read results/: table. None needs an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.cli.given import check_cases, chosen_images, the_store
from validator.cli.options import Json, Selection
from validator.cli.output import coloured, put, talk, width
from validator.errors import FindingsFound, UsageError

if TYPE_CHECKING:
    from validator.model import Record, Run
    from validator.table import Table


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
    profiles: Annotated[
        bool, typer.Option("--profiles", help="columns are profiles (core, gnn, ...): the cases that such a user needs")
    ] = False,
    capable: Annotated[
        bool,
        typer.Option("--capabilities", help="columns are what else an image can do: torch.compile, cuSPARSELt, read-only root"),
    ] = False,
    siblings: Annotated[
        bool | None,
        typer.Option(
            help="also show untested images, and untested GPUs, with the outcomes of an image that has the same torch and CUDA "
            "[default: where images are named]",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the compatibility table built from results/. Needs no engine.

    A cell says passes/cases of what ran in that image. `sibling` marks outcomes of another image with the same torch and CUDA,
    which is named; `decl.` counts cases whose kernels the build registers, though nothing ran. Neither is ever complete.
    """
    from validator.publish import markdown

    if cases and (profiles or siblings):
        raise UsageError("--cases shows cases of tested images only", "leave --profiles and --siblings out")
    if capable and (cases or profiles or siblings or into is not None):
        raise UsageError("--capabilities is a table of its own", "leave --cases, --profiles, --siblings and --into out")
    if into is not None:
        old = _read(into)
        made = _table(select, None, with_runs=False, profiles=profiles, siblings=siblings is True)
        new = markdown.replace_between_markers(old, "profiles" if profiles else "table", markdown.render(made))
        if check and new != old:
            raise FindingsFound(
                f"the table in {into} is not what results/ says",
                f"run `image-matrix table {'--profiles ' if profiles else ''}--into {into}` and commit the result",
            )
        if not check:
            into.write_text(new, encoding="utf-8")
            talk(f"{into} is current")
        return
    wanted = bool(select) if siblings is None else siblings
    text = (
        _case_text(select, cases, as_json)
        if cases
        else _capabilities_text(select, as_json or format_ == "json")
        if capable
        else table_text(select, "json" if as_json else format_, None, profiles=profiles, siblings=wanted)
    )
    if out is None:
        put(text)
    else:
        out.write_text(text, encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error


def _table(
    select: list[str] | None, run_: Run | None, *, with_runs: bool = True, profiles: bool = False, siblings: bool = False
) -> Table:
    """with_runs: also say which images the newest run could not test; a document shows records only."""
    from validator import probe, sibling
    from validator.cells import BY_LAYOUT
    from validator.profiles import by_profile
    from validator.table import build

    matrix_, chosen = chosen_images(select, "")
    store = the_store(reading=run_ is None)
    runs = (run_,) if run_ is not None else store.runs() if with_runs else ()
    only = frozenset(image.id for image in chosen) if select else frozenset(run_.selection) if run_ is not None else None
    latest = store.latest()
    # Neither a run nor a document speaks of images that were not tested, unless it is asked to.
    found = sibling.siblings(chosen, tuple(latest.values())) if siblings or (run_ is None and with_runs) else ()
    made = build(
        latest, runs, tuple(image.id for image in matrix_.images), only, siblings=found if siblings else (),
        siblings_hidden=0 if siblings else len(found), by=by_profile(probe.cases()) if profiles else BY_LAYOUT,
    )  # fmt: skip
    for problem in store.problems:
        talk(f"image-matrix: left out, cannot be read: {problem}")
    return made


def table_text(
    select: list[str] | None, format_: str, run_: Run | None, *, profiles: bool = False, siblings: bool = False
) -> str:
    """The table in one of the formats. run_: that of a run that just ended, with what it could not test."""
    from validator.publish import markdown, terminal

    if format_ not in ("terminal", "md", "json"):
        raise UsageError(f"unknown format {format_!r}", "use terminal, md or json")
    made = _table(select, run_, profiles=profiles, siblings=siblings)
    if format_ == "json":
        return json.dumps(made.data(), indent=1, sort_keys=True)
    if format_ == "md":
        return markdown.render(made)
    return terminal.render(made, width=width(), colour=coloured())


def _of_selection(select: list[str] | None) -> list[Record]:
    """The records that stand for the selected images, in the order of the matrix."""
    _, chosen = chosen_images(select, "")
    wanted = {image.id: number for number, image in enumerate(chosen)}
    records = [record for record in the_store(reading=True).latest().values() if record.image.id in wanted]
    return sorted(records, key=lambda r: (wanted[r.image.id], r.host.key))


def _capabilities_text(select: list[str] | None, as_json: bool) -> str:
    from validator.publish.capabilities import data, render

    records = _of_selection(select)
    return json.dumps(data(records), indent=1, sort_keys=True) if as_json else render(records, width=width())


def _case_text(select: list[str] | None, pattern: str, as_json: bool) -> str:
    from validator.publish import terminal
    from validator.table import case_view

    check_cases([pattern])
    view = case_view(_of_selection(select), pattern)
    if not as_json:
        return terminal.render_cases(view, width=width())
    rows = {
        ident: {
            name: {"outcome": r.outcome.value, "detail": r.detail} for name, r in zip(view.images, results, strict=True) if r
        }
        for ident, results in view.cases
    }
    return json.dumps(rows, indent=1, sort_keys=True)

"""The verb `show`: one image, or one case in one image."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from validator.cli.given import the_matrix, the_store
from validator.cli.options import Json
from validator.cli.output import coloured, put, put_json, talk, width
from validator.errors import NothingSelected, UsageError

if TYPE_CHECKING:
    from validator.model import Record


def show(
    what: Annotated[str, typer.Argument(metavar="ID", help="an image, or with --image a case")],
    image: Annotated[str, typer.Option("--image", help="the image to see a case in", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """Show what is known of an image, or of one case in it with a program of a few lines that does the same there."""
    from validator import probe
    from validator.publish.report import render
    from validator.store import record_text

    entry = next((case for case in probe.cases() if case["id"] == what), None)
    if not image and entry is not None:
        raise UsageError(f"{what} is a case", f"name the image to see it in: image-matrix show {what} --image ID")
    record = _newest(image or what)
    if image:
        _show_case(what, entry or {}, record, as_json)
    else:
        put(record_text(record) if as_json else render(record, width=width(), colour=coloured()))


def _show_case(case_id: str, entry: dict[str, Any], record: Record, as_json: bool) -> None:
    from validator.publish.report import render_case
    from validator.snippet import snippet

    result = next((case for case in record.cases if case.id == case_id), None)
    if not entry and result is None:
        from validator import probe

        near = difflib.get_close_matches(case_id, [case["id"] for case in probe.cases()], n=3)
        raise UsageError(
            f"there is no case {case_id}", f"did you mean {', '.join(near)}?" if near else "ids look like csr.mm.float32.cpu"
        )
    made = snippet(case_id, record) if entry else None
    if not as_json:
        put(render_case(case_id, record, entry, made))
        return
    put_json({
        "id": case_id,
        "image": record.image.id,
        "torch": record.facts.get("torch", {}).get("version"),
        "result": result.model_dump(mode="json", exclude_defaults=True) if result else None,
        "case": entry,
        "program": made.program if made else "",
        "command": made.command if made else "",
    })  # fmt: skip


def _newest(image: str) -> Record:
    """The newest of the records that stand for an image, one for each kind of host. Raises NothingSelected."""
    store = the_store(reading=True)
    latest = store.latest()
    found = sorted((r for r in latest.values() if r.image.id == image), key=lambda r: (r.started, r.key))
    for problem in store.problems:
        talk(f"image-matrix: left out, cannot be read: {problem}")
    if not found:
        ids = {record.image.id for record in latest.values()}
        known = {one.id for one in the_matrix().images}
        if image in known:
            raise NothingSelected(f"{image} has no record yet", f"make one: image-matrix run {image}")
        near = difflib.get_close_matches(image, sorted(ids | known), n=3)
        raise NothingSelected(
            f"no image is called {image!r}", f"did you mean {', '.join(near)}?" if near else "`image-matrix list` shows all"
        )
    if len(found) > 1:
        talk(f"{len(found)} kinds of host have a record of {image}; this is the newest")
    return found[-1]

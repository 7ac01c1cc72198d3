"""Table -> GitHub Markdown, alone or between markers of a file."""

from __future__ import annotations

import re

from tabulate import tabulate

from validator.cells import BY_LAYOUT, MEANINGS, SYMBOLS
from validator.errors import UsageError
from validator.model import IMAGE_ID, Outcome, VerdictClass
from validator.publish.terminal import cell_text, clean, notes_on_evidence
from validator.rows import Row
from validator.table import Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]|#!~])")
# What GitHub turns into markup, links or mentions without any bracket.
_ENTITIES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("@", "&#64;"), ("://", ":&#47;&#47;"), ("www.", "www&#46;"))


def escape(text: str) -> str:
    """Text from an image as plain text in a Markdown table cell: nothing in it makes markup, a link or a new line."""
    text = _SPECIAL.sub(r"\\\1", clean(" ".join(text.split())))
    for sign, entity in _ENTITIES:
        text = re.sub(re.escape(sign), entity, text, flags=re.IGNORECASE)
    return re.sub(r"^(?:(\d+)([.)])(?=\s|$)|([-+=]))", r"\1\\\2\3", text)


def render(table: Table, *, notes: bool = True) -> str:
    """The table, what its signs mean (those that are present), what was not run or not tested, and the notes."""
    if not table.rows:
        return "\n".join(("No records yet.", *_untested(table))) + "\n"
    headers = ["image", "torch", "CUDA build", "Python", "size", *(column.label for column in table.columns), "tested", "notes"]
    rows = [_cells(row, notes) for row in table.rows]
    parts = [tabulate(rows, headers, tablefmt="pipe", disable_numparse=True), "", _legend(table), "", *_hosts(table)]
    parts += _untested(table)
    if notes and table.notes:
        parts += ["", "<details><summary>Notes</summary>", ""]
        parts += [f"{number}. {escape(note)}" for number, note in enumerate(table.notes, start=1)]
        parts += ["", "</details>"]
    return "\n".join(parts) + "\n"


def _untested(table: Table) -> list[str]:
    lines = []
    for group in table.untested:
        number = len(group.images)
        lines += ["", f"Untested, {group.verdict.value}: {escape(group.cause)}: {number} image{'s' * (number > 1)}."]
    return lines


def _cells(row: Row, notes: bool) -> list[str]:
    size = "?" if row.size_bytes is None else f"{row.size_bytes / 1e9:.1f} GB"
    marks = ", ".join(map(str, row.notes[:6])) + (", …" if len(row.notes) > 6 else "") if notes else str(len(row.notes) or "")
    verdict = "" if row.verdict is VerdictClass.OK else f"**{row.verdict.value if row.verdict else 'sibling'}** "
    name = f"`{row.image}`" if IMAGE_ID.fullmatch(row.image) else escape(row.image)
    head = [name, escape(row.torch), escape(row.cuda), escape(row.python), size]
    return [
        *head,
        *(escape(cell_text(cell)) for cell in row.cells),
        escape(row.tested or "untested"),
        f"{verdict}{marks}".strip(),
    ]


def _legend(table: Table) -> str:
    signs = [f"{SYMBOLS[outcome]} {outcome.value}: {MEANINGS[outcome]}" for outcome in table.outcomes]
    every = "every case" if table.of == BY_LAYOUT.of else "every one of them"
    text = f"Numbers are passes of {table.of}; ✓ stands only where {every} passes. " + "; ".join(signs) + "."
    return "\n\n".join((text, *(escape(line) + "." for line in notes_on_evidence(table))))


def _hosts(table: Table) -> list[str]:
    hosts = "; ".join(sorted({escape(row.host) for row in table.rows}))
    probes = ", ".join(sorted({escape(row.probe) for row in table.rows}))
    lines = [f"Host: {hosts}. Probe: {probes}. Newest record: {table.as_of}."]
    reasons = dict.fromkeys(
        f"{column.device.upper()}: {reason}"
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell.counts.get(Outcome.NOT_RUN)
        for reason in cell.reasons
    )
    if reasons:
        lines += ["", "Why cases were not run: " + "; ".join(escape(reason) for reason in reasons) + "."]
    return lines


def replace_between_markers(text: str, name: str, new: str) -> str:
    """`text` with what stands between `<!-- image-matrix:NAME -->` and `<!-- /image-matrix:NAME -->` replaced by `new`.

    Raises UsageError when the pair is not there exactly once.
    """
    start, end = f"<!-- image-matrix:{name} -->", f"<!-- /image-matrix:{name} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise UsageError(
            f"the markers {start} ... {end} must stand there exactly once, in this order", "put them where the table belongs"
        )
    head, rest = text.split(start)
    tail = rest.split(end)[1]
    return f"{head}{start}\n{new.strip()}\n{end}{tail}"

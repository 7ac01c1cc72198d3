"""Table -> text for a terminal of a given width (tabulate). What does not fit is left out, and that is said."""

from __future__ import annotations

import unicodedata

from tabulate import tabulate

from validator.cells import BY_LAYOUT, LOUD, MEANINGS, SYMBOLS, Cell, Column
from validator.model import Declared, Evidence, Outcome, VerdictClass
from validator.rows import Row
from validator.table import CaseView, Table

NOTE_LIMIT = 12
# What goes when the terminal is narrow, in this order: these, then the middles of long ids, then results, the loud ones last.
DISPENSABLE = ("size", "Python", "tested", "CUDA build")
SHORTEST_ID = 24
_COLOURS = {"green": "\x1b[32m", "red": "\x1b[31m", "dim": "\x1b[2m", "": ""}


def clean(text: str) -> str:
    """What came from an image, made harmless: control characters (escapes among them) become a visible box."""
    return "".join(c if c.isprintable() else "�" for c in text)


def width_of(text: str) -> int:
    """Columns that a text takes on a terminal (wide East Asian characters take two, combining marks none)."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` columns, its middle replaced by an ellipsis: ids differ at both ends."""
    text = clean(text)
    if width_of(text) <= limit:
        return text
    head = max(1, (limit - 1) * 2 // 3)
    return _start(text, head) + "…" + _start(text[::-1], max(0, limit - 1 - head))[::-1]


def _start(text: str, limit: int) -> str:
    """The longest beginning of `text` that takes at most `limit` columns."""
    end = width = 0
    while end < len(text) and (width := width + width_of(text[end])) <= limit:
        end += 1
    return text[:end]


def cell_text(cell: Cell) -> str:
    """`✓ 12/12`, `8/12`, `8/12 ✕2 –1`, `– not-run`: passes of cases, then what must not be overlooked.

    `8/12 sibling`: not all of it ran in this image itself. `decl. 5/12 ?2`: nothing ran; the build registers the kernels of 5
    cases, and of 2 it is not known.
    """
    if not cell.total:
        return ""
    if not cell.ran and cell.is_declared:
        unknown = cell.declared.get(Declared.UNKNOWN, 0)
        return f"decl. {cell.declared.get(Declared.YES, 0)}/{cell.total}" + (f" ?{unknown}" if unknown else "")
    if not cell.ran:
        return f"{SYMBOLS[Outcome.NOT_RUN]} not-run"
    passes = f"{cell.counts.get(Outcome.PASS, 0)}/{cell.total}"
    told = (*cell.loud, (Outcome.NOT_RUN, cell.counts.get(Outcome.NOT_RUN, 0)))
    marks = " ".join(f"{SYMBOLS[outcome]}{number}" for outcome, number in told if number)
    if cell.complete:
        return f"{SYMBOLS[Outcome.PASS]} {passes}"
    elsewhere = "sibling" if cell.executed < cell.ran else ""
    return " ".join(filter(None, (passes, marks, elsewhere)))


def _size(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e9:.1f} GB"


def paint(text: str, colour: str, on: bool) -> str:
    """`text` in a colour ("" for none), where colours are on."""
    return f"{_COLOURS[colour]}{text}\x1b[0m" if on and colour else text


def render(table: Table, *, width: int, colour: bool = False, notes: int = NOTE_LIMIT) -> str:
    """The whole table with its legend and the first `notes` notes."""
    if not table.rows and not table.untested:
        return "no records yet: `make matrix` makes them\n"
    parts = []
    if table.rows:
        text, dropped = _fit(table, width, colour)
        parts.append(text)
        if dropped:
            parts.append(f"(left out for want of width: {', '.join(dropped)}; `--format md` shows all)")
        parts.append(_legend(table))
        hosts = sorted({row.host for row in table.rows})
        probes = sorted({row.probe for row in table.rows})
        parts.append(f"tested until {table.as_of} on {'; '.join(map(clean, hosts))} (probe {', '.join(map(clean, probes))})")
        parts += _not_run(table)
        parts += _siblings(table)
    if table.siblings_hidden:
        number = table.siblings_hidden
        parts.append(
            f"{number} more image{'s' * (number > 1)} share{'s' * (number == 1)} torch and CUDA with a tested one: `image-matrix table --siblings` shows them"
        )
    parts += _notes(table, width, notes)
    for group in table.untested:
        more = f" and {len(group.images) - 1} more" if len(group.images) > 1 else ""
        parts.append(f"untested: {clean(group.images[0])}{more}: {group.verdict.value}: {clean(group.cause)}")
    return "\n".join(parts) + "\n"


def _fit(table: Table, width: int, colour: bool) -> tuple[str, list[str]]:
    """The table in at most `width` columns where that can be, and the names of the columns that were left out."""
    headers = ["image", "torch", "CUDA build", "Python", "size", *(c.label for c in table.columns), "tested", "verdict"]
    rows = [_cells(row, colour) for row in table.rows]
    longest = max(width_of(row[0]) for row in rows)
    dropped: list[str] = []
    for name in ("", *DISPENSABLE, *_least_telling(table)):
        dropped += [name] if name else []
        keep = [number for number, header in enumerate(headers) if header not in dropped]
        text, wide = _grid(headers, rows, keep, longest)
        if wide > width and set(DISPENSABLE) <= set(dropped):
            text, wide = _grid(headers, rows, keep, max(SHORTEST_ID, longest - (wide - width)))
        if wide <= width:
            break
    return text, dropped


def _grid(headers: list[str], rows: list[list[str]], keep: list[int], id_limit: int) -> tuple[str, int]:
    """The kept columns as text, with ids of at most `id_limit` columns, and how wide that is."""
    body = [[shorten(row[0], id_limit), *(row[number] for number in keep[1:])] for row in rows]
    text = tabulate(body, [headers[number] for number in keep], tablefmt="simple", disable_numparse=True)
    return text, max(width_of(_plain(line)) for line in text.splitlines())


def _least_telling(table: Table) -> list[str]:
    """Labels of result columns, those a reader misses least first: quiet before loud (a wrong result last), cpu before cuda."""

    def weight(number: int, column: Column) -> tuple[int, bool, int]:
        loud = (outcome for row in table.rows for outcome, _ in row.cells[number].loud)
        place = -number if column.group else 1  # the last column first
        return max((len(LOUD) - LOUD.index(outcome) for outcome in loud), default=0), column.device == "cuda", place

    weights = {column.label: weight(number, column) for number, column in enumerate(table.columns)}
    return sorted(weights, key=weights.__getitem__)


def _plain(line: str) -> str:
    for code in (*filter(None, _COLOURS.values()), "\x1b[0m"):
        line = line.replace(code, "")
    return line


def _cells(row: Row, colour: bool) -> list[str]:
    verdict = "sibling" if row.verdict is None else "tested" if row.verdict is VerdictClass.OK else row.verdict.value
    marks = " ".join(f"[{number}]" for number in row.notes[:3]) + ("…" if len(row.notes) > 3 else "")
    cells = [paint(cell_text(cell), cell_colour(cell), colour) for cell in row.cells]
    head = [clean(row.image), clean(row.torch), clean(row.cuda), clean(row.python), _size(row.size_bytes)]
    tested = (row.tested or "untested") + (f" ({row.age_days} d)" if row.age_days else "")
    return [*head, *cells, clean(tested), f"{verdict} {marks}".strip()]


def cell_colour(cell: Cell) -> str:
    """Green only for the only good cell, red for what a reader must not overlook."""
    if cell.complete:
        return "green"
    if any(outcome in (Outcome.WRONG, Outcome.CRASH, Outcome.FALLBACK) for outcome, _ in cell.loud):
        return "red"
    return "" if cell.ran else "dim"


def _legend(table: Table) -> str:
    loud = [o for o in table.outcomes if o not in (Outcome.PASS, Outcome.UNSUPPORTED, Outcome.ABSENT)]
    marks = "".join(f", {SYMBOLS[o]} {o.value}: {MEANINGS[o]}" for o in loud)
    every = "every case" if table.of == BY_LAYOUT.of else "every one of them"
    lines = [
        f"passes/{table.of}; ✓ only where {every} passes; the rest of a count was refused by torch or is absent from it{marks}"
    ]
    return "\n".join((*lines, *notes_on_evidence(table)))


def notes_on_evidence(table: Table) -> list[str]:
    """What is to be said of cells whose cases did not run in their image itself, where there are any."""
    cells = [cell for row in table.rows for cell in row.cells]
    lines = []
    if any(cell.evidence is Evidence.SIBLING or cell.executed < cell.ran for cell in cells):
        lines.append(
            "sibling: seen in another image with the same torch and CUDA, which the row's note names; not tested in this one"
        )
    if any(cell.is_declared and not cell.ran for cell in cells):
        lines.append(
            "decl. n/m: nothing was executed; this build registers the kernels that n of the m cases need (?k: of k it is not known)"
        )
    return lines


def _not_run(table: Table) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.total and not cell.ran and cell.reasons:
                where = reasons.setdefault(f"{column.device.upper()} not-run: {clean(cell.reasons[0])}", [])
                if row.image not in where:
                    where.append(row.image)
    return [f"{reason} ({len(images)} image{'s' * (len(images) > 1)})" for reason, images in reasons.items()]


def _siblings(table: Table) -> list[str]:
    """Whose outcomes stand in which rows: said in full, however many notes there are."""
    named: dict[str, list[str]] = {}
    for row in table.rows:
        if row.sibling:
            named.setdefault(row.sibling, []).append(row.image)
    return [
        f"sibling of {clean(images[0])}{f' and {len(images) - 1} more' * (len(images) > 1)}: {clean(name)}"
        for name, images in named.items()
    ]


def _notes(table: Table, width: int, limit: int) -> list[str]:
    shown = [cut(f"[{number}] {note}", max(40, width)) for number, note in enumerate(table.notes[:limit], start=1)]
    more = len(table.notes) - limit
    return shown + ([f"… and {more} more notes: `image-matrix table --format md`"] if more > 0 else [])


def cut(text: str, limit: int) -> str:
    """`text`, made harmless, in at most `limit` columns, its end cut."""
    text = clean(text)
    return text if width_of(text) <= limit else _start(text, limit - 1) + "…"


def render_cases(view: CaseView, *, width: int) -> str:
    """Cases as rows; images as numbered columns, their names below."""
    if not view.cases:
        return "no record has a case that matches\n"
    widest = max(width_of(ident) for ident, _ in view.cases)
    fits = max(1, (width - widest - 2) // 14)
    shown = view.images[:fits]
    rows = [[clean(ident), *(_outcome(result) for result in results[:fits])] for ident, results in view.cases]
    headers = ["case", *(f"({number})" for number in range(1, len(shown) + 1))]
    names = [f"({number}) {clean(name)}" for number, name in enumerate(shown, start=1)]
    more = (
        [f"({len(view.images) - fits} more images do not fit; narrow with image ids or use --json)"]
        if len(view.images) > fits
        else []
    )
    return "\n".join((tabulate(rows, headers, tablefmt="simple", disable_numparse=True), "", *names, *more)) + "\n"


def _outcome(result: object) -> str:
    outcome = getattr(result, "outcome", None)
    return "" if outcome is None else f"{SYMBOLS[outcome]} {outcome.value}"

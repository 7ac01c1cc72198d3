"""Records -> Table: what every view shows, decided once. Pure: the moment to count ages from is given.

Executed, not-run and untested never look alike: a cell that ran shows passes of cases, one that did not shows why, and an image
that was not tested has no cells at all. Only a complete pass, executed, in a whole report of a probe whose controls held, is good.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from validator.cells import BY_LAYOUT, SYMBOLS, Column, Grouping, columns_of
from validator.model import CaseResult, Outcome, Record, Run, VerdictClass
from validator.rows import Row, Shown, make_row, moment_of
from validator.sibling import Sibling


@dataclass(frozen=True, kw_only=True)
class Untested:
    """Images of the newest run that have no record and share one reason."""

    verdict: VerdictClass
    cause: str
    images: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The view model: what terminal, Markdown, JSON and pages are made from.

    of: what the numbers in cells are out of; siblings_hidden: how many rows a sibling could have, but none was asked for.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    untested: tuple[Untested, ...]
    outcomes: tuple[Outcome, ...]
    as_of: str
    of: str = BY_LAYOUT.of
    siblings_hidden: int = 0

    def data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "as_of": self.as_of,
            "columns": [{"group": c.group, "device": c.device, "label": c.label} for c in self.columns],
            "rows": [_row_data(row, self) for row in self.rows],
            "untested": [{"class": u.verdict.value, "cause": u.cause, "images": list(u.images)} for u in self.untested],
        }


_PLAIN = (
    "image", "family", "torch", "cuda", "python", "os", "size_bytes", "identity", "host", "probe", "tested", "age_days", "cause",
    "sibling",
)  # fmt: skip


def _row_data(row: Row, table: Table) -> dict[str, Any]:
    cells = {
        column.label: {
            "evidence": cell.evidence.value,
            "complete": cell.complete,
            "outcomes": {outcome.value: number for outcome, number in sorted(cell.counts.items())},
            "reasons": list(cell.reasons),
            **({"declared": {said.value: number for said, number in sorted(cell.declared.items())}} if cell.declared else {}),
        }
        for column, cell in zip(table.columns, row.cells, strict=True)
    }
    return {
        **{name: getattr(row, name) for name in _PLAIN},
        "verdict": row.verdict.value if row.verdict else None,
        "cells": cells,
        "notes": [table.notes[number - 1] for number in row.notes],
    }


def build(
    records: Mapping[tuple[str, str], Record],
    runs: Sequence[Run] = (),
    order: Sequence[str] = (),
    only: frozenset[str] | None = None,
    as_of: datetime | None = None,
    *,
    siblings: Sequence[Sibling] = (),
    by: Grouping = BY_LAYOUT,
    siblings_hidden: int = 0,
) -> Table:
    """Make the table. records: the newest of each (image id, host key); order: ids in the matrix's order; only: the ids to show.

    as_of: the moment from which ages count, by default that of the newest record, so that the same records give the same table.
    siblings: whose outcomes stand in for what an image has none of; by: what the columns are.
    """
    place = {ident: number for number, ident in enumerate(order)}
    standing_in = {sibling.image.id: sibling for sibling in siblings}
    recorded = {r.image.id for r in records.values()}
    shown = [Shown(record=r, sibling=standing_in.get(r.image.id)) for r in records.values()]
    shown += [Shown(record=None, sibling=sibling) for sibling in siblings if sibling.image.id not in recorded]
    shown = [one for one in shown if only is None or one.image in only]
    shown.sort(key=lambda one: (place.get(one.image, len(place)), one.image, one.host))
    moment = as_of or max((moment_of(one.seen.started) for one in shown), default=datetime(1970, 1, 1, tzinfo=UTC))
    columns = columns_of((case for one in shown for case in one.cases), by)
    notes: list[str] = []
    stale = {
        entry.id: entry.verdict for entry in (runs[-1].entries if runs else ()) if entry.state == "untested" and entry.verdict
    }
    since = moment_of(runs[-1].started) if runs else moment  # a record made after that run is not an earlier one
    rows = tuple(
        make_row(one, columns, by, notes, moment, stale.get(one.image) if moment_of(one.seen.started) <= since else None)
        for one in shown
    )
    present = {case.outcome for one in shown for case in one.cases}
    return Table(
        columns=columns,
        rows=rows,
        notes=tuple(notes),
        untested=_untested(runs, recorded, only),
        outcomes=tuple(outcome for outcome in SYMBOLS if outcome in present),
        as_of=moment.date().isoformat() if shown else "",
        of=by.of,
        siblings_hidden=siblings_hidden,
    )


def _untested(runs: Sequence[Run], recorded: set[str], only: frozenset[str] | None) -> tuple[Untested, ...]:
    if not runs:
        return ()
    grouped: dict[tuple[VerdictClass, str], list[str]] = {}
    for entry in runs[-1].entries:
        if entry.state == "untested" and entry.verdict and entry.id not in recorded and (only is None or entry.id in only):
            grouped.setdefault((entry.verdict.cls, entry.verdict.cause), []).append(entry.id)
    return tuple(Untested(verdict=cls, cause=cause, images=tuple(ids)) for (cls, cause), ids in grouped.items())


@dataclass(frozen=True, kw_only=True)
class CaseView:
    """The other way round: rows are cases, columns are images; "" where an image's record does not have the case."""

    images: tuple[str, ...]
    cases: tuple[tuple[str, tuple[CaseResult | None, ...]], ...]


def case_view(records: Iterable[Record], pattern: str) -> CaseView:
    """The cases that match a glob, in every record given."""
    chosen = tuple(records)
    columns = [{case.id: case for case in record.cases} for record in chosen]
    ids = dict.fromkeys(ident for column in columns for ident in column if fnmatch.fnmatchcase(ident, pattern))
    return CaseView(
        images=tuple(record.image.id for record in chosen),
        cases=tuple((ident, tuple(column.get(ident) for column in columns)) for ident in ids),
    )

"""The catalogue's profiles as columns: each is a short list of cases that a kind of user needs, and only all of them will do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from validator.cells import LOUD, Column, Grouping, cases_of
from validator.model import CaseResult, Outcome

NAMES = ("core", "gnn", "recsys", "attention", "pruning", "training", "solvers")
_LOUDEST_FIRST = (*LOUD, Outcome.UNSUPPORTED, Outcome.ABSENT, Outcome.NOT_RUN)


def by_profile(catalogue: Iterable[Mapping[str, Any]]) -> Grouping:
    """Columns by profile. catalogue: the entries of cases.json; a profile that no case names has no column."""
    needed: dict[tuple[str, str], list[str]] = {}
    profiles: dict[str, tuple[str, ...]] = {}
    for entry in catalogue:
        profiles[entry["id"]] = tuple(entry.get("profiles", ()))
        for name in profiles[entry["id"]]:
            needed.setdefault((name, entry["device"]), []).append(entry["id"])
    there = {name for name, _ in needed}
    return Grouping(
        names=(*(name for name in NAMES if name in there), *sorted(there - set(NAMES))),
        of="the cases that a profile needs",
        groups_of=cache(lambda case_id: profiles.get(case_id, ())),
        needed={place: tuple(ids) for place, ids in needed.items()},
    )


def missing(cases: Sequence[CaseResult], columns: Sequence[Column], by: Grouping) -> list[str]:
    """One text for each profile of which something ran and something needed is not good: what it is."""
    texts = []
    for column, needed in zip(columns, cases_of(cases, columns, by), strict=True):
        ran = [case for case in needed if case.outcome is not Outcome.NOT_RUN]
        missed = sorted(
            (case for case in needed if case.outcome is not Outcome.PASS), key=lambda c: _LOUDEST_FIRST.index(c.outcome)
        )
        if column.group and ran and missed:
            each = ", ".join(f"{case.id} {case.outcome.value}" for case in missed)
            texts.append(f"{column.label} needs {len(needed)} cases; not good: {each}")
    return texts

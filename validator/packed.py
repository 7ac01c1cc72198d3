"""The cases of a record as they stand in its file: ids under the outcome they share, so that a reason is written once.

A record has thousands of cases, most of which share outcome and reason; one object for each made files of over 1 MB. Files of
schema 1 hold `cases` as a list and are read as ever.
"""

from __future__ import annotations

from typing import Any

# What cases have in common is said once for the group; what is a case's own stands under its id.
SHARED = ("outcome", "evidence", "kind", "detail", "declared", "missing")
OWN = ("data",)


def pack(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """[{id, outcome, ...}] -> [{outcome, ..., cases: {id: milliseconds or null}, data: {id: ...}}], in a stable order."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for case in sorted(cases, key=lambda one: str(one["id"])):
        key = tuple(str(case.get(name, "")) for name in SHARED)
        group = groups.setdefault(key, {name: case[name] for name in SHARED if case.get(name)} | {"cases": {}})
        group["cases"][case["id"]] = case.get("duration_ms")
        for name in OWN:
            if case.get(name):
                group.setdefault(name, {})[case["id"]] = case[name]
    return [groups[key] for key in sorted(groups)]


def unpack(outcomes: Any, only: frozenset[str] | None = None) -> list[dict[str, Any]]:
    """The reverse of pack, sorted by id. Raises ValueError for what pack never wrote, also for a case that stands twice.

    only: give no cases but these.
    """
    if not isinstance(outcomes, list):
        raise ValueError("outcomes is no list")
    found: dict[str, dict[str, Any]] = {}
    for group in outcomes:
        if not isinstance(group, dict) or not isinstance(group.get("cases"), dict):
            raise ValueError("a group of outcomes has no cases")
        shared = {name: group[name] for name in SHARED if name in group}
        for ident, milliseconds in group["cases"].items():
            if only is not None and ident not in only:
                continue
            if ident in found:
                raise ValueError(f"the case {ident} stands twice")
            found[ident] = {"id": ident, **shared}
            if milliseconds is not None:
                found[ident]["duration_ms"] = milliseconds
        for name in OWN:
            for ident, value in (group.get(name) or {}).items():
                if ident not in group["cases"]:
                    raise ValueError(f"{name} of {ident}, which is no case of its group")
                if ident in found:
                    found[ident][name] = value
    return [found[ident] for ident in sorted(found)]

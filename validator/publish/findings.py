"""Known faults and records -> docs/findings.md: which torch versions show each fault, and what changed between versions.

Pure. Nothing in the text about outcomes is typed by hand: versions, counts and cases come from the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from packaging.version import Version

from validator.faults import Fault
from validator.model import CaseResult, Outcome, Record

HEAD = """# What we found

Written by `make docs` from the committed records and from `validator/known_faults.json`; a test compares. Every line can be
reproduced: `image-matrix show CASE --image ID` prints a program of at most 20 lines that gives the same in that image.
All outcomes here are of the CPU: no GPU has been at hand yet, and nothing is concluded for one.
"""


def by_torch(records: Iterable[Record]) -> dict[str, dict[str, CaseResult]]:
    """torch version (without its local part) -> CPU cases by id, from complete and trusted records that ran all tiers."""
    found: dict[str, dict[str, CaseResult]] = {}
    for record in records:
        version = str((record.facts.get("torch") or {}).get("version") or "").partition("+")[0]
        if version and record.complete and record.trusted and record.options.get("tier") == "full":
            found[version] = {c.id: c for c in record.cases if ".cuda" not in c.id and c.outcome is not Outcome.NOT_RUN}
    return {version: found[version] for version in sorted(found, key=Version)}


def seen_in(fault: Fault, versions: Mapping[str, Mapping[str, CaseResult]]) -> dict[str, tuple[int, int]]:
    """torch version -> (cases that show the fault, cases of it that ran)."""
    counts = {}
    for version, cases in versions.items():
        ran = [case for case in cases.values() if fault.shown_by(case.id) and case.outcome is not Outcome.ABSENT]
        if ran:
            counts[version] = (sum(case.outcome is fault.outcome for case in ran), len(ran))
    return counts


def render(records: Iterable[Record], faults: Sequence[Fault], claimed: frozenset[str]) -> str:
    """The whole page. claimed: ids of the cases for which PyTorch's documentation says that they work."""
    versions = by_torch(records)
    parts = [HEAD, f"Torch versions: {', '.join(versions)}.\n", "## Faults\n"]
    parts += [_fault(fault, versions) for fault in faults]
    parts += ["## Where PyTorch's documentation says more than the images do\n", *_against_documentation(versions, claimed)]
    parts += ["## What changed from version to version\n", _changes_head(), *_changes(versions)]
    return "\n".join(parts).rstrip() + "\n"


def _fault(fault: Fault, versions: Mapping[str, Mapping[str, CaseResult]]) -> str:
    counts = seen_in(fault, versions)
    shows = [version for version, (bad, _) in counts.items() if bad]
    clean = [version for version, (bad, _) in counts.items() if not bad]
    example = next(
        (c for v in shows for c in versions[v].values() if fault.shown_by(c.id) and c.outcome is fault.outcome), None
    )
    lines = [
        f"### {fault.title}\n",
        f"{fault.what}\n",
        f"- outcome: `{fault.outcome.value}`; cases: {', '.join(f'`{pattern}`' for pattern in fault.cases)}",
        f"- seen in torch {', '.join(shows)}" if shows else "- seen in no version tested so far",
        f"- tried and not seen in {', '.join(clean)}" if clean else "- every version that has the function shows it",
        f"- upstream: {fault.issue}" if fault.issue else "- upstream: no issue known to us",
        f"- instead: {fault.instead}",
    ]
    if example and example.detail:
        lines.append(f"- for example `{example.id}`: `{' '.join(example.detail.split())[:160].replace('`', '')}`")
    return "\n".join(lines) + "\n"


def _against_documentation(versions: Mapping[str, Mapping[str, CaseResult]], claimed: frozenset[str]) -> Iterable[str]:
    """Documented cases of the newest version that do not pass there, by function, and how many there are in each version."""
    misses = {
        version: [c for c in cases.values() if c.id in claimed and c.outcome is not Outcome.PASS]
        for version, cases in versions.items()
    }
    ran = {version: sum(ident in claimed for ident in cases) for version, cases in versions.items()}
    yield "The documentation speaks of layouts and functions, not of dtypes; a case counts as documented when its layout and function are.\n"
    yield "Documented cases that do not pass: " + ", ".join(f"{v}: {len(m)} of {ran[v]}" for v, m in misses.items()) + ".\n"
    if misses:
        newest = list(versions)[-1]
        stems: dict[str, list[CaseResult]] = {}
        for case in misses[newest]:
            stems.setdefault(".".join(case.id.split(".")[:2]), []).append(case)
        yield f"In {newest}:\n"
        for stem, cases in sorted(stems.items()):
            first = " ".join((cases[0].detail or cases[0].outcome.value).split())[:110].replace("`", "")
            yield f"- `{stem}`, {len(cases)} case{'s' * (len(cases) > 1)}, {cases[0].outcome.value}: `{first}`"
        yield ""


def _changes_head() -> str:
    return "Case outcomes that differ between neighbours in the list; the functions with most changes are named.\n"


def _changes(versions: Mapping[str, Mapping[str, CaseResult]]) -> Iterable[str]:
    for old, new in pairwise(versions):
        changed = [
            (versions[old][ident].outcome, case.outcome, ident)
            for ident, case in versions[new].items()
            if ident in versions[old] and versions[old][ident].outcome is not case.outcome
        ]
        yield f"**{old} to {new}**: {len(changed)} of {len(versions[new])} cases changed" + ("." if not changed else "\n")
        kinds: dict[tuple[Outcome, Outcome], Counter[str]] = {}
        for before, after, ident in changed:
            kinds.setdefault((before, after), Counter())[".".join(ident.split(".")[:2])] += 1
        for (before, after), stems in sorted(kinds.items(), key=lambda item: (-item[1].total(), item[0])):
            most = sorted(stems.items(), key=lambda item: (-item[1], item[0]))
            named = ", ".join(f"`{stem}`" + (f" ({number})" if number > 1 else "") for stem, number in most[:6])
            rest = f" and {len(most) - 6} more functions" if len(most) > 6 else ""
            yield f"- {before.value} to {after.value}, {stems.total()}: {named}{rest}"
        yield ""

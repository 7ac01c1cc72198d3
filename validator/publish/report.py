"""One record -> text for a terminal: what was found inside, the verdict, outcomes per column, and all that is not good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from validator import health
from validator.cells import LOUD, MEANINGS, SYMBOLS, Cell, alike, cells_of, columns_of
from validator.faults import fault_of
from validator.model import CaseResult, Declared, Evidence, Outcome, Record, Verdict, VerdictClass, part
from validator.publish import capabilities
from validator.publish.terminal import cell_colour, clean, cut, paint
from validator.rows import host_name
from validator.snippet import Snippet

# All that ran and is not a pass, the loudest first.
NOT_GOOD = (*LOUD, Outcome.UNSUPPORTED, Outcome.ABSENT)


def render(record: Record, *, width: int, colour: bool = False) -> str:
    """The whole report; lines longer than `width` are cut."""
    facts = [f"{name:9}{cut(text, width - 9)}" for name, text in _facts(record) if text]
    lines = [f"{clean(record.image.id)} ({record.image.kind})", *facts, *_verdict(record.verdict)]
    lines += [f"          note: {cut(finding.message, width - 16)}" for finding in record.findings]
    lines += ["", *_columns(record, colour)]
    worse = [
        cut(f"  {SYMBOLS[outcome]} {outcome.value:12}{_operation(stem, details)}", width)
        for outcome, stem, details in alike(record.cases, NOT_GOOD)
    ]
    reasons = Counter(case.detail for case in record.cases if case.outcome is Outcome.NOT_RUN)
    worse += [
        cut(f"  {SYMBOLS[Outcome.NOT_RUN]} {Outcome.NOT_RUN.value:12}{_cases(number)}: {reason}", width)
        for reason, number in reasons.most_common()
    ]
    able = [cut(f"  {line}", width) for line in capabilities.lines(record)]
    lines += ["", "beside sparse operations:", *able] if able else []
    return "\n".join((*lines, *(("", "not good:") if worse else ()), *worse)) + "\n"


def render_case(case_id: str, record: Record, entry: Mapping[str, Any], snippet: Snippet | None) -> str:
    """One case in one image. entry: the case's line of the probe's catalogue, {} for a case that it no longer has."""
    result = next((case for case in record.cases if case.id == case_id), None)
    said = " ".join(filter(None, (str(entry.get("claim") or "nothing is said"), _source(entry))))
    torch = str(part(record.facts, "torch").get("version") or "")
    fault = fault_of(result, torch) if result else None
    known = [("known as", f"{fault.title} ({fault.issue or fault.id})"), ("instead", fault.instead)] if fault else []
    lines = [
        f"{clean(case_id)} in {clean(record.image.id)}",
        *(f"{name:11}{clean(text)}" for name, text in (*_outcome(result, record), *known) if text),
        *(
            [f"{'documented':11}{said}", f"{'needed by':11}{', '.join(entry.get('profiles', ())) or 'no profile'}"]
            if entry
            else []
        ),
        f"{'tier':11}{entry['tier']}" if entry else "the probe of today has no such case",
    ]
    if snippet is None:
        return "\n".join(lines) + "\n"
    what = "the same in a few lines" if snippet.program else "the case by itself; it takes more than a few lines"
    return "\n".join((*lines, "", f"{what}:", snippet.command)) + "\n"


def _source(entry: Mapping[str, Any]) -> str:
    since = f"since torch {entry['since']}" if entry.get("since") else ""
    texts = ", ".join(filter(None, (str(entry.get("source") or ""), since)))
    return f"({texts})" if texts else ""


def _outcome(result: CaseResult | None, record: Record) -> list[tuple[str, str]]:
    seen = f"{record.started[:10]}, torch {part(record.facts, 'torch').get('version') or 'none'}, {host_name(record)}"
    if result is None:
        return [
            ("outcome", f"this record does not have it (probe {record.probe}, tier {record.options.get('tier', 'standard')})")
        ]
    declared = (
        f"{result.declared.value}{f' ({result.missing} has no kernel)' if result.missing else ''}" if result.declared else ""
    )
    return [
        ("outcome", f"{SYMBOLS[result.outcome]} {result.outcome.value}: {MEANINGS[result.outcome]}"),
        ("evidence", f"{result.evidence.value} ({seen})" if result.evidence is not Evidence.NONE else f"none ({seen})"),
        ("detail", result.detail),
        ("kind", result.kind),
        ("declared", declared),
    ]


def _facts(record: Record) -> list[tuple[str, str]]:
    torch, python, system, cuda = (part(record.facts, name) for name in ("torch", "python", "system", "cuda"))
    where = f" ({python['executable']})" if python.get("executable") else ""
    inside = (str(part(system, "os").get("pretty_name") or ""), str(system.get("libc") or ""), str(system.get("machine") or ""))
    took = record.seconds.get("probe")
    run = (record.probe, f"tier {record.options.get('tier', 'standard')}", record.started, f"{took:.0f} s" if took else "")
    image = record.image
    return [
        ("image", " ".join(filter(None, (image.reference, image.digest)))),
        ("torch", f"{torch.get('version')}, CUDA build {torch.get('cuda') or 'none'}" if torch.get("version") else "none"),
        ("python", f"{python.get('version') or 'unknown'}{where}"),
        ("system", ", ".join(filter(None, inside))),
        ("loaded", _loaded(torch)),
        (
            "tools",
            ", ".join(
                f"{name} {part(record.facts, 'tools')[name].get('version') or '?'}" for name in part(record.facts, "tools")
            ),
        ),
        ("CUDA", ": ".join(filter(None, (str(cuda.get("state") or "not asked"), str(cuda.get("detail") or ""))))),
        ("host", host_name(record)),
        ("probe", ", ".join(filter(None, run))),
    ]


def _loaded(torch: Mapping[str, Any]) -> str:
    """The CUDA libraries as loaded, each with the version that it says itself."""
    found = part(torch, "loaded")
    versions = {name: health.release(name, str(part(found, name).get("version") or "")) for name in found}
    return ", ".join(f"{name} {'.'.join(map(str, version)) or '?'}" for name, version in versions.items())


def _verdict(verdict: Verdict) -> list[str]:
    remedy = [] if verdict.cls is VerdictClass.OK or not verdict.remedy else [f"          to do: {clean(verdict.remedy)}"]
    return [f"verdict  {verdict.cls.value}: {clean(verdict.cause)}", *remedy]


def _columns(record: Record, colour: bool) -> list[str]:
    columns = columns_of(record.cases)
    cells = cells_of(record, columns)
    wide = max((len(column.label) for column in columns), default=0)
    return [
        f"{column.label:{wide}}  {paint(_counts(cell), cell_colour(cell), colour)}"
        for column, cell in zip(columns, cells, strict=True)
    ]


def _counts(cell: Cell) -> str:
    """`281/303, 12 unsupported, 10 absent`: passes of cases, then every other outcome by name."""
    if not cell.ran:
        said = ", ".join(f"{cell.declared[one]} {one.value}" for one in Declared if cell.declared.get(one))
        kernels = f"; kernels declared for {cell.total} cases: {said}" if cell.is_declared else ""
        return f"not-run: {clean('; '.join(cell.reasons))}{kernels}"
    tick = f"{SYMBOLS[Outcome.PASS]} " if cell.complete else ""
    others = [f"{cell.counts[outcome]} {outcome.value}" for outcome in (*NOT_GOOD, Outcome.NOT_RUN) if cell.counts.get(outcome)]
    return ", ".join((f"{tick}{cell.counts.get(Outcome.PASS, 0)}/{cell.total}", *others))


def _operation(stem: str, details: list[str]) -> str:
    return f"{stem} ({_cases(len(details))})" + (f": {details[0]}" if details[0] else "")


def _cases(number: int) -> str:
    return f"{number} case{'s' * (number > 1)}"

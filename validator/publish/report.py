"""One record -> text for a terminal: what was found inside, the verdict, outcomes per column, and all that is not good."""

from __future__ import annotations

from collections import Counter

from validator.cells import LOUD, SYMBOLS, Cell, alike, cells_of, columns_of
from validator.model import Outcome, Record, Verdict, VerdictClass, part
from validator.publish.terminal import cell_colour, clean, cut, paint
from validator.table import host_name

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
    return "\n".join((*lines, *(("", "not good:") if worse else ()), *worse)) + "\n"


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
        ("CUDA", ": ".join(filter(None, (str(cuda.get("state") or "not asked"), str(cuda.get("detail") or ""))))),
        ("host", host_name(record)),
        ("probe", ", ".join(filter(None, run))),
    ]


def _verdict(verdict: Verdict) -> list[str]:
    remedy = [] if verdict.cls is VerdictClass.OK or not verdict.remedy else [f"          to do: {clean(verdict.remedy)}"]
    return [f"verdict  {verdict.cls.value}: {clean(verdict.cause)}", *remedy]


def _columns(record: Record, colour: bool) -> list[str]:
    columns = columns_of((record,))
    cells = cells_of(record, columns)
    wide = max((len(column.label) for column in columns), default=0)
    return [
        f"{column.label:{wide}}  {paint(_counts(cell), cell_colour(cell), colour)}"
        for column, cell in zip(columns, cells, strict=True)
    ]


def _counts(cell: Cell) -> str:
    """`281/303, 12 unsupported, 10 absent`: passes of cases, then every other outcome by name."""
    if not cell.ran:
        return f"not-run: {clean('; '.join(cell.reasons))}"
    tick = f"{SYMBOLS[Outcome.PASS]} " if cell.complete else ""
    others = [f"{cell.counts[outcome]} {outcome.value}" for outcome in (*NOT_GOOD, Outcome.NOT_RUN) if cell.counts.get(outcome)]
    return ", ".join((f"{tick}{cell.counts.get(Outcome.PASS, 0)}/{cell.total}", *others))


def _operation(stem: str, details: list[str]) -> str:
    return f"{stem} ({_cases(len(details))})" + (f": {details[0]}" if details[0] else "")


def _cases(number: int) -> str:
    return f"{number} case{'s' * (number > 1)}"

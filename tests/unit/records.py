"""Records, cases and runs for tests, with every part that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from validator.model import (
    CaseResult,
    Control,
    Evidence,
    Gpu,
    Host,
    ImageIdentity,
    Outcome,
    Record,
    Run,
    RunEntry,
    Verdict,
    VerdictClass,
)

OK = Verdict(cls=VerdictClass.OK, code="tested", cause="the probe ran to its end; its controls held")
UNREACHABLE = Verdict(
    cls=VerdictClass.INFRA, code="registry-unreachable", cause="registry unreachable: nvcr.io (no such host)", remedy="mirrors:"
)
CPU_HOST = Host(cpu="AMD EPYC", cores=2, architecture="amd64")
GPU_HOST = Host(cpu="AMD EPYC", architecture="amd64", driver="550.1", gpus=(Gpu(name="NVIDIA H200"),))


def case(ident: str, outcome: Outcome = Outcome.PASS, detail: str = "", evidence: Evidence | None = None) -> CaseResult:
    ran = Evidence.NONE if outcome is Outcome.NOT_RUN else Evidence.EXECUTED
    return CaseResult(id=ident, outcome=outcome, detail=detail, evidence=ran if evidence is None else evidence)


def control(outcome: Outcome = Outcome.WRONG) -> Control:
    return Control(id="control.wrong-sum", expected=Outcome.WRONG, outcome=outcome)


def record(
    image: str = "slim-a",
    *cases: CaseResult,
    torch: str = "2.6.0+cpu",
    cuda: str = "",
    key: str = "0123456789abcdef",
    **over: Any,
) -> Record:
    facts = {
        "torch": {"version": torch, "cuda": cuda},
        "python": {"version": "3.11.7"},
        "system": {"os": {"pretty_name": "Debian 12"}},
    }
    values: dict[str, Any] = {
        "key": key,
        "run": "20261201T000000Z-aaaa",
        "image": ImageIdentity(id=image, family="slim", kind="build", dockerfile_sha256="f" * 64, size_bytes=1_500_000_000),
        "host": CPU_HOST,
        "probe": "abcdef123456",
        "started": "2026-12-01T00:00:00Z",
        "complete": True,
        "facts": facts,
        "cases": cases or (case("coo.mm.float32.cpu"),),
        "controls": (control(),),
        "verdict": OK,
    }
    return Record(**(values | over))


def run(*entries: RunEntry, ident: str = "20261201T000000Z-aaaa", started: str = "2026-12-01T00:00:00Z") -> Run:
    return Run(id=ident, started=started, complete=True, selection=tuple(entry.id for entry in entries), entries=entries)


def untested(ident: str, verdict: Verdict = UNREACHABLE) -> RunEntry:
    return RunEntry(id=ident, state="untested", verdict=verdict)


def latest(*records: Record) -> dict[tuple[str, str], Record]:
    return {(r.image.id, r.host.key): r for r in records}

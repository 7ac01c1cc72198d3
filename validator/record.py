"""What came out of one run of the probe, judged and put together: report, ending and identity in, a Record out. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from validator import expect, health, probe
from validator.model import CaseResult, Expectation, Finding, Gpu, Host, ImageIdentity, Record, Severity, part
from validator.probe.channel import Report
from validator.verdict import ExitState, judge


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One run of the probe: its report, how it ended, and what was written beside the report."""

    report: Report
    state: ExitState
    error_output: str = ""


def make_record(
    probed: Probed,
    *,
    cases: Sequence[CaseResult],
    image: ImageIdentity,
    host: Host,
    key: str,
    run: str,
    started: datetime,
    seconds: Mapping[str, float],
    options: Mapping[str, Any],
    findings: Sequence[Finding] = (),
    expectations: Sequence[Expectation] = (),
    more_facts: Mapping[str, Any] | None = None,
) -> Record:
    """The record. cases: those of the report, explained where the host knows more; findings and more_facts: what was seen
    outside of it."""
    report = probed.report
    torch = part(report.facts, "torch")
    texts = (probed.error_output, report.noise_head, report.noise_tail)
    verdict, contradictions = judge(
        report.facts, cases, report.controls, report.complete, probed.state, texts, declared=image.declared
    )
    expected = expect.compare(expectations, cases, str(torch.get("version") or ""))
    packages = tuple(f"{name}=={version}" for name, version in part(torch, "packages").items())
    return Record(
        key=key,
        run=run,
        image=image.model_copy(update={"packages": packages}),
        host=_host(host, report.facts),
        probe=probe.version(),
        started=started.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        seconds=dict(seconds),
        options=dict(options),
        complete=report.complete,
        facts={**report.facts, **(more_facts or {})},
        cases=tuple(cases),
        controls=report.controls,
        findings=(
            *findings,
            *contradictions,
            *health.findings(report.facts),
            *expected,
            *(_problem(text) for text in report.problems),
        ),
        verdict=verdict,
    )


def _host(host: Host, facts: Mapping[str, Any]) -> Host:
    """The host as seen before the run; driver and GPUs from inside where only the probe could see them."""
    cuda = part(facts, "cuda")
    if host.gpus or not cuda.get("devices"):
        return host
    return host.model_copy(update={"gpus": tuple(_gpus(cuda["devices"])), "driver": str(cuda.get("driver") or "")})


def _gpus(devices: object) -> Iterator[Gpu]:
    for device in devices if isinstance(devices, list) else ():
        with contextlib.suppress(ValidationError):
            yield Gpu.model_validate(device)


def _problem(text: str) -> Finding:
    return Finding(code="report-damaged", severity=Severity.WARNING, message=text)

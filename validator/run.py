"""One image: known already? else acquire -> probe in a container -> record."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from validator import probe
from validator.acquire import Acquired, Acquirer
from validator.engine import ContainerSpec, Engine, Exit, LocalImage
from validator.gpus import parse_gpus
from validator.model import CaseResult, Finding, GpuWish, Image, Outcome, Record, Severity, content_key, part
from validator.preflight import GpuState, Preflight
from validator.probe import ProbeOptions
from validator.probe.channel import Reader, Report
from validator.progress import Clock
from validator.record import Probed, make_record
from validator.verdict import ExitState

# Where an interpreter may be when PATH does not say: conda, the usual venvs, distributions without `python3`.
INTERPRETERS = (
    "/opt/conda/bin/python", "/opt/venv/bin/python", "/venv/bin/python", "/usr/local/bin/python3", "/usr/bin/python3",
    "/usr/local/bin/python", "/usr/bin/python", "/opt/python/bin/python3",
    "/opt/miniconda3/bin/python", "/usr/libexec/platform-python", "/workspace/venv/bin/python", "/app/venv/bin/python",
    *(f"/usr/{d}bin/python3.{n}" for d in ("local/", "") for n in range(14, 5, -1)),
    "/usr/bin/python2",
)  # fmt: skip
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Whether an image lives under restrictions is asked with these, as a user whom no image knows.
RESTRICTED_CASES = ("coo.mm.float32.cpu", "csr.mm.float32.cpu")
ANY_USER = "54321:54321"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One container of the probe: what came out, how it ended, in which way it was started."""

    report: Report
    exit: Exit
    hardened: bool
    entrypoint_kept: bool
    error_output: str


@dataclass(frozen=True, kw_only=True)
class ImageRunner:
    """Tests one image after the other on one engine. now: UTC clock for records; clock: seconds for durations."""

    engine: Engine
    acquirer: Acquirer
    preflight: Preflight
    options: ProbeOptions
    labels: Mapping[str, str]
    run_id: str
    now: Callable[[], datetime]
    clock: Clock

    def key(self, image: Image) -> str:
        """The content key of this row here: equal keys need no second run. Raises Untested when its digest is out of reach."""
        run = {name: value for name, value in asdict(image.run).items() if name != "timeout"}
        return content_key(
            image=self.acquirer.identity_before(image),
            id=image.id,
            host=self.preflight.host.key,
            cpu=self.preflight.host.cpu,
            gpu=self.preflight.gpu.value,
            run=run,
            **self.options.key(),
        )

    def test(self, image: Image, key: str, step: Callable[[str], None], log: Callable[[str], None]) -> tuple[Record, Acquired]:
        """Acquire the image, run the probe in it and judge. Raises Untested when there is nothing to probe."""
        began = self.clock()
        started = self.now()
        acquired = self.acquirer.acquire(image, step, log)
        got = self.clock()
        step("probing")
        attempt, findings = self._probe(image, acquired.image, step, log)
        ended = self.clock()
        facts = self._restricted(image, acquired.image, attempt, step, log) if self.options.tier == "full" else {}
        return self._record(image, acquired, attempt, findings, facts, key, started, (began, got, ended)), acquired

    # ------------------------------------------------------------------ containers

    def _probe(
        self, image: Image, local: LocalImage, step: Callable[[str], None], log: Callable[[str], None]
    ) -> tuple[Attempt, tuple[Finding, ...]]:
        """Up to three containers: as the image wants it; without its entrypoint; with Docker's default permissions."""
        python = self._interpreter(local)
        if not python:
            return _nothing_to_run("no Python interpreter on PATH or in the usual places"), ()
        kept = image.run.entrypoint is None and bool(local.entrypoint)
        ways = [(True, kept), *([(True, False)] if kept else []), (False, kept), *([(False, False)] if kept else [])]
        first: Attempt | None = None
        for hardened, keep in ways:
            attempt = self._container(image, local, python, hardened, keep, step, log)
            if attempt.report.hello or attempt.exit.timed_out or attempt.exit.oom_killed:
                return attempt, _findings(attempt, kept)
            first = first or attempt
            log(f"no report came out (hardened={hardened}, entrypoint kept={keep}): {attempt.exit}")
        assert first is not None
        return first, ()

    def _interpreter(self, local: LocalImage) -> str:
        """A Python of the image, found without running anything in it; the probe itself looks for the one that holds torch."""
        path = local.environment.get("PATH", DEFAULT_PATH)
        on_path = tuple(f"{d.rstrip('/')}/{n}" for d in path.split(":") if d.startswith("/") for n in ("python3", "python"))
        candidates = tuple(dict.fromkeys((*on_path, *INTERPRETERS)))
        present = self.engine.paths_present(local.id, candidates, self.labels)
        return present[0] if present else ""

    def _restricted(
        self, image: Image, local: LocalImage, attempt: Attempt, step: Callable[[str], None], log: Callable[[str], None]
    ) -> dict[str, object]:
        """Facts on whether a few cases also pass as a user nobody knows and on a read-only root: both at once, else each alone."""
        python = part(attempt.report.facts, "python").get("executable")
        if part(attempt.report.facts, "torch_import").get("state") != "ok" or not isinstance(python, str):
            return {}
        options = replace(self.options, cases=RESTRICTED_CASES, tier="quick", devices=("cpu",))

        def alive(user: str, read_only: bool) -> tuple[bool, str]:
            changed = replace(image, run=replace(image.run, user=user or image.run.user, entrypoint=None))
            one = self._container(
                changed, local, python, attempt.hardened, False, step, log, options=options, read_only=read_only
            )
            failed = [case for case in one.report.cases if case.outcome is not Outcome.PASS]
            imported = part(one.report.facts, "torch_import")
            detail = (
                str(imported.get("detail") or "") or (failed[0].detail if failed else "") or one.error_output.strip()[-200:]
            )
            return bool(one.report.cases) and not failed and one.report.complete, detail

        step("probing as an unknown user on a read-only root")
        both, _ = alive(ANY_USER, True)
        ways = {
            "any_user": (True, "") if both else alive(ANY_USER, False),
            "read_only": (True, "") if both else alive("", True),
        }
        said = {"any_user": f"as {ANY_USER}, who is not in passwd and has no home", "read_only": "with an empty /tmp"}
        found = {
            way: {"state": "ok" if able else "failed", "detail": said[way] + (f": {detail}" if detail and not able else "")}
            for way, (able, detail) in ways.items()
        }
        return {"restricted": found}

    def _container(
        self, image: Image, local: LocalImage, python: str, hardened: bool, keep: bool,
        step: Callable[[str], None], log: Callable[[str], None], *, options: ProbeOptions | None = None, read_only: bool = False,
    ) -> Attempt:  # fmt: skip
        nonce = uuid.uuid4().hex
        reader = Reader(nonce)
        command = probe.command((options or self.options).given(), nonce)
        entrypoint: tuple[str, ...] | None = (python,)
        if image.run.entrypoint is not None:
            entrypoint, command = image.run.entrypoint, (python, *command)
        elif keep:
            entrypoint, command = None, (python, *command)
        gpus = parse_gpus(image.run.gpus) if self.preflight.gpu is GpuState.ACCEPTED else None
        spec = ContainerSpec(
            image_id=local.id,
            command=command,
            entrypoint=entrypoint,
            labels=self.labels,
            gpus=gpus,
            environment=image.run.environment,
            user=image.run.user,
            shm_size=image.run.shm_size,
            memory=image.run.memory,
            platform="" if local.platform == image.run.platform else image.run.platform,
            hardened=hardened,
            read_only=read_only,
            timeout=image.run.timeout,
        )
        errors = bytearray()

        def output(data: bytes) -> None:
            for frame in reader.feed(data):
                if frame.kind == "case":
                    step(f"  {frame.data.get('id', '')} {frame.data.get('outcome', '')}")

        def error_output(data: bytes) -> None:
            errors.extend(data)
            del errors[: max(0, len(errors) - 65536)]

        ended = self.engine.run(spec, output, error_output)
        report = reader.report()
        text = errors.decode("utf-8", "replace")
        log(f"--- container (hardened={hardened}): {ended}\n{report.noise_head}{report.noise_tail}\n--- standard error\n{text}")
        return Attempt(report=report, exit=ended, hardened=hardened, entrypoint_kept=keep, error_output=text)

    # ------------------------------------------------------------------ the record

    def _record(
        self, image: Image, acquired: Acquired, attempt: Attempt, findings: tuple[Finding, ...], facts: Mapping[str, object],
        key: str, started: datetime, moments: tuple[float, float, float],
    ) -> Record:  # fmt: skip
        report, ended = attempt.report, attempt.exit
        state = ExitState(
            exit_code=ended.code,
            oom_killed=ended.oom_killed,
            timed_out=ended.timed_out,
            started=ended.started,
            error=ended.error,
        )
        began, got, ended_at = moments
        return make_record(
            Probed(report=report, state=state, error_output=attempt.error_output),
            cases=tuple(self._explain(case, report.facts) for case in report.cases),
            image=acquired.identity,
            host=self.preflight.host,
            key=key,
            run=self.run_id,
            started=started,
            seconds={"acquire": round(got - began, 1), "probe": round(ended_at - got, 1)},
            options={**self.options.key(), "gpus": image.run.gpus, "gpu_request": self.preflight.gpu.value},
            findings=(*findings, *self._gpu_finding(image, report)),
            expectations=image.expect,
            more_facts={**facts, "config": _config(acquired.image)},
        )

    def _gpu_finding(self, image: Image, report: Report) -> tuple[Finding, ...]:
        """An engine that takes the request and attaches nothing is reported as exactly that."""
        asked = self.preflight.gpu is GpuState.ACCEPTED and parse_gpus(image.run.gpus) is not None
        if not asked or not report.hello or part(report.facts, "nvidia").get("devices"):
            return ()
        return (
            Finding(
                code="gpu-not-attached",
                severity=Severity.WARNING,
                message="GPU requested, none attached: the engine accepted --gpus, and no GPU device is in the container",
                remedy="check the host's driver (nvidia-smi) and the NVIDIA Container Toolkit; see `image-matrix doctor`",
            ),
        )

    def _explain(self, case: CaseResult, facts: Mapping[str, object]) -> CaseResult:
        """Say why a CUDA case did not run when the reason is this host's, which the probe inside cannot know."""
        state = part(facts, "cuda").get("state")
        if case.outcome is not Outcome.NOT_RUN or state not in ("no-device", "driver-too-old", "error"):
            return case
        if self.preflight.gpu is GpuState.REFUSED:
            return case.model_copy(
                update={"kind": "no-gpu-runtime", "detail": f"no GPU runtime on this host ({self.preflight.gpu_reason})"}
            )
        if self.preflight.gpu is GpuState.ACCEPTED and not part(facts, "nvidia").get("devices"):
            return case.model_copy(update={"kind": "not-attached", "detail": "GPU requested, none attached"})
        return case


def _config(image: LocalImage) -> dict[str, object]:
    """What the image's own configuration says, without its environment (which may hold secrets; the probe records what matters)."""
    labels = {name: value[:200] for name, value in sorted(image.labels.items())[:40]}
    return {"entrypoint": list(image.entrypoint), "user": image.user, "layers": image.layers, "labels": labels}


def _nothing_to_run(reason: str) -> Attempt:
    report = Reader(uuid.uuid4().hex).report()
    return Attempt(report=report, exit=Exit(error=reason), hardened=True, entrypoint_kept=False, error_output="")


def _findings(attempt: Attempt, wanted_entrypoint: bool) -> tuple[Finding, ...]:
    found = []
    if wanted_entrypoint and not attempt.entrypoint_kept:
        found.append(
            Finding(
                code="entrypoint-swallows",
                severity=Severity.WARNING,
                message="the image's own entrypoint does not run the command it is given; it was overridden",
                remedy="start it with --entrypoint, or set `entrypoint:` for this row in images.yaml",
            )
        )
    if not attempt.hardened:
        found.append(
            Finding(
                code="needs-privileges",
                severity=Severity.WARNING,
                message="the image does not run without capabilities and new privileges; it ran with Docker's defaults",
                remedy="nothing to do for ordinary use; it will not run under a restricted security policy",
            )
        )
    return tuple(found)


def effective(image: Image, gpu: GpuWish | None) -> Image:
    """The row with the command line's `--gpu` put over its own."""
    return image if gpu is None else replace(image, run=replace(image.run, gpu=gpu))


def mask(text: str) -> str:
    """Hide what may be a secret in a log line: credentials in URLs, tokens given as build arguments."""
    text = re.sub(r"(\w+://)[^/\s:@]+:[^/\s@]+@", r"\1***@", text)
    return re.sub(r"(?i)\b((?:[A-Z0-9_]*(?:TOKEN|PASSWORD|SECRET|API_KEY)[A-Z0-9_]*)\s*[=:]\s*)\S+", r"\1***", text)

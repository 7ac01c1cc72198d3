"""Many images on one host: plan, test one after the other, write each record the moment it is known, keep the disk free."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from validator.acquire import Acquired, Untested
from validator.engine import LABEL, Engine, EngineError
from validator.model import Image, Outcome, Pull, Record, Run, RunEntry, Verdict, VerdictClass
from validator.plan import Plan, make_plan
from validator.progress import Reporter
from validator.run import ImageRunner, mask
from validator.store import Store
from validator.units import size

OWNER = f"{LABEL}.owner"


def owner_token() -> str:
    """Who we are, so that a later run can tell whether we are still alive: pid, its start time, this boot."""
    return f"{os.getpid()}:{_start_time(os.getpid())}:{_boot()}"


def owner_is_dead(token: str) -> bool:
    """True only when the owner ran on this machine and is gone; an owner on another machine is left alone."""
    pid, _, rest = token.partition(":")
    start, _, boot = rest.partition(":")
    machine, _, current = _boot().partition("/")
    its_machine, _, its_boot = boot.partition("/")
    if not pid.isdigit() or its_machine != machine:
        return False
    return its_boot != current or _start_time(int(pid)) != start


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = "unknown"
    return f"{os.uname().nodename}/{boot}"


def _start_time(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def run_labels(run_id: str) -> dict[str, str]:
    """The labels of every container and image of one run of this process."""
    return {f"{LABEL}.run": run_id, OWNER: owner_token()}


def sweep(engine: Engine) -> int:
    """Remove the containers that a killed predecessor of ours left on this engine. Returns how many."""
    left = [ident for ident, labels in engine.containers(OWNER) if owner_is_dead(labels[OWNER])]
    for ident in left:
        engine.remove_container(ident)
    return len(left)


def sweep_run(engine: Engine, run_id: str) -> None:
    """Remove what is left of our own run's containers: a stop may come between the engine making one and our knowing it."""
    for ident, _ in engine.containers(f"{LABEL}.run={run_id}"):
        engine.remove_container(ident)


@dataclass(kw_only=True)
class Schedule:
    """One run over a selection. reserve: bytes of free disk under which images that we brought are removed."""

    engine: Engine
    runner: ImageRunner
    store: Store
    reporter: Reporter
    run: Run
    reserve: int
    keep: bool = False
    refresh: bool = False
    exit_first: bool = False
    now: Callable[[], datetime]
    _entries: dict[str, RunEntry] = field(default_factory=dict)

    def examine(self, images: tuple[Image, ...]) -> tuple[Plan, dict[str, str]]:
        """What is known, what must be done, and the content key of each row; rows out of reach become untested here."""
        pulled = tuple(image.source.reference for image in images if isinstance(image.source, Pull))
        bases = tuple(
            source.reference
            for image in images
            if not isinstance(image.source, Pull)
            for source in image.source.base.sources
            if source.kind == "registry"
        )
        for verdict in self.runner.acquirer.registries.examine((*pulled, *bases)).values():
            self.reporter.say(f"{verdict.cause}; not asked again in this run")
        keys: dict[str, str] = {}
        known: set[str] = set()
        for image in images:
            try:
                keys[image.id] = self.runner.key(image)
            except Untested as error:
                self._untested(image, error.verdict)
                continue
            record = None if self.refresh else self.store.known(keys[image.id])
            if record is not None:
                known.add(image.id)
                self._entries[image.id] = RunEntry(id=image.id, state="known", record=record.key)
        todo = [image for image in images if image.id in keys]
        return make_plan(todo, self.store.records(), frozenset(known)), keys

    def execute(self, plan: Plan, keys: dict[str, str]) -> Run:
        """Test what is not known. Whatever ends it, the entries so far are written; only a full pass is `complete`."""
        self._write(ended=False, pending=plan)
        todo = plan.todo
        self.reporter.begin(len(todo))
        try:
            for position, step in enumerate(todo, start=1):
                self.reporter.image_started(step.image.id, position, step.seconds)
                self._one(step.image, keys[step.image.id], step.size)
                self._write(ended=False, pending=plan)
                entry = self._entries[step.image.id]
                bad = entry.verdict is not None and entry.verdict.cls is not VerdictClass.OK
                if self.exit_first and bad and position < len(todo):
                    self.reporter.say(f"stopped after {step.image.id}, the first that is not good; {len(todo) - position} left")
                    return self.run
            return self._write(ended=True, pending=plan)
        finally:
            self.reporter.end()

    def _one(self, image: Image, key: str, expected_size: int) -> None:
        clock = self.runner.clock
        began = clock()
        with self._log(image) as log:
            try:
                self._room(image, expected_size)
                record, acquired = self.runner.test(image, key, lambda text: self.reporter.step(image.id, text), log)
            except Untested as error:
                log(f"untested: {error.verdict.cause}")
                self._untested(image, error.verdict)
                self.reporter.image_done(image.id, _line(error.verdict), clock() - began, False)
                return
            except EngineError as error:
                log(f"engine: {error}")
                verdict = Verdict(
                    cls=VerdictClass.INFRA, code="engine-failed", cause=f"the engine failed: {error}",
                    remedy="see `image-matrix doctor` and the engine's own log, then run again",
                )  # fmt: skip
                self._untested(image, verdict)
                self.reporter.image_done(image.id, _line(verdict), clock() - began, False)
                return
        record = record.model_copy(update={"log": f"logs/{self.run.id}/{image.id}.log"})
        self.store.write_record(record)
        self._entries[image.id] = RunEntry(id=image.id, state="tested", record=record.key, verdict=record.verdict)
        self._tidy(acquired)
        good = record.verdict.cls is VerdictClass.OK
        self.reporter.image_done(image.id, summary(record), clock() - began, good)

    def _untested(self, image: Image, verdict: Verdict) -> None:
        self._entries[image.id] = RunEntry(id=image.id, state="untested", verdict=verdict)

    # ------------------------------------------------------------------ disk

    def _room(self, image: Image, expected: int) -> None:
        """Refuse, as infra, what would fill the disk (a build needs its result twice while it works)."""
        free = self.runner.preflight.disk_free()
        if free is None:
            return
        need = expected * 2
        if free < need:
            self._remove_ours(need)
            free = self.runner.preflight.disk_free() or 0
        if free < need:
            raise Untested(
                Verdict(
                    cls=VerdictClass.INFRA,
                    code="no-space",
                    cause=f"about {size(need)} of disk are needed while it is built or unpacked, {size(free)} are free",
                    remedy=f"free some space under {self.runner.preflight.info.root} (`docker system df`), then run again",
                )
            )

    def _tidy(self, acquired: Acquired) -> None:
        """Remove what we brought when the disk runs low. Images that were there before are never touched."""
        free = self.runner.preflight.disk_free()
        if self.keep or not acquired.brought or (free is not None and free >= self.reserve):
            return
        if self.engine.remove_image(acquired.image.id):
            self.reporter.say(
                f"removed {acquired.identity.id} ({size(acquired.image.size)}): less than {size(self.reserve)} free"
            )
        self._remove_ours(self.reserve)

    def _remove_ours(self, wanted: int) -> None:
        """Remove slim images of earlier runs of ours, largest first, until `wanted` bytes are free."""
        if self.keep:
            return
        for image in sorted(self.engine.labelled_images(f"{LABEL}.id"), key=lambda i: -i.size):
            free = self.runner.preflight.disk_free()
            if free is None or free >= wanted:
                return
            if self.engine.remove_image(image.id):
                self.reporter.say(f"removed {image.labels[f'{LABEL}.id']} ({size(image.size)}) to free disk")

    # ------------------------------------------------------------------ files

    def _write(self, *, ended: bool, pending: Plan) -> Run:
        waiting = {s.image.id: RunEntry(id=s.image.id, state="pending") for s in pending.steps}
        entries = waiting | self._entries
        ordered = tuple(entries[i] for i in self.run.selection if i in entries)
        moment = self.now().isoformat(timespec="seconds").replace("+00:00", "Z") if ended else ""
        self.run = self.run.model_copy(update={"entries": ordered, "ended": moment, "complete": ended})
        self.store.write_run(self.run)
        return self.run

    @contextmanager
    def _log(self, image: Image) -> Iterator[Callable[[str], None]]:
        path = self.store.log_path(self.run.id, image.id)
        with path.open("w", encoding="utf-8", errors="replace") as stream:

            def line(text: str) -> None:
                stream.write(mask(text) + "\n")

            yield line


def _line(verdict: Verdict) -> str:
    return f"{verdict.cls.value}: {verdict.cause}"


def summary(record: Record) -> str:
    """One line on a record: what passed of what ran, per device, and what did not."""
    if record.verdict.cls is not VerdictClass.OK:
        return _line(record.verdict)
    parts = []
    for device in ("cpu", "cuda"):
        cases = [case for case in record.cases if re.search(rf"\.{device}(\.|$)", case.id)]
        ran = [case for case in cases if case.outcome is not Outcome.NOT_RUN]
        if ran:
            parts.append(f"{device} {sum(c.outcome is Outcome.PASS for c in ran)}/{len(ran)} pass")
        elif cases:
            reasons = {case.detail for case in cases}
            parts.append(f"{device} not run ({reasons.pop()})" if len(reasons) == 1 else f"{device} not run")
    loud = (Outcome.WRONG, Outcome.CRASH, Outcome.FALLBACK, Outcome.TIMEOUT)
    counts = {o: sum(case.outcome is o for case in record.cases) for o in loud}
    parts += [f"{number} {outcome.value}" for outcome, number in counts.items() if number]
    torch = record.facts.get("torch") or {}
    return ", ".join((f"torch {torch.get('version', '?')}", *parts))

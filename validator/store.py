"""results/: one JSON file for each record and each run, written atomically, never changed afterwards (runs: until they end)."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import math
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import filelock
from pydantic import ValidationError

from validator.errors import EnvironmentProblem
from validator.model import IMAGE_ID, RECORD_SCHEMA, Record, Run, VerdictClass
from validator.packed import pack, unpack

Kind = TypeVar("Kind", Record, Run)

TIERS = ("quick", "standard", "full")

# A record with one of these verdicts tells of the moment, not of the image: it never stands in for a new try.
PASSING = frozenset({VerdictClass.INFRA, VerdictClass.HOST})


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(value: Any) -> Any:
    """`value` with null where a number is none: JSON has no infinity, and an image can send 1e999."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Store:
    """A results directory: `records/<image id>/<start>-<key>.json`, `runs/<run id>.json`, `logs/<run id>/<image id>.log`.

    Making one creates nothing; reading one that is not there gives nothing. Files that cannot be read are listed in
    `problems` and otherwise left alone. only: read no cases but these, which is many times faster; such records are for
    looking things up, not for writing.
    """

    def __init__(self, root: Path, only: Collection[str] | None = None) -> None:
        self.root = root
        self.only = None if only is None else frozenset(only)
        self.problems: list[str] = []
        self._records: tuple[Record, ...] | None = None

    # ------------------------------------------------------------------ reading

    def records(self) -> tuple[Record, ...]:
        """Every readable record, oldest first."""
        if self._records is None:
            with _no_collection():
                found = [self._read(path, Record) for path in self._files("records", 1)]
            self._records = tuple(sorted((r for r in found if r is not None), key=lambda r: (r.started, r.image.id, r.key)))
        return self._records

    def latest(self) -> dict[tuple[str, str], Record]:
        """The record that stands for each (image id, host key): the newest of the fullest.

        One that only tells of a passing trouble, or of a narrower selection of cases, never hides a fuller one.
        """
        best: dict[tuple[str, str], Record] = {}
        for record in self.records():
            place = (record.image.id, record.host.key)
            if place not in best or _stands_before(record, best[place]):
                best[place] = record
        return best

    def known(self, key: str) -> Record | None:
        """The newest complete record with this content key, or None."""
        return next((r for r in reversed(self.records()) if r.key == key and r.complete and r.verdict.cls not in PASSING), None)

    def runs(self) -> tuple[Run, ...]:
        """Every readable run, oldest first."""
        found = (self._read(path, Run) for path in self._files("runs", 0))
        return tuple(sorted((run for run in found if run is not None), key=lambda run: (run.started, run.id)))

    def _files(self, name: str, depth: int) -> list[Path]:
        """The JSON files `depth` folders below one of ours; none where it is not there yet. Raises EnvironmentProblem."""

        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                hint = "correct its permissions, or name another place with --results"
                raise EnvironmentProblem(f"cannot read {error.filename}: {error.strerror}", hint) from error

        found = []
        for folder, _, files in os.walk(self.root / name, onerror=refuse):
            if len(Path(folder).relative_to(self.root).parts) == depth + 1:
                found += [Path(folder, file) for file in files if file.endswith(".json") and not file.startswith(".")]
        return sorted(found)

    def _read(self, path: Path, kind: type[Kind]) -> Kind | None:
        try:
            return _parse(path.read_text(encoding="utf-8"), kind, self.only)
        except (OSError, ValueError, RecursionError, ValidationError) as error:
            problem = f"{path}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            if problem not in self.problems:
                self.problems.append(problem)
            return None

    # ------------------------------------------------------------------ writing

    def write_record(self, record: Record) -> Path:
        """Write a new record the moment it is known. Raises EnvironmentProblem when the file cannot be written."""
        stamp = record.started.replace("-", "").replace(":", "")
        name = _safe(f"{stamp}-{record.key[:8]}")
        folder = self._place("records", record.image.id)
        path = folder / f"{name}.json"
        for number in itertools.count(2):  # append-only: a second record of the same second stands beside the first
            if not path.exists():
                break
            path = folder / f"{name}-{number}.json"
        self._write(path, _data(record))
        self._records = None
        return path

    def write_run(self, run: Run) -> Path:
        """Write a run's file, over what it said before."""
        path = self._place("runs") / f"{_safe(run.id)}.json"
        self._write(path, run.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"schema": run.schema_})
        return path

    def log_path(self, run_id: str, image_id: str) -> Path:
        """Where the log of one image in one run goes; its folder is made."""
        return self._place("logs", run_id) / f"{_safe(image_id)}.log"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One run at a time on one results directory. Raises EnvironmentProblem naming the process that holds it."""
        path = self._place() / "run.lock"
        holder = self.root / "run.pid"
        lock = filelock.FileLock(path, timeout=0)
        with self._explained(path):
            try:
                lock.acquire()
            except filelock.Timeout as error:  # an OSError too, but it has its own explanation
                raise EnvironmentProblem(
                    f"another run uses {self.root} (process {_first_line(holder)})",
                    "wait for it, stop it, or use another --results directory",
                ) from error
        try:
            with self._explained(holder):
                holder.write_text(f"{os.getpid()}\n", encoding="utf-8")
            yield
        finally:
            with contextlib.suppress(OSError):
                holder.unlink(missing_ok=True)
            lock.release()

    def _place(self, *parts: str) -> Path:
        path = self.root.joinpath(*(_safe(part) for part in parts))
        with self._explained(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def _write(self, path: Path, data: dict[str, Any]) -> None:
        text = _text(_finite(data))
        with self._explained(path):
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                Path(temporary).chmod(0o644)
                os.replace(temporary, path)  # noqa: PTH105 - atomic within one file system
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextlib.contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = "choose another place with --results, or correct its permissions"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                hint = "free some space, then run again: what was written before is kept"
            raise EnvironmentProblem(f"cannot write {path}: {error.strerror}", hint) from error


def _data(record: Record) -> dict[str, Any]:
    """A record as it stands in its file: what is at its default is left out, and its cases are packed."""
    data = record.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"schema": RECORD_SCHEMA}
    return data | {"outcomes": pack(data.pop("cases", []))}


def _whole(data: Any, only: frozenset[str] | None) -> Any:
    """What a file holds as the model wants it, with no cases but `only` where that is said."""
    if not isinstance(data, dict):
        return data
    if "outcomes" in data:
        data = {key: value for key, value in data.items() if key != "outcomes"} | {"cases": unpack(data["outcomes"], only)}
    elif only is not None and isinstance(data.get("cases"), list):
        data["cases"] = [case for case in data["cases"] if isinstance(case, dict) and case.get("id") in only]
    return data


def record_of(text: str) -> Record:
    """The reverse of record_text, also for files of schema 1. Raises ValueError (pydantic's own among them) for anything else."""
    return _parse(text, Record)


def _parse(text: str, kind: type[Kind], only: frozenset[str] | None = None) -> Kind:
    return kind.model_validate(_whole(json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse), only))


def record_text(record: Record) -> str:
    """The text of a record's file, for whoever wants it elsewhere."""
    return _text(_finite(_data(record)))


def _stands_before(newer: Record, older: Record) -> bool:
    """Whether the newer record replaces the older one as what is shown."""

    def whole(record: Record) -> tuple[bool, bool]:
        return record.verdict.cls not in PASSING, not record.options.get("cases") and not record.options.get("devices")

    if whole(newer) != whole(older):
        return whole(newer) > whole(older)
    same = (newer.probe, newer.image.image_id) == (older.probe, older.image.image_id)
    return not same or _tier(newer) >= _tier(older)  # of one probe in one image, the tier with more cases says more


def _tier(record: Record) -> int:
    tier = str(record.options.get("tier"))
    return TIERS.index(tier) if tier in TIERS else len(TIERS)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """The cycle collector rests: it walks the growing heap again and again, which is most of the time of a large read."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _first_line(path: Path) -> str:
    """What the file says, "?" when it says nothing: its writer may be starting or ending at this moment."""
    try:
        return path.read_text(encoding="utf-8").strip() or "?"
    except OSError:
        return "?"


def _safe(part: str) -> str:
    """A name that stays inside its folder; ids are checked before, so anything else is a bug or an attack."""
    if not IMAGE_ID.fullmatch(part.lower()) or ".." in part:
        raise EnvironmentProblem(f"{part!r} cannot be a file name in the results directory")
    return part


def _item(item: dict[str, Any]) -> str:
    """One member of a list; a group of outcomes has a line for each of its cases."""
    cases = item.get("cases")
    if not isinstance(cases, dict) or not cases:
        return json.dumps(item, sort_keys=True, ensure_ascii=True)
    rest = json.dumps({key: value for key, value in item.items() if key != "cases"}, sort_keys=True, ensure_ascii=True)
    lines = ",\n   ".join(f"{json.dumps(ident)}: {json.dumps(cases[ident])}" for ident in sorted(cases))
    return f'{rest[:-1]}{", " if len(rest) > 2 else ""}"cases": {{\n   {lines}}}}}'


def _text(data: dict[str, Any]) -> str:
    """JSON with sorted keys; the members of long lists stand one per line, so that a change reads well in a diff."""
    lines = []
    for key in sorted(data):
        value = data[key]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_item(item) for item in value)
            lines.append(f" {json.dumps(key)}: [\n  {items}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, sort_keys=True, ensure_ascii=True)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"

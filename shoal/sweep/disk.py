"""The folder of a sweep: the existing runs of its study and their results.

    study.toml                       the study in its last form
    runs/max_delay=4,workers=2-seed0/    a run folder each, with its output (output.log), its
                                     cores and load (machine.json), or why it failed (failed.txt)
    former/                          runs that left the study, and made room for others
    table.csv, table.json, *.svg, *.png

A run is identified by its settings, cores and seed, not by its name: another axis in the study
changes names only. Finished runs are never removed and never run again; others start again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from shoal.errors import Invalid
from shoal.events import Evaluated, RunEvent, read_legible
from shoal.files import Lock, replace_file
from shoal.job import Job
from shoal.run.resume import is_finished
from shoal.strategies.gossip.topology import LINKS, read
from shoal.sweep.study import PlannedRun, Study

ENDS_WITHIN = 30.0  # seconds for a run to end after its sweep
LOG, FAILED, STUDY, MACHINE = "output.log", "failed.txt", "study.toml", "machine.json"

Decoded = TypeVar("Decoded")
State = Literal["finished", "diverged", "failed", "unfinished", "to do"]


class MachineInfo(msgspec.Struct, frozen=True):
    cores: list[int]
    others: float | None = None  # share


@dataclass(frozen=True, slots=True)
class PointResult:
    run: PlannedRun
    state: State
    folder: Path
    reason: str = ""  # if it failed or diverged
    summary: dict[str, Any] = field(default_factory=dict, repr=False)
    events: list[RunEvent] = field(default_factory=list, repr=False)
    others: float | None = None  # share of its cores that others took

    @property
    def is_done(self) -> bool:
        """Whether it needs no other run."""
        return self.state in ("finished", "diverged")


@dataclass(frozen=True, slots=True)
class Sweep:
    study: Study
    results: list[PointResult] = field(repr=False)
    folder: Path

    @classmethod
    def load(cls, folder: str | Path) -> Sweep:
        """Read a sweep's folder, also while runs go on in it."""
        folder = Path(folder)
        if not (folder / STUDY).is_file():
            raise Invalid(f"{folder} has no {STUDY}: it is no sweep; give the folder of one (--out of `shoal sweep`)")
        study = Study.load(folder / STUDY)
        cores = study.cores_per_run or study.cores
        return cls(study, [look(run, folder, cores) for run in study.runs], folder)

    @property
    def left(self) -> list[PointResult]:
        return [one for one in self.results if not one.is_done]


def is_sweep(folder: Path) -> bool:
    return (folder / STUDY).is_file()


def look(run: PlannedRun, out: Path, cores: int | None) -> PointResult:
    folder = out / "runs" / run.name
    if not folder.is_dir():
        return PointResult(run, "to do", folder)
    existing = fingerprint(folder)
    if not existing:
        if (folder / FAILED).is_file():
            return PointResult(run, "failed", folder, (folder / FAILED).read_text(errors="replace").strip())
        return PointResult(run, "unfinished", folder)
    summary = _summary(folder)
    if existing != identity(run.job, cores if cores is not None else _cores(folder)):
        reason = "it was run with other settings, and will be put aside (former/)"
        return PointResult(run, "unfinished", folder, reason)
    try:
        events, _ = read_legible(folder / "events.jsonl")
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        return PointResult(run, "unfinished", folder, f"{error}: it will be put aside (former/)")
    state, reason = ("diverged", summary["stopped_because"]) if summary["failed"] else ("finished", "")
    others = (_decoded(folder / MACHINE, MachineInfo) or MachineInfo([])).others
    return PointResult(run, state, folder, reason, summary, events, others)  # type: ignore[arg-type]


def identity(job: Job, cores: int | None, folder: Path | None = None) -> str:
    """A digest that identifies a measurement; of data only the file's name counts.

    Edge lists count by content: that of the run in ``folder``, else that of the file now.
    """
    tree = msgspec.to_builtins(job)
    tree["data"] |= {name: Path(tree["data"][name]).name for name in ("source", "test")}
    if edges := tree["strategy"].get("edges"):
        tree["strategy"]["edges"] = "not known"
        with contextlib.suppress(Invalid):
            tree["strategy"]["edges"] = read(Path(edges) if folder is None else folder / LINKS, job.workers)
    return hashlib.sha256(msgspec.json.encode([tree, cores])).hexdigest()


def fingerprint(folder: Path) -> str:
    """The identity of a finished run, or of a diverged one, which stays so; else empty."""
    try:
        if not is_finished(folder) and not _diverged(folder):
            return ""
        return identity(Job.load(folder / "job.toml"), _cores(folder), folder)
    except (Invalid, OSError):
        return ""


def _decoded(path: Path, kind: type[Decoded]) -> Decoded | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None


def _summary(folder: Path) -> dict[str, Any]:
    return _decoded(folder / "summary.json", dict[str, Any]) or {}


def _cores(folder: Path) -> int | None:
    cores = _summary(folder).get("cores")
    return cores if isinstance(cores, int) else None


def _diverged(folder: Path) -> bool:
    try:
        events, _ = read_legible(folder / "events.jsonl")
    except (OSError, UnicodeDecodeError, RecursionError):
        return False
    losses = [event.test_loss for event in events if isinstance(event, Evaluated)]
    return bool(_summary(folder).get("failed") and losses) and not math.isfinite(losses[-1])


def kept(study: Study, out: Path, cores: int) -> dict[str, Path]:
    """The folders of finished runs by their names in the study."""
    wanted = {identity(run.job, cores): run.name for run in study.runs}
    found: dict[str, Path] = {}
    for path in _folders(out):
        name = wanted.get(fingerprint(path))
        if name is not None and (name not in found or path.name == name):
            found[name] = path
    return found


def arrange(study: Study, out: Path, cores: int) -> None:
    """Give finished runs their names in this study; runs that left it make room."""
    runs, there = out / "runs", kept(study, out, cores)
    runs.mkdir(parents=True, exist_ok=True)
    moves = {name: path for name, path in there.items() if path.name != name}
    for number, (name, path) in enumerate(moves.items()):  # aside first: names may be swapped
        moves[name] = path.rename(runs / f".moved-{number}-{os.getpid()}")
    for run in study.runs:
        path = runs / run.name
        if path.is_dir() and there.get(run.name) != path and fingerprint(path):
            _put_aside(path, out / "former")
    for name, path in moves.items():
        clear(runs / name)
        path.rename(runs / name)


def _folders(out: Path) -> list[Path]:
    return sorted(path for path in (out / "runs").iterdir() if path.is_dir()) if (out / "runs").is_dir() else []


def make_way(path: Path, out: Path) -> None:
    """Clear the folder of a run: move a finished run aside, remove an unfinished one."""
    if path.is_dir() and fingerprint(path):
        _put_aside(path, out / "former")
    else:
        clear(path)


def _put_aside(path: Path, former: Path) -> None:
    former.mkdir(exist_ok=True)
    numbered = (former / f"{path.name}-{number}" for number in itertools.count(1))
    path.rename(next(target for target in numbered if not target.exists()))


def clear(path: Path) -> None:
    """Remove an unfinished run, if there is one; leaves other files alone."""
    if not path.exists():
        return
    ours = any((path / name).exists() for name in (LOG, FAILED, "job.toml")) or not any(path.iterdir())
    if not ours:
        raise Invalid(f"{path} is needed for a run, but holds something else: move it away")
    deadline = time.monotonic() + ENDS_WITHIN
    while True:  # a run of a killed sweep needs a moment to end
        try:
            lock = Lock(path, path)
            break
        except Invalid:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    shutil.rmtree(path)
    lock.release()


def others(sweep: Sweep) -> int:
    """Runs in the folder that are not in the study."""
    names = {one.run.name for one in sweep.results}
    return sum(path.name not in names for path in _folders(sweep.folder))


def write_study(study: Study, out: Path) -> None:
    if not study.text:
        raise Invalid("this study has no text that could be saved: load it from a file")
    replace_file(out / STUDY, study.toml().encode())


def took(results: Iterable[PointResult]) -> list[float]:
    """Seconds that finished runs took from start to end, preparation included."""
    found = []
    for one in results:
        if one.is_done:
            begun, ended = (os.stat(one.folder / name).st_mtime for name in ("job.toml", "summary.json"))
            found.append(max(0.0, ended - begun))
    return found

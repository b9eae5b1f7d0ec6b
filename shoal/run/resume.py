"""Resumes a run: checks that it is the same run, and finds its newest complete checkpoint.

How a run executes (workers, servers, stop rules) may change; what it computes (data, model, update,
strategy, seed) may not. Damaged checkpoints are named and skipped. Without any checkpoint the run
begins again. Slots that the journal counted after the checkpoint are reported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import Invalid, OtherRun
from shoal.events import Evaluated, Progress, Resumed, RunEvent, Started, Warned, counted, read_legible
from shoal.job import MAY_CHANGE, Job
from shoal.run.finished import Run
from shoal.run.folder import RunFolder
from shoal.settings_tree import changed

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset
    from shoal.errors import BadCheckpoint
    from shoal.store.checkpoint.manifest import Manifest
    from shoal.training.local_checkpoint import LocalCheckpoint

CHECKPOINTS = "checkpoints"


@dataclass(slots=True)
class ResumedRun:
    """The state from which a resumed run continues."""

    before: list[RunEvent] = field(repr=False)  # events before the resume
    checkpoint: tuple[Path, Manifest] | LocalCheckpoint | None = None  # None: from the beginning
    news: list[RunEvent] = field(default_factory=list)  # events to report first
    nodes_may_run: bool = False  # its servers may still run: nothing is rolled back

    @property
    def fresh(self) -> bool:
        return self.checkpoint is None and not self.nodes_may_run


def open_folder(out: Path, job: Job) -> RunFolder:
    """A new folder, or the folder of an unfinished run of the same job, to resume it."""
    # unlike Path's, it accepts any name
    if not os.path.isfile(out / "job.toml") or is_finished(out):
        return RunFolder(out, job)
    folder = RunFolder.existing(out)
    try:
        if is_finished(out):
            raise Invalid(f"{out} has a run in it already: choose another folder, or remove it")
        check_same(out, Job.load(out / "job.toml"), job)
    except BaseException:
        folder.release()
        raise
    return folder


def finished(path: Path, changes: Mapping[str, Any]) -> Run | None:
    if not is_finished(path) or job_of(path, changes).stop != job_of(path).stop:
        return None
    return Run.load(path.absolute())


def reopen(path: Path, changes: Mapping[str, Any]) -> tuple[Job, RunFolder]:
    """The folder and job of a run to resume, with some settings changed."""
    job = job_of(path, changes)  # raises before the folder is locked
    check_further(path, Job.load(path / "job.toml"), job)
    folder = RunFolder.existing(path)
    return job_of(path, changes), folder


def is_finished(path: Path) -> bool:
    """Whether the run in this folder ended without an error."""
    try:
        return not msgspec.json.decode((path / "summary.json").read_bytes())["failed"]
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return False


def job_of(path: Path, changes: Mapping[str, Any] | None = None) -> Job:
    """The job of the run there with changed settings; Invalid if that makes it another run."""
    if not (path / "job.toml").is_file():
        raise Invalid(f"{path} has no job.toml: it is not a run; give the folder of one (the --out of its command)")
    was = Job.load(path / "job.toml")
    now = Job.of(changed(msgspec.to_builtins(was), changes or {}))
    check_same(path, was, now)
    return now


def check_same(path: Path, was: Job, now: Job) -> None:
    if different := differences(was, now):
        what = "; ".join(different)
        raise Invalid(f"{path} has a run of another job ({what}): leave that as it was, or choose another folder")


def check_further(path: Path, was: Job, now: Job) -> None:
    """Refuse stop rules that a finished run has passed: its model would get worse."""
    if not is_finished(path):
        return
    try:
        events, _ = read_legible(path / "events.jsonl")
    except OSError:
        return  # ``resume_state`` reports it
    last = next((one for one in reversed(events) if isinstance(one, Progress | Evaluated)), None)
    if last is None:
        return
    done = {"epochs": last.passes, "steps": last.steps, "seconds": last.seconds}
    for name, reached in done.items():
        wanted = getattr(now.stop, name)
        if wanted is not None and wanted != getattr(was.stop, name) and reached >= wanted:
            what = f"{path} has come to {reached:g} {name} already, and stop.{name}={wanted:g} is not further"
            raise Invalid(f"{what}: ask for more, or begin another run")


def differences(was: Job, now: Job) -> list[str]:
    found = []
    before, after = (_flat(msgspec.to_builtins(one)) for one in (was, now))
    for name in dict.fromkeys([*before, *after]):
        may = name.split(".")[0] in MAY_CHANGE or name in ("model.device", "model.threads")
        if not may and before.get(name) != after.get(name):
            found.append(f"{name} was {before.get(name)!r}, not {after.get(name)!r}")
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def resume_state(folder: RunFolder, was: Job, job: Job, dataset: Dataset) -> ResumedRun:
    """The state to continue from. Changes nothing in the folder."""
    before, damaged = folder.events()
    _check_data(folder.path, before, dataset)
    root = folder.path / CHECKPOINTS
    try:
        found, refused = _newest(root, was)
    except OSError as error:
        raise Invalid(
            f"cannot read {root}: {error.strerror}: move it away to begin a fresh one, or bring it back"
        ) from None
    seconds = max((event.seconds for event in before), default=0.0)
    warned: list[RunEvent] = [Warned(seconds=seconds, what=f"passed over: {one}") for one in refused]
    if damaged:
        what = f"events.jsonl: {counted(damaged, 'damaged line')} passed over: what they told is not known"
        warned.insert(0, Warned(seconds=seconds, what=what))
    if found is None:
        if other := next((one for one in refused if isinstance(one, OtherRun)), None):
            raise Invalid(f"{other.reason}: put back what was there, or move {root} away to begin a fresh one")
        if is_finished(folder.path):
            raise Invalid(
                f"{folder.path} is finished, and has no checkpoint to go on from (one is made every "
                f"{was.checkpoint.every:g} s): begin another run, with more epochs or --set checkpoint.every=10"
            )
        return ResumedRun([], None, [*warned, Resumed(seconds=0.0, checkpoint=None, steps=0)])
    if not isinstance(found, tuple):
        found = found.later(seconds)
        stood = found.facts.standing
        resumed = Resumed(
            seconds=stood.seconds,
            checkpoint=found.facts.number,
            steps=stood.done if stood.steps is None else stood.steps,
        )
        return ResumedRun(before, found, [*warned, resumed])
    path, manifest = found
    state, news = _state(folder.path, manifest, was, job, dataset, seconds)
    return ResumedRun(before, (path, msgspec.structs.replace(manifest, state=state)), [*warned, *news])


def _newest(root: Path, was: Job) -> tuple[tuple[Path, Manifest] | LocalCheckpoint | None, Sequence[BadCheckpoint]]:
    from shoal.files import Disk
    from shoal.store.checkpoint.manifest import newest
    from shoal.training import local_checkpoint

    if was.strategy.on_servers:
        return newest(Disk(), root, was.identity)
    return local_checkpoint.newest(root, was.identity)


def _state(
    path: Path, manifest: Manifest, was: Job, job: Job, dataset: Dataset, seconds: float
) -> tuple[msgspec.Raw, list[RunEvent]]:
    from shoal.nodes.factory import state_to_resume
    from shoal.nodes.journal import JournalFile
    from shoal.nodes.membership_journal import split
    from shoal.nodes.scheduler_journal import replayed
    from shoal.schedule.intervals import Intervals

    state = state_to_resume(manifest, was, job, dataset.train.rows, seconds)
    journal = JournalFile(path / "coordinator.journal")
    known = replayed(split(journal.records)[1]).counted
    journal.close()
    again = Intervals(known).without(state.counted).runs
    resumed = Resumed(seconds=state.account.seconds, checkpoint=manifest.number, steps=manifest.steps, slots=again)
    news: list[RunEvent] = [resumed]
    if journal.damaged is not None:
        what = f"the journal is damaged at byte {journal.damaged:,}: what was counted since the checkpoint is not known in full"
        news.insert(0, Warned(seconds=seconds, what=what))
    return msgspec.Raw(msgspec.json.encode(state)), news


def running_state(folder: RunFolder, dataset: Dataset) -> ResumedRun:
    """Continue a run whose remote nodes may still be running, from its journal alone."""
    before, _ = folder.events()
    _check_data(folder.path, before, dataset)
    return ResumedRun(before, nodes_may_run=True)


def _check_data(path: Path, before: list[RunEvent], dataset: Dataset) -> None:
    started = next((event for event in before if isinstance(event, Started)), None)
    if started is None:
        return
    was, now = (started.rows, started.features), (dataset.train.rows, dataset.features)
    if was != now:
        then = f"{was[0]:,} rows of {was[1]:,} features then, {now[0]:,} of {now[1]:,} now"
        raise Invalid(f"the data have changed since {path} was begun: {then}: bring them back, or begin another run")

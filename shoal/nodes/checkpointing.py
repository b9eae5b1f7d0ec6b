"""Makes checkpoints and rolls a run back to one: the coordinator's part.

    a folder is made      its number is above all there are
    servers are asked     each writes the segments it is primary of: at the step named, or now
    all have answered     the manifest is written: the checkpoint is complete; old ones are removed

It touches no file: disk work is an effect. If owners change, a server is gone or silent, or a disk
is full, the folder is removed, and another checkpoint is begun, later and later as long as it
fails. Training goes on meanwhile. A failure is reported, and never fatal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.roster import remember
from shoal.events import Evaluated, Saved, Warned
from shoal.files import Disk
from shoal.nodes.coordinator_state import CoordinatorState
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_journal import ScheduleState, counted_everywhere
from shoal.store.checkpoint import manifest as checkpoint
from shoal.store.checkpoint.writer import LATE
from shoal.tables import Step
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Store, Stored, Tell

_QUIET_RETRIES = 5  # tries in a row without a fault before a warning
_REMEMBERED = 16  # steps whose checkpoint or loss is remembered until the other is there
_NO_FOLDER = (
    "nothing is saved, since there is no checkpoint folder: give one (shoal.local(folder=...), shoal launch coordinator "
    "--out FOLDER), or in a run out=FOLDER and a checkpoint.every that is not inf"
)

Owners = dict[tuple[int, int], tuple[str, int]]  # table, segment -> primary, its incarnation


@dataclass(slots=True)
class _CheckpointAttempt:
    began: int
    token: int  # of its disk operation; 0: none runs
    requested: bool  # by a user, not by the interval
    number: int = 0
    view: m.View | None = None  # by which servers were asked; None: not yet
    owners: Owners = field(default_factory=dict)
    steps: int = 0
    clock: int = m.NO_CLOCK
    state: Any = None  # of the run
    asked_at: int = 0
    last_written: int = 0  # when something was last written
    checked_view: int = 0  # the newest view in which the owners were still the same
    written: dict[tuple[int, int], m.Written] = field(default_factory=dict)
    finishing: bool = False
    bytes: int = 0
    stalled: bool = False


class CheckpointWriter:
    """A run's checkpoints, one at a time. Without a folder (``root``) none is made."""

    def __init__(
        self,
        root: Path | None = None,
        job: str = "",
        every: int | None = None,  # nanoseconds; None: only when asked
        keep: int = limits.CHECKPOINTS_KEPT,
        disk: Disk | None = None,
    ) -> None:
        self.disk, self.job, self.every, self.keep = disk or Disk(), job, every, keep
        self.has_folder, self.root = root is not None, root or Path()
        self.group = ""  # of workers, whose they are; empty: the cluster's
        self.timing = DEFAULT  # until the view says otherwise
        self.saved = 0  # the number of the last one that this process saved
        self.failures = 0  # in a row
        self.trouble = ""  # why the last one was not saved; empty: it was
        self._attempt: _CheckpointAttempt | None = None
        self._requested = False  # a new one is to begin
        self._next_at: int | None = None
        self._not_before = 0
        self._retries = 0
        self._token = 0
        self._number = 0  # the highest there was: servers remember what they wrote under it
        self._seconds = 0.0
        self._last_saved = (-1, -1)  # generation and steps of the last one
        self._numbers: dict[int, int] = {}  # by steps
        self._losses: dict[int, float] = {}
        self._waiting: list[tuple[str, int]] = []  # requests to answer when the next one is saved

    @property
    def in_progress(self) -> bool:
        """One is being written, or was interrupted by a change of members and is retried."""
        return self._attempt is not None or self._retries > 0

    @property
    def newest(self) -> str:
        return str(checkpoint.folder_of(self.root, self.saved)) if self.saved else ""

    def save(self, sender: str, request: int) -> list[Effect]:
        if not self.has_folder:
            return [Send(sender, m.Refusal(request, "setting", _NO_FOLDER))]
        if (sender, request) in self._waiting:
            return [Send(sender, m.RequestHeld(request, "the checkpoint that is being written"))]
        self._waiting.append((sender, request))
        self.soon()
        return []

    def _answer(self) -> list[Effect]:
        if self._requested or self._attempt is not None:
            return []
        waiting, self._waiting = self._waiting, []
        if not self.trouble:
            return [Send(name, m.Done(request)) for name, request in waiting]
        why = f"no checkpoint was saved: {self.trouble}; fix that, and save again"
        return [Send(name, m.Refusal(request, "disk", why)) for name, request in waiting]

    def soon(self) -> None:
        self._requested, self._not_before = True, 0

    def evaluated(self, effects: Sequence[Effect]) -> list[Effect]:
        """Among these effects a model may have been evaluated: its checkpoint may be the best."""
        events = [one.event for one in effects if isinstance(one, Tell) and isinstance(one.event, Evaluated)]
        return [one for event in events for one in self.judged(event.steps, event.test_loss)]

    def judged(self, steps: int, loss: float) -> list[Effect]:
        """The model as it was after so many steps has this loss: its checkpoint may be the best."""
        remember(self._losses, steps, loss, _REMEMBERED)
        if (number := self._numbers.get(steps)) is None:
            return []
        return [self._store(lambda: checkpoint.mark_best(self.disk, self.root, number, loss))]

    def tick(self, now: int, number: int, view: Callable[[], m.View], run: Scheduler | BareStore) -> list[Effect]:
        """To be called after every event; ``number`` is that of the newest view."""
        return [*self._advance(now, number, view, run), *self._answer()] if self.has_folder else []

    def _advance(self, now: int, number: int, view: Callable[[], m.View], run: Scheduler | BareStore) -> list[Effect]:
        self._seconds = run.seconds
        if self._next_at is None and self.every is not None:
            self._next_at = now + self.every
        attempt = self._attempt
        if attempt is None:
            due = self._requested or (self._next_at is not None and now >= self._next_at)
            return self._begin(now, view(), run) if due and now >= self._not_before else []
        if attempt.token:
            return self._warn_stalled(now, attempt)
        if attempt.view is None:
            return self._ask_all(now, attempt, view(), run)
        if attempt.checked_view != number:
            newest = view()
            if newest.generation != attempt.view.generation or _owners(newest) != attempt.owners:
                return self._retry(now, attempt, "servers came or went")
            attempt.checked_view = number
        missing = [key for key in attempt.owners if key not in attempt.written]
        if not missing:
            return self._finish(attempt, run)
        if now - attempt.last_written > self.timing.snap_within:
            late = ", ".join(sorted({attempt.owners[key][0] for key in missing}))
            return self._fail(now, attempt, f"{late} wrote nothing for {self.timing.snap_within / limits.SECOND:g} s")
        return self._ask(now, attempt) if now - attempt.asked_at >= self.timing.snap_again else []

    def snapped(self, now: int, sender: str, snapped: m.Snapped) -> list[Effect]:
        attempt = self._attempt
        if attempt is None or attempt.view is None or snapped.number != attempt.number or attempt.finishing:
            return []
        if (sender, snapped.incarnation) not in attempt.owners.values():
            return []
        if snapped.error.startswith(LATE):
            return self._retry(now, attempt, f"{sender} was asked {snapped.error}")
        if snapped.error:
            return self._fail(now, attempt, f"{sender} {snapped.error}")
        for written in snapped.written:
            if attempt.owners.get((written.table, written.segment)) == (sender, snapped.incarnation):
                attempt.written.setdefault((written.table, written.segment), written)
                attempt.last_written = now
        return []

    def stored(self, now: int, event: Stored) -> list[Effect]:
        attempt = self._attempt
        if attempt is None or event.token != attempt.token:
            return []  # a folder removed, a best one marked: nothing to do if that failed
        attempt.token = 0
        if event.error is not None:
            reason = getattr(event.error, "strerror", None) or str(event.error) or type(event.error).__name__
            return self._fail(now, attempt, f"cannot write to {self.root}: {reason}")
        if not attempt.finishing:
            attempt.number = self._number = int(event.result)
            return []
        return self._done(now, attempt, event.result)

    def _begin(self, now: int, view: m.View, run: Scheduler | BareStore) -> list[Effect]:
        cut = run.cut
        if (why := _not_now(view, cut)) != "":
            return self._retry(now, None, why)
        if not self._requested and self._last_saved == (view.generation, run.steps if cut == m.NO_CLOCK else cut):
            self._next_at = now + self.every if self.every is not None else None  # nothing is new
            return []
        above = self._number
        store = self._store(lambda: checkpoint.prepare(self.disk, self.root, above, self.group))
        self._attempt = _CheckpointAttempt(now, store.token, self._requested)
        self._requested = False
        return [store]

    def _ask_all(self, now: int, attempt: _CheckpointAttempt, view: m.View, run: Scheduler | BareStore) -> list[Effect]:
        cut = run.cut
        why = _not_now(view, cut)
        if why or cut is None:
            return self._retry(now, attempt, why)
        attempt.clock, attempt.steps = cut, run.steps if cut == m.NO_CLOCK else cut
        attempt.state = run.state(cut)
        attempt.view, attempt.owners, attempt.checked_view = view, _owners(view), view.number
        attempt.last_written = now
        return self._ask(now, attempt)

    def _ask(self, now: int, attempt: _CheckpointAttempt) -> list[Effect]:
        """Ask each server for each table that it has not written in full; repeats are harmless."""
        view, number, attempt.asked_at = attempt.view, attempt.number, now
        assert view is not None
        folder = str(checkpoint.folder_of(self.root, number))
        clocks = {t.number: attempt.clock if isinstance(t.spec.apply, Step) else m.NO_CLOCK for t in view.tables}
        who = dict.fromkeys((attempt.owners[key][0], key[0]) for key in attempt.owners if key not in attempt.written)
        return [Send(to, m.Snap(number, table, view.number, folder, clocks[table])) for to, table in who]

    def _finish(self, attempt: _CheckpointAttempt, run: Scheduler | BareStore) -> list[Effect]:
        assert attempt.view is not None
        manifest = checkpoint.Manifest(
            group=self.group,
            number=attempt.number,
            generation=attempt.view.generation,
            job=self.job,
            steps=attempt.steps,
            loss=self._losses.get(attempt.steps),
            tables=[checkpoint.SavedTable(t.number, t.name, t.spec, t.starts) for t in attempt.view.tables],
            segments=[attempt.written[key] for key in attempt.owners],
            state=msgspec.Raw(msgspec.json.encode(run.completed(attempt.state))),
        )
        attempt.finishing, attempt.bytes = True, manifest.bytes
        store = self._store(lambda: self._save(manifest))
        attempt.token = store.token
        return [store]

    def _save(self, manifest: checkpoint.Manifest) -> str:
        """On the disk thread. What is wrong with the rest when the checkpoint itself is saved."""
        checkpoint.finish(self.disk, checkpoint.folder_of(self.root, manifest.number), manifest)
        try:
            if manifest.loss is not None:
                checkpoint.mark_best(self.disk, self.root, manifest.number, manifest.loss)
            checkpoint.prune(self.disk, self.root, self.keep)
        except OSError as error:
            return f"old checkpoints cannot be removed: {error.strerror}"
        return ""

    def _done(self, now: int, attempt: _CheckpointAttempt, trouble: str) -> list[Effect]:
        assert attempt.view is not None
        self._attempt = None
        self.saved, self.failures, self._retries, self.trouble = attempt.number, 0, 0, ""
        self._last_saved = (attempt.view.generation, attempt.steps)
        self._next_at = None if self.every is None else max(now, attempt.began + self.every)
        remember(self._numbers, attempt.steps, attempt.number, _REMEMBERED)
        took = (now - attempt.began) / limits.SECOND
        saved = Saved(seconds=self._seconds, number=attempt.number, steps=attempt.steps, bytes=attempt.bytes, took=took)
        effects: list[Effect] = [Tell(saved)]
        if trouble:
            effects.append(Tell(Warned(seconds=self._seconds, what=trouble)))
        return effects

    def _warn_stalled(self, now: int, attempt: _CheckpointAttempt) -> list[Effect]:
        if attempt.stalled or now - attempt.began <= self.timing.snap_within:
            return []
        attempt.stalled = True
        what = f"the disk of {self.root} has been writing for more than {self.timing.snap_within / limits.SECOND:g} s"
        return [Tell(Warned(seconds=self._seconds, what=f"{what}: no checkpoint is saved until it is done"))]

    def _retry(self, now: int, attempt: _CheckpointAttempt | None, why: str) -> list[Effect]:
        """Members or segments changed: retry soon, and warn only if that goes on."""
        requested = self._requested or (attempt is not None and attempt.requested)
        self._retries += requested or attempt is not None
        if self._retries >= _QUIET_RETRIES:
            self._retries = 0
            return self._fail(now, attempt, f"{why}, {_QUIET_RETRIES} times in a row")
        wait = self.timing.save_retry
        if attempt is None and not requested and self.every is not None:
            wait = min(wait, self.every)  # the first of a short interval is not a second late
        self._not_before, self._requested = now + wait, requested
        return self._give_up(attempt)

    def _fail(self, now: int, attempt: _CheckpointAttempt | None, why: str) -> list[Effect]:
        self.failures, self.trouble = self.failures + 1, why
        wait = min(self.timing.save_retry << min(self.failures - 1, 30), self.timing.save_retry_most)
        self._next_at = self._not_before = now + wait
        self._requested = self._requested and attempt is not None  # else it was this one
        what = f"no checkpoint was saved: {why}; the last one is kept, the next try is in {wait / limits.SECOND:g} s"
        return [Tell(Warned(seconds=self._seconds, what=what)), *self._give_up(attempt)]

    def _give_up(self, attempt: _CheckpointAttempt | None) -> list[Effect]:
        self._attempt = None
        if attempt is None or not attempt.number:
            return []
        return [self._store(lambda: checkpoint.abandon(self.disk, checkpoint.folder_of(self.root, attempt.number)))]

    def _store(self, function: Callable[[], object]) -> Store:
        self._token += 1
        return Store(self._token, function)


def _not_now(view: m.View, cut: int | None) -> str:
    if not view.tables:
        return "there is no table yet"
    if not all(place.servers for table in view.tables for place in table.places):
        return "some segments have no server"
    if cut is None:
        return "no step could be cut"
    if cut == m.NO_CLOCK and any(isinstance(table.spec.apply, Step) for table in view.tables):
        return "a table knows steps, and the run does not"
    return ""


def _owners(view: m.View) -> Owners:
    lives = {member.name: member.incarnation for member in view.members}
    return {
        (table.number, segment): (place.servers[0], lives.get(place.servers[0], 0)) if place.servers else ("", 0)
        for table in view.tables
        for segment, place in enumerate(table.places)
    }


_SEARCH = -2  # token of the search for the newest checkpoint
_RETURN = 3 * limits.SECOND  # a server that was lost may be started again meanwhile


class BareStore(msgspec.Struct, frozen=True):
    """A store without a run, for a checkpoint: it has no steps, and is cut as it is."""

    incarnations: int  # given out by then: their pushes are in the ledgers, so none is given again

    seconds: ClassVar[float] = 0.0
    steps: ClassVar[int] = 0
    cut: ClassVar[int] = m.NO_CLOCK

    def state(self, cut: int) -> BareStore:
        return self

    def completed(self, state: BareStore) -> BareStore:
        return state


class CheckpointManager:
    """The checkpoints of one run or store, if it has any, and the rollback to one.

    When no server holds some segment any more, the newest complete checkpoint is looked for
    (damaged ones are named and passed over). The tables are made again from it under a new
    generation, all members but the servers are fenced and join again, and the slots counted since
    are dealt again. Without a checkpoint the run begins again.
    """

    def __init__(self, writer: CheckpointWriter | None = None) -> None:
        self.writer = writer or CheckpointWriter()
        self._lost: tuple[int, str] | None = None  # since when, and why
        self._servers = 0  # the most there were
        self._searching = False
        self._no_workers = False  # no worker is there

    def lost(self, now: int, why: str) -> None:
        self._lost = self._lost or (now, why)

    def tick(self, now: int, of: CoordinatorState) -> list[Effect]:
        roster, scheduler = of.roster, of.scheduler
        self._servers = max(self._servers, len(roster.servers()))
        if scheduler is not None:
            if roster.assignment.has_lost() and not scheduler.ended:
                self.lost(now, "no server holds some segment of the model")
                return self._search(now, of)
            if scheduler.alone_since and not self._no_workers:
                self.writer.soon()  # if no worker comes, this is all that is left
            self._no_workers = bool(scheduler.alone_since)
        run = scheduler or BareStore(roster.incarnations)
        return self.writer.tick(now, of.view.number, lambda: groups.group_view(of.view, ""), run)

    def stored(self, now: int, event: Stored, of: CoordinatorState) -> list[Effect]:
        return self._roll_back(now, event, of) if event.token == _SEARCH else self.writer.stored(now, event)

    def _search(self, now: int, of: CoordinatorState) -> list[Effect]:
        assert self._lost is not None
        here = len(of.roster.servers())
        if self._searching or not here or (here < self._servers and now - self._lost[0] < _RETURN):
            return []  # one that is started again shares the work
        self._searching, writer = True, self.writer
        found = partial(checkpoint.newest, writer.disk, writer.root, writer.job)
        return [Store(_SEARCH, found if writer.has_folder else lambda: (None, []))]

    def _roll_back(self, now: int, event: Stored, of: CoordinatorState) -> list[Effect]:
        self._searching = False
        scheduler, roster = of.scheduler, of.roster
        if self._lost is None or scheduler is None or not roster.assignment.has_lost() or not roster.servers():
            return []
        if event.error is not None:
            return scheduler.fail(f"{self._lost[1]}, and no checkpoint can be read: {event.error}")
        found, refused = event.result
        (_, why), self._lost = self._lost, None
        effects: list[Effect] = []
        for one in refused:
            effects += scheduler.warn(f"passed over: {one}")
        state, counted, number, origins = None, [], None, {}
        if found is not None:
            folder, manifest = found
            number = manifest.number
            state = msgspec.json.decode(manifest.state, type=ScheduleState)
            counted = state.counted
            if scheduler.workload.step is None:  # every segment was cut at a moment of its own
                books = (one.books for one in manifest.segments)
                counted = counted_everywhere(books, scheduler.workload.per_pass)
            origins = {table.name: (list(table.starts), str(folder)) for table in manifest.tables}
        roster.roll_back(origins)
        return [*effects, *scheduler.rollback(now, state, counted, why, number)]

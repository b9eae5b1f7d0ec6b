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
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.roster import remember
from shoal.events import Evaluated, Saved, Warned
from shoal.files import Disk
from shoal.nodes.scheduler_journal import ScheduleState, counted_everywhere
from shoal.store.checkpoint import manifest as checkpoint
from shoal.store.checkpoint.writer import LATE
from shoal.tables import Step
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Store, Stored, Tell

if TYPE_CHECKING:
    from shoal.nodes.coordinator import Coordinator
    from shoal.nodes.scheduler import Scheduler

_QUIET = 5  # tries in a row without a fault before a warning
_REMEMBERED = 16  # steps whose checkpoint or loss is remembered until the other is there
_NO_FOLDER = (
    "nothing is saved, for there is no folder to save it in: give one (shoal.local(folder=...), shoal launch coordinator "
    "--out FOLDER), or in a run out=FOLDER and a checkpoint.every that is not inf"
)

Owners = dict[tuple[int, int], tuple[str, int]]  # table, segment -> primary, its incarnation


@dataclass(slots=True)
class _CheckpointAttempt:
    began: int
    token: int  # of what the disk is doing for it, if it is
    wanted: bool  # somebody asked for it
    number: int = 0
    view: m.View | None = None  # by which servers were asked; None: not yet
    owners: Owners = field(default_factory=dict)
    steps: int = 0
    clock: int = m.NO_CLOCK
    state: Any = None  # of the run
    asked: int = 0
    heard: int = 0  # when something was last written
    checked: int = 0  # the newest view in which the owners were still the same
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
        self.saved = 0  # the number of the last one that is on disk, of this life
        self.failures = 0  # in a row
        self.trouble = ""  # why the last one was not saved; empty: it was
        self._try: _CheckpointAttempt | None = None
        self._wanted = False  # one that begins from now on
        self._due: int | None = None
        self._not_before = 0
        self._quiet = 0
        self._token = 0
        self._number = 0  # the highest there was: servers remember what they wrote under it
        self._seconds = 0.0
        self._last = (-1, -1)  # generation and steps of the last one
        self._numbers: dict[int, int] = {}  # by steps
        self._losses: dict[int, float] = {}
        self._waiting: list[tuple[str, int]] = []  # who is answered when the next one is saved

    @property
    def is_under_way(self) -> bool:
        """One is being written, or was given up through nobody's fault, and is tried again."""
        return self._try is not None or self._quiet > 0

    @property
    def newest(self) -> str:
        return str(checkpoint.folder_of(self.root, self.saved)) if self.saved else ""

    def save(self, sender: str, request: int) -> list[Effect]:
        if not self.has_folder:
            return [Send(sender, m.Refusal(request, "setting", _NO_FOLDER))]
        if (sender, request) in self._waiting:
            return [Send(sender, m.PushHeld(request, "the checkpoint that is being written"))]
        self._waiting.append((sender, request))
        self.soon()
        return []

    def _answer(self) -> list[Effect]:
        if self._wanted or self._try is not None:
            return []
        waiting, self._waiting = self._waiting, []
        if not self.trouble:
            return [Send(name, m.Done(request)) for name, request in waiting]
        why = f"no checkpoint was saved: {self.trouble}; mend that, and save again"
        return [Send(name, m.Refusal(request, "disk", why)) for name, request in waiting]

    def soon(self) -> None:
        self._wanted, self._not_before = True, 0

    def evaluated(self, effects: Sequence[Effect]) -> list[Effect]:
        """Among these effects a model may have been judged: its checkpoint may be the best."""
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
        if self._due is None and self.every is not None:
            self._due = now + self.every
        one = self._try
        if one is None:
            due = self._wanted or (self._due is not None and now >= self._due)
            return self._begin(now, view(), run) if due and now >= self._not_before else []
        if one.token:
            return self._stalls(now, one)
        if one.view is None:
            return self._ask_all(now, one, view(), run)
        if one.checked != number:
            newest = view()
            if newest.generation != one.view.generation or _owners(newest) != one.owners:
                return self._again(now, one, "servers came or went")
            one.checked = number
        missing = [key for key in one.owners if key not in one.written]
        if not missing:
            return self._finish(one, run)
        if now - one.heard > self.timing.snap_within:
            late = ", ".join(sorted({one.owners[key][0] for key in missing}))
            return self._fail(now, one, f"{late} wrote nothing for {self.timing.snap_within / limits.SECOND:g} s")
        return self._ask(now, one) if now - one.asked >= self.timing.snap_again else []

    def snapped(self, now: int, sender: str, snapped: m.Snapped) -> list[Effect]:
        one = self._try
        if one is None or one.view is None or snapped.number != one.number or one.finishing:
            return []
        if (sender, snapped.incarnation) not in one.owners.values():
            return []
        if snapped.error.startswith(LATE):
            return self._again(now, one, f"{sender} was asked {snapped.error}")
        if snapped.error:
            return self._fail(now, one, f"{sender} {snapped.error}")
        for written in snapped.written:
            if one.owners.get((written.table, written.segment)) == (sender, snapped.incarnation):
                one.written.setdefault((written.table, written.segment), written)
                one.heard = now
        return []

    def stored(self, now: int, event: Stored) -> list[Effect]:
        one = self._try
        if one is None or event.token != one.token:
            return []  # a folder removed, a best one marked: nothing to do if that failed
        one.token = 0
        if event.error is not None:
            reason = getattr(event.error, "strerror", None) or str(event.error) or type(event.error).__name__
            return self._fail(now, one, f"cannot write to {self.root}: {reason}")
        if not one.finishing:
            one.number = self._number = int(event.result)
            return []
        return self._done(now, one, event.result)

    def _begin(self, now: int, view: m.View, run: Scheduler | BareStore) -> list[Effect]:
        cut = run.cut
        if (why := _not_now(view, cut)) != "":
            return self._again(now, None, why)
        if not self._wanted and self._last == (view.generation, run.steps if cut == m.NO_CLOCK else cut):
            self._due = now + self.every if self.every is not None else None  # nothing is new
            return []
        above = self._number
        store = self._store(lambda: checkpoint.prepare(self.disk, self.root, above, self.group))
        self._try = _CheckpointAttempt(now, store.token, self._wanted)
        self._wanted = False
        return [store]

    def _ask_all(self, now: int, one: _CheckpointAttempt, view: m.View, run: Scheduler | BareStore) -> list[Effect]:
        cut = run.cut
        why = _not_now(view, cut)
        if why or cut is None:
            return self._again(now, one, why)
        one.clock, one.steps = cut, run.steps if cut == m.NO_CLOCK else cut
        one.state = run.state(cut)
        one.view, one.owners, one.checked = view, _owners(view), view.number
        one.heard = now
        return self._ask(now, one)

    def _ask(self, now: int, one: _CheckpointAttempt) -> list[Effect]:
        """Ask each server for each table that it has not written in full; repeats are harmless."""
        assert one.view is not None
        one.asked = now
        folder = str(checkpoint.folder_of(self.root, one.number))
        clocks = {t.number: one.clock if isinstance(t.spec.apply, Step) else m.NO_CLOCK for t in one.view.tables}
        who = dict.fromkeys((one.owners[key][0], key[0]) for key in one.owners if key not in one.written)
        return [Send(to, m.Snap(one.number, table, one.view.number, folder, clocks[table])) for to, table in who]

    def _finish(self, one: _CheckpointAttempt, run: Scheduler | BareStore) -> list[Effect]:
        assert one.view is not None
        manifest = checkpoint.Manifest(
            group=self.group,
            number=one.number,
            generation=one.view.generation,
            job=self.job,
            steps=one.steps,
            loss=self._losses.get(one.steps),
            tables=[checkpoint.SavedTable(t.number, t.name, t.spec, t.starts) for t in one.view.tables],
            segments=[one.written[key] for key in one.owners],
            state=msgspec.Raw(msgspec.json.encode(run.completed(one.state))),
        )
        one.finishing, one.bytes = True, manifest.bytes
        store = self._store(lambda: self._save(manifest))
        one.token = store.token
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

    def _done(self, now: int, one: _CheckpointAttempt, trouble: str) -> list[Effect]:
        assert one.view is not None
        self._try = None
        self.saved, self.failures, self._quiet, self.trouble = one.number, 0, 0, ""
        self._last = (one.view.generation, one.steps)
        self._due = None if self.every is None else max(now, one.began + self.every)
        remember(self._numbers, one.steps, one.number, _REMEMBERED)
        took = (now - one.began) / limits.SECOND
        saved = Saved(seconds=self._seconds, number=one.number, steps=one.steps, bytes=one.bytes, took=took)
        effects: list[Effect] = [Tell(saved)]
        if trouble:
            effects.append(Tell(Warned(seconds=self._seconds, what=trouble)))
        return effects

    def _stalls(self, now: int, one: _CheckpointAttempt) -> list[Effect]:
        if one.stalled or now - one.began <= self.timing.snap_within:
            return []
        one.stalled = True
        what = f"the disk of {self.root} has been writing for more than {self.timing.snap_within / limits.SECOND:g} s"
        return [Tell(Warned(seconds=self._seconds, what=f"{what}: no checkpoint is saved until it is done"))]

    def _again(self, now: int, one: _CheckpointAttempt | None, why: str) -> list[Effect]:
        """Nobody's fault: try again soon, and say so only if that goes on."""
        wanted = self._wanted or (one is not None and one.wanted)
        self._quiet += wanted or one is not None
        if self._quiet >= _QUIET:
            self._quiet = 0
            return self._fail(now, one, f"{why}, {_QUIET} times in a row")
        wait = self.timing.save_retry
        if one is None and not wanted and self.every is not None:
            wait = min(wait, self.every)  # the first of a short interval is not a second late
        self._not_before, self._wanted = now + wait, wanted
        return self._give_up(one)

    def _fail(self, now: int, one: _CheckpointAttempt | None, why: str) -> list[Effect]:
        self.failures, self.trouble = self.failures + 1, why
        wait = min(self.timing.save_retry << min(self.failures - 1, 30), self.timing.save_retry_most)
        self._due = self._not_before = now + wait
        self._wanted = self._wanted and one is not None  # else it was this one that was wanted
        what = f"no checkpoint was saved: {why}; the last one is kept, the next try is in {wait / limits.SECOND:g} s"
        return [Tell(Warned(seconds=self._seconds, what=what)), *self._give_up(one)]

    def _give_up(self, one: _CheckpointAttempt | None) -> list[Effect]:
        self._try = None
        if one is None or not one.number:
            return []
        return [self._store(lambda: checkpoint.abandon(self.disk, checkpoint.folder_of(self.root, one.number)))]

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


_LOOK = -2  # token of the look for the newest checkpoint
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
        self._looking = False
        self._alone = False  # no worker is there

    def lost(self, now: int, why: str) -> None:
        self._lost = self._lost or (now, why)

    def tick(self, now: int, of: Coordinator) -> list[Effect]:
        roster, scheduler = of.roster, of.scheduler
        self._servers = max(self._servers, len(roster.servers()))
        if scheduler is not None:
            if roster.assignment.has_lost() and not scheduler.ended:
                self.lost(now, "a segment of the model is held by nobody")
                return self._look(now, of)
            if scheduler.alone_since and not self._alone:
                self.writer.soon()  # if no worker comes, this is all that is left
            self._alone = bool(scheduler.alone_since)
        run = scheduler or BareStore(roster.incarnations)
        return self.writer.tick(now, of.view.number, lambda: groups.part_of(of.view, ""), run)

    def stored(self, now: int, event: Stored, of: Coordinator) -> list[Effect]:
        return self._go_back(now, event, of) if event.token == _LOOK else self.writer.stored(now, event)

    def _look(self, now: int, of: Coordinator) -> list[Effect]:
        assert self._lost is not None
        here = len(of.roster.servers())
        if self._looking or not here or (here < self._servers and now - self._lost[0] < _RETURN):
            return []  # one that is started again shares the work
        self._looking, writer = True, self.writer
        found = partial(checkpoint.newest, writer.disk, writer.root, writer.job)
        return [Store(_LOOK, found if writer.has_folder else lambda: (None, []))]

    def _go_back(self, now: int, event: Stored, of: Coordinator) -> list[Effect]:
        self._looking = False
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

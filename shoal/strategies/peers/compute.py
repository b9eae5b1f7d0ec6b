"""The work of one peer on its copy of the model, and what of it is not published yet.

The model is touched in *visits* only: one computation at a time, off the loop's thread. A visit
adds what others changed, learns from slots, takes what that changed and makes copies, in this
order. Learning and taking in one visit means that no change is lost in between. What was known when
a visit began is kept with it: copies and evaluations are of exactly that moment.

A visit learns for about 25 ms, or up to the rows after which it publishes. While the others are
behind it does not publish, and what it learns is added to the next word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal import limits
from shoal.emulation import Slowdown
from shoal.errors import BadValues
from shoal.schedule.intervals import Intervals, Runs, count
from shoal.wire.effects import Compute
from shoal.wire.messages import peers as p

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Change = tuple[Keys, Floats]

CHUNK = 25 * limits.MILLISECOND
COMPUTED, COMMUNICATED, IDLE = range(3)
_DECAY = 0.8  # of what was known about the pace, with each new measurement
_MOST = 1.0  # seconds of delay that are made up for: a machine that slept longer did not work


class Replica(Protocol):
    """One peer's copy of the model. A key is the number of a weight."""

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]: ...  # sum of losses; rows
    def take(self) -> Change: ...  # what was learned since the last call
    def add(self, keys: Keys, values: Floats) -> None: ...  # what others changed
    def snapshot(self) -> Floats: ...  # a copy of the weights and the state of the update rule
    def restore(self, slab: Floats) -> None: ...
    def weights(self) -> Floats: ...  # a copy


@dataclass(slots=True)
class Visit:
    """What to do, in this order; what was known when it began; and its results."""

    restore: Floats | None = None
    add: list[Change] = field(default_factory=list)
    run: Runs = field(default_factory=list)
    continues: bool = False  # the last visit learned, too, and there was no wait in between
    take: bool = False
    weigh: bool = False
    copy: bool = False
    owned: bool = False  # what is taken must not be in a copy: its owners have not published it
    without: list[Change] = field(default_factory=list)  # neither must these
    began: int = 0
    version: p.Heard = field(default_factory=dict)
    state: bytes = b""  # of the log, if a copy is made
    progress: tuple[int, int, tuple[float, int]] = (0, 0, (0.0, 0))  # slots, rows, loss in the log
    seen: int = 0  # changes of others
    receivers: list[str] = field(default_factory=list)  # newcomers that get the copy
    published: list[p.Word] = field(default_factory=list)  # by us since then
    loss: float = 0.0
    rows: int = 0
    change: Change | None = None
    weights: Floats | None = None
    slab: Floats | None = None


def run_visit(replica: Replica, visit: Visit, pacer: Pacer | None) -> Visit:
    """Visit the model; ``pacer`` emulates that rows take longer than they do."""
    if pacer is not None and not visit.continues:
        pacer.begin()
    if visit.restore is not None:
        replica.restore(visit.restore)
    for keys, values in visit.add:
        replica.add(keys, values)
    if visit.run:
        visit.loss, visit.rows = replica.run(visit.run)
        if not np.isfinite(visit.loss):
            raise BadValues(f"the loss is {visit.loss}: take a smaller step (--set update.step=...)")
        if pacer is not None:
            pacer.end(visit.rows)
    if visit.take:
        visit.change = replica.take()
        if not np.isfinite(visit.change[1]).all():
            raise BadValues("weights are not finite any more: take a smaller step (--set update.step=...)")
    if visit.weigh:
        visit.weights = replica.weights()
    if visit.copy:
        taken = [visit.change] if visit.owned and visit.change is not None else []
        visit.slab = _copy_without(replica, [*visit.without, *taken])
    return visit


def _copy_without(replica: Replica, changes: Sequence[Change]) -> Floats:
    """A snapshot without changes that are on their way: its receiver hears of them later."""
    for keys, values in changes:
        replica.add(keys, -values)
    slab = replica.snapshot()
    for keys, values in changes:
        replica.add(keys, values)
    return slab


class Pacer:
    """Makes rows take as long as is emulated; a wait that was too long shortens the next."""

    def __init__(self, pace: Slowdown, clock: Callable[[], int], wait: Callable[[float], object]) -> None:
        """``clock`` gives nanoseconds, ``wait`` takes seconds."""
        self._pace, self._clock, self._wait, self._since = pace, clock, wait, clock()
        self._over = 0.0  # seconds that were waited too long

    def begin(self) -> None:
        self._since = self._clock()

    def end(self, rows: int) -> None:
        now = self._clock()
        delay = self._pace.extra(rows, (now - self._since) / limits.SECOND)
        wanted = max(0.0, delay - self._over)
        self._over = max(0.0, self._over - delay)
        if wanted:
            self._wait(wanted)
        self._since = self._clock()
        self._over = min(self._over + max(0.0, (self._since - now) / limits.SECOND - wanted), _MOST)


@dataclass(slots=True)
class Unpublished:
    slots: Intervals = field(default_factory=Intervals)
    rows: int = 0
    loss: float = 0.0
    seen: int = 0  # changes of others that each of the slots knew of, summed


class PeerCompute:
    """Plans the visits of one peer, one at a time."""

    def __init__(self, replica: Replica, every: int, batch: int, pacer: Pacer | None) -> None:
        """It publishes after ``every`` rows; a slot has ``batch`` rows."""
        self._replica, self._every_rows, self._batch, self._pacer = replica, every, batch, pacer
        self.todo, self.unpublished = Intervals(), Unpublished()
        self.inbox: list[Change] = []
        self.model: Floats | None = None  # to start with
        self.running: Visit | None = None
        self._pace = 0.0  # nanoseconds a slot
        self._learned = False  # in the last visit
        self._first = 0  # rows until it publishes for the first time
        self._spent, self._mark = [0, 0, 0], -1  # nanoseconds

    @property
    def is_idle(self) -> bool:
        return self.running is None and not self.inbox and self.model is None

    def stagger(self, place: int, of: int) -> None:
        """Publish first after a part of the rows, by our place: not all at one moment."""
        self._first = self._first or max(1, self._every_rows * (place + 1) // of)

    def plan(
        self, *, learns: bool, may_publish: bool = False, weighs: bool = False, copies: bool = False
    ) -> Visit | None:
        visit = Visit(self.model, self.inbox, weigh=weighs, copy=copies)
        self.model, self.inbox = None, []
        # Slots until the changes of others are added, or until it publishes.
        most = max(1, math.floor(CHUNK / self._pace)) if self._pace else 1
        every, rows = self._first or self._every_rows, self.unpublished.rows
        if may_publish:
            most = min(most, max(1, -(-(every - rows) // self._batch)))
        visit.run = self.todo.pop(most) if learns else []
        visit.continues = self._learned and bool(visit.run)
        rows += count(visit.run) * self._batch
        due = not learns or weighs or copies or (may_publish and (rows >= every or not self.todo))
        visit.take = due and bool(self.unpublished.slots or visit.run)
        if visit.take and visit.run:
            self._first = self._every_rows
        if visit.add or visit.run or visit.take or weighs or copies or visit.restore is not None:
            return visit
        self._learned = False
        return None

    def start(self, now: int, visit: Visit) -> Compute:
        self._spend(now, COMPUTED if visit.continues else IDLE)
        self.running, visit.began = visit, now
        return Compute(0, partial(run_visit, self._replica, visit, self._pacer))

    def end(self, now: int) -> Visit:
        visit, self.running = self.running, None
        assert visit is not None
        self._learned = bool(visit.run)
        self._spend(now, COMPUTED if visit.run else COMMUNICATED)
        took, slots, new = now - visit.began, count(visit.run), self.unpublished
        if slots:
            self._pace = _DECAY * self._pace + (1 - _DECAY) * took / slots if self._pace else took / slots
            new.slots.add(visit.run)
            new.rows, new.loss, new.seen = new.rows + visit.rows, new.loss + visit.loss, new.seen + visit.seen * slots
        return visit

    def word(self, moved: tuple[int, int], others: int) -> p.Learned:
        """What is published now, after we have heard so many changes of ``others``."""
        new, self.unpublished = self.unpublished, Unpublished()
        spent, self._spent = [one // 1_000 for one in self._spent], [0, 0, 0]
        seen = new.seen // new.slots.size if new.slots else others
        return p.Learned(new.slots.runs, new.rows, new.loss, spent, moved, 0, max(0, others - seen))

    def drop(self) -> Runs:
        """Learn nothing more; the slots that were left."""
        runs, self.todo = self.todo.runs, Intervals()
        return runs

    def forget(self) -> None:
        self.unpublished, self.todo = Unpublished(), Intervals()

    def _spend(self, now: int, kind: int) -> None:
        """The time since the last call went to this."""
        self._spent[kind] += max(0, now - self._mark) if self._mark >= 0 else 0
        self._mark = now

"""The work of one peer on its copy of the model, and what of it is not published yet.

The model is touched in *visits* only: one computation at a time, off the loop's thread. A visit
adds what others changed, learns from slots, takes what that changed and makes copies, in this
order. Learning and taking in one visit means that no change is lost in between.

A visit learns for about 25 ms, or up to the rows after which it publishes. While the others are
behind it does not publish, and what it learns is added to the next word. What was known when a
visit began is kept with it: copies and evaluations are of exactly that moment.
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

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]:
        """Learn from these: the sum of the losses, and the rows."""

    def take(self) -> Change:
        """What was learned since the last call."""

    def add(self, keys: Keys, values: Floats) -> None:
        """Add what others changed."""

    def snapshot(self) -> Floats:
        """A copy of everything: the weights, and the state of the update rule."""

    def restore(self, slab: Floats) -> None: ...

    def weights(self) -> Floats:
        """A copy."""


# ---------------------------------------------------------------- one visit


@dataclass(slots=True)
class Visit:
    """What to do, in this order; and what was known when it began."""

    restore: Floats | None = None
    add: list[Change] = field(default_factory=list)
    run: Runs = field(default_factory=list)
    continues: bool = False  # the last visit learned, too, and there was no wait in between
    take: bool = False
    weigh: bool = False
    copy: bool = False
    owned: bool = False  # what is taken must not be in a copy: its owners have not published it
    without: list[Change] = field(default_factory=list)  # neither must these
    token: int = 0
    began: int = 0
    version: p.Heard = field(default_factory=dict)
    state: bytes = b""  # of the log, if a copy is made
    done: int = 0
    rows: int = 0
    loss: tuple[float, int] = (0.0, 0)
    knew: int = 0  # changes of others
    wanted: list[str] = field(default_factory=list)  # newcomers that get the copy
    published: list[p.Word] = field(default_factory=list)  # by us since then


@dataclass(slots=True)
class VisitResult:
    loss: float = 0.0
    rows: int = 0
    change: Change | None = None
    weights: Floats | None = None
    slab: Floats | None = None


def run_visit(replica: Replica, visit: Visit, pacer: Pacer | None) -> VisitResult:
    """Visit the model; ``pacer`` emulates that rows take longer than they do."""
    result = VisitResult()
    if pacer is not None and not visit.continues:
        pacer.begin()
    if visit.restore is not None:
        replica.restore(visit.restore)
    for keys, values in visit.add:
        replica.add(keys, values)
    if visit.run:
        result.loss, result.rows = replica.run(visit.run)
        if not np.isfinite(result.loss):
            raise BadValues(f"the loss is {result.loss}: take a smaller step (--set update.step=...)")
        if pacer is not None:
            pacer.end(result.rows)
    if visit.take:
        result.change = replica.take()
        if not np.isfinite(result.change[1]).all():
            raise BadValues("weights are not finite any more: take a smaller step (--set update.step=...)")
    if visit.weigh:
        result.weights = replica.weights()
    if visit.copy:
        taken = [result.change] if visit.owned and result.change is not None else []
        result.slab = _copy_without(replica, [*visit.without, *taken])
    return result


def _copy_without(replica: Replica, changes: Sequence[Change]) -> Floats:
    """A snapshot without changes that are on their way: its receiver hears of them later."""
    for keys, values in changes:
        replica.add(keys, -values)
    slab = replica.snapshot()
    for keys, values in changes:
        replica.add(keys, values)
    return slab


class Pacer:
    """Makes rows take as long as is emulated, without drift.

    Time that one wait took too long is taken off the next. Where visits follow each other, the time
    between them is part of the time that rows take.
    """

    def __init__(self, pace: Slowdown, clock: Callable[[], int], wait: Callable[[float], object]) -> None:
        """``clock`` gives nanoseconds, ``wait`` takes seconds."""
        self._pace, self._clock, self._wait = pace, clock, wait
        self._since = clock()
        self._over = 0.0  # seconds that were waited too long

    def begin(self) -> None:
        """It starts to compute after there was nothing to do."""
        self._since = self._clock()

    def end(self, rows: int) -> None:
        now = self._clock()
        held = self._pace.extra(rows, (now - self._since) / limits.SECOND)
        wanted = max(0.0, held - self._over)
        self._over = max(0.0, self._over - held)
        if wanted:
            self._wait(wanted)
        self._since = self._clock()
        self._over = min(self._over + max(0.0, (self._since - now) / limits.SECOND - wanted), _MOST)


# ---------------------------------------------------------------- the visits of a peer


@dataclass(slots=True)
class Unpublished:
    slots: Intervals = field(default_factory=Intervals)
    rows: int = 0
    loss: float = 0.0
    knew: int = 0  # changes of others that each of the slots knew of, summed


class PeerCompute:
    """Plans the visits of one peer, one at a time."""

    def __init__(self, replica: Replica, every: int, batch: int, pacer: Pacer | None) -> None:
        """It publishes after ``every`` rows; a slot has ``batch`` rows."""
        self._replica, self._every_rows, self._batch, self._pacer = replica, every, batch, pacer
        self.todo, self.unpublished = Intervals(), Unpublished()
        self.inbox: list[Change] = []
        self.model: Floats | None = None  # to start with
        self.running: Visit | None = None
        self._token = 0
        self._pace = 0.0  # nanoseconds a slot
        self._learned = False  # in the last visit
        self._first = 0  # rows until it publishes for the first time
        self._spent, self._mark = [0, 0, 0], -1  # nanoseconds

    @property
    def is_idle(self) -> bool:
        return self.running is None and not self.inbox and self.model is None

    def take_place(self, place: int, of: int) -> None:
        """Publish first after a part of the rows, by our place: not all at one moment."""
        if not self._first:
            self._first = max(1, self._every_rows * (place + 1) // of)

    @property
    def _every(self) -> int:
        return self._first or self._every_rows

    def plan(self, *, learns: bool, may_publish: bool, must_publish: bool, weighs: bool, copies: bool) -> Visit | None:
        if self.running is not None:
            return None
        visit = Visit(weigh=weighs, copy=copies)
        visit.restore, self.model = self.model, None
        visit.add, self.inbox = self.inbox, []
        visit.run = self.todo.pop(self._chunk(may_publish)) if learns else []
        visit.continues = self._learned and bool(visit.run)
        rows = self.unpublished.rows + count(visit.run) * self._batch
        due = must_publish or weighs or copies or (may_publish and (rows >= self._every or not self.todo))
        visit.take = due and bool(self.unpublished.slots or visit.run)
        if visit.take and visit.run:
            self._first = self._every_rows
        if visit.add or visit.run or visit.take or weighs or copies or visit.restore is not None:
            return visit
        self._learned = False
        return None

    def _chunk(self, may_publish: bool) -> int:
        """Slots until the changes of others are added, or until it publishes."""
        most = max(1, math.floor(CHUNK / self._pace)) if self._pace else 1
        if may_publish:
            most = min(most, max(1, -(-(self._every - self.unpublished.rows) // self._batch)))
        return most

    def start(self, now: int, visit: Visit) -> Compute:
        self._spend(now, COMPUTED if visit.continues else IDLE)
        self._token += 1
        self.running, visit.token, visit.began = visit, self._token, now
        return Compute(self._token, partial(run_visit, self._replica, visit, self._pacer))

    def end(self, now: int, token: int) -> Visit | None:
        """The visit that ended; None if another one runs."""
        visit = self.running
        if visit is None or token != visit.token:
            return None
        self.running, self._learned = None, bool(visit.run)
        self._spend(now, COMPUTED if visit.run else COMMUNICATED)
        return visit

    def learned(self, now: int, visit: Visit, rows: int, loss: float) -> None:
        took, slots, new = now - visit.began, count(visit.run), self.unpublished
        if slots:
            self._pace = _DECAY * self._pace + (1 - _DECAY) * took / slots if self._pace else took / slots
            new.slots.add(visit.run)
            new.rows, new.loss, new.knew = new.rows + rows, new.loss + loss, new.knew + visit.knew * slots

    def word(self, moved: tuple[int, int], others: int) -> p.Learned:
        """What is published now, after we have heard so many changes of ``others``."""
        new, self.unpublished = self.unpublished, Unpublished()
        spent, self._spent = [one // 1_000 for one in self._spent], [0, 0, 0]
        knew = new.knew // new.slots.size if new.slots else others
        return p.Learned(new.slots.runs, new.rows, new.loss, spent, moved, 0, max(0, others - knew))

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

"""One peer's model at work: which visit comes next, and what was learned and not told yet.

A visit learns for about 25 ms, or up to the rows after which it is to be told, whichever is less; before it learns it adds what others
changed meanwhile. While the others are behind, it is not told, and what is learned is added to what will be.

What was known when a visit began is kept with it (``ComputeMoment``): copies and evaluations are of that very moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

from shoal import limits
from shoal.schedule.intervals import Intervals, count
from shoal.schedule.runs import Runs
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.replica import (
    Change,
    Floats,
    Replica,
    ReplicaHold,
    SlotVisit,
    visit,
)
from shoal.strategies.peers.run_log import RunLogState
from shoal.wire.effects import Compute
from shoal.wire.messages import peers as p

CHUNK = 25 * limits.MILLISECOND
COMPUTED, COMMUNICATED, IDLE = range(3)
_KEPT = 0.8  # of what was known about the pace, when there is news


@dataclass(slots=True)
class UnsentLearning:
    """What was learned and not told yet."""

    slots: Intervals = field(default_factory=Intervals)
    rows: int = 0
    loss: float = 0.0
    knew: int = 0  # changes of others that each of the slots knew of, summed

    def add(self, runs: Runs, rows: int, loss: float, knew: int) -> None:
        self.slots.add(runs)
        self.rows += rows
        self.loss += loss
        self.knew += knew * count(runs)


@dataclass(slots=True)
class ComputeMoment:
    """What was known when a visit began."""

    version: p.Heard = field(default_factory=dict)
    state: RunLogState | None = None  # of the book, where a copy is cut
    done: int = 0
    rows: int = 0
    loss: tuple[float, int] = (0.0, 0)
    knew: int = 0  # changes of others
    wanted: list[str] = field(default_factory=list)  # newcomers who get the copy
    said: list[p.Word] = field(default_factory=list)  # by us since then


@dataclass(slots=True)
class SlotUnderway:
    """A visit that is under way."""

    token: int
    todo: SlotVisit
    moment: ComputeMoment
    began: int


class PeerCompute:
    """Of one peer."""

    def __init__(self, replica: Replica, facts: PeerFacts, hold: ReplicaHold | None) -> None:
        self._replica, self._facts, self._hold = replica, facts, hold
        self.todo, self.unsaid = Intervals(), UnsentLearning()
        self.inbox: list[Change] = []
        self.model: Floats | None = None  # to begin with
        self.under: SlotUnderway | None = None
        self._token = 0
        self._pace = 0.0  # nanoseconds a slot
        self._learned = False  # the last visit did
        self._first = 0  # rows until it tells for the first time: all at once would be too much of the same
        self._spent, self._mark = [0, 0, 0], -1  # nanoseconds

    @property
    def is_idle(self) -> bool:
        return self.under is None and not self.inbox and self.model is None

    def take_place(self, place: int, of: int) -> None:
        """Tell first after a part of the rows, by one's place among all, so that not all tell at one moment."""
        if not self._first:
            self._first = max(1, self._facts.every * (place + 1) // of)

    @property
    def _every(self) -> int:
        return self._first or self._facts.every

    def plan(self, *, learns: bool, may_tell: bool, must_tell: bool, weighs: bool, copies: bool) -> SlotVisit | None:
        """The next visit, if there is a reason for one."""
        if self.under is not None:
            return None
        todo = SlotVisit(weigh=weighs, copy=copies)
        todo.restore, self.model = self.model, None
        todo.add, self.inbox = self.inbox, []
        todo.run = self.todo.pop(self._chunk(may_tell)) if learns else []
        todo.goes_on = self._learned and bool(todo.run)
        rows = self.unsaid.rows + count(todo.run) * self._facts.slots.batch
        due = must_tell or weighs or copies or (may_tell and (rows >= self._every or not self.todo))
        todo.take = due and bool(self.unsaid.slots or todo.run)
        if todo.take and todo.run:
            self._first = self._facts.every
        if todo.add or todo.run or todo.take or weighs or copies or todo.restore is not None:
            return todo
        self._learned = False
        return None

    def _chunk(self, may_tell: bool) -> int:
        """Slots until others' changes are let in, or until it is told."""
        most = max(1, math.floor(CHUNK / self._pace)) if self._pace else 1
        if may_tell:
            most = min(most, max(1, -(-(self._every - self.unsaid.rows) // self._facts.slots.batch)))
        return most

    def start(self, now: int, todo: SlotVisit, moment: ComputeMoment) -> Compute:
        self._spend(now, COMPUTED if todo.goes_on else IDLE)
        self._token += 1
        self.under = SlotUnderway(self._token, todo, moment, now)
        return Compute(self._token, partial(visit, self._replica, todo, self._hold))

    def end(self, now: int, token: int) -> SlotUnderway | None:
        """A visit is over: which one; None if that is no news."""
        under = self.under
        if under is None or token != under.token:
            return None
        self.under, self._learned = None, bool(under.todo.run)
        self._spend(now, COMPUTED if under.todo.run else COMMUNICATED)
        return under

    def learned(self, now: int, under: SlotUnderway, rows: int, loss: float) -> None:
        took, slots = now - under.began, count(under.todo.run)
        if slots:
            self._pace = _KEPT * self._pace + (1 - _KEPT) * took / slots if self._pace else took / slots
            self.unsaid.add(under.todo.run, rows, loss, under.moment.knew)

    def word(self, moved: tuple[int, int], others: int) -> p.Learned:
        """What is to be told; from now on it is. ``others``: changes of others that were heard."""
        unsaid, self.unsaid = self.unsaid, UnsentLearning()
        spent, self._spent = [one // 1_000 for one in self._spent], [0, 0, 0]
        knew = unsaid.knew // unsaid.slots.size if unsaid.slots else others
        return p.Learned(unsaid.slots.runs, unsaid.rows, unsaid.loss, spent, moved, 0, max(0, others - knew))

    def drop(self) -> Runs:
        """Learn nothing more; what was to be learned."""
        runs, self.todo = self.todo.runs, Intervals()
        return runs

    def forget(self) -> None:
        """What was learned and not told never was."""
        self.unsaid, self.todo = UnsentLearning(), Intervals()

    def _spend(self, now: int, kind: int) -> None:
        """Everything since the last time was this."""
        self._spent[kind] += max(0, now - self._mark) if self._mark >= 0 else 0
        self._mark = now

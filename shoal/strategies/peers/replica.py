"""A peer's own copy of the model, and one visit to it: the only way in which it is ever touched.

A visit is one computation, off the loop's thread, one at a time: what others changed is added, slots are learned from, what that
changed is taken, copies are made. Learning and taking in one go is what keeps anything from being lost in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal import limits
from shoal.emulation import Slowdown
from shoal.errors import BadValues
from shoal.schedule.runs import Runs

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Change = tuple[Keys, Floats]
_MOST = 1.0  # seconds that are made up for: a machine that slept for longer was not at work


class Replica(Protocol):
    """The whole model, of one peer. A key is the number of a weight."""

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]:
        """Learn from these: the sum of the losses, and rows."""

    def take(self) -> Change:
        """What was learned since the last time, of which nobody else knows."""

    def add(self, keys: Keys, values: Floats) -> None:
        """What others changed."""

    def snapshot(self) -> Floats:
        """All of it, a copy: weights, and what the update rule keeps."""

    def restore(self, slab: Floats) -> None: ...

    def weights(self) -> Floats:
        """A copy."""


@dataclass(slots=True)
class SlotVisit:
    """What is to be done, in this order."""

    restore: Floats | None = None
    add: list[Change] = field(default_factory=list)
    run: Runs = field(default_factory=list)
    goes_on: bool = False  # the last visit learned, too, and nothing was waited for in between
    take: bool = False
    weigh: bool = False
    copy: bool = False
    owned: bool = False  # what is taken is not in what all have until its owners say so
    without: list[Change] = field(default_factory=list)  # nor is this: a copy must not have it


@dataclass(slots=True)
class SlotResult:
    """What came of it."""

    loss: float = 0.0
    rows: int = 0
    change: Change | None = None
    weights: Floats | None = None
    slab: Floats | None = None


def visit(replica: Replica, todo: SlotVisit, hold: ReplicaHold | None) -> SlotResult:
    """``hold`` emulates that rows take longer than they do."""
    found = SlotResult()
    if hold is not None and not todo.goes_on:
        hold.begin()
    if todo.restore is not None:
        replica.restore(todo.restore)
    for keys, values in todo.add:
        replica.add(keys, values)
    if todo.run:
        found.loss, found.rows = replica.run(todo.run)
        if not np.isfinite(found.loss):
            raise BadValues(f"the loss is {found.loss}: take a smaller step (--set update.step=...)")
        if hold is not None:
            hold.end(found.rows)
    if todo.take:
        found.change = replica.take()
        if not np.isfinite(found.change[1]).all():
            raise BadValues("weights are not finite any more: take a smaller step (--set update.step=...)")
    if todo.weigh:
        found.weights = replica.weights()
    if todo.copy:
        found.slab = _copy(
            replica, [*todo.without, *([found.change] if todo.owned and found.change is not None else [])]
        )
    return found


def _copy(replica: Replica, without: Sequence[Change]) -> Floats:
    """All of it but what is on its way: who gets the copy hears of that later."""
    for keys, values in without:
        replica.add(keys, -values)
    slab = replica.snapshot()
    for keys, values in without:
        replica.add(keys, values)
    return slab


class ReplicaHold:
    """Makes rows take as long as they are to be emulated, without drift: what one wait took too long the next is shorter by.

    ``clock`` in nanoseconds and ``wait`` for seconds are handed in. Where visits follow each other, what lies between them is part of
    the time that rows take.
    """

    def __init__(self, pace: Slowdown, clock: Callable[[], int], wait: Callable[[float], object]) -> None:
        self._pace, self._clock, self._wait = pace, clock, wait
        self._since = clock()
        self._over = 0.0  # seconds that were waited for too long

    def begin(self) -> None:
        """It begins to compute, after there was nothing to do."""
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

"""A worker's slots one after another, and what a strategy may do with them.

A lane belongs to one life of its worker: one that is closed hands out nothing more, so whoever still runs on it pushes nothing in
the name of the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.nodes.strategy import Slot, SlotRows
from shoal.nodes.time_accounting import COMMUNICATE, IDLE
from shoal.store.client.client import Client
from shoal.store.client.task import Task

if TYPE_CHECKING:
    from shoal.nodes.trainer import Trainer


class SlotStream:
    """One queue of slots, and one run of the strategy over it. One that is given slots ends with them."""

    def __init__(self, trainer: Trainer, slots: Sequence[int] = ()) -> None:
        self._trainer = trainer
        self.queue: deque[int] = deque(slots)
        self._ends = bool(slots)
        self._waits: Task | None = None
        self._admits: Task | None = None
        self.closed: Exception | None = None  # why this life is over

    def close(self, error: Exception) -> None:
        """This life is over: whoever still runs here meets the error, and pushes nothing in the name of the next."""
        self.closed = error
        self.queue.clear()
        for task in (self._waits, self._admits):
            if task is not None:
                task.finish(error=error)

    @property
    def client(self) -> Client:
        if self.closed is not None:
            raise self.closed
        return self._trainer.worker.client

    @property
    def over(self) -> bool:
        return (self._ends or self._trainer.over) and not self.queue

    def next(self) -> Slot | None:
        if self.closed is not None:
            raise self.closed
        if not self.queue:
            return None
        slot = self.queue.popleft()
        if len(self.queue) == self._trainer.low:
            self._trainer.ask_now()
        self._trainer.look_ahead(self.queue)
        return divmod(slot, self._trainer.slots.per_pass)

    def put_back(self, slot: Slot | None) -> None:
        if slot is not None:
            self.queue.appendleft(self._trainer.number(slot))

    def more(self) -> Task:
        self._waits = Task("another slot")
        if self.queue or self._trainer.over or self.closed is not None:
            self._waits.finish(error=self.closed)
        return self._waits

    def wake(self) -> None:
        if self._waits is not None:
            self._waits.finish()

    def waited(self, task: Task) -> None:
        self._trainer.spent.waited(task.held, IDLE if task is self._waits else COMMUNICATE)

    def is_void(self, slot: Slot) -> bool:
        return self._trainer.number(slot) in self._trainer.void

    def local(self, slot: Slot) -> SlotRows:
        return self._trainer.local(slot)

    def gradient(self, local: SlotRows, weights: Any, mean: bool) -> Task:
        return self._trainer.gradient(local, weights, mean)

    def compute(self, function: Callable[[], Any], cost: int, rows: int) -> Task:
        return self._trainer.compute(function, cost, rows)

    def early(self, local: SlotRows, weights: Any, mean: bool) -> Task | None:
        beside = self.closed is None and self._trainer.computes_beside(local)
        return self._trainer.gradient(local, weights, mean) if beside else None

    def push(self, slot: Slot, local: SlotRows | None, loss: float, task: Task) -> None:
        rows = 0 if local is None else len(local)
        pushed = partial(self._pushed, self._trainer.number(slot), rows, loss)
        tally = self._trainer.tally(self, slot)
        tally.then(lambda _: task.then(pushed) if tally.error is None else None)

    def _pushed(self, slot: int, rows: int, loss: float, task: Task) -> None:
        if task.error is not None:
            # Whoever runs here may wait in a pull for this very push: the trainer ends this life.
            self.close(task.error)
        self._trainer.pushed(slot, rows, loss, task)

    def leaves(self, slot: Slot) -> bool:
        return self._trainer.leaves(self._trainer.number(slot))

    def admits(self) -> Task:
        self._admits = Task("say that some weights are newer")
        if self.closed is not None:
            self._admits.finish(error=self.closed)
        else:
            self._trainer.admit(self._admits)
        return self._admits

    def refuse(self, slot: Slot, why: str) -> None:
        self._trainer.refuse(self._trainer.number(slot), why)

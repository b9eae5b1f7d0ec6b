"""Ranks that add up through the store: a step table whose every step has a slot for each rank.

The rule keeps what a step brings, so the rows after step t are the sum of what the ranks gave to their t-th total, added in the
order of the ranks and rounded once: the same bits at each, whatever server holds them and however many.

A rank that ends has its slots declared void by rank 0. It may have ended in the middle of a push, with some servers and not with
others: so every row says who is in it, and if not all of them say the same the total is taken once more, without it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from shoal.client import KV, joined
from shoal.errors import TimedOut
from shoal.models.linear import Floats
from shoal.nodes.worker import Worker
from shoal.store.client.task import Task
from shoal.store.table.update import Assign
from shoal.tables import Dense, Step
from shoal.wire import Transport

_ROW = 256  # numbers in a row, besides those that say who is in it
_BITS = 24  # ranks that one number can tell of, exactly
_LOOK = 0.05  # seconds between two looks at who is gone
_SOON = 0.005


class StoreCollective:
    """One rank's."""

    def __init__(
        self,
        kv: KV,
        rank: int,
        size: int,
        gone: Callable[[float], Collection[int]] = lambda waited: (),
    ) -> None:
        """``gone``, of rank 0: the ranks that are no more; it is told how long a total has been waited for."""
        self.rank, self.size = rank, size
        self._kv, self._gone = kv, gone
        self._steps: dict[int, int] = {}  # by the length of the vectors: totals so far
        self._who = -(-size // _BITS)  # numbers of a row that say who is in it

    @property
    def sent(self) -> int:
        return self._kv._loop.transport.traffic[0]

    @property
    def received(self) -> int:
        return self._kv._loop.transport.traffic[1]

    def total(self, vector: Floats) -> Floats:
        if len(vector) not in self._steps:
            self._steps[len(vector)] = 0
            self._make(len(vector))
        rows = self._rows(vector)
        while True:
            found: Floats = self._step(len(vector), rows).reshape(rows.shape)
            who = found[:, _ROW:]
            if (who == who[0]).all():
                break
        vector[:] = found[:, :_ROW].reshape(-1)[: len(vector)]
        return vector

    def close(self) -> None:
        self._kv.close()

    def _rows(self, vector: Floats) -> Floats:
        rows = np.zeros((-(-len(vector) // _ROW), _ROW + self._who), np.float32)
        whole = len(vector) // _ROW
        rows[:whole, :_ROW] = vector[: whole * _ROW].reshape(whole, _ROW)
        rows[whole:, : len(vector) - whole * _ROW] = vector[whole * _ROW :]
        rows[:, _ROW + self.rank // _BITS] = 1 << self.rank % _BITS
        return rows

    def _make(self, length: int) -> None:
        name = _name(length)
        if self.rank == 0:
            rows = -(-length // _ROW)
            apply = Step(slots=self.size, combine="sum")
            self._kv.create(name, Dense(rows=rows, width=_ROW + self._who, update=Assign(), apply=apply, max_delay=0))
        while name not in self._kv.tables():
            threading.Event().wait(_SOON)

    def _step(self, length: int, rows: Floats) -> Any:
        step, name = self._steps[length], _name(length)
        self._steps[length] += 1
        task = self._kv.push_pull(name, slice(None), rows, slot=(0, step * self.size + self.rank))
        began, known, voids = time.monotonic(), set[int](), list[Task]()
        while True:
            new = [rank for rank in self._gone(time.monotonic() - began) if rank not in known]
            known.update(new)
            voids += [self._kv.push(name, (), (), slot=(0, step * self.size + rank), void=True) for rank in new]
            try:
                found = task.result(_LOOK)
                break
            except TimedOut as error:
                if task.error is error:  # how it ended, and not that our look was too short: it may be done by now
                    raise
        self._kv.wait(voids)
        return found


def client(name: str, token: str, transport: Transport) -> KV:
    """A rank's own: known by the token that it was started with, so that whoever saw it end can say so."""
    return joined(KV(Worker(name, "client", token, seed=secrets.randbits(32)), transport))


def _name(length: int) -> str:
    return f"total-{length}"

"""How ranks add up vectors: each gives one, and all get the sum, with the same bits.

    group.total(mine)       every rank calls it equally often, with vectors of one length

A rank that dies meanwhile is in it or is not, the same for all: a cell for each rank in the vector
shows which. Over gloo (``gloo``) ``RankLost`` is raised instead; over MPI see ``mpi``.

``StoreCollective`` sums by a step table with a slot for each rank in every step. Rank 0 declares
the slots of a rank that ended void. It may have ended in the middle of a push: so every row names
its ranks, and if rows differ the sum is taken again without that rank.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np

from shoal.client import KV
from shoal.errors import TimedOut
from shoal.models.linear import Floats
from shoal.nodes.worker import Worker
from shoal.store.client.task import Task
from shoal.store.table.update import Assign
from shoal.tables import Dense, Step
from shoal.wire import Transport

_ROW = 256  # values in a row, besides those that name the ranks in it
_BITS = 24  # ranks that one float32 can name exactly
_LOOK = 0.05  # seconds between checks for ended ranks
_SOON = 0.005


class Collective(Protocol):
    """One rank's side of a group of ``size`` ranks at the start; the bytes that it moved."""

    rank: int
    size: int
    sent: int
    received: int

    def total(self, vector: Floats) -> Floats:
        """The sum over all living ranks; ``vector`` may be overwritten and returned."""

    def close(self) -> None:
        """Leave the group."""


class StoreCollective:
    def __init__(
        self, kv: KV, rank: int, size: int, ended_ranks: Callable[[float], Collection[int]] = lambda waited: ()
    ) -> None:
        """``ended_ranks``, of rank 0: the ranks that ended, by how long a sum is awaited."""
        self.rank, self.size = rank, size
        self.sent = self.received = 0
        self._kv, self._ended_ranks = kv, ended_ranks
        self._steps: dict[int, int] = {}  # by the length of the vectors: sums so far
        self._cells = -(-size // _BITS)  # values of a row that name the ranks in it

    def total(self, vector: Floats) -> Floats:
        if len(vector) not in self._steps:
            self._steps[len(vector)] = 0
            self._make(len(vector))
        rows = np.zeros((-(-len(vector) // _ROW), _ROW + self._cells), np.float32)
        whole = len(vector) // _ROW
        rows[:whole, :_ROW] = vector[: whole * _ROW].reshape(whole, _ROW)
        rows[whole:, : len(vector) - whole * _ROW] = vector[whole * _ROW :]
        rows[:, _ROW + self.rank // _BITS] = 1 << self.rank % _BITS
        while True:
            found: Floats = self._step(len(vector), rows).reshape(rows.shape)
            if (found[:, _ROW:] == found[0, _ROW:]).all():
                break
        self.sent, self.received = self._kv._loop.transport.traffic
        vector[:] = found[:, :_ROW].reshape(-1)[: len(vector)]
        return vector

    def close(self) -> None:
        self._kv.close()

    def _make(self, length: int) -> None:
        name = _name(length)
        if self.rank == 0:
            rows = -(-length // _ROW)
            apply = Step(slots=self.size, combine="sum")
            self._kv.create(name, Dense(rows=rows, width=_ROW + self._cells, update=Assign(), apply=apply, max_delay=0))
        while name not in self._kv.tables():
            threading.Event().wait(_SOON)

    def _step(self, length: int, rows: Floats) -> Any:
        step, name = self._steps[length], _name(length)
        self._steps[length] += 1
        task = self._kv.push_pull(name, slice(None), rows, slot=(0, step * self.size + self.rank))
        began, known, voids = time.monotonic(), set[int](), list[Task]()
        while not task.done:
            new = [rank for rank in self._ended_ranks(time.monotonic() - began) if rank not in known]
            known.update(new)
            voids += [self._kv.push(name, (), (), slot=(0, step * self.size + rank), void=True) for rank in new]
            try:
                task.result(_LOOK)
            except TimedOut as error:
                if task.error is error:  # the task itself timed out, not this check
                    raise
        self._kv.wait(voids)
        return task.result()


def client(name: str, token: str, transport: Transport) -> KV:
    """A client for one rank, known by the token with which it was started."""
    return KV(Worker(name, "client", token, seed=secrets.randbits(32)), transport).joined()


def _name(length: int) -> str:
    return f"total-{length}"

"""The run of a block-proximal job as one worker would make it with nothing in its way: iteration after iteration, in one thread.

What iteration t reads has in it exactly the iterations before t - max_delay. The parts' gradients are added in their order in
double precision and rounded once, as the design says of steps; written out once more, so that equality says something.

A part that changes hands begins anew: with the weights as they are then, and with steps as short as at first. Where it is told
which slots were pushed by whom that began when (``BlocksBegun``), the reference does the same, and has the same bits again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.data.datasets import Dataset
from shoal.data.dense_file import sparse
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.models.block_margins import BlockMargins
from shoal.models.columns import ColumnBlocks, CscColumns
from shoal.store.table.table import ServerTable
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.strategies.block_proximal.order import BlockOrder

Floats = npt.NDArray[np.float32]


class BlocksBegun(NamedTuple):
    """When somebody took a part up: the first iteration that it saw to, and how many were in the weights that it read.

    These are more only if the iteration was taken already: what was pushed for it counted nowhere.
    """

    iteration: int
    version: int


class BlockTurn(NamedTuple):
    """A slot: one part's side of one iteration."""

    iteration: int
    part: int


# Whose push of a slot counted, by segment. A slot that is not among them was pushed by who had the part from the first.
Hands = Mapping[BlockTurn, tuple[BlocksBegun, ...]]
FIRST = BlocksBegun(0, 0)


class BlockWorker:
    """Whoever had a part, from when it began."""

    def __init__(self, columns: CscColumns, max_delay: int) -> None:
        self.standing, self._delay = BlockMargins(columns, max_delay), max_delay
        self._coming: dict[int, tuple[int, Any, Floats]] = {}  # by iteration: what it was answered
        self._asked: tuple[int, Any, Any] | None = None

    def turn(self, t: int, block: int, everything: bool) -> tuple[Any, Any]:
        """Keys and values of its push."""
        came = self._coming.pop(t - self._delay - 1, None)
        if came is not None:
            self.standing.take(*came)
        _, places, values = self.standing.gradient(block, everything)
        keys = self.standing.columns.keys_of(block)[places]
        self._asked = block, places, keys
        return keys, values

    def answer(self, t: int, table: ServerTable) -> None:
        if self._asked is not None:
            block, places, keys = self._asked
            self._coming[t] = block, places, table.pull(keys)[:, 0]


def weights_by_iteration(
    job: Job, dataset: Dataset, hands: Hands | None = None, starts: Sequence[int] = (0,)
) -> Iterator[Floats]:
    """All weights before the first iteration, after it, after the next, and so on; ``starts`` are those of the segments."""
    strategy, turns, data = job.strategy, job.slots(dataset.train.rows), sparse(dataset.train)
    assert isinstance(strategy, BlockProximal) and isinstance(turns, BlockOrder)
    rows = job.linear.keys(dataset.features)
    table = ServerTable(strategy.table(rows, job.update.update(), turns.per_pass), [KeyRange(0, rows)])
    blocks = ColumnBlocks.cut(strategy.by, strategy.blocks, data.counts, job.linear.bias, data.rows)
    model, stretches = job.linear, [data.slice(*turns.part_rows(part)) for part in range(turns.parts)]
    columns = [CscColumns(one, blocks, model.bias, data.features, model.loss) for one in stretches]
    hands = hands or {}
    parts = {(part, FIRST): BlockWorker(columns[part], strategy.max_delay) for part in range(turns.parts)}
    later = {(turn.part, one) for turn, began in hands.items() for one in began if one != FIRST}
    everything_there = np.arange(rows, dtype=np.uint64)
    for t in count():
        yield table.pull(everything_there)[:, 0]
        for part, began in sorted(one for one in later if one[1].version == t):
            parts[part, began] = hand = BlockWorker(columns[part], strategy.max_delay)
            hand.standing.refresh(table.pull(columns[part].keys)[:, 0])
            for s in range(began.iteration, t):  # these it pushed in vain
                hand.turn(s, turns.block(s), _is_recheck(strategy, turns, s))
                hand.answer(s, table)
        total, touched = np.zeros((rows, 2)), np.zeros(rows, np.bool_)
        for (part, began), hand in sorted(parts.items()):
            keys, values = hand.turn(t, turns.block(t), _is_recheck(strategy, turns, t))
            whose = hands.get(BlockTurn(t, part), (FIRST,) * len(starts))
            counts = np.array([one == began for one in whose])[np.searchsorted(starts, keys, side="right") - 1]
            total[keys[counts]] += values[counts]
            touched[keys[counts]] = True
        changed = np.flatnonzero(touched).astype(np.uint64)
        table.push(changed, total[changed].astype(np.float32))
        for hand in parts.values():
            hand.answer(t, table)


def _is_recheck(strategy: BlockProximal, turns: BlockOrder, t: int) -> bool:
    return t // turns.blocks % strategy.recheck == 0

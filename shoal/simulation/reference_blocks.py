"""The run of a block-proximal job as one worker would make it with nothing in its way: iteration after iteration, in one thread.

What iteration t reads has in it exactly the iterations before t - max_delay. The parts' gradients are added in their order in
double precision and rounded once, as the design says of steps; written out once more, so that equality says something.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.arrays import sparse
from shoal.data.datasets import Dataset
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.models.columns import Blocks, Columns
from shoal.models.standing import Standing
from shoal.store.table import Table
from shoal.strategies.block_proximal import BlockProximal
from shoal.strategies.turns import Turns

Floats = npt.NDArray[np.float32]


def weights_by_iteration(job: Job, dataset: Dataset) -> Iterator[Floats]:
    """All weights before the first iteration, after it, after the next, and so on."""
    strategy, turns, data = job.strategy, job.slots(dataset.train.rows), sparse(dataset.train)
    assert isinstance(strategy, BlockProximal) and isinstance(turns, Turns)
    rows = job.linear.keys(dataset.features)
    table = Table(strategy.table(rows, job.update.update(), turns.per_pass), [KeyRange(0, rows)])
    blocks = Blocks.cut(strategy.by, strategy.blocks, data.counts, job.linear.bias, data.rows)
    model, stretches = job.linear, [data.slice(*turns.part_rows(part)) for part in range(turns.parts)]
    columns = [Columns(one, blocks, model.bias, data.features, model.loss) for one in stretches]
    parts = [Standing(one, strategy.max_delay) for one in columns]
    coming: dict[int, list[tuple[int, Any, Floats]]] = {}  # by iteration: what its parts were answered
    everything_there = np.arange(rows, dtype=np.uint64)
    for t in count():
        yield table.pull(everything_there)[:, 0]
        for part, news in zip(parts, coming.pop(t - strategy.max_delay - 1, []), strict=False):
            part.take(*news)
        block, everything = turns.block(t), t // turns.blocks % strategy.recheck == 0
        total, touched = np.zeros((rows, 2)), np.zeros(rows, np.bool_)
        pushed = []
        for part in parts:
            _, places, values = part.gradient(block, everything)
            keys = part.columns.keys_of(block)[places]
            total[keys] += values
            touched[keys] = True
            pushed.append((places, keys))
        changed = np.flatnonzero(touched).astype(np.uint64)
        table.push(changed, total[changed].astype(np.float32))
        coming[t] = [(block, places, table.pull(keys)[:, 0]) for places, keys in pushed]

"""What a worker that gossips computes with: a model of its own, a gradient that is kept, and means with others' weights.

The gradient is taken at the weights before a mean and applied after it (S3-09), so it is kept in between. Means are summed in double
precision and rounded once: whatever the order of the neighbours, all who take the same mean have the same weights but for one rounding.

``dealt`` says whose rows are whose. Rows are put in an order in which everybody's stand together, and cut at whole slots: the few rows
beside a border may be the neighbour's. So every row comes once in a pass, and a slot is what it is in every other run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.data.batch import Ids
from shoal.data.permuted import ordered
from shoal.data.slots import Slots
from shoal.data.split import assign, count
from shoal.errors import BadValues
from shoal.job import Job
from shoal.models.learner import Data, Learner, learner_of
from shoal.models.linear import Floats
from shoal.strategies.averaging.step_model import StepModel
from shoal.strategies.averaging.worker import own_start
from shoal.strategies.gossip.model import RUNAWAY, mix_into
from shoal.strategies.gossip.settings import Gossip


class GossipLocalModel:
    """One worker's: a ``Stepper``."""

    def __init__(self, job: Job, train: Data, learner: Learner, slots: Slots, number: int, slab: Floats | None) -> None:
        """With ``slab`` it goes on from that. ``train`` is in the order that ``dealt`` says."""
        assert isinstance(job.strategy, Gossip)
        self._core, self._slots = StepModel(job, train, learner, slots), slots
        if slab is not None:
            self._core.slab[:] = slab
        elif job.strategy.start == "own":
            self._now[:] = own_start(job, train, learner, number)
        self._kept = np.zeros(self._core.size, np.float32)

    @property
    def size(self) -> int:
        """Numbers in the weights."""
        return int(self._now.size)

    @property
    def slab(self) -> Floats:
        """Weights, and what the rule keeps beside them: the array itself."""
        return self._core.slab

    @property
    def weights(self) -> Floats:
        """As they are now, in one row; a copy."""
        found: Floats = self._now.reshape(-1)
        return found.copy() if np.shares_memory(found, self._now) else found

    def gradient(self, slot: int) -> tuple[float, int]:
        """Keep the gradient of a slot at the weights as they are; the sum of its losses, and its rows."""
        place = divmod(slot, self._slots.per_pass)
        start, stop = self._slots.span(self._slots.content(*place))
        try:
            loss = self._core.gradient(place, self._kept)
        except BadValues:
            loss = float("nan")
            self.slab[:] = np.nan  # as a step that was too long leaves it: everybody hears of it, and it ends
        return loss, stop - start

    def mix(self, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
        """weights <- own * weights + the sum of each weight * what came with it."""
        with np.errstate(**RUNAWAY):
            mix_into(self._now, own, parts)

    def add(self, delta: Floats, times: float = 1.0) -> None:
        """weights <- weights + times * delta."""
        now = self._now
        with np.errstate(**RUNAWAY):
            now[:] = now + np.multiply(delta.reshape(now.shape), times, dtype=np.float64)

    def step(self, scale: float = 1.0) -> None:
        """By the rule, with the gradient that was kept; weights move by ``scale`` times what the rule would have them."""
        before = self._now.copy() if scale != 1.0 else None
        with np.errstate(**RUNAWAY):
            self._core.apply(self._kept, 1)
            if before is not None:
                self._now[:] = before + np.subtract(self._now, before, dtype=np.float64) * scale

    @property
    def _now(self) -> Floats:
        return self._core.weights_in(self._core.slab)


def dealt(job: Job, train: Data, nodes: int) -> tuple[Ids | None, list[float], list[str]]:
    """The order of the rows (none: as they stand), the share of each node, and what a user should hear of it."""
    assert isinstance(job.strategy, Gossip)
    if job.strategy.split == "even":
        return None, [1.0] * nodes, []
    owner, notes = _owners(job, train, nodes)
    shares = np.bincount(owner, minlength=nodes).astype(np.float64).tolist()
    return np.argsort(owner, kind="stable"), shares, notes


def who_learns(job: Job, train: Data, nodes: int) -> str:
    """From which rows, in a few words; "" where they are dealt evenly and by chance."""
    assert isinstance(job.strategy, Gossip)
    if job.strategy.split in ("even", "shuffled"):
        return ""
    sizes, labels, counts = count(_owners(job, train, nodes)[0], train.labels, nodes)
    seen = [int(np.count_nonzero(one)) for one in counts]
    of = f" and {_range(seen)} of {len(labels):,} labels" if labels else ""
    return f"rows by {job.strategy.split}: each worker has {_range(sizes)} rows{of}"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _owners(job: Job, train: Data, nodes: int) -> tuple[Ids, list[str]]:
    assert isinstance(job.strategy, Gossip)
    return assign(train.labels, nodes, job.strategy.split, job.strategy.alpha, job.seed, "worker")


def core_of(text: str, rows: Path, number: int, nodes: int, kept: Path | None) -> tuple[Job, GossipLocalModel]:
    """In the process or thread that will compute; ``text`` is the job."""
    from shoal.data.mapped import train_rows
    from shoal.training.local_checkpoint import read

    job = Job.of(tomllib.loads(text))
    data = train_rows(rows, job.data, job.seed)
    learner = learner_of(job.model, data, job.seed, number)
    learner.settle(alone=job.launch.how == "processes")
    order, _, _ = dealt(job, data, nodes)
    train = data if order is None else ordered(data, order)
    slots = Slots(data.rows, job.data.batch, job.seed)
    return job, GossipLocalModel(job, train, learner, slots, number, None if kept is None else read(kept).slab)

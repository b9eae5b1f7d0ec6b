"""The model of a gossip worker, whose rows it learns from, and the mean of all models.

The gradient is taken at the weights before a mean and applied after it (Lian et al., 2017), so the
worker stores it in between. Means are summed in double precision and rounded once.

``assign_rows`` says whose rows are whose. The rows are sorted by worker and cut at whole slots: the
few rows at a border may be the neighbour's. So every row comes once in an epoch, and a slot is what
it is in every other run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal import limits
from shoal.data.batch import Ids
from shoal.data.packed import ordered
from shoal.data.slots import Slots
from shoal.data.split import assign, count
from shoal.errors import BadValues, Invalid
from shoal.job import Job
from shoal.launch.serverless_pool import PoolWorkerSpec
from shoal.models.learner import Data, Learner, learner_of
from shoal.strategies.gossip import Gossip
from shoal.training.local_checkpoint import is_finite
from shoal.training.local_model import StepModel, own_start

Floats = npt.NDArray[np.float32]

_ROWS = 200_000  # of the test set on which all models together are evaluated

# A model that diverges is noticed where it is evaluated.
RUNAWAY: dict[str, Any] = {"over": "ignore", "invalid": "ignore"}
_AT_ONCE = 16_384  # numbers
MOST = limits.FRAMES * limits.FRAME_BYTES // 4  # numbers that one message may carry


class GossipModel(ABC):
    """What a worker does with its model; one call at a time, on any thread."""

    def __init__(self, slab: Floats, now: Floats) -> None:
        """``slab``: weights and the state of the rule. ``now``: the weights in it, no copy."""
        self.slab, self._now, self.size = slab, now, now.size

    @property
    def weights(self) -> Floats:
        """As they are now, in one row; a copy."""
        return self._now.flatten()

    @abstractmethod
    def gradient(self, slot: int) -> tuple[float, int]:
        """Store the gradient of a slot; the sum of its losses, and its rows."""

    def mix(self, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
        """weights <- own * weights + the sum of weight * values over ``parts``."""
        with np.errstate(**RUNAWAY):
            mix_into(self._now, own, parts)

    def add(self, delta: Floats, times: float = 1.0) -> None:
        """weights <- weights + times * delta."""
        now = self._now
        with np.errstate(**RUNAWAY):
            now[:] = now + np.multiply(delta.reshape(now.shape), times, dtype=np.float64)

    @abstractmethod
    def step(self, scale: float = 1.0) -> None:
        """Step by the rule with the stored gradient; weights move by ``scale`` times that step."""


def mix_into(now: Floats, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
    """now <- own * now + the sum of weight * values: in double precision, rounded once."""
    # Piece by piece, so that the sums stay in the processor's cache: a third of the time.
    shaped = [(weight, values.reshape(now.shape)) for weight, values in parts]
    rows = max(1, _AT_ONCE * len(now) // max(1, now.size))
    total, part = (np.empty((rows, *now.shape[1:])) for _ in range(2))
    for start in range(0, len(now), rows):
        some = slice(start, min(start + rows, len(now)))
        sums, one = total[: some.stop - start], part[: some.stop - start]
        np.multiply(now[some], own, out=sums, dtype=np.float64)
        for weight, values in shaped:
            np.multiply(values[some], weight, out=one, dtype=np.float64)
            sums += one
        now[some] = sums


def check_size(numbers: int) -> None:
    if numbers > MOST:
        raise Invalid(
            f"a model of {numbers:,} numbers: gossip sends at most {MOST:,}: take a server, or a smaller model"
        )


def to_frames(vector: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Pieces that fit into frames, at least one; no copy."""
    flat, most = vector.reshape(-1), limits.FRAME_BYTES // vector.itemsize
    return tuple(flat[at : at + most] for at in range(0, max(1, flat.size), most))


def from_frames(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class GossipLocalModel(GossipModel):
    def __init__(self, job: Job, train: Data, learner: Learner, slots: Slots, number: int, slab: Floats | None) -> None:
        """Continues from ``slab``, if given. ``train`` is in the order of ``assign_rows``."""
        assert isinstance(job.strategy, Gossip)
        self._model, self._slots = StepModel(job, train, learner, slots), slots
        super().__init__(self._model.slab, self._model.weights_in(self._model.slab))
        if slab is not None:
            self.slab[:] = slab
        elif job.strategy.start == "own":
            self._now[:] = own_start(job, train, learner, number)
        self._gradient = np.zeros(self._model.size, np.float32)

    def gradient(self, slot: int) -> tuple[float, int]:
        place = divmod(slot, self._slots.per_pass)
        start, stop = self._slots.span(self._slots.content(*place))
        try:
            loss = self._model.gradient(place, self._gradient)
        except BadValues:
            loss = float("nan")
            self.slab[:] = np.nan  # as after a step that was too long: it spreads, and the run ends
        return loss, stop - start

    def step(self, scale: float = 1.0) -> None:
        before = self._now.copy() if scale != 1.0 else None
        with np.errstate(**RUNAWAY):
            self._model.apply(self._gradient, 1)
            if before is not None:
                self._now[:] = before + np.subtract(self._now, before, dtype=np.float64) * scale


class Consensus:
    """The models of all workers when they rested last: their mean, and how far apart they are."""

    def __init__(self, learner: Learner, test: Any, shape: tuple[int, int]) -> None:
        self._learner, self._test, self._shape = learner, test, shape
        self._slabs: list[Floats] = []
        self.mean: Floats = np.zeros(shape, np.float32)  # a slab of its own each time

    def take(self, models: Sequence[tuple[Floats, float]]) -> None:
        """These are the slabs now, and their weights in the mean (of push-sum; otherwise all 1)."""
        slabs = [slab.reshape(self._shape) for slab, _ in models]
        total, total_weight = np.zeros(self._shape, np.float64), 0.0
        with np.errstate(**RUNAWAY):
            for slab, (_, weight) in zip(slabs, models, strict=True):
                total += np.multiply(slab, weight, dtype=np.float64)
                total_weight += weight
            total /= total_weight
            self._slabs, self.mean = slabs, total.astype(np.float32)

    def weights_in(self, slab: Floats) -> Floats:
        width = self._learner.width
        return slab[:, 0] if width == 1 and self._learner.start() is None else slab[:, :width]

    def spread(self) -> dict[str, float]:
        """Lowest and highest test loss, and root mean |weights - mean|^2; none if diverged."""
        if not all(is_finite(slab) for slab in self._slabs):
            return {}
        mean, test = self.weights_in(self.mean), self._test
        with np.errstate(**RUNAWAY):
            apart = (np.subtract(self.weights_in(slab), mean, dtype=np.float64) for slab in self._slabs)
            distance = float(np.sqrt(np.mean([float(np.square(one).sum()) for one in apart])))
        if len(self._slabs) * test.rows > _ROWS:
            test = ordered(test, np.arange(0, test.rows, -(-len(self._slabs) * test.rows // _ROWS)))
        models = self._slabs if distance else self._slabs[:1]  # all are the same
        losses = [self._learner.evaluate(test, np.ascontiguousarray(self.weights_in(slab)))[0] for slab in models]
        return {"best": min(losses), "worst": max(losses), "distance": distance}


def assign_rows(job: Job, train: Data, nodes: int) -> tuple[Ids | None, list[float], list[str]]:
    """The order of the rows (None: as they are), the share of each node, and notes for the user."""
    assert isinstance(job.strategy, Gossip)
    if job.strategy.split == "even":
        return None, [1.0] * nodes, []
    owner, notes = _owners(job, train, nodes)
    shares = np.bincount(owner, minlength=nodes).astype(np.float64).tolist()
    return np.argsort(owner, kind="stable"), shares, notes


def describe_split(job: Job, train: Data, nodes: int) -> str:
    """Who learns from which rows, in a few words; "" where they are dealt evenly and at random."""
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


def model_of(spec: PoolWorkerSpec, number: int) -> tuple[Job, GossipLocalModel]:
    job, data = spec.load()
    learner = learner_of(job.model, data, job.seed, number)
    learner.settle(alone=job.launch.how == "processes")
    order, _, _ = assign_rows(job, data, job.workers)
    train = data if order is None else ordered(data, order)
    slots, kept = Slots(data.rows, job.data.batch, job.seed), spec.load_checkpoint()
    return job, GossipLocalModel(job, train, learner, slots, number, None if kept is None else kept.slab)

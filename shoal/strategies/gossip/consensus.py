"""The models of workers that each have one: their mean, and how far apart they are.

    best, worst     the lowest and the highest loss of any of them on the test rows
    distance        root of the mean over workers of |their weights - the mean|^2, in double precision

The mean is nobody's model. Where to judge every model would take longer than a run should stand still, best and worst are of every
so-manieth row of the test set, the same ones each time. Nothing here sends or reads the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.data.permuted import ordered
from shoal.models.learner import Learner
from shoal.models.linear import Floats
from shoal.strategies.gossip.model import RUNAWAY
from shoal.training.local_checkpoint import is_finite

ROWS = 200_000  # of the test set that all models together are judged on


class Consensus:
    """Those of one run, as they were when all rested last."""

    def __init__(self, learner: Learner, test: Any, shape: tuple[int, int]) -> None:
        self._learner, self._test, self._shape = learner, test, shape
        self._slabs: list[Floats] = []
        self.mean: Floats = np.zeros(shape, np.float32)  # a slab of its own each time

    def take(self, models: Sequence[tuple[Floats, float]]) -> None:
        """These are the slabs now, and how much of the mean is each one's (of push-sum: otherwise all alike)."""
        slabs = [slab.reshape(self._shape) for slab, _ in models]
        total, whole = np.zeros(self._shape, np.float64), 0.0
        with np.errstate(**RUNAWAY):
            for slab, (_, weight) in zip(slabs, models, strict=True):
                total += np.multiply(slab, weight, dtype=np.float64)
                whole += weight
            total /= whole
            self._slabs, self.mean = slabs, total.astype(np.float32)

    def weights_in(self, slab: Floats) -> Floats:
        """The weights of a slab, as a learner takes them."""
        width = self._learner.width
        return slab[:, 0] if width == 1 and self._learner.start() is None else slab[:, :width]

    def distance(self) -> float:
        mean = self.weights_in(self.mean)
        with np.errstate(**RUNAWAY):
            squares = [
                float(np.square(np.subtract(self.weights_in(slab), mean, dtype=np.float64)).sum())
                for slab in self._slabs
            ]
        return float(np.sqrt(np.mean(squares)))

    def spread(self) -> dict[str, float]:
        """How they differ; nothing if they have run away."""
        if not all(is_finite(slab) for slab in self._slabs):
            return {}
        distance, test = self.distance(), self._test
        if len(self._slabs) * test.rows > ROWS:
            test = ordered(test, np.arange(0, test.rows, -(-len(self._slabs) * test.rows // ROWS)))
        models = self._slabs if distance else self._slabs[:1]  # all are one
        losses = [self._learner.judge(test, np.ascontiguousarray(self.weights_in(slab)))[0] for slab in models]
        return {"best": min(losses), "worst": max(losses), "distance": distance}

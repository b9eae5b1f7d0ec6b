"""A linear model with a penalty; evaluation includes the objective on the training rows.

    objective    sum of the rows' losses + l1 * |w| + l2 / 2 * |w|^2
    violation    the worst violation of the optimality conditions by a key, in units of l1
                 (0: it is the minimum)
    nonzero      weights that are not 0
    skipped      the share of the keys of these rows that the KKT filter skips (weight -0.0)

Every evaluation reads all training rows once: if that takes too long, evaluate less often.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.data.csr_file import CsrFile
from shoal.models.learner import LinearLearner, Metrics
from shoal.models.linear import NONE, SLICE_ROWS, Floats, Linear, RowSource


class ObjectiveLearner(LinearLearner):
    """A linear learner that also evaluates the objective on the training rows."""

    def __init__(self, model: Linear, train: CsrFile, l1: float, l2: float) -> None:
        super().__init__(model, train)
        self.l1, self.l2 = l1, l2
        self._occur = int(np.count_nonzero(train.counts)) + model.bias

    def judge(self, test: Any, weights: Floats) -> tuple[float, Metrics]:
        loss, metrics = super().judge(test, weights)
        found = judge(self.train, self.model, weights, self.l1, self.l2)
        skipped = float(np.count_nonzero(np.signbit(weights) & (weights == 0))) / max(1, self._occur)
        return loss, {**found, "skipped": skipped, **metrics}


def judge(train: RowSource, model: Linear, weights: Floats, l1: float, l2: float = 0.0) -> dict[str, float]:
    """Evaluate the weights of all keys; -0.0 is 0.

    All figures are exact, from one scan of the rows, without any state of a solver. The bias counts
    as a key.
    """
    from shoal.models import kernels

    slopes, loss = np.zeros(len(weights)), 0.0
    for start in range(0, train.rows, SLICE_ROWS):
        rows = train.slice(start, min(start + SLICE_ROWS, train.rows))
        values = NONE if rows.values is None else rows.values
        loss += kernels.add_gradient(
            model.number, model.bias, rows.indptr, rows.columns, values, rows.labels, weights, slopes
        )
    wide = weights.astype(np.float64)
    slopes += l2 * wide
    off = np.where(wide != 0, np.abs(slopes + l1 * np.sign(wide)), np.maximum(np.abs(slopes) - l1, 0.0))
    return {
        "objective": loss + l1 * float(np.abs(wide).sum()) + l2 / 2 * float(wide @ wide),
        "violation": float(off.max(initial=0.0)) / (l1 or 1.0),
        "nonzero": float(np.count_nonzero(wide)),
    }

"""How far weights are from the minimum of loss + penalty: the objective, and the worst key's distance from being settled.

    objective   sum of the rows' losses + l1 * sum |w| + l2 / 2 * sum w^2
    violation   the largest distance, over all keys, of 0 from the subdifferential of the objective, in units of l1
    nonzero     weights that are not 0

All in one pass over the rows, exactly: nothing that a solver keeps is used. The bias is a key like
any other.
"""

from __future__ import annotations

import numpy as np

from shoal.models.linear import NONE, SLICE_ROWS, Floats, Linear, RowSource


def judge(train: RowSource, model: Linear, weights: Floats, l1: float, l2: float = 0.0) -> dict[str, float]:
    """``weights`` are those of all keys; -0.0 is 0."""
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

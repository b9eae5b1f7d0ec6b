"""The margins of a shard's rows at its current weights, and its gradient of a block.

A shard reports (g, u) for each active key of a block: the gradient of its rows, and an upper bound
of their curvature that is safe to step by. With X the shard's rows, D the curvatures of their
losses and v any step of the active keys,

    v' X' D X v  =  sum_i d_i (sum_k x_ik v_k)^2
                 <=  sum_k v_k^2 * sum_i d_i |x_ik| reach_i / share_k,
    reach_i      =  sum_k share_k |x_ik|   over the active keys, for any shares (Cauchy-Schwarz),

so u is a diagonal matrix above the curvature of the block. Bounds of shards add up to a bound of
all rows, without communication. A step of 1 / u descends, and so does one of up to 2 / u: steps
are ``RELAX`` / u.

Only active keys count. A key that the KKT filter skips (its weight is -0.0) has a reach of 0. When
it is checked again its share is small. Curvatures are those of the present margins, increased by
what a step like the block's last one could add. With delay, the margins lack pending steps of other
blocks: ``between`` times what a row has in other blocks is added to its reach (decision 0030).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.models.columns import CscColumns
from shoal.models.linear import Floats

Numbers = npt.NDArray[np.int64]

# at most 2: over-relaxation is faster where keys nearly replace one another
RELAX = 1.8
AGAIN = np.float32(0.125)  # the share of a skipped key that is checked again
LEAST = 0.05  # the least change of margins to allow for


class BlockMargins:
    """The margins of one shard and their weights, all 0 at first."""

    def __init__(self, columns: CscColumns, delay: int = 0) -> None:
        from shoal.models import column_kernels as kernels

        self._kernels, self.columns, self.delay = kernels, columns, delay
        self.margins = np.zeros(columns.rows)
        self.all_weights: Floats = np.zeros(len(columns.keys), np.float32)
        self._state = np.zeros((columns.rows, 4), np.float32)
        self._change = np.zeros(columns.rows)
        self._touched = np.empty(columns.rows, np.uint32)
        # The mean number of pending steps of another block, over orders.
        self._between = delay / (columns.blocks - 1) if columns.blocks > 1 else 0.0
        self._begin()

    def _begin(self) -> None:
        columns = self.columns
        # by block: the largest change of a margin in its last step
        self._moved = np.full(columns.blocks, math.inf)
        self._kernels.look_at_all(columns.kind, self.margins, columns.labels, self._state)
        self._state[:, self._kernels.ALL] = 0.0
        if self.delay:
            self._count(np.flatnonzero(~_left_out(self.all_weights)), 1.0, self._kernels.ALL)

    def weights(self, block: int) -> Floats:
        first, last = self.columns.span(block)
        return self.all_weights[first:last]

    def cost(self, block: int) -> int:
        return 2 * self.columns.nonzeros_of(block) + self.columns.rows

    def places(self, block: int, everything: bool) -> Numbers:
        """The active keys of a block, as indices into it."""
        weights = self.weights(block)
        return np.arange(len(weights)) if everything else np.flatnonzero(~_left_out(weights))

    def take(self, block: int, places: Numbers, weights: Floats) -> None:
        columns, first = self.columns, self.columns.span(block)[0]
        new = np.ascontiguousarray(weights, np.float32).reshape(-1)
        if len(new) != len(places):
            raise Invalid(f"{len(new)} weights for {len(places)} keys: one each is needed")
        among = first + places
        if self.delay:
            before, after = _left_out(self.all_weights[among]), _left_out(new)
            self._count(among[before & ~after], 1.0, self._kernels.ALL)
            self._count(among[after & ~before], -1.0, self._kernels.ALL)
        moved = self._kernels.take(
            columns.kind, columns.indptr, columns.at, columns.values, among, new, self.all_weights, columns.labels,
            self.margins, self._state, self._change, self._touched,
        )  # fmt: skip
        known = self._moved[block]
        self._moved[block] = moved if known == math.inf else max(moved, known / 2)

    def refresh(self, weights: Floats) -> None:
        columns = self.columns
        self.all_weights[:] = np.asarray(weights, np.float32).reshape(-1)
        self.margins[:] = 0.0
        self._kernels.multiply(columns.indptr, columns.at, columns.values, self.all_weights, self.margins)
        self._begin()

    def gradient(self, block: int, everything: bool) -> tuple[float, Numbers, Floats]:
        """The total loss of all rows; the active indices; g and u of each."""
        columns, kernels = self.columns, self._kernels
        first = columns.span(block)[0]
        places = self.places(block, everything)
        among = first + places
        shares = np.ones(len(places), np.float32)
        again = _left_out(self.all_weights[among])
        shares[again] = AGAIN
        self._state[:, kernels.REACH] = 0.0
        self._count(among[~again], 1.0, kernels.REACH)
        self._count(among[again], float(AGAIN), kernels.REACH)
        steepest = kernels.STEEPEST if columns.kind == kernels.LOGISTIC else 1.0
        grow = math.exp(min(max(self._moved[block], LEAST) * (1 + self.delay), 100.0))
        out = np.empty((len(places), 2), np.float32)
        kernels.gradient(
            columns.indptr, columns.at, columns.values, among, shares, grow / RELAX, steepest / RELAX, self._between,
            self._state, out,
        )  # fmt: skip
        loss: float = kernels.total_loss(columns.kind, self.margins, columns.labels, self._state)
        return loss, places, out

    def _count(self, places: Numbers, share: float, column: int) -> None:
        columns = self.columns
        self._kernels.count(columns.indptr, columns.at, columns.values, places, share, self._state, column)


def _left_out(weights: Floats) -> npt.NDArray[np.bool_]:
    """Which weights are -0.0: the KKT filter skips them, since the gradient keeps them at 0."""
    found: npt.NDArray[np.bool_] = (weights == 0) & np.signbit(weights)
    return found

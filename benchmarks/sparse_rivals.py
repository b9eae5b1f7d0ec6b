"""Rivals for l1-penalised logistic regression: one thread of ours, liblinear, saga.

All see the same rows, without an intercept, and are judged by the same function.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.csr_file import CsrFile
from shoal.data.datasets import Dataset
from shoal.data.dense_file import sparse
from shoal.errors import Invalid
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.models.block_margins import BlockMargins
from shoal.models.columns import ColumnBlocks, CscColumns
from shoal.models.linear import Floats
from shoal.store.table.table import ServerTable
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.strategies.block_proximal.order import BlockOrder

_CLIFF = 1 << 16  # passes


class Serial:
    """A block-proximal job in one thread, delays included: the same bits without messages."""

    def __init__(self, job: Job, dataset: Dataset) -> None:
        strategy, turns, data = job.strategy, job.slots(dataset.train.rows), sparse(dataset.train)
        assert isinstance(strategy, BlockProximal) and isinstance(turns, BlockOrder)
        self._strategy, self._turns = strategy, turns
        self._keys = job.linear.keys(dataset.features)
        self._table = ServerTable(
            strategy.table(self._keys, job.update.update(), turns.per_pass), [KeyRange(0, self._keys)]
        )
        self._blocks = ColumnBlocks.cut(strategy.by, strategy.blocks, data.counts, job.linear.bias, data.rows)
        self._parts = [
            BlockMargins(
                CscColumns(data.slice(*turns.part_rows(part)), self._blocks, job.linear.bias, data.features),
                strategy.max_delay,
            )
            for part in range(turns.parts)
        ]
        self._coming: dict[int, list[tuple[int, Any, Floats]]] = {}
        self._next = 0
        self.looked_at = 0  # keys, all iterations together

    def one_pass(self) -> None:
        for _ in range(self._turns.blocks):
            self._iterate()

    def weights(self) -> Floats:
        found: Floats = self._table.pull(np.arange(self._keys, dtype=np.uint64))[:, 0]
        return found

    def _iterate(self) -> None:
        t, turns = self._next, self._turns
        for part, news in zip(self._parts, self._coming.pop(t - self._strategy.max_delay - 1, []), strict=False):
            part.take(*news)
        block, everything = turns.block(t), t // turns.blocks % self._strategy.recheck == 0
        first, last = int(self._blocks.starts[block]), int(self._blocks.starts[block + 1])
        total, touched, pushed = np.zeros((last - first, 2)), np.zeros(last - first, np.bool_), []
        for part in self._parts:
            _, places, values = part.gradient(block, everything)
            keys = part.columns.keys_of(block)[places]
            total[keys - np.uint64(first)] += values
            touched[keys - np.uint64(first)] = True
            pushed.append((places, keys))
        changed = np.flatnonzero(touched)
        self.looked_at += len(changed)
        self._table.push((first + changed).astype(np.uint64), total[changed].astype(np.float32))
        self._coming[t] = [(block, places, self._table.pull(keys)[:, 0]) for places, keys in pushed]
        self._next = t + 1


def alike(train: CsrFile) -> npt.NDArray[np.uint64]:
    """A number for each column, the same for equal columns.

    A click log has many. Going key by key leaves all the weight on the first of them; stepping them
    together shares it out.
    """
    rows = train.slice(0, train.rows)
    draws = np.random.default_rng(0).integers(1 << 63, size=train.rows, dtype=np.uint64)
    terms = np.repeat(draws, np.diff(rows.indptr))
    if rows.values is not None:
        terms *= 2 * np.ascontiguousarray(rows.values).view(np.uint32).astype(np.uint64) + np.uint64(1)
    found = np.zeros(train.features, np.uint64)
    np.add.at(found, rows.columns, terms)
    return found


def liblinear(train: CsrFile, l1: float, most: float) -> Iterator[tuple[float, Floats]]:
    """Seconds and weights at finer and finer tolerances; the last is the reference."""
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        seconds, weights = _fit(train, l1, "liblinear", tol=tolerance, max_iter=10_000)
        yield seconds, weights
        if seconds > most:
            return


def saga(train: CsrFile, l1: float, most: float) -> Iterator[tuple[float, Floats]]:
    """Seconds and weights of runs with twice as many epochs each, until one takes too long."""
    passes = 10
    while passes < _CLIFF:
        seconds, weights = _fit(train, l1, "saga", tol=0.0, max_iter=passes, random_state=0)
        yield seconds, weights
        if seconds > most:
            return
        passes *= 2


def _fit(train: CsrFile, l1: float, solver: str, **settings: Any) -> tuple[float, Floats]:
    try:
        from scipy.sparse import csr_matrix
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise Invalid(f"{solver} is scikit-learn's, which is not installed: pip install 'shoal[sklearn]'") from None
    rows = train.slice(0, train.rows)
    values = np.ones(rows.nonzeros) if rows.values is None else rows.values.astype(np.float64)
    matrix = csr_matrix((values, rows.columns.astype(np.int32), rows.indptr), shape=(train.rows, train.features))
    labels = np.where(rows.labels > 0, 1, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # saga was stopped early; the name of the penalty is old
        model = LogisticRegression(penalty="l1", solver=solver, C=1.0 / l1, fit_intercept=False, **settings)
        began = time.perf_counter()
        model.fit(matrix, labels)
        seconds = time.perf_counter() - began
    return seconds, np.ascontiguousarray(model.coef_.ravel(), np.float32)

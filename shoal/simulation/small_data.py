"""Makes small sets of rows in memory, for simulated runs: the same numbers give the same rows, and no file is touched.

mixed       rows of a few features at random that many share: what one slot learns changes what others compute
separate    every slot has a feature of its own, and rows of ones: with hinge loss, whose slope is constant while
            margins are small, a weight is the exact count of how often its slot is in the model
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Floats
from shoal.data.csr_file import (
    FORMAT,
    CsrFile,
    CsrMeta,
    LabelCount,
)
from shoal.data.datasets import Dataset

PER_ROW = 3  # features of a row, where rows are mixed
FOLDER = Path("/memory")


def mixed(rows: int, features: int, seed: int, test_rows: int = 16, poisoned: int = -1) -> Dataset:
    """Labels that a linear model can learn in part; the value of row ``poisoned`` is no number."""
    random = np.random.Generator(np.random.PCG64([seed, rows, features]))
    truth = random.standard_normal(features)
    train = _mixed(rows, features, random, truth)
    if poisoned >= 0:
        assert train.values is not None
        train.values[PER_ROW * poisoned] = np.nan
    return Dataset("small", train, _mixed(test_rows, features, random, truth), [], FOLDER)


def separate(slots: int, batch: int) -> Dataset:
    """So many slots a pass of so many rows each, every one with a feature of its own."""
    columns = np.repeat(np.arange(slots, dtype=np.uint32), batch)
    train = _packed(columns, 1, slots, None, np.ones(slots * batch, np.float32))
    test = _packed(np.arange(slots, dtype=np.uint32), 1, slots, None, np.ones(slots, np.float32))
    return Dataset("separate", train, test, [], FOLDER)


def _mixed(rows: int, features: int, random: np.random.Generator, truth: npt.NDArray[np.float64]) -> CsrFile:
    columns = np.concatenate([np.sort(random.choice(features, PER_ROW, replace=False)) for _ in range(rows)])
    values = random.standard_normal(len(columns)).astype(np.float32)
    margins = (values * truth[columns]).reshape(rows, PER_ROW).sum(axis=1) + random.standard_normal(rows)
    labels = np.where(margins > 0, 1, -1).astype(np.float32)
    labels[:2] = 1, -1  # both classes are there
    return _packed(columns.astype(np.uint32), PER_ROW, features, values, labels)


def _packed(columns: np.ndarray, per_row: int, features: int, values: Floats | None, labels: Floats) -> CsrFile:
    rows = len(labels)
    known = [LabelCount(float(one), int((labels == one).sum()), 1) for one in np.unique(labels)]
    meta = CsrMeta(FORMAT, rows, features, len(columns), values is None, known, False, "memory")
    indptr = np.arange(rows + 1, dtype=np.int64) * per_row
    counts = np.bincount(columns, minlength=features).astype(np.uint32)
    return CsrFile(FOLDER, meta, indptr, columns, values, labels, counts)

"""Rows by column: every nonzero is once in the block of its key.

All nodes cut the same blocks.
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.batch import Batch
from shoal.errors import Invalid
from shoal.models.columns import ColumnBlocks, CscColumns


def some_rows(rows: int, features: int, seed: int, ones: bool = False) -> tuple[Batch, np.ndarray]:
    """Sparse rows, and the same rows as a matrix."""
    draw = np.random.default_rng(seed)
    dense = draw.normal(size=(rows, features)).astype(np.float32) * (draw.random((rows, features)) < 0.3)
    dense = (dense != 0).astype(np.float32) if ones else dense
    at, columns = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=rows))]).astype(np.int64)
    values = None if ones else dense[at, columns]
    labels = np.where(draw.random(rows) < 0.4, 1, -1).astype(np.float32)
    return Batch(indptr, columns.astype(np.uint32), values, labels), dense


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_columns_are_the_same_matrix(ones: bool, bias: bool) -> None:
    rows, dense = some_rows(40, 23, 1, ones)
    blocks = ColumnBlocks.cut("range", 4, (dense != 0).sum(0).astype(np.uint32), bias, 40)
    columns = CscColumns(rows, blocks, bias, 23)
    whole = np.hstack([dense, np.ones((40, 1), np.float32)]) if bias else dense
    found = np.zeros_like(whole)
    for place, key in enumerate(columns.keys):
        part = slice(columns.indptr[place], columns.indptr[place + 1])
        assert (np.diff(columns.at[part].astype(np.int64)) > 0).all()
        found[columns.at[part], int(key)] = 1.0 if ones else columns.values[part]
    np.testing.assert_array_equal(found, whole)
    assert columns.nonzeros == np.count_nonzero(whole)
    assert sum(columns.nonzeros_of(block) for block in range(4)) == columns.nonzeros
    np.testing.assert_array_equal(np.concatenate([columns.keys_of(block) for block in range(4)]), columns.keys)


def test_a_part_that_lacks_the_keys_of_a_block_has_none_there() -> None:
    rows = Batch(np.array([0, 1], np.int64), np.array([5], np.uint32), None, np.ones(1, np.float32))
    columns = CscColumns(rows, ColumnBlocks(np.array([0, 4, 8], np.uint64)), False, 8)
    assert [len(columns.keys_of(block)) for block in range(2)] == [0, 1]


def test_blocks_by_count_have_about_as_many_nonzeros() -> None:
    counts = np.random.default_rng(0).integers(1, 50, 10_000).astype(np.uint32)
    blocks = ColumnBlocks.cut("count", 16, counts, False, 50)
    shares = [counts[int(a) : int(b)].sum() for a, b in zip(blocks.starts, blocks.starts[1:], strict=False)]
    assert max(shares) - min(shares) <= 2 * 50


@pytest.mark.parametrize("by", ["count", "range"])
def test_no_block_is_empty_however_common_one_key_is(by: str) -> None:
    counts = np.array([1, 1_000_000, 1, 0, 0, 1], np.uint32)
    for number in range(1, 8):
        blocks = ColumnBlocks.cut(by, number, counts, True, 1_000_000)  # type: ignore[arg-type]
        assert len(blocks) == number
        assert blocks.starts[0] == 0 and blocks.starts[-1] == 7
        assert (np.diff(blocks.starts.astype(np.int64)) > 0).all()


def test_more_blocks_than_keys_are_refused() -> None:
    with pytest.raises(Invalid, match="9 blocks of 8 keys"):
        ColumnBlocks.cut("range", 9, np.ones(8, np.uint32), False, 3)


def test_a_loss_without_curvature_is_refused() -> None:
    rows, _ = some_rows(5, 8, 0)
    with pytest.raises(Invalid, match="hinge"):
        CscColumns(rows, ColumnBlocks(np.array([0, 8], np.uint64)), False, 8, "hinge")

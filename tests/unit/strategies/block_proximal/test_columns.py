"""A worker makes its parts of the rows once, and drops those that move to another worker."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.csr_file import CsrFile
from shoal.data.datasets import Dataset, load
from shoal.data.packed import sparse
from shoal.job import Job
from shoal.models.columns import ColumnBlocks
from shoal.strategies.block_proximal.columns import ColumnParts
from shoal.strategies.block_proximal.order import BlockOrder
from tests.support.one_thread_run import JOB


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    job = Job.of(JOB)
    return load(job.data, job.seed, cache=tmp_path_factory.mktemp("data"))


def shelf_of(data: CsrFile, turns: BlockOrder) -> ColumnParts:
    return ColumnParts(
        data, turns, ColumnBlocks.cut("count", turns.blocks, data.counts, True, data.rows), True, "logistic"
    )


def test_a_part_is_made_once_and_has_its_rows(rows: Dataset) -> None:
    data = sparse(rows.train)
    shelf = shelf_of(data, BlockOrder(data.rows, parts=4, blocks=6, seed=0))
    part, later = shelf.local((0, 5)), shelf.local((1, 9))  # both are part 1
    columns = part.columns()
    assert later.columns() is columns and columns.rows == 100
    assert (columns.nonzeros, columns.blocks) == (part.nonzeros, 6)
    assert columns.keys[-1] == data.features  # the bias
    assert np.array_equal(np.concatenate([columns.keys_of(block) for block in range(6)]), columns.keys)


def test_a_pass_counts_every_row_of_a_part_once(rows: Dataset) -> None:
    data = sparse(rows.train)
    shelf = shelf_of(data, BlockOrder(data.rows, parts=4, blocks=6, seed=0))
    assert sum(len(shelf.local((3, 4 * place + 2))) for place in range(6)) == 100


def test_a_part_that_is_not_asked_for_any_more_is_let_go(rows: Dataset) -> None:
    data = sparse(rows.train)
    shelf = shelf_of(data, BlockOrder(data.rows, parts=4, blocks=6, seed=0))
    first = shelf.local((0, 0)).columns()
    for of_pass in range(3):
        shelf.local((of_pass, 1))
    assert shelf.local((2, 0)).columns() is first  # unused for two passes
    for of_pass in range(2, 6):
        shelf.local((of_pass, 1))
    assert shelf.local((6, 0)).columns() is not first

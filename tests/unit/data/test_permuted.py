"""Rows in another order: what is read is what a copy in that order would give."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from shoal.data.csr_file import CsrFile
from shoal.data.datasets import DataSource, load
from shoal.data.dense_file import DenseExamples, DenseInfo, write
from shoal.data.permuted import ordered
from shoal.errors import Invalid


def sparse_rows() -> CsrFile:
    found = load(DataSource("rcv1-like", rows=60, features=1_000), 0).train
    assert isinstance(found, CsrFile)
    return found


def test_pieces_of_sparse_rows_come_in_the_order_that_was_asked_for() -> None:
    rows = sparse_rows()
    order = np.random.default_rng(0).permutation(rows.rows)
    piece, wanted = ordered(rows, order).slice(7, 19), rows.take(order[7:19])
    assert np.array_equal(piece.columns, wanted.columns) and np.array_equal(piece.labels, wanted.labels)  # type: ignore[union-attr]
    assert np.array_equal(ordered(rows, order).labels, rows.labels[order])


def test_pieces_of_dense_rows_do_too_and_fewer_rows_are_a_smaller_set(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    examples = DenseExamples(draw.normal(size=(20, 3)).astype(np.float32), np.arange(20, dtype=np.float32))
    rows = write(tmp_path / "rows", [(examples, np.arange(1, 21))], DenseInfo())
    some = ordered(rows, np.array([19, 3, 4]))
    assert some.rows == 3
    assert np.array_equal(some.slice(0, 2).labels, [19, 3])
    assert np.array_equal(some.take(np.array([2, 0])).labels, [4, 19])
    with pytest.raises(Invalid, match="the set has 3"):
        some.slice(0, 4)


def test_another_process_makes_the_same_of_it() -> None:
    rows = sparse_rows()
    again = pickle.loads(pickle.dumps(ordered(rows, np.arange(10)[::-1].copy())))
    assert np.array_equal(again.labels, rows.labels[:10][::-1])

"""Rows in another order are read like a copy in that order; labels are checked first."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from shoal.data.batch import Batch
from shoal.data.csr_file import CsrFile, CsrWriter
from shoal.data.datasets import DataSource, load
from shoal.data.dense_file import DenseExamples, write
from shoal.data.packed import are_classes, check_labels, ordered, signs
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
    rows = write(tmp_path / "rows", [(examples, np.arange(1, 21))])
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


def packed(folder: Path, *labels: float) -> CsrFile:
    with CsrWriter(folder / "set") as writer:
        rows = np.array(labels, np.float32)
        writer.append(Batch(np.zeros(len(rows) + 1, np.int64), np.empty(0, np.uint32), None, rows))
        return writer.finish("rows.svm", features=1)


def test_both_ways_of_writing_two_classes_become_signs() -> None:
    assert signs(np.array([0, 1, 0], np.float32)).tolist() == [-1, 1, -1]
    assert signs(np.array([-1, 1], np.float32)).tolist() == [-1, 1]
    assert signs(np.array([0, 1], np.float32)).dtype == np.float32


@pytest.mark.parametrize("labels", [(-1, 1), (0, 1), (1, 0, 0)])
def test_two_classes_are_fine(tmp_path: Path, labels: tuple[float, ...]) -> None:
    check_labels(packed(tmp_path, *labels), "classes")


@pytest.mark.parametrize(
    ("labels", "where"),
    [((1, -1, 0.5, 2), "line 3: label 0.5"), ((-1, 1, 0), "line 3: label 0"), (tuple(range(20)), "line 3: label 2")],
)
def test_a_label_of_no_class_is_named_with_its_line(tmp_path: Path, labels: tuple[float, ...], where: str) -> None:
    rows = packed(tmp_path, *labels)
    with pytest.raises(Invalid, match=f"rows.svm, {where}, .*model squared"):
        check_labels(rows, "classes")
    assert not are_classes(rows)
    check_labels(rows, "numbers")


def test_one_class_alone_cannot_be_trained_on_but_tested_on(tmp_path: Path) -> None:
    rows = packed(tmp_path, 1, 1)
    with pytest.raises(Invalid, match="all 2 labels are 1"):
        check_labels(rows, "classes")
    check_labels(rows, "classes", both=False)

"""Labels are asked about before training starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.data.batch import Batch
from shoal.data.csr_file import CsrFile, CsrWriter
from shoal.data.labels import are_classes, check_labels, signs
from shoal.errors import Invalid


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

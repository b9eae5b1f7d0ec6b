"""Checks the labels of a set before training.

Labels are stored as in the file. A model of two classes accepts -1/+1 or 0/1 and uses ``signs`` of
them; a regression model accepts any number.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from shoal.data.batch import Floats
from shoal.data.csr_file import CsrFile, LabelCount
from shoal.data.dense_file import DenseFile
from shoal.errors import Invalid

CLASSES = ({-1.0, 1.0}, {0.0, 1.0})


def signs(labels: Floats) -> Floats:
    """-1 or +1 for each label of two classes, in either notation."""
    return np.where(labels > 0, np.float32(1), np.float32(-1))


def are_classes(packed: CsrFile | DenseFile) -> bool:
    """Whether all labels are of two classes (one of them may be missing)."""
    found = {label.value for label in packed.meta.labels}
    return not packed.meta.more_labels and any(found <= pair for pair in CLASSES)


def check_labels(packed: CsrFile | DenseFile, kind: Literal["classes", "numbers"], both: bool = True) -> None:
    """Raise Invalid for labels of the wrong kind. ``both``: each class must occur (training)."""
    if kind == "numbers":
        return  # readers reject NaN and infinite labels
    where = packed.meta.source or str(packed.folder)
    if not are_classes(packed):
        odd = _odd_one(packed.meta.labels)
        raise Invalid(
            f"{where}, line {odd.line}: label {odd.value:g}, and two classes are -1 and +1 or 0 and 1: "
            f"choose model squared for numbers, or write the labels anew"
        )
    if both and len(packed.meta.labels) == 1:
        (only,) = packed.meta.labels
        raise Invalid(f"{where}: all {only.rows:,} labels are {only.value:g}: rows of both classes are needed to train")


def _odd_one(labels: list[LabelCount]) -> LabelCount:
    """The label that fits neither notation; if -1 and 0 both occur, the later one."""
    strange = [label for label in labels if label.value not in (-1.0, 0.0, 1.0)]
    return min(strange, key=lambda label: label.line) if strange else max(labels, key=lambda label: label.line)

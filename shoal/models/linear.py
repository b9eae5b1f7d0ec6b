"""Linear models on sparse rows: margins, losses, gradients and metrics.

    logistic    log(1 + exp(-y m))      labels are classes
    hinge       max(0, 1 - y m)         labels are classes; at the kink the subgradient is 0
    squared     (m - y)^2 / 2           labels are numbers

Classes are written -1 and +1, or 0 and 1; y is -1 or +1 either way. m is the margin <row,
weights>, plus the bias, whose key is the last one and not stored in rows.

With ``l2_per_count`` every row adds l2_per_count / 2 * w^2 / count for each of its keys, where
count is the number of training rows with that key (Hogwild!'s support vector machine, Niu et al.,
NIPS 2011): over one epoch every key is penalised once, however rare. The penalty is in the
gradient only, not in the reported loss, and the bias is not penalised.

Nothing here stores weights or modifies its arguments. Results are new arrays of the caller.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Local
from shoal.errors import Invalid

Loss = Literal["logistic", "hinge", "squared"]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

KINDS = get_args(Loss)  # the index of a loss is its number in the kernels
SLICE_ROWS = 16_384  # test rows evaluated at once
NONE = np.empty(0, np.float32)


class RowSource(Protocol):
    @property
    def rows(self) -> int: ...

    def slice(self, start: int, stop: int) -> Batch: ...


class Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="linear"):
    """The description of a linear model."""

    loss: Loss = "logistic"
    bias: bool = True
    l2_per_count: float = 0.0

    def __post_init__(self) -> None:
        if self.loss not in KINDS:
            raise Invalid(f"loss={self.loss!r}: needs one of {', '.join(KINDS)}")
        if not (math.isfinite(self.l2_per_count) and self.l2_per_count >= 0):
            raise Invalid(f"l2_per_count={self.l2_per_count!r}: a finite number of 0 or more is needed")

    @property
    def name(self) -> str:
        return self.loss

    told = name

    @property
    def number(self) -> int:
        return KINDS.index(self.loss)

    @property
    def classes(self) -> bool:
        return self.loss != "squared"

    def keys(self, features: int) -> int:
        """Rows of the weight table: one per feature, and one for the bias, the last."""
        return features + self.bias

    def gradient(self, local: Local, weights: Floats, mean: bool, counts: Floats | None = None) -> tuple[float, Floats]:
        """The rows' total loss, and the mean or the sum of their gradients at ``local.keys``.

        Labels are not checked again for every slot: call ``check_labels`` once before.
        """
        from shoal.models import kernels

        weights = self._at_keys("weights", weights, local)
        per_row = self._at_keys("counts", self._checked_counts(counts, local), local) if self.l2_per_count else NONE
        out = np.empty(len(local.keys), np.float32)
        rows = len(local.labels)
        scale = 1.0 / rows if mean and rows else 1.0
        loss: float = kernels.gradient(
            self.number, self.bias, scale, self.l2_per_count, *_csr(local), local.labels, weights, per_row, out
        )
        return loss, out

    def margins(self, batch: Batch, weights: Floats, out: Doubles | None = None) -> Doubles:
        """<row, weights> of every row, plus the bias; columns index the weights of all keys."""
        from shoal.models import kernels

        weights = _ready(weights)
        indptr, columns, values = _csr(batch)
        features = len(weights) - self.bias
        if _is_torn(indptr, columns, values):
            raise Invalid("the row pointers do not fit the columns and values: give the rows as CSR")
        used = columns[indptr[0] : indptr[-1]]
        if features < 0 or (len(used) and int(used.max()) >= features):
            raise Invalid(
                f"rows have columns up to {int(used.max()) if len(used) else 0}, and {len(weights)} weights "
                f"{'(one is the bias) ' if self.bias else ''}are too few: "
                f"read both sets with the same number of features"
            )
        out = np.empty(len(indptr) - 1, np.float64) if out is None else out
        if out.shape != (len(indptr) - 1,):
            raise Invalid(f"out has shape {out.shape}: there are {len(indptr) - 1} rows")
        kernels.margins(self.bias, indptr, columns, values, weights, out)
        return out

    def predict(self, batch: Batch, weights: Floats) -> Doubles:
        """The probability of +1 (logistic), or the margin."""
        from shoal.models import kernels

        margins = self.margins(batch, weights)
        if self.loss == "logistic":
            kernels.to_probabilities(margins)
        return margins

    def evaluate(self, test: RowSource, weights: Floats) -> tuple[float, dict[str, float | None]]:
        """The mean loss over all rows, and metrics.

        accuracy    rows on the side of their class; a margin of 0 counts as -1
        auc         the chance that a row of +1 has a larger margin than one of -1, ties half;
                    None if there is only one class
        mse         squared loss only: the mean of (m - y)^2, twice the loss;
                    the two above only if labels are -1 and +1
        """
        from shoal.models import kernels

        if test.rows == 0:
            raise Invalid("the test set has no rows: give one with rows, or none")
        margins, labels = np.empty(test.rows, np.float64), np.empty(test.rows, np.float32)
        for start in range(0, test.rows, SLICE_ROWS):
            part = slice(start, min(start + SLICE_ROWS, test.rows))
            batch = test.slice(part.start, part.stop)
            self.margins(batch, weights, out=margins[part])
            labels[part] = batch.labels
        self.check_labels(labels)
        loss = float(kernels.total_loss(self.number, margins, labels)) / test.rows
        metrics: dict[str, float | None] = {} if self.classes else {"mse": 2.0 * loss}
        if self.classes or kernels.first_no_class(labels, False) < 0:
            metrics["accuracy"] = kernels.hits(margins, labels) / test.rows
            metrics["auc"] = _auc(margins, labels)
        return loss, metrics

    def check_labels(self, labels: Floats) -> None:
        from shoal.models import kernels

        if self.classes and (row := kernels.first_no_class(labels, True)) >= 0:
            raise Invalid(f"row {row} has label {labels[row]}: {self.loss!r} needs -1 and +1, or 0 and 1; or 'squared'")

    def _at_keys(self, what: str, values: Floats, local: Local) -> Floats:
        values = _ready(values)
        if len(values) != len(local.keys):
            raise Invalid(f"{len(values)} {what} for {len(local.keys)} keys: one each is needed")
        if self.bias and not len(values):
            raise Invalid("no keys: the key of the bias is always one of them")
        return values

    def _checked_counts(self, counts: Floats | None, local: Local) -> Floats:
        if counts is None:
            raise Invalid("l2_per_count needs counts: for each key, how many rows of the training set have it")
        features = counts[: len(local.keys) - self.bias]
        if len(features) and not features.min() > 0:
            raise Invalid("counts must be above 0 at every key of a row: count the rows that are trained on")
        return counts


def _auc(margins: Doubles, labels: Floats) -> float | None:
    from shoal.models import kernels

    positives, negatives = np.sort(margins[labels > 0]), np.sort(margins[labels <= 0])
    if not len(positives) or not len(negatives):
        return None
    return int(kernels.twice_pairs_won(positives, negatives)) / (2 * len(positives) * len(negatives))


def _csr(rows: Batch | Local) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], Floats]:
    return rows.indptr, rows.columns, NONE if rows.values is None else rows.values


def _is_torn(indptr: npt.NDArray[np.int64], columns: npt.NDArray[np.uint32], values: Floats) -> bool:
    inside = len(indptr) > 0 and indptr[0] >= 0 and indptr[-1] <= len(columns) and len(values) in (0, len(columns))
    return not inside or bool((indptr[1:] < indptr[:-1]).any())


def _ready(values: npt.NDArray[Any]) -> Floats:
    """The array as the kernels need it: contiguous float32, copied only if necessary."""
    flat = values.reshape(-1)
    fits = flat.dtype == np.float32 and flat.flags.aligned and flat.flags.c_contiguous
    return flat if fits else np.array(flat, np.float32)

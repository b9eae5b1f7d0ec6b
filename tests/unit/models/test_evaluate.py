"""Losses and metrics of weights agree with their slow definitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.batch import Batch
from shoal.errors import Invalid
from shoal.models import Linear, linear

Doubles = npt.NDArray[np.float64]


class Shelf:
    """Rows with one feature each, read in slices; it records which."""

    def __init__(self, margins: list[float], labels: list[float]) -> None:
        self.rows = len(labels)
        self.taken: list[tuple[int, int]] = []
        self._values, self._labels = np.array(margins, np.float32), np.array(labels, np.float32)

    def slice(self, start: int, stop: int) -> Batch:
        self.taken.append((start, stop))
        count = stop - start
        return Batch(
            np.arange(count + 1, dtype=np.int64),
            np.zeros(count, np.uint32),
            self._values[start:stop],
            self._labels[start:stop],
        )


WEIGHT = np.ones(1, np.float32)  # makes a row's value its margin


def slow_auc(margins: list[float], labels: list[float]) -> float | None:
    """The share of pairs of the two classes in which the positive row has the larger margin."""
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, ya in zip(margins, labels, strict=True)
        for b, yb in zip(margins, labels, strict=True)
        if ya > 0 > yb
    ]
    return sum(pairs) / len(pairs) if pairs else None


rows = st.lists(st.tuples(st.integers(-4, 4), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=40)


@settings(deadline=None)
@given(rows)
def test_accuracy_and_auc_are_their_definitions_with_ties(rows: list[tuple[int, float]]) -> None:
    margins, labels = [float(margin) for margin, _ in rows], [label for _, label in rows]
    _, metrics = Linear(bias=False).evaluate(Shelf(margins, labels), WEIGHT)
    assert metrics["auc"] == slow_auc(margins, labels)
    assert metrics["accuracy"] == sum((m > 0) == (y > 0) for m, y in rows) / len(rows)


def test_the_auc_of_one_class_is_none() -> None:
    loss, metrics = Linear(bias=False).evaluate(Shelf([1.0, 2.0], [1.0, 1.0]), WEIGHT)
    assert metrics == {"accuracy": 1.0, "auc": None}
    assert loss == pytest.approx(np.log1p(np.exp([-1.0, -2.0])).mean())


def test_a_perfect_and_a_reversed_order_have_an_auc_of_one_and_zero() -> None:
    shelf = Shelf([3.0, 2.0, 1.0], [1.0, -1.0, -1.0])
    assert Linear(bias=False).evaluate(shelf, WEIGHT)[1]["auc"] == 1.0
    assert Linear(bias=False).evaluate(shelf, -WEIGHT)[1]["auc"] == 0.0
    assert Linear(bias=False).evaluate(shelf, 0 * WEIGHT)[1]["auc"] == 0.5


def test_a_test_set_is_read_in_slices_and_the_answer_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    margins, labels = draw.normal(size=1_000).tolist(), draw.choice([-1.0, 1.0], 1_000).tolist()
    whole = Linear(bias=False).evaluate(Shelf(margins, labels), WEIGHT)
    monkeypatch.setattr(linear, "SLICE_ROWS", 300)
    shelf = Shelf(margins, labels)
    assert Linear(bias=False).evaluate(shelf, WEIGHT) == whole
    assert shelf.taken == [(0, 300), (300, 600), (600, 900), (900, 1_000)]


def test_the_bias_moves_every_margin() -> None:
    loss, metrics = Linear(loss="hinge").evaluate(Shelf([-1.0, -3.0], [1.0, -1.0]), np.array([1.0, 2.0], np.float32))
    assert loss == 0.0
    assert metrics == {"accuracy": 1.0, "auc": 1.0}


def test_classes_written_zero_and_one_are_judged_like_signs() -> None:
    margins = [0.5, -1.0, 2.0, 2.0]
    for loss in ("logistic", "hinge"):
        signs = Linear(loss=loss, bias=False).evaluate(Shelf(margins, [1.0, -1.0, -1.0, 1.0]), WEIGHT)
        assert Linear(loss=loss, bias=False).evaluate(Shelf(margins, [1.0, 0.0, 0.0, 1.0]), WEIGHT) == signs


def test_a_squared_loss_has_the_mean_square_and_classes_only_where_labels_are() -> None:
    model = Linear(loss="squared", bias=False)
    loss, metrics = model.evaluate(Shelf([1.0, 2.0], [0.0, 2.5]), WEIGHT)
    assert metrics == {"mse": 0.625}
    assert loss == 0.3125  # half of it, as in the gradient
    loss, metrics = model.evaluate(Shelf([1.0, -2.0], [1.0, -1.0]), WEIGHT)
    assert metrics == {"mse": 0.5, "accuracy": 1.0, "auc": 1.0}
    # For labels 0 and 1 the threshold is not 0.
    assert model.evaluate(Shelf([1.0, 0.0], [1.0, 0.0]), WEIGHT)[1] == {"mse": 0.0}


def test_a_test_set_that_cannot_be_judged_is_refused() -> None:
    with pytest.raises(Invalid, match="the test set has no rows"):
        Linear().evaluate(Shelf([], []), WEIGHT)
    with pytest.raises(Invalid, match=r"row 1 has label 3\.0"):
        Linear(bias=False).evaluate(Shelf([1.0, 1.0], [1.0, 3.0]), WEIGHT)

"""The margins of a block agree with numpy, and its curvature bounds hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Invalid
from shoal.models.block_margins import AGAIN, RELAX, BlockMargins
from shoal.models.columns import ColumnBlocks, CscColumns
from shoal.models.learner import objective_at
from shoal.models.linear import Linear
from tests.unit.models.test_columns import some_rows

ROWS, FEATURES, BLOCKS = 60, 24, 4


def standing(seed: int, ones: bool = False, loss: Any = "logistic", delay: int = 0) -> tuple[BlockMargins, np.ndarray]:
    rows, dense = some_rows(ROWS, FEATURES, seed, ones)
    blocks = ColumnBlocks.cut("range", BLOCKS, (dense != 0).sum(0).astype(np.uint32), False, ROWS)
    return BlockMargins(CscColumns(rows, blocks, False, FEATURES, loss), delay), dense


def weights_at(one: BlockMargins) -> np.ndarray:
    full = np.zeros(FEATURES)
    full[one.columns.keys] = one.all_weights
    return full


def some_weights(one: BlockMargins, block: int, draw: np.random.Generator) -> np.ndarray:
    weights = draw.normal(size=len(one.weights(block))).astype(np.float32)
    weights[draw.random(len(weights)) < 0.4] = -0.0
    weights[draw.random(len(weights)) < 0.2] = 0.0
    return weights


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("ones", [False, True])
def test_margins_losses_and_gradients_are_those_of_the_weights_taken(ones: bool, loss: str) -> None:
    one, dense = standing(3, ones, loss)
    draw = np.random.default_rng(3)
    for turn in range(12):
        block = turn % BLOCKS
        one.take(block, one.places(block, everything=True), some_weights(one, block, draw))
        margins, labels = dense @ weights_at(one), one.columns.labels.astype(np.float64)
        np.testing.assert_allclose(one.margins, margins, atol=1e-5)
        if loss == "logistic":
            losses, slopes = np.logaddexp(0, -labels * margins), -labels / (1 + np.exp(labels * margins))
        else:
            losses, slopes = (margins - labels) ** 2 / 2, margins - labels
        asked = (block + 1) % BLOCKS
        found, places, values = one.gradient(asked, everything=True)
        assert found == pytest.approx(losses.sum(), rel=1e-5)
        keys = one.columns.keys_of(asked)[places]
        np.testing.assert_allclose(values[:, 0], (dense.T @ slopes)[keys], atol=1e-4)


def test_keys_that_are_left_out_are_looked_at_again_when_everything_is() -> None:
    one, _ = standing(5)
    places = one.places(1, everything=False)
    assert len(places) == len(one.weights(1))  # the weights are +0: no key is left out yet
    weights = np.zeros(len(places), np.float32)
    weights[::2] = -0.0
    one.take(1, places, weights)
    assert one.gradient(1, everything=False)[1].tolist() == places[1::2].tolist()
    assert one.gradient(1, everything=True)[1].tolist() == places.tolist()


def test_keys_left_out_do_not_slow_the_others_down() -> None:
    one, _ = standing(6, ones=True)
    places = one.places(0, everything=True)
    before = one.gradient(0, everything=False)[2][:, 1]
    weights = np.zeros(len(places), np.float32)
    weights[1:] = -0.0
    one.take(0, places, weights)
    alone = one.gradient(0, everything=False)[2][0, 1]
    beside, *others = one.gradient(0, everything=True)[2][:, 1]
    assert alone < beside < before[0]
    # These take smaller steps.
    assert all(again > first for again, first in zip(others, before[1:], strict=True))
    assert AGAIN < 1


def test_margins_made_anew_are_the_ones_that_were_moved() -> None:
    one, _ = standing(7, delay=2)
    draw = np.random.default_rng(7)
    for turn in range(8):
        block = turn % BLOCKS
        places = one.places(block, everything=True)
        some = np.sort(draw.choice(places, len(places) // 2, replace=False))
        one.take(block, some, some_weights(one, block, draw)[some])
    other = BlockMargins(one.columns, delay=2)
    other.refresh(one.all_weights)
    np.testing.assert_allclose(other.margins, one.margins, atol=1e-6)
    for block in range(BLOCKS):
        (_, places, mine), (_, theirs, fresh) = one.gradient(block, False), other.gradient(block, False)
        assert places.tolist() == theirs.tolist()
        np.testing.assert_allclose(mine[:, 0], fresh[:, 0], atol=1e-5)
        # The new one does not know yet how far steps go.
        assert (fresh[:, 1] >= mine[:, 1] * (1 - 1e-5)).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), ones=st.booleans(), everything=st.booleans(), delay=st.integers(0, 3))
def test_no_step_of_a_block_curves_more_than_its_bound(seed: int, ones: bool, everything: bool, delay: int) -> None:
    one, dense = standing(seed, ones, delay=delay)
    draw = np.random.default_rng(seed)
    for block in range(BLOCKS):
        one.take(block, one.places(block, everything=True), some_weights(one, block, draw))
    block = seed % BLOCKS
    _, places, values = one.gradient(block, everything)
    wrong = 1 / (1 + np.exp(one.columns.labels * one.margins))
    step = draw.normal(size=len(places)) * 10.0 ** draw.uniform(-2, 2, len(places))
    along = dense[:, one.columns.keys_of(block)[places]] @ step
    assert (wrong * (1 - wrong) * along**2).sum() <= (values[:, 1] * step**2).sum() * RELAX * (1 + 1e-5)


def test_bounds_grow_with_the_delay() -> None:
    bounds = [standing(8, delay=delay)[0].gradient(0, everything=True)[2][:, 1] for delay in (0, 1, 3)]
    assert (bounds[0] < bounds[1]).all() and (bounds[1] < bounds[2]).all()


def test_weights_and_places_must_agree() -> None:
    one, _ = standing(9)
    with pytest.raises(Invalid, match="2 weights for 3 keys"):
        one.take(0, np.arange(3), np.zeros(2, np.float32))


def test_a_part_without_rows_says_nothing_and_stops_nobody() -> None:
    rows, _ = some_rows(0, 8, 0)
    one = BlockMargins(CscColumns(rows, ColumnBlocks(np.array([0, 4, 8], np.uint64)), True, 8))
    loss, places, values = one.gradient(1, everything=True)
    assert loss == 0.0 and len(places) == len(values)


class Whole:
    """A data set in memory."""

    def __init__(self, rows: Any) -> None:
        self._rows, self.rows = rows, len(rows)

    def slice(self, start: int, stop: int) -> Any:
        return self._rows


@pytest.mark.parametrize("bias", [False, True])
def test_the_objective_and_the_violation_are_those_of_numpy(bias: bool) -> None:
    rows, dense = some_rows(ROWS, FEATURES, 11)
    draw = np.random.default_rng(11)
    weights = draw.normal(size=FEATURES + bias).astype(np.float32)
    weights[::3], weights[1::5] = 0.0, -0.0
    whole = np.hstack([dense, np.ones((ROWS, 1))]) if bias else dense
    wide, margins = weights.astype(np.float64), whole @ weights.astype(np.float64)
    slopes = whole.T @ (-rows.labels / (1 + np.exp(rows.labels * margins))) + 0.25 * wide
    off = [abs(g + 0.5 * np.sign(w)) if w else max(0.0, abs(g) - 0.5) for g, w in zip(slopes, wide, strict=True)]
    found = objective_at(Whole(rows), Linear(bias=bias), weights, 0.5, 0.25)
    objective = np.logaddexp(0, -rows.labels * margins).sum() + 0.5 * np.abs(wide).sum() + 0.125 * (wide**2).sum()
    assert found["objective"] == pytest.approx(objective, rel=1e-6)
    assert found["violation"] == pytest.approx(max(off) / 0.5, rel=1e-5)
    assert found["nonzero"] == np.count_nonzero(weights)

"""Linear models agree with plain numpy: losses, gradients, margins and predictions.

Wrong rows and settings are refused.
"""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.batch import Batch, Local, Localiser
from shoal.errors import Invalid
from shoal.models import Linear
from shoal.models.linear import Loss

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LOSSES: tuple[Loss, ...] = ("logistic", "hinge", "squared")
FEATURES = 40
NOTHING = np.empty(0, np.float32)


def rows_of(draw: np.random.Generator, rows: int, ones: bool = False, features: int = FEATURES) -> Batch:
    """Random rows, some of them empty, with classes as labels."""
    lists = [np.sort(draw.choice(features, draw.integers(0, 12), replace=False)) for _ in range(rows)]
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    columns = np.concatenate([*lists, np.empty(0)]).astype(np.uint32)
    values = None if ones else draw.normal(size=len(columns)).astype(np.float32)
    return Batch(indptr, columns, values, draw.choice([-1.0, 1.0], rows).astype(np.float32))


def one_row(values: list[float], label: float = 1.0) -> Local:
    count = len(values)
    return Local(
        np.arange(count, dtype=np.uint64),
        np.array([0, count], np.int64),
        np.arange(count, dtype=np.uint32),
        np.array(values, np.float32),
        np.array([label], np.float32),
    )


def matrix(rows: Batch | Local, width: int) -> Doubles:
    """The same rows as a dense matrix."""
    out = np.zeros((len(rows), width))
    for i in range(len(rows)):
        part = slice(rows.indptr[i], rows.indptr[i + 1])
        out[i, rows.columns[part]] = 1.0 if rows.values is None else rows.values[part]
    return out


def twin_losses(loss: Loss, margins: Doubles, labels: Floats) -> Doubles:
    ym = labels * margins
    match loss:
        case "logistic":
            return np.logaddexp(0.0, -ym)
        case "hinge":
            return np.maximum(0.0, 1.0 - ym)
    return 0.5 * (margins - labels) ** 2


def twin_slopes(loss: Loss, margins: Doubles, labels: Floats) -> Doubles:
    ym = labels * margins
    match loss:
        case "logistic":
            return -labels.astype(np.float64) * np.exp(-np.logaddexp(0.0, ym))
        case "hinge":
            return np.where(ym < 1.0, -labels, 0.0)
    return np.asarray(margins - labels, np.float64)


def twin(model: Linear, local: Local, weights: Floats, mean: bool) -> tuple[float, Doubles]:
    x = matrix(local, len(local.keys))
    if model.bias:
        x[:, -1] = 1.0
    margins = x @ weights.astype(np.float64)
    gradient = twin_slopes(model.loss, margins, local.labels) @ x
    return twin_losses(model.loss, margins, local.labels).sum(), gradient / (len(local) if mean and len(local) else 1)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(LOSSES), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 30), st.integers(0, 1 << 32)
)
def test_loss_and_gradient_are_their_formulas(
    loss: Loss, bias: bool, ones: bool, mean: bool, rows: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    model = Linear(loss=loss, bias=bias)
    local = Localiser(FEATURES).local(rows_of(draw, rows, ones), bias)
    weights = draw.normal(size=len(local.keys)).astype(np.float32)
    before = weights.copy()
    total, gradient = model.gradient(local, weights, mean)
    expected, formula = twin(model, local, weights, mean)
    assert total == pytest.approx(expected, rel=1e-12)
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, formula, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(weights, before)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("l2", [0.0, 0.7])
def test_the_gradient_is_the_slope_of_loss_and_penalty(loss: Loss, l2: float) -> None:
    draw = np.random.default_rng(1)
    model = Linear(loss=loss, l2_per_count=l2)
    batch = rows_of(draw, 25)
    local = Localiser(FEATURES).local(batch, True)
    counts = draw.integers(1, 9, len(local.keys)).astype(np.float32)
    weights = draw.normal(size=len(local.keys)).astype(np.float32)
    # The rows of this batch with the key.
    here = np.bincount(local.columns, minlength=len(local.keys))

    def objective(at: Floats) -> float:
        penalty = 0.5 * l2 * float((here * at.astype(np.float64) ** 2 / counts).sum())
        return model.gradient(local, at, False, counts)[0] + penalty

    _, gradient = model.gradient(local, weights, False, counts)
    for k in range(len(weights)):
        up, down = weights.copy(), weights.copy()
        up[k] += 1e-3
        down[k] -= 1e-3
        slope = (objective(up) - objective(down)) / (float(up[k]) - float(down[k]))
        assert gradient[k] == pytest.approx(slope, rel=1e-3, abs=1e-3)


def test_the_penalty_of_a_pass_is_that_of_every_key_once() -> None:
    draw = np.random.default_rng(2)
    local = Localiser(FEATURES).local(rows_of(draw, 50), True)
    counts = np.bincount(local.columns, minlength=len(local.keys)).astype(np.float32)
    weights = draw.normal(size=len(local.keys)).astype(np.float32)
    _, plain = Linear().gradient(local, weights, False)
    _, penalised = Linear(l2_per_count=0.5).gradient(local, weights, False, counts)
    np.testing.assert_allclose((penalised - plain)[:-1], 0.5 * weights[:-1], atol=1e-5)
    assert penalised[-1] == plain[-1]  # the bias has no penalty


def test_at_the_kink_of_the_hinge_the_slope_is_zero() -> None:
    model = Linear(loss="hinge", bias=False)
    local = one_row([1.0])
    loss, gradient = model.gradient(local, np.array([1.0], np.float32), False)
    assert (loss, gradient.tolist()) == (0.0, [0.0])
    below = np.nextafter(np.float32(1.0), np.float32(0.0))
    loss, gradient = model.gradient(local, np.array([below], np.float32), False)
    assert loss == 1.0 - below
    assert gradient == [-1.0]


@pytest.mark.parametrize("margin", [1e3, 1e30, 3e38])
def test_huge_margins_stay_finite(margin: float) -> None:
    weights = np.array([margin], np.float32)
    for label in (1.0, -1.0):
        loss, gradient = Linear(bias=False).gradient(one_row([1.0], label), weights, True)
        assert loss == pytest.approx(0.0 if label > 0 else margin)
        assert gradient == [0.0 if label > 0 else 1.0]
        loss, gradient = Linear(loss="hinge", bias=False).gradient(one_row([1.0], label), weights, True)
        assert loss == pytest.approx(0.0 if label > 0 else 1.0 + margin)
        assert gradient == [0.0 if label > 0 else 1.0]
    loss, gradient = Linear(loss="squared", bias=False).gradient(one_row([1.0], 0.0), weights, True)
    assert loss == pytest.approx(0.5 * float(weights[0]) ** 2)
    assert gradient == weights


def test_float32_extremes_cancel_in_double_precision() -> None:
    most, least = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)
    local = one_row([most, most, least])
    weights = np.array([most, -most, 1.0], np.float32)
    loss, gradient = Linear(loss="squared", bias=False).gradient(local, weights, False)
    assert loss == pytest.approx(0.5)  # the two large ones cancel exactly, and nothing was infinite
    np.testing.assert_allclose(gradient, [-most, -most, -least], rtol=1e-6)


def test_what_is_not_finite_is_never_hidden() -> None:
    """An infinite value times 0 is NaN and must stay NaN.

    The client refuses such a gradient, so it must see it.
    """
    for loss in LOSSES:
        total, gradient = Linear(loss=loss, bias=False).gradient(one_row([math.inf]), np.zeros(1, np.float32), False)
        assert math.isnan(total)
        assert not np.isfinite(gradient).any()


def test_empty_rows_have_the_bias_alone() -> None:
    empty = Batch(np.zeros(4, np.int64), np.empty(0, np.uint32), None, np.array([1, 1, -1], np.float32))
    local = Localiser(FEATURES).local(empty, True)
    assert local.keys.tolist() == [FEATURES]
    loss, gradient = Linear(loss="squared").gradient(local, np.array([0.5], np.float32), False)
    assert loss == pytest.approx(0.125 + 0.125 + 1.125)
    assert gradient == [0.5]
    local = Localiser(FEATURES).local(empty, False)
    loss, gradient = Linear(loss="squared", bias=False).gradient(local, np.empty(0, np.float32), True)
    assert (loss, len(gradient)) == (1.5, 0)


def test_no_rows_have_no_loss_and_no_gradient() -> None:
    local = Localiser(FEATURES).local(rows_of(np.random.default_rng(0), 0), True)
    for mean in (True, False):
        loss, gradient = Linear().gradient(local, np.ones(1, np.float32), mean)
        assert (loss, gradient.tolist()) == (0.0, [0.0])


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_ones_are_rows_whose_values_are_one(loss: Loss) -> None:
    draw = np.random.default_rng(3)
    ones = rows_of(draw, 60, ones=True)
    written = Batch(ones.indptr, ones.columns, np.ones(len(ones.columns), np.float32), ones.labels)
    model, localiser = Linear(loss=loss), Localiser(FEATURES)
    local = localiser.local(ones, True)
    weights = draw.normal(size=len(local.keys)).astype(np.float32)
    bare, same = model.gradient(local, weights, True), model.gradient(localiser.local(written, True), weights, True)
    assert bare[0] == same[0]
    np.testing.assert_array_equal(bare[1], same[1])


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_classes_may_be_written_zero_and_one(loss: Loss) -> None:
    draw = np.random.default_rng(9)
    local, model = Localiser(FEATURES).local(rows_of(draw, 60), True), Linear(loss=loss)
    weights = draw.normal(size=len(local.keys)).astype(np.float32)
    other = Local(local.keys, local.indptr, local.columns, local.values, np.maximum(local.labels, 0))
    signs, bits = model.gradient(local, weights, True), model.gradient(other, weights, True)
    assert signs[0] == bits[0]
    np.testing.assert_array_equal(signs[1], bits[1])


@pytest.mark.parametrize("loss", LOSSES)
def test_many_clients_with_sums_equal_one_client_with_all_rows(loss: Loss) -> None:
    draw = np.random.default_rng(4)
    batch, model, localiser = rows_of(draw, 96), Linear(loss=loss), Localiser(FEATURES)
    weights = draw.normal(size=model.keys(FEATURES)).astype(np.float32)
    whole, total, losses = np.zeros(FEATURES + 1, np.float32), np.zeros(FEATURES + 1), 0.0
    local = localiser.local(batch, True)
    loss_of_all, whole[local.keys.astype(np.int64)] = model.gradient(local, weights[local.keys.astype(np.int64)], False)
    for first in range(0, 96, 24):
        part = localiser.local(cut(batch, first, first + 24), True)
        places = part.keys.astype(np.int64)
        one, gradient = model.gradient(part, weights[places], False)
        total[places] += gradient
        losses += one
    assert losses == pytest.approx(loss_of_all, rel=1e-12)
    np.testing.assert_allclose(total, whole, rtol=1e-5, atol=1e-6)


def cut(batch: Batch, first: int, beyond: int) -> Batch:
    low, high = batch.indptr[first], batch.indptr[beyond]
    values = None if batch.values is None else batch.values[low:high]
    return Batch(batch.indptr[first : beyond + 1] - low, batch.columns[low:high], values, batch.labels[first:beyond])


def test_the_same_rows_and_weights_give_the_same_bits() -> None:
    draw = np.random.default_rng(5)
    local = Localiser(FEATURES).local(rows_of(draw, 200), True)
    weights = draw.normal(size=len(local.keys)).astype(np.float32)
    first, again = Linear().gradient(local, weights, True), Linear().gradient(local, weights, True)
    assert first[0] == again[0]
    assert first[1] is not again[1]  # a push may hold the first one, so it must not change
    np.testing.assert_array_equal(first[1], again[1])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ones", [True, False])
def test_margins_and_predictions_are_their_formulas(bias: bool, ones: bool) -> None:
    draw = np.random.default_rng(6)
    batch = rows_of(draw, 70, ones)
    weights = draw.normal(size=FEATURES + bias).astype(np.float32)
    x = matrix(batch, FEATURES + bias)
    if bias:
        x[:, -1] = 1.0
    expected = x @ weights.astype(np.float64)
    np.testing.assert_allclose(Linear(bias=bias).margins(batch, weights), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(Linear(bias=bias).predict(batch, weights), 1 / (1 + np.exp(-expected)), rtol=1e-12)
    for loss in ("hinge", "squared"):
        np.testing.assert_allclose(Linear(loss=loss, bias=bias).predict(batch, weights), expected, atol=1e-12)
    out = np.empty(70)
    assert Linear(bias=bias).margins(batch, weights, out=out) is out


def test_margins_read_rows_that_lie_in_a_larger_array() -> None:
    draw = np.random.default_rng(7)
    batch = rows_of(draw, 30)
    weights = draw.normal(size=FEATURES + 1).astype(np.float32)
    part = Batch(batch.indptr[10:21], batch.columns, batch.values, batch.labels[10:20])
    np.testing.assert_array_equal(Linear().margins(part, weights), Linear().margins(batch, weights)[10:20])


def test_weights_come_as_a_column_as_doubles_or_at_an_odd_address() -> None:
    draw = np.random.default_rng(8)
    local = Localiser(FEATURES).local(rows_of(draw, 20), True)
    weights = draw.normal(size=len(local.keys)).astype(np.float32)
    expected = Linear().gradient(local, weights, True)[1]
    odd = np.frombuffer(b"." + weights.tobytes(), np.float32, offset=1)
    assert not odd.flags.aligned
    for same in (weights.reshape(-1, 1), weights.astype(np.float64), np.repeat(weights, 2)[::2], odd):
        np.testing.assert_array_equal(Linear().gradient(local, same, True)[1], expected)  # type: ignore[arg-type]


def test_the_table_has_one_more_row_for_the_bias() -> None:
    assert Linear().keys(10) == 11
    assert Linear(bias=False).keys(10) == 10


def test_a_job_file_decodes_into_a_model() -> None:
    assert msgspec.convert({"loss": "hinge", "l2_per_count": 1e-4}, Linear) == Linear(loss="hinge", l2_per_count=1e-4)
    for wrong in ({"loss": "log"}, {"l2_per_count": -1.0}, {"lose": "hinge"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Linear)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"loss": "log"}, "loss='log': needs one of logistic, hinge, squared"),
        ({"l2_per_count": -1.0}, "a finite number of 0 or more is needed"),
        ({"l2_per_count": math.nan}, "a finite number of 0 or more is needed"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        Linear(**wrong)


def test_what_does_not_fit_together_is_refused_with_the_next_move() -> None:
    local, weights = one_row([1.0, 2.0]), np.zeros(2, np.float32)
    plain = Linear(bias=False)
    with pytest.raises(Invalid, match="3 weights for 2 keys"):
        plain.gradient(local, np.zeros(3, np.float32), True)
    for label in (2.0, 0.5, math.nan):
        with pytest.raises(Invalid, match=rf"row 0 has label {label}: .*needs -1 and \+1, or 0 and 1; or 'squared'"):
            plain.check_labels(one_row([1.0, 2.0], label).labels)
    with pytest.raises(Invalid, match="needs counts"):
        Linear(bias=False, l2_per_count=1.0).gradient(local, weights, True)
    with pytest.raises(Invalid, match="above 0"):
        Linear(bias=False, l2_per_count=1.0).gradient(local, weights, True, np.array([1.0, 0.0], np.float32))
    with pytest.raises(Invalid, match="1 counts for 2 keys"):
        Linear(bias=False, l2_per_count=1.0).gradient(local, weights, True, np.ones(1, np.float32))
    with pytest.raises(Invalid, match="the key of the bias is always"):
        Linear().gradient(Localiser(4).local(rows_of(np.random.default_rng(0), 0), False), NOTHING, True)


def test_a_row_with_a_feature_that_has_no_weight_is_refused() -> None:
    batch = Batch(np.array([0, 1], np.int64), np.array([5], np.uint32), None, np.ones(1, np.float32))
    assert Linear(bias=False).margins(batch, np.ones(6, np.float32)) == [1.0]
    for model, weights in ((Linear(bias=False), 5), (Linear(), 6), (Linear(), 0)):
        with pytest.raises(Invalid, match=r"columns up to 5.*read both sets with the same number of features"):
            model.margins(batch, np.ones(weights, np.float32))
    with pytest.raises(Invalid, match="there are 1 rows"):
        Linear().margins(batch, np.ones(7, np.float32), out=np.empty(2))


def test_importing_the_models_does_not_import_numba() -> None:
    code = "import sys, shoal.models; shoal.models.Linear(); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})

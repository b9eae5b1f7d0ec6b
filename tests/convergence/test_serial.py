"""The serial run learns, and does what a worker and a server do without a network.

All other runs are compared with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.serial_fit import serial_fit
from shoal.data.batch import Batch, Localiser
from shoal.data.datasets import DataSource, load
from shoal.data.slots import Slots
from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.models import Linear
from shoal.models.linear import Loss
from shoal.store.table.table import ServerTable
from shoal.store.table.update import (
    FTRL,
    SGD,
    AdaGrad,
    rule_named,
)
from shoal.tables import Sparse, Update

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

FEATURES, ROWS, BATCH, PASSES = 60, 210, 32, 3  # the last slot has fewer rows
SLOTS = -(-ROWS // BATCH)
LOSSES: tuple[Loss, ...] = ("logistic", "hinge", "squared")
UPDATES = [SGD(0.5), SGD(0.5, l1=1e-3, l2=1e-2), AdaGrad(0.3), AdaGrad(0.3, l1=1e-3, l2=1e-2), FTRL(l1=1e-3, l2=1e-2)]


class Whole(Batch):
    """Holds all rows as a set to be evaluated."""

    @property
    def rows(self) -> int:
        return len(self)

    def slice(self, start: int, stop: int) -> Batch:
        return part(self, start, stop)


def separable(seed: int = 0, ones: bool = False) -> Whole:
    """Returns rows that some weights separate."""
    draw = np.random.default_rng(seed)
    lists = [np.sort(draw.choice(FEATURES, draw.integers(1, 9), replace=False)) for _ in range(ROWS)]
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    columns = np.concatenate(lists).astype(np.uint32)
    values = np.ones(len(columns), np.float32) if ones else draw.normal(size=len(columns)).astype(np.float32)
    truth = draw.normal(size=FEATURES)
    labels = np.sign(np.add.reduceat(values * truth[columns], indptr[:-1])).astype(np.float32)
    return Whole(indptr, columns, None if ones else values, labels)


def part(rows: Batch, first: int, beyond: int) -> Batch:
    low, high = rows.indptr[first], rows.indptr[beyond]
    values = None if rows.values is None else rows.values[low:high]
    return Batch(rows.indptr[first : beyond + 1] - low, rows.columns[low:high], values, rows.labels[first:beyond])


def orders(passes: int = PASSES) -> Ids:
    draw = np.random.default_rng(1)
    return np.stack([draw.permutation(SLOTS) for _ in range(passes)])


def written_out(model: Linear, rows: Batch) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Returns the rows as a matrix, and which keys each of them has."""
    x = np.zeros((len(rows), model.keys(FEATURES)))
    has = np.zeros((len(rows), model.keys(FEATURES)), bool)
    for i in range(len(rows)):
        places = rows.columns[rows.indptr[i] : rows.indptr[i + 1]]
        x[i, places] = 1.0 if rows.values is None else rows.values[rows.indptr[i] : rows.indptr[i + 1]]
        has[i, places] = True
    if model.bias:
        x[:, -1] = 1.0
    return x, has


def by_numpy(model: Linear, update: Update, rows: Batch, order: Ids, mean: bool, counts: Floats) -> Floats:
    """Does the same in numpy and plain Python, on dense rows.

    It computes in double precision between float32 weights and states.
    """
    x, has = written_out(model, rows)
    rule = rule_named(update.name)
    settings = rule.settings(update.settings)
    weights, states = np.zeros(x.shape[1], np.float32), np.zeros((x.shape[1], rule.state), np.float32)
    for slot in order.reshape(-1):
        mine = slice(slot * BATCH, min((slot + 1) * BATCH, len(rows)))
        margins, y = x[mine] @ weights.astype(np.float64), rows.labels[mine].astype(np.float64)
        match model.loss:
            case "logistic":
                slopes = -y / (1.0 + np.exp(y * margins))
            case "hinge":
                slopes = np.where(y * margins < 1.0, -y, 0.0)
            case "squared":
                slopes = margins - y
        sums = slopes @ x[mine] + model.l2_per_count * weights / counts * has[mine].sum(axis=0)
        gradient = (sums / (len(y) if mean else 1)).astype(np.float32)
        for key in np.flatnonzero(has[mine].any(axis=0) | (model.bias and np.arange(x.shape[1]) == FEATURES)):
            weight, state = rule.function(
                float(weights[key]), tuple(states[key].tolist()), float(gradient[key]), settings
            )
            weights[key], states[key] = weight, state
    return weights


def by_the_store(model: Linear, update: Update, rows: Batch, order: Ids, counts: Floats | None = None) -> Floats:
    """Computes a worker's gradient and pushes it to a server's table, in turn."""
    keys = model.keys(FEATURES)
    table, localiser = ServerTable(Sparse(keys=keys, update=update), [KeyRange(0, keys)]), Localiser(FEATURES)
    for slot in order.reshape(-1).tolist():
        local = localiser.local(part(rows, slot * BATCH, min((slot + 1) * BATCH, len(rows))), model.bias)
        seen = None if counts is None else counts[local.keys.astype(np.int64)]
        _, gradient = model.gradient(local, table.pull(local.keys), True, seen)
        table.push(local.keys, gradient)
    return table.pull(np.arange(keys, dtype=np.uint64))[:, 0]


@pytest.mark.variants(slow=["logistic-proximal_adagrad-False", "logistic-proximal_sgd-False", "logistic-adagrad-False"])
@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_serial_run_is_a_worker_and_a_server_bit_for_bit(loss: Loss, update: Update, ones: bool) -> None:
    rows, order = separable(ones=ones), orders()
    for model, counts in ((Linear(loss=loss), None), (Linear(loss=loss, bias=False, l2_per_count=0.1), counted())):
        if counts is not None:
            counts = counts[:FEATURES]
        weights, seconds = serial_fit(model, update, rows, BATCH, FEATURES, PASSES, order, counts=counts)
        np.testing.assert_array_equal(weights, by_the_store(model, update, rows, order, counts))
        assert weights.any()
        assert len(seconds) == PASSES


def counted() -> Floats:
    """Returns how many rows have each key; every row has the bias."""
    return np.append(np.maximum(np.bincount(separable().columns, minlength=FEATURES), 1), ROWS).astype(np.float32)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_serial_run_is_its_formulas(loss: Loss, update: Update, mean: bool) -> None:
    if not mean and update.name in ("sgd", "proximal_sgd"):
        # Sums of 32 rows need a smaller step.
        update = Update(update.name, {**update.settings, "step": 0.01})
    for model in (Linear(loss=loss), Linear(loss=loss, bias=False), Linear(loss=loss, l2_per_count=0.1)):
        counts = counted()[: model.keys(FEATURES)]
        weights, _ = serial_fit(model, update, separable(), BATCH, FEATURES, PASSES, orders(), mean=mean, counts=counts)
        expected = by_numpy(model, update, separable(), orders(), mean, counts)
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
@pytest.mark.parametrize("loss", LOSSES)
def test_without_key_lists_it_takes_the_same_steps(loss: Loss, update: Update, ones: bool) -> None:
    for model in (Linear(loss=loss), Linear(loss=loss, bias=False)):
        told = [
            serial_fit(model, update, separable(ones=ones), BATCH, FEATURES, PASSES, orders(), bare=bare)[0]
            for bare in (False, True)
        ]
        np.testing.assert_allclose(told[0], told[1], rtol=1e-5, atol=1e-6)
    with pytest.raises(Invalid, match="leave bare out"):
        serial_fit(
            Linear(loss=loss, l2_per_count=0.1), update, separable(), BATCH, FEATURES, PASSES, orders(), bare=True
        )


LEARNERS = [SGD(0.5), AdaGrad(0.3), FTRL(alpha=1.0)]


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("update", LEARNERS, ids=lambda update: update.name)
def test_the_serial_run_learns_what_can_be_told_apart(loss: Loss, update: Update) -> None:
    model, rows = Linear(loss=loss), separable()
    before, _ = model.evaluate(rows, np.zeros(model.keys(FEATURES), np.float32))
    weights, _ = serial_fit(model, update, rows, BATCH, FEATURES, 150, orders(150))
    after, metrics = model.evaluate(rows, weights)
    assert after < 0.3 * before
    assert metrics["accuracy"] is not None and metrics["accuracy"] > 0.96
    assert metrics["auc"] is not None and metrics["auc"] > 0.99


@pytest.mark.parametrize("update", LEARNERS, ids=lambda update: update.name)
def test_the_serial_run_comes_close_to_least_squares(update: Update) -> None:
    model, rows = Linear(loss="squared"), separable()
    x, _ = written_out(model, rows)
    best, _ = model.evaluate(rows, np.linalg.lstsq(x, rows.labels)[0].astype(np.float32))
    weights, _ = serial_fit(model, update, rows, BATCH, FEATURES, 150, orders(150))
    assert best <= model.evaluate(rows, weights)[0] < 1.05 * best


def test_a_pass_in_another_order_ends_elsewhere() -> None:
    """The order matters, so the equality above is no accident."""
    rows, order = separable(), orders(1)
    one, _ = serial_fit(Linear(), SGD(0.5), rows, BATCH, FEATURES, 1, order)
    other, _ = serial_fit(Linear(), SGD(0.5), rows, BATCH, FEATURES, 1, order[:, ::-1])
    assert (one != other).any()
    np.testing.assert_array_equal(other, by_the_store(Linear(), SGD(0.5), rows, order[:, ::-1]))


def test_what_does_not_fit_together_is_refused() -> None:
    rows, order = separable(), orders()
    right: dict[str, Any] = {
        "model": Linear(),
        "update": SGD(),
        "rows": rows,
        "batch_size": BATCH,
        "features": FEATURES,
    }
    right |= {"passes": PASSES, "order": order}
    for wrong, why in (
        ({"batch_size": 0}, "at least one of each"),
        ({"passes": 9}, "a row of slots for each pass"),
        ({"order": order + 1}, f"slots 1 to {SLOTS}: there are {SLOTS}"),
        ({"order": order - 1}, "slots -1 to"),
        ({"order": order[0]}, "a row of slots for each pass"),
        ({"features": 3}, "the set has 3"),
        ({"model": Linear(l2_per_count=1.0)}, "needs counts"),
        ({"model": Linear(l2_per_count=1.0), "counts": 0 * counted()}, "above 0"),
        ({"rows": Batch(rows.indptr, rows.columns, rows.values, rows.labels + 2)}, "has label"),
    ):
        with pytest.raises(Invalid, match=why):
            serial_fit(**(right | wrong))


@pytest.mark.variants(slow=["rcv1-model2*", "rcv1-model3*"])
@pytest.mark.parametrize(
    ("name", "model", "update", "loss", "accuracy"),
    [
        ("a9a", Linear(), AdaGrad(0.1), 0.33, 0.845),
        ("rcv1", Linear(), AdaGrad(0.3), 0.175, 0.935),
        ("rcv1", Linear(), FTRL(alpha=0.3, beta=1e-3, l1=1e-2), 0.2, 0.935),
        ("rcv1", Linear(loss="hinge", l2_per_count=0.5), AdaGrad(0.3), 0.18, 0.935),
    ],
)
def test_the_serial_run_learns_real_data(
    name: str, model: Linear, update: Update, loss: float, accuracy: float, tmp_path: Path
) -> None:
    """Five passes reach a loss and an accuracy within bounds.

    The bounds are a little worse than what these settings reached when this was written.
    """
    if not os.environ.get("SHOAL_DATA"):
        pytest.skip("SHOAL_DATA is not set: it names the folder of the data sets")
    data = load(DataSource(name), seed=0, cache=tmp_path)
    slots = Slots(data.train.rows, 256, seed=0)
    rows = data.train.take(np.concatenate([slots.rows(content) for content in range(slots.per_pass)]))
    order = np.stack([slots.contents(of_pass) for of_pass in range(5)])
    counts = np.append(data.train.counts, data.train.rows)[: model.keys(data.features)].astype(np.float32)
    weights, seconds = serial_fit(model, update, rows, 256, data.features, 5, order, counts=counts)
    reached, metrics = model.evaluate(data.test, weights)
    print(f"{name}: loss {reached:.4f}, {metrics}, {len(rows) / max(min(seconds), 1e-9):,.0f} rows/s")
    assert reached < loss
    assert metrics["accuracy"] is not None and metrics["accuracy"] > accuracy
    if update.name == "ftrl":  # l1 leaves few of the 27,259 terms that occur
        assert 0 < np.count_nonzero(weights) < 5_000

"""A worker's own model computes gradient, mean and step in the order of S3-09.

Also which rows belong to which worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.batch import Localiser
from shoal.data.datasets import load
from shoal.data.packed import sparse
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.launch.serverless_pool import PoolWorkerSpec
from shoal.models.learner import learner_of
from shoal.settings_tree import changed
from shoal.strategies.gossip.model import (
    Consensus,
    GossipLocalModel,
    assign_rows,
    describe_split,
    model_of,
)

JOB = {
    "data": {"source": "rcv1-like", "rows": 400, "features": 1_000, "batch": 10},
    "strategy": "gossip",
    "workers": 4,
    "launch": {"how": "threads"},
}


def job(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


def core(of: Job, number: int = 0) -> GossipLocalModel:
    return model_of(PoolWorkerSpec.of(of, load(of.data, of.seed)), number)[1]


def test_the_gradient_of_before_the_mean_is_applied_after_it() -> None:
    """X(k+1) = X(k) W - step * G(X(k))."""
    of = job(update__rule="sgd", update__step=0.5, strategy__start="own")
    one, train = core(of), load(of.data, of.seed).train
    slots, learner = Slots(train.rows, 10, of.seed), learner_of(of.model, train, of.seed)
    before, other = one.weights.astype(np.float64), np.full(one.size, 0.25, np.float32)
    loss, rows = one.gradient(3)
    one.mix(0.75, [(0.25, other)])
    one.step()
    local = _local(of, train, slots, 3)
    expected_loss, found = learner.gradient(local, before[local.keys.astype(np.int64)].astype(np.float32), True)
    gradient = np.zeros(one.size)
    gradient[local.keys.astype(np.int64)] = found
    assert (loss, rows) == (expected_loss, 10)
    assert np.allclose(one.weights, 0.75 * before + 0.25 * 0.25 - 0.5 * gradient, rtol=0, atol=1e-7)


def _local(of: Job, train: Any, slots: Slots, number: int) -> Any:
    rows = sparse(train)
    return Localiser(rows.features).local(rows.slice(*slots.span(slots.content(0, number))), of.linear.bias)


def test_a_step_may_be_shorter_than_the_rule_has_it() -> None:
    of = job(update__rule="sgd", strategy__start="own")
    whole, half = core(of), core(of)
    start = whole.weights
    for one in (whole, half):
        one.gradient(0)
    whole.step()
    half.step(0.5)
    assert np.allclose(half.weights - start, (whole.weights - start) / 2, rtol=0, atol=1e-8) and half.weights.any()


def test_everybody_begins_alike_unless_told_otherwise() -> None:
    assert not core(job(), 0).weights.any() and not core(job(), 2).weights.any()
    own = job(strategy__start="own")
    assert not np.array_equal(core(own, 0).weights, core(own, 1).weights)
    assert np.array_equal(core(own, 1).weights, core(own, 1).weights)


@pytest.mark.parametrize("split", ["even", "shuffled", "label", "dirichlet"])
def test_every_row_is_somebodys_and_nobody_has_it_twice(split: str) -> None:
    of = job(strategy__split=split)
    train = load(of.data, of.seed).train
    order, shares, _ = assign_rows(of, train, 4)
    if order is not None:
        assert sorted(order.tolist()) == list(range(train.rows))
        assert sum(shares) == train.rows and len(shares) == 4
    else:
        assert shares == [1.0] * 4


def test_by_label_the_first_worker_has_other_labels_than_the_last() -> None:
    of = job(strategy__split="label")
    train = load(of.data, of.seed).train
    order, _, _ = assign_rows(of, train, 4)
    assert order is not None
    labels = train.labels[order]
    assert set(labels[:50]) == {labels.min()} and set(labels[-50:]) == {labels.max()}


def slabs(*values: float) -> list[tuple[npt.NDArray[np.float32], float]]:
    return [(np.full((1001, 1), value, np.float32), 1.0) for value in values]


def test_how_far_models_are_apart_is_told_of_the_weights_alone() -> None:
    of = job(update__rule="sgd")
    dataset = load(of.data, of.seed)
    apart = Consensus(learner_of(of.model, dataset.train, of.seed), dataset.test, (1001, 1))
    apart.take(slabs(1.0, 3.0))
    assert np.array_equal(apart.mean, np.full((1001, 1), 2.0))
    spread = apart.spread()
    assert abs(spread["distance"] - np.sqrt(1001)) < 1e-9 and spread["best"] < spread["worst"]
    apart.take(slabs(3.0, 3.0, 3.0))
    assert apart.spread()["distance"] == 0.0 and (apart.mean == 3.0).all()
    apart.take([(np.full((1001, 1), 3.0, np.float32), 1.5), (np.full((1001, 1), 1.0, np.float32), 0.5)])
    assert (apart.mean == 2.5).all()  # push-sum: weighted by each worker's share of the whole
    apart.take(slabs(1.0, np.nan))
    assert apart.spread() == {}


def test_who_learns_from_which_rows_is_told_where_it_is_not_left_to_chance() -> None:
    train = load(job().data, 0).train
    assert describe_split(job(), train, 4) == "" == describe_split(job(strategy__split="shuffled"), train, 4)
    said = describe_split(job(strategy__split="label"), train, 4)
    assert said == f"rows by label: each worker has {train.rows // 4} rows and 1 to 2 of 2 labels"

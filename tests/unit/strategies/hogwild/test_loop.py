"""A single racing loop equals a serial method bit for bit.

Together the loops count every slot once.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from shoal.data.batch import Batch, Ids
from shoal.data.synthetic import Texts
from shoal.errors import Invalid
from shoal.models.linear import Linear
from shoal.store.table.update import SGD, AdaGrad, Adam
from shoal.strategies.hogwild import (
    CANARY,
    CELLS,
    CURSOR,
    LIMIT,
    LINE,
    LOCK,
    ROWS,
    SLOTS,
    STOP,
    Hogwild,
    desk,
    kernels,
    lost,
)
from shoal.strategies.hogwild.loop import HogwildLoop, free
from shoal.tables import Update
from shoal.training.one_core import OneCore

COUNT, FEATURES, SIZE = 1_000, 1_000, 32
SLOTS_OF_ALL = -(-COUNT // SIZE)
ADA = AdaGrad(step=0.1)


@pytest.fixture(scope="module")
def rows() -> Batch:
    return Texts(1, FEATURES).rows(0, COUNT)


class Table:
    """The arrays that workers share, and a round on them."""

    def __init__(self, race: HogwildLoop, workers: int = 1, slots: int = SLOTS_OF_ALL) -> None:
        self.race, self.workers = race, workers
        self.slab = np.zeros(race.shape, np.float32)
        self.desk = np.zeros(desk(workers), np.int64)
        self.sums = np.zeros((workers, LINE))
        self.tally = np.zeros(slots, np.int8)
        self.order: Ids = np.random.default_rng(0).permutation(slots)
        self.desk[LIMIT, 0] = slots

    def run(self, worker: int = 0, **given: Any) -> int:
        return self.race.run(self.slab, self.desk, self.sums, self.tally, self.order, worker, **given)

    def together(self) -> None:
        threads = [threading.Thread(target=self.run, args=(worker,)) for worker in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _race(rows: Batch, way: Any, update: Update = ADA, model: Linear | None = None, **given: Any) -> HogwildLoop:
    strategy = Hogwild(way=way, **{key: given.pop(key) for key in ("hot", "merge", "canary") if key in given})
    return HogwildLoop(model or Linear(), update, strategy, rows, SIZE, FEATURES, mean=True, **given)


def _counts(rows: Batch) -> Any:
    return np.append(np.bincount(rows.columns, minlength=FEATURES), 0).astype(np.float32)


def _row_by_row(order: Ids) -> Ids:
    """Returns the rows of slots in this order."""
    return np.concatenate([np.arange(slot * SIZE, min((slot + 1) * SIZE, COUNT)) for slot in order])


MODELS = [Linear(), Linear("hinge", bias=False), Linear("squared", l2_per_count=0.01)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.loss)
def test_batched_with_one_worker_takes_the_steps_of_one_core_to_the_bit(rows: Batch, model: Linear) -> None:
    counts = _counts(rows)[: model.keys(FEATURES)]
    one = OneCore(model, ADA, rows, SIZE, FEATURES, counts=counts)
    table = Table(_race(rows, "batched", model=model, counts=counts))
    loss = one.run(table.order)
    assert table.run() == SLOTS_OF_ALL
    np.testing.assert_array_equal(table.slab[:, 0], one.weights)
    assert table.sums[0, 0] == pytest.approx(loss)


@pytest.mark.parametrize("way", ["example", "locked"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.loss)
def test_row_by_row_one_worker_takes_the_steps_of_one_core_with_batches_of_one(
    rows: Batch, model: Linear, way: str
) -> None:
    counts = _counts(rows)[: model.keys(FEATURES)]
    one = OneCore(model, ADA, rows, 1, FEATURES, counts=counts)
    table = Table(_race(rows, way, model=model, counts=counts))
    loss = one.run(_row_by_row(table.order))
    table.run()
    np.testing.assert_array_equal(table.slab[:, 0], one.weights)
    assert table.sums[0, 0] == pytest.approx(loss)


@pytest.mark.parametrize("rule", [SGD(step=0.2), ADA], ids=lambda rule: rule.name)
def test_with_one_worker_a_copy_of_the_hot_keys_changes_nothing(rows: Batch, rule: Update) -> None:
    plain, split = Table(_race(rows, "example", rule)), Table(_race(rows, "hot_cold", rule, hot=100, merge=7))
    plain.run()
    split.run()
    # Sums in another order.
    np.testing.assert_allclose(split.slab, plain.slab, rtol=2e-4, atol=2e-6)
    assert split.sums[0, 0] == pytest.approx(plain.sums[0, 0], rel=1e-6)


def test_a_rule_that_moves_a_key_without_a_gradient_is_applied_to_rows_with_no_slope_too(rows: Batch) -> None:
    model, shrinking = Linear("hinge"), SGD(0.5, l1=1e-3, l2=1e-2)
    one, table = OneCore(model, shrinking, rows, 1, FEATURES), Table(_race(rows, "example", shrinking, model))
    one.run(_row_by_row(table.order))
    table.run()
    np.testing.assert_array_equal(table.slab[:, 0], one.weights)


@pytest.mark.parametrize("way", ["example", "locked", "batched", "hot_cold"])
def test_four_threads_compute_every_slot_once_and_learn_what_one_learns(rows: Batch, way: str) -> None:
    alone, table = Table(_race(rows, way, merge=16)), Table(_race(rows, way, merge=16), workers=4)
    alone.run()
    table.together()
    assert table.tally.all() and np.isfinite(table.slab).all()
    assert table.desk[CELLS:, SLOTS].sum() == SLOTS_OF_ALL and table.desk[CELLS:, ROWS].sum() == COUNT
    assert table.desk[CURSOR, 0] == SLOTS_OF_ALL + 4  # each worker found once that no slot is left
    ours, theirs = (Linear().margins(rows, one.slab[:, 0].copy()) for one in (table, alone))
    sides = np.where(rows.labels > 0, 1.0, -1.0)
    assert np.logaddexp(0, -sides * ours).mean() == pytest.approx(np.logaddexp(0, -sides * theirs).mean(), rel=0.15)


def test_under_the_lock_no_update_of_the_canary_is_lost(rows: Batch) -> None:
    table = Table(_race(rows, "locked", canary=1), workers=4)
    table.together()
    assert lost(table.desk) == (COUNT, 0) and table.desk[LOCK, 0] == 0


def test_the_canary_has_its_turn_after_so_many_updates(rows: Batch) -> None:
    table = Table(_race(rows, "batched", canary=100))
    table.run()
    made, gone = lost(table.desk)
    assert 0 < made == table.desk[CANARY, 0] and gone == 0
    assert lost(Table(_race(rows, "example", canary=0)).desk) == (0, 0)


def test_a_worker_stops_at_the_limit_at_its_own_most_and_when_told(rows: Batch) -> None:
    table = Table(_race(rows, "example"))
    table.desk[LIMIT, 0] = 5
    assert table.run(most=3) == 3 and table.run() == 2 and table.run() == 0
    assert table.tally.sum() == 5
    told = Table(_race(rows, "example"))
    told.desk[STOP, 0] = 1
    assert told.run() == 0 and not told.tally.any()


@pytest.mark.parametrize("way", ["batched", "hot_cold"])
def test_a_plan_made_elsewhere_gives_the_same_steps(rows: Batch, way: str) -> None:
    first = _race(rows, way)
    other = Table(_race(rows, way, plan={name: array.copy() for name, array in first.plan.items()}))
    mine = Table(first)
    mine.run()
    other.run()
    np.testing.assert_array_equal(mine.slab, other.slab)


def test_the_lock_of_the_dead_is_freed_and_nobody_elses(rows: Batch) -> None:
    table = Table(_race(rows, "locked"), workers=2)
    table.desk[LOCK, 0] = 2  # worker 1 died with the lock
    assert not free(table.desk, 0) and free(table.desk, 1)
    assert table.run(worker=0) == SLOTS_OF_ALL


def test_rules_whose_state_cannot_be_added_up_are_refused_where_it_would_be(rows: Batch) -> None:
    with pytest.raises(Invalid, match="not for adam: set way to 'batched'"):
        _race(rows, "hot_cold", Adam())


def test_arrays_of_another_shape_are_refused(rows: Batch) -> None:
    table = Table(_race(rows, "example"))
    with pytest.raises(Invalid, match="worker 1: there are lines for 1"):
        table.run(worker=1)
    table.order = np.array([SLOTS_OF_ALL])
    with pytest.raises(Invalid, match=f"there are {SLOTS_OF_ALL}, numbered from 0"):
        table.run()
    table.slab = table.slab[1:]
    with pytest.raises(Invalid, match="are needed"):
        table.run()


def test_rows_longer_than_a_block_are_whole() -> None:
    features, wide = 1_500, 1_200
    chance = np.random.default_rng(0)
    columns = np.concatenate([np.sort(chance.choice(features, wide, False)) for _ in range(40)]).astype(np.uint32)
    values = chance.standard_normal(40 * wide).astype(np.float32) / 30
    labels = np.where(chance.random(40) < 0.5, -1, 1).astype(np.float32)
    rows = Batch(np.arange(41, dtype=np.int64) * wide, columns, values, labels)
    one = OneCore(Linear(), ADA, rows, 1, features)
    one.run(np.arange(40))
    for way in ("example", "hot_cold"):
        race = HogwildLoop(Linear(), ADA, Hogwild(way=way, hot=700), rows, 10, features, mean=True)  # type: ignore[arg-type]
        table = Table(race, slots=4)
        table.order = np.arange(4)
        assert table.run() == 4
        np.testing.assert_allclose(table.slab[:, 0], one.weights, rtol=1e-3, atol=1e-6)


def test_what_two_learned_apart_is_added_up_but_the_bias_goes_half_way() -> None:
    slab = np.array([[5.0, 5.0], [2.0, 1.0], [0.0, 0.0], [1.0, 7.0]], np.float32)  # the bias last
    hot = np.array([3, 1, 2])
    # Others have changed 3 and 1 since.
    base = np.array([[0.1, 3.0], [1.0, 1.0], [0.0, 0.0]], np.float32)
    mine = base + np.array([[0.4, 2.0], [0.25, 0.5], [0.125, 1.0]], np.float32)
    kernels.merge(slab, hot, mine, base, np.uint64(1))
    np.testing.assert_allclose(slab, [[5.0, 5.0], [2.25, 1.5], [0.125, 1.0], [0.75, 9.0]])
    np.testing.assert_array_equal(mine, slab[hot])
    np.testing.assert_array_equal(base, mine)

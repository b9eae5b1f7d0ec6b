"""These tests show the whole product on one page: read this first.

A cluster is servers that hold tables, and clients that push to them and pull from them. Here all of
it runs on threads of this process; ``shoal.local(..., processes=True)`` is the same with processes.
"""

from __future__ import annotations

import numpy as np
import pytest

import shoal


def test_what_is_pushed_is_counted_and_can_be_pulled() -> None:
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Sparse(keys=1_000_000, update=shoal.AdaGrad(step=0.1)))
        keys = [3, 141_592, 653_589]
        kv.push("w", keys, [0.5, -2.0, 0.0]).result()
        weights = kv.pull("w", keys).result()
        # The first step of AdaGrad is one step long, whatever the gradient's size.
        assert weights == pytest.approx([-0.1, 0.1, 0.0])
        assert kv.pull("w", [999_999]).result() == [0.0]  # never pushed: still at its initial value


def test_a_dense_table_is_pushed_and_pulled_by_ranges() -> None:
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        kv.create("layer", shoal.Dense(rows=100, width=8))
        kv.push("layer", slice(10, 20), np.ones((10, 8))).result()
        layer = kv.pull("layer", slice(0, 100)).result()
        assert layer.shape == (100, 8)
        assert layer.sum() == 80
        assert (layer[10:20] == 1).all()


def test_a_push_and_a_pull_can_share_one_trip_and_tasks_can_follow_each_other() -> None:
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        # Keys are any ids below 2^63, none of them known beforehand.
        kv.create("w", shoal.Sparse(hashed=True))
        first = kv.push_pull("w", [7, 10**18], [1.0, 2.0])
        second = kv.push("w", [7], [5.0], after=[first])
        assert list(first.result()) == [1.0, 2.0]
        assert list(kv.pull("w", [10**18, 7], after=[second]).result()) == [2.0, 6.0]


def test_a_fast_worker_runs_ahead_by_max_delay_steps_and_no_more() -> None:
    with shoal.local(servers=2) as cluster:
        ann, bob = cluster.worker("ann"), cluster.worker("bob")
        ann.create("w", shoal.Dense(rows=10, update=shoal.SGD(step=1.0), max_delay=1))
        for worker in (ann, bob):
            worker.pull("w", [0]).result()  # from now on each waits for the other
        ann.push("w", [0], [1.0]).result()
        ann.pull("w", [0]).result(5)  # one step ahead of bob: allowed
        ann.push("w", [0], [1.0]).result()
        pull = ann.pull("w", [0])
        with pytest.raises(shoal.ShoalError, match="bob at step 0"):
            pull.result(0.2)  # two ahead: it waits, and the error names the worker it waits for
        bob.push("w", [0], [1.0]).result()
        assert pull.result(5) == [-3.0]


def test_a_step_is_taken_when_all_its_slots_are_here_whoever_computed_them() -> None:
    with shoal.local(servers=2) as cluster:
        ann, bob = cluster.client(), cluster.client()
        ann.create("w", shoal.Dense(rows=4, apply=shoal.Step(slots=2, combine="mean"), max_delay=0))
        half = ann.push("w", [0, 1], [1.0, 1.0], slot=(0, 0))
        assert list(bob.pull("w", [0, 1], slot=(0, 1)).result()) == [0.0, 0.0]  # step 0 is not over
        next_step = bob.pull("w", [0, 1], slot=(0, 2))  # step 1 waits for step 0
        other = bob.push("w", [1, 2], [3.0, 3.0], slot=(0, 1))
        assert list(next_step.result(5)) == [0.5, 2.0]
        half.result(5)
        other.result(5)
        bob.push("w", [1], [100.0], slot=(0, 0)).result(5)  # computed twice, counted once
        assert list(ann.pull("w", slice(0, 4)).result()) == [0.5, 2.0, 1.5, 0.0]

"""All-reduce takes the steps of a sync run, with ranks that each have the whole model.

Here ranks are threads that share a sum.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from shoal.data.datasets import Dataset, load
from shoal.errors import RanksDiffer
from shoal.job import Job
from shoal.models.learner import learner_of
from shoal.models.linear import Floats
from shoal.settings_tree import changed
from shoal.simulation.reference import serial
from shoal.strategies.averaging.worker import RoundOrder, StepRank
from tests.support import PATIENCE

JOB: dict[str, Any] = {
    # 21 slots, the last with ten rows.
    "data": {"source": "rcv1-like", "rows": 410, "features": 1_000, "batch": 20},
    "strategy": "allreduce",
    "stop": {"epochs": 2},
    "workers": 4,
}


def job(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


class Table:
    """Where ranks put their vectors and take the sum."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.given: list[Any] = [None] * size


class Together:
    """A group of ranks that are threads."""

    sent = received = 0

    def __init__(self, table: Table, rank: int) -> None:
        self._table, self.rank, self.size = table, rank, len(table.given)

    def total(self, vector: Floats) -> Floats:
        table = self._table
        table.given[self.rank] = vector.copy()
        table.barrier.wait(PATIENCE)
        found = np.sum(table.given, axis=0, dtype=np.float32)
        table.barrier.wait(PATIENCE)
        return found

    def close(self) -> None: ...


def run(of: Job, dataset: Dataset, spoil: int | None = None) -> list[Floats | Exception]:
    """Returns the final weights or error of every rank.

    ``spoil``: a rank whose memory is corrupted.
    """
    table, found = Table(of.workers), [np.empty(0, np.float32)] * of.workers
    left: list[Floats | Exception] = list(found)

    def one(number: int) -> None:
        learner = learner_of(of.model, dataset.train, of.seed)
        rank = StepRank(of, dataset.train, learner, Together(table, number))
        try:
            if number == spoil:
                rank.model.slab[7] += 1.0
            go = rank.go(RoundOrder(room=2 * 21) if not number else RoundOrder())
            left[number] = rank.model.weights_in(rank.round(go)).copy()
        except Exception as error:
            left[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(of.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return left


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load(job().data, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy__combine": "sum"},
        # Momentum also moves weights whose gradient is 0.
        {"update__rule": "momentum", "update__step": 0.1, "model": "hinge"},
        {"update__rule": "adam", "model__l2_per_count": 0.1},
        {"update__rule": "ftrl"},
    ],
    ids=str,
)
def test_all_ranks_have_the_weights_of_a_sync_run_to_rounding_and_the_same_bits(
    dataset: Dataset, changes: dict[str, Any]
) -> None:
    of = job(**changes)
    expected, found = serial(of, dataset), run(of, dataset)
    assert np.abs(expected).max() > 0.01, "it learned nothing"
    for one in found:
        np.testing.assert_array_equal(one, found[0])
    np.testing.assert_allclose(found[0], expected, rtol=2e-4, atol=2e-6)


def test_one_rank_has_the_bits_of_the_serial_run(dataset: Dataset) -> None:
    of = job(workers=1)
    np.testing.assert_array_equal(run(of, dataset)[0], serial(of, dataset))


def test_ranks_whose_weights_differ_say_so(dataset: Dataset) -> None:
    for error in run(job(), dataset, spoil=2):
        assert isinstance(error, RanksDiffer)
        assert "worker-2" in str(error) and "different weights" in str(error)

"""Sync gives the same weights, bit for bit, with any number of workers and servers.

Workers may join and leave meanwhile. All runs are compared with the serial run, so that they are
not only equal but right. The one exception (a slot computed again when only some of the servers had
taken its step) needs a death and two servers; even then the loss agrees.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from shoal.data.datasets import load
from shoal.events import Evaluated, Gone, Joined
from shoal.job import Job
from shoal.simulation.reference import serial
from shoal.strategies.parameter_server.run import ServerRun
from shoal.testing.conformance import Candidate
from shoal.testing.watch import kill, reach, watch

PLACES = ["threads", "processes"]


def job_of(how: str, **changes: Any) -> Job:
    return Candidate("sync").job(launch__how=how, **changes)


@cache
def expected(epochs: int) -> np.ndarray[Any, Any]:
    job = job_of("threads", stop__epochs=epochs)
    return serial(job, load(job.data, job.seed))


@pytest.mark.variants(slow=["threads-4-2", "processes-1-2", "processes-4-2"])
@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.soak), 2])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.soak), 4])
@pytest.mark.parametrize("how", PLACES)
def test_any_number_of_workers_and_servers_makes_the_same_model(how: str, workers: int, servers: int) -> None:
    run = watch(job_of(how, workers=workers, servers=servers))
    assert np.array_equal(run.weights, expected(3))
    assert run.summary["staleness"]["max"] == 0


def test_every_evaluation_on_the_way_is_the_same_too() -> None:
    """Training waits while the evaluator reads, so that it evaluates exactly that step."""
    runs = [watch(job_of("threads", workers=workers, evaluate__every=0.3)) for workers in (1, 4)]
    facts = [[(event.steps, event.test_loss, event.metrics) for event in run.all(Evaluated)] for run in runs]
    assert len(facts[0]) == 11
    assert facts[0] == facts[1]


def come_and_go(training: ServerRun) -> None:
    """Adds a worker at a fifth of the work, and drains another at two fifths."""
    reach(training, 0.2)
    assert training.add_worker() == "worker-2"
    reach(training, 0.4)
    training.drain("worker-0")


@pytest.mark.variants(slow=["processes"])
@pytest.mark.parametrize("how", PLACES)
def test_a_worker_that_joins_and_one_that_leaves_change_nothing(how: str) -> None:
    run = watch(job_of(how, workers=2, stop__epochs=12), come_and_go)
    joined = [event.name for event in run.all(Joined) if event.role == "worker"]
    assert sorted(joined[:2]) == ["worker-0", "worker-1"] and joined[2:] == ["worker-2"]
    assert [event.name for event in run.all(Gone)] == ["worker-0"]
    assert run.summary["workers_lost"] == 0
    run.check_counted_once()
    assert np.array_equal(run.weights, expected(12))


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_a_worker_that_is_killed_besides_changes_nothing(servers: int) -> None:
    def also_die(training: ServerRun) -> None:
        come_and_go(training)
        kill(training, "worker-1", at=0.6)

    run = watch(job_of("processes", workers=2, servers=servers, stop__epochs=12), also_die)
    assert {event.name for event in run.all(Gone)} == {"worker-0", "worker-1"}
    assert run.summary["workers_lost"] == 1
    run.check_counted_once()
    same = np.array_equal(run.weights, expected(12))
    print(f"{servers} servers, a worker killed: {'the same weights' if same else 'the exception'}")
    assert same or servers == 2
    assert abs(run.loss - run.loss_of(expected(12))) <= 1e-3

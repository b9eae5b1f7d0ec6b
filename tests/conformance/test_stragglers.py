"""Stragglers are made up for in runs of real processes (S3-06, S3-07).

Of durations the tests assert only that they are not shorter than they must be.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.datasets import load
from shoal.events import Delayed, Evaluated, Gone, Progress, Spans, Started
from shoal.job import Job
from shoal.schedule.stragglers import LONGEST, MOST_WAITING
from shoal.simulation.reference import serial
from shoal.testing.conformance import PASSES, ROWS, Candidate
from shoal.testing.watch import Watched, kill, watch

EACH = 2e-4  # seconds that an example takes: a slot takes 6.4 ms, or five times that


@pytest.fixture(autouse=True)
def cached(cache: Path) -> None:
    """Lets the rows be packed once."""


def job_of(strategy: str, slow: bool = True, **changes: Any) -> Job:
    """Returns a job whose worker 0, if ``slow``, takes five times as long as the others."""
    emulated = {"emulate__per_example": EACH, "emulate__slow": [0], "emulate__factor": 5.0} if slow else {}
    return Candidate(strategy, "processes").job(**{**emulated, **changes})


@cache
def expected() -> np.ndarray[Any, Any]:
    """Returns the model of the run without stragglers and second copies."""
    job = job_of("sync", slow=False)
    return serial(job, load(job.data, job.seed))


# ---------------------------------------------------------------- second copies


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_second_copies_of_a_slow_workers_slots_change_nothing_but_who_computes_them(servers: int) -> None:
    run = watch(job_of("sync", strategy__second_copies=True, servers=servers))
    run.check_counted_once()
    assert np.array_equal(run.weights, expected())
    # Others computed slots of worker 0.
    assert run.summary["second_copies"] >= run.summary["second_copies_first"] > 0
    assert run.summary["emulated"].endswith("worker-0 5x slower")
    assert run.summary["staleness"]["max"] == 0


@pytest.mark.slow
def test_without_second_copies_the_slow_worker_computes_its_slots_itself() -> None:
    run = watch(job_of("sync"))
    run.check_counted_once()
    assert np.array_equal(run.weights, expected())
    assert run.summary["second_copies"] == run.summary["second_copies_first"] == 0


@pytest.mark.slow
def test_a_slow_worker_that_is_killed_while_others_have_copies_of_its_slots_changes_nothing() -> None:
    run = watch(
        job_of("sync", strategy__second_copies=True, servers=1),
        lambda training: kill(training, "worker-0", at=0.4),
    )
    assert [event.name for event in run.all(Gone)] == ["worker-0"]
    assert run.summary["second_copies"] > 0
    run.check_counted_once()
    assert np.array_equal(run.weights, expected())


@pytest.mark.slow
def test_one_who_computes_copies_and_is_killed_changes_nothing() -> None:
    run = watch(
        job_of("sync", strategy__second_copies=True, servers=1),
        lambda training: kill(training, "worker-1", at=0.4),
    )
    assert [event.name for event in run.all(Gone)] == ["worker-1"]
    run.check_counted_once()
    assert np.array_equal(run.weights, expected())


# ---------------------------------------------------------------- delay and damping


@pytest.mark.slow
def test_an_automatic_delay_grows_while_workers_wait_too_much() -> None:
    """One worker is always five times slower: no delay is enough, and it grows to the longest."""
    run = watch(job_of("bounded", strategy__max_delay="auto", stop__epochs=30))
    changes = run.all(Delayed)
    print([(round(change.seconds, 1), change.max_delay, round(change.waiting, 3)) for change in changes])
    delays = [change.max_delay for change in changes]
    # While other programs have the cores all workers wait for them, and the delay may shrink.
    assert delays[0] == 1 and max(delays) == LONGEST
    grown = [now for before, now in pairwise(changes) if now.max_delay > before.max_delay]
    assert all(MOST_WAITING < change.waiting <= 1 for change in grown)
    run.check_counted_once()


@pytest.mark.variants(slow=["async"])
@pytest.mark.parametrize("strategy", ["bounded", "async"])
def test_gradients_that_are_too_stale_count_less_and_the_model_is_learned_all_the_same(strategy: str) -> None:
    settings: dict[str, Any] = {"strategy__damp_above": 4, "strategy__prefetch": 4}
    run = watch(job_of(strategy, **settings))
    run.check_counted_once()
    assert run.summary["staleness"]["max"] > 4
    assert sum(counts.get("damped", 0) for counts in run.servers.values()) > 0
    assert run.losses[-1] < run.losses[0] - 0.03


# ---------------------------------------------------------------- emulated


@pytest.mark.variants(slow=["async"])
@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_emulated_examples_take_what_they_are_said_to_take(strategy: str) -> None:
    run = watch(job_of(strategy, slow=False, emulate__per_example=EACH))
    assert run.outcome.computing >= PASSES * ROWS * EACH / 3  # by three workers
    assert run.summary["emulated"] == run.all(Started)[0].emulated == "emulated compute (200 us per example)"
    assert computed(run) >= PASSES * ROWS * EACH


@pytest.mark.variants(slow=["paused", "stalled"])
@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"emulate__factor": 5.0, "emulate__per_example": EACH}, 5 * EACH * 32),
        ({"emulate__pause": 0.05, "emulate__pause_every": 0.01, "emulate__per_example": EACH}, EACH * 32 + 1e-3),
        ({"emulate__stall": 0.7}, 0.7),
    ],
    ids=["slower", "paused", "stalled"],
)
def test_a_worker_is_slowed_and_no_other(settings: dict[str, Any], least: float) -> None:
    run = watch(job_of("async", slow=False, emulate__slow=[1], **settings))
    assert "worker-1 " in run.summary["emulated"] and "worker-0" not in run.summary["emulated"]
    assert longest(run, "worker-1") >= least
    run.check_counted_once()


@pytest.mark.slow
def test_a_stall_holds_a_sync_run_up_once() -> None:
    run = watch(job_of("sync", slow=False, emulate__stall=1.0))
    assert run.outcome.computing >= 1.0
    assert np.array_equal(run.weights, expected())


def computed(run: Watched) -> float:
    return sum(event.spent.get("compute", 0.0) for event in run.all(Progress))


def longest(run: Watched, name: str) -> float:
    """Returns the longest reported computation of one worker."""
    told = [event for event in run.all(Spans) if event.name == name]
    return max(seconds for event in told for kind, _, seconds in event.spans if kind == "compute")


@pytest.mark.slow
def test_what_is_judged_is_of_the_time_when_it_was_read() -> None:
    run = watch(job_of("async", slow=False))
    assert all(event.read is not None and event.read <= event.seconds for event in run.all(Evaluated))

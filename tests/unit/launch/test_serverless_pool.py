"""A run waits for its worker pool; here of threads, with a clock that the test moves."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from shoal.data.datasets import Dataset, load
from shoal.errors import Invalid
from shoal.events import Gone, RunEvent, Warned
from shoal.job import Job
from shoal.launch.serverless_pool import PoolRun, PoolWorkerSpec, WorkerPool
from shoal.models.linear import Floats
from shoal.training.tracked_run import RunStart

JOB = {
    "data": {"source": "rcv1-like", "rows": 200, "features": 1_000, "batch": 20},
    "strategy": "hogwild",
    "workers": 2,
    "launch": {"how": "threads"},
}


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.of(JOB)


@pytest.fixture(scope="module")
def dataset(job: Job) -> Dataset:
    return load(job.data, job.seed)


def test_a_spec_brings_the_job_and_its_rows(job: Job, dataset: Dataset) -> None:
    spec = PoolWorkerSpec.of(job, dataset)
    found, rows = spec.load()
    assert found == job and rows.rows == dataset.train.rows
    assert spec.load_checkpoint() is None


def test_the_end_of_a_thread_is_reported_with_its_reason(job: Job) -> None:
    ended: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    pool = WorkerPool(job, "nowhere", lambda name, why: ended.put((name, why)))

    def fail() -> None:
        raise ValueError("not today")

    pool.run_thread("worker-0", lambda: None)
    pool.run_thread("worker-1", fail)
    assert sorted(ended.get(timeout=10) for _ in range(2)) == [("worker-0", ""), ("worker-1", "ValueError: not today")]
    with pytest.raises(Invalid, match="a run of threads has no processes"):
        pool.signal("worker-0", 9)
    pool.close()
    assert pool.closed and pool.pids == {} and pool.folder == ""


class Waiting(PoolRun):
    """A run in which nothing ever happens."""

    progress_word, dealt_again = "went on", ""
    names = ("worker-0", "worker-1")

    def _start_done(self) -> bool:
        return False

    def _is_starting(self) -> bool:
        return not self._begun

    def _listen(self) -> bool:
        return False

    def _awaited(self) -> tuple[list[str], list[str]]:
        return list(self.names), ["worker-1"]

    def _round(self) -> None:
        self._attend()

    def _weights(self) -> Floats | None:
        return None


@pytest.fixture
def told() -> list[RunEvent]:
    return []


@pytest.fixture
def run(job: Job, dataset: Dataset, told: list[RunEvent], tmp_path: Path) -> Waiting:
    found = Waiting(RunStart(job, dataset, told.append, tmp_path))
    found.pool = WorkerPool(job, "nowhere", lambda name, why: None)
    return found


def warnings(told: list[RunEvent]) -> list[str]:
    return [event.what for event in told if isinstance(event, Warned)]


def test_those_who_are_awaited_are_named_later_and_later(run: Waiting, told: list[RunEvent]) -> None:
    run._begun = True
    for quiet in (run.patience, 1.5 * run.patience, 2 * run.patience, 3 * run.patience):
        run._quiet = quiet
        run._handle_silence()
    waits = [f"nobody went on for {quiet:.0f} s: waiting for worker-1" for quiet in (run.patience, 2 * run.patience)]
    assert warnings(told) == waits


def test_one_that_starts_is_given_more_time(run: Waiting, told: list[RunEvent]) -> None:
    run._quiet = 2 * run.patience
    run._handle_silence()
    assert warnings(told) == []
    run._quiet = 3 * run.patience
    run._handle_silence()
    assert warnings(told) == [f"nobody was ready to begin for {run._quiet:.0f} s: waiting for worker-1"]


def test_a_wait_that_is_over_can_be_taken_up_again(run: Waiting) -> None:
    assert run.wait(0.0) is None and run.wait(0.0) is None
    assert run.interrupted().why == "interrupted"


def test_who_ended_last_is_named_and_more_workers_help_only_against_kills(run: Waiting, told: list[RunEvent]) -> None:
    run._lose("worker-0", "", 0)
    run._lose("worker-1", "ValueError: " + "long " * 100, 3)
    run._nobody_left()
    assert [event.slots for event in told if isinstance(event, Gone) and event.why == "it left"] == [0]
    assert run.tracker.counts["workers lost"] == 1
    assert "when the cause is fixed (the last was worker-1: ValueError: long" in run.tracker.why
    assert run.tracker.why.endswith("...)") and run.tracker.failed
    run._lose("worker-1", "its process ended (killed by signal 9)", 0)
    run._nobody_left()
    assert "start it again, with more workers" in run.tracker.why

"""Processes of a block-proximal run are killed and restarted: the solution is the same.

Other workers take over parts of the rows.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.events import Evaluated, Gone, RolledBack, RunEvent, Saved
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.settings_tree import changed
from shoal.strategies.parameter_server.run import ServerRun
from shoal.testing.watch import Watched, kill, reach, watch
from shoal.training.tracked_run import RunHandle

# Of the objective. A worker that takes over a part begins with small steps, and soon catches up.
NEAR = 5e-3
JOB: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": 3_000, "features": 2_000},
    "strategy": "block-proximal",
    "stop": {"epochs": 30},
    "evaluate": {"every": 5},
    "workers": 3,
    "servers": 2,
    "copies": 2,
}


def job_of(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


def objective(run: Watched | Run) -> float:
    judged = [event for event in run.events if isinstance(event, Evaluated)]
    found = judged[-1].metrics["objective"]
    assert found is not None
    return found


@pytest.fixture(scope="module")
def calm() -> float:
    run = watch(job_of(launch__how="threads", copies=1))
    assert not run.outcome.failed, run.outcome.why
    return objective(run)


@pytest.mark.slow
def test_a_run_that_loses_workers_a_server_and_its_coordinator_solves_the_same_objective(calm: float) -> None:
    def strike(training: RunHandle) -> None:
        assert isinstance(training, ServerRun)
        kill(training, "worker-1", 0.1)
        kill(training, "coordinator", 0.25)
        kill(training, "server-1", 0.4)
        reach(training, 0.6)
        training.add_worker()
        kill(training, "worker-2", 0.75)

    run = watch(job_of(), strike)
    assert not run.outcome.failed, run.outcome.why
    assert (run.workload.done, run.outcome.examples) == (run.workload.limit, 30 * 3_000)
    assert {counts["version"] for counts in run.servers.values()} == {run.workload.steps}
    assert [event.name for event in run.all(Gone)] == ["worker-1", "server-1", "worker-2"]
    assert objective(run) == pytest.approx(calm, rel=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_worker_that_comes_and_one_that_goes_take_parts_over(delay: int) -> None:
    def move(training: RunHandle) -> None:
        assert isinstance(training, ServerRun)
        reach(training, 0.2)
        training.add_worker()
        reach(training, 0.5)
        training.drain("worker-0")

    threads = {"launch__how": "threads", "copies": 1, "workers": 2, "strategy__max_delay": delay}
    still, run = watch(job_of(**threads)), watch(job_of(**threads), move)
    run.check_counted_once()
    assert [event.name for event in run.all(Gone)] == ["worker-0"]
    assert objective(run) == pytest.approx(objective(still), rel=NEAR)


@pytest.mark.soak
def test_a_run_that_lost_a_part_of_its_model_goes_back_and_solves_the_same_objective(
    tmp_path: Path, calm: float
) -> None:
    running: list[ServerRun] = []
    heard: list[RunEvent] = []

    def hear(event: RunEvent) -> None:
        heard.append(event)
        if isinstance(event, Saved) and event.number == 2:
            running[0].kill("server-0")

    run = execute(job_of(copies=1, checkpoint__every=0.2), tmp_path / "run", hear, started=running.append)
    assert [event.checkpoint is not None for event in heard if isinstance(event, RolledBack)] == [True]
    assert run.summary["examples"] == 30 * 3_000
    assert objective(run) == pytest.approx(calm, rel=NEAR)


@pytest.mark.slow
def test_a_run_that_stopped_is_taken_up_again_with_other_workers(tmp_path: Path, calm: float) -> None:
    def interrupt(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.number == 2:
            signal.raise_signal(signal.SIGINT)

    threads = {
        "launch__how": "threads",
        "copies": 1,
        "checkpoint__every": 0.1,
        "stop__epochs": 10_000,
        "evaluate__every": 1,
    }
    with pytest.raises(KeyboardInterrupt):  # what it has learned is saved
        execute(job_of(**threads), tmp_path / "run", interrupt)
    again = shoal.train(resume=tmp_path / "run", workers=1, epochs=30)
    assert (again.summary["resumed"], again.summary["stopped_because"]) == (1, "30 epochs done")
    assert objective(again) == pytest.approx(calm, rel=NEAR)

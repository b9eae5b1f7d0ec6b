"""Parts of a model are lost with all their copies (F8), and the run rolls back.

All nodes go back to a checkpoint, and the run goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.events import Evaluated, RolledBack, RunEvent, Saved
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.strategies.parameter_server.run import ServerRun

JOB: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": 6000, "features": 3000, "batch": 20},
    "stop": {"epochs": 6.0},
    "checkpoint": {"every": 0.2},
    "servers": 2,
}


def job(strategy: str, **settings: Any) -> Job:
    return Job.of({**JOB, "strategy": strategy, **settings})


def run(job: Job, out: Path, when: Callable[[list[RunEvent]], bool], *names: str) -> tuple[Run, list[RunEvent]]:
    """Runs a job, and kills these processes together, once, as soon as ``when`` is true."""
    running: list[ServerRun] = []
    heard: list[RunEvent] = []
    killed: list[str] = []

    def hear(event: RunEvent) -> None:
        heard.append(event)
        if not killed and when(heard):
            for name in names:
                running[0].kill(name)
                killed.append(name)

    done = execute(job, out, hear, started=running.append)
    assert killed == list(names), "the fault did not fire"
    return done, heard


def of(kind: type[Any], events: list[RunEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def calm() -> Run:
    return execute(job("sync", launch={"how": "threads"}))


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 2])
def test_a_synchronous_run_that_lost_a_part_of_its_model_is_the_same_bit_for_bit(
    tmp_path: Path, calm: Run, copies: int
) -> None:
    servers = [f"server-{number}" for number in range(copies)]
    again, heard = run(
        job("sync", copies=copies), tmp_path / "run", lambda events: len(of(Saved, events)) == 2, *servers
    )
    (told,) = of(RolledBack, heard)
    assert told.checkpoint is not None and told.steps_before >= told.steps_after > 0
    assert again.summary["rollbacks"] == 1 and again.summary["examples"] == calm.summary["examples"]
    assert again.summary["steps"] == calm.summary["steps"]
    assert again.model is not None and calm.model is not None
    np.testing.assert_array_equal(again.model.table, calm.model.table)
    losses = {event.number: event.test_loss for event in of(Evaluated, heard)}
    assert losses == {event.number: event.test_loss for event in of(Evaluated, calm.events)}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["bounded", "async"])
def test_a_run_that_lost_a_part_of_its_model_ends_with_every_slot_counted(tmp_path: Path, strategy: str) -> None:
    again, heard = run(job(strategy), tmp_path / "run", lambda events: len(of(Saved, events)) == 2, "server-1")
    (told,) = of(RolledBack, heard)
    assert told.checkpoint is not None and told.steps_after > 0
    assert again.summary["stopped_because"] == "6 epochs done" and again.summary["examples"] == 6 * 6000


@pytest.mark.slow
def test_without_a_checkpoint_it_goes_back_to_the_beginning(tmp_path: Path, calm: Run) -> None:
    unsaved = job("sync", checkpoint={"every": 3600.0})
    again, heard = run(unsaved, tmp_path / "run", lambda events: len(of(Evaluated, events)) == 3, "server-0")
    (told,) = of(RolledBack, heard)
    assert (told.checkpoint, told.steps_after) == (None, 0)
    assert again.model is not None and calm.model is not None
    np.testing.assert_array_equal(again.model.table, calm.model.table)
    assert again.summary["examples"] == calm.summary["examples"]

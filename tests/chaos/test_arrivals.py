"""Workers arrive late, are preempted, or leave after each task (S1-30, S4-23).

Nothing that was learned is lost or counted twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.events import Evaluated, Gone, Joined, Warned

SMALL = {"data.rows": 2_000, "data.batch": 50, "strategy.name": "sync", "emulate.per_example": 2e-4}


def train(**emulate: Any) -> shoal.Run:
    settings = {**SMALL, "evaluate.every": 0.5, **{f"emulate.{name}": value for name, value in emulate.items()}}
    return shoal.train("clicks", workers=3, servers=1, epochs=2, settings=settings)


@pytest.fixture(scope="module")
def gang(cache: Path) -> shoal.Run:
    return train()


@pytest.mark.slow
@pytest.mark.parametrize(
    "emulate",
    [
        {"arrive": 0.2},
        {"preempt": 0.25, "away": 0.2},
        {"preempt": 0.25, "away": 0.2, "sticky": True},
        {"task": 4},
    ],
    ids=["arrive", "killed", "kept", "tasks"],
)
def test_sync_is_the_same_run_however_its_workers_come_and_go(gang: shoal.Run, emulate: dict[str, Any]) -> None:
    run = train(**emulate)
    # The one exception of P3.
    newer = any(isinstance(event, Warned) and "newer" in event.what for event in run.events)
    assert newer or np.array_equal(run.model.table, gang.model.table)  # type: ignore[union-attr]
    assert run.summary["examples"] == gang.summary["examples"]
    joined = [event for event in run.events if isinstance(event, Joined) and event.role == "worker"]
    gone = [event for event in run.events if isinstance(event, Gone) and event.role == "worker"]
    if "task" in emulate:
        assert len(joined) > 3 and run.summary["workers_lost"] == 0
    elif "preempt" in emulate and "sticky" not in emulate:
        assert gone and run.summary["workers_lost"] >= 1


@pytest.mark.slow
def test_the_number_of_workers_at_each_evaluation_is_told(cache: Path) -> None:
    run = train(arrive=0.3)
    at_work = [event.workers for event in run.events if isinstance(event, Evaluated)]
    assert at_work[0] == 1, "training begins with the first"
    assert at_work == sorted(at_work) and at_work[-1] > 1

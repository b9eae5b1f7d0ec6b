"""strategy = "serial": a run uses one core and no servers.

It has the same events, stop rules and files as any other run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shoal
from shoal.errors import Invalid, RunFailed
from shoal.events import Evaluated, Progress, Resumed, RunEvent, Started, Stopped, read_run
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.settings_tree import changed
from shoal.testing.watch import watch
from tests.support.sandbox import soon

ROWS, BATCH = 600, 20  # 30 slots per epoch
BASE: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": ROWS, "features": 1_000, "batch": BATCH},
    "launch": {"how": "threads"},
    "strategy": "serial",
    "stop": {"epochs": 2},
}


@pytest.fixture(autouse=True)
def cached(cache: Path) -> None:
    """Pack the rows once."""


def job_of(**changes: Any) -> Job:
    return Job.of(changed(BASE, {name.replace("__", "."): value for name, value in changes.items()}))


def evaluated(run: Run) -> list[Evaluated]:
    return [event for event in run.events if isinstance(event, Evaluated)]


@pytest.mark.variants(slow=["hinge-sgd"])
@pytest.mark.parametrize(("model", "rule"), [("logistic", "adagrad"), ("hinge", "sgd")])
def test_it_is_sync_with_one_worker_and_one_slot_in_a_step_bit_for_bit(model: str, rule: str) -> None:
    both = {"model": model, "update": rule, "workers": 1}
    run = execute(job_of(**both))
    sync = watch(job_of(**both, strategy="sync", strategy__slots_per_step=1, servers=2))
    assert run.model is not None
    assert np.array_equal(run.model.table, sync.weights)
    theirs = [(event.steps, event.test_loss, event.metrics) for event in sync.all(Evaluated)]
    assert [(event.steps, event.test_loss, event.metrics) for event in evaluated(run)] == theirs


def test_it_tells_what_every_run_tells(tmp_path: Path) -> None:
    run = execute(job_of(), tmp_path / "run")
    assert isinstance(run.events[0], Started) and run.events[0].strategy == "serial"
    assert (run.events[0].workers, run.events[0].servers) == (1, 0)
    assert [event.passes for event in evaluated(run)] == [0, 1, 2]
    assert all(event.read == event.seconds for event in evaluated(run))
    assert isinstance(run.events[-1], Stopped) and run.events[-1].why == "2 epochs done"
    assert (run.summary["strategy"], run.summary["workers"], run.summary["servers"]) == ("serial", 1, 0)
    assert run.summary["examples"] == 2 * ROWS and run.summary["bytes_sent"] == 0
    assert list(run.summary) == list(execute(job_of(strategy="async", stop__epochs=1)).summary)
    again = Run.load(tmp_path / "run")
    assert again.summary == run.summary and again.model is not None


@pytest.mark.variants(
    slow=["stop2-target loss 0.69 reached", "stop3-no improvement in 2 evaluations", "stop4-0.5 epochs done"]
)
@pytest.mark.parametrize(
    ("stop", "why"),
    [
        ({"steps": 7}, "7 steps done"),
        ({"seconds": 0.05, "epochs": 1e6}, "0.05 seconds are over"),
        ({"target_loss": 0.69, "epochs": 50}, "target loss 0.69 reached"),
        ({"patience": 2, "epochs": 1e4}, "no improvement in 2 evaluations"),
        ({"epochs": 0.5}, "0.5 epochs done"),
    ],
)
def test_it_knows_every_stop_rule(stop: dict[str, Any], why: str) -> None:
    run = execute(job_of(stop={"epochs": None, **stop}))
    assert run.summary["stopped_because"] == why
    assert evaluated(run)[-1].steps == run.summary["steps"] > 0
    if "patience" in stop:
        assert run.summary["test_loss"] == min(event.test_loss for event in evaluated(run))


def test_emulated_examples_take_their_time_here_as_well() -> None:
    run = execute(job_of(emulate__per_example=1e-4, emulate__factor=2.0))
    assert run.summary["seconds"] >= 0.999 * 2 * ROWS * 2e-4  # the summary is rounded
    assert run.summary["emulated"] == "emulated compute (100 us per example), worker-0 2x slower"


def test_a_model_that_runs_away_fails_the_run() -> None:
    with pytest.raises(RunFailed, match=r"the loss is inf: take a smaller step"):
        execute(job_of(model="squared", update__rule="sgd", update__step=1e6, stop__epochs=20))


LONG = ("--strategy", "serial", "--set", "data.batch=20", "--set", "data.rows=600", "--set", "data.features=1000",
        "--set", "emulate.per_example=0.001", "--set", "evaluate.every=0.1")  # fmt: skip


@pytest.mark.slow
def test_ctrl_c_judges_and_saves_what_was_learned_and_going_on_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "shoal", "train", "rcv1-like", *LONG, "--epochs", "1000", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))
    try:
        soon(lambda: (out / "events.jsonl").exists() and len(read_run(out / "events.jsonl")) > 5, 60)
        process.send_signal(signal.SIGINT)
        _, errors = (text.decode() for text in process.communicate(timeout=60))
    finally:
        process.kill()
    assert process.returncode in (130, -2) and "Traceback" not in errors
    assert "what was learned so far is in" in errors
    was = msgspec.json.decode((out / "summary.json").read_bytes())
    assert was["failed"] and was["stopped_because"] == "interrupted" and was["test_loss"] < 0.69
    assert (out / "model.safetensors").exists()

    told: list[RunEvent] = []
    run = shoal.train(resume=out, epochs=1, settings={"emulate.per_example": 0.0}, on_event=told.append)
    # It has no checkpoints, so it starts from the beginning.
    assert [event.checkpoint for event in told if isinstance(event, Resumed)] == [None]
    assert run.summary["examples"] == ROWS and not run.summary["failed"]


def test_the_same_job_with_servers_is_another_run(tmp_path: Path) -> None:
    execute(job_of(), tmp_path / "run")
    with pytest.raises(Invalid, match=r"strategy.name was 'serial', not 'async'"):
        shoal.train(resume=tmp_path / "run", strategy="async", epochs=3)


def test_progress_is_told_while_it_runs() -> None:
    run = execute(job_of(emulate__per_example=1e-3))
    progress = [event for event in run.events if isinstance(event, Progress)]
    assert progress and all(event.workers == 1 for event in progress)
    assert sum(event.spent["compute"] for event in progress) == pytest.approx(run.summary["seconds"], abs=1e-3)
    assert run.summary["spent"] == {"compute": 1.0}

"""Whole runs are killed, and resumed from their folder (F8, F30, F31, F43)."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.events import Evaluated, Resumed, RunEvent, Saved, Started, Warned, read_run
from shoal.run.finished import Run
from tests.support.sandbox import Den, soon

pytestmark = pytest.mark.usefixtures("cache")

JOB = {
    "data.rows": 6000,
    "data.features": 3000,
    "data.batch": 20,
    "stop.epochs": 8,
    "evaluate.every": 0.5,
    "checkpoint.every": 0.2,
    "strategy.name": "sync",
}


@pytest.fixture(scope="module")
def calm(cache: Path) -> dict[str, Run]:
    """Returns a run without faults for each strategy."""
    return {name: shoal.train(settings={**settings(name), "launch.how": "threads"}, **source()) for name in STRATEGIES}


STRATEGIES = ("sync", "bounded", "async")


def source() -> dict[str, Any]:
    return {"data": "rcv1-like", "servers": 2, "workers": 2}


def settings(strategy: str, **more: Any) -> dict[str, Any]:
    return {**JOB, "strategy.name": strategy, **{name.replace("__", "."): value for name, value in more.items()}}


def flags(strategy: str, **more: Any) -> list[str]:
    found = ["rcv1-like", "--servers", "2", "--workers", "2"]
    for name, value in settings(strategy, **more).items():
        found += ["--set", f"{name}={value}"]
    return found


def events(run: Path) -> list[RunEvent]:
    try:
        return read_run(run / "events.jsonl")
    except FileNotFoundError:
        return []


def saved(run: Path) -> int:
    return sum(isinstance(event, Saved) for event in events(run))


def killed(den: Den, run: Path, checkpoints: int, *arguments: str) -> None:
    """Trains until so many more checkpoints are on disk, then kills every process (-9).

    The top process is killed first.
    """
    before = saved(run)
    process = den.start("-m", "shoal", "train", *arguments)
    reached = soon(lambda: saved(run) >= before + checkpoints or process.poll() is not None)
    assert reached and process.poll() is None, f"it ended before it could be killed: {process.communicate()}"
    process.send_signal(signal.SIGKILL)
    for pid in den.alive():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(60)
    assert soon(lambda: not den.alive())


def resumed(den: Den, run: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    process = den.start("-m", "shoal", "train", "--resume", str(run), *arguments)
    out, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    return out, errors


def check_whole(run: Run, clean: Run) -> None:
    """Checks the figures, from which follows that every slot is in the model once."""
    assert run.summary["steps"] == clean.summary["steps"] and run.summary["examples"] == clean.summary["examples"]
    assert not run.summary["failed"] and run.summary["stopped_because"] == clean.summary["stopped_because"]


SOAK = pytest.mark.soak


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=SOAK), pytest.param(3, marks=SOAK)])
def test_a_synchronous_run_that_was_killed_and_taken_up_is_the_same_bit_for_bit(
    den: Den, tmp_path: Path, calm: dict[str, Run], seed: int
) -> None:
    draw, run = random.Random(seed), tmp_path / "run"
    killed(den, run, draw.randint(1, 3), *flags("sync"), "--out", str(run))
    killed(den, run, draw.randint(1, 2), "--resume", str(run))  # and once more
    resumed(den, run)
    again, clean = Run.load(run), calm["sync"]
    check_whole(again, clean)
    assert again.model is not None and clean.model is not None
    np.testing.assert_array_equal(again.model.table, clean.model.table)
    losses = {event.number: event.test_loss for event in again.events if isinstance(event, Evaluated)}
    assert losses == {event.number: event.test_loss for event in clean.events if isinstance(event, Evaluated)}
    told = [event for event in again.events if isinstance(event, Resumed)]
    assert len(told) == 2 and all(event.checkpoint is not None and event.steps > 0 for event in told)
    seconds = [event.seconds for event in again.events if isinstance(event, Started | Resumed | Evaluated)]
    assert seconds == sorted(seconds)  # times never go back


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param("bounded", marks=SOAK), "async"])
def test_a_run_that_was_killed_and_taken_up_learns_as_well(
    den: Den, tmp_path: Path, calm: dict[str, Run], strategy: str
) -> None:
    run = tmp_path / "run"
    killed(den, run, 2, *flags(strategy), "--out", str(run))
    resumed(den, run)
    again, clean = Run.load(run), calm[strategy]
    check_whole(again, clean)
    assert again.summary["test_loss"] == pytest.approx(clean.summary["test_loss"], rel=0.01)


@pytest.mark.soak
def test_a_run_is_taken_up_by_other_numbers_of_servers_and_workers(
    den: Den, tmp_path: Path, calm: dict[str, Run]
) -> None:
    run = tmp_path / "run"
    killed(den, run, 1, *flags("sync"), "--out", str(run))
    resumed(den, run, "--servers", "3", "--workers", "1")
    again, clean = Run.load(run), calm["sync"]
    assert again.model is not None and clean.model is not None
    np.testing.assert_array_equal(again.model.table, clean.model.table)
    assert (again.summary["servers"], again.summary["workers"]) == (3, 1)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    den: Den, tmp_path: Path, calm: dict[str, Run]
) -> None:
    run = tmp_path / "run"
    killed(den, run, 2, *flags("sync"), "--out", str(run))
    *_, before, last = sorted(path for path in (run / "checkpoints").iterdir() if (path / "manifest.json").exists())
    broken = sorted(last.glob("*.safetensors"))[0]
    damaged = bytearray(broken.read_bytes())
    damaged[-1] ^= 1
    broken.write_bytes(damaged)
    _, errors = resumed(den, run)
    assert broken.name in errors
    again, clean = Run.load(run), calm["sync"]
    (told,) = (event for event in again.events if isinstance(event, Resumed))
    assert told.checkpoint == int(before.name)
    assert any(isinstance(event, Warned) and str(broken) in event.what for event in again.events)
    assert again.model is not None and clean.model is not None
    np.testing.assert_array_equal(again.model.table, clean.model.table)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=SOAK)])
def test_an_interrupted_run_goes_on_from_where_it_was_interrupted(
    den: Den, tmp_path: Path, calm: dict[str, Run], number: int, code: int
) -> None:
    """F43: a final checkpoint is made."""
    run = tmp_path / "run"
    process = den.start("-m", "shoal", "train", *flags("sync", checkpoint__every=3600), "--out", str(run))
    assert soon(lambda: sum(isinstance(event, Evaluated) for event in events(run)) >= 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert code != 130 or f"shoal train --resume {run}" in errors
    assert soon(den.is_empty)
    interrupted = json.loads((run / "summary.json").read_text())
    assert interrupted["failed"] and saved(run) == 1
    resumed(den, run)
    again, clean = Run.load(run), calm["sync"]
    check_whole(again, clean)
    (told,) = (event for event in again.events if isinstance(event, Resumed))
    # The difference is at most what was dealt when it was interrupted.
    assert told.steps > 0 and interrupted["steps"] - told.steps <= 60
    assert again.model is not None and clean.model is not None
    np.testing.assert_array_equal(again.model.table, clean.model.table)


@pytest.mark.slow
def test_the_best_weights_survive(den: Den, tmp_path: Path) -> None:
    """With patience they are the model of the run, whichever process evaluated them."""
    run = tmp_path / "run"
    killed(den, run, 2, *flags("sync", stop__patience=50), "--out", str(run))
    assert (run / "best.safetensors").exists()
    resumed(den, run)
    again = Run.load(run)
    losses = [event.test_loss for event in again.events if isinstance(event, Evaluated)]
    assert again.summary["test_loss"] == min(losses)
    best = shoal.Trained.load(run / "best.safetensors")
    assert again.model is not None
    np.testing.assert_array_equal(again.model.table, best.table)

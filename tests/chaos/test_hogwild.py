"""Hogwild's workers are killed, stopped and drained: the others go on.

Every slot counts once, and no shared memory is left.
"""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid, RunFailed
from shoal.events import Evaluated, Gone, Joined, Resumed, Stopped, Warned
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.settings_tree import changed
from shoal.strategies.hogwild.run import HogwildRun
from shoal.testing.watch import BesideRun, Meanwhile, Watched, kill, reach, watch
from shoal.training.tracked_run import RunHandle
from tests.support.sandbox import Den, soon
from tests.support.warm_forkserver import offspring

ROWS = 3_000
BASE: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": ROWS, "features": 2_000, "batch": 32},
    "strategy": {"name": "hogwild"},
    "evaluate": {"every": 20},
    "stop": {"epochs": 200},
    "workers": 3,
}
SLOWLY = {"emulate.per_example": 2e-5, "stop.epochs": 20, "evaluate.every": 5}


def job_of(given: dict[str, Any] | None = None, **changes: Any) -> Job:
    return Job.of(changed(BASE, {name.replace("__", "."): value for name, value in changes.items()} | (given or {})))


def held() -> list[str]:
    """Returns what this process has of shared memory: maps, descriptors, processes.

    Files where others could see them are included.
    """
    gc.collect()
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:shoal" in line]
    links = []
    for one in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{one}"))
        except FileNotFoundError:  # the descriptor that listed them
            continue
    children = [f"process {pid}" for pid in offspring()]
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    shared = [str(path) for place in places for path in place.glob(f"*shoal-{os.getpid()}*")]
    return sorted([*maps, *(link for link in links if link.startswith(("pipe", "/memfd"))), *children, *shared])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = held()
    yield
    assert soon(lambda: set(held()) <= set(before), 10), f"{held()} is there, {before} was before"


def of(training: RunHandle) -> HogwildRun:
    assert isinstance(training, HogwildRun)
    return training


def check(run: Watched) -> None:
    assert not run.outcome.failed, run.outcome.why
    run.check_counted_once()
    assert run.outcome.examples == run.job.stop.passes * ROWS
    assert np.isfinite(run.weights).all() and np.isfinite(run.losses).all()
    assert min(run.losses) < run.losses[0] - 0.1  # in the end it overfits its few rows


def kills(count: int, seed: int = 0) -> Meanwhile:
    """Kills one worker after another; each time a new one takes its place."""

    def one_after_another(training: RunHandle) -> None:
        draw = random.Random(seed)
        for number in range(count):
            # A worker that is killed when all is done does not count as lost.
            reach(training, (number + 1) / (2 * count))
            assert soon(lambda: len(training.pids) > 1)
            name = draw.choice(sorted(training.pids))
            kill(training, name)
            of(training).add_worker()
            assert soon(lambda gone=name: gone not in training.pids)  # type: ignore[misc]  # or it would be killed twice

    return one_after_another


LATER = [pytest.param(way, marks=pytest.mark.soak) for way in ("batched", "hot_cold")]


@pytest.mark.variants(slow=["locked"])
@pytest.mark.parametrize("way", ["example", "locked", *LATER])
def test_workers_are_killed_in_a_loop_and_every_slot_counts_once(way: str) -> None:
    slowly = {"emulate.per_example": 2e-5}  # else the run may end before they are killed
    run = watch(job_of(slowly, strategy__way=way), kills(6))
    check(run)
    lost = run.all(Gone)
    assert {event.why for event in lost} == {"its process ended (killed by signal 9)"}
    assert len(lost) == run.summary["workers_lost"] == 6
    assert run.summary["slots_dealt_again"] <= 6  # each had one at most
    assert len(run.all(Joined)) >= 3


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["example", "locked", "batched", "hot_cold"])
def test_workers_are_killed_many_times(way: str) -> None:
    for seed in range(4):
        run = watch(job_of(strategy__way=way, stop__epochs=6_000, evaluate__every=200), kills(60, seed), 200)
        check(run)
        assert run.summary["workers_lost"] == 60


SLEEPY = """
import time
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 2)

    def forward(self, x):
        if self.training:
            time.sleep(0.02)
        return self.layer(x)
"""


@pytest.mark.slow
def test_the_slot_that_a_killed_worker_of_a_module_had_is_dealt_again(tmp_path: Path) -> None:
    """A worker is in the middle of a slot almost all of the time."""
    pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 16)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    job = Job.of(
        {
            "data": {"source": str(tmp_path / "rows.npz"), "batch": 10},
            "model": f"{tmp_path / 'sleepy.py'}:Net",
            "strategy": "hogwild",
            "update": {"step": 0.01},
            "stop": {"epochs": 2},
            "workers": 2,
        }
    )
    run = watch(job, lambda training: kill(training, "worker-1", at=0.3))
    assert not run.outcome.failed, run.outcome.why
    run.check_counted_once()
    assert run.outcome.examples == 2 * run.dataset.train.rows
    assert [(event.name, event.slots) for event in run.all(Gone)] == [("worker-1", 1)]
    assert run.summary["slots_dealt_again"] == run.summary["workers_lost"] == 1
    assert np.isfinite(run.weights).all() and run.loss < run.losses[0]


@pytest.mark.slow
def test_a_run_whose_workers_are_all_killed_fails_with_what_was_judged_and_can_be_taken_up_again(
    tmp_path: Path,
) -> None:
    def all_of_them(training: RunHandle) -> None:
        reach(training, 0.4)
        for name in training.workers:
            kill(training, name)

    with pytest.raises(RunFailed) as failure:
        execute(job_of(SLOWLY), tmp_path / "run", started=lambda training: BesideRun(training, all_of_them).start())
    run = failure.value.run
    assert isinstance(run, Run)
    why = run.summary["stopped_because"]
    assert why.startswith("no worker is left to compute: start it again, with more workers (the last was worker-")
    assert "its process ended (killed by signal 9)" in why
    assert [event.why for event in run.events if isinstance(event, Stopped)] == [why]
    losses = [event.test_loss for event in run.events if isinstance(event, Evaluated)]
    assert run.summary["test_loss"] == min(losses) and len(losses) > 1

    again = shoal.train(resume=tmp_path / "run", workers=2)
    (resumed,) = (event for event in again.events if isinstance(event, Resumed))
    assert resumed.steps == run.summary["steps"] > 0
    assert again.summary["examples"] == 20 * ROWS and not again.summary["failed"]


@pytest.mark.parametrize("way", ["locked", pytest.param("example", marks=pytest.mark.soak)])
def test_a_worker_that_is_stopped_and_holds_up_the_others_is_killed_and_that_is_told(
    way: str,
) -> None:
    """The stopped worker may have the lock or a slot; either way the others go on."""

    def stop(training: RunHandle) -> None:
        reach(training, 0.3)
        of(training).signal("worker-1", signal.SIGSTOP)

    run = watch(job_of(strategy__way=way, timing__scale=0.05), stop)
    check(run)
    assert [event.what for event in run.all(Warned)] == [
        "worker-1 is stopped, and everybody waits for it: it is killed; if it has a slot, that is reassigned"
    ]
    assert [event.name for event in run.all(Gone)] == ["worker-1"]


@pytest.mark.slow
def test_a_worker_that_goes_on_in_time_is_not_killed() -> None:
    def pause(training: RunHandle) -> None:
        reach(training, 0.3)
        os.kill(training.pids["worker-1"], signal.SIGSTOP)
        os.kill(training.pids["worker-1"], signal.SIGCONT)

    run = watch(job_of(), pause)
    check(run)
    assert not run.all(Gone) and not run.all(Warned)


@pytest.mark.slow
def test_a_slow_worker_is_waited_for_and_that_is_told() -> None:
    run = watch(job_of({"emulate.stall": 1.0, "launch.how": "threads", "timing.scale": 0.05}, stop__epochs=20))
    check(run)
    told = [event.what for event in run.all(Warned)]
    assert any(re.fullmatch(r"nobody finished a slot for \d+ s: waiting for worker-0", what) for what in told), told
    assert not run.all(Gone)


@pytest.mark.variants(slow=["processes"])
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_a_worker_that_is_asked_to_leave_finishes_its_slot_and_another_may_come(how: str) -> None:
    def change(training: RunHandle) -> None:
        reach(training, 0.2)
        of(training).drain("worker-0")
        of(training).add_worker()
        assert soon(lambda: "worker-0" not in training.workers)
        with pytest.raises(Invalid, match=r"no worker 'worker-0' here \(workers: worker-1"):
            of(training).drain("worker-0")

    run = watch(job_of(SLOWLY, launch__how=how), change)
    check(run)
    assert [(event.name, event.why, event.slots) for event in run.all(Gone)] == [("worker-0", "it left", 0)]
    assert run.summary["workers_lost"] == run.summary["slots_dealt_again"] == 0
    assert "worker-3" in [event.name for event in run.all(Joined)]


def test_sigterm_asks_a_worker_to_leave() -> None:
    def ask(training: RunHandle) -> None:
        reach(training, 0.2)
        os.kill(training.pids["worker-2"], signal.SIGTERM)

    run = watch(job_of(SLOWLY), ask)
    check(run)
    assert [(event.name, event.why) for event in run.all(Gone)] == [("worker-2", "it left")]


RUNS = """
import shoal
shoal.train("rcv1-like", strategy="hogwild", workers=2, epochs=1e6, settings={"data.rows": 3000, "data.features": 2000},
            on_event=lambda event: print(type(event).__name__, flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_nothing_is_left_of_a_run_that_is_ended(den: Den, number: int) -> None:
    child = den.start("-c", RUNS)
    assert child.stdout is not None
    assert any(line == "Progress\n" for line in child.stdout)
    assert len(den.alive()) == 4  # the process itself, the forkserver, two workers
    os.kill(child.pid, number)
    child.communicate(timeout=60)
    # What was learned is the one thing that stays.
    kept = [name for name in os.listdir(den.folder) if "-interrupted-" in name]
    assert len(kept) == (number == signal.SIGINT)
    assert soon(lambda: den.left() == kept), den.left()

"""Gossip workers are killed, stopped and cut off at any moment: the others go on.

Every slot counts once.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import RunFailed
from shoal.events import Evaluated, Gone, Linked, Resumed, RunEvent, Stopped, Warned
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.settings_tree import changed
from shoal.strategies.gossip.run import GossipRun
from shoal.testing.watch import BesideRun, Meanwhile, Watched, kill, reach, watch
from shoal.training.local_checkpoint import read
from shoal.training.tracked_run import RunHandle
from tests.support.quick import AS_SETTINGS
from tests.support.sandbox import Den, soon
from tests.support.warm_forkserver import offspring

ROWS = 3_000
BASE: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": ROWS, "features": 2_000, "batch": 32},
    "strategy": {"name": "gossip"},
    "evaluate": {"every": 2},
    "stop": {"epochs": 20},
    "workers": 4,
}
SLOWLY = {"emulate.per_example": 5e-5}  # else the run ends before the last one is killed
KILLED = "its process ended (killed by signal 9)"


def job_of(given: dict[str, Any] | None = None, **changes: Any) -> Job:
    return Job.of(changed(BASE, {name.replace("__", "."): value for name, value in changes.items()} | (given or {})))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(offspring())
    yield
    assert soon(lambda: set(offspring()) <= before, 10)


def check(run: Watched) -> None:
    assert not run.outcome.failed, run.outcome.why
    run.check_counted_once()
    assert run.outcome.examples == run.job.stop.passes * ROWS
    assert np.isfinite(run.weights).all() and run.loss < run.losses[0] - 0.1


def kills(count: int, seed: int) -> Meanwhile:
    """Kills one worker after another at random moments.

    It may be in the middle of a round, of a meeting, or of showing its model.
    """

    def one_after_another(training: RunHandle) -> None:
        draw = random.Random(seed)
        for number in range(count):
            reach(training, (number + draw.random()) / (count + 1))
            assert soon(lambda: len(training.pids) > 1)
            name = draw.choice(sorted(training.pids))
            kill(training, name)
            assert soon(lambda gone=name: gone not in training.pids)  # type: ignore[misc]  # or it would be killed twice

    return one_after_another


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))]


@pytest.mark.variants(slow=["complete-async-0", "one-way-sync-0"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("topology", "mode"), [("ring", "sync"), ("complete", "async"), ("one-way", "sync")])
def test_workers_are_killed_at_any_moment_and_every_slot_counts_once(topology: str, mode: str, seed: int) -> None:
    """F40: workers are killed in the middle of an exchange, too.

    What is left of the graph may be disconnected, and goes on.
    """
    given = {"strategy.topology": topology, "strategy.mode": mode, "strategy.allow_disconnected": True, "workers": 5}
    run = watch(job_of({**given, **SLOWLY}), kills(3, seed))
    check(run)
    lost = run.all(Gone)
    assert {event.why for event in lost} == {KILLED} and len(lost) == run.summary["workers_lost"] == 3
    assert run.all(Evaluated)[-1].workers == 2
    assert len(run.all(Linked)) == 4


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_are_killed_in_many_runs(mode: str) -> None:
    for seed in range(20):
        given = {"strategy.mode": mode, "strategy.topology": "exponential", "workers": 8}
        run = watch(job_of({**given, **SLOWLY}), kills(6, seed))
        check(run)
        assert run.summary["workers_lost"] == 6


def test_a_hub_that_is_killed_leaves_pieces_which_is_told_with_their_names() -> None:
    run = watch(job_of(strategy__topology="star"), lambda training: kill(training, "worker-0", at=0.3))
    check(run)
    (told,) = (event.what for event in run.all(Warned) if "not connected" in event.what)
    assert told.startswith("without worker-0 the others are not connected any more (1 | 2 | 3)")
    linked = run.all(Linked)[-1]
    assert (linked.why, linked.gap, linked.rounds, linked.parts) == ("worker-0 is gone", 0.0, None, [[1], [2], [3]])
    distances = [event.spread["distance"] for event in run.all(Evaluated)]
    assert distances[-1] > max(distances[:2])  # the models drift apart


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
    assert KILLED in why and [event.why for event in run.events if isinstance(event, Stopped)] == [why]
    again = shoal.train(resume=tmp_path / "run", workers=2)
    (resumed,) = (event for event in again.events if isinstance(event, Resumed))
    assert resumed.steps > 0
    assert again.summary["examples"] == 20 * ROWS and not again.summary["failed"]


@pytest.mark.slow
def test_what_was_learned_since_all_rested_last_is_not_counted_when_all_have_died(tmp_path: Path) -> None:
    def in_the_middle_of_a_leg(training: RunHandle) -> None:
        assert isinstance(training, GossipRun)
        reach(training, 0.3)
        # A leg has about 60 slots.
        while not 8 <= training._controller.counted[0] < 24 and not training.tracker.why:
            time.sleep(0.002)
        for name in training.workers:
            kill(training, name)

    slowly = job_of(emulate__per_example=2e-3, evaluate__every=1, stop__epochs=3)
    with pytest.raises(RunFailed) as failure:
        execute(slowly, tmp_path / "run", started=lambda training: BesideRun(training, in_the_middle_of_a_leg).start())
    assert isinstance(failure.value.run, Run)
    told = failure.value.run.summary
    (kept,) = (tmp_path / "run" / "checkpoints").iterdir()
    standing = read(kept).facts.standing
    assert (standing.done, standing.examples) == (told["steps"], told["examples"])


@pytest.mark.variants(slow=["async"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_that_is_stopped_and_holds_up_the_others_is_killed_and_that_is_told(
    mode: str,
) -> None:

    def stop(training: RunHandle) -> None:
        reach(training, 0.3)
        os.kill(training.pids["worker-1"], signal.SIGSTOP)

    run = watch(job_of(**AS_SETTINGS, strategy__mode=mode), stop)
    check(run)
    told = [event.what for event in run.all(Warned)]
    assert "worker-1 is stopped, and everybody waits for it: it is killed, and its slots are reassigned" in told
    assert [event.name for event in run.all(Gone)] == ["worker-1"]


@pytest.mark.slow
def test_a_worker_that_is_stopped_when_it_is_done_is_killed_too() -> None:
    """Where workers meet in pairs, one that is done still has to answer and show its model."""
    caught = False

    def stop(training: RunHandle) -> None:
        nonlocal caught
        assert isinstance(training, GossipRun)
        while not caught and not training.tracker.why:
            told = dict(training._controller.states)
            is_done = {name for name, one in told.items() if one.result is not None}
            if "worker-1" in is_done and "worker-0" in told and "worker-0" not in is_done:
                os.kill(training.pids["worker-1"], signal.SIGSTOP)
                caught = True
            time.sleep(0.002)

    run = watch(job_of(**AS_SETTINGS, strategy__mode="async", emulate__stall=1.0), stop)
    check(run)
    assert caught
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
    run = watch(job_of({"emulate.stall": 1.5, "launch.how": "threads", "timing.scale": 0.1}))
    check(run)
    told = [event.what for event in run.all(Warned)]
    assert any(re.match(r"nobody went on for \d+ s: waiting for .*worker-0", what) for what in told), told
    assert not run.all(Gone)


@pytest.mark.slow
def test_an_interrupted_run_judges_and_keeps_what_all_had(tmp_path: Path) -> None:
    def interrupt(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.number == 2:
            raise KeyboardInterrupt

    given = {"data.rows": ROWS, "data.features": 2_000, "data.batch": 32, "emulate.per_example": 2e-5}
    with pytest.raises(KeyboardInterrupt):
        shoal.train(
            "rcv1-like",
            strategy="gossip",
            workers=3,
            epochs=50,
            out=tmp_path / "run",
            settings=given,
            on_event=interrupt,
        )
    run = shoal.Run.load(tmp_path / "run")
    assert run.summary["stopped_because"] == "interrupted" and run.model is not None
    last = [event for event in run.events if isinstance(event, Evaluated)][-1]
    assert last.steps == run.summary["steps"] > 0
    again = shoal.train(resume=tmp_path / "run", epochs=4)
    assert again.summary["examples"] == 4 * ROWS


RUNS = """
import shoal
shoal.train("rcv1-like", strategy="gossip", workers=2, epochs=1e6, settings={"data.rows": 3000, "data.features": 2000},
            on_event=lambda event: print(type(event).__name__, flush=True))
"""


@pytest.mark.variants(slow=["2"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
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

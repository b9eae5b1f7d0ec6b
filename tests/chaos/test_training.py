"""Processes of a training run are killed, stopped, added and drained at seeded moments.

The run goes on, or says why it cannot. After every fault each slot is counted once (in the servers'
own books), the model is as good as the serial one, and nothing is left behind. The events show that
the fault did fire.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.data.datasets import load
from shoal.errors import RunFailed, StartFailed
from shoal.events import Evaluated, Gone, Joined, Progress, Stopped, read_run
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.folder import EventLog
from shoal.run.run import execute
from shoal.simulation.reference import serial
from shoal.strategies.parameter_server.run import ServerRun
from shoal.testing.conformance import Candidate
from shoal.testing.watch import BesideRun, Meanwhile, Watched, kill, reach, watch
from tests.support import PATIENCE
from tests.support.quick import AS_SETTINGS
from tests.support.sandbox import Den, soon

STRATEGIES = ["sync", "bounded", "async"]
NEAR = {"sync": 1e-3, "bounded": 0.02, "async": 0.02}  # of the serial run's test loss
EPOCHS = 15


def job_of(strategy: str, **changes: Any) -> Job:
    """Returns a job that lasts a second or two."""
    return Candidate(strategy, "processes").job(**{"stop__epochs": EPOCHS, "evaluate__every": 3.0, **changes})


def check_all_is_well(run: Watched) -> None:
    """Checks that the run ended as if nothing had happened."""
    assert not run.outcome.failed, run.outcome.why
    run.check_counted_once()
    aim = run.loss_of(serial(run.job, run.dataset))
    assert abs(run.loss - aim) <= NEAR[run.job.strategy.name], (run.loss, aim)


# ---------------------------------------------------------------- workers that are killed


def kill_some(strategy: str, seed: int, workers: int, victims: int) -> None:
    draw = random.Random(f"{strategy} {seed} {workers} {victims}")
    moments = sorted(draw.uniform(0.0, 0.8) for _ in range(victims))
    names = draw.sample([f"worker-{number}" for number in range(workers)], victims)
    print(
        f"{strategy}, seed {seed}: {', '.join(f'{name} at {at:.1%}' for name, at in zip(names, moments, strict=True))}"
    )

    def strike(training: ServerRun) -> None:
        for name, at in zip(names, moments, strict=True):
            kill(training, name, at)

    run = watch(job_of(strategy, workers=workers), strike)
    gone = {event.name: event.why for event in run.all(Gone)}
    assert gone == dict.fromkeys(names, "its process ended (killed by signal 9)")
    assert run.summary["workers_lost"] == victims
    check_all_is_well(run)


@pytest.mark.variants(slow=["async-4-2", "bounded-4-2", "bounded-2-1", "async-2-1", "sync-2-1"])
@pytest.mark.parametrize(("workers", "victims"), [(2, 1), (4, 2)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_workers_killed_at_any_moment_are_made_up_for(strategy: str, workers: int, victims: int) -> None:
    kill_some(strategy, 0, workers, victims)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 26))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_many_workers_killed_at_many_moments_are_made_up_for(strategy: str, seed: int) -> None:
    victims = 1 + seed % 2
    kill_some(strategy, seed, victims + 1 + seed % 3, victims)


@contextlib.contextmanager
def killed_when_it_appears(training: ServerRun, name: str, delay: float) -> Iterator[None]:
    """Kills a process ``delay`` seconds after it was forked."""

    def strike(training: ServerRun) -> None:
        assert soon(lambda: name in training.pids)
        pid = training.pids[name]
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)

    beside = BesideRun(training, strike)
    beside.start()
    try:
        yield
    finally:
        beside.join(PATIENCE)
    assert beside.error is None, beside.error


# Seconds: before it reports that it runs, before it has joined, before its first request.
DELAYS = [0.0, 0.003, 0.01, 0.03]


@pytest.mark.slow
@pytest.mark.parametrize("delay", DELAYS[::2])
def test_a_worker_killed_while_it_joins_is_made_up_for(delay: float) -> None:
    def strike(training: ServerRun) -> None:
        reach(training, 0.2)
        with killed_when_it_appears(training, "worker-2", delay), contextlib.suppress(StartFailed):
            training.add_worker()

    run = watch(job_of("bounded", workers=2), strike)
    check_all_is_well(run)


@pytest.mark.variants(slow=["1-0.01", "3-0.003", "3-0.01", "3-0.03"])
@pytest.mark.parametrize(("workers", "delay"), [(1, 0.01), *((3, delay) for delay in DELAYS)])
def test_a_worker_killed_at_the_start_of_a_run_leaves_it_to_the_others_or_ends_it(workers: int, delay: float) -> None:
    job = job_of("async", workers=workers, stop__epochs=3)
    dataset, log = load(job.data, job.seed), EventLog(None, None)
    training = ServerRun(job, dataset, log)
    try:
        with killed_when_it_appears(training, f"worker-{workers - 1}", delay), training:
            outcome = training.wait(25.0)
    except StartFailed as error:  # it had not even said that it runs
        assert f"worker-{workers - 1} did not start: its process ended (killed by signal 9)" in str(error)
        return
    assert outcome is not None, "it waits for ever for a worker that is dead"
    if workers == 1:
        assert outcome.failed
        assert "worker" in outcome.why
    else:
        assert not outcome.failed, outcome.why
        assert outcome.examples == 3 * dataset.train.rows


@pytest.mark.slow
def test_a_run_that_loses_all_its_workers_ends_and_keeps_what_was_learned(tmp_path: Path) -> None:
    def strike(training: ServerRun) -> None:
        for number in range(3):
            kill(training, f"worker-{number}", at=0.4)

    error = fails(job_of("sync"), tmp_path / "run", strike)
    assert "no worker is left to compute" in str(error)
    check_kept(error, tmp_path / "run")


# ---------------------------------------------------------------- workers pause, join and leave


@pytest.mark.variants(soak=["sync"])
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "async", pytest.param("bounded", marks=pytest.mark.soak)])
def test_a_worker_that_sleeps_too_long_is_replaced_and_comes_back_as_a_new_one(strategy: str) -> None:
    def strike(training: ServerRun) -> None:
        assert soon(lambda: training.course.done > 200)
        pid = training.pids["worker-1"]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert soon(lambda: training.course.counts.get("workers lost") == 1)
            time.sleep(0.6)  # the others go on without it, and events show that
        finally:
            os.kill(pid, signal.SIGCONT)

    # At least six seconds of work: time to be declared dead, to join again, and to do some work.
    slowly = {"emulate__per_example": 2e-4, "stop__epochs": 30, "evaluate__every": 100.0}
    job = job_of(strategy, **slowly, **AS_SETTINGS)
    run = watch(job, strike)
    assert not run.outcome.failed, run.outcome.why
    assert [(event.name, event.why) for event in run.all(Gone)] == [("worker-1", "silent for 1 s")]
    assert [event.name for event in run.all(Joined)].count("worker-1") == 2
    at_work = [event.workers for event in run.all(Progress)]
    assert at_work[0] == 3
    assert 3 in at_work[at_work.index(2) :]  # it took part again
    run.check_counted_once()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_workers_come_and_go_while_it_runs(strategy: str) -> None:
    def change(training: ServerRun) -> None:
        reach(training, 0.2)
        assert [training.add_worker(), training.add_worker()] == ["worker-2", "worker-3"]
        reach(training, 0.5)
        training.drain("worker-1")
        reach(training, 0.7)
        training.drain("worker-2")

    run = watch(job_of(strategy, workers=2, stop__epochs=2 * EPOCHS), change)
    assert sorted(event.name for event in run.all(Joined) if event.role == "worker") == [
        f"worker-{i}" for i in range(4)
    ]
    assert sorted(event.name for event in run.all(Gone)) == ["worker-1", "worker-2"]
    assert run.summary["workers_lost"] == 0
    assert max(event.workers for event in run.all(Progress)) == 4
    check_all_is_well(run)


# ---------------------------------------------------------------- the end of a server


def fails(job: Job, folder: Path, strike: Meanwhile) -> RunFailed:
    """Runs the job while ``strike`` disturbs it, and returns the error that ends the run."""
    beside: list[BesideRun] = []

    def started(training: ServerRun) -> None:
        beside.append(BesideRun(training, strike))
        beside[0].start()

    with pytest.raises(RunFailed) as raised:
        execute(job, folder, started=started)
    beside[0].join(PATIENCE)
    assert beside[0].error is None, beside[0].error
    return raised.value


def check_kept(error: RunFailed, folder: Path) -> None:
    """Checks that the last evaluated model is saved, in a folder that says the run failed."""
    assert str(folder) in str(error)
    run = Run.load(folder)
    assert run.summary["failed"] is True
    assert run.summary["stopped_because"] == error.why == run.events[-1].why  # type: ignore[union-attr]
    last = [event for event in run.events if isinstance(event, Evaluated)][-1]
    # The best evaluation, with or without an event: the evaluator may be ahead of the events.
    assert run.summary["test_loss"] <= last.test_loss
    assert run.model is not None
    assert run.model.nonzeros > 0 or last.number == 0
    assert isinstance(run.events[-1], Stopped)


# ---------------------------------------------------------------- the end of the parent


def start(den: Den, folder: Path, within: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Starts ``shoal train`` for about a minute."""
    settings = ["data.rows=3000", "data.features=2000", "data.batch=32", "stop.seconds=60", "evaluate.every=2"]
    changes = [word for setting in settings for word in ("--set", setting)]
    return den.start(
        "-m",
        "shoal",
        "train",
        "rcv1-like",
        "--workers",
        "3",
        "--servers",
        "2",
        "--out",
        str(folder),
        *changes,
        within=within,
    )


def is_evaluated(folder: Path, times: int) -> bool:
    """Returns whether the run in this folder has evaluated its model so often."""
    lines = folder / "events.jsonl"
    return lines.exists() and sum(isinstance(event, Evaluated) for event in read_run(lines)) >= times


@pytest.mark.variants(slow=["0.9", "None"])
@pytest.mark.parametrize("moment", [0.4, 0.9, None])
def test_nothing_is_left_when_the_parent_is_killed(den: Den, tmp_path: Path, moment: float | None) -> None:
    child = start(den, tmp_path / "run")
    if moment is None:
        assert soon(lambda: is_evaluated(tmp_path / "run", 2))
        # The parent, its forkserver, the coordinator, two servers, three workers.
        assert len(den.alive()) == 8
    else:
        time.sleep(moment)  # it is still starting
    assert child.poll() is None
    child.kill()
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert den.is_empty(), den.left()
    if moment is None:  # what it wrote is complete
        assert (tmp_path / "run" / "job.toml").exists()
        assert len(read_run(tmp_path / "run" / "events.jsonl")) > 3


@pytest.mark.variants(slow=["SIGHUP", "Ctrl-C before*", "SIGTERM"])
@pytest.mark.parametrize(
    ("number", "evaluations"),
    [(signal.SIGINT, 3), (signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 2)],
    ids=["Ctrl-C", "Ctrl-C before the first pass", "SIGTERM", "SIGHUP"],
)
def test_an_interrupted_run_saves_what_was_learned_and_leaves_nothing_else(
    den: Den, tmp_path: Path, number: signal.Signals, evaluations: int
) -> None:
    folder = tmp_path / "run"
    child = start(den, folder)
    assert soon(lambda: is_evaluated(folder, evaluations))
    if evaluations == 1:  # only the initial weights are evaluated: wait until it has learned
        events = folder / "events.jsonl"
        assert soon(lambda: any(isinstance(one, Progress) and one.steps for one in read_run(events)))
    os.killpg(child.pid, number)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert den.is_empty(), den.left()
    run = Run.load(folder)
    assert run.summary["stopped_because"] == "interrupted"
    assert isinstance(run.events[-1], Stopped)
    last = [event for event in run.events if isinstance(event, Evaluated)][-1]
    assert run.model is not None and run.model.nonzeros > 0
    assert run.summary["test_loss"] == last.test_loss


@pytest.mark.slow
def test_a_run_that_was_started_to_ignore_hangup_and_ctrl_c_goes_on_and_ends_on_sigterm(
    den: Den, tmp_path: Path
) -> None:
    """A script starts it by `nohup shoal train ... &`."""
    folder = tmp_path / "run"
    child = start(den, folder, within=("sh", "-c", 'trap "" HUP INT; exec "$@"', "sh"))
    assert soon(lambda: is_evaluated(folder, 1))
    os.killpg(child.pid, signal.SIGHUP)
    os.killpg(child.pid, signal.SIGINT)
    seen = sum(isinstance(event, Evaluated) for event in read_run(folder / "events.jsonl"))
    assert soon(lambda: child.poll() is not None or is_evaluated(folder, seen + 2))
    assert child.poll() is None, child.communicate()[1]
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 128 + signal.SIGTERM and "Traceback" not in errors, errors
    assert den.is_empty(), den.left()
    assert Run.load(folder).summary["stopped_because"] == "interrupted"


def test_an_interrupted_start_leaves_nothing(den: Den, tmp_path: Path) -> None:
    child = start(den, tmp_path / "run")
    assert soon(lambda: (tmp_path / "run" / "job.toml").exists())
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode != 0, errors
    assert den.is_empty(), (den.left(), errors)


def test_a_run_whose_forkserver_is_killed_keeps_its_last_figures(tmp_path: Path) -> None:
    """No process is left to ask, so the figures are those of the last event."""

    told = threading.Event()

    def hear(event: object) -> None:
        if isinstance(event, Evaluated) and event.steps > 0:
            told.set()

    def started(training: ServerRun) -> None:
        assert told.wait(60)
        (forkserver,) = {psutil.Process(pid).ppid() for pid in training.pids.values()}
        os.kill(forkserver, signal.SIGKILL)

    settings = {"data": {"source": "clicks", "rows": 2000, "batch": 100}, "stop": {"epochs": 1e9}}
    with pytest.raises(RunFailed) as failed:
        execute(Job.of(settings), tmp_path / "run", on_event=hear, started=started)
    run = failed.value.run
    assert isinstance(run, Run)
    assert run.summary["failed"] and run.summary["steps"] > 0 and run.summary["examples"] > 0
    assert run.summary["seconds"] > 0

"""Ranks and servers of averaging runs are killed and stopped, and runs are resumed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import RunFailed
from shoal.events import Gone, RunEvent, Saved
from shoal.job import Job
from shoal.settings_tree import changed
from shoal.testing.watch import kill, reach, watch
from shoal.training.tracked_run import RunHandle
from tests.support.quick import AS_SETTINGS
from tests.support.sandbox import Den, soon

JOB = {
    "data": {"source": "rcv1-like", "rows": 3_000, "features": 2_000, "batch": 20},  # 150 slots
    "strategy": {"name": "averaging", "every": 4},
    "stop": {"epochs": 12},
    "evaluate": {"every": 2.0},
    "workers": 4,
    "emulate": {"per_example": 5e-5},  # long enough to strike in the middle
}


def job(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


@pytest.mark.variants(slow=["end"])
@pytest.mark.parametrize("every", [4, "end"])
def test_ranks_that_are_killed_one_by_one_leave_their_slots_to_the_others(every: int | str) -> None:
    def one_by_one(training: RunHandle) -> None:
        for at, name in ((0.1, "worker-1"), (0.3, "worker-3"), (0.5, "worker-2")):
            kill(training, name, at)

    run = watch(job(strategy__every=every), one_by_one)
    assert not run.outcome.failed, run.outcome.why
    assert sorted(event.name for event in run.all(Gone)) == ["worker-1", "worker-2", "worker-3"]
    assert {event.why for event in run.all(Gone)} == {"its process ended (killed by signal 9)"}
    assert run.summary["workers_lost"] == 3
    assert run.summary["slots_dealt_again"] == sum(event.slots for event in run.all(Gone))
    run.check_counted_once()
    assert run.losses[-1] < run.losses[0]


@pytest.mark.slow
def test_two_ranks_killed_at_once_and_one_at_the_very_start_change_nothing() -> None:
    def at_once(training: RunHandle) -> None:
        kill(training, "worker-3")
        for name in ("worker-1", "worker-2"):
            kill(training, name, 0.2)

    run = watch(job(servers=2), at_once)
    assert not run.outcome.failed, run.outcome.why
    assert sorted(event.name for event in run.all(Gone)) == ["worker-1", "worker-2", "worker-3"]
    run.check_counted_once()


@pytest.mark.soak
def test_a_rank_that_is_stopped_is_ended_after_its_silence_and_the_others_go_on() -> None:
    def stop(training: RunHandle) -> None:
        reach(training, 0.2)
        os.kill(training.pids["worker-2"], signal.SIGSTOP)

    run = watch(job(**AS_SETTINGS), stop)
    assert not run.outcome.failed, run.outcome.why
    assert [(event.name, event.why) for event in run.all(Gone)] == [("worker-2", "it was silent for too long")]
    run.check_counted_once()


@pytest.mark.soak
def test_a_server_that_is_killed_does_not_matter_where_there_are_copies() -> None:
    run = watch(job(servers=3, copies=2), lambda training: kill(training, "server-1", 0.3))
    assert not run.outcome.failed, run.outcome.why
    assert [(event.name, event.role) for event in run.all(Gone)] == [("server-1", "server")]
    assert (run.summary["servers_lost"], run.summary["workers_lost"]) == (1, 0)
    run.check_counted_once()


class Killer:
    """Kills a process of the run when the checkpoint with number 2 is on disk."""

    def __init__(self, name: str) -> None:
        self.name, self.training = name, list[RunHandle]()

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, Saved) and event.number == 2:
            os.kill(self.training[0].pids[self.name], signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("victim", "over", "said"),
    [
        ("server-0", "store", "server-0 is gone, and with it the only copy"),
        ("worker-1", "gloo", "worker-1 is gone .its process ended"),
    ],
)
def test_where_nobody_can_go_on_the_run_says_so_and_is_taken_up_again(
    tmp_path: Path, victim: str, over: str, said: str
) -> None:
    if over == "gloo":
        pytest.importorskip("torch")
    from shoal.run.run import execute

    killer = Killer(victim)
    with pytest.raises(RunFailed, match=said) as failed:
        execute(
            job(strategy__over=over, checkpoint__every=0.01), tmp_path / "run", killer, started=killer.training.append
        )
    assert "--resume" in failed.value.why
    again = shoal.train(resume=tmp_path / "run")
    assert again.summary["examples"] == 12 * 3_000
    assert (again.summary["resumed"], again.summary["failed"]) == (1, False)


@pytest.mark.parametrize(
    ("over", "how"),
    [
        ("store", signal.SIGKILL),
        pytest.param("store", signal.SIGINT, marks=pytest.mark.soak),
        pytest.param("gloo", signal.SIGKILL, marks=pytest.mark.soak),
        pytest.param("gloo", signal.SIGINT, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left_when_rank_0_is_ended_and_its_run_goes_on(
    den: Den, tmp_path: Path, over: str, how: signal.Signals
) -> None:
    if over == "gloo":
        pytest.importorskip("torch")
    path = tmp_path / "job.toml"
    path.write_text(job(strategy__over=over, checkpoint__every=0.01, stop__epochs=2_000).toml())
    process = den.start("-m", "shoal", "train", str(path), "--out", str(tmp_path / "run"))
    assert soon(lambda: len(list(tmp_path.glob("run/checkpoints/0*"))) > 2), process.communicate()
    process.send_signal(how)
    process.wait(60)
    assert den.is_empty(), den.left()
    if over == "store":
        calmly = {"launch.how": "threads", "checkpoint.every": 60.0, "emulate.per_example": 0.0}
        again = shoal.train(resume=tmp_path / "run", workers=2, epochs=8, settings=calmly)
        assert (again.summary["resumed"], again.summary["failed"]) == (1, False)

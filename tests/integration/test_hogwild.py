"""strategy = "hogwild": workers share one model in memory, as threads or processes.

A run has the same files and events as any other.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shoal
from shoal.errors import BadCheckpoint, Invalid, RunFailed, StartFailed
from shoal.events import Evaluated, Joined, Progress, Resumed, Saved, Started, Stopped, read_run
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.settings_tree import changed
from shoal.strategies.hogwild.run import HogwildRun
from shoal.training import local_checkpoint
from tests.support.sandbox import soon

ROWS, BATCH = 600, 20  # 30 slots per epoch
BASE: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": ROWS, "features": 1_000, "batch": BATCH},
    "launch": {"how": "threads"},
    "strategy": "hogwild",
    "stop": {"epochs": 2},
    "workers": 2,
}


def job_of(**changes: Any) -> Job:
    return Job.of(changed(BASE, {name.replace("__", "."): value for name, value in changes.items()}))


def evaluated(run: Run) -> list[Evaluated]:
    return [event for event in run.events if isinstance(event, Evaluated)]


def same(one: Run, other: Run) -> bool:
    assert one.model is not None and other.model is not None
    return np.array_equal(one.model.table, other.model.table)  # type: ignore[attr-defined]


@pytest.mark.variants(slow=["2-locked", "2-batched", "2-hot_cold", "5-example", "5-locked", "5-batched", "5-hot_cold"])
@pytest.mark.parametrize("way", ["example", "locked", "batched", "hot_cold"])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_do_one_epochs_work_together(way: str, workers: int) -> None:
    run = execute(job_of(strategy__way=way, workers=workers, evaluate__every=0.3, stop__epochs=2.5))
    assert run.summary["examples"] == 2.5 * ROWS and run.summary["steps"] == 75
    assert [event.steps for event in evaluated(run)] == [0, *range(9, 75, 9), 75]
    assert run.summary["test_loss"] < 0.69
    assert run.summary["workers"] == workers


@pytest.mark.parametrize(
    ("how", "changes"),
    [("threads", {"model": "hinge", "update": "sgd"}), ("processes", {"model__l2_per_count": 0.1})],
)
def test_one_worker_that_takes_slots_as_steps_is_the_serial_run_bit_for_bit(how: str, changes: dict[str, Any]) -> None:
    alone = execute(job_of(strategy="serial", **changes))
    one = execute(job_of(workers=1, strategy__way="batched", launch__how=how, **changes))
    assert same(one, alone)
    assert [event.test_loss for event in evaluated(one)] == [event.test_loss for event in evaluated(alone)]


# With slots as steps both equal the serial run, as the test above shows.
@pytest.mark.soak
def test_threads_and_processes_learn_the_same() -> None:
    threads, processes = (execute(job_of(workers=1, launch__how=how)) for how in ("threads", "processes"))
    assert same(threads, processes)


def test_it_tells_what_every_run_tells(tmp_path: Path) -> None:
    run = execute(job_of(), tmp_path / "run")
    started = run.events[0]
    assert isinstance(started, Started) and (started.strategy, started.workers, started.servers) == ("hogwild", 2, 0)
    assert len([event for event in run.events if isinstance(event, Joined)]) == 2
    assert [event.passes for event in evaluated(run)] == [0, 1, 2]
    assert isinstance(run.events[-1], Stopped) and run.events[-1].why == "2 epochs done"
    assert list(run.summary) == list(execute(job_of(strategy="serial", stop__epochs=1)).summary)
    again = Run.load(tmp_path / "run")
    assert again.summary == run.summary and again.model is not None


@pytest.mark.parametrize("way", ["example", "locked", "batched"])
def test_a_canary_counts_lost_updates_and_a_lock_loses_none(way: str) -> None:
    run = execute(job_of(strategy__way=way, strategy__canary=1, workers=4, stop__epochs=20))
    seen = run.summary["lost_updates"]
    assert seen["counted"] >= 600 and 0 <= seen["lost"] < seen["counted"]
    assert way != "locked" or seen["lost"] == 0


def test_without_a_canary_nothing_is_said_of_lost_updates() -> None:
    assert execute(job_of(strategy__canary=0)).summary["lost_updates"] is None


def test_progress_says_where_the_time_of_workers_goes() -> None:
    run = execute(job_of(emulate__per_example=5e-4, emulate__factor=4.0))
    progress = [event for event in run.events if isinstance(event, Progress)]
    assert progress and all(event.workers == 2 for event in progress)
    assert set(run.summary["spent"]) == {"compute", "idle"}
    told = sum(sum(event.spent.values()) for event in progress)
    assert told == pytest.approx(2 * run.summary["seconds"], rel=0.2)  # the time of two workers
    assert run.summary["emulated"] == "emulated compute (500 us per example), worker-0 4x slower"


def test_a_model_that_runs_away_fails_the_run() -> None:
    with pytest.raises(RunFailed, match=r"the loss is inf: take a smaller step"):
        execute(job_of(model="squared", update__rule="sgd", update__step=1e6, stop__epochs=20))


RUNS_AWAY: dict[str, Any] = {"model": "squared", "update__rule": "sgd", "update__step": 1e6, "evaluate__every": 1e9}


def test_a_model_that_ran_away_is_why_a_run_failed_also_when_its_time_is_over() -> None:
    with pytest.raises(RunFailed, match=r"the loss is inf: take a smaller step"):
        execute(job_of(stop={"seconds": 0.1}, **RUNS_AWAY))


def test_a_model_that_ran_away_is_why_a_run_failed_also_when_it_is_interrupted_then(tmp_path: Path) -> None:
    def hear(event: Any) -> None:
        if isinstance(event, Evaluated) and event.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(job_of(stop__epochs=3, **RUNS_AWAY), tmp_path / "run", hear)
    was = msgspec.json.decode((tmp_path / "run" / "summary.json").read_bytes())
    assert was["failed"] and was["stopped_because"].startswith("the loss is inf")


def test_a_model_that_ran_away_is_never_kept_and_ends_the_run_when_it_would_be(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the loss is inf: take a smaller step"):
        execute(job_of(checkpoint__every=0.01, stop={"seconds": 60}, **RUNS_AWAY), tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_run_that_has_no_memory_to_judge_says_so_with_what_was_judged_before(monkeypatch: pytest.MonkeyPatch) -> None:
    judged, real = [], HogwildRun._weights

    def weights(run: HogwildRun) -> Any:
        judged.append(1)
        if len(judged) > 2:
            raise MemoryError
        return real(run)

    monkeypatch.setattr(HogwildRun, "_weights", weights)
    with pytest.raises(RunFailed, match=r"no memory is left to evaluate the model: take a smaller one") as failure:
        execute(job_of())
    assert isinstance(failure.value.run, Run) and len(evaluated(failure.value.run)) == 2


def test_too_few_descriptors_are_told_in_words_and_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], os.pipe

    def pipe() -> tuple[int, int]:
        if len(made) > 2:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(real())
        return made[-1]

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(StartFailed, match=r"worker-2 cannot start: too many files.*ulimit -n 4096.*fewer workers"):
        execute(job_of(workers=8))
    assert len(made) == 3
    for descriptor in np.ravel(made):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(int(descriptor))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"launch__how": "mpi"}, r"does not run over MPI.*--strategy averaging"),
        ({"strategy__way": "hot_cold", "update__rule": "ftrl"}, r"hot_cold adds up the changes of several workers"),
        ({"strategy__hot": 0}, r"strategy.hot=0: needs 1 to"),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_move(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        execute(job_of(**changes))


LONG = ("--strategy", "hogwild", "--workers", "2", "--set", "data.batch=20", "--set", "data.rows=600", "--set",
        "data.features=1000", "--set", "emulate.per_example=0.001", "--set", "evaluate.every=0.1")  # fmt: skip


@pytest.mark.slow
def test_ctrl_c_judges_and_saves_what_was_learned(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "shoal", "train", "rcv1-like", *LONG, "--epochs", "1000", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))
    try:
        assert soon(lambda: (out / "events.jsonl").exists() and len(read_run(out / "events.jsonl")) > 6, 60)
        process.send_signal(signal.SIGINT)
        _, errors = (text.decode() for text in process.communicate(timeout=60))
    finally:
        process.kill()
    assert process.returncode in (130, -2) and "Traceback" not in errors
    assert "what was learned so far is in" in errors
    was = msgspec.json.decode((out / "summary.json").read_bytes())
    assert was["failed"] and was["stopped_because"] == "interrupted" and was["test_loss"] < 0.69
    assert (out / "model.safetensors").exists()


# ---------------------------------------------------------------- resume


def interrupted(out: Path, at: int, **changes: Any) -> None:
    """Press Ctrl-C at the evaluation of this number."""

    def hear(event: Any) -> None:
        if isinstance(event, Evaluated) and event.number == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        # Slowly: the callback runs on another thread, and the run may be over by then.
        execute(job_of(evaluate__every=0.2, **{"emulate__per_example": 1e-3, **changes}), out, hear)


def test_a_run_that_was_interrupted_goes_on_and_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    given: dict[str, Any] = {"workers": 1, "strategy__way": "batched", "emulate__per_example": 1e-3}
    interrupted(tmp_path / "run", 3, **given)
    again = shoal.train(resume=tmp_path / "run")
    (resumed,) = (event for event in again.events if isinstance(event, Resumed))
    assert resumed.checkpoint == 1 and 18 <= resumed.steps < 2 * ROWS // 20
    assert again.summary["examples"] == 2 * ROWS and not again.summary["failed"]
    assert same(again, execute(job_of(evaluate__every=0.2, **given)))
    # A run that makes checkpoints also saves its end.
    more = shoal.train(resume=tmp_path / "run", epochs=3)
    assert [event for event in more.events if isinstance(event, Resumed)][-1].steps == again.summary["steps"]
    assert more.summary["examples"] == 3 * ROWS


def test_any_number_of_workers_goes_on(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 4, workers=1, strategy__canary=1)
    again = shoal.train(resume=tmp_path / "run", workers=3)
    assert again.summary["examples"] == 2 * ROWS and evaluated(again)[-1].passes == 2.0
    assert again.summary["lost_updates"]["counted"] == 2 * ROWS  # before and after the resume
    assert again.summary["test_loss"] < 0.69


def test_a_run_does_not_go_on_from_a_model_of_another_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = local_checkpoint.read
    monkeypatch.setattr(local_checkpoint, "read", lambda path: replace(real(path), slab=np.ones((1, 1), np.float32)))
    interrupted(tmp_path / "run", 3)
    with pytest.raises(BadCheckpoint, match=r"has a model of \(1, 1\), and this run's is of \(1001, 2\)"):
        shoal.train(resume=tmp_path / "run")


def test_a_run_is_kept_in_the_middle_of_a_round_and_no_slot_is_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_checkpoint.LocalCheckpoints, "rest", 0)
    run = execute(job_of(emulate__per_example=1e-3, checkpoint__every=0.02), tmp_path / "run")
    saved = [event.steps for event in run.events if isinstance(event, Saved)]
    assert any(steps % 30 for steps in saved) and saved == sorted(set(saved))
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 3
    assert run.summary["examples"] == 2 * ROWS and run.summary["slots_dealt_again"] == 0


# ---------------------------------------------------------------- modules


def trained(images: Path, **given: Any) -> Run:
    return shoal.train(images, **{"batch": 32, "epochs": 2, "strategy": "hogwild", **given})


@pytest.mark.slow
def test_one_worker_with_a_module_is_the_serial_run_bit_for_bit(images: Path) -> None:
    """It has dropout, drawn by slot, and Adam, whose state is in the shared memory as well."""
    one, alone = (trained(images, model="sheet", workers=1, strategy=strategy) for strategy in ("hogwild", "serial"))
    assert one.model is not None and alone.model is not None
    tensors, others = one.model.tensors, alone.model.tensors  # type: ignore[attr-defined]
    assert all(np.array_equal(tensors[name], others[name]) for name in others)


def test_workers_with_a_module_share_the_work_and_learn(images: Path) -> None:
    run = trained(images, model="linear", workers=2, epochs=6)
    started = run.events[0]
    assert isinstance(started, Started) and run.summary["examples"] == 6 * started.rows
    assert run.summary["metrics"]["accuracy"] > 0.95
    assert run.summary["lost_updates"]["counted"] == run.summary["steps"]


@pytest.mark.slow
def test_an_error_of_a_module_is_told_in_its_own_words(images: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\nclass Net(nn.Sequential):\n    calls = 0\n    def forward(self, x):\n"
        "        Net.calls += self.training\n        if Net.calls > 3:\n            raise ValueError('no more of this')\n"
        "        return super().forward(x)\n\ndef net():\n    return Net(nn.Flatten(), nn.Linear(256, 4))\n"
    )
    with pytest.raises(RunFailed, match=r"start it again, when the cause is fixed.*ValueError: no more of this"):
        trained(images, model=f"{tmp_path / 'mine.py'}:net", workers=2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"launch.how": "threads"}, r"PyTorch's generator belongs to the whole process.*launch.how=processes"),
        ({"strategy.way": "example"}, r"a slot is one step: --set strategy.way=batched"),
    ],
)
def test_what_a_module_cannot_do_is_refused(images: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        trained(images, model="linear", settings=settings)

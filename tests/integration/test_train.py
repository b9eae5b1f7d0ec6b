"""Small real runs on threads of this process: stop rules, what runs leave, how they fail."""

from __future__ import annotations

import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid, RunFailed
from shoal.events import Evaluated, Gone, Joined, Progress, RunEvent, Shared, Spans, Started, Stopped, read_run
from shoal.job import Job
from shoal.nodes.evaluator import Evaluator
from shoal.run.finished import Run
from shoal.run.run import execute, train
from shoal.settings_tree import changed
from shoal.strategies.parameter_server.run import ServerRun

ROWS, BATCH = 600, 20  # 30 slots per epoch
BASE: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": ROWS, "features": 1_000, "batch": BATCH},
    "launch": {"how": "threads"},
}
STRATEGIES = ("sync", "bounded", "async")
ALL = pytest.mark.parametrize("strategy", STRATEGIES)
SUMMARY = {
    "data", "model", "strategy", "workers", "servers", "seed", "seconds", "steps", "examples", "examples_per_second",
    "train_loss", "test_loss", "metrics", "bytes_sent", "bytes_received", "staleness", "stopped_because", "failed",
    "cores", "workers_lost", "servers_lost", "coordinator_restarts", "slots_dealt_again", "resumed", "rollbacks", "computing_seconds", "machine",
    "spent", "spread", "emulated", "slots_given_up",
    "second_copies", "second_copies_first", "cpu_seconds", "elapsed_seconds", "lost_updates", "filters", "handles",
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Pack the rows into a folder of these tests."""
    before = os.environ.get("SHOAL_CACHE")
    os.environ["SHOAL_CACHE"] = before or str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["SHOAL_CACHE"]


def job(**changes: Any) -> Job:
    return Job.of(changed(BASE, {name.replace("__", "."): value for name, value in changes.items()}))


def small(out: Path | None = None, on_event: Any = None, **changes: Any) -> Run:
    return execute(job(**changes), out, on_event)


def evaluated(run: Run) -> list[Evaluated]:
    return [event for event in run.events if isinstance(event, Evaluated)]


# ---------------------------------------------------------------- stop rules


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_epochs_end_a_run_and_every_row_is_seen_as_often(strategy: str) -> None:
    run = small(strategy=strategy, stop__epochs=2)
    assert run.summary["stopped_because"] == "2 epochs done"
    assert run.summary["examples"] == 2 * ROWS
    assert run.summary["steps"] == (2 * 4 if strategy == "sync" else 60)  # eight slots in a step
    assert (evaluated(run)[0].passes, evaluated(run)[-1].passes) == (0.0, 2.0)


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_part_of_an_epoch_is_enough(strategy: str) -> None:
    run = small(strategy=strategy, stop__epochs=0.5)
    assert run.summary["stopped_because"] == "0.5 epochs done"
    assert run.summary["examples"] == (16 if strategy == "sync" else 15) * BATCH  # whole steps


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_steps_end_a_run(strategy: str) -> None:
    run = small(strategy=strategy, stop__steps=5)
    assert (run.summary["stopped_because"], run.summary["steps"]) == ("5 steps done", 5)


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_seconds_end_a_run(strategy: str) -> None:
    run = small(strategy=strategy, stop__seconds=0.3)
    assert run.summary["stopped_because"] == "0.3 seconds are over"
    assert run.summary["seconds"] >= 0.3 and run.summary["examples"] > 0


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_a_target_ends_a_run(strategy: str) -> None:
    run = small(strategy=strategy, stop__target_loss=0.65)
    assert run.summary["stopped_because"] == "target loss 0.65 reached"
    assert min(event.test_loss for event in evaluated(run)) <= 0.65


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_patience_ends_a_run_and_the_best_weights_are_kept(strategy: str) -> None:
    run = small(strategy=strategy, stop__patience=2, stop__min_delta=0.05, stop__epochs=60)
    assert run.summary["stopped_because"] == "no improvement in 2 evaluations"
    assert run.summary["test_loss"] == min(event.test_loss for event in evaluated(run))


def test_a_run_that_diverges_ends_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the loss is .*: take a smaller step") as failure:
        small(tmp_path / "run", model="squared", update="sgd", update__step=1e6, stop__epochs=50)
    run = failure.value.run
    assert isinstance(run, Run) and run.model is not None and run.summary["failed"]
    # The best weights are kept, not the diverged ones.
    assert math.isfinite(run.summary["test_loss"])
    assert not math.isfinite(evaluated(run)[-1].test_loss)
    back = Run.load(tmp_path / "run")
    assert len(back.events) == len(run.events) and math.isnan(evaluated(back)[-1].test_loss)


# ---------------------------------------------------------------- events and files


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_a_run_has_its_figures(strategy: str) -> None:
    run = small(strategy=strategy, stop__epochs=2, workers=2, servers=2, seed=7)
    assert set(run.summary) == SUMMARY
    assert (run.summary["workers"], run.summary["servers"], run.summary["seed"]) == (2, 2, 7)
    assert (run.summary["data"], run.summary["model"], run.summary["strategy"]) == ("rcv1-like", "logistic", strategy)
    assert run.summary["bytes_sent"] > 0 < run.summary["bytes_received"]
    assert run.summary["workers_lost"] == run.summary["slots_dealt_again"] == 0
    assert run.summary["test_loss"] == evaluated(run)[-1].test_loss < evaluated(run)[0].test_loss
    if strategy == "sync":
        assert run.summary["staleness"]["max"] == 0
    assert run.model is not None and run.model.features == 1_000


def test_what_happens_is_told_in_order() -> None:
    heard: list[RunEvent] = []
    run = small(on_event=heard.append, stop__epochs=3)
    assert heard == run.events
    kinds = [type(event) for event in heard if not isinstance(event, Joined | Progress | Gone | Shared | Spans)]
    assert kinds[0] is Started and kinds[-1] is Stopped and set(kinds[1:-1]) == {Evaluated}
    assert [event.number for event in evaluated(run)] == list(range(len(evaluated(run))))
    assert evaluated(run)[0].test_loss == pytest.approx(math.log(2))
    assert {event.name for event in heard if isinstance(event, Joined)} == {"server-0", "worker-0", "worker-1"}
    times = [event.seconds for event in heard]
    assert times == sorted(times) and times[-1] == pytest.approx(run.summary["seconds"], abs=1e-4)


def test_the_figures_are_of_the_run_and_not_of_how_long_it_took_to_go() -> None:
    run = small(stop__epochs=1)
    (stopped,) = [event for event in run.events if isinstance(event, Stopped)]
    assert run.summary["seconds"] == round(stopped.seconds, 4)


def test_a_run_folder_has_everything_and_is_read_back(tmp_path: Path) -> None:
    run = small(tmp_path / "run", stop__epochs=2)
    assert run.folder == tmp_path / "run"
    names = {path.name for path in run.folder.iterdir()}
    assert {"job.toml", "events.jsonl", "model.safetensors", "summary.json", "coordinator.journal"} <= names
    assert all(not name.startswith(".") for name in names)
    back = Run.load(run.folder)
    assert (back.job, back.summary, back.events) == (run.job, run.summary, run.events)
    assert back.model is not None and run.model is not None
    assert back.model.table.tobytes() == run.model.table.tobytes()
    assert Job.load(run.folder / "job.toml") == run.job


def test_the_model_predicts_what_the_evaluator_judged() -> None:
    run = small(stop__epochs=2)
    assert run.model is not None
    rows = np.zeros((2, 1_000), np.float32)
    rows[0, 5] = 1.0
    expected = 1 / (1 + np.exp(-(rows @ run.model.weights + run.model.bias)))
    np.testing.assert_allclose(run.model.predict(rows), expected, rtol=1e-6)


def test_a_run_can_be_plotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = small(tmp_path / "run", stop__epochs=1)
    assert (tmp_path / "run" / "loss.png").stat().st_size > 0
    Run.load(tmp_path / "run").plot(tmp_path / "again.png")
    assert (tmp_path / "again.png").stat().st_size > 0
    assert run.plot() is not None
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(Invalid, match=r"cannot write .*taken\.png: .*: choose another place"):
        run.plot(tmp_path / "taken.png")


def test_synchronous_runs_are_the_same_bit_for_bit() -> None:
    runs = [small(strategy="sync", workers=workers, servers=servers) for workers, servers in ((1, 1), (3, 2))]
    first, second = (run.model for run in runs)
    assert first is not None and second is not None
    assert first.table.tobytes() == second.table.tobytes()


def test_train_takes_settings_by_name_and_a_job_as_it_is() -> None:
    settings = {"data.rows": ROWS, "data.features": 1_000, "launch.how": "threads", "strategy.max_delay": 2}
    run = shoal.train("rcv1-like", strategy="bounded", workers=1, batch=BATCH, epochs=1, seed=3, settings=settings)
    assert run.job == job(strategy="bounded", strategy__max_delay=2, workers=1, stop__epochs=1, seed=3)
    again = train(run.job, model="hinge", steps=2)
    assert again.job == job(
        strategy="bounded", strategy__max_delay=2, workers=1, stop__epochs=1, stop__steps=2, seed=3, model="hinge"
    )
    assert again.summary["stopped_because"] == "2 steps done"


def test_rows_of_ones_own_file_are_trained_on(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = []
    for _ in range(300):
        x = draw.normal(size=4)
        label = 1 if x @ [1, -2, 0.5, 3] > 0 else -1
        lines.append(f"{label:+d} " + " ".join(f"{i + 1}:{value:.4f}" for i, value in enumerate(x)))
    path = tmp_path / "mine.svm"
    path.write_text("\n".join(lines) + "\n")
    settings = {"launch.how": "threads", "update.step": 0.5}
    run = shoal.train(path, epochs=20, batch=16, settings=settings)
    assert run.summary["data"] == "mine.svm" and run.summary["metrics"]["accuracy"] > 0.85


# ---------------------------------------------------------------- failures


def test_an_on_event_that_fails_is_told_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(event: RunEvent) -> None:
        raise RuntimeError("my mistake")

    run = small(on_event=broken, stop__epochs=1)
    assert run.summary["stopped_because"] == "1 epoch done"
    assert capsys.readouterr().err.count("my mistake in on_event") == 1


def test_a_folder_that_is_in_use_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    small(tmp_path / "run", stop__steps=1)
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(Invalid, match="has a run in it already"):
        small(tmp_path / "run", stop__steps=1)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


def test_labels_that_a_model_cannot_learn_are_refused_and_leave_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "numbers.svm"
    path.write_text("".join(f"{i}.5 1:{i}\n" for i in range(50)))
    with pytest.raises(Invalid, match="label"):
        train(path, settings={"launch.how": "threads"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_ends_everything_and_keeps_what_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work: list[list[str]] = []
    evaluate_now = Evaluator.evaluate_now

    def watched(self: Evaluator, pulled: Any) -> Any:
        at_work.append([one.name for one in threading.enumerate() if one.name.startswith("worker")])
        return evaluate_now(self, pulled)

    monkeypatch.setattr(Evaluator, "evaluate_now", watched)

    def interrupt(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "run", interrupt, stop__seconds=60)
    assert threading.active_count() == before
    back = Run.load(tmp_path / "run")
    assert back.summary["stopped_because"] == "interrupted" and back.summary["failed"]
    assert back.model is not None and back.summary["examples"] > 0
    stopped = [event for event in read_run(tmp_path / "run" / "events.jsonl") if isinstance(event, Stopped)]
    assert [event.why for event in stopped] == ["interrupted"]
    # Whatever workers compute during the evaluation would be in no checkpoint.
    assert at_work == [[]]
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_worker_that_breaks_is_lost_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(training: ServerRun) -> None:
        trainer = training._threads["worker-0"][1]
        monkeypatch.setattr(trainer.worker, "compute", lambda *_: 1 / 0)

    for strategy in STRATEGIES:
        run = execute(job(strategy=strategy, stop__epochs=20), started=started)
        assert run.summary["stopped_because"] == "20 epochs done"
        assert run.summary["workers_lost"] == 1 and run.summary["examples"] == 20 * ROWS


def test_a_worker_that_never_comes_up_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.launch import worker_process

    make = worker_process.run

    def broken(trainer: Any, *rest: Any) -> None:
        if trainer.worker.name == "worker-1":
            raise MemoryError("no room for worker-1")
        make(trainer, *rest)

    monkeypatch.setattr(worker_process, "run", broken)
    run = small(stop__epochs=1)
    assert run.summary["stopped_because"] == "1 epoch done" and run.summary["workers_lost"] == 1
    assert any(isinstance(event, Gone) and event.name == "worker-1" for event in run.events)


def test_a_run_of_which_no_worker_comes_up_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from shoal.launch import worker_process

    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(worker_process, "run", broken)
    with pytest.raises(RunFailed, match="no worker was there"):
        small(tmp_path / "run", stop__epochs=1)


def test_an_evaluator_that_breaks_fails_the_run_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from shoal.models.linear import Linear

    def broken(*_: Any) -> Any:
        raise MemoryError("no room for the test set")

    monkeypatch.setattr(Linear, "evaluate", broken)
    with pytest.raises(RunFailed, match="no room for the test set") as error:
        small(tmp_path / "run", stop__epochs=1)
    assert isinstance(error.value.run, Run) and error.value.run.summary["failed"]
    assert Run.load(tmp_path / "run").summary["failed"]


# ---------------------------------------------------------------- while it runs


@pytest.mark.variants(slow=["bounded", "async"])
@ALL
def test_workers_may_join_and_leave_while_it_runs(strategy: str) -> None:
    names: list[str] = []

    def started(training: ServerRun) -> None:
        names.append(training.add_worker())
        training.drain("worker-0")

    run = execute(job(strategy=strategy, stop__epochs=30), started=started)
    assert names == ["worker-2"]
    assert run.summary["examples"] == 30 * ROWS and run.summary["workers_lost"] == 0
    gone = [event for event in run.events if isinstance(event, Gone)]
    assert [(event.name, event.why) for event in gone] == [("worker-0", "it left")]


def test_a_training_can_be_waited_for_for_a_while() -> None:
    from shoal.data.datasets import load

    one = job(stop__seconds=0.5)
    with ServerRun(one, load(one.data, one.seed)) as training:
        assert training.wait(0.05) is None
        assert sorted(training.workers) == ["worker-0", "worker-1"]
        with pytest.raises(Invalid, match="no worker 'nobody' here"):
            training.drain("nobody")
        outcome = training.wait()
    assert outcome is not None and outcome.why == "0.5 seconds are over" and not outcome.failed


@pytest.mark.slow
def test_settings_without_an_end_reach_workers_in_processes() -> None:
    run = small(workers=2, launch__how="processes", evaluate__every=math.inf, stop__epochs=math.inf, stop__steps=40)
    assert run.summary["steps"] == 40 and not run.summary["failed"]


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        # Pushes that look ahead wait for later pushes of the same worker.
        (
            "bounded",
            {"strategy.prefetch": 64, "strategy.max_delay": 0},
        ),
        # A step has more slots than there may be messages in flight.
        ("sync", {"strategy.slots_per_step": 1_100, "data.batch": 1}),
    ],
)
def test_a_worker_never_waits_for_itself(strategy: str, settings: dict[str, Any]) -> None:
    changes = {name.replace(".", "__"): value for name, value in settings.items()}
    run = small(strategy=strategy, workers=1, stop__epochs=1, stop__seconds=60, **changes)
    assert run.summary["stopped_because"] == "1 epoch done"

"""Ranks that train alone and average get the documented result, over any transport."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.data.datasets import load
from shoal.data.slots import Slots
from shoal.errors import Invalid, RunFailed
from shoal.events import Evaluated, Resumed, RunEvent, Saved, Started
from shoal.job import Job
from shoal.models.learner import learner_of
from shoal.run.finished import Run
from shoal.settings_tree import changed
from shoal.strategies.averaging.shards import Shards
from shoal.testing.watch import Watched, watch
from shoal.training.local_model import LocalModel

JOB = {
    "data": {"source": "rcv1-like", "rows": 1_000, "features": 1_000, "batch": 20},  # fifty slots
    "strategy": {"name": "averaging", "every": 4},
    "stop": {"epochs": 2},
    "workers": 3,
    "launch": {"how": "threads"},
}
Floats = npt.NDArray[np.float32]


def job(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


@cache
def plain() -> Watched:
    return watch(job())


def by_hand(of: Job, every: int | None) -> Floats:
    """Compute the same algorithm in a few lines, rank after rank, with means in float64."""
    dataset = load(of.data, of.seed)
    learner = learner_of(of.model, dataset.train, of.seed)
    slots = Slots(dataset.train.rows, of.data.batch, of.seed)
    parts = Shards(slots, of.workers, of.strategy.shares, every)  # type: ignore[union-attr]
    cores = [LocalModel(of, dataset.train, learner, slots) for _ in range(of.workers)]
    left = 2 * slots.per_pass
    mean = np.zeros_like(cores[0].slab)
    while left:
        # The run is evaluated after each epoch.
        room = min(left, slots.per_pass - (2 * slots.per_pass - left) % slots.per_pass)
        for rank, ids in parts.plan(room).items():
            left -= len(ids)
            for piece in parts.pieces(ids):
                cores[rank].run(*piece)
        mean = sum(np.float64(weight) * cores[rank].slab for rank, weight in parts.weights().items())
        parts.settle(parts.living)
        if every is not None:
            parts.commit()
            for core in cores:
                core.slab[:] = mean
    return cores[0].weights_in(mean.astype(np.float32))


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_one_rank_is_the_serial_run_bit_for_bit(combine: str) -> None:
    alone = watch(job(workers=1, strategy__combine=combine))
    serial = watch(Job.of(changed(JOB, {"strategy": {"name": "serial", "combine": combine}})))
    assert np.array_equal(alone.weights, serial.weights)
    assert alone.losses == serial.losses


@pytest.mark.parametrize("changes", [{}, {"strategy__every": "end"}, {"strategy__shares": [1.0, 3.0, 1.0]}])
def test_the_mean_is_the_one_that_a_few_lines_take(changes: Mapping[str, Any]) -> None:
    run = watch(job(**changes)) if changes else plain()
    every = run.job.strategy.every  # type: ignore[union-attr]
    expected = by_hand(run.job, None if every == "end" else every)
    assert np.allclose(run.weights, expected, rtol=1e-4, atol=1e-6)
    run.check_counted_once()


def test_threads_and_processes_over_the_store_learn_the_same_bits() -> None:
    assert np.array_equal(plain().weights, watch(job(launch__how="processes")).weights)


def test_gloo_learns_what_the_store_does_to_rounding() -> None:
    pytest.importorskip("torch")
    run = watch(job(launch__how="processes", strategy__over="gloo", workers=3))
    assert np.allclose(run.weights, plain().weights, rtol=1e-4, atol=1e-6)
    assert run.summary["bytes_sent"] > 0 == run.summary["servers"]


def test_a_state_that_is_reset_begins_anew_at_every_mean() -> None:
    """AdaGrad drops its sums at every reset, so its steps stay as long as the first."""
    reset = watch(job(strategy__state="reset"))
    assert np.abs(reset.weights).sum() > 1.5 * np.abs(plain().weights).sum()


def test_ranks_with_starts_of_their_own_begin_with_the_mean_of_these() -> None:
    own = watch(job(strategy__start="own"))
    assert own.losses[0] != plain().losses[0]
    assert own.losses[-1] < own.losses[0]


def test_a_module_is_averaged_and_one_rank_of_it_is_the_serial_run() -> None:
    pytest.importorskip("torch")
    net = {"data": {"source": "digits"}, "model": "linear", "stop": {"epochs": 1}, "launch": {"how": "threads"}}
    serial = watch(Job.of(changed(net, {"strategy": "serial"})))
    alone, several = (watch(Job.of(changed(net, {"strategy": "averaging", "workers": count}))) for count in (1, 3))
    assert np.array_equal(alone.weights, serial.weights)
    assert several.losses[-1] < 0.9 * several.losses[0]
    several.check_counted_once()


# ---------------------------------------------------------------- waiting, divergence, refusals


def test_a_straggler_is_what_the_others_wait_for() -> None:
    run = watch(job(emulate__per_example=1e-4, emulate__slow=[1], emulate__factor=5.0, stop__epochs=1))
    assert run.summary["spent"]["wait"] > 0.2


def test_weights_that_run_away_end_the_run_and_say_so() -> None:
    run = watch(job(update={"rule": "sgd", "step": 1e38}))
    assert run.outcome.failed
    assert "take a smaller step" in run.outcome.why


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strategy__shares": [1.0, 2.0]}, "2 numbers for 3 ranks: give one for each"),
        ({"strategy__over": "gloo"}, "over gloo every rank is a process: set launch.how to 'processes'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        watch(job(**changes))


def test_gloo_says_what_to_install_where_there_is_no_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Invalid, match=r"'gloo' needs PyTorch, .*: pip install 'shoal\[torch\]'"):
        watch(job(strategy__over="gloo", launch__how="processes"))


# ---------------------------------------------------------------- resume


class Interrupted:
    """Press Ctrl-C at the evaluation of this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.number == self._number:
            raise KeyboardInterrupt


def interrupted(folder: Path, at: int, **changes: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        shoal.train(job(**changes), out=folder, on_event=Interrupted(at))


def losses(run: Run) -> dict[int, float]:
    return {event.number: event.test_loss for event in run.events if isinstance(event, Evaluated)}


def last(run: Run) -> Evaluated:
    return [event for event in run.events if isinstance(event, Evaluated)][-1]


def test_a_run_that_was_interrupted_is_what_it_would_have_been(tmp_path: Path) -> None:
    changes = {"evaluate__every": 0.2, "workers": 1, "strategy__every": 3}
    interrupted(tmp_path / "run", at=7, **changes)
    again = shoal.train(resume=tmp_path / "run")
    calm = shoal.train(job(**changes))
    assert again.summary["examples"] == calm.summary["examples"] == 2_000
    assert np.array_equal(again.model.table, calm.model.table)  # type: ignore[union-attr]
    assert losses(again) == losses(calm)
    (resumed,) = (event for event in again.events if isinstance(event, Resumed))
    assert resumed.checkpoint == 1 and resumed.steps >= 70
    seconds = [event.seconds for event in again.events if isinstance(event, Started | Resumed | Evaluated)]
    assert seconds == sorted(seconds)


@pytest.mark.variants(slow=["end"])
@pytest.mark.parametrize("every", [4, "end"])
def test_any_number_of_ranks_goes_on(tmp_path: Path, every: int | str) -> None:
    interrupted(tmp_path / "run", at=3, evaluate__every=0.2, strategy__every=every)
    again = shoal.train(resume=tmp_path / "run", workers=2)
    assert again.summary["examples"] == 2_000
    assert last(again).passes == 2.0
    assert last(again).test_loss < 0.99 * plain().losses[0]


def test_a_run_that_is_to_end_before_where_it_was_ends_at_once(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", at=3, evaluate__every=0.5)
    again = shoal.train(resume=tmp_path / "run", epochs=1)
    assert (again.summary["stopped_because"], again.summary["examples"]) == ("1 epoch done", 1_500)


def test_a_run_is_kept_now_and_then_and_a_damaged_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.training.local_checkpoint.LocalCheckpoints.rest", 0)
    interrupted(tmp_path / "run", at=9, evaluate__every=0.2, checkpoint__every=1e-3)
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert len(kept) == 3
    spoiled = bytearray(kept[-1].read_bytes())
    spoiled[-5] ^= 1
    kept[-1].write_bytes(spoiled)
    told: list[RunEvent] = []
    again = shoal.train(resume=tmp_path / "run", on_event=told.append)
    assert again.summary["examples"] == 2_000
    assert any("is damaged: its hash differs" in str(event) for event in told)
    (resumed,) = (event for event in told if isinstance(event, Resumed))
    saved = {event.number: event.steps for event in again.events if isinstance(event, Saved)}
    assert resumed.steps == saved[int(kept[-2].stem)]


def test_a_run_that_fails_says_where_what_it_learned_is(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="take a smaller step"):
        shoal.train(job(update={"rule": "sgd", "step": 1e38}), out=tmp_path / "run")


def test_a_run_that_is_refused_when_it_is_taken_up_is_left_as_it_was(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", at=3, evaluate__every=0.2, strategy__shares=[1.0, 2.0, 1.0])
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    with pytest.raises(Invalid, match="needs as many ranks as before: --workers 3"):
        shoal.train(resume=tmp_path / "run", workers=2)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.*")} == before
    assert shoal.train(resume=tmp_path / "run").summary["examples"] == 2_000

"""A checkpoint of a run without servers is complete and its own, or is refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.errors import BadCheckpoint, OtherRun
from shoal.events import RunEvent, Saved, Warned
from shoal.job import Job
from shoal.models.learner import LinearLearner
from shoal.models.linear import Linear
from shoal.models.trained import Trained
from shoal.nodes.evaluator import EvaluatedModel
from shoal.schedule.stop_rules import Patience
from shoal.training import local_checkpoint
from shoal.training.local_checkpoint import (
    CHECKPOINTS,
    BestModel,
    LocalCheckpoints,
    LocalProgress,
    newest,
    read,
)

JOB = Job.of({"data": "clicks", "strategy": "averaging", "checkpoint": {"keep": 2, "every": 1e-9}})
SLAB = np.arange(12, dtype=np.float32).reshape(6, 2)
LEFT = np.array([3, 5, 8], np.int64)


def standing(done: int) -> LocalProgress:
    return LocalProgress(done, 20 * done, 3, 1.5, Patience(), {"workers lost": 1}, 10, 20)


def keep(folder: Path, *steps: int, slab: np.ndarray = SLAB) -> list[RunEvent]:
    told: list[RunEvent] = []
    keeper = LocalCheckpoints(folder, JOB, "a module", told.append)
    for done in steps:
        keeper.keep(slab, 2, LEFT, standing(done), done)
    return told


def test_what_was_kept_is_what_is_read(tmp_path: Path) -> None:
    (saved,) = keep(tmp_path, 7)
    kept, refused = newest(tmp_path / CHECKPOINTS, JOB.identity)
    assert kept is not None and not refused
    assert np.array_equal(kept.slab, SLAB) and np.array_equal(kept.left, LEFT)
    assert (kept.facts.standing, kept.facts.about, kept.position[0]) == (standing(7), "a module", 2)
    assert isinstance(saved, Saved) and (saved.number, saved.steps) == (1, 7)
    assert saved.bytes == kept.path.stat().st_size


def test_the_last_few_stay_and_the_same_step_is_kept_once(tmp_path: Path) -> None:
    told = keep(tmp_path, 1, 2, 2, 3)
    assert [event.steps for event in told if isinstance(event, Saved)] == [1, 2, 3]
    assert [path.name for path in sorted((tmp_path / CHECKPOINTS).iterdir())] == [
        "00000002.safetensors",
        "00000003.safetensors",
    ]


@pytest.mark.parametrize("at", [0, 40, -1, -20])
def test_a_damaged_one_is_refused_and_the_one_before_is_taken(tmp_path: Path, at: int) -> None:
    keep(tmp_path, 1, 2)
    path = tmp_path / CHECKPOINTS / "00000002.safetensors"
    spoiled = bytearray(path.read_bytes())
    spoiled[at] ^= 4
    path.write_bytes(spoiled)
    kept, (refused,) = newest(path.parent, JOB.identity)
    assert kept is not None and kept.facts.number == 1
    assert "take an earlier checkpoint" in str(refused)


def test_one_that_was_cut_short_or_renamed_is_refused(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    path = tmp_path / CHECKPOINTS / "00000001.safetensors"
    other = path.with_name("00000004.safetensors")
    other.write_bytes(path.read_bytes())
    with pytest.raises(BadCheckpoint, match="is checkpoint 1"):
        read(other)
    other.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        read(other)


def test_that_of_another_job_is_told_apart(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    kept, (refused,) = newest(tmp_path / CHECKPOINTS, "another")
    assert kept is None and isinstance(refused, OtherRun)


def test_a_disk_that_refuses_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).write_text("a file")
    (warned,) = keep(tmp_path, 1)
    assert isinstance(warned, Warned) and "cannot keep the run" in warned.what


def test_seconds_are_never_taken_back(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    kept, _ = newest(tmp_path / CHECKPOINTS, JOB.identity)
    assert kept is not None
    assert [kept.later(seconds).facts.standing.seconds for seconds in (9.0, 1.0)] == [9.0, 1.5]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_not_kept_and_that_is_told(tmp_path: Path, value: float) -> None:
    keep(tmp_path, 1)
    spoiled = SLAB.copy()
    spoiled[3, 1] = value
    (warned,) = keep(tmp_path, 2, slab=spoiled)
    assert isinstance(warned, Warned) and "weights are not finite: what was kept before stays" in warned.what
    kept, refused = newest(tmp_path / CHECKPOINTS, JOB.identity)
    assert kept is not None and kept.facts.number == 1 and not refused


def test_weights_that_are_not_finite_are_not_taken_up_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(local_checkpoint, "is_finite", lambda slab: True)
        keep(tmp_path, 2, slab=np.full((6, 2), np.nan, np.float32))
    kept, (refused,) = newest(tmp_path / CHECKPOINTS, JOB.identity)
    assert kept is not None and kept.facts.number == 1 and "not finite" in str(refused)


def test_too_little_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr(local_checkpoint, "_hash", short)
    (warned,) = keep(tmp_path, 1)
    assert isinstance(warned, Warned) and "cannot keep the run: no memory" in warned.what


def test_a_run_that_has_no_slots_left_is_kept(tmp_path: Path) -> None:
    LocalCheckpoints(tmp_path, JOB, "", lambda event: None).keep(SLAB, 2, LEFT[:0], standing(1), 1)
    kept, _ = newest(tmp_path / CHECKPOINTS, JOB.identity)
    assert kept is not None and not len(kept.left)
    kept.check_left(3)


def test_no_more_than_a_tenth_of_the_time_goes_to_keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(local_checkpoint.time, "monotonic", lambda: now[0])

    def slow(*_: object) -> tuple[int, int]:
        now[0] += 2.0
        return 1, 1

    monkeypatch.setattr(local_checkpoint, "_write", slow)
    keeper = LocalCheckpoints(tmp_path, JOB, "", lambda event: None)
    now[0] += 1.0
    assert keeper.due
    keeper.keep(SLAB, 2, LEFT, standing(1), 1)
    now[0] += 17.0
    assert not keeper.due
    now[0] += 1.0
    assert keeper.due


def test_what_a_killed_run_left_half_written_is_removed_when_it_is_taken_up(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    root = tmp_path / CHECKPOINTS
    for name in (".00000002.safetensors.new", ".00000004.safetensors.y0v5c9zi", ".mine"):
        (root / name).write_text("half")
    LocalCheckpoints(tmp_path, JOB, "", lambda event: None)
    assert sorted(path.name for path in root.iterdir()) == [".mine", "00000001.safetensors"]


@pytest.mark.parametrize(
    ("of_pass", "left"), [(2, [10**12]), (-5, [-50]), (-5, []), (2, [20, 20]), (2, [25, 21]), (2, [19]), (2, [30])]
)
def test_slots_of_another_pass_are_refused(tmp_path: Path, of_pass: int, left: list[int]) -> None:
    LocalCheckpoints(tmp_path, JOB, "", lambda event: None).keep(
        SLAB, of_pass, np.array(left, np.int64), standing(1), 1
    )
    kept, _ = newest(tmp_path / CHECKPOINTS, JOB.identity)
    assert kept is not None
    with pytest.raises(BadCheckpoint, match=f"has slots that pass {of_pass} has not"):
        kept.check_left(10)


def test_a_pipe_in_the_place_of_a_checkpoint_is_refused_at_once(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    os.mkfifo(tmp_path / CHECKPOINTS / "00000002.safetensors")
    kept, (refused,) = newest(tmp_path / CHECKPOINTS, JOB.identity)
    assert kept is not None and kept.facts.number == 1 and "no plain file" in str(refused)


# ---------------------------------------------------------------- the best model on disk

JUDGED = EvaluatedModel(4, np.array([1.0, 2.0, 3.0], np.float32), 0.25, {"accuracy": 0.5, "auc": None})


def best(path: Path, told: list[RunEvent] | None = None, features: int = 2) -> BestModel:
    train = SimpleNamespace(features=features, hashing=None)
    return BestModel(path, LinearLearner(Linear(), train), (told if told is not None else []).append)  # type: ignore[arg-type]


def test_the_best_is_read_back_as_it_was_judged(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    assert best(path).read() is None
    best(path).write(JUDGED)
    found = best(path).read()
    assert found is not None and (found.number, found.loss, found.metrics) == (4, 0.25, JUDGED.metrics)
    assert found.weights.tolist() == Trained.load(path).table.tolist() == [1.0, 2.0, 3.0]


def test_one_that_is_damaged_or_of_another_model_is_none(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    best(path).write(JUDGED)
    assert best(path, features=9).read() is None
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    assert best(path).read() is None
    Trained(JUDGED.weights, Linear(), 2).save(path)  # a model that was never evaluated
    assert best(path).read() is None


def test_a_disk_that_is_full_is_a_warning_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[RunEvent] = []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    one = best(tmp_path / "best.safetensors", told)
    one.write(JUDGED)
    one.write(JUDGED)
    assert [event.what for event in told if isinstance(event, Warned)] == [
        "cannot write best.safetensors: No space left on device"
    ]

"""A run without servers on disk: whole, its own, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.cluster.stopping import Patience
from shoal.errors import BadCheckpoint, OtherRun
from shoal.events import RunEvent, Saved, Warned
from shoal.job import Job
from shoal.launch.kept_slab import CHECKPOINTS, Keeper, Standing, newest, read

JOB = Job.of({"data": "clicks", "strategy": "averaging", "checkpoint": {"keep": 2, "every": 1e-9}})
SLAB = np.arange(12, dtype=np.float32).reshape(6, 2)
LEFT = np.array([3, 5, 8], np.int64)


def standing(done: int) -> Standing:
    return Standing(done, 20 * done, 3, 1.5, Patience(), {"workers lost": 1}, 10, 20)


def keep(folder: Path, *steps: int, slab: np.ndarray = SLAB) -> list[RunEvent]:
    told: list[RunEvent] = []
    keeper = Keeper(folder, JOB, "a module", told.append)
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

"""The best model on disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.events import RunEvent, Warned
from shoal.models.learner import LinearLearner
from shoal.models.linear import Linear
from shoal.models.trained import Trained
from shoal.nodes.evaluator import Judgement
from shoal.training.local_checkpoint import BestModel

JUDGED = Judgement(4, np.array([1.0, 2.0, 3.0], np.float32), 0.25, {"accuracy": 0.5, "auc": None})


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
    Trained(JUDGED.weights, Linear(), 2).save(path)  # one that was never judged
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

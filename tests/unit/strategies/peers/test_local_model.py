"""A peer's model keeps its own changes and the changes of others apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.data.datasets import Dataset, load
from shoal.data.slots import Slots
from shoal.errors import BadKeys, Invalid
from shoal.job import Job
from shoal.models.learner import learner_of
from shoal.settings_tree import changed
from shoal.strategies.peers import local_model
from shoal.strategies.peers.local_model import PeerLocalModel
from shoal.training.local_model import LocalModel

ROWS, BATCH = 600, 4


def job_of(**settings: Any) -> Job:
    given = {
        "data": {"source": "rcv1-like", "rows": ROWS, "features": 3_000, "batch": BATCH},
        "strategy": "peer-to-peer",
    }
    return Job.of(changed(given, {name.replace("__", "."): value for name, value in settings.items()}))


def parts(job: Job) -> tuple[Dataset, Any, Slots]:
    dataset = load(job.data, job.seed)
    return dataset, learner_of(job.model, dataset.train, job.seed), Slots(dataset.train.rows, BATCH, job.seed)


def peers(count: int, **settings: Any) -> list[PeerLocalModel]:
    job = job_of(**settings)
    dataset, learner, slots = parts(job)
    return [PeerLocalModel(job, dataset.train, learner, slots) for _ in range(count)]


def test_a_peer_learns_what_one_process_learns() -> None:
    job = job_of()
    dataset, learner, slots = parts(job)
    alone, peer = LocalModel(job, dataset.train, learner, slots), PeerLocalModel(job, dataset.train, learner, slots)
    per_pass = slots.per_pass
    losses = [alone.run(of_pass, np.arange(per_pass), slots.contents(of_pass)) for of_pass in range(2)]
    loss, rows = peer.run([(0, 3), (3, per_pass + 5), (per_pass + 5, 2 * per_pass)])
    assert rows == 2 * dataset.train.rows
    assert loss == pytest.approx(sum(losses))
    assert np.array_equal(peer.weights(), alone.weights)


@pytest.mark.parametrize("scan", [0, 1 << 40], ids=["all weights are compared", "the keys of the rows are compared"])
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_what_is_taken_is_what_was_changed_here(rule: str, scan: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "_SCAN", scan)
    one, other = peers(2, update=rule)
    other.run([(50, 60)])
    before = one.weights()
    one.run([(0, 8)])
    own = one.weights() - before
    one.add(*other.take())
    keys, values = one.take()
    assert (np.diff(keys.astype(np.int64)) > 0).all()
    assert np.array_equal(keys, np.flatnonzero(own))
    assert np.allclose(values, own[keys.astype(np.int64)], atol=1e-6)
    assert all(len(array) == 0 for array in one.take())  # each change is taken once


def test_peers_that_told_each_other_everything_have_the_same_weights() -> None:
    three = peers(3)
    for turn in range(20):
        said = []
        for number, peer in enumerate(three):
            first = (turn * 3 + number) * 2
            peer.run([(first, first + 2)])
            said.append(peer.take())
        for number, peer in enumerate(three):
            for told in said[:number] + said[number + 1 :]:
                peer.add(*told)
    first, *others = (peer.weights() for peer in three)
    assert np.abs(first).max() > 0
    assert all(np.allclose(first, other, rtol=1e-5, atol=1e-6) for other in others)


def test_a_model_that_is_copied_has_nothing_to_tell_and_goes_on_alike() -> None:
    one, other = peers(2, update="adagrad")
    one.run([(0, 10)])
    other.run([(20, 30)])
    other.restore(one.snapshot())
    assert all(len(array) == 0 for array in other.take())
    one.take()
    for peer in (one, other):
        peer.run([(40, 50)])
    assert np.array_equal(one.weights(), other.weights())
    assert all(np.array_equal(a, b) for a, b in zip(one.take(), other.take(), strict=True))


def test_what_does_not_fit_changes_nothing() -> None:
    (peer,) = peers(1)
    peer.run([(0, 10)])
    before = peer.snapshot()
    with pytest.raises(BadKeys, match="is it the same one everywhere"):
        peer.add(np.array([0, peer.size], np.uint64), np.ones(2, np.float32))
    with pytest.raises(BadKeys, match="one value for each key"):
        peer.add(np.array([0], np.uint64), np.ones(2, np.float32))
    with pytest.raises(Invalid, match="not the same"):
        peer.restore(before[1:])
    assert np.array_equal(peer.snapshot(), before)


def test_a_module_is_a_peer_as_well() -> None:
    pytest.importorskip("torch")
    given = {"data": {"source": "digits", "batch": BATCH}, "model": "linear", "strategy": "peer-to-peer"}
    job = Job.of(given)
    dataset, learner, slots = parts(job)
    one, other = (PeerLocalModel(job, dataset.train, learner, slots) for _ in range(2))
    start = one.weights()
    one.run([(0, 3)])
    keys, values = one.take()
    assert len(keys) and int(keys.max()) < one.size
    other.add(keys, values)
    assert np.allclose(one.weights(), other.weights(), atol=1e-6)
    assert not np.array_equal(one.weights(), start)

"""A worker sends one message per slot that pushes some keys and pulls others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import BadKeys
from shoal.keys import KeyList

SPAN = 4_000


@pytest.fixture(params=["threads", "ipc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    with shoal.local(servers=2, processes=request.param == "ipc") as cluster:
        yield cluster


def some(chance: np.random.Generator, most: int) -> KeyList:
    return KeyList(np.unique(chance.integers(0, SPAN, chance.integers(0, most))).astype(np.uint64))


@pytest.mark.parametrize("table", [shoal.Dense(rows=SPAN), shoal.Sparse(keys=SPAN), shoal.Dense(rows=SPAN, width=3)])
def test_it_counts_what_is_pushed_and_brings_what_is_asked_for(cluster: Any, table: Any) -> None:
    kv, chance, truth = cluster.client(), np.random.default_rng(4), np.zeros((SPAN, table.width), np.float32)
    kv.create("w", table)
    for round_ in range(60):
        # With few keys a server may get nothing to count, nothing to return, or neither.
        most = 4 if round_ % 2 else 600
        pushed, pulled = some(chance, most), some(chance, most)
        values = chance.integers(-9, 9, (len(pushed), table.width)).astype(np.float32)
        truth[pushed.keys] += values
        found = kv.push("w", pushed, values, ahead=pulled).result(30)
        assert np.array_equal(np.asarray(found).reshape(-1, table.width), truth[pulled.keys])
    everything = np.asarray(kv.pull("w", np.arange(SPAN)).result(30)).reshape(-1, table.width)
    assert np.array_equal(everything, truth)  # each push was counted once


def test_a_list_of_keys_is_looked_at_when_it_is_made(cluster: Any) -> None:
    for keys in ([3, 2], [2, 2]):
        with pytest.raises(BadKeys, match=r"sorted keys, each once.*np.unique"):
            KeyList(np.array(keys, np.uint64))
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=10))
    good, far = KeyList(np.array([1, 9], np.uint64)), KeyList(np.array([1, 10], np.uint64))
    for call in (
        lambda: kv.pull("w", far),
        lambda: kv.push("w", far, [1.0, 1.0]),
        lambda: kv.push("w", good, [1.0, 1.0], ahead=far),
    ):
        with pytest.raises(BadKeys, match="its keys are 0 to 9"):
            call()
    assert kv.pull("w", good).result(30).tolist() == [0.0, 0.0]  # nothing was sent


def test_a_list_of_keys_works_where_keys_are_hashed(cluster: Any) -> None:
    kv, keys = cluster.client(), KeyList(np.array([5, 1 << 62], np.uint64))
    kv.create("w", shoal.Sparse(hashed=True))
    kv.push("w", keys, [1.0, 2.0]).result(30)
    assert kv.pull("w", keys).result(30).tolist() == [1.0, 2.0]


def test_where_it_cannot_be_it_is_refused(cluster: Any) -> None:
    kv, keys = cluster.client(), KeyList(np.array([1, 2], np.uint64))
    kv.create("steps", shoal.Dense(rows=10, apply=shoal.Step(slots=2)))
    kv.create("hashed", shoal.Sparse(hashed=True))
    for table, settings in (("steps", {"slot": (0, 0)}), ("hashed", {})):
        with pytest.raises(shoal.ShoalError, match="push, then pull"):
            kv.push(table, keys, [1.0, 1.0], ahead=keys, **settings)

"""Ranks sum their vectors through the store."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.strategies.averaging.collective import StoreCollective

RANKS = 3


@pytest.mark.parametrize("length", [1, 256, 700])
def test_all_get_the_very_sum_and_a_rank_that_is_gone_is_not_in_it(length: int) -> None:
    given = np.random.default_rng(0).normal(size=(RANKS, length)).astype(np.float32)
    ended: list[int] = []
    with shoal.local(servers=2) as cluster:
        groups = [
            StoreCollective(cluster.client(), rank, RANKS, (lambda waited: ended) if rank == 0 else (lambda waited: ()))
            for rank in range(RANKS)
        ]
        first = together([(group, given[group.rank].copy()) for group in groups])
        assert all(np.array_equal(one, first[0]) for one in first)
        assert np.array_equal(first[0], given.astype(np.float64).sum(0).astype(np.float32))
        ended.append(1)
        rest = together([(group, given[group.rank].copy()) for group in groups if group.rank != 1])
        assert np.array_equal(rest[0], given[[0, 2]].astype(np.float64).sum(0).astype(np.float32))
        assert groups[0].sent > 0 < groups[0].received


def together(calls: list[tuple[StoreCollective, Any]]) -> list[Any]:
    found: list[Any] = [None] * len(calls)

    def call(at: int) -> None:
        found[at] = calls[at][0].total(calls[at][1])

    threads = [threading.Thread(target=call, args=(at,), daemon=True) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(one is not None for one in found), "some have no sum"
    return found


class Torn:
    """A store in which rank 1 died when only one of two servers had its push."""

    _loop = SimpleNamespace(transport=SimpleNamespace(traffic=(0, 0)))

    def __init__(self) -> None:
        self.steps: list[int] = []

    def create(self, *_: Any) -> None: ...

    def tables(self) -> list[str]:
        return ["total-512"]

    def wait(self, tasks: Any) -> None: ...

    def push_pull(self, name: str, keys: slice, rows: Any, slot: tuple[int, int]) -> Torn:
        self.steps.append(slot[1])
        self.done = False
        self.found = rows.copy()
        if len(self.steps) == 1:
            self.found[0] *= 2  # this row has both ranks, the other only rank 0
        return self

    def result(self, seconds: float | None = None) -> Any:
        self.done = True
        return self.found


def test_a_sum_that_somebody_is_only_half_in_is_taken_again() -> None:
    store = Torn()
    group = StoreCollective(store, 0, 2)  # type: ignore[arg-type]
    assert np.array_equal(group.total(np.ones(512, np.float32)), np.ones(512))
    assert store.steps == [0, 2]

"""Servers know key lists by a number, on real clusters: what is sent, what is saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid
from tests.support import PATIENCE

SPAN = 10_000


@pytest.fixture(scope="module", params=["threads", "ipc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    with shoal.local(servers=2, processes=request.param == "ipc") as cluster:
        yield cluster


@pytest.fixture
def kv(cluster: Any) -> Iterator[shoal.KV]:
    with cluster.client() as kv:
        yield kv
        for name in kv.tables():
            kv.drop(name)


def a_list(seed: int = 0, count: int = 1_000) -> shoal.KeyList:
    return shoal.KeyList(np.sort(np.random.default_rng(seed).choice(SPAN, count, replace=False)).astype(np.uint64))


def came(kv: shoal.KV, table: str) -> int:
    """Return the bytes of arrays that pushes sent."""
    return int(kv.stats(table)["bytes in"])


@pytest.mark.parametrize("spec", [shoal.Dense(rows=SPAN), shoal.Sparse(keys=SPAN), shoal.Sparse(hashed=True)])
def test_the_second_push_of_a_list_brings_no_keys(kv: shoal.KV, spec: Any) -> None:
    kv.create("w", spec)
    listed, values = a_list(), np.arange(1_000, dtype=np.float32)
    for number in range(1, 5):
        kv.push("w", listed, values).result(PATIENCE)
        assert came(kv, "w") == 4_000 * number + 8_000
        assert np.array_equal(kv.pull("w", listed).result(PATIENCE), number * values)
    assert np.array_equal(kv.pull("w", listed.keys).result(PATIENCE), 4 * values)
    assert list(kv.stats("w")["handles"].values()) == [14, 2, 0, 7 * 8_000]  # two servers


def test_a_table_like_another_knows_its_lists(kv: shoal.KV) -> None:
    kv.create("weights", shoal.Sparse(keys=SPAN))
    for nothing in (3, None):
        with pytest.raises(shoal.ShoalError, match="is no name"):
            kv.create("counts", shoal.Dense(rows=SPAN), like=nothing)  # type: ignore[arg-type]
    kv.create("counts", shoal.Dense(rows=SPAN), like="weights")
    listed, ones = a_list(), np.ones(1_000, np.float32)
    kv.push("weights", listed, 2 * ones).result(PATIENCE)
    kv.push("counts", listed, ones).result(PATIENCE)
    assert came(kv, "counts") == 4_000  # no keys were sent
    assert (kv.pull("counts", listed).result(PATIENCE) == 1).all()
    assert (kv.pull("weights", listed).result(PATIENCE) == 2).all()


@pytest.mark.parametrize(
    ("spec", "more", "reason"),
    [
        (shoal.Dense(rows=SPAN), {"like": "nobody"}, "there is no such table"),
        (shoal.Dense(rows=SPAN + 1), {"like": "weights"}, f"that one has those below {SPAN}"),
        (shoal.Sparse(hashed=True), {"like": "weights"}, "they need the same keys"),
        (shoal.Dense(rows=SPAN), {"like": "weights", "starts": [0, 5]}, "leave starts out"),
    ],
)
def test_a_table_that_cannot_be_like_another_is_refused(kv: shoal.KV, spec: Any, more: Any, reason: str) -> None:
    kv.create("weights", shoal.Sparse(keys=SPAN))
    with pytest.raises(Invalid, match=reason):
        kv.create("counts", spec, **more)


def test_lists_go_with_filters_and_in_steps(kv: shoal.KV) -> None:
    kv.create("w", shoal.Sparse(keys=SPAN, apply=shoal.Step(slots=1), max_delay=0, wire="bfloat16"))
    listed, ones = a_list(), np.ones(1_000, np.float32)
    for step in range(4):
        kv.push("w", listed, ones, slot=(0, step)).result(PATIENCE)
        assert (kv.pull("w", listed, slot=(0, step + 1)).result(PATIENCE) == step + 1).all()
    assert came(kv, "w") == 8_000 + 4 * 2_000


def test_a_list_is_known_again_after_its_server_was_killed() -> None:
    with shoal.local(servers=3, processes=True, copies=2) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Sparse(keys=SPAN))
        listed, ones = a_list(), np.ones(1_000, np.float32)
        for _ in range(3):
            kv.push("w", listed, ones).result(PATIENCE)
        before = list(kv.stats("w")["handles"].values())
        os.kill(cluster.pids["server-0"], signal.SIGKILL)
        for _ in range(3):
            kv.push("w", listed, ones).result(PATIENCE)
        assert (kv.pull("w", listed).result(PATIENCE) == 6).all()
        after = list(kv.stats("w")["handles"].values())
        # The list is sent again where segments moved, and then known again.
        assert after[0] > before[0] and after[1] > before[1]

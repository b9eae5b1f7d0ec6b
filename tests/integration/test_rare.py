"""Admission and eviction of keys work in clusters and in runs.

The tests cover pulls, stats, backups and resumed runs.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.events import Evaluated, RunEvent
from shoal.models.trained import Trained
from shoal.run.finished import Run
from shoal.run.run import train
from tests.support import PATIENCE

_names = (f"table {number}" for number in itertools.count())


@pytest.fixture(scope="module", params=["threads", "ipc"])
def kv(request: pytest.FixtureRequest) -> Iterator[shoal.KV]:
    with shoal.local(servers=3, copies=2, processes=request.param == "ipc") as cluster:
        yield cluster.client()


@pytest.mark.parametrize("spec", [shoal.Sparse(keys=5_000, admit=3), shoal.Sparse(hashed=True, admit=3)])
def test_a_key_that_came_too_seldom_reads_as_its_initial_value(kv: shoal.KV, spec: shoal.Sparse) -> None:
    name, keys = next(_names), np.arange(0, 5_000, 7)
    kv.create(name, spec)
    ones = np.ones(len(keys))
    for _ in range(2):
        kv.push(name, keys, ones).result(PATIENCE)
    assert not kv.pull(name, keys).result(PATIENCE).any() and len(kv.pull(name, slice(None)).result(PATIENCE).keys) == 0
    told = kv.stats(name)
    assert told["not admitted"] == 2 * len(keys) and told["rows"] == 0 and told["counted"] > 0
    assert kv.push_pull(name, keys[:100], ones[:100]).result(PATIENCE).tolist() == [1.0] * 100
    assert kv.pull(name, keys).result(PATIENCE).sum() == 100 and kv.stats(name)["rows"] == 100


def test_rows_that_are_zero_again_are_let_go_on_all_copies(kv: shoal.KV) -> None:
    name, keys = next(_names), np.arange(5_000)
    kv.create(name, shoal.Sparse(keys=1 << 40, evict=True))
    ones = np.ones(len(keys))
    kv.push(name, keys, ones).result(PATIENCE)
    kv.push(name, keys[50:], -ones[50:]).result(PATIENCE)
    # There are twice as many rows now, so a sweep follows.
    kv.push(name, keys + 5_000, ones).result(PATIENCE)
    kv.push(name, [0], [0.0]).result(PATIENCE)
    told = kv.stats(name)
    assert (told["rows"], told["evicted"], told["copied rows"]) == (5_050, 4_950, 5_050)
    found = kv.pull(name, keys).result(PATIENCE)
    assert found[:50].tolist() == [1.0] * 50 and not found[50:].any()
    assert kv.pull(name, keys + 5_000).result(PATIENCE).tolist() == [1.0] * 5_000


def test_what_a_server_counted_of_its_own_keys_outlives_a_move_of_others() -> None:
    """A server leaves, and the other one takes over all its segments.

    The keys that the other server had before are admitted as if nothing had happened.
    """
    keys = np.arange(0, 5_000, 7)
    ones = np.ones(len(keys))
    with shoal.local(servers=2, processes=True) as cluster:
        kv = cluster.client()
        kv.create("rare", shoal.Sparse(keys=5_000, admit=3))
        for _ in range(2):
            kv.push("rare", keys, ones).result(PATIENCE)
        (table,) = cluster.status().view.tables
        owners = np.array([place.servers[0] for place in table.places])
        stayed = (owners == "server-1")[np.searchsorted(table.starts, keys, side="right") - 1]
        assert 0 < stayed.sum() < len(keys)
        cluster.remove_server("server-0")
        found = kv.push_pull("rare", keys, ones).result(PATIENCE)
        assert found[stayed].tolist() == [1.0] * stayed.sum() and not found[~stayed].any()


# ---------------------------------------------------------------- runs


@pytest.fixture(autouse=True, scope="module")
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Pack the rows into a folder of these tests."""
    before = os.environ.get("SHOAL_CACHE")
    os.environ["SHOAL_CACHE"] = before or str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["SHOAL_CACHE"]


def weights(of: Run) -> Any:
    assert isinstance(of.model, Trained)
    return of.model.weights


def run(out: Path | None = None, on_event: Any = None, **settings: Any) -> Run:
    given: dict[str, Any] = {
        "launch.how": "threads",
        "stop.epochs": 3,
        "workers": 2,
        "data.batch": 20,
        "data.rows": 600,
    }
    given |= {"data.features": 1_000, "update.rule": "sgd", "update.step": 0.5, "update.l1": 0.001}
    return train("rcv1-like", out=out, on_event=on_event, settings=given | settings)


@pytest.mark.slow
def test_a_sync_run_that_lets_keys_in_and_go_is_the_same_for_any_number_of_servers() -> None:
    rare = {"strategy": "sync", "strategy.admit": 3, "strategy.evict": True}
    one = run(**rare, workers=1)
    other = run(**rare, servers=3, copies=2)
    assert weights(one).tobytes() == weights(other).tobytes()
    plain = run(strategy="sync")
    assert 0 < np.count_nonzero(weights(one)) < np.count_nonzero(weights(plain))
    assert abs(one.summary["test_loss"] - plain.summary["test_loss"]) < 0.1


@pytest.mark.slow
def test_a_run_that_lets_keys_in_and_go_is_taken_up_again(tmp_path: Path) -> None:
    """An interrupted run makes a checkpoint; its rows resume, and counts start from zero."""
    rare = {"strategy": "sync", "strategy.admit": 2, "strategy.evict": True}

    def interrupt(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", interrupt, **rare, **{"stop.epochs": 1_000})
    again = train(resume=tmp_path / "run", settings={"stop.epochs": 1})
    assert again.summary["resumed"] == 1 and not again.summary["failed"]
    assert again.summary["test_loss"] < 0.69 and 0 < np.count_nonzero(weights(again)) < 1_000

"""Clients ask questions of a cluster with `kv.call`.

The tests use threads where that is enough, and real processes where something fails or dies.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import BadKeys, DependencyFailed, Invalid, Refused, UnknownTable
from shoal.inspect.query import opened
from shoal.launch.cluster import Cluster
from shoal.launch.processes import ProcessCluster
from tests.support.sandbox import soon

MODULE = '''
import os, pathlib, time

import shoal

FOLDER = pathlib.Path({folder!r})


@shoal.question(join=("sum", "max"), above=0.0)
def above(keys, weights, settings):
    """How many weights are above, and the last key among them."""
    some = (weights > settings.above).any(axis=1)
    return [some.sum(), max([0, *keys[some].tolist()])]


@shoal.question()
def broken(keys, weights, settings):
    return 1 / 0


@shoal.question(how=0)
def rude(keys, weights, settings):
    """Raises what no `except Exception` catches, and what no message can say."""
    raise [KeyboardInterrupt(), BaseException("enough"), OSError("no file \\udc80"), Unprintable()][int(settings.how)]


class Unprintable(Exception):
    def __str__(self):
        raise BaseException


@shoal.question()
def waiting(keys, weights, settings):
    """Says that it is asked, and waits until it may go on."""
    (FOLDER / f"asked-{{os.getppid()}}").touch()  # of the server: it asks in a fork
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return len(keys)
'''


@pytest.fixture(scope="module")
def threads() -> Iterator[Cluster]:
    with shoal.local(servers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProcessCluster, Path]]:
    """Start servers that have two copies of everything and know our questions."""
    folder = tmp_path_factory.mktemp("questions")
    (folder / "our_questions.py").write_text(MODULE.format(folder=str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with shoal.local(servers=3, copies=2, processes=True, modules=["our_questions"]) as cluster:
            assert isinstance(cluster, ProcessCluster)
            cluster.client().create("w", shoal.Dense(rows=900, initial=shoal.Normal(1.0, seed=1)))
            yield cluster, folder
        sys.modules.pop("our_questions", None)


def ours() -> Any:
    import our_questions  # type: ignore[import-not-found]

    return our_questions


def test_own_questions_of_a_dense_a_sparse_and_a_hashed_table(threads: Cluster) -> None:
    kv, draw = threads.client(), np.random.default_rng(3)
    ids = draw.choice(1 << 40, 500, replace=False)
    values = draw.normal(size=(500, 2)).astype(np.float32)
    values[::3] = 0
    for name, spec, keys in (
        ("dense", shoal.Dense(rows=500, width=2), np.arange(500)),
        ("sparse", shoal.Sparse(keys=1 << 40, width=2), ids),
        ("hashed", shoal.Sparse(hashed=True, width=2), ids),
    ):
        kv.create(name, spec)
        kv.push(name, keys, values).result()
        assert kv.call(name, slice(None), "count").result() == 500
        assert kv.call(name, slice(None), "nonzeros").result()["nonzero"] == np.count_nonzero(values)
        norms = kv.call(name, slice(None), "norms").result()
        assert norms["l2"] == pytest.approx(float(np.linalg.norm(values.astype(np.float64))))
        at = np.unravel_index(np.abs(values).argmax(), values.shape)
        assert kv.call(name, slice(None), "top", k=1).result() == [(int(keys[at[0]]), int(at[1]), float(values[at]))]
        kv.drop(name)


def test_a_range_is_asked_of_those_who_hold_it_and_a_group_of_servers_of_what_it_holds(threads: Cluster) -> None:
    kv = threads.client()
    kv.create("r", shoal.Dense(rows=1_000))
    assert kv.call("r", slice(100, 350), "count").result() == 250
    assert kv.call("r", range(5, 5), "count").result() == 0
    servers = ["server-0", "server-1", "server-2"]
    each = [kv.call("r", slice(None), "count", servers=one).result() for one in servers]
    assert sum(each) == 1_000 and all(each)
    assert kv.call("r", slice(None), "count", servers=servers[1:]).result() == each[1] + each[2]
    kv.drop("r")


def test_a_call_follows_the_tasks_it_names(threads: Cluster) -> None:
    kv = threads.client()
    kv.create("f", shoal.Dense(rows=10))
    push = kv.push("f", slice(0, 10), np.ones(10))
    assert kv.call("f", slice(None), "nonzeros", after=push).result()["nonzero"] == 10
    wrong = kv.call("f", slice(None), "count", after=kv.push("f", [3], [1.0], slot=(1 << 52, 1 << 52)))
    with pytest.raises(DependencyFailed):
        wrong.result()
    kv.drop("f")


def test_what_cannot_be_asked_is_refused_where_it_is_asked(threads: Cluster) -> None:
    kv = threads.client()
    kv.create("x", shoal.Dense(rows=10))
    kv.create("h", shoal.Sparse(hashed=True))
    for call, kind, said in (
        (lambda: kv.call("x", slice(None), "tops"), Invalid, "did you mean 'top'"),
        (lambda: kv.call("x", slice(None), 3), Invalid, "is no question"),
        (lambda: kv.call("x", slice(0, 11), "count"), BadKeys, "its keys are 0 to 9"),
        (lambda: kv.call("x", [1, 2], "count"), BadKeys, "asked of a range"),
        (lambda: kv.call("h", slice(0, 9), "count"), BadKeys, "have no order"),
        (lambda: kv.call("x", slice(None), "count", servers=["server-7"]), Invalid, "holds nothing of table 'x'"),
        (lambda: kv.call("x", slice(None), "count", servers=[]), Invalid, "no server is named"),
        (lambda: kv.call("x", slice(None), "count", servers=3), Invalid, "names of servers are needed"),
        (lambda: kv.call("x", slice(None), "top", k=0), Invalid, "1 to 65,536 keys"),
        (lambda: kv.call("y", slice(None), "count"), UnknownTable, "no table 'y'"),
    ):
        with pytest.raises(kind) as refused:
            call()
        assert said in str(refused.value)
    kv.drop("x")
    kv.drop("h")


# ---------------------------------------------------------------- processes


def test_a_question_of_ones_own_is_asked_where_the_rows_are(processes: tuple[ProcessCluster, Path]) -> None:
    kv, weights = processes[0].client(), None
    weights = kv.pull("w", slice(None)).result()
    found = kv.call("w", slice(None), ours().above, above=1.0).result()
    assert found.numbers.tolist() == [np.count_nonzero(weights > 1), np.flatnonzero(weights > 1)[-1]]
    assert kv.call("w", slice(0, 90), "above").result().numbers[0] == np.count_nonzero(weights[:90] > 0)


def test_a_question_that_fails_says_where_and_the_servers_go_on(processes: tuple[ProcessCluster, Path]) -> None:
    kv, pids = processes[0].client(), dict(processes[0].pids)
    with pytest.raises(Refused, match=r"question 'broken' failed: ZeroDivisionError.*our_questions.py, line"):
        kv.call("w", slice(None), ours().broken).result()
    for how in range(4):
        with pytest.raises(Refused, match="question 'rude' failed"):
            kv.call("w", slice(None), ours().rude, how=how).result()
    assert kv.call("w", slice(None), "count").result() == 900
    assert processes[0].pids == pids


def test_a_question_that_servers_do_not_know_is_refused_by_them(processes: tuple[ProcessCluster, Path]) -> None:
    @shoal.question()
    def known_here_only(keys: Any, weights: Any, settings: Any) -> Any:
        return 0

    with pytest.raises(Invalid, match=r"no question 'known_here_only' here.*modules="):
        processes[0].client().call("w", slice(None), known_here_only).result()


def test_whoever_asks_from_outside_is_no_member(processes: tuple[ProcessCluster, Path]) -> None:
    cluster = processes[0]
    before = cluster.look()
    assert shoal.query(cluster.address, "count", table="w") == 900
    assert shoal.query(cluster.address, ours().above, above=9.0).numbers[0] == 0
    after = cluster.look()
    assert (after.view, [one.name for one in after.members]) == (before.view, [one.name for one in before.members])


@pytest.mark.parametrize("who", ["a client", "a visitor"])
def test_a_server_that_is_killed_while_it_is_asked_costs_nothing(
    processes: tuple[ProcessCluster, Path], who: str
) -> None:
    cluster, folder = processes
    kv, found = cluster.client(), list[Any]()
    for old in (*folder.glob("asked-*"), folder / "go"):
        old.unlink(missing_ok=True)
    holding: set[str] = set()

    def all_have_two_copies() -> bool:
        segments = cluster.status().segments()
        holding.clear()
        holding.update(one.copies[0].server for one in segments if one.copies)
        return all(len(one.copies) == 2 for one in segments)

    assert soon(all_have_two_copies)
    visit = opened(cluster.address, "w")
    ask = Thread(
        target=lambda: found.append(
            kv.call("w", slice(None), "waiting").result() if who == "a client" else visit.ask("waiting")
        )
    )
    ours()
    ask.start()
    asked = {f"asked-{cluster.pids[name]}" for name in holding}
    # All of them are computing.
    assert soon(lambda: asked <= {file.name for file in folder.glob("asked-*")})
    os.kill(cluster.pids[min(holding)], signal.SIGKILL)
    (folder / "go").touch()
    ask.join(60)
    visit.close()
    # Every row is counted once: the new primaries answer for the rows of the dead server.
    assert [one.numbers.tolist() for one in found] == [[900]]


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_question.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "by group: [375.1, 375.1, 375.1, 375.1]" in said and "norms: {'l1': 1500." in said and "+1.0000" in said

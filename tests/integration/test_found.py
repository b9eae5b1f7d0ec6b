"""Attackers and new users found these bugs; every test here failed once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq

import shoal
from shoal.errors import Invalid, SegmentsLost
from shoal.wire import coding
from shoal.wire import messages as m
from tests.support import PATIENCE

ABANDONS = """
import gc, shoal
with shoal.local(servers=1, processes=True) as cluster:
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=1))
    for _ in range(40):
        cluster.client().pull("w", [0]).result(30)
        gc.collect()
print("done")
"""


@pytest.mark.slow
def test_a_client_that_nobody_has_any_more_goes_quietly() -> None:
    ran = subprocess.run([sys.executable, "-c", ABANDONS], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "done", ran.stderr


@pytest.fixture(params=["threads", "ipc"])
def cluster(request: pytest.FixtureRequest):
    with shoal.local(servers=2, processes=request.param == "ipc") as cluster:
        yield cluster


def test_numbers_of_numpy_are_numbers(cluster: shoal.Cluster) -> None:
    one, worker = np.int64(1), cluster.worker()
    worker.create("w", shoal.Dense(rows=np.int64(10), max_delay=np.int64(3)))
    worker.create("steps", shoal.Dense(rows=10, apply=shoal.Step(slots=np.int32(1)), max_delay=0))
    worker.push("w", [0], [1.0], step=one).result(5)
    worker.pull("w", [0], clock=one).result(5)
    worker.push("steps", [0], [1.0], slot=(np.int64(0), np.int64(0))).result(5)
    assert worker.pull("steps", [0], slot=(0, one)).result(5) == [1.0]
    worker.set_max_delay("w", one)


WRONG: list[Callable[[Any], Any]] = [
    lambda kv: kv.push("steps", [0], [1.0], slot=(0, 0.5)),
    lambda kv: kv.push("steps", [0], [1.0], slot=(0, 1 << 62)),
    lambda kv: kv.push("w", [0], [1.0], slot=(0, 1 << 70)),
    lambda kv: kv.pull("w", [0], clock=1 << 62),
    lambda kv: kv.pull("w", [0], clock=1 << 70),
    lambda kv: kv.set_max_delay("w", 0.5),
    lambda kv: kv.set_max_delay("w", 1 << 64),
    lambda kv: kv.create(b"bytes", shoal.Dense(rows=1)),
    lambda kv: kv.create("x", shoal.Dense(rows=2.5)),
    lambda kv: kv.create("x", shoal.Dense(rows="7")),
    lambda kv: kv.create("x", shoal.Dense(rows=1, initial=shoal.Uniform(seed=1 << 64))),
]


def test_settings_of_the_wrong_kind_are_refused_at_once_and_the_client_works_on(cluster: shoal.Cluster) -> None:
    clients = [cluster.client() for _ in WRONG]
    clients[0].create("w", shoal.Dense(rows=10))
    clients[0].create("steps", shoal.Dense(rows=10, apply=shoal.Step(slots=1), max_delay=0))
    for kv, call in zip(clients, WRONG, strict=True):
        with pytest.raises((Invalid, TypeError)):
            task = call(kv)
            task.result(60) if task is not None else None
    time.sleep(0.7)  # time for a resend
    for number, kv in enumerate(clients, start=1):
        assert kv.push_pull("w", [0], [1.0]).result(60) == [number]


def test_a_dense_table_of_terabytes_is_refused_and_the_cluster_goes_on() -> None:
    code = """
import shoal
with shoal.local(servers=1, processes=True) as cluster:
    kv = cluster.client()
    try:
        kv.create("w", shoal.Dense(rows=1 << 25, width=1 << 14))
    except shoal.ShoalError as error:
        print(type(error).__name__)
    cluster.client()
    kv.create("v", shoal.Dense(rows=10))
    print("works")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)
    assert ran.stdout.split() == ["Invalid", "works"], ran.stderr


def test_an_unknown_update_is_refused_with_the_way_to_name_it() -> None:
    with shoal.local(servers=1) as cluster:
        with pytest.raises(Invalid) as refused:
            cluster.client().create("w", shoal.Dense(rows=1, update=shoal.tables.Update("qqqq")))
        assert "modules=" in str(refused.value)
        assert "settings:" not in str(refused.value)


def test_a_table_made_again_by_somebody_else_is_found_or_named() -> None:
    with shoal.local(servers=2) as cluster:
        kv, other = cluster.client(), cluster.client()
        for _ in range(20):
            kv.create("w", shoal.Dense(rows=10))
            try:
                other.push_pull("w", [1], [1.0]).result(PATIENCE)
            except shoal.ShoalError as error:
                assert "'w'" in str(error), error  # the bug: no table 'number 3' here
            kv.drop("w")


def test_later_calls_name_the_server_that_is_gone() -> None:
    with shoal.local(servers=2, processes=True) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=100))
        os.kill(cluster.pids["server-0"], signal.SIGKILL)
        for _ in range(200):
            try:
                kv.pull("w", slice(0, 100)).result(PATIENCE)
            except SegmentsLost as error:
                last = error
            time.sleep(0.005)
        assert "server-0" in str(last)
        with pytest.raises(SegmentsLost, match="server-0"):
            kv.stats("w")


INTERRUPTED = """
import random, signal, sys, time
import shoal

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
moment = random.Random(int(sys.argv[1]))
with shoal.local(servers=1) as cluster:
    cluster.client("keeper").create("w", shoal.Dense(rows=10))
    for _ in range(int(sys.argv[2])):
        with cluster.client() as kv:
            try:
                signal.setitimer(signal.ITIMER_REAL, moment.uniform(0.0002, 0.01), 1.0)
                while True:
                    kv.push_pull("w", [1], [1.0]).result()
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", [50, pytest.param(250, marks=pytest.mark.soak)])
def test_an_interrupted_call_can_be_followed_by_a_close(times: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "1", str(times)], capture_output=True, text=True, timeout=90
    )
    assert ran.stdout.strip() == "done", ran.stderr


def test_a_long_temporary_folder_is_no_obstacle(tmp_path, monkeypatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    code = "import shoal; shoal.local(servers=1, processes=True).close(); print('done')"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(long)},
    )
    assert ran.stdout.strip() == "done" or "TMPDIR" in ran.stderr, ran.stderr


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:5", "no address", "ipc:///" + "x" * 300, ""])
def test_a_server_at_an_address_that_cannot_be_does_not_break_the_clients(address: str) -> None:
    with shoal.local(servers=1, processes=True) as cluster, zmq.Context() as sockets:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=1))
        with sockets.socket(zmq.DEALER) as stranger:
            stranger.setsockopt(zmq.IDENTITY, b"stranger")
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(cluster.address)
            stranger.send(coding.encode(m.Hello("stranger", "server", "token", address)))
            assert stranger.poll(5_000)
            kv.push("w", [0], [1.0]).result(5)
            time.sleep(0.6)  # time for a view to reach the background thread
            kv.push("w", [0], [1.0]).result(5)
            with cluster.client() as newcomer:
                assert newcomer.pull("w", [0]).result(5) == [2.0]


def test_a_live_name_cannot_be_taken_over() -> None:
    """F37: the name is refused, or the first client learns that it is fenced.

    The bug was ten seconds of silence, after which the clients changed places.
    """
    with shoal.local(servers=1, processes=True) as cluster:
        first = cluster.client("ann")
        first.create("w", shoal.Dense(rows=1))
        try:
            second = cluster.client("ann")
        except shoal.ShoalError:
            first.push("w", [0], [1.0]).result(5)
            return
        second.push("w", [0], [1.0]).result(5)
        with pytest.raises(shoal.errors.Fenced):
            first.push("w", [0], [1.0]).result(5)


@contextlib.contextmanager
def table_and_stranger(name: str) -> Iterator[tuple[shoal.KV, zmq.Socket[bytes]]]:
    """Yield an honest client with a table, and a raw socket with this name.

    The socket is connected to the coordinator.
    """
    with shoal.local(servers=1, processes=True) as cluster, zmq.Context() as sockets:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=1))
        with sockets.socket(zmq.DEALER) as stranger:
            stranger.setsockopt(zmq.IDENTITY, name.encode())
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(cluster.address)
            yield kv, stranger


def test_a_client_cannot_take_the_name_of_a_server() -> None:
    with table_and_stranger("server-0") as (kv, stranger):
        stranger.send(coding.encode(m.Hello("server-0", "client", "token")))
        stranger.poll(2_000)
        time.sleep(0.6)
        assert kv.push_pull("w", [0], [1.0]).result(PATIENCE) == [1.0]


def test_a_stranger_cannot_drop_a_table() -> None:
    with table_and_stranger("stranger") as (kv, stranger):
        stranger.send(coding.encode(m.Drop(1, "w")))
        assert stranger.poll(5_000)
        assert "w" in kv.tables()


# ---------------------------------------------------------------- found by attack


@pytest.mark.slow
def test_thousands_of_tasks_in_flight_are_all_counted_and_all_answered() -> None:
    with shoal.local(servers=1, processes=True) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Sparse(keys=100))
        tasks = [kv.push("w", [1], [1.0]) for _ in range(5_000)]
        kv.wait(tasks, timeout=60)
        assert kv.pull("w", [1]).result(PATIENCE) == [5_000]


def test_a_forked_child_leaves_its_parents_cluster_alone() -> None:
    script = """
import os, sys, shoal
with shoal.local(servers=1, processes=True) as cluster:
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=1))
    kv.push("w", [0], [1.0]).result(30)
    child = os.fork()
    if child == 0:
        try:
            kv.pull("w", [0])
        except shoal.ShoalError as error:
            print("child:", "belongs to process" in str(error), flush=True)
        sys.exit(0)
    os.waitpid(child, 0)
    print("parent:", kv.pull("w", [0]).result(30), flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["child: True", "parent: [1.]"], ran.stderr


def test_what_follows_something_wrong_does_not_take_others_with_it() -> None:
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=4))
        kv.create("s", shoal.Dense(rows=4, apply=shoal.Step(slots=2)))
        held = kv.push("s", [1], [1.0], slot=(0, 0))
        follow = kv.push("w", [1], [1.0], after=[held])
        with pytest.raises(Invalid, match="needs tasks"):
            kv.push("w", [2], [1.0], after=[5])
        kv.push("s", [1], [1.0], slot=(0, 1)).result(PATIENCE)
        follow.result(PATIENCE)


def test_a_slot_far_ahead_is_refused_instead_of_put_off_for_ever() -> None:
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=4))
        with pytest.raises(Invalid, match="ahead of the first missing"):
            kv.push("w", [1], [1.0], slot=(0, 2**20 + 5)).result(PATIENCE)


@pytest.mark.parametrize("name", ["coordinator", "server-0", 5, b"x"])
def test_names_that_belong_to_others_or_are_none_are_refused(name: object) -> None:
    with shoal.local(servers=1) as cluster:
        with pytest.raises(Invalid):
            cluster.client(name)  # type: ignore[arg-type]
        assert cluster.client().tables() == {}


@pytest.mark.parametrize(
    "spec",
    [
        lambda: shoal.Dense(rows=3, update=shoal.SGD),  # type: ignore[arg-type]
        lambda: shoal.Dense(rows=3, update="sgd"),  # type: ignore[arg-type]
        lambda: shoal.Dense(rows=3, initial=0.5),  # type: ignore[arg-type]
        lambda: shoal.Dense(rows=3, apply=shoal.Step),  # type: ignore[arg-type]
        lambda: shoal.Dense(rows=3, apply=shoal.Step(slots=2.5)),  # type: ignore[arg-type]
        lambda: shoal.Dense(rows=3, initial=shoal.Uniform(seed=10**30)),
        lambda: 100,
    ],
)
def test_a_table_described_wrongly_is_refused_where_it_is_created(spec: object) -> None:
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        kv.create("keep", shoal.Dense(rows=3))
        with pytest.raises(Invalid):
            kv.create("wrong", spec())  # type: ignore[operator]
        assert kv.push_pull("keep", [0], [1.0]).result(PATIENCE) == [1.0]


def test_pushes_that_failed_and_nobody_asked_about_are_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=3))
        task = kv.push("w", [0], [1.0], slot=(0, 2**20 + 5))
        while not task.done:
            time.sleep(0.01)
        kv.close()
    assert "1 pushes" in caplog.text and "no result was read" in caplog.text


def test_a_full_disk_under_the_journal_is_said_at_once(tmp_path: object) -> None:
    script = """
import sys
sys.dont_write_bytecode = True
import resource, signal, shoal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
try:
    shoal.local(servers=1, folder="FOLDER")
except shoal.ShoalError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script.replace("FOLDER", str(tmp_path))], capture_output=True, text=True, timeout=60
    )
    assert "journal cannot be written" in done.stdout, done.stdout + done.stderr

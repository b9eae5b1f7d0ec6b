"""Programs, servers and clients end in every way (F43, F1, F5 with one copy).

Nothing is left behind, nothing hangs, and all others go on. A child process starts a cluster and
works; it is interrupted, terminated or killed at seeded moments, also while it starts. What it
leaves is found by an environment variable that all its processes have, and in a temporary folder of
its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

import shoal
from shoal.errors import ClusterError, SegmentsLost, ShoalError
from shoal.launch.processes import ProcessCluster
from tests.support import PATIENCE
from tests.support.quick import QUICK
from tests.support.sandbox import GONE_WITHIN, Den, soon

PLACES = ["threads", "ipc", "tcp"]

WORKS = """
import sys, time
print("up", flush=True)
import shoal
place = sys.argv[1]
settings = {} if place == "threads" else {"processes": True, "transport": place}
with shoal.local(servers=2, **settings) as cluster:
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=1_000))
    print("working", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        kv.push_pull("w", slice(0, 1_000), [1.0] * 1_000).result()
"""

ENDS = """
import os, sys
import shoal
settings = {} if sys.argv[1] == "threads" else {"processes": True, "transport": sys.argv[1]}
cluster = shoal.local(servers=2, **settings)
kv = cluster.client()
kv.create("w", shoal.Dense(rows=10, apply=shoal.Step(slots=2), max_delay=0))
waits = kv.push("w", [0], [1.0], slot=(0, 0))
match sys.argv[2]:
    case "end": pass
    case "error": raise ValueError("a mistake")
    case "exit": sys.exit(3)
    case "hard": os._exit(4)
"""

PUSHES = """
import sys
import shoal
with shoal.connect(sys.argv[1], role="worker", name="victim") as worker:
    worker.pull("w", [0]).result()
    for acknowledged in range(1, 1_000_000):
        worker.push("w", [0], [1.0]).result()
        print(acknowledged, flush=True)
        worker.pull("w", [0]).result()
"""


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def interrupt(child: subprocess.Popen[str]) -> None:
    """Sends Ctrl-C, and once more if it had no effect.

    Python loses one that arrives in a callback of an import.
    """
    for _ in range(2):
        os.killpg(child.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GONE_WITHIN / 2)
            return


# ---------------------------------------------------------------- the end of the parent


@pytest.mark.variants(
    slow=["tcp-*", "threads-SIGTERM", "threads-SIGINT", "ipc-SIGTERM", "ipc-SIGINT", "threads-SIGKILL"]
)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_left_when_the_parent_ends_at_any_moment(den: Den, place: str, how: signal.Signals) -> None:
    moment = random.Random(f"{place} {how.name}")
    for delay in (0.05, 0.3, 0.7, None):
        child = den.start("-c", WORKS, place)
        assert line(child) == "up"
        if delay is None:
            assert line(child) == "working"
            time.sleep(moment.uniform(0.0, 0.2))
        else:
            time.sleep(moment.uniform(0.8, 1.2) * delay)
        assert child.poll() is None
        if how is signal.SIGINT:
            interrupt(child)
        else:
            child.send_signal(how)
        _, errors = child.communicate(timeout=PATIENCE)
        if how is signal.SIGINT:
            assert "KeyboardInterrupt" in errors
        assert child.returncode == -how, errors
        assert den.is_empty(), (delay, den.left(), errors)


@pytest.mark.variants(slow=["tcp"])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_left_when_the_terminal_is_closed(den: Den, place: str) -> None:
    child = den.start("-c", WORKS, place)
    assert [line(child), line(child)] == ["up", "working"]
    os.killpg(child.pid, signal.SIGHUP)
    assert child.wait(PATIENCE) == -signal.SIGHUP
    assert den.is_empty(), den.left()


@pytest.mark.variants(
    slow=["threads-end-0", "threads-exit-3", "threads-error-1", "ipc-error-1", "ipc-exit-3", "threads-hard-4"]
)
@pytest.mark.parametrize(("how", "code"), [("end", 0), ("error", 1), ("exit", 3), ("hard", 4)])
@pytest.mark.parametrize("place", ["threads", "ipc"])
def test_nothing_is_left_when_a_program_forgets_to_close(den: Den, place: str, how: str, code: int) -> None:
    child = den.start("-c", ENDS, place, how)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == code, errors
    assert den.is_empty(), (den.left(), errors)


def test_the_check_sees_what_it_looks_for(den: Den) -> None:
    child = den.start("-c", WORKS, "ipc")
    assert [line(child), line(child)] == ["up", "working"]
    folders = [name for name in den.left() if name.startswith("shoal-")]
    assert len(folders) == 1
    assert sorted(os.listdir(den.folder / folders[0])) == ["coordinator", "coordinator.journal", "server-0", "server-1"]
    assert (den.folder / folders[0]).stat().st_mode & 0o777 == 0o700
    assert len(den.alive()) == 5  # the parent, its forkserver, the coordinator, two servers
    child.kill()
    assert den.is_empty(), den.left()


# ---------------------------------------------------------------- the end of a server


@pytest.fixture(params=["ipc", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    with shoal.local(servers=2, processes=True, transport=request.param) as cluster:
        assert isinstance(cluster, ProcessCluster)
        yield cluster


@pytest.fixture(params=["ipc", "tcp"])
def quick_cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    """Yields a cluster for tests that wait until a node is declared dead."""
    with shoal.local(servers=2, processes=True, transport=request.param, timing=QUICK) as cluster:
        assert isinstance(cluster, ProcessCluster)
        yield cluster


@pytest.mark.variants(slow=["tcp"])
def test_every_call_ends_in_an_error_when_a_server_is_killed(cluster: ProcessCluster) -> None:
    kv, worker = cluster.client(), cluster.worker()
    kv.create("w", shoal.Dense(rows=100, max_delay=0))
    kv.create("steps", shoal.Dense(rows=100, apply=shoal.Step(slots=2), max_delay=0))
    worker.pull("w", [0]).result(PATIENCE)
    everything = slice(0, 100)
    held = kv.push("steps", everything, np.ones(100), slot=(0, 0))
    assert soon(lambda: "server-0" in held.waits_for)
    # Stopped, so that the requests below are in flight when it dies.
    os.kill(cluster.pids["server-0"], signal.SIGSTOP)
    under_way = [
        held,
        kv.pull("steps", everything, slot=(0, 2)),
        kv.pull("w", everything),
        kv.push("w", everything, np.ones(100)),
        kv.push_pull("w", everything, np.ones(100)),
        worker.push("w", everything, np.ones(100)),
    ]
    asked: list[BaseException] = []

    def ask() -> None:
        try:
            kv.stats("w")
        except BaseException as error:
            asked.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    time.sleep(0.2)
    os.kill(cluster.pids["server-0"], signal.SIGKILL)
    for task in under_way:
        with pytest.raises(SegmentsLost, match="server-0"):
            task.result(GONE_WITHIN)
    thread.join(GONE_WITHIN)
    assert [type(error) for error in asked] == [SegmentsLost]
    later: list[Callable[[], object]] = [
        lambda: kv.pull("w", everything).result(GONE_WITHIN),
        lambda: kv.push("w", [0], [1.0]).result(GONE_WITHIN),
        lambda: kv.push("steps", [0], [1.0], slot=(0, 1)).result(GONE_WITHIN),
        lambda: worker.pull("w", [0]).result(GONE_WITHIN),
    ]
    for call in later:
        with pytest.raises(SegmentsLost, match="drop the table and create it again"):
            call()


@pytest.mark.variants(slow=["tcp"])
def test_what_the_error_advises_works(cluster: ProcessCluster) -> None:
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=100))
    os.kill(cluster.pids["server-1"], signal.SIGKILL)

    def is_lost() -> bool:
        try:
            kv.pull("w", slice(0, 100)).result(GONE_WITHIN)
        except SegmentsLost:
            return True
        return False

    assert soon(is_lost)
    kv.drop("w")
    kv.create("w", shoal.Dense(rows=100))
    assert kv.push_pull("w", [0, 99], [1.0, 2.0]).result(PATIENCE).tolist() == [1.0, 2.0]
    assert set(kv.stats("w")["servers"]) == {"server-0"}


@pytest.mark.variants(slow=["tcp"])
def test_a_cluster_without_servers_says_so(cluster: ProcessCluster) -> None:
    kv = cluster.client()
    for pid in cluster.pids.values():
        os.kill(pid, signal.SIGKILL)
    names: list[str] = []

    def refused() -> bool:
        names.append(f"table {len(names)}")
        try:
            kv.create(names[-1], shoal.Dense(rows=1))
        except shoal.ShoalError as error:
            return "no server" in str(error)
        return False

    assert soon(refused)


@pytest.mark.variants(slow=["tcp"])
def test_a_server_that_pauses_and_comes_back_completes_the_call(cluster: ProcessCluster) -> None:
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=100))
    pid = cluster.pids["server-0"]
    os.kill(pid, signal.SIGSTOP)
    push = kv.push("w", slice(0, 100), np.ones(100))
    time.sleep(3.0)
    assert not push.done
    os.kill(pid, signal.SIGCONT)
    push.result(PATIENCE)
    # The push was sent again meanwhile, and counted once.
    assert (kv.pull("w", slice(0, 100)).result(PATIENCE) == 1).all()
    assert cluster.pids["server-0"] == pid


# ---------------------------------------------------------------- the end of a client


@pytest.mark.variants(slow=["tcp"])
def test_the_others_go_on_when_a_worker_process_is_killed_while_it_pushes(
    den: Den, quick_cluster: ProcessCluster
) -> None:
    kv, survivor = quick_cluster.client(), quick_cluster.worker("survivor")
    kv.create("w", shoal.Dense(rows=2, max_delay=3))
    survivor.pull("w", [0]).result(PATIENCE)
    victim = den.start("-c", PUSHES, quick_cluster.address)
    assert victim.stdout is not None
    assert line(victim) == "1"
    for _ in range(20):  # side by side: neither is more than three steps ahead of the other
        survivor.push("w", [1], [1.0]).result(PATIENCE)
        survivor.pull("w", [1]).result(PATIENCE)
    victim.kill()
    acknowledged = int(victim.stdout.read().splitlines()[-1])
    # Its 17th push was counted, but it may have died before the response.
    assert 16 <= acknowledged <= 24
    waited_for = set()
    for step in range(20, 40):
        survivor.push("w", [1], [1.0]).result(PATIENCE)
        pull = survivor.pull("w", [0, 1])
        assert soon(lambda pull=pull: pull.done or pull.waits_for)
        waited_for.add(pull.waits_for)
        count, mine = pull.result(PATIENCE)  # until the victim is declared dead, and no longer
        assert mine == step + 1
        # Its last push was counted once or not at all.
        assert acknowledged <= count <= acknowledged + 1
    assert any("victim at step" in one for one in waited_for)


# ---------------------------------------------------------------- two clusters, and the end of one


@pytest.mark.variants(slow=["tcp", "ipc"])
@pytest.mark.parametrize("place", PLACES)
def test_two_clusters_at_once_do_not_disturb_each_other(place: str) -> None:
    settings = {} if place == "threads" else {"processes": True, "transport": place}
    with shoal.local(servers=2, **settings) as first:  # type: ignore[arg-type]
        kv = first.client("ann")
        kv.create("w", shoal.Dense(rows=10))
        with shoal.local(servers=2, **settings) as second:  # type: ignore[arg-type]
            other = second.client("ann")  # the same names in both
            assert other.tables() == {}
            other.create("w", shoal.Dense(rows=10, initial=shoal.Constant(7.0)))
            kv.push("w", [0], [1.0]).result(PATIENCE)
            assert other.pull("w", [0]).result(PATIENCE) == [7.0]
            if isinstance(second, ProcessCluster):
                os.kill(second.pids["server-0"], signal.SIGKILL)
                assert soon(lambda: _fails(lambda: other.pull("w", slice(0, 10)).result(PATIENCE)))
        assert kv.push_pull("w", [0], [1.0]).result(PATIENCE) == [2.0]
        with first.client("bob") as bob:
            assert bob.pull("w", [0]).result(PATIENCE) == [2.0]


@pytest.mark.slow
def test_two_processes_with_a_cluster_each_do_not_disturb_each_other(den: Den) -> None:
    first, second = den.start("-c", WORKS, "ipc"), den.start("-c", WORKS, "ipc")
    for child in (first, second):
        assert [line(child), line(child)] == ["up", "working"]
    assert len(den.alive()) == 10
    first.kill()
    assert soon(lambda: len(den.alive()) == 5, GONE_WITHIN)
    folders = os.listdir(den.folder)
    assert [name.split("-")[1] for name in folders] == [str(second.pid)]
    assert sorted(os.listdir(den.folder / folders[0])) == ["coordinator", "coordinator.journal", "server-0", "server-1"]
    assert second.poll() is None
    interrupt(second)
    assert den.is_empty(), den.left()


@pytest.mark.variants(slow=["tcp"])
@pytest.mark.parametrize("place", PLACES)
def test_a_cluster_closed_while_calls_are_under_way_ends_them(place: str) -> None:
    settings = {} if place == "threads" else {"processes": True, "transport": place}
    cluster = shoal.local(servers=2, **settings)  # type: ignore[arg-type]
    clients = [cluster.client() for _ in range(2)]
    clients[0].create("w", shoal.Dense(rows=1_000))
    clients[0].create("steps", shoal.Dense(rows=10, apply=shoal.Step(slots=2), max_delay=0))
    clients[1].tables()
    ended: list[BaseException] = []

    def until_the_end(call: Callable[[], object]) -> None:
        try:
            for _ in range(1_000_000):
                call()
        except BaseException as error:
            ended.append(error)

    calls: list[Callable[[], object]] = []
    for kv in clients:
        calls += [
            lambda kv=kv: kv.push_pull("w", slice(0, 1_000), np.ones(1_000)).result(PATIENCE),
            lambda kv=kv: kv.pull("w", [1]).result(PATIENCE),
            lambda kv=kv: kv.stats("w"),
            # Held: the other slot of the step is never pushed.
            lambda kv=kv: kv.push("steps", [0], [1.0], slot=(0, 0)).result(PATIENCE),
        ]
    threads = [threading.Thread(target=until_the_end, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    pids = list(cluster.pids.values()) if isinstance(cluster, ProcessCluster) else []
    cluster.close()
    for thread in threads:
        thread.join(GONE_WITHIN)
        assert not thread.is_alive()
    assert len(ended) == len(calls)
    for error in ended:
        assert isinstance(error, ShoalError)
        assert "closed" in str(error)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(ClusterError, match="closed"):
        cluster.client()


def _fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except ShoalError:
        return True
    return False

"""One process forks all others; when any of them ends nothing is left behind (F43, F1).

All others learn of it. The moments are not guessed: a module that the operator named creates a file
when the forkserver imports it, or when a child was just forked, and blocks there while the parent
is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

import shoal
from shoal.errors import Closed, ClusterError, Invalid, StartFailed
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.process_pool import ProcessPool
from shoal.launch.processes import ProcessCluster
from tests.support import PATIENCE
from tests.support.sandbox import (
    GONE_WITHIN,
    Den,
    is_gone,
    soon,
)

RUNS = """
import sys, time
import shoal
place, module = sys.argv[1:]
with shoal.local(servers=2, processes=True, transport=place, modules=[module] if module else []) as cluster:
    cluster.fork("more", "server", {})
    print("running", flush=True)
    time.sleep(60)
"""

LEAVES_A_CHILD = """
import os, time
import shoal
shoal.local(servers=2, processes=True)
child = os.fork()
if child == 0:
    time.sleep(60)  # it has all that its parent had open, and outlives it
print(child, flush=True)
os._exit(0)
"""

MODULES = {
    "holds_the_import": "import time; open(MARKER, 'w').close(); time.sleep(60)",
    "holds_the_child": (
        "import os, time; os.register_at_fork(after_in_child=lambda: (open(MARKER, 'w').close(), time.sleep(0.5)))"
    ),
    "starts_a_thread": "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "joins_a_thread": "import threading; thread = threading.Thread(target=int); thread.start(); thread.join()",
    "prints_and_reads": "import sys; print('this is no report'); assert sys.stdin.read() == ''",
    "is_wrong": "1 / 0",
    "leaves": "import sys; sys.exit(3)",
}


class Nest(Den):
    """A den with modules of its own, which create the marker file when they run."""

    def __init__(self) -> None:
        super().__init__()
        self.modules = Path(tempfile.mkdtemp(prefix="den-"))
        self.marker = self.modules / "marker"
        for name, text in MODULES.items():
            (self.modules / f"{name}.py").write_text(text.replace("MARKER", repr(str(self.marker))) + "\n")

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        shutil.rmtree(self.modules)

    def run(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        path = f"{self.modules}:{os.environ.get('PYTHONPATH', '')}"
        return self.start("-c", code, *arguments, env={"PYTHONPATH": path})


@pytest.fixture
def den() -> Iterator[Nest]:
    with Nest() as den:
        yield den


def start(place: str = "ipc", *modules: str, servers: int = 2) -> ProcessCluster:
    cluster = shoal.local(servers=servers, processes=True, transport=place, modules=modules)  # type: ignore[arg-type]
    assert isinstance(cluster, ProcessCluster)
    return cluster


def forkserver_of(cluster: ProcessCluster) -> int:
    """Returns the parent of all servers, which is a child of this process."""
    (forkserver,) = {psutil.Process(pid).ppid() for pid in cluster.pids.values()}
    assert psutil.Process(forkserver).ppid() == os.getpid()
    return int(forkserver)


@dataclass
class Told:
    """Records what ``on_ended`` was called with."""

    endings: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, why: str) -> None:
        self.endings[name] = why


@pytest.fixture(params=["ipc", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    with start(request.param) as cluster:
        yield cluster  # type: ignore[misc]


@pytest.fixture
def told(cluster: ProcessCluster) -> Told:
    cluster.on_ended = told = Told()
    return told


# ---------------------------------------------------------------- the end of the top process

ENDS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.variants(slow=["tcp-SIGTERM", "tcp-SIGHUP", "ipc-SIGTERM", "ipc-SIGHUP", "tcp-SIGKILL"])
@pytest.mark.parametrize("how", ENDS, ids=lambda one: one.name)
@pytest.mark.parametrize("place", ["ipc", "tcp"])
def test_nothing_is_left_when_the_parent_ends_while_the_forkserver_imports(
    den: Nest, place: str, how: signal.Signals
) -> None:
    parent = den.run(RUNS, place, "holds_the_import")
    assert soon(den.marker.exists)
    assert len(den.alive()) == 2  # the parent and the forkserver, which sleeps in an import
    parent.send_signal(how)
    assert parent.wait(PATIENCE) == -how
    assert den.is_empty(), den.left()


@pytest.mark.variants(slow=["tcp-SIGTERM", "tcp-SIGHUP", "ipc-SIGTERM", "ipc-SIGHUP", "tcp-SIGKILL"])
@pytest.mark.parametrize("how", ENDS, ids=lambda one: one.name)
@pytest.mark.parametrize("place", ["ipc", "tcp"])
def test_nothing_is_left_when_the_parent_ends_between_a_fork_and_its_address(
    den: Nest, place: str, how: signal.Signals
) -> None:
    parent = den.run(RUNS, place, "holds_the_child")
    assert soon(den.marker.exists)
    assert len(den.alive()) >= 3  # a server is forked, and does not listen yet
    assert place == "tcp" or "server-0" not in os.listdir(next(den.folder.iterdir()))
    parent.send_signal(how)
    assert parent.wait(PATIENCE) == -how
    assert den.is_empty(), den.left()


@pytest.mark.variants(slow=["tcp-SIGTERM", "tcp-SIGHUP", "ipc-SIGTERM", "tcp-SIGKILL"])
@pytest.mark.parametrize("how", ENDS, ids=lambda one: one.name)
@pytest.mark.parametrize("place", ["ipc", "tcp"])
def test_nothing_is_left_when_the_parent_ends_while_all_run(den: Nest, place: str, how: signal.Signals) -> None:
    parent = den.run(RUNS, place, "")
    assert parent.stdout is not None
    assert parent.stdout.readline() == "running\n"
    assert len(den.alive()) == 6  # the parent, the forkserver, the coordinator, three servers
    parent.send_signal(how)
    assert parent.wait(PATIENCE) == -how
    assert den.is_empty(), den.left()


def test_a_server_that_is_stopped_does_not_outlive_the_parent(den: Nest) -> None:
    parent = den.run(RUNS, "ipc", "")
    assert parent.stdout is not None
    assert parent.stdout.readline() == "running\n"
    os.kill(den.node("server-0"), signal.SIGSTOP)
    parent.kill()
    assert den.is_empty(), den.left()


def test_the_cluster_ends_with_the_parent_even_if_a_child_of_it_holds_the_pipes(den: Nest) -> None:
    parent = den.run(LEAVES_A_CHILD)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert soon(lambda: den.alive() == [child], GONE_WITHIN), den.left()
    assert os.listdir(den.folder) == []


# ---------------------------------------------------------------- the end of the forkserver


@pytest.mark.variants(slow=["tcp"])
def test_when_the_forkserver_is_killed_everybody_is_told_and_the_servers_end(
    cluster: ProcessCluster, told: Told
) -> None:
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=100))
    pids = cluster.pids
    os.kill(forkserver_of(cluster), signal.SIGKILL)
    assert soon(lambda: set(told.endings) == {"coordinator", "server-0", "server-1"})
    assert set(told.endings.values()) == {"its process ended with the forkserver (killed by signal 9)"}
    with pytest.raises(Closed, match=r"forkserver ended \(killed by signal 9\): start another"):
        kv.pull("w", slice(0, 100)).result(PATIENCE)
    with pytest.raises(StartFailed, match=r"forkserver ended \(killed by signal 9\): start another"):
        cluster.fork("late", "server", {})
    assert cluster.pids == {}
    assert soon(lambda: all(map(is_gone, pids.values())), GONE_WITHIN)


@pytest.mark.variants(slow=["tcp"])
def test_the_death_of_the_forkserver_is_told_though_a_stopped_server_holds_its_pipe(
    cluster: ProcessCluster, told: Told
) -> None:
    forkserver, pids = forkserver_of(cluster), cluster.pids
    os.kill(pids["server-0"], signal.SIGSTOP)
    os.kill(forkserver, signal.SIGKILL)
    assert soon(lambda: set(told.endings) == set(pids))
    os.kill(pids["server-0"], signal.SIGCONT)
    assert soon(lambda: all(map(is_gone, pids.values())), GONE_WITHIN)


def test_a_forkserver_that_cannot_make_its_folder_says_so_and_leaves_what_is_there(den: Nest) -> None:
    children = ProcessPool(lambda name, why: None, lambda name, why: None)
    children.start(ForkserverSetup(os.getpid(), str(den.folder), [], sys.path), "test")
    with pytest.raises(StartFailed, match=f"cannot make the folder {den.folder}: File exists"):
        children.wait_until_started(time.monotonic() + PATIENCE)
    children.close()
    assert den.folder.exists()


def test_a_forkserver_killed_during_the_start_ends_the_start(den: Nest) -> None:
    parent = den.run(RUNS, "ipc", "holds_the_import")
    assert soon(den.marker.exists)
    (forkserver,) = set(den.alive()) - {parent.pid}
    os.kill(forkserver, signal.SIGKILL)
    _, errors = parent.communicate(timeout=PATIENCE)
    assert "coordinator did not start: its process ended with the forkserver (killed by signal 9)" in errors
    assert den.is_empty(), den.left()


@pytest.mark.variants(slow=["server-0 and forkserver", "forkserver"])
@pytest.mark.parametrize("stopped", [("server-0",), ("forkserver",), ("server-0", "forkserver")], ids=" and ".join)
def test_a_cluster_is_closed_whoever_of_it_is_stopped(stopped: tuple[str, ...]) -> None:
    with start() as cluster:
        assert isinstance(cluster, ProcessCluster)
        pids = {"forkserver": forkserver_of(cluster), **cluster.pids}
        for name in stopped:
            os.kill(pids[name], signal.SIGSTOP)
    assert soon(lambda: all(map(is_gone, pids.values())), GONE_WITHIN)


# ---------------------------------------------------------------- the end of a child


@pytest.mark.variants(slow=["tcp"])
def test_a_server_that_is_killed_is_reported_and_its_name_can_be_given_again(
    cluster: ProcessCluster, told: Told
) -> None:
    first = cluster.pids["server-0"]
    os.kill(first, signal.SIGKILL)
    assert soon(lambda: told.endings == {"server-0": "its process ended (killed by signal 9)"})
    assert set(cluster.pids) == {"coordinator", "server-1"}
    second = cluster.fork("server-0", "server", {})
    assert cluster.pids["server-0"] == second != first
    kv = cluster.client()
    assert soon(lambda: _servers(cluster) == {"server-0", "server-1"})
    kv.create("w", shoal.Dense(rows=100))
    assert set(kv.stats("w")["servers"]) == {"server-0", "server-1"}


@pytest.mark.variants(slow=["tcp"])
def test_a_signal_reaches_the_process_it_is_meant_for(cluster: ProcessCluster, told: Told) -> None:
    cluster.signal("server-1", signal.SIGKILL)
    assert soon(lambda: told.endings == {"server-1": "its process ended (killed by signal 9)"})
    cluster.signal("server-1", signal.SIGKILL)  # it has ended: nothing happens
    assert cluster.fork("more", "server", {}) == cluster.pids["more"]
    assert set(told.endings) == {"server-1"}


@pytest.mark.variants(slow=["tcp"])
def test_a_worker_that_fails_says_why(cluster: ProcessCluster, told: Told) -> None:
    assert cluster.fork("ann", "worker", {"no": "work at all"}) > 0
    assert soon(lambda: "ann" in told.endings)
    assert told.endings["ann"].startswith("its process ended (ValidationError")
    assert set(told.endings) == {"ann"}


def test_a_server_that_cannot_listen_did_not_start() -> None:
    with start("ipc", servers=1) as cluster:
        assert isinstance(cluster, ProcessCluster)
        cluster.on_ended = told = Told()
        in_the_way = Path(cluster.address.removeprefix("ipc://")).parent / "ann"
        in_the_way.mkdir()
        with pytest.raises(StartFailed, match="ann did not start: cannot listen at"):
            cluster.fork("ann", "server", {})
        in_the_way.rmdir()
        assert set(cluster.pids) == {"coordinator", "server-0"}
        assert cluster.fork("ann", "server", {}) == cluster.pids["ann"]
        assert told.endings == {}  # the caller got the error


@pytest.mark.variants(slow=["tcp"])
def test_who_is_told_of_an_end_may_fail_but_not_fork(
    cluster: ProcessCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    refused: list[BaseException] = []

    def fork_again(name: str, why: str) -> None:
        try:
            cluster.fork(name, "server", {})
        except BaseException as error:
            refused.append(error)
            raise

    cluster.on_ended = fork_again
    for name in ("server-0", "server-1"):
        cluster.signal(name, signal.SIGKILL)
    assert soon(lambda: len(refused) == 2)  # for the second one, too
    assert all(isinstance(error, Invalid) and "fork from another" in str(error) for error in refused)
    assert cluster.fork("server-0", "server", {}) == cluster.pids["server-0"]
    assert "in on_ended of server-1" in capfd.readouterr().err


def _servers(cluster: ProcessCluster) -> set[str]:
    return {member.name for member in cluster.look().members if member.role == "server"}


# ---------------------------------------------------------------- what a fork leaves and inherits


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def pipes(pid: int) -> set[str]:
    """Returns the pipes of a process, other than standard input, output and error."""
    folder = Path(f"/proc/{pid}/fd")
    links = (os.readlink(one) for one in folder.iterdir() if int(one.name) > 2)
    return {link for link in links if link.startswith("pipe:")}


@pytest.mark.slow
def test_thirty_forks_leave_no_file_open(cluster: ProcessCluster, told: Told) -> None:
    def fork_and_end(name: str) -> None:
        cluster.fork(name, "server", {})
        assert soon(lambda: name in _servers(cluster))
        cluster.signal(name, signal.SIGKILL)
        assert soon(lambda: name in told.endings and name not in _servers(cluster))
        del told.endings[name]

    fork_and_end("first")
    forkserver = forkserver_of(cluster)
    ours, theirs = descriptors(os.getpid()), descriptors(forkserver)
    for number in range(30):
        fork_and_end(f"more-{number % 3}")
    assert descriptors(forkserver) == theirs
    assert soon(lambda: descriptors(os.getpid()) <= ours)


def test_a_forkserver_has_one_thread_and_no_socket_and_its_children_get_nothing_to_read() -> None:
    with start() as cluster:
        assert isinstance(cluster, ProcessCluster)
        cluster.fork("ann", "server", {})
        forkserver = forkserver_of(cluster)
        assert len(os.listdir(f"/proc/{forkserver}/task")) == 1
        links = [os.readlink(one) for one in Path(f"/proc/{forkserver}/fd").iterdir()]
        assert not [link for link in links if link.startswith("socket:")]
        for name, pid in cluster.pids.items():
            assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull
            assert os.readlink(f"/proc/{pid}/fd/1") == os.readlink(f"/proc/{pid}/fd/2")
            assert signal.SIGCHLD not in handled(pid)
            # The orders (to see a hang-up), the reports, and what is passed on to the coordinator.
            shared = 3 if name == "coordinator" else 2
            assert len(pipes(pid) & pipes(forkserver)) == shared


def handled(pid: int) -> set[int]:
    """Returns the signals for which a process has a handler."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.variants(slow=["tcp"])
@pytest.mark.parametrize("place", ["ipc", "tcp"])
def test_two_clusters_side_by_side_share_nothing(place: str) -> None:
    with start(place) as first, start(place) as second:
        assert isinstance(first, ProcessCluster) and isinstance(second, ProcessCluster)
        open_in = [
            set().union(*(pipes(pid) for pid in (forkserver_of(one), *one.pids.values()))) for one in (first, second)
        ]
        assert all(open_in) and not open_in[0] & open_in[1]
        second.on_ended = told = Told()
        os.kill(forkserver_of(first), signal.SIGKILL)
        gone = list(first.pids.values())
        assert soon(lambda: all(map(is_gone, gone)), GONE_WITHIN)
        first.close()
        kv = second.client()
        kv.create("w", shoal.Dense(rows=10))
        assert kv.push_pull("w", [0], [1.0]).result(PATIENCE) == [1.0]
        assert told.endings == {}


# ---------------------------------------------------------------- modules, names, invalid requests


@pytest.fixture
def importable(den: Nest, monkeypatch: pytest.MonkeyPatch) -> Den:
    monkeypatch.syspath_prepend(str(den.modules))
    monkeypatch.setattr(tempfile, "tempdir", str(den.folder))
    return den


@pytest.mark.variants(slow=["leaves-*", "no_such_module_at_all-*"])
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("starts_a_thread", "starts_a_thread.* started a thread when it was imported"),
        ("is_wrong", "ZeroDivisionError while importing.*is_wrong"),
        ("leaves", "SystemExit while importing.*leaves"),
        ("no_such_module_at_all", r"cannot import 'no_such_module_at_all', which launch.modules \(modules=\) names"),
    ],
)
def test_a_module_that_cannot_be_used_is_refused_and_nothing_is_left(
    importable: Den, module: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Invalid, match=reason):
        start("ipc", module)
    assert os.listdir(importable.folder) == []
    assert module not in sys.modules  # only the forkserver imports it
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (module == "is_wrong")


@pytest.mark.variants(slow=["prints_and_reads"])
@pytest.mark.parametrize("module", ["joins_a_thread", "prints_and_reads"])
def test_a_module_may_use_a_thread_print_and_read(
    importable: Den, module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with start("ipc", module, servers=1) as cluster:
        assert cluster.client().tables() == {}
    assert ("this is no report" in capfd.readouterr().err) == (module == "prints_and_reads")


@pytest.mark.variants(
    slow=[
        "../above-server-work3-needs 1 to 64 letters",
        "-server-work4-needs 1 to 64 letters",
        "ann-evaluator-work5-needs 'server', 'worker' or the module",
        "ann-worker-work6-plain data",
        "coordinator-server-work1-taken",
        "client-ann-worker-work2-taken",
    ]
)
@pytest.mark.parametrize(
    ("name", "kind", "work", "reason"),
    [
        ("server-0", "server", {}, "taken by process"),
        ("coordinator", "server", {}, "taken"),
        ("client-ann", "worker", {}, "taken"),
        ("../above", "server", {}, "needs 1 to 64 letters"),
        ("", "server", {}, "needs 1 to 64 letters"),
        ("ann", "evaluator", {}, "needs 'server', 'worker' or the module"),
        ("ann", "worker", {"job": object()}, "plain data"),
    ],
)
def test_a_process_that_cannot_be_is_refused_and_the_others_run_on(
    name: str, kind: str, work: dict[str, object], reason: str
) -> None:
    with start(servers=1) as cluster:
        assert isinstance(cluster, ProcessCluster)
        cluster.client("client-ann")
        with pytest.raises(Invalid, match=reason):
            cluster.fork(name, kind, work)
        assert cluster.fork("ann", "server", {}) == cluster.pids["ann"]
        assert set(cluster.pids) == {"coordinator", "server-0", "ann"}


def test_a_signal_that_cannot_be_is_refused_and_a_closed_cluster_says_so() -> None:
    with start(servers=1) as cluster:
        assert isinstance(cluster, ProcessCluster)
        with pytest.raises(Invalid, match=r"no process 'ann' here \(processes: coordinator, server-0\)"):
            cluster.signal("ann", signal.SIGTERM)
        with pytest.raises(Invalid, match="signal=999"):
            cluster.signal("server-0", 999)
    for call in (lambda: cluster.fork("ann", "server", {}), lambda: cluster.signal("server-0", signal.SIGTERM)):
        with pytest.raises(ClusterError, match="closed"):
            call()


def test_a_cluster_closed_while_a_fork_waits_ends_the_wait(importable: Den) -> None:
    cluster = start("tcp", "holds_the_child", servers=1)
    errors: list[BaseException] = []

    def fork() -> None:
        try:
            cluster.fork("ann", "server", {})
        except BaseException as error:
            errors.append(error)

    importable.marker.unlink()
    thread = threading.Thread(target=fork)
    thread.start()
    assert soon(importable.marker.exists)  # ann is forked, and held for half a second
    cluster.close()
    thread.join(PATIENCE)
    assert len(errors) == 1 and isinstance(errors[0], ClusterError)

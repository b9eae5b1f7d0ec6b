"""A forkserver forked from a warm one works for a cluster like a fresh one.

A warm one has its imports done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.process_pool import ProcessPool
from shoal.launch.processes import ProcessCluster
from tests.support.sandbox import soon
from tests.support.warm_forkserver import Warm, Warmed

pytestmark = pytest.mark.skipif(not Warm.can, reason="this machine has no such system call")


@pytest.fixture
def children(warm: Warm) -> Iterator[ProcessPool]:
    one = ProcessPool(lambda name, why: None, lambda name, why: None)
    one.start(ForkserverSetup(os.getpid(), "", [], sys.path), "test", start=warm.start)
    yield one
    one.close()


def test_it_is_a_child_of_ours_in_the_folder_and_with_the_environment_of_the_moment(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.py").write_text("import os; open('told', 'w').write(os.environ['TOLD'])")
    told = tmp_path / "told"
    for said in ("first", "second"):
        monkeypatch.setenv("TOLD", said)
        one = ProcessPool(lambda name, why: None, lambda name, why: None)
        one.start(ForkserverSetup(os.getpid(), "", ["ours"], sys.path), "test", start=warm.start)
        assert soon(lambda: told.exists() and told.stat().st_size > 0)
        assert told.read_text() == said
        assert isinstance(one._forkserver, Warmed)
        stat = Path(f"/proc/{one._forkserver.pid}/stat").read_text().rpartition(")")[2].split()
        # It is our child, and has a session of its own.
        assert int(stat[1]) == os.getpid() and int(stat[3]) == one._forkserver.pid
        one.close()
        assert one._forkserver.poll() == 0
        told.unlink()


def test_how_it_ended_is_told(children: ProcessPool) -> None:
    forkserver = children._forkserver
    assert isinstance(forkserver, Warmed) and forkserver.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forkserver.wait(0.01)
    os.kill(forkserver.pid, signal.SIGKILL)
    assert forkserver.wait(60) == -signal.SIGKILL
    assert soon(lambda: children.gone) and children.gone == "the forkserver ended (killed by signal 9)"
    forkserver.kill()  # it is gone, so this does nothing


def test_a_cluster_of_it_counts_and_leaves_nothing() -> None:
    with shoal.local(servers=2, processes=True) as cluster:
        assert isinstance(cluster, ProcessCluster) and isinstance(cluster._children._forkserver, Warmed)
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=4))
        kv.push("w", [0, 3], [1.0, 2.0]).result(60)
        assert kv.pull("w", [0, 3]).result(60).ravel().tolist() == [1.0, 2.0]
        pids = [*cluster.pids.values(), cluster._children._forkserver.pid]
    assert soon(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@pytest.mark.parametrize("pid", [0, -1])
def test_one_that_could_not_be_forked_has_ended_and_nobody_is_waited_for_or_killed_in_its_place(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr("tests.support.warm_forkserver.os.kill", lambda *_: done.append("killed"))
    monkeypatch.setattr("tests.support.warm_forkserver.os.waitpid", lambda *_: done.append("waited for"))
    with open(os.devnull, "wb") as out, open(os.devnull, "rb") as into:
        one = Warmed(pid, out, into)
        one.kill()
        assert (one.poll(), one.wait(), done) == (1, 1, [])

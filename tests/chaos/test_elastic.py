"""Servers join, leave and are restarted one by one under load (F10, F11, F12).

They are real processes, controlled by signals and by commands. Three workers in the counting model
run all the time. At the end every push is counted once (I1-I6), and no worker has met an error: no
incarnation of a worker ended before its work was done.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator

import pytest

from shoal.job import LaunchSettings
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from tests.support.counting import Crowd, create, plan_of
from tests.support.sandbox import Den, soon

WORKERS, SLOTS = 3, 60


@contextlib.contextmanager
def under_load(den: Den, kind: str, servers: int, copies: int) -> Iterator[tuple[ProcessCluster, Crowd]]:
    cluster = ProcessCluster(servers, LaunchSettings(), JournalFile(None), copies, restart=True)
    with cluster:
        cluster.start()
        kv = cluster.client("operator")
        plan = plan_of(kind, WORKERS, SLOTS, servers=servers, copies=copies, think=60)
        create(kv, plan)
        crowd = Crowd(plan, cluster.address, den)
        for column in range(WORKERS):
            crowd.start(column, range(column, SLOTS, WORKERS))
        for column in range(WORKERS):
            crowd.until(column, 2)
        yield cluster, crowd
        crowd.finish()
        assert crowd.violations(kv) == []
        assert crowd.ended == []  # zero client errors


def lives(cluster: ProcessCluster) -> dict[str, int]:
    return {one.name: one.incarnation for one in cluster.look().members if one.role == "server"}


def holds(cluster: ProcessCluster, server: str) -> int:
    places = (place for table in cluster.status().view.tables for place in table.places)
    return sum(server in place.servers for place in places)


def command(den: Den, *words: str) -> subprocess.Popen[str]:
    return den.start("-m", "shoal", *words)


@pytest.mark.variants(slow=["step-2"])
@pytest.mark.parametrize(
    ("kind", "copies"),
    [("each", 1), ("step", 2), pytest.param("step", 1, marks=pytest.mark.soak), pytest.param("each", 2, marks=pytest.mark.soak)],
)  # fmt: skip
def test_servers_restarted_one_by_one_under_load_lose_nothing_and_no_worker_sees_it(
    kind: str, copies: int, den: Den
) -> None:
    """F10: on SIGTERM each server hands over what it has, and ends with 0.

    It is started again, and gets its share of the segments.
    """
    with under_load(den, kind, servers=2, copies=copies) as (cluster, _):
        for name in ("server-0", "server-1"):
            before, ended = lives(cluster)[name], list[str]()
            cluster.on_ended = lambda who, why, ended=ended: ended.append(f"{who}: {why}")
            cluster.signal(name, signal.SIGTERM)
            assert soon(lambda name=name, before=before: lives(cluster).get(name, before) != before)
            assert ended == [f"{name}: it ended"]
            assert soon(lambda name=name: holds(cluster, name) > 0)
        assert set(cluster.pids) == {"coordinator", "server-0", "server-1"}
        assert cluster.supervisor.restarts == {"server-0": 1, "server-1": 1}


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_server_joins_and_leaves_under_load_by_commands(copies: int, den: Den) -> None:
    """F11, F12: the supervisor does not restart a server that was asked to leave."""
    with under_load(den, "each", servers=2, copies=copies) as (cluster, _):
        joining = command(den, "join", cluster.address, "--as", "server", "--name", "third")
        assert soon(lambda: "third" in lives(cluster) and holds(cluster, "third"))
        leaving = command(den, "leave", cluster.address, "server-1")
        out, err = leaving.communicate(timeout=60)
        assert (leaving.returncode, out) == (0, "server-1 has left\n"), err
        assert "server-1: 0 of" in err
        assert soon(lambda: "server-1" not in cluster.pids)
        assert set(lives(cluster)) == {"server-0", "third"}
        joining.send_signal(signal.SIGINT)
        out, err = joining.communicate(timeout=60)
        assert (joining.returncode, "third has ended" in out) == (0, True), err
        assert set(lives(cluster)) == {"server-0"} and holds(cluster, "server-0")
        last = command(den, "leave", cluster.address, "server-0")
        _, err = last.communicate(timeout=60)
        assert last.returncode == 1 and "is the last server that stays" in err

"""One setting says how long nodes wait for each other, and all nodes follow it.

So do nodes on other hosts, which get no setting of their own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tomllib
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid, ShoalError
from shoal.inspect.status import look_at
from shoal.launch.processes import ProcessCluster
from shoal.timing import Timing
from shoal.wire import messages as m
from tests.support import PATIENCE
from tests.support.quick import QUICK
from tests.support.sandbox import Den, soon

# A joined node ends after three seconds without a message. It can know that limit from the
# coordinator only.
SHORT = ("--set", "timing.scale=0.2", "--set", "timing.patience=3")


@pytest.fixture
def address() -> str:
    """Return an address that nobody uses yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def standing(address: str) -> m.StatusReply | None:
    looking = look_at(address)
    try:
        return looking.look(1.0)
    except ShoalError:
        return None
    finally:
        looking.close()


def servers(address: str) -> list[str]:
    found = standing(address)
    return [] if found is None else [one.name for one in found.members if one.role == "server"]


def test_a_server_that_is_stopped_is_removed_by_the_timing_that_was_set_and_the_others_go_on() -> None:
    with shoal.local(servers=3, copies=2, processes=True, timing=QUICK) as cluster:
        assert isinstance(cluster, ProcessCluster)
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=100))
        kv.push("w", slice(0, 100), np.ones(100)).result(PATIENCE)
        pid = cluster.pids["server-0"]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert soon(lambda: "server-0" in cluster.look().lost)
            assert cluster.look().lost["server-0"] == "silent for 1 s"
            kv.push("w", slice(0, 100), np.ones(100)).result(PATIENCE)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (kv.pull("w", slice(0, 100)).result(PATIENCE) == 2).all()
        assert kv._client.session.view.timing == QUICK.intervals()  # a client knows it, too


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_a_cluster_takes_seconds_by_name(how: str) -> None:
    with shoal.local(servers=1, processes=how == "processes", timing={"scale": 3, "dead": 20}) as cluster:
        assert cluster.look().timing == Timing(scale=3.0, dead=20.0).intervals()


def test_a_timing_that_cannot_be_starts_nothing() -> None:
    with pytest.raises(Invalid, match=r"timing\.dead=1: needs more than timing\.suspect=2"):
        shoal.local(servers=1, timing={"dead": 1})


@pytest.mark.slow
def test_nodes_of_other_hosts_go_by_what_the_coordinator_was_told(den: Den, address: str) -> None:
    words = (
        "-m",
        "shoal",
        "launch",
        "coordinator",
        "--listen",
        address,
        "--copies",
        "2",
        "--out",
        str(den.folder / "s"),
    )
    main = den.start(*words, *SHORT)
    nodes = [den.start("-m", "shoal", "launch", "server", "--at", address, "--name", name) for name in ("ann", "bob")]
    assert soon(lambda: sorted(servers(address)) == ["ann", "bob"])
    told = den.start("-m", "shoal", "status", address, "--json")
    out, err = told.communicate(timeout=PATIENCE)
    timing = json.loads(out)["timing"]
    assert (timing["dead"], timing["heartbeat"], timing["patience"]) == (1.0, 0.1, 3.0), err
    with shoal.connect(address) as kv:
        kv.create("w", shoal.Dense(rows=10))
        kv.push("w", [1], [1.0]).result(PATIENCE)
        nodes[1].send_signal(signal.SIGSTOP)
        assert soon(lambda: servers(address) == ["ann"])
        assert kv.pull("w", [1]).result(PATIENCE) == [1.0]
        nodes[1].send_signal(signal.SIGCONT)
        assert soon(lambda: sorted(servers(address)) == ["ann", "bob"])
    main.kill()
    main.communicate(timeout=PATIENCE)
    again = den.start(*words)  # not set again: it is in the journal
    assert soon(lambda: (found := standing(address)) is not None and found.timing.dead == 10**9)
    again.kill()
    for node in nodes:
        _, err = node.communicate(timeout=PATIENCE)
        assert node.returncode == 1
        assert "the coordinator has said nothing for 3 s" in err


def test_a_store_that_is_given_another_setting_says_what_it_takes(den: Den, address: str) -> None:
    words = ("-m", "shoal", "launch", "coordinator", "--listen", address)
    wrong = den.start(*words, "--set", "timing.dead=1")
    _, err = wrong.communicate(timeout=PATIENCE)
    assert wrong.returncode == 2 and "timing.dead=1: needs more than timing.suspect=2" in err
    wrong = den.start(*words, "--set", "stop.epochs=1")
    _, err = wrong.communicate(timeout=PATIENCE)
    assert wrong.returncode == 2 and "a store trains nothing (--set stop.epochs)" in err


def test_a_run_keeps_its_timing_with_its_job(tmp_path: Path, cache: Path) -> None:
    run = shoal.train(
        "rcv1-like",
        timing={"scale": 2, "dead": 20},
        epochs=1,
        out=tmp_path / "run",
        settings={"data.rows": 200, "data.features": 1_000, "launch.how": "threads"},
    )
    assert run.job.timing == Timing(scale=2.0, dead=20.0)
    assert tomllib.loads((tmp_path / "run" / "job.toml").read_text())["timing"] == {"scale": 2.0, "dead": 20.0}


def test_a_group_goes_by_its_clusters_timing_and_may_not_set_one(cache: Path) -> None:
    refused = pytest.raises(Invalid, match="timing is set where the cluster starts")
    with shoal.local(servers=1, processes=True) as cluster, refused:
        shoal.train("rcv1-like", cluster=cluster, group="mine", timing={"scale": 2})

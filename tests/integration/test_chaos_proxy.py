"""The proxy of drills goes unnoticed, separates two nodes, and drops what has ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil  # type: ignore[import-untyped]

import shoal
from shoal.chaos.proxy import ProxiedCluster, Proxy
from tests.support import PATIENCE
from tests.support.sandbox import soon

ALL = slice(0, 100)
ONES = np.ones(100, np.float32)


@contextmanager
def started(servers: int, copies: int = 1) -> Iterator[tuple[Proxy, ProxiedCluster, shoal.KV]]:
    """Yield a proxy, a cluster behind it, and a client with a table."""
    with Proxy() as proxy, ProxiedCluster(proxy.through, servers, copies) as cluster:
        cluster.start()
        with cluster.client("ann") as ann:
            ann.create("w", shoal.Dense(rows=100))
            yield proxy, cluster, ann


def test_everybody_is_met_through_it_and_nobody_notices() -> None:
    with started(2) as (proxy, _, kv):
        for _ in range(10):
            kv.push("w", ALL, ONES).result(PATIENCE)
        assert (kv.pull("w", ALL).result(PATIENCE) == 10).all()
        ours = {node.address for node in proxy._nodes.values()}
        servers = {one.address for one in kv._client.session.view.members if one.role == "server"}
        assert servers <= ours and len(servers) == 2


def test_two_nodes_that_are_kept_apart_hear_each_other_again_later() -> None:
    with started(2) as (proxy, _, kv):
        proxy.apart = {("ann", "server-1"), ("server-1", "ann")}
        push = kv.push("w", ALL, ONES)
        assert not soon(lambda: push.done, 0.5)
        proxy.apart = set()
        push.result(PATIENCE)
        assert (kv.pull("w", ALL).result(PATIENCE) == 1).all()


def test_a_server_that_is_killed_is_met_again_at_another_address() -> None:
    with started(2, 2) as (proxy, cluster, kv):
        for _ in range(2):
            kv.push("w", ALL, ONES).result(PATIENCE)
            before = set(proxy._nodes)
            os.kill(cluster.pids["server-1"], signal.SIGKILL)
            assert soon(lambda before=before: set(proxy._nodes) != before and len(proxy._nodes) == 3, PATIENCE)
        kv.push("w", ALL, ONES).result(PATIENCE)
        assert (kv.pull("w", ALL).result(PATIENCE) == 3).all()


def test_it_leaves_nothing_behind() -> None:
    process = psutil.Process()
    with started(1):  # the first cluster of a process opens what later ones share
        pass
    before = process.num_fds()
    with started(1):
        pass
    assert soon(lambda: process.num_fds() <= before)
    assert "shoal-proxy" not in {thread.name for thread in threading.enumerate()}

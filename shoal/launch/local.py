"""A cluster on this machine: threads of this process, or processes that end with it.

    with shoal.local(servers=2) as cluster:                     threads, references instead of messages
    with shoal.local(servers=2, processes=True) as cluster:     one process each, over Unix sockets (or tcp)

The coordinator is a thread of the parent. A server process watches its standard input: when the parent is gone, however
it went, the process removes what it made and ends.
"""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from shoal import limits
from shoal.errors import ClusterError, Invalid, StartFailed
from shoal.events import RunEvent
from shoal.nodes.blocking import KV
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.dealing import Dealing
from shoal.nodes.loop import Loop
from shoal.nodes.storage import Journal
from shoal.nodes.worker import Worker
from shoal.wire import Transport
from shoal.wire.effects import Ended

_START_WITHIN = 120.0  # seconds: the first start on a machine compiles the kernels
_numbers = itertools.count(1)


def local(
    servers: int = 2,
    *,
    processes: bool = False,
    transport: Literal["ipc", "tcp"] = "ipc",
    modules: Sequence[str] = (),
    folder: str | Path | None = None,
) -> Cluster:
    """Start a cluster here. ``modules`` are imported by every server: name those that register updates of your own.

    With ``folder`` the coordinator keeps its journal there.
    """
    modules = (modules,) if isinstance(modules, str) else tuple(modules)
    if not all(isinstance(module, str) for module in modules):
        raise Invalid(f"modules={modules!r}: name them, as you would in an import statement: modules=['my_updates']")
    if not isinstance(servers, int) or not 1 <= servers <= limits.MEMBERS // 2:
        raise Invalid(f"servers={servers}: needs 1 to {limits.MEMBERS // 2}")
    if transport not in ("ipc", "tcp"):
        raise Invalid(f"transport={transport!r}: needs 'ipc' or 'tcp'")
    journal = Journal(Path(folder) / "coordinator.journal" if folder is not None else None)
    cluster: Cluster
    if processes:
        from shoal.launch.processes import ProcessCluster

        cluster = ProcessCluster(servers, transport, modules, journal)
    else:
        cluster = ThreadCluster(servers, modules, journal)
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster


def connect(address: str, role: Literal["client", "worker", "evaluator"] = "client", name: str | None = None) -> KV:
    """A client of a cluster that runs elsewhere on this machine, by the address of its coordinator."""
    from shoal.wire.zmq import ZmqTransport

    name = name or f"{role}-{secrets.token_hex(4)}"
    transport = ZmqTransport(name)
    try:
        transport.connect("coordinator", address)
    except BaseException:
        transport.close()
        raise
    return _client(name, role, transport)


class Cluster:
    """A running cluster. Close it, or leave its ``with`` block, and everything it started is gone."""

    def __init__(self, journal: Journal) -> None:
        self._id = f"{next(_numbers)}"
        self._journal = journal
        self._clients: weakref.WeakSet[KV] = weakref.WeakSet()
        self._coordinator: Loop | None = None
        self._threads: list[threading.Thread] = []
        self._loops: list[Loop] = []
        self._pid = os.getpid()
        self._taken = {"coordinator"}  # names of our own nodes
        self._ended = ""  # why the cluster is no more
        self._closing = threading.Lock()
        self._dealing: Dealing | None = None
        self._listener: Callable[[RunEvent], None] = lambda event: None
        atexit.register(_close_quietly, weakref.ref(self))

    @property
    def address(self) -> str:
        """Where other processes of this machine reach it: ``shoal.connect(address)``."""
        raise Invalid("a cluster of threads has no address: start it with processes=True")

    def client(self, name: str | None = None) -> KV:
        """A client: it pushes and pulls, and nobody waits for it."""
        return self._join("client", name)

    def worker(self, name: str | None = None) -> KV:
        """A worker: it has a clock, and others may wait for it."""
        return self._join("worker", name)

    def train(self, dealing: Dealing, listener: Callable[[RunEvent], None]) -> None:
        """Before the start: the coordinator is to deal this, and what happens is told to ``listener``, on its thread."""
        self._dealing, self._listener = dealing, listener

    def start(self) -> None:
        """Bring everything up; returns when all servers have joined."""
        raise AssertionError  # each kind has its own

    def close(self) -> None:
        """End everything that was started, and leave nothing behind."""
        if os.getpid() != self._pid:
            return  # a forked child: all this is its parent's
        with self._closing:
            if self._ended:
                return
            for client in list(self._clients):
                try:
                    client.close()
                except Exception as error:  # one that was interrupted half way: the rest must end all the same
                    print(f"shoal: {type(error).__name__}: {error} while closing {client.name}", file=sys.stderr)
            self._ended = "the cluster was closed"
            self._stop_others()
            for loop in self._loops:
                loop.stop()
            for thread in self._threads:
                thread.join(limits.DRAIN / limits.SECOND)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _stop_others(self) -> None:
        return

    def _transport(self, name: str) -> Transport:
        raise AssertionError

    def _join(self, role: str, name: str | None) -> KV:
        if self._ended:
            raise ClusterError(f"{self._ended}: start another one")
        name = name or f"{role}-{secrets.token_hex(4)}"
        if not isinstance(name, str):
            raise Invalid(f"name={name!r}: needs a string")
        if name in self._taken or any(one.name == name and not one.closed for one in self._clients):
            raise Invalid(f"the name {name!r} is taken: choose another, or leave it out")
        client = _client(name, role, self._transport(name), self)
        self._clients.add(client)
        return client

    def _coordinate(self, transport: Transport) -> None:
        """Start the coordinator, a thread of this process."""
        node = Coordinator(journal=self._journal.records, dealing=self._dealing)
        self._coordinator = Loop(node, transport, self._journal)
        self._coordinator.listener = self._listener
        self._run(self._coordinator)

    def _run(self, loop: Loop) -> None:
        """Turn a loop in a thread of its own; if it breaks, the cluster says why instead of hanging."""

        def run() -> None:
            try:
                loop.run()
            except BaseException as error:
                self._lost(loop.node.name, f"{type(error).__name__}: {error}")
                raise

        thread = threading.Thread(target=run, name=f"shoal-{self._id}-{loop.node.name}", daemon=True)
        self._threads.append(thread)
        self._loops.append(loop)
        thread.start()

    def _lost(self, name: str, reason: str) -> None:
        """A node is gone, and we saw it: tell the coordinator, which tells everybody."""
        if name == "coordinator":
            self._ended = f"the coordinator broke: {reason}"
        elif self._coordinator is not None:
            self._coordinator.tell(Ended(name, reason))

    def _wait_for_servers(self, names: Sequence[str]) -> None:
        """Until all are in the view."""
        assert self._coordinator is not None
        coordinator = self._coordinator.node
        assert isinstance(coordinator, Coordinator)
        deadline = time.monotonic() + _START_WITHIN
        while missing := [name for name in names if name not in coordinator.roster.people]:
            if self._ended:
                raise StartFailed(self._ended)
            lost = [f"{name} ({coordinator.roster.lost[name]})" for name in missing if name in coordinator.roster.lost]
            if lost or time.monotonic() > deadline:
                who = ", ".join(lost or missing)
                raise StartFailed(f"the cluster did not come up: no {who}; what it printed is above")
            self._check_start()
            threading.Event().wait(0.005)

    def _check_start(self) -> None:
        return


class ThreadCluster(Cluster):
    """Servers as threads of this process."""

    def __init__(self, servers: int, modules: tuple[str, ...], journal: Journal) -> None:
        from shoal.wire.memory import Hub

        super().__init__(journal)
        self._hub = Hub()
        self._servers = [f"server-{i}" for i in range(servers)]
        self._taken.update(self._servers)
        self._modules = modules

    def start(self) -> None:
        from shoal.launch.child import prepare
        from shoal.nodes.server import Server

        prepare(self._modules)
        self._coordinate(self._hub.open("coordinator"))
        for name in self._servers:
            transport = self._hub.open(name)
            loop = Loop(Server(name, secrets.token_hex(8), transport.address), transport)
            transport.answer_with(loop.take)
            self._run(loop)
        self._wait_for_servers(self._servers)

    def _transport(self, name: str) -> Transport:
        return self._hub.open(name)


def _client(name: str, role: str, transport: Transport, cluster: Cluster | None = None) -> KV:
    worker = Worker(name, role, secrets.token_hex(8), seed=secrets.randbits(32))
    alive = weakref.ref(cluster) if cluster is not None else None
    kv = KV(worker, transport, lambda: (c._ended if (c := alive()) is not None else "") if alive is not None else "")
    try:
        kv.joined((limits.SILENCE + limits.RESEND_MOST) / limits.SECOND + 1)
    except BaseException:
        kv.close()
        raise
    return kv


def _close_quietly(cluster: weakref.ref[Cluster]) -> None:
    if (one := cluster()) is not None:
        try:
            one.close()
        except Exception as error:
            print(f"shoal: {error} while closing", file=sys.stderr)

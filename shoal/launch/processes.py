"""Servers and workers as processes of their own, forked by a nursery that is started afresh (nothing is pickled)."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from signal import valid_signals
from typing import Any

from shoal.errors import ClusterError, Invalid, StartFailed
from shoal.launch.child import Orders, sweep
from shoal.launch.children import Children
from shoal.launch.local import _START_WITHIN, Cluster
from shoal.launch.nursery import Setup
from shoal.nodes.storage import Journal
from shoal.wire import Transport
from shoal.wire.zmq import ZmqTransport


class ProcessCluster(Cluster):
    """One process for each server, and for whatever else is forked; the coordinator and the clients are in this one."""

    def __init__(self, servers: int, transport: str, modules: tuple[str, ...], journal: Journal) -> None:
        super().__init__(journal)
        self.on_ended: Callable[[str, str], None] | None = None
        """Called with the name of a process that is no more, and why. It must not wait: no ``fork`` in there."""
        self._names = [f"server-{i}" for i in range(servers)]
        self._taken.update(self._names)
        self._modules = modules
        self._children = Children(self._lost, self._child_ended)
        self._folder = ""
        if transport == "ipc":
            # Not made here: a parent that is killed at once could not remove it. The nursery makes it.
            self._folder = _short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")

    @property
    def address(self) -> str:
        assert self._coordinator is not None
        return self._coordinator.transport.address

    @property
    def pids(self) -> dict[str, int]:
        """The process of each server, and of whoever else was forked, as long as it runs."""
        return self._children.pids

    def start(self) -> None:
        deadline = time.monotonic() + _START_WITHIN
        setup = Setup(os.getpid(), self._folder, list(self._modules), sys.path)
        self._children.start(setup, self._id)
        self._children.wait_until_settled(deadline)
        self._coordinate(ZmqTransport("coordinator", self._bind("coordinator")))  # while the nursery imports
        for name in self._names:
            self._children.order(self._orders(name, "server", {}))
        self._children.wait_until_running(self._names, deadline)
        self._wait_for_servers(self._names)

    def fork(self, name: str, kind: str, work: dict[str, Any]) -> int:
        """Start one more process, a "server" or a "worker"; returns its number once it runs.

        A worker gets ``work`` as it is. However it ends, ``on_ended`` is told: "it ended" if its work was done.
        """
        self._check_usable()
        if kind not in ("server", "worker"):
            raise Invalid(f"kind={kind!r}: needs 'server' or 'worker'")
        if not re.fullmatch(r"\w[\w.-]{0,63}", name):
            raise Invalid(f"name={name!r}: needs 1 to 64 letters, digits, dots and dashes")
        if name == "coordinator" or any(one.name == name and not one.closed for one in self._clients):
            raise Invalid(f"the name {name!r} is taken: choose another")
        self._children.order(self._orders(name, kind, work))
        self._taken.add(name)
        self._children.wait_until_running([name], time.monotonic() + _START_WITHIN)
        self._check_usable()  # still: somebody may have closed the cluster meanwhile
        return self._children.known[name].pid

    def signal(self, name: str, signal: int) -> None:
        """Send a signal to a process that was forked here; nothing happens if it has ended."""
        self._check_usable()
        if name not in self._children.known:
            raise Invalid(f"no process {name!r} here (processes: {', '.join(self._children.known)})")
        if signal not in valid_signals():
            raise Invalid(f"signal={signal!r}: there is none of that number")
        self._children.signal(name, signal)

    def _check_usable(self) -> None:
        if self._ended:
            raise ClusterError(f"{self._ended}: start another one")
        if os.getpid() != self._pid:
            raise ClusterError(f"this cluster belongs to process {self._pid}: start one here")
        if self._children.gone:
            raise StartFailed(f"{self._children.gone}: start another cluster")

    def _orders(self, name: str, kind: Any, work: dict[str, Any]) -> Orders:
        return Orders(name, kind, secrets.token_hex(8), self._bind(name), self.address, self._folder, work)

    def _child_ended(self, name: str, why: str) -> None:
        if self.on_ended is not None:
            self.on_ended(name, why)

    def _bind(self, name: str) -> str:
        return f"ipc://{self._folder}/{name}" if self._folder else "tcp://127.0.0.1:*"

    def close(self) -> None:
        super().close()
        if os.getpid() == self._pid:
            self._stop_others()  # also where the coordinator broke, and there was nothing more to close
            sweep(self._folder)

    def _stop_others(self) -> None:
        self._children.close()

    def _transport(self, name: str) -> Transport:
        transport = ZmqTransport(name)
        transport.connect("coordinator", self.address)
        return transport


def _short_folder(name: str) -> str:
    """A place for sockets whose path is short enough: where temporary files go, or else where they usually do."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if len(parent.encode()) + len(name) + len("/coordinator") < 90 and os.access(parent, os.W_OK | os.X_OK):
            return f"{parent}/{name}"
    raise StartFailed("no folder for sockets: set TMPDIR to a short path that you may write to, or transport='tcp'")

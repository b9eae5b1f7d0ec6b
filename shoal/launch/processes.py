"""Servers as processes of their own, started afresh (nothing is forked, nothing is pickled)."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import msgspec

from shoal import limits
from shoal.errors import StartFailed
from shoal.launch.child import Orders, Report, prepare
from shoal.launch.local import _START_WITHIN, Cluster
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.loop import Loop
from shoal.nodes.storage import Journal
from shoal.wire import Transport
from shoal.wire.zmq import ZmqTransport


class ProcessCluster(Cluster):
    """One process for each server; the coordinator and the clients are in this one."""

    def __init__(self, servers: int, transport: str, modules: tuple[str, ...], journal: Journal) -> None:
        super().__init__(journal)
        self._names = [f"server-{i}" for i in range(servers)]
        self._taken.update(self._names)
        self._modules = modules
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = ""
        if transport == "ipc":
            # Not made here: a parent that is killed at once could not remove it. The first server makes it.
            self._folder = _short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")

    @property
    def address(self) -> str:
        assert self._coordinator is not None
        return self._coordinator.transport.address

    @property
    def pids(self) -> dict[str, int]:
        """The process of each server."""
        return {name: child.pid for name, child in self._children.items()}

    def start(self) -> None:
        prepare(self._modules)  # compiles the kernels once, here, instead of once in every process
        if self._folder:
            # The servers make the folder, so the coordinator's socket comes after them; they try until it is there.
            self._spawn(self._bind("coordinator"))
            self._open_coordinator()
        else:
            self._open_coordinator()
            self._spawn(self.address)
        for name in self._names:
            threading.Thread(
                target=self._watch, args=(name,), name=f"shoal-{self._id}-{name}-watch", daemon=True
            ).start()
        self._wait_for_servers(self._names)

    def _open_coordinator(self) -> None:
        transport = ZmqTransport("coordinator", self._bind("coordinator"))
        self._coordinator = Loop(Coordinator(journal=self._journal.records), transport, self._journal)
        self._run(self._coordinator)

    def _bind(self, name: str) -> str:
        return f"ipc://{self._folder}/{name}" if self._folder else "tcp://127.0.0.1:*"

    def _spawn(self, coordinator: str) -> None:
        """Start all servers, then wait until each has said that it listens."""
        for name in self._names:
            orders = Orders(
                name, secrets.token_hex(8), self._bind(name), coordinator, self._folder, list(self._modules), sys.path
            )
            child = subprocess.Popen(
                [sys.executable, "-m", "shoal.launch.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is ours to answer
            )
            self._children[name] = child
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it is dead already: its report says so, or is missing
                child.stdin.write(msgspec.json.encode(orders) + b"\n")
                child.stdin.flush()
        deadline = time.monotonic() + _START_WITHIN
        for name, child in self._children.items():
            _report(name, child, deadline)

    def _watch(self, name: str) -> None:
        child = self._children[name]
        code = child.wait()
        if not self._ended:
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self._lost(name, f"its process ended ({how})")

    def _stop_others(self) -> None:
        for child in self._children.values():
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
        deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        for child in self._children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()

    def close(self) -> None:
        super().close()
        if self._folder and os.getpid() == self._pid:
            shutil.rmtree(self._folder, ignore_errors=True)

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


def _report(name: str, child: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait for a server's first words."""
    assert child.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(child.stdout.fileno(), 4096) if ready else b""
        if not more:
            how = "no word from it in time" if not ready else f"it ended with exit code {child.wait(5)}"
            raise StartFailed(f"{name} did not start: {how}; what it printed is above")
        line += more
    report = msgspec.json.decode(line, type=Report)
    if report.error:
        raise StartFailed(f"{name} did not start: {report.error}")

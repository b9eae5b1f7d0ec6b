"""The base of every cluster: its clients, its servers, its end."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import limits
from shoal.background import EventThread, Listener
from shoal.client import KV, client_of
from shoal.client import connect as connect
from shoal.errors import ClusterError, Invalid, StartFailed, Unanswered
from shoal.inspect.status import ClusterStatus, StatusClient
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.nodes.membership_journal import afresh
from shoal.timing import Timing
from shoal.wire import Transport
from shoal.wire import messages as m
from shoal.wire.messages.groups import member_name

if TYPE_CHECKING:
    from shoal.files import Lock
    from shoal.launch.coordinator_process import RunFacts

START_WITHIN = 120.0  # seconds: the first start on a machine compiles the kernels
_LOOK_WITHIN = 10.0  # seconds: a killed coordinator is restarted sooner
_numbers = itertools.count(1)


class Cluster(ABC):
    """A running cluster. Closing it, or leaving its ``with`` block, ends everything it started."""

    group = ""  # the worker group, if it uses the servers of another cluster

    def __init__(self, journal: JournalFile, copies: int = 1) -> None:
        self._id = f"{next(_numbers)}"
        self._journal, self._copies = journal, copies
        # Set before the start: the nodes' timing, where no job says so (None: the journal's) ...
        self.timing: Timing | None = None
        # ... and where ``kv.save()`` writes, for a store without a run.
        self.checkpoints: Path | None = None
        self._begin(journal)
        self._clients: weakref.WeakSet[KV] = weakref.WeakSet()
        self._threads: list[threading.Thread] = []
        self._loops: list[Loop] = []
        self._pid = os.getpid()
        self._taken = {"coordinator"}  # names of our own nodes
        self.lock: Lock | None = None  # on a store's folder; released on close
        self.ended = ""  # why the cluster has ended; empty: it runs
        self._closing, self._closed = threading.Lock(), False
        self._run_facts: RunFacts | None = None
        self._event_thread: EventThread | None = None
        self._looking = StatusClient(self._transport)
        atexit.register(_close_quietly, weakref.ref(self))

    def _begin(self, journal: JournalFile) -> None:
        journal.rewrite(afresh(journal.records))  # no node of an earlier cluster is alive

    def begin_with(self, record: bytes) -> None:
        """Append a record to the journal before the coordinator starts and reads it."""
        self._journal.rewrite([*self._journal.records, record])
        if self._journal.path is not None and self._journal.records[-1:] != [record]:
            raise Invalid(f"cannot write the journal {self._journal.path}: free disk space, and start again")

    @property
    def address(self) -> str:
        """Where other processes of this machine reach it: ``shoal.connect(address)``."""
        raise Invalid("a cluster of threads has no address: start it with processes=True")

    @property
    @abstractmethod
    def folder(self) -> Path:
        """For files that are removed with the cluster."""

    def client(self, name: str | None = None) -> KV:
        """A client: it pushes and pulls, and no worker waits for it."""
        return self._join("client", name)

    def worker(self, name: str | None = None) -> KV:
        """A worker: it has a clock, and other workers may wait for it."""
        return self._join("worker", name)

    def add_server(self, n: int = 1) -> list[str]:
        """Start ``n`` more servers; returns their names once all have joined."""
        if not isinstance(n, int) or n is True or not 1 <= n <= limits.MEMBERS // 2:
            raise Invalid(f"n={n!r}: needs 1 to {limits.MEMBERS // 2} servers")
        numbers = itertools.count(len([name for name in self._taken if name.startswith("server-")]))
        free = (name for number in numbers if (name := f"server-{number}") not in self._taken)
        names = list(itertools.islice(free, n))
        self._taken.update(names)
        for name in names:
            self._start_server(name)
        self._wait_for_servers(names)
        return names

    def remove_server(self, name: str) -> None:
        """Drain a server and end it. Raises if it cannot be drained or makes no progress."""
        from shoal.inspect.drain import let_go

        let_go(self._looking, name)
        self._forget_server(name)

    def workers_here(self, workers: int) -> int:
        """How many of a run's workers are started here: all, unless other hosts start them."""
        return workers

    @abstractmethod
    def _start_server(self, name: str) -> None: ...

    @abstractmethod
    def _forget_server(self, name: str) -> None: ...

    def look(self, seconds: float = _LOOK_WITHIN) -> m.StatusReply:
        """The coordinator's status; raises Unanswered if it does not answer in time."""
        return self._looking.look(seconds)

    def status(self) -> ClusterStatus:
        """Members, tables, who holds which segment, and how current each copy is."""
        return self._looking.status()

    def train(self, run: RunFacts, listener: Listener) -> None:
        """Set the run to schedule, and the listener of its events. Before the start."""
        self._run_facts, self._event_thread = run, EventThread(listener, self._id)

    @abstractmethod
    def start(self) -> None:
        """Start everything; returns when all servers have joined."""

    def close(self) -> None:
        """End everything that was started, and leave nothing behind."""
        if os.getpid() != self._pid:
            return  # a forked child: the cluster belongs to its parent
        with self._closing:
            if self._closed:
                return
            self._closed = True
            for client in list(self._clients):
                try:
                    client.abandon()  # what it would wait for ends with the cluster
                except Exception as error:  # e.g. an interrupted client: the rest must still end
                    print(f"shoal: {type(error).__name__}: {error} while closing {client.name}", file=sys.stderr)
            self.ended = self.ended or "the cluster was closed"
            self._looking.close()
            self._stop_others()
            for loop in self._loops:
                loop.stop()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(limits.DRAIN / limits.SECOND)
            if self._event_thread is not None:
                self._event_thread.close()
            if self.lock is not None:
                self.lock.release()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _stop_others(self) -> None:
        return

    @abstractmethod
    def _transport(self, name: str) -> Transport: ...

    def _join(self, role: str, name: str | None) -> KV:
        if self.ended:
            raise ClusterError(f"{self.ended}: start another one")
        name = name or f"{role}-{secrets.token_hex(4)}"
        if not isinstance(name, str):
            raise Invalid(f"name={name!r}: needs a string")
        full = member_name(name, self.group)
        if name in self._taken or any(one.name == full and not one.closed for one in self._clients):
            raise Invalid(f"the name {name!r} is taken: choose another, or leave it out")
        alive = weakref.ref(self)
        ended = lambda: one.ended if (one := alive()) is not None else ""  # noqa: E731
        client = client_of(full, role, self._transport(full), ended, self.group)
        self._clients.add(client)
        return client

    def _run(self, loop: Loop) -> None:
        def run() -> None:
            try:
                loop.run()
            except BaseException as error:
                self.tell_ended(loop.node.name, f"{type(error).__name__}: {error}")
                raise

        thread = threading.Thread(target=run, name=f"shoal-{self._id}-{loop.node.name}", daemon=True)
        self._threads.append(thread)
        self._loops.append(loop)
        thread.start()

    @abstractmethod
    def tell_ended(self, name: str, reason: str) -> None:
        """Tell the coordinator that we saw a node end, so that nobody waits for its timeout."""

    def _wait_for_servers(self, names: Sequence[str]) -> None:
        deadline = time.monotonic() + START_WITHIN
        missing, lost = list(names), dict[str, str]()
        while missing:
            if self.ended:
                raise StartFailed(self.ended)
            gone = [f"{name} ({lost[name]})" for name in missing if name in lost]
            if gone or time.monotonic() > deadline:
                who = ", ".join(gone or missing)
                raise StartFailed(f"the cluster did not start: no {who}; what it printed is above")
            try:
                status = self.look()
            except Unanswered:
                continue
            here = {member.name for member in status.members}
            missing, lost = [name for name in missing if name not in here], status.lost
            if missing:
                threading.Event().wait(0.005)


def _close_quietly(cluster: weakref.ref[Cluster]) -> None:
    if (one := cluster()) is not None:
        try:
            one.close()
        except Exception as error:
            print(f"shoal: {error} while closing", file=sys.stderr)

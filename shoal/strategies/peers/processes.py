"""The peers that this process has started, as threads or as processes of a forkserver.

Each starts at an address of its own; when all have started, each gets the list of all
(``Founders``) and they begin. One more joins by asking any peer that is here. However this process
ends, its processes end with it; peers that joined from elsewhere do not belong to it.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import valid_signals
from typing import Protocol

import msgspec

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.errors import Invalid, StartFailed
from shoal.events import counted
from shoal.job import Job
from shoal.launch.cluster import START_WITHIN
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.process_main import ProcessOrders, sweep
from shoal.launch.process_pool import DONE, ProcessPool
from shoal.launch.processes import short_folder
from shoal.strategies.peers.worker import (
    Founders,
    PeerIncarnation,
    PeerParts,
    PeerSpec,
    life_of,
    live,
)
from shoal.wire import Transport
from shoal.wire.memory import Hub
from shoal.wire.messages.peers import Peer
from shoal.wire.zmq import ZmqTransport

MAIN = "shoal.strategies.peers.worker"
Ended = Callable[[str, str], None]  # name of a peer, and why: on another thread


class PeerCrew(Protocol):
    """Peers that were started here."""

    peers: dict[str, Peer]  # by name
    failed: dict[str, str]  # by name: why it did not start

    @property
    def pids(self) -> dict[str, int]: ...
    @property
    def here(self) -> list[str]:
        """The names of those that have not ended."""

    def start(self, count: int) -> list[Peer]: ...
    def add(self, number: int, through: list[Peer]) -> Peer: ...
    def signal(self, name: str, number: int) -> None: ...
    def open_observer(self) -> Transport:
        """A transport for an observer."""

    def close(self) -> None: ...


def crew_of(job: Job, dataset: Dataset, kept: Path | None, ended: Ended) -> PeerCrew:
    spec = PeerSpec(job.toml(), str(dataset.folder), kept=str(kept or ""))
    return PeerThreadCrew(spec, ended) if job.launch.how == "threads" else PeerProcessCrew(job, spec, ended)


def name_of(number: int) -> str:
    return f"worker-{number}"


def _observer_name() -> str:
    return f"home-{secrets.token_hex(4)}"


class PeerProcessCrew:
    """Each peer is a process."""

    def __init__(self, job: Job, spec: PeerSpec, ended: Ended) -> None:
        self._job, self._spec, self._ended = job, spec, ended
        self.peers: dict[str, Peer] = {}
        self.failed: dict[str, str] = {}
        self._lives: dict[str, str] = {}  # by name
        # The forkserver makes it: a parent that is killed at once could not remove it.
        self._folder = short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")
        self._children = ProcessPool(lambda name, why: None, self._on_ended)

    @property
    def pids(self) -> dict[str, int]:
        return self._children.pids

    @property
    def here(self) -> list[str]:
        return list(self.pids)

    def start(self, count: int) -> list[Peer]:
        """Start so many, which know of each other; one that does not start is left out."""
        deadline = time.monotonic() + START_WITHIN
        setup = ForkserverSetup(os.getpid(), self._folder, list(self._job.launch.modules), sys.path)
        self._children.start(setup, "peers")
        self._children.wait_until_settled(deadline)
        for number in range(count):
            self._order(number)
        for number in range(count):
            try:
                self._children.wait_until_running([name_of(number)], deadline)
                self._note(number)
            except StartFailed as error:
                self.failed[name_of(number)] = str(error)
                if self._children.gone:
                    raise
        founders = list(self.peers.values())
        if not founders:
            raise StartFailed(next(iter(self.failed.values())))
        for peer in founders:
            self._children.pass_on(peer.name, Founders(founders))
        return founders

    def add(self, number: int, through: list[Peer]) -> Peer:
        """Start one more, which joins ``through`` these."""
        self._order(number, through)
        self._children.wait_until_running([name_of(number)], time.monotonic() + START_WITHIN)
        return self._note(number)

    def signal(self, name: str, number: int) -> None:
        if name not in self._children.known:
            raise Invalid(f"no process {name!r} here (processes: {', '.join(self.pids)})")
        if number not in valid_signals():
            raise Invalid(f"signal={number!r}: there is none of that number")
        self._children.signal(name, number)

    def open_observer(self) -> Transport:
        return ZmqTransport(_observer_name())

    def close(self) -> None:
        try:
            self._children.close()
        finally:
            sweep(self._folder)

    def _order(self, number: int, through: Sequence[Peer] = ()) -> None:
        name = name_of(number)
        spec = msgspec.structs.replace(self._spec, number=number, life=life_of(name), through=list(through))
        bind = "tcp://127.0.0.1:*" if self._job.launch.transport == "tcp" else f"ipc://{self._folder}/{spec.life}"
        facts = msgspec.to_builtins(spec)
        self._children.order(ProcessOrders(name, MAIN, "", bind, "", self._folder, facts, inbox=True))
        self._lives[name] = spec.life

    def _note(self, number: int) -> Peer:
        name = name_of(number)
        self.peers[name] = Peer(self._lives[name], name, number, self._children.known[name].address)
        return self.peers[name]

    def _on_ended(self, name: str, why: str) -> None:
        self._ended(name, "" if why == DONE else why)


class PeerThreadCrew:
    """Each peer is a thread, with threads of its own to compute and to evaluate."""

    def __init__(self, spec: PeerSpec, ended: Ended) -> None:
        self._spec, self._ended = spec, ended
        self.peers: dict[str, Peer] = {}
        self.failed: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self._hub = Hub()
        self._threads: dict[str, threading.Thread] = {}
        self._closing = threading.Event()

    @property
    def here(self) -> list[str]:
        return [name for name, thread in list(self._threads.items()) if thread.is_alive()]

    def start(self, count: int) -> list[Peer]:
        lives = [self._life(number) for number in range(count)]
        founders = [life.me for life in lives]
        for life in lives:
            self._begin(life, founders, [])
        return founders

    def add(self, number: int, through: list[Peer]) -> Peer:
        life = self._life(number)
        self._begin(life, [], [(one.life, one.address) for one in through])
        return life.me

    def signal(self, name: str, number: int) -> None:
        raise Invalid("a run of threads has no processes: set launch.how to 'processes'")

    def open_observer(self) -> Transport:
        return self._hub.open(_observer_name())

    def close(self) -> None:
        self._closing.set()
        deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        if late := self.here:
            print(f"shoal: {counted(len(late), 'thread')} did not end: {', '.join(late)}", file=sys.stderr)

    def _life(self, number: int) -> PeerIncarnation:
        return PeerIncarnation(PeerParts(msgspec.structs.replace(self._spec, number=number)), self._hub.open)

    def _begin(self, life: PeerIncarnation, founders: list[Peer], through: list[tuple[str, str]]) -> None:
        name = life.me.name
        self.peers[name] = life.me

        def run() -> None:
            why = ""
            try:
                why = live(life, founders, through, self._closing).why
            except BaseException as error:
                why = f"{type(error).__name__}: {error}"
            if not self._closing.is_set():
                self._ended(name, why)

        thread = self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        thread.start()

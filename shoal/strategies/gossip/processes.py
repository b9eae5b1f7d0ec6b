"""The workers of a gossip run as the process that was called knows them: started, reached, heard of when they end.

Threads of this process that reach each other by name, or processes forked by a forkserver, each of which listens at an address of its own
(ipc in the run's private folder, or tcp). Either way a worker is a ``GossipWorker`` in a loop, and calls home by that name. However this
process ends, they end with it.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal import limits
from shoal.errors import Invalid
from shoal.job import Job
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.local import START_WITHIN
from shoal.launch.process_main import Process, ProcessOrders, sweep
from shoal.launch.process_pool import DONE, ProcessPool
from shoal.launch.processes import short_folder
from shoal.launch.worker_process import number_of
from shoal.nodes.loop import Loop
from shoal.security.safety import Safety
from shoal.strategies.gossip.controller import HOME
from shoal.strategies.gossip.local_model import core_of
from shoal.strategies.gossip.settings import Gossip
from shoal.strategies.gossip.worker import GossipWorker
from shoal.wire import Transport
from shoal.wire.memory import Hub
from shoal.wire.zmq import ZmqTransport

MAIN = "shoal.strategies.gossip.processes"
_BY_ITSELF = "its process ended (exit code 0) before anybody asked it to"


class GossipSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker needs to know, as plain data."""

    job: str  # as TOML
    rows: str  # the folder of the packed set
    nodes: int
    kept: str = ""  # what to go on from


class GossipWorkers:
    """All workers of a run."""

    def __init__(self, job: Job, rows: str, kept: str) -> None:
        self._job, self._facts = job, GossipSpec(job.toml(), rows, job.workers, kept)
        self.names = [f"worker-{number}" for number in range(job.workers)]
        self.addresses = dict.fromkeys(self.names, "")
        self.ended: deque[tuple[str, str]] = deque()  # name, and why
        self.home: Transport
        self._hub, self._folder = Hub(), ""
        self._children: ProcessPool | None = None
        self._loops: dict[str, Loop] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closed = False

    def start(self) -> None:
        """All of them; each is heard of when it has read its rows."""
        if self._job.launch.how == "threads":
            self.home = self._hub.open(HOME)
            for name in self.names:
                self._start_thread(name)
            return
        deadline = time.monotonic() + START_WITHIN
        over_tcp = self._job.launch.transport == "tcp"
        self._folder = short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")
        self._children = ProcessPool(lambda name, why: None, self._child_ended)
        modules = list(self._job.launch.modules)
        self._children.start(ForkserverSetup(os.getpid(), self._folder, modules, sys.path), "gossip")
        self._children.wait_until_settled(deadline)
        safety = Safety.local().checking(self._job.launch.checksums)
        self.home = ZmqTransport(HOME, _bind(self._folder, HOME, over_tcp), safety)
        for name in self.names:
            bind, work = _bind(self._folder, name, over_tcp), msgspec.to_builtins(self._facts)
            orders = ProcessOrders(name, MAIN, "", bind, self.home.address, self._folder, work, safety=safety.plain)
            self._children.order(orders)
        self._children.wait_until_running(self.names, deadline)
        for name in self.names:
            self.addresses[name] = self._children.known[name].address

    @property
    def pids(self) -> dict[str, int]:
        return {} if self._children is None else self._children.pids

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        if self._children is None:
            raise Invalid("a run of threads has no processes: set launch.how to 'processes'")
        self._children.signal(name, number)

    def end(self, name: str, why: str) -> None:
        """It cannot go on, and has said why."""
        self.ended.append((name, why))  # before its end is heard of: what is told first is why
        if self._children is not None:
            self._children.signal(name, signal.SIGKILL)
        elif name in self._loops:
            self._loops[name].stop()

    def close(self) -> None:
        """End them all."""
        if self._closed:
            return
        self._closed = True
        for loop in list(self._loops.values()):
            loop.stop()
        for thread in self._threads.values():
            thread.join(limits.DRAIN / limits.SECOND)
        try:
            if self._children is not None:
                self._children.close()
        finally:
            sweep(self._folder)

    # ------------------------------------------------------------ inside

    def _start_thread(self, name: str) -> None:
        transport = self._hub.open(name)
        self.addresses[name] = transport.address

        def run() -> None:
            why = DONE
            try:
                self._loops[name] = loop = loop_of(name, self._facts, transport)
                turn(loop, lambda: self._closed)
            except BaseException as error:
                why = f"{type(error).__name__}: {error}"
            self._child_ended(name, why)

        self._threads[name] = thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()

    def _child_ended(self, name: str, why: str) -> None:
        """On a thread that nobody waits for."""
        self.ended.append((name, _BY_ITSELF if why == DONE else why))
        if not self._closed:
            self.home.wake()


def loop_of(name: str, facts: GossipSpec, transport: Transport) -> Loop:
    """A worker, ready for its first leg."""
    number = number_of(name)
    job, core = core_of(facts.job, Path(facts.rows), number, facts.nodes, Path(facts.kept) if facts.kept else None)
    assert isinstance(job.strategy, Gossip)
    node = GossipWorker(
        name,
        core,
        job.strategy.mode,
        chance=random.Random(f"meetings {job.seed} {number}"),
        pace=job.emulate.pace(number, job.seed),
        link=job.emulate.link,
        home=HOME,
        clock=time.monotonic_ns,
        traffic=lambda: transport.traffic,
        timing=job.timing.intervals(),
    )
    return Loop(node, transport)


def turn(loop: Loop, stopped: Callable[[], bool] = lambda: False) -> None:
    """Until it is told that it was the last leg."""
    node = loop.node
    assert isinstance(node, GossipWorker)
    try:
        while not node.over and not loop.stopped.is_set() and not stopped():
            loop.turn()
    finally:
        loop.close()


def main(orders: ProcessOrders, process: Process) -> None:
    """A worker in a process of its own."""
    transport = ZmqTransport(orders.name, orders.bind, Safety.of_plain(orders.safety))
    transport.connect(HOME, orders.coordinator)
    process.ready(transport.address)
    turn(loop_of(orders.name, msgspec.convert(orders.work, GossipSpec), transport))


def _bind(folder: str, name: str, over_tcp: bool) -> str:
    return "tcp://127.0.0.1:*" if over_tcp else f"ipc://{folder}/{name}"

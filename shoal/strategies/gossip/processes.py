"""The workers of a gossip run, as the process that was called knows them.

They are threads that reach each other by name, or processes that each listen at an address of their
own (ipc in the run's private folder, or tcp). Either way a worker is a ``GossipWorker`` in a loop,
connected to the controller, which is named home.
"""

from __future__ import annotations

import random
import signal
import time
from collections import deque
from collections.abc import Callable

import msgspec

from shoal.data.datasets import Dataset
from shoal.job import Job
from shoal.launch.process_main import Process, ProcessOrders
from shoal.launch.worker_pool import (
    BY_ITSELF,
    PoolWorkerSpec,
    WorkerPool,
    name_of,
)
from shoal.launch.worker_process import number_of
from shoal.nodes.loop import Loop
from shoal.security.safety import Safety
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.model import model_of
from shoal.strategies.gossip.worker import HOME, GossipWorker
from shoal.training.local_checkpoint import LocalCheckpoint
from shoal.wire import Transport
from shoal.wire.memory import Hub
from shoal.wire.zmq import ZmqTransport

MAIN = "shoal.strategies.gossip.processes"


class GossipWorkers:
    def __init__(self, job: Job, dataset: Dataset, kept: LocalCheckpoint | None) -> None:
        self._job, self._spec = job, PoolWorkerSpec.of(job, dataset, kept)
        self.names = [name_of(number) for number in range(job.workers)]
        self.addresses = dict.fromkeys(self.names, "")
        self.ended: deque[tuple[str, str]] = deque()  # name, and why
        self.home: Transport
        self.pool = WorkerPool(job, MAIN, self._ended, sockets=True)
        self._loops: dict[str, Loop] = {}  # of threads

    def start(self) -> None:
        if not self.pool.has_processes:
            hub = Hub()
            self.home = hub.open(HOME)
            for name in self.names:
                transport = hub.open(name)
                self.addresses[name] = transport.address
                self.pool.run_thread(name, lambda name=name, to=transport: self._run(name, to))  # type: ignore[misc]
            return
        self.pool.start("gossip")
        safety = Safety.local().checking(self._job.launch.checksums)
        self.pool.wait_until_started()  # the folder of sockets is there
        self.home = ZmqTransport(HOME, self._bind(HOME), safety)
        for name in self.names:
            self.pool.fork(name, self._spec, bind=self._bind(name), coordinator=self.home.address, safety=safety.plain)
        # In place: the controller holds this dict.
        self.addresses.update(zip(self.names, self.pool.wait_until_running(self.names), strict=True))

    def end(self, name: str, why: str) -> None:
        self.ended.append((name, why))  # first: the end of its process comes later
        if self.pool.has_processes:
            self.pool.signal(name, signal.SIGKILL)
        elif name in self._loops:
            self._loops[name].stop()

    def close(self) -> None:
        for loop in list(self._loops.values()):
            loop.stop()
        self.pool.close()

    def _run(self, name: str, transport: Transport) -> None:
        self._loops[name] = loop = loop_of(name, self._spec, transport)
        run_loop(loop, lambda: self.pool.closed)

    def _ended(self, name: str, why: str) -> None:
        """On another thread."""
        self.ended.append((name, why or BY_ITSELF))
        if not self.pool.closed:
            self.home.wake()

    def _bind(self, name: str) -> str:
        return "tcp://127.0.0.1:*" if self._job.launch.transport == "tcp" else f"ipc://{self.pool.folder}/{name}"


def loop_of(name: str, spec: PoolWorkerSpec, transport: Transport) -> Loop:
    number = number_of(name)
    job, model = model_of(spec, number)
    assert isinstance(job.strategy, Gossip)
    node = GossipWorker(
        name,
        model,
        job.strategy.mode,
        chance=random.Random(f"meetings {job.seed} {number}"),
        pace=job.emulate.pace(number, job.seed),
        link=job.emulate.link,
        clock=time.monotonic_ns,
        traffic=lambda: transport.traffic,
        timing=job.timing.intervals(),
    )
    return Loop(node, transport)


def run_loop(loop: Loop, stopped: Callable[[], bool] = lambda: False) -> None:
    node = loop.node
    assert isinstance(node, GossipWorker)
    try:
        while not node.over and not loop.stopped.is_set() and not stopped():
            loop.turn()
    finally:
        loop.close()


def main(orders: ProcessOrders, process: Process) -> None:
    transport = ZmqTransport(orders.name, orders.bind, Safety.of_plain(orders.safety))
    transport.connect(HOME, orders.coordinator)
    process.ready(transport.address)
    run_loop(loop_of(orders.name, msgspec.convert(orders.work, PoolWorkerSpec), transport))

"""Runs one worker in a process or thread, from its join until nothing is left to compute."""

from __future__ import annotations

import importlib
import signal
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.data.datasets import train_rows
from shoal.filters import described
from shoal.filters.chain import Chain
from shoal.job import Job
from shoal.nodes.factory import make_trainer
from shoal.nodes.loop import Loop
from shoal.nodes.trainer import Trainer
from shoal.nodes.worker import Worker
from shoal.wire import Transport
from shoal.wire.messages.groups import member_name

if TYPE_CHECKING:
    from shoal.launch.process_main import Process, ProcessOrders
    from shoal.nodes.drainable import DrainableNode


_CACHE_SHARE = 4  # a quarter of the free memory may cache rows for the next epoch


class WorkerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    job: str  # TOML, because JSON has no infinity
    rows: str  # folder of the packed data
    cache_bytes: int
    group: str = ""  # the prefix of its name


def cache_bytes(job: Job, workers: int | None = None) -> int:
    """How many bytes of rows one of this host's workers may cache."""
    if job.launch.cache_mb is not None:
        return job.launch.cache_mb * limits.MB
    import psutil

    free = int(psutil.virtual_memory().available)
    return min(limits.SLOT_CACHE, free // _CACHE_SHARE // (workers or job.workers))


def warm() -> None:
    for module in ("shoal.data.kernels", "shoal.models.kernels"):
        importlib.import_module(module)


def trainer_of(name: str, token: str, transport: Transport, work: WorkerSpec) -> Trainer:
    warm()
    job = Job.of(tomllib.loads(work.job))
    if job.filters:
        Chain(described(job.filters), warm=True)
    worker = Worker(name, "worker", token, group=work.group)
    worker.clock = time.monotonic_ns
    data = train_rows(Path(work.rows), job.data, job.seed)
    return make_trainer(job, worker, data, work.cache_bytes, lambda: transport.traffic, number_of(name))


def number_of(worker: str) -> int:
    number = worker.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def run(
    trainer: Trainer,
    transport: Transport,
    over: Callable[[], object] = lambda: False,
    node: DrainableNode | None = None,
) -> None:
    """Run to the end, or until ``over``, asked at every turn; raises what ended it early.

    ``node``: a node around the worker.
    """
    loop = Loop(node or trainer.worker, transport)
    try:
        done = trainer.start()
        while not done.done and not over():
            loop.turn()
        if done.error is not None:
            raise done.error  # no orderly leave: our parent reports why we ended
        loop.carry_out(trainer.worker.leave())
    finally:
        trainer.closed.set()
        loop.close()


def main(orders: ProcessOrders, process: Process) -> None:
    """Run a worker in this process. SIGTERM: finish the current slots, return the rest, leave."""
    from shoal.launch.process_main import transport_of

    on_leave: list[Callable[[], None]] = []  # the trainer's, as soon as there is one
    leaving = threading.Event()

    def leave(*_: object) -> None:
        leaving.set()
        for call in on_leave:
            call()

    signal.signal(signal.SIGTERM, leave)
    process.ready()
    task = msgspec.convert(orders.work, WorkerSpec)
    name = member_name(orders.name, task.group)
    transport = transport_of(orders, name=name)
    trainer = trainer_of(name, orders.token, transport, task)
    trainer.learner.settle(alone=True)
    on_leave.append(trainer.leave)
    if leaving.is_set():
        trainer.leave()
    run(trainer, transport)

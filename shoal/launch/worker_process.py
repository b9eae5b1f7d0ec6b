"""One worker of a run, in a process or a thread of its own, from its first hello until nothing is left to compute."""

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
from shoal.data.mapped import train_rows
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


_CACHE_SHARE = 4  # a quarter of free memory may hold rows for the next pass


class WorkerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker needs to know, as plain data."""

    job: str  # as TOML, which knows infinity: JSON does not
    rows: str  # the folder of the packed set
    cache_bytes: int
    group: str = ""  # its name begins with that


def orders_of(job: Job, rows: Path, group: str = "") -> WorkerSpec:
    """For one of the workers of this job, on rows that lie there."""
    return WorkerSpec(job.toml(), str(rows), cache_bytes(job), group)


def cache_bytes(job: Job, workers: int | None = None) -> int:
    """What one of so many workers on this host may keep of the rows it has read."""
    if job.launch.cache_mb is not None:
        return job.launch.cache_mb * limits.MB
    import psutil

    free = int(psutil.virtual_memory().available)
    return min(limits.SLOT_CACHE, free // _CACHE_SHARE // (workers or job.workers))


def warm() -> None:
    """Load the kernels, so that no slot waits for them."""
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
    """The n of worker-n."""
    number = worker.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def run(trainer: Trainer, transport: Transport, stopped: threading.Event | None = None) -> None:
    """Until it is over, or ``stopped`` is set; raises what ended it before its time."""
    loop = Loop(trainer.worker, transport)
    try:
        done = trainer.start()
        while not done.done and not (stopped is not None and stopped.is_set()):
            loop.turn()
        if done.error is not None:
            raise done.error  # whoever started us tells why we are gone: no good-bye in order
        loop.carry_out(trainer.worker.leave())
    finally:
        trainer.close()
        loop.close()


def main(orders: ProcessOrders, process: Process) -> None:
    """A worker in a process of its own. SIGTERM asks it to finish what it has begun, give back the rest, and go."""
    from shoal.launch.process_main import transport_of

    asked: list[Callable[[], None]] = []  # to leave: who hears of it, as soon as there is somebody
    leaving = threading.Event()

    def leave(*_: object) -> None:
        leaving.set()
        for call in asked:
            call()

    signal.signal(signal.SIGTERM, leave)
    process.ready()
    task = msgspec.convert(orders.work, WorkerSpec)
    name = member_name(orders.name, task.group)
    transport = transport_of(orders, name=name)
    trainer = trainer_of(name, orders.token, transport, task)
    trainer.learner.settle(alone=True)
    asked.append(trainer.leave)
    if leaving.is_set():
        trainer.leave()
    run(trainer, transport)

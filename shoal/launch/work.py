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
from shoal.data.arrays import open_rows
from shoal.filters import described
from shoal.filters.chain import Chain
from shoal.job import Job
from shoal.models.learning import Learner, LinearLearner, learner_of
from shoal.nodes.loop import Loop
from shoal.nodes.rows import Rows
from shoal.nodes.slices import Slices
from shoal.nodes.trainer import Shelf, Trainer
from shoal.nodes.worker import Worker
from shoal.strategies.block_proximal import BlockProximal
from shoal.strategies.turns import Turns
from shoal.wire import Transport
from shoal.wire.groups import member_name

if TYPE_CHECKING:
    from shoal.launch.child import Orders


_CACHE_SHARE = 4  # a quarter of free memory may hold rows for the next pass


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker needs to know, as plain data."""

    job: str  # as TOML, which knows infinity: JSON does not
    rows: str  # the folder of the packed set
    cache_bytes: int
    group: str = ""  # its name begins with that


def orders_of(job: Job, rows: Path, group: str = "") -> Work:
    """For one of the workers of this job, on rows that lie there."""
    return Work(job.toml(), str(rows), cache_bytes(job), group)


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


def trainer_of(name: str, token: str, transport: Transport, work: Work) -> Trainer:
    warm()
    job = Job.of(tomllib.loads(work.job))
    if job.filters:
        Chain(described(job.filters), warm=True)
    data = open_rows(Path(work.rows))
    learner = learner_of(job.model, data, job.seed, number_of(name))
    slots = job.slots(data.rows)
    worker = Worker(name, "worker", token, group=work.group)
    worker.clock = time.monotonic_ns
    worker.client.names.most *= job.handles
    pace = job.emulate.pace(number_of(name), job.seed)
    shelf: Shelf
    if isinstance(slots, Turns):
        shelf = parts_of(job, learner, slots)
    elif isinstance(learner, LinearLearner):
        shelf = Rows(worker, learner.train, slots, learner.model.bias, work.cache_bytes)
    else:
        shelf = Slices(data, slots, learner.keys)
    return Trainer(
        worker,
        job.servers_strategy,
        learner,
        shelf,
        slots,
        lambda: transport.traffic,
        pace,
        job.trace.spans,
        job.emulate.task,
    )


def parts_of(job: Job, learner: Learner, turns: Turns) -> Shelf:
    """The rows of a run that goes block by block."""
    importlib.import_module(
        "shoal.models.column_kernels"
    )  # now: whoever compiles them once it is in is silent meanwhile
    from shoal.models.columns import Blocks
    from shoal.nodes.parts import Parts

    assert isinstance(learner, LinearLearner) and isinstance(job.strategy, BlockProximal)
    data, bias = learner.train, learner.model.bias
    blocks = Blocks.cut(job.strategy.by, job.strategy.blocks, data.counts, bias, data.rows)
    return Parts(data, turns, blocks, bias, learner.model.loss)


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


def work(orders: Orders, ready: Callable[[], None]) -> None:
    """In a process of its own. SIGTERM asks it to finish what it has begun, give back the rest, and go."""
    from shoal.launch.child import transport_of

    asked: list[Callable[[], None]] = []  # to leave: who hears of it, as soon as there is somebody
    leaving = threading.Event()

    def leave(*_: object) -> None:
        leaving.set()
        for call in asked:
            call()

    signal.signal(signal.SIGTERM, leave)
    ready()
    task = msgspec.convert(orders.work, Work)
    name = member_name(orders.name, task.group)
    transport = transport_of(orders, name=name)
    trainer = trainer_of(name, orders.token, transport, task)
    trainer.learner.settle(alone=True)
    asked.append(trainer.leave)
    if leaving.is_set():
        trainer.leave()
    run(trainer, transport)

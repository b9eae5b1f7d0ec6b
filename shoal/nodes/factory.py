"""Builds the parts of a run from its job: scheduler, checkpoints, trainers, the table.

Launchers, the simulator and the tests call the same functions, so that all of them run the same
nodes. Nothing here starts a process, opens a socket or reads the time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal import limits
from shoal.data.slots import Slots
from shoal.events import Started
from shoal.filters import described
from shoal.models.learner import Learner, LinearLearner, learner_of
from shoal.nodes.batches import BatchCache, DenseBatches
from shoal.nodes.checkpointing import CheckpointManager, CheckpointWriter
from shoal.nodes.scheduler_journal import ScheduleState, counted_everywhere, to_begin_with
from shoal.nodes.server_strategy import servers_strategy

if TYPE_CHECKING:
    from shoal.data.csr_file import CsrFile
    from shoal.data.datasets import Dataset
    from shoal.data.dense_file import DenseFile
    from shoal.files import Disk
    from shoal.job import Job
    from shoal.nodes.scheduler import Scheduler
    from shoal.nodes.trainer import BatchSource, Trainer
    from shoal.nodes.worker import Worker
    from shoal.store.checkpoint.manifest import Manifest
    from shoal.tables import Table


def make_scheduler(
    job: Job, data: str, rows: int, test_rows: int, features: int, cores: int = 0, elsewhere: bool = False
) -> Scheduler:
    """The scheduler of a run; ``elsewhere``: workers come and go by themselves."""
    from shoal.nodes.scheduler import Scheduler
    from shoal.schedule.slot_queue import SlotQueue
    from shoal.schedule.stop_rules import ENDLESS, StopDecision
    from shoal.schedule.stragglers import AutoDelay, SpeculativeCopies
    from shoal.tables import Step

    slots = job.slots(rows)
    apply, _ = servers_strategy(job).consistency(slots.per_pass)
    workload = SlotQueue(slots, ENDLESS, apply if isinstance(apply, Step) else None)
    stopping = StopDecision(job.stop)
    most = None if job.stop.steps is None else workload.slots_until(job.stop.steps)
    limit, reason = stopping.limit(slots.per_pass, most)
    workload.limit = limit if limit >= ENDLESS else workload.slots_until(workload.steps_until(limit))
    every = ENDLESS
    if job.evaluate.every < ENDLESS / slots.per_pass:
        every = max(1, round(job.evaluate.every * slots.per_pass))
    started = started_event(job, data, rows, test_rows, features, cores, job.workers, job.servers)
    auto = AutoDelay() if getattr(job.strategy, "max_delay", None) == "auto" else None
    second = SpeculativeCopies() if getattr(job.strategy, "second_copies", False) else None
    found = Scheduler(workload, stopping, started, every, reason, auto, second)
    found.elsewhere = elsewhere
    if job.emulate.arrive:
        found.expected = 1  # enough for the first slot, however many are to join
    return found


def started_event(
    job: Job, data: str, rows: int, test_rows: int, features: int, cores: int, workers: int, servers: int
) -> Started:
    slots = job.slots(rows)
    return Started(
        seconds=0.0,
        data=data,
        model=job.model.told,
        strategy=job.strategy.name,
        workers=workers,
        servers=servers,
        seed=job.seed,
        cores=cores,
        rows=rows,
        test_rows=test_rows,
        features=features,
        batch=slots.batch,
        slots=slots.per_pass,
        emulated=job.emulate.words(),
    )


def scheduler_for(job: Job, dataset: Dataset) -> Scheduler:
    return make_scheduler(job, dataset.name, dataset.train.rows, dataset.test.rows, dataset.features)


def make_checkpoints(job: Job, folder: Path | None, disk: Disk | None = None) -> CheckpointManager:
    """What of a run is kept in this folder; without one, nothing is."""
    if folder is None:
        return CheckpointManager()
    every = int(min(job.checkpoint.every, 1e9) * limits.SECOND)  # longer than any run
    return CheckpointManager(CheckpointWriter(folder, job.identity, every, job.checkpoint.keep, disk))


def make_trainer(
    job: Job,
    worker: Worker,
    data: CsrFile | DenseFile,
    cache_bytes: int,
    traffic: Callable[[], tuple[int, int]] = lambda: (0, 0),
    number: int = 0,
) -> Trainer:
    from shoal.nodes.trainer import Trainer

    strategy, slots = servers_strategy(job), job.slots(data.rows)
    learner = learner_of(job.model, data, job.seed, number)
    worker.client.session.key_cache.max_keys *= job.handles
    batches: BatchSource | None = strategy.batches(job, learner, slots)
    if batches is None:
        assert isinstance(slots, Slots)
        if isinstance(learner, LinearLearner):
            batches = BatchCache(worker, learner.train, slots, learner.model.bias, cache_bytes)
        else:
            batches = DenseBatches(data, slots, learner.keys)
    pace, spans = job.emulate.pace(number, job.seed), job.trace.spans
    return Trainer(worker, strategy, learner, batches, slots, traffic, pace, spans, job.emulate.task)


def make_test_learner(job: Job, train: CsrFile | DenseFile) -> Learner:
    """The learner for the evaluator: with an objective, it also says how far that is solved."""
    return job.strategy.evaluates(job, learner_of(job.model, train, job.seed))


def make_table(job: Job, learner: Learner, slots_per_pass: int) -> Table:
    table = servers_strategy(job).table(learner.keys, job.update.update(), slots_per_pass)
    return msgspec.structs.replace(table, filters=described(job.filters))


def state_to_resume(manifest: Manifest, was: Job, job: Job, rows: int, seconds: float = 0.0) -> ScheduleState:
    """What a new coordinator begins with, that takes up a run from this checkpoint.

    ``was`` is the job as it was then. At least so many ``seconds`` have passed: time is never taken
    back.
    """
    state: ScheduleState = msgspec.json.decode(manifest.state, type=ScheduleState)
    everywhere: Any = None
    if not servers_strategy(job).in_steps:  # every segment was cut at a moment of its own
        everywhere = counted_everywhere((one.books for one in manifest.segments), job.slots(rows).per_pass)
    if job.stop != was.stop:  # the old rules have ended nothing
        account = msgspec.structs.replace(state.account, over="", limit=None, computing=None)
        state = msgspec.structs.replace(state, account=account)
    return to_begin_with(state, everywhere, seconds)

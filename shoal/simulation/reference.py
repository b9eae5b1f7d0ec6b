"""Computes a job's weights in one thread with no faults: slot after slot, step after step.

It uses a worker's gradient and a server's table in turn. In step mode the gradients of a step's
slots are added in slot order in double precision and rounded once. Block-proximal does the same
with the gradients of parts; iteration t reads exactly the iterations before t - max_delay. This is
written independently of the shipped code, so that equality means something.

A part that moves to another worker starts again, with the current weights and with initial step
sizes. Given which holder pushed which slot (``BlocksBegun``), the reference gives the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Localiser
from shoal.data.datasets import Dataset
from shoal.data.packed import sparse
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.models.block_margins import BlockMargins
from shoal.models.columns import ColumnBlocks, CscColumns
from shoal.nodes.factory import scheduler_for
from shoal.store.table.table import ServerTable
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.strategies.block_proximal.order import BlockOrder
from shoal.strategies.parameter_server.algorithm import Async, Sync
from shoal.tables import Dense

Floats = npt.NDArray[np.float32]


def serial(job: Job, dataset: Dataset) -> Floats:
    """All weights when the job's epochs or steps are done."""
    if job.strategy.in_steps and not job.strategy.on_servers:  # one slot of every rank
        job = msgspec.structs.replace(job, strategy=Sync(combine=job.strategy.combine, slots_per_step=job.workers))
    elif not job.strategy.on_servers:  # every slot is a step
        job = msgspec.structs.replace(job, strategy=Async(combine=job.strategy.combine))
    workload = scheduler_for(job, dataset).workload
    steps = workload.steps_until(workload.limit)
    return next(islice(weights_by_step(job, dataset), steps, None))


def weights_by_step(
    job: Job,
    dataset: Dataset,
    voids: Collection[int] = (),
    holders: PartHolders | None = None,
    starts: Sequence[int] = (0,),
) -> Iterator[Floats]:
    """All weights before the first step, after it, and so on; void slots take no part.

    ``holders``: of parts that changed them, by segments, which begin at ``starts``.
    """
    if job.strategy.solves:
        yield from weights_by_iteration(job, dataset, holders, starts)
        return
    rows = job.linear.keys(dataset.features)
    workload = scheduler_for(job, dataset).workload
    table = ServerTable(Dense(rows=rows, update=job.update.update()), [KeyRange(0, rows)])
    gradient = ReferenceGradient(job, dataset)
    everything = np.arange(rows, dtype=np.uint64)
    slot = 0
    while True:
        yield table.pull(everything)[:, 0]
        beyond = workload.slots_until(workload.steps_until(slot) + 1)  # of the next step
        keys, values = gradient.of([one for one in range(slot, beyond) if one not in voids], table)
        table.push(keys, values)
        slot = beyond


class ReferenceGradient:
    """The gradient of the slots of a step, at the weights before it."""

    def __init__(self, job: Job, dataset: Dataset) -> None:
        self._job, self._rows = job, sparse(dataset.train)
        self._slots = Slots(dataset.train.rows, job.data.batch, job.seed)
        self._localiser = Localiser(dataset.features)
        self._total = np.zeros(job.linear.keys(dataset.features), np.float64)

    def of(self, slots: list[int], table: ServerTable) -> tuple[npt.NDArray[np.uint64], Floats]:
        model, mean = self._job.linear, self._job.strategy.combine == "mean"
        touched = np.zeros(len(self._total), np.bool_)
        for slot in slots:
            content = self._slots.content(*divmod(slot, self._slots.per_pass))
            local = self._localiser.local(self._rows.take(self._slots.rows(content)), model.bias)
            counts = None
            if model.l2_per_count:  # the bias is not penalised, whatever its count
                counts = np.append(self._rows.counts, 1)[local.keys].astype(np.float32)
            _, gradient = model.gradient(local, table.pull(local.keys)[:, 0], mean, counts)
            self._total[local.keys] += gradient
            touched[local.keys] = True
        keys = np.flatnonzero(touched).astype(np.uint64)
        values = (self._total[keys] / (len(slots) if mean else 1)).astype(np.float32)
        self._total[keys] = 0.0
        return keys, values


class BlocksBegun(NamedTuple):
    """When a holder took a part: its first iteration, and those in the weights it read.

    These are more only if the iteration was done already, and its push counted nowhere.
    """

    iteration: int
    version: int


class BlockTurn(NamedTuple):
    """A slot: one part's side of one iteration."""

    iteration: int
    part: int


# By segment, whose push of a slot counted; other slots were pushed by the first holder.
PartHolders = Mapping[BlockTurn, tuple[BlocksBegun, ...]]
FIRST = BlocksBegun(0, 0)


class BlockWorker:
    def __init__(self, columns: CscColumns, max_delay: int) -> None:
        self.margins, self._delay = BlockMargins(columns, max_delay), max_delay
        self._answers: dict[int, tuple[int, Any, Floats]] = {}  # by iteration: the answers
        self._requested: tuple[int, Any, Any] | None = None

    def turn(self, t: int, block: int, everything: bool) -> tuple[Any, Any]:
        answer = self._answers.pop(t - self._delay - 1, None)
        if answer is not None:
            self.margins.take(*answer)
        _, places, values = self.margins.gradient(block, everything)
        keys = self.margins.columns.keys_of(block)[places]
        self._requested = block, places, keys
        return keys, values

    def answer(self, t: int, table: ServerTable) -> None:
        if self._requested is not None:
            block, places, keys = self._requested
            self._answers[t] = block, places, table.pull(keys)[:, 0]


def weights_by_iteration(
    job: Job, dataset: Dataset, holders: PartHolders | None = None, starts: Sequence[int] = (0,)
) -> Iterator[Floats]:
    """All weights before the first iteration, after it, and so on; segments begin at ``starts``."""
    strategy, turns = cast("BlockProximal", job.strategy), job.slots(dataset.train.rows)
    data = sparse(dataset.train)
    assert isinstance(turns, BlockOrder)
    rows = job.linear.keys(dataset.features)
    table = ServerTable(strategy.table(rows, job.update.update(), turns.per_pass), [KeyRange(0, rows)])
    blocks = ColumnBlocks.cut(strategy.by, strategy.blocks, data.counts, job.linear.bias, data.rows)
    model, stretches = job.linear, [data.slice(*turns.part_rows(part)) for part in range(turns.parts)]
    columns = [CscColumns(one, blocks, model.bias, data.features, model.loss) for one in stretches]
    holders = holders or {}
    parts = {(part, FIRST): BlockWorker(columns[part], strategy.max_delay) for part in range(turns.parts)}
    later = {(turn.part, one) for turn, began in holders.items() for one in began if one != FIRST}
    everything_there = np.arange(rows, dtype=np.uint64)
    for t in count():
        yield table.pull(everything_there)[:, 0]
        for part, began in sorted(one for one in later if one[1].version == t):
            parts[part, began] = worker = BlockWorker(columns[part], strategy.max_delay)
            worker.margins.refresh(table.pull(columns[part].keys)[:, 0])
            for s in range(began.iteration, t):  # these pushes did not count
                worker.turn(s, turns.block(s), _is_recheck(strategy, turns, s))
                worker.answer(s, table)
        total, touched = np.zeros((rows, 2)), np.zeros(rows, np.bool_)
        for (part, began), worker in sorted(parts.items()):
            keys, values = worker.turn(t, turns.block(t), _is_recheck(strategy, turns, t))
            holder_of = holders.get(BlockTurn(t, part), (FIRST,) * len(starts))
            counts = np.array([one == began for one in holder_of])[np.searchsorted(starts, keys, side="right") - 1]
            total[keys[counts]] += values[counts]
            touched[keys[counts]] = True
        changed = np.flatnonzero(touched).astype(np.uint64)
        table.push(changed, total[changed].astype(np.float32))
        for worker in parts.values():
            worker.answer(t, table)


def _is_recheck(strategy: BlockProximal, turns: BlockOrder, t: int) -> bool:
    return t // turns.blocks % strategy.recheck == 0

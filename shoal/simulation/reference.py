"""The run of a job as one worker would make it with nothing in its way: slot after slot, step after step.

A worker's own gradient and a server's own table, in turn, in one thread. In step mode the gradients of a step's slots
are added in slot order in double precision and rounded once, as the design says; written out here once more, so that
equality says something. ``strategies.serial`` is its fast sibling, and knows no steps of several slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.datasets import Dataset
from shoal.data.dense_file import sparse
from shoal.data.local_keys import Localiser
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.nodes.factory import dealing_for
from shoal.simulation.reference_blocks import Hands, weights_by_iteration
from shoal.store.table.table import ServerTable
from shoal.strategies.averaging.settings import AllReduce
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.strategies.parameter_server.algorithm import Async, Sync
from shoal.tables import Dense

Floats = npt.NDArray[np.float32]


def serial(job: Job, dataset: Dataset) -> Floats:
    """All weights when the job's epochs or steps are done."""
    if isinstance(job.strategy, AllReduce):  # one slot of every rank
        job = msgspec.structs.replace(job, strategy=Sync(combine=job.strategy.combine, slots_per_step=job.workers))
    elif not job.strategy.on_servers:  # every slot is a step
        job = msgspec.structs.replace(job, strategy=Async(combine=job.strategy.combine))
    workload = dealing_for(job, dataset).workload
    steps = workload.steps_until(workload.limit)
    return next(islice(weights_by_step(job, dataset), steps, None))


def weights_by_step(
    job: Job, dataset: Dataset, voids: Collection[int] = (), hands: Hands | None = None, starts: Sequence[int] = (0,)
) -> Iterator[Floats]:
    """All weights before the first step, after it, after the next, and so on; void slots take no part.

    ``hands``: who had which part, where parts changed hands; by segments, which begin at ``starts``.
    """
    if isinstance(job.strategy, BlockProximal):
        yield from weights_by_iteration(job, dataset, hands, starts)
        return
    rows = job.linear.keys(dataset.features)
    workload = dealing_for(job, dataset).workload
    table = ServerTable(Dense(rows=rows, update=job.update.update()), [KeyRange(0, rows)])
    gradient = ReferenceGradient(job, dataset)
    everything = np.arange(rows, dtype=np.uint64)
    slot = 0
    while True:
        yield table.pull(everything)[:, 0]
        beyond = workload.slots_until(workload.steps_until(slot) + 1)  # of the step that begins here
        keys, values = gradient.of([one for one in range(slot, beyond) if one not in voids], table)
        table.push(keys, values)
        slot = beyond


class ReferenceGradient:
    """Of the slots of a step, at the weights before it."""

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

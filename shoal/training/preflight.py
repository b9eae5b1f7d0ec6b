"""Checks before a run: do model, rows and settings fit; and the table of its weights."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from shoal import limits
from shoal.data.datasets import Dataset, check_rows
from shoal.errors import Invalid
from shoal.events import counted
from shoal.files import replace_file
from shoal.filters import described
from shoal.job import Job
from shoal.models.learner import Learner
from shoal.models.linear import Linear
from shoal.nodes.factory import make_table, make_test_learner
from shoal.nodes.server_strategy import servers_strategy
from shoal.store.checkpoint.manifest import Manifest
from shoal.store.client.filtering import check_named
from shoal.store.table.update import forgets
from shoal.tables import Dense, Given, Table
from shoal.training.local_checkpoint import LocalCheckpoint
from shoal.user_code import import_modules

START = "start.f32"


def import_own(job: Job) -> None:
    """Import the user's filters and rules, and refuse invalid ones before the run begins."""
    if job.launch.modules:
        import_modules(job.launch.modules)
        wire = "float32" if isinstance(job.model, Linear) else job.model.wire
        check_named(job.filters, job.update.update(), wire, modules=False)


def starting(job: Job, launcher: object = None) -> str:
    """The message about the start; a launcher may have its own (``begins``)."""
    begins = getattr(launcher, "begins", None)
    return f"starting {describe_nodes(job)}" if begins is None else str(begins(job))


def describe_nodes(job: Job) -> str:
    if not job.has_workers:
        return "one process without servers"
    if not job.has_servers:
        return f"{counted(job.workers, 'worker')} without servers"
    return f"{counted(job.servers, 'server')} and {counted(job.workers, 'worker')}"


def check(job: Job, dataset: Dataset) -> Learner:
    """Refuse what would fail during the run; returns the model, ready to train."""
    if isinstance(job.model, Linear):
        check_rows(dataset, job.model.loss, "classes" if job.model.classes else "numbers")
    if job.strategy.mixes and forgets(job.update.update()):
        raise Invalid(
            f"{job.strategy.name} changes weights beside the update rule, and {job.update.rule} makes them of "
            f"what it keeps alone, so that nothing would come of what others learn: take another rule "
            f"(--set update.rule=adagrad)"
        )
    rows = dataset.train.rows
    slots = job.slots(rows).per_pass
    if slots > limits.LEDGER_WINDOW:
        what = f"{slots:,} slots in an epoch, at most {limits.LEDGER_WINDOW:,} are possible"
        raise Invalid(f"{what}: take larger ones (--set data.batch={-(-rows // limits.LEDGER_WINDOW)})")
    if job.has_workers and rows < job.workers:
        what = f"{dataset.name} has {rows} rows to train on, and there are {job.workers} workers"
        raise Invalid(f"{what}: take fewer (--workers {rows}), or more rows")
    learner = make_test_learner(job, dataset.train)
    job.strategy.check_model(learner)
    learner.check(dataset.test)
    return learner


def check_same(learner: Learner, checkpoint: tuple[Path, Manifest] | LocalCheckpoint) -> None:
    """Refuse a checkpoint of another module, even one with as many weights."""
    start = learner.start()
    if start is None:
        return
    if isinstance(checkpoint, LocalCheckpoint):
        known = [checkpoint.facts.about]
    else:
        initial = [table.spec.initial for table in checkpoint[1].tables]
        known = [one.about for one in initial if isinstance(one, Given)]
    for was in known:
        if was != start[1]:
            what = f"the module is not the one of the checkpoint: it has {start[1]}, the checkpoint's has {was}"
            raise Invalid(f"{what}: bring its code back, or begin another run")


def table_of(job: Job, learner: Learner, slots_per_pass: int, folder: Path) -> Table:
    """The table of the weights; those of a module are written to a file for the servers."""
    strategy, update, start = servers_strategy(job), job.update.update(), learner.start()
    if start is None or isinstance(job.model, Linear):
        return make_table(job, learner, slots_per_pass)
    weights, about = start
    contents = np.ascontiguousarray(weights, "<f4").tobytes()
    path = folder.absolute() / START
    replace_file(path, contents)
    apply, max_delay = strategy.consistency(slots_per_pass)
    return Dense(
        rows=learner.keys,
        width=learner.width,
        update=update,
        initial=Given(str(path), zlib.crc32(contents), about),
        apply=apply,
        max_delay=max_delay,
        wire=job.model.wire,
        filters=described(job.filters),
    )

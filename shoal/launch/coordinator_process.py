"""The process of a coordinator or of a group's scheduler, and the plain data it starts with.

It can be killed and restarted: its state is in its journal, and its orders list the processes that
ended while it was away. Events leave as lines on the report pipe. Process ends arrive on a pipe
that only the forkserver writes to, so no message on the wire can fake one.
"""

from __future__ import annotations

import math
import os
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.cluster.move_settings import MoveSettings
from shoal.data.csr_file import fingerprint
from shoal.launch.process_main import Process, ProcessMessage, ProcessOrders, transport_of
from shoal.nodes.checkpointing import CheckpointManager, CheckpointWriter
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.factory import make_checkpoints, make_scheduler
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.nodes.membership_journal import needed
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_node import SchedulerNode
from shoal.security.safety import Safety
from shoal.timing import Timing
from shoal.wire import messages as m
from shoal.wire.effects import Dismiss, ProcessEnd
from shoal.wire.messages.groups import dealer, member_name

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset
    from shoal.job import Job


class RunFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    job: str  # TOML, because JSON has no infinity
    data: str  # the data set's name
    rows: int  # training rows
    test_rows: int
    features: int
    checkpoints: str = ""  # their folder; empty: none are written
    fingerprint: str = ""  # of the training rows; other hosts read their own copy
    elsewhere: bool = False  # workers join by themselves: none is started here

    @classmethod
    def of(cls, job: Job, dataset: Dataset, folder: Path | None = None) -> RunFacts:
        checkpoints = "" if folder is None or math.isinf(job.checkpoint.every) else str(folder / "checkpoints")
        rows, test_rows = dataset.train.rows, dataset.test.rows
        same = fingerprint(dataset.train.folder)
        return cls(job.toml(), dataset.name, rows, test_rows, dataset.features, checkpoints, same)

    def load_job(self) -> Job:
        from shoal.job import Job

        return Job.of(tomllib.loads(self.job))

    def described(self) -> m.Described:
        from shoal.launch.user_modules import code_of

        facts = (self.job, self.data, self.rows, self.test_rows, self.features, self.fingerprint)
        return m.Described(0, *facts, code_of(self.load_job()))

    def scheduler(self) -> Scheduler:
        cores = 0 if self.elsewhere else len(os.sched_getaffinity(0))
        facts = (self.data, self.rows, self.test_rows, self.features)
        return make_scheduler(self.load_job(), *facts, cores=cores, elsewhere=self.elsewhere)

    def manager(self) -> CheckpointManager:
        return make_checkpoints(self.load_job(), Path(self.checkpoints)) if self.checkpoints else CheckpointManager()


class ProcessEnded(ProcessMessage, frozen=True, tag="saw"):
    """Top process to coordinator: "I saw this process end"."""

    name: str
    reason: str
    token: str  # of the incarnation that ended


class RunEnds(ProcessMessage, frozen=True, tag="ends"):
    """Top process to coordinator: "the run is over: tell all members"."""

    why: str


class CoordinatorProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The orders of a coordinator process, or of the process of a worker group's scheduler."""

    journal: str  # path
    copies: int = 1
    run: RunFacts | None = None
    ended: list[ProcessEnded] = []  # before this process started
    moves: MoveSettings | None = None  # for a store without a run
    checkpoints: str = ""  # folder, for a store without a run; empty: none are written
    timing: Timing | None = None  # for a store without a run; None: as in the journal
    group: str = ""  # a run that uses the servers of another cluster: only a scheduler is needed

    def coordinator(self, records: list[bytes]) -> Coordinator:
        run, timing = self.run, self.timing
        if run is None:
            manager = CheckpointManager(CheckpointWriter(Path(self.checkpoints))) if self.checkpoints else None
            times = None if timing is None else timing.intervals()
            return Coordinator("coordinator", self.copies, records, None, manager, self.moves, times)
        job = run.load_job()
        times = job.timing.intervals()
        node = Coordinator("coordinator", self.copies, records, run.scheduler(), run.manager(), job.moves, times)
        node.public_info.about = run.described()
        return node

    def scheduler(self, token: str, address: str, records: list[bytes]) -> SchedulerNode:
        assert self.run is not None
        writer = self.run.manager().writer
        return SchedulerNode(self.group, token, address, self.run.scheduler(), writer, records)


def main(orders: ProcessOrders, process: Process) -> None:
    work = msgspec.convert(orders.work, CoordinatorProcess)
    transport = transport_of(orders, orders.bind, dealer(work.group) if work.group else "")
    journal = JournalFile(Path(work.journal))
    journal.rewrite(needed(journal.records))
    node: Coordinator | SchedulerNode
    if work.group:
        node = work.scheduler(orders.token, transport.address, journal.records)
        node.manager = orders.coordinator
    else:
        node = work.coordinator(journal.records)
        node.check_address = Safety.of_plain(orders.safety).check
    node.process_counts = transport.counters
    loop = Loop(node, transport, journal)
    loop.listener = process.tell
    for one in work.ended:
        loop.tell(ProcessEnd(member_name(one.name, work.group), one.reason, one.token))
    threading.Thread(target=_listen, args=(process.inbox, loop, work.group), name="shoal-inbox", daemon=True).start()
    process.ready(transport.address)
    loop.run()


def _listen(inbox: int, loop: Loop, group: str) -> None:
    """Pass on process ends that the forkserver reports; it names processes within their group."""
    with os.fdopen(inbox, "rb") as lines:
        for line in lines:
            match msgspec.json.decode(line, type=ProcessEnded | RunEnds):
                case ProcessEnded(name, reason, token):
                    loop.tell(ProcessEnd(member_name(name, group), reason, token))
                case RunEnds(why):
                    loop.tell(Dismiss(why))

"""The coordinator's process, and the plain data it starts with.

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
from shoal.data.fingerprint import fingerprint
from shoal.launch.process_main import Process, ProcessMessage, ProcessOrders
from shoal.nodes.checkpointing import RollbackDriver
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.factory import make_saving, make_scheduler
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.nodes.membership_journal import needed
from shoal.nodes.scheduler import Scheduler
from shoal.security.safety import Safety
from shoal.timing import Timing, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Dismiss, ProcessEnd
from shoal.wire.messages.groups import member_name
from shoal.wire.zmq import ZmqTransport

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset
    from shoal.job import Job


class RunFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the coordinator knows of a run."""

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

    def described(self) -> m.Described:
        """The answer to a node that asks what it would join."""
        from shoal.launch.user_modules import code_of

        code = code_of(_job(self.job))
        same = self.fingerprint
        return m.Described(0, self.job, self.data, self.rows, self.test_rows, self.features, same, code)


class ProcessEnded(ProcessMessage, frozen=True, tag="saw"):
    """Top process to coordinator: "I saw this process end"."""

    name: str
    reason: str
    token: str  # of the incarnation that ended


class RunEnds(ProcessMessage, frozen=True, tag="ends"):
    """Top process to coordinator: "the run is over: tell all members"."""

    why: str


class CoordinatorProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The orders of a coordinator process."""

    journal: str  # path
    copies: int = 1
    run: RunFacts | None = None
    ended: list[ProcessEnded] = []  # before this process started
    moves: MoveSettings | None = None  # for a store without a run
    checkpoints: str = ""  # folder, for a store without a run; empty: none are written
    timing: Timing | None = None  # for a store without a run; None: as in the journal


def main(orders: ProcessOrders, process: Process) -> None:
    """Run the coordinator in this process until it ends."""
    work = msgspec.convert(orders.work, CoordinatorProcess)
    safety = Safety.of_plain(orders.safety)
    transport = ZmqTransport(orders.name, orders.bind, safety, orders.advertise)
    journal = JournalFile(Path(work.journal))
    journal.rewrite(needed(journal.records))
    scheduler = None if work.run is None else scheduler_of(work.run)
    saving = saving_for(work.run, work.checkpoints)
    moves, timing = moves_of(work.run) or work.moves, timing_of(work.run, work.timing)
    node = Coordinator(orders.name, work.copies, journal.records, scheduler, saving, moves, timing)
    node.also, node.check_address = transport.counters, safety.check
    if work.run is not None:
        node.doorway.about = work.run.described()
    loop = Loop(node, transport, journal)
    loop.listener = process.tell
    for one in work.ended:
        loop.tell(ProcessEnd(one.name, one.reason, one.token))
    threading.Thread(target=hear, args=(process.inbox, loop), name="shoal-inbox", daemon=True).start()
    process.ready(transport.address)
    loop.run()


def hear(inbox: int, loop: Loop, group: str = "") -> None:
    """Pass on process ends that the forkserver reports; it names processes within their group."""
    with os.fdopen(inbox, "rb") as lines:
        for line in lines:
            match msgspec.json.decode(line, type=ProcessEnded | RunEnds):
                case ProcessEnded(name, reason, token):
                    loop.tell(ProcessEnd(member_name(name, group), reason, token))
                case RunEnds(why):
                    loop.tell(Dismiss(why))


def scheduler_of(facts: RunFacts) -> Scheduler:
    """The scheduler of a run."""
    cores = 0 if facts.elsewhere else len(os.sched_getaffinity(0))
    numbers = (facts.rows, facts.test_rows, facts.features)
    return make_scheduler(_job(facts.job), facts.data, *numbers, cores=cores, elsewhere=facts.elsewhere)


def moves_of(facts: RunFacts | None) -> MoveSettings | None:
    """The run's settings for moving segments; None: the defaults."""
    return None if facts is None else _job(facts.job).moves


def timing_of(facts: RunFacts | None, otherwise: Timing | None) -> TimingSettings | None:
    """The timing of all nodes: the run's, else what the cluster was started with, else None."""
    chosen = otherwise if facts is None else _job(facts.job).timing
    return None if chosen is None else chosen.intervals()


def saving_of(facts: RunFacts) -> RollbackDriver:
    """The checkpoint driver of a run."""
    return make_saving(_job(facts.job), Path(facts.checkpoints)) if facts.checkpoints else RollbackDriver()


def saving_for(run: RunFacts | None, checkpoints: str) -> RollbackDriver | None:
    """The checkpoint driver of a run, or of a store that saves on request."""
    if run is not None:
        return saving_of(run)
    return RollbackDriver(Path(checkpoints)) if checkpoints else None


def _job(text: str) -> Job:
    from shoal.job import Job

    return Job.of(tomllib.loads(text))

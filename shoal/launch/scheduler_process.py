"""The process of a worker group's scheduler, for a run that uses another cluster's servers."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from shoal.launch.coordinator_process import ProcessEnded, RunFacts, hear, saving_of, scheduler_of
from shoal.launch.process_main import Process, ProcessOrders, transport_of
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.nodes.membership_journal import needed
from shoal.nodes.scheduler_node import SchedulerNode
from shoal.wire.effects import ProcessEnd
from shoal.wire.messages.groups import dealer, member_name


class SchedulerProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The orders of a scheduler process."""

    group: str
    journal: str  # path
    run: RunFacts
    ended: list[ProcessEnded] = []  # before this process started


def main(orders: ProcessOrders, process: Process) -> None:
    """Run the scheduler in this process until it ends."""
    work = msgspec.convert(orders.work, SchedulerProcess)
    transport = transport_of(orders, orders.bind, dealer(work.group))
    journal = JournalFile(Path(work.journal))
    journal.rewrite(needed(journal.records))
    scheduler, points = scheduler_of(work.run), saving_of(work.run).points
    node = SchedulerNode(work.group, orders.token, transport.address, scheduler, points, journal.records)
    node.also, node.manager = transport.counters, orders.coordinator
    loop = Loop(node, transport, journal)
    loop.listener = process.tell
    for one in work.ended:
        loop.tell(ProcessEnd(member_name(one.name, work.group), one.reason, one.token))
    threading.Thread(target=hear, args=(process.inbox, loop, work.group), name="shoal-inbox", daemon=True).start()
    process.ready(transport.address)
    loop.run()

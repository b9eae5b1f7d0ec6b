"""The scheduler of a worker group as a process of its own: the twin of ``coordination``, for guests of other servers."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from shoal.launch.coordinator_process import (
    ProcessEnded,
    RunFacts,
    dealing_of,
    hear,
    saving_of,
)
from shoal.launch.process_main import (
    Process,
    ProcessOrders,
    transport_of,
)
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.nodes.membership_journal import needed
from shoal.nodes.scheduler import SchedulerNode
from shoal.wire.effects import ProcessEnd
from shoal.wire.messages.groups import dealer, member_name


class SchedulerProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a scheduler needs to know, as plain data."""

    group: str
    journal: str  # its file
    run: RunFacts
    ended: list[ProcessEnded] = []  # before it was there


def main(orders: ProcessOrders, process: Process) -> None:
    """A scheduler in a process of its own, until that ends."""
    work = msgspec.convert(orders.work, SchedulerProcess)
    transport = transport_of(orders, orders.bind, dealer(work.group))
    journal = JournalFile(Path(work.journal))
    journal.rewrite(needed(journal.records))
    dealing, points = dealing_of(work.run), saving_of(work.run).points
    node = SchedulerNode(work.group, orders.token, transport.address, dealing, points, journal.records)
    node.also, node.manager = transport.counters, orders.coordinator
    loop = Loop(node, transport, journal)
    loop.listener = process.tell
    for one in work.ended:
        loop.tell(ProcessEnd(member_name(one.name, work.group), one.reason, one.token))
    threading.Thread(target=hear, args=(process.inbox, loop, work.group), name="shoal-inbox", daemon=True).start()
    process.ready(transport.address)
    loop.run()

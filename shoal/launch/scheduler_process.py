"""The scheduler of a worker group as a process of its own: the twin of ``coordination``, for guests of other servers."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from shoal.launch.coordinator_process import (
    Facts,
    Saw,
    dealing_of,
    hear,
    saving_of,
)
from shoal.launch.process_main import (
    Orders,
    Process,
    transport_of,
)
from shoal.nodes.journal import Journal
from shoal.nodes.loop import Loop
from shoal.nodes.membership_journal import needed
from shoal.nodes.scheduler import Scheduler
from shoal.wire.effects import Ended
from shoal.wire.messages.groups import dealer, member_name


class Scheduling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a scheduler needs to know, as plain data."""

    group: str
    journal: str  # its file
    run: Facts
    ended: list[Saw] = []  # before it was there


def main(orders: Orders, process: Process) -> None:
    """A scheduler in a process of its own, until that ends."""
    work = msgspec.convert(orders.work, Scheduling)
    transport = transport_of(orders, orders.bind, dealer(work.group))
    journal = Journal(Path(work.journal))
    journal.rewrite(needed(journal.records))
    dealing, points = dealing_of(work.run), saving_of(work.run).points
    node = Scheduler(work.group, orders.token, transport.address, dealing, points, journal.records)
    node.also, node.manager = transport.counters, orders.coordinator
    loop = Loop(node, transport, journal)
    loop.listener = process.tell
    for one in work.ended:
        loop.tell(Ended(member_name(one.name, work.group), one.reason, one.token))
    threading.Thread(target=hear, args=(process.inbox, loop, work.group), name="shoal-inbox", daemon=True).start()
    process.ready(transport.address)
    loop.run()

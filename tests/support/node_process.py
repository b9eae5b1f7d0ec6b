"""Runs a coordinator or a server in a process of its own, which nothing restarts.

    python -m tests.support.node_process '{"kind": "server", "name": "server-0", ...}'

It runs on any host. It prints its address when it listens, and runs until it is killed; a server
also ends when the coordinator releases or refuses it. It prints the counters of its transport.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Literal

import msgspec

from shoal import limits
from shoal.launch.process_main import prepare
from shoal.launch.server_process import ServerProcess
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.nodes.membership_journal import needed
from shoal.security.safety import Safety
from shoal.wire.zmq import ZmqTransport


class Post(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one node process."""

    kind: Literal["coordinator", "server"]
    name: str
    bind: str
    coordinator: str = ""  # its address, for a server
    journal: str = ""
    copies: int = 1
    safety: str = "insecure"  # a Safety as text


def stand(post: Post) -> None:
    """Runs the node until the process ends."""
    prepare(())
    safety = Safety.of_plain(post.safety)
    transport = ZmqTransport(post.name, post.bind, safety)
    if post.kind == "coordinator":
        journal = JournalFile(Path(post.journal) if post.journal else None)
        journal.rewrite(needed(journal.records))
        node = Coordinator(post.name, post.copies, journal.records)
        node.process_counts, node.check_address = transport.counters, safety.check
        run = Loop(node, transport, journal).run
    else:
        transport.connect(limits.COORDINATOR, post.coordinator)
        run = ServerProcess(post.name, secrets.token_hex(8), transport).run
    os.write(1, f"{transport.address}\n".encode())
    run()


if __name__ == "__main__":
    stand(msgspec.json.decode(sys.argv[1], type=Post))

"""Clients of a cluster that runs elsewhere, by the address of its coordinator."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal import limits
from shoal.errors import Unanswered
from shoal.nodes.blocking import KV
from shoal.nodes.worker import Worker
from shoal.timing import DEFAULT
from shoal.wire import Transport
from shoal.wire.address import parsed
from shoal.wire.groups import member_name

if TYPE_CHECKING:
    from shoal.wire.security import Safety


def connect(
    address: str,
    role: Literal["client", "worker", "evaluator"] = "client",
    name: str | None = None,
    *,
    group: str = "",
    keys: str | Path | None = None,
    insecure: bool = False,
    checksums: bool = True,
) -> KV:
    """A client of a cluster that runs elsewhere, by the address of its coordinator.

    As a member of a ``group`` it has tables of its own, under names that are nobody else's. Off this machine, and wherever there is a
    key in the address, this side needs one, too: in the folder ``keys``, that of SHOAL_KEYS, or the usual one. ``insecure`` does without.
    What this side sends in the clear has ``checksums``, unless that is false.
    """
    from shoal.wire.security import Safety

    safety = Safety.chosen(keys, insecure, at=address).checking(checksums)
    return connect_by(safety, address, role, name, group)


def connect_by(safety: Safety, address: str, role: str = "client", name: str | None = None, group: str = "") -> KV:
    """The same, with keys that are known."""
    from shoal.wire.zmq import ZmqTransport

    name = member_name(name, group) if name else safety.named(f"{role}-{secrets.token_hex(4)}", role, group)
    transport = ZmqTransport(name, safety=safety)
    try:
        transport.connect("coordinator", address)
    except BaseException:
        transport.close()
        raise
    try:
        return client_of(name, role, transport, group=group)
    except Unanswered as error:  # nobody knows yet which coordinator is meant
        raise Unanswered(error.what, f"{error.node} at {parsed(address).plain}", error.seconds) from None


def client_of(name: str, role: str, transport: Transport, ended: Callable[[], str] = lambda: "", group: str = "") -> KV:
    """A member, once it is one; ``ended`` is the cluster's own word on whether it still is: empty, or why not."""
    return joined(KV(Worker(name, role, secrets.token_hex(8), secrets.randbits(32), group), transport, ended))


def joined(kv: KV) -> KV:
    """It, as soon as it is a member; closed, if it does not become one."""
    try:
        kv.joined((DEFAULT.silence + DEFAULT.resend_most) / limits.SECOND + 1)
    except BaseException:
        kv.close()
        raise
    return kv

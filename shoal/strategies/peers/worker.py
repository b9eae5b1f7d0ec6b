"""One peer in a process or thread of its own, from its start until it may go.

It may have several lives: a peer that was evicted by the others (it was stopped, or cut off)
rejoins under a new name on the wire, with a copy of their model. In a resumed run all founders
start from the checkpoint.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal import limits
from shoal.data.mapped import whole_set
from shoal.data.slots import Slots
from shoal.errors import ClusterError
from shoal.job import Job
from shoal.launch.process_main import Process, ProcessMessage, ProcessOrders
from shoal.models.learner import learner_of
from shoal.models.linear import Linear
from shoal.nodes.loop import Loop
from shoal.security.safety import Safety
from shoal.strategies.peers.checkpoint import begin_of
from shoal.strategies.peers.compute import Pacer
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.local_model import PeerLocalModel
from shoal.strategies.peers.mesh import Mesh, RunInfo
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.run_log import RunLogState
from shoal.training.local_checkpoint import read
from shoal.wire import Transport
from shoal.wire.effects import Received
from shoal.wire.messages.peers import Peer, StopPeers
from shoal.wire.zmq import ZmqTransport

_CHECK = 0.5  # seconds at most between two checks whether it may go

# Made before this process was forked. A peer is one process, so nobody shares it.
_preforked: dict[tuple[str, str, str], PeerParts] = {}

Open = Callable[[str], Transport]  # a transport for a life of this name


class PeerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a peer needs to know, as plain data."""

    job: str  # as TOML
    data: str  # the folder of the packed set
    number: int = 0
    life: str = ""
    through: list[Peer] = []  # for a newcomer: peers that it may ask
    kept: str = ""  # the checkpoint to continue from


class Founders(ProcessMessage, frozen=True, tag="founders"):
    """Top process to a peer: "these begin"."""

    peers: list[Peer]


def life_of(name: str) -> str:
    """A new one for every life."""
    return f"{name}.{secrets.token_hex(4)}"


class PeerParts:
    """What a peer learns and evaluates with."""

    def __init__(self, spec: PeerSpec) -> None:
        self.spec = spec
        self.job = Job.of(tomllib.loads(spec.job))
        self.dataset = whole_set(Path(spec.data), self.job.data, self.job.seed)
        train = self.dataset.train
        self.learner = learner_of(self.job.model, train, self.job.seed, spec.number)
        self.slots = Slots(train.rows, self.job.data.batch, self.job.seed)
        self.model = PeerLocalModel(self.job, train, self.learner, self.slots)
        self.begin: RunLogState | None = None
        if spec.kept:
            kept = read(Path(spec.kept))
            self.begin = begin_of(kept, self.slots.per_pass)
            self.model.restore(kept.slab)

    def node(self, me: Peer, founders: list[Peer], through: list[tuple[str, str]], transport: Transport) -> PeerNode:
        """One life: of a founder, or of a newcomer that joins ``through`` others."""
        job, dataset, learner = self.job, self.dataset, self.learner
        about = RunInfo(self.spec.job, dataset.train.rows, dataset.features)
        timing = job.timing.intervals()
        if through:
            mesh = Mesh.joining(me, through, about=about, timing=timing)
        else:
            mesh = Mesh(me, founders, about=about, timing=timing)
        pace = job.emulate.pace(self.spec.number, job.seed)
        return PeerNode(
            mesh,
            self.model,
            PeerFacts.of(job, dataset.train.rows),
            lambda weights: learner.judge(dataset.test, weights),
            begin=self.begin,
            pacer=None if pace is None else Pacer(pace, time.monotonic_ns, threading.Event().wait),
            link=job.emulate.link,
            traffic=lambda: transport.traffic,
            keys=self.model.size,
        )


class PeerIncarnation:
    """One life of a peer: it has an address, and has not begun yet."""

    def __init__(self, parts: PeerParts, open_: Open, number: int | None = None) -> None:
        """``number``: its rank among those who may lead; by default that of its name."""
        name = f"worker-{parts.spec.number}"
        life = parts.spec.life or life_of(name)
        self.parts, self._open = parts, open_
        self.transport = open_(life)
        self.me = Peer(life, name, parts.spec.number if number is None else number, self.transport.address)

    def next(self, number: int) -> PeerIncarnation:
        """The next life, under a new name on the wire; of those who may lead it is the last."""
        self.parts.spec, self.parts.begin = msgspec.structs.replace(self.parts.spec, life=""), None
        return PeerIncarnation(self.parts, self._open, number)


def live(
    life: PeerIncarnation,
    founders: list[Peer],
    through: list[tuple[str, str]],
    closing: threading.Event,
    asked: threading.Event | None = None,
    look: Callable[[PeerNode], bool] = lambda node: False,
) -> PeerNode:
    """Run a peer until it may go, or ``closing`` is set. With ``asked`` set it leaves in order.

    ``look`` gets the peer now and then, and says whether it may go when the run has ended. By
    default it may not: the process that watches copies the model first, and sets ``closing``.
    """
    known = {peer.life: peer for peer in founders}
    while True:
        node = life.parts.node(life.me, founders, through, life.transport)
        loop = Loop(node, life.transport)
        try:
            _run_loop(loop, node, closing, asked, look)
        finally:
            loop.close()
        known.update({life: one.peer for life, one in node.mesh.members.items()})
        others = [peer for peer in known.values() if peer.life != life.me.life]
        if not node.evicted or closing.is_set() or not others:
            return node
        through = node.mesh.contacts or [(peer.life, peer.address) for peer in others]
        life = life.next(1 + max(life.me.number, *(peer.number for peer in others)))


def _run_loop(
    loop: Loop,
    node: PeerNode,
    closing: threading.Event,
    asked: threading.Event | None,
    look: Callable[[PeerNode], bool],
) -> None:
    within = node.mesh.timing.join_within / limits.SECOND
    leaving, deadline = False, time.monotonic() + within
    while not closing.is_set():
        loop.turn(_CHECK)
        wants_to_leave = asked is not None and asked.is_set()
        if not node.mesh.has_model:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"no peer has given it the model in {within:g} s: the run has ended, or cannot be reached; "
                    f"check whether it goes on, and join again"
                )
            if wants_to_leave:
                return  # nobody counts on it yet
        if wants_to_leave and not leaving:
            leaving = True
            loop.tell(Received("home", StopPeers(0, "asked to leave", leave=True)))
        may_go = look(node)
        if node.evicted or (node.may_go and (may_go or not node.ended)):
            return


def sockets(parts: PeerParts, folder: str) -> Open:
    """Transports that other processes reach: in this folder or, without one, at a local port."""
    safety = Safety.local().checking(parts.job.launch.checksums)
    return lambda life: ZmqTransport(life, f"ipc://{folder}/{life}" if folder else "tcp://127.0.0.1:*", safety)


def prefork(work: dict[str, object]) -> None:
    """Make the parts of a peer once, in the process that peers are forked from.

    Not with a module: PyTorch has threads, so each peer makes its own.
    """
    spec = msgspec.convert(work, PeerSpec)
    if isinstance(Job.of(tomllib.loads(spec.job)).model, Linear):
        _preforked[spec.job, spec.data, spec.kept] = PeerParts(spec)


def main(orders: ProcessOrders, process: Process) -> None:
    """A peer in a process of its own. SIGTERM asks it to leave in order."""
    asked, never = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    spec = msgspec.convert(orders.work, PeerSpec)
    parts = _preforked.pop((spec.job, spec.data, spec.kept), None) or PeerParts(spec)
    parts.spec = spec
    parts.learner.settle(alone=True)
    life = PeerIncarnation(parts, sockets(parts, "" if orders.bind.startswith("tcp:") else orders.folder))
    process.ready(life.me.address)
    founders: list[Peer] = []
    with os.fdopen(process.inbox, "rb") as lines:
        if not spec.through:
            if not (line := lines.readline()):
                return  # the top process has ended
            founders = msgspec.json.decode(line, type=Founders).peers
    node = live(life, founders, [(one.life, one.address) for one in spec.through], never, asked)
    if node.why:
        raise ClusterError(node.why)

"""One peer, in a process or a thread of its own, from its first word until it may go.

It may have several lives: one that was held for gone by the others (it was stopped, or cut off) comes back under a new name on the wire,
with what they know and none of what it had not told. Where a run is kept on disk all founders begin with what was kept.
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
from shoal.data.datasets import Dataset
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

_LOOK = 0.5  # seconds at most between two looks at whether it may go

_made: dict[
    tuple[str, str, str], PeerParts
] = {}  # before this process was forked; a peer is one process, so nobody shares it

Open = Callable[[str], Transport]  # for a life of this name


class PeerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a peer needs to know, as plain data."""

    job: str  # as TOML
    data: str  # the folder of the packed set
    number: int = 0
    life: str = ""
    through: list[Peer] = []  # those who are there, for a newcomer: any one of them will do
    kept: str = ""  # what to go on from


class Founders(ProcessMessage, frozen=True, tag="founders"):
    """Top process to a peer: "these begin"."""

    peers: list[Peer]


def work_of(job: Job, dataset: Dataset, kept: Path | None) -> PeerSpec:
    return PeerSpec(job.toml(), str(dataset.folder), kept=str(kept or ""))


def life_of(name: str) -> str:
    """Another one for every life."""
    return f"{name}.{secrets.token_hex(4)}"


class PeerParts:
    """What a peer learns and judges with."""

    def __init__(self, work: PeerSpec) -> None:
        self.work = work
        self.job = Job.of(tomllib.loads(work.job))
        self.dataset = whole_set(Path(work.data), self.job.data, self.job.seed)
        train = self.dataset.train
        self.learner = learner_of(self.job.model, train, self.job.seed, work.number)
        self.slots = Slots(train.rows, self.job.data.batch, self.job.seed)
        self.core = PeerLocalModel(self.job, train, self.learner, self.slots)
        self.begin: RunLogState | None = None
        if work.kept:
            kept = read(Path(work.kept))
            self.begin = begin_of(kept, self.slots.per_pass)
            self.core.restore(kept.slab)

    def node(self, mesh: Mesh, transport: Transport) -> PeerNode:
        """What learns, deals and judges."""
        test, learner, emulate = self.dataset.test, self.learner, self.job.emulate
        pace = emulate.pace(self.work.number, self.job.seed)
        return PeerNode(
            mesh,
            self.core,
            PeerFacts.of(self.job, self.dataset.train.rows),
            lambda weights: learner.judge(test, weights),
            begin=self.begin,
            pacer=None if pace is None else Pacer(pace, time.monotonic_ns, threading.Event().wait),
            link=emulate.link,
            traffic=lambda: transport.traffic,
            keys=self.core.size,
        )


class PeerIncarnation:
    """A peer that has an address, and has not begun yet. ``number``: its place among those who may lead; as a rule that of its name."""

    def __init__(self, made: PeerParts, open_: Open, number: int | None = None) -> None:
        name = f"worker-{made.work.number}"
        life = made.work.life or life_of(name)
        self.made, self.open = made, open_
        self.transport = open_(life)
        self.me = Peer(life, name, made.work.number if number is None else number, self.transport.address)

    def again(self, number: int) -> PeerIncarnation:
        """The same one, under a new name on the wire; of those who may lead it comes last."""
        self.made.work, self.made.begin = msgspec.structs.replace(self.made.work, life=""), None
        return PeerIncarnation(self.made, self.open, number)


def live(
    life: PeerIncarnation,
    founders: list[Peer],
    through: list[tuple[str, str]],
    closing: threading.Event,
    asked: threading.Event | None = None,
    look: Callable[[PeerNode], bool] = lambda node: False,
) -> PeerNode:
    """Until it may go, or ``closing`` is set. ``asked``: it is to leave, in order. ``look`` is shown how it stands, and says whether it
    may go when the run has ended: as a rule whoever watches copies the model first, and sets ``closing``."""
    known = {peer.life: peer for peer in founders}
    while True:
        made = life.made
        about = RunInfo(made.work.job, made.dataset.train.rows, made.dataset.features)
        timing = made.job.timing.intervals()
        mesh = (
            Mesh.joining(life.me, through, about=about, timing=timing)
            if through
            else Mesh(life.me, founders, about=about, timing=timing)
        )
        node = made.node(mesh, life.transport)
        loop = Loop(node, life.transport)
        try:
            _turn(loop, node, closing, asked, look)
        finally:
            loop.close()
        known.update({life: one.peer for life, one in mesh.members.items()})
        others = [peer for peer in known.values() if peer.life != life.me.life]
        if not node.evicted or closing.is_set() or not others:
            return node
        through = mesh.contacts or [(peer.life, peer.address) for peer in others]
        life = life.again(1 + max(life.me.number, *(peer.number for peer in others)))


def _turn(
    loop: Loop,
    node: PeerNode,
    closing: threading.Event,
    asked: threading.Event | None,
    look: Callable[[PeerNode], bool],
) -> None:
    within = node.mesh.timing.join_within / limits.SECOND
    told, deadline = False, time.monotonic() + within
    while not closing.is_set():
        loop.turn(_LOOK)
        if not node.mesh.has_model and time.monotonic() > deadline:
            raise ClusterError(
                f"no peer has given it the model in {within:g} s: the run has ended, or cannot be reached; "
                f"look whether it goes on, and join again"
            )
        if not node.mesh.has_model and asked is not None and asked.is_set():
            return  # nobody counts on it yet
        if asked is not None and asked.is_set() and not told:
            told = True
            loop.tell(Received("home", StopPeers(0, "asked to leave", leave=True)))
        may = look(node)
        if node.evicted or (node.may_go and (may or not node.ended)):
            return


def sockets(made: PeerParts, folder: str) -> Open:
    """Lives that are called by other processes: in this folder, or, without one, by a port of this machine."""
    safety = Safety.local().checking(made.job.launch.checksums)
    return lambda life: ZmqTransport(life, f"ipc://{folder}/{life}" if folder else "tcp://127.0.0.1:*", safety)


def prefork(work: dict[str, object]) -> None:
    """Make what peers learn with, in the process that they are forked from: it takes a while, and they share the memory of what none of
    them changes. A module is made by each for itself: PyTorch has threads."""
    ordered = msgspec.convert(work, PeerSpec)
    if isinstance(Job.of(tomllib.loads(ordered.job)).model, Linear):
        _made[ordered.job, ordered.data, ordered.kept] = PeerParts(ordered)


def main(orders: ProcessOrders, process: Process) -> None:
    """A peer in a process of its own. SIGTERM asks it to finish what it is at, say what it learned, and go."""
    asked, never = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    work = msgspec.convert(orders.work, PeerSpec)
    made = _made.pop((work.job, work.data, work.kept), None) or PeerParts(work)
    made.work = work
    made.learner.settle(alone=True)
    life = PeerIncarnation(made, sockets(made, "" if orders.bind.startswith("tcp:") else orders.folder))
    process.ready(life.me.address)
    with os.fdopen(process.inbox, "rb") as lines:
        line = b"" if work.through else lines.readline()
    if line:
        founders = msgspec.json.decode(line, type=Founders).peers
    elif not work.through:
        return  # nobody is left who would say
    else:
        founders = []
    through = [(one.life, one.address) for one in work.through]
    node = live(life, founders, through, never, asked)
    if node.why:
        raise ClusterError(node.why)

"""Peers as threads or processes: one peer from start to end, and all that a run starts.

A peer may have several lives: one that was evicted by the others (it was stopped, or cut off)
rejoins under a new name on the wire, with a copy of their model.

When all peers of a run have started, each gets the list of all (``Founders``) and they begin. One
more joins by asking any peer that is here. However the process that started them ends, its peers
end with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from shoal import limits
from shoal.data.datasets import Dataset, whole_set
from shoal.data.slots import Slots
from shoal.errors import ClusterError, StartFailed
from shoal.events import counted
from shoal.job import Job
from shoal.launch.process_main import Process, ProcessMessage, ProcessOrders
from shoal.launch.serverless_pool import PoolWorkerSpec, WorkerPool, name_of
from shoal.models.learner import learner_of
from shoal.models.linear import Linear
from shoal.nodes.loop import Loop
from shoal.security.safety import Safety
from shoal.strategies.peers.compute import Pacer
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.local_model import PeerLocalModel
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.run_log import RunLog, begin_of
from shoal.training.local_checkpoint import LocalCheckpoint
from shoal.wire import Transport
from shoal.wire.effects import Received
from shoal.wire.memory import Hub
from shoal.wire.messages.peers import Peer, StopPeers
from shoal.wire.zmq import ZmqTransport

MAIN = "shoal.strategies.peers.worker"
_CHECK = 0.5  # seconds at most between two checks whether it may go

# Made before the fork. A peer is one process, so it is not shared.
_preforked: dict[tuple[str, str, str], LocalPeer] = {}

Open = Callable[[str], Transport]  # a transport for a life of this name


class PeerSpec(PoolWorkerSpec, frozen=True, kw_only=True):
    """What a peer needs to know; ``rows`` is the folder of the whole set, with its test rows."""

    number: int = 0
    life: str = ""
    through: list[Peer] = []  # for a newcomer: peers that it may ask


class Founders(ProcessMessage, frozen=True, tag="founders"):
    """Top process to a peer: "these begin"."""

    peers: list[Peer]


def life_of(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}"


class LocalPeer:
    """A peer of this process: what it learns and evaluates with, and its lives one by one."""

    def __init__(self, spec: PeerSpec) -> None:
        self.spec, self.job = spec, spec.load_job()
        self.dataset = whole_set(Path(spec.rows), self.job.data, self.job.seed)
        train = self.dataset.train
        self.learner = learner_of(self.job.model, train, self.job.seed, spec.number)
        slots = Slots(train.rows, self.job.data.batch, self.job.seed)
        self.model = PeerLocalModel(self.job, train, self.learner, slots)
        self._resume_log: RunLog | None = None
        if (checkpoint := spec.load_checkpoint()) is not None:
            self._resume_log = begin_of(checkpoint, slots.per_pass)
            self.model.restore(checkpoint.slab)

    def open(self, open_: Open | None = None, folder: str = "") -> Peer:
        """Begin to listen; by default where processes reach it: in a folder, or at a local port."""
        safety = Safety.local().checking(self.job.launch.checksums)
        at = f"ipc://{folder}/" if folder else ""
        self._open = open_ or (lambda life: ZmqTransport(life, at + life if at else "tcp://127.0.0.1:*", safety))
        self._open_life(self.spec.life or life_of(name_of(self.spec.number)), self.spec.number)
        return self.me

    def _open_life(self, life: str, number: int) -> None:
        self._transport = transport = self._open(life)
        self.me = Peer(life, name_of(self.spec.number), number, transport.address)

    def live(
        self,
        founders: list[Peer],
        through: list[Peer],
        closing: threading.Event,
        drain: threading.Event,
        on_turn: Callable[[PeerNode], bool] = lambda node: False,
    ) -> PeerNode:
        """Run until it may go, or ``closing`` is set. With ``drain`` set it leaves in order.

        ``on_turn`` gets the peer after each turn, and says whether it may go when the run has
        ended; by default it may not: the watching process copies the model and sets ``closing``.
        """
        while True:
            node = self._node(founders, through)
            with contextlib.closing(Loop(node, self._transport)) as loop:
                _run_loop(loop, node, closing, drain, on_turn)
            through = node.mesh.contacts
            if not node.evicted or closing.is_set() or not through:
                return node
            self._resume_log = None
            # Of those who may lead, a new life is the last.
            self._open_life(life_of(self.me.name), 1 + max(self.me.number, *(peer.number for peer in through)))

    def _node(self, founders: list[Peer], through: list[Peer]) -> PeerNode:
        job, dataset, learner, transport = self.job, self.dataset, self.learner, self._transport
        about = (self.spec.job, dataset.train.rows, dataset.features)
        contacts = [(peer.life, peer.address) for peer in through] or None
        pace = job.emulate.pace(self.spec.number, job.seed)
        return PeerNode(
            Mesh(self.me, founders, through=contacts, about=about, timing=job.timing.intervals()),
            self.model,
            PeerFacts.of(job, dataset.train.rows),
            lambda weights: learner.evaluate(dataset.test, weights),
            begin=self._resume_log,
            pacer=None if pace is None else Pacer(pace, time.monotonic_ns, threading.Event().wait),
            link=job.emulate.link,
            traffic=lambda: transport.traffic,
            keys=self.model.size,
        )


def _run_loop(
    loop: Loop, node: PeerNode, closing: threading.Event, drain: threading.Event, on_turn: Callable[[PeerNode], bool]
) -> None:
    within = node.mesh.timing.join_within / limits.SECOND
    leaving, deadline = False, time.monotonic() + within
    while not closing.is_set():
        loop.turn(_CHECK)
        if not node.mesh.has_model and time.monotonic() > deadline:
            raise ClusterError(
                f"no peer has given it the model in {within:g} s: the run has ended, or cannot be reached; "
                f"check whether it goes on, and join again"
            )
        if not node.mesh.has_model and drain.is_set():
            return  # no other peer depends on it yet
        if drain.is_set() and not leaving:
            leaving = True
            loop.tell(Received("home", StopPeers(0, "asked to leave", leave=True)))
        may_go = on_turn(node)
        if node.evicted or (node.may_go and (may_go or not node.ended)):
            return


def prefork(work: dict[str, object]) -> None:
    """Make a peer once, before the fork; not with a module, since PyTorch has threads."""
    spec = msgspec.convert(work, PeerSpec)
    if isinstance(spec.load_job().model, Linear):
        _preforked[spec.job, spec.rows, spec.kept] = LocalPeer(spec)


def main(orders: ProcessOrders, process: Process) -> None:
    """A peer in a process of its own. SIGTERM asks it to leave in order."""
    drain, never = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: drain.set())
    spec = msgspec.convert(orders.work, PeerSpec)
    peer = _preforked.pop((spec.job, spec.rows, spec.kept), None) or LocalPeer(spec)
    peer.spec = spec
    peer.learner.settle(alone=True)
    process.ready(peer.open(folder="" if orders.bind.startswith("tcp:") else orders.folder).address)
    founders: list[Peer] = []
    with os.fdopen(process.inbox, "rb") as lines:
        if not spec.through:
            if not (line := lines.readline()):
                return  # the top process has ended
            founders = msgspec.json.decode(line, type=Founders).peers
    node = peer.live(founders, spec.through, never, drain)
    if node.why:
        raise ClusterError(node.why)


class PeerWorkers:
    def __init__(
        self, job: Job, dataset: Dataset, resume: LocalCheckpoint | None, ended: Callable[[str, str], None]
    ) -> None:
        """``ended`` gets the name of a peer and why it ended, on another thread."""
        self._job, self._on_ended = job, ended
        self._spec = PeerSpec(job=job.toml(), rows=str(dataset.folder), kept="" if resume is None else str(resume.path))
        self.pool = WorkerPool(job, MAIN, self._ended, sockets=True)
        self.peers: dict[str, Peer] = {}  # by name
        self.failed: dict[str, str] = {}  # by name: why it did not start
        self._lives: dict[str, str] = {}  # by name
        self._ended_names: set[str] = set()  # names of those that have ended
        self._hub, self._closing = Hub(), threading.Event()  # of threads
        self._why: dict[str, str] = {}  # why a thread left

    @property
    def running(self) -> list[str]:
        """The names of those that have not ended."""
        return [name for name in list(self.peers) if name not in self._ended_names]

    def start(self, count: int) -> list[Peer]:
        """Start so many, which know of each other; one that does not start is left out."""
        if not self.pool.has_processes:
            started = [self._local(number) for number in range(count)]
            founders = [peer.me for peer in started]
            for peer in started:
                self._run_thread(peer, founders, [])
            return founders
        self.pool.start("peers")
        for number in range(count):
            self._fork(number)
        for number in range(count):
            try:
                self._wait(number)
            except StartFailed as error:
                self.failed[name_of(number)] = str(error)
                if not self.pool.pids:
                    raise
        founders = list(self.peers.values())
        for name in self.peers:
            self.pool.pass_on(name, Founders(founders))
        return founders

    def add(self, number: int, through: list[Peer]) -> Peer:
        if self.pool.has_processes:
            self._fork(number, through)
            return self._wait(number)
        peer = self._local(number)
        self._run_thread(peer, [], through)
        return peer.me

    def open_observer(self) -> Transport:
        name = f"home-{secrets.token_hex(4)}"
        return ZmqTransport(name) if self.pool.has_processes else self._hub.open(name)

    def close(self) -> None:
        self._closing.set()
        self.pool.close()
        if not self.pool.has_processes and (late := self.running):
            print(f"shoal: {counted(len(late), 'thread')} did not end: {', '.join(late)}", file=sys.stderr)

    def _fork(self, number: int, through: Sequence[Peer] = ()) -> None:
        name = name_of(number)
        self._lives[name] = life = life_of(name)
        spec = msgspec.structs.replace(self._spec, number=number, life=life, through=list(through))
        tcp = self._job.launch.transport == "tcp"
        self.pool.fork(name, spec, bind="tcp://127.0.0.1:*" if tcp else f"ipc://{self.pool.folder}/{life}", inbox=True)

    def _wait(self, number: int) -> Peer:
        name = name_of(number)
        (address,) = self.pool.wait_until_running([name])
        self.peers[name] = Peer(self._lives[name], name, number, address)
        return self.peers[name]

    def _local(self, number: int) -> LocalPeer:
        peer = LocalPeer(msgspec.structs.replace(self._spec, number=number))
        self.peers[name_of(number)] = peer.open(self._hub.open)
        return peer

    def _run_thread(self, peer: LocalPeer, founders: list[Peer], through: list[Peer]) -> None:
        def run() -> None:
            self._why[name] = peer.live(founders, through, self._closing, threading.Event()).why

        name = peer.me.name
        self.pool.run_thread(name, run)

    def _ended(self, name: str, why: str) -> None:
        self._ended_names.add(name)
        if not self._closing.is_set():
            self._on_ended(name, why or self._why.get(name, ""))

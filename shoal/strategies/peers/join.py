"""Joins a run of peers from another terminal, asks a peer to leave, or shows the run.

Only an address is needed: the peer that answers there says what the run is about and who is here. A
newcomer loads the same data by itself, and is refused if they differ. It belongs to nobody: if all
others are gone it goes on, leads, and ends the run as usual.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shoal.data.datasets import load
from shoal.errors import ClusterError, Invalid, Unanswered
from shoal.events import Elected, Evaluated, Gone, RunEvent, Stopped, counted
from shoal.inspect.status import address_of, is_of_peers, look_at
from shoal.job import Job
from shoal.launch.remote_node import socket_folder
from shoal.security.address import check_address
from shoal.strategies.peers.observer import LEFT, PeerEvents, PeerObserver
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.worker import LocalPeer, PeerSpec
from shoal.training.preflight import import_own
from shoal.training.tracker import Tracker
from shoal.wire.messages.peers import Peer, PeerGreeting, PeerStatus, Watch
from shoal.wire.zmq import ZmqTransport

_CONTACT = "door"  # the peer that answers at the address, until we know its name
_ANSWER = 5.0  # seconds
_LEAVE_WITHIN = 60.0  # seconds for a peer to finish what it is computing
_SAY = 1.0  # seconds between two lines while it waits
_STAY = 2.0  # seconds after the end of the run, in which observers copy the model

Say = Callable[[str], None]


@dataclass(slots=True)
class JoinedRun:
    name: str
    slots: int  # that it learned
    why: str  # the run ended; empty: it left before
    failed: bool
    model: Any = field(repr=False, default=None)  # if it was there to the end
    judged: dict[str, Any] = field(default_factory=dict)  # the last evaluation
    done: int = 0  # slots of the run
    job: Job | None = None
    events: list[RunEvent] = field(default_factory=list)  # what it has heard of the run


@contextlib.contextmanager
def at(where: str, newcomer: str = "") -> Iterator[tuple[PeerObserver, PeerGreeting, str]]:
    """An observer of the run there, the greeting of a peer for this token, and the address."""
    if "://" not in where and (Path(where) / "job.toml").exists() and not is_of_peers(where):
        raise Invalid(f"{where} is not a peer-to-peer run: only those (--strategy peer-to-peer) can be joined and left")
    address = address_of(where)
    check_address(address)
    with contextlib.closing(PeerObserver(ZmqTransport(f"home-{secrets.token_hex(4)}"))) as observer:
        observer.meet([Peer(_CONTACT, _CONTACT, 0, address)])
        try:
            greeting = observer.greet(_CONTACT, _ANSWER, newcomer)
        except Unanswered:
            raise ClusterError(_why_silent(where, address)) from None
        observer.meet(greeting.peers)
        yield observer, greeting, address


def _why_silent(where: str, address: str) -> str:
    with contextlib.suppress(Unanswered), contextlib.closing(look_at(address)) as coordinator:
        coordinator.look()
        return (
            f"at {address} is a coordinator, whose workers are started with the run: only runs of strategy "
            f"peer-to-peer are joined by an address"
        )
    more = "" if where == address else f"; if the run was killed, go on with it: shoal train --resume {where}"
    return (
        f"nobody answers at {address}: the run has ended, or that peer has; try the address of another "
        f"(a peer that joined has printed its own, and may go on){more}"
    )


def join(where: str, say: Say, closing: threading.Event, drain: threading.Event) -> JoinedRun:
    """Take part until the run ends; ``drain``: leave in order, ``closing``: leave at once."""
    with at(where, secrets.token_hex(8)) as (_, greeting, address):
        pass
    job = Job.of(tomllib.loads(greeting.job))
    import_own(job)
    dataset = load(job.data, job.seed, progress=say)
    mine, theirs = (dataset.train.rows, dataset.features), (greeting.rows, greeting.features)
    if mine != theirs:
        raise Invalid(
            f"the data differ: {mine[0]:,} rows of {mine[1]:,} features here, "
            f"{theirs[0]:,} of {theirs[1]:,} there: bring the same files to {job.data.source}"
        )
    say(f"{counted(len(greeting.peers), 'peer')} of {address}: {job.model.told}, {dataset.name}")
    peer = LocalPeer(PeerSpec(job=greeting.job, rows=str(dataset.folder), number=greeting.number))
    with socket_folder(address) as folder:
        me = peer.open(folder=folder)
        say(f"this is {me.name}, at {me.address}: shoal status, join and leave find the run there, too")
        try:
            node = peer.live([], greeting.peers, closing, drain, _Narrator(peer, say).on_turn)
        finally:
            peer.learner.release()
    if node.why:
        raise ClusterError(f"{me.name} could not go on, and has told the others: {node.why}")
    return _result(node, peer)


def status(where: str) -> PeerStatus:
    with at(where) as (observer, greeting, _):
        observer.forget(_CONTACT)  # we know it by its name now
        return observer.status(0, _ANSWER if greeting.peers else 0.0)


def leave(where: str, name: str, say: Say) -> None:
    """Ask a peer to finish, publish what it learned and leave; returns when it has."""
    with at(where) as (observer, greeting, _):
        found = [peer for peer in greeting.peers if name in (peer.name, peer.life)]
        if not found:
            names = ", ".join(peer.name for peer in greeting.peers)
            raise Invalid(f"no peer {name!r} in this run: there are {names}")
        life, deadline = found[-1].life, time.monotonic() + _LEAVE_WITHIN
        say(f"{found[-1].name} finishes what it is computing")
        while time.monotonic() < deadline:
            observer.stop(life, "asked to leave", leave=True)
            with contextlib.suppress(Unanswered):
                now = observer.status(1 << 40, 1.0)
                observer.meet(now.peers)
                if now.ended or life in now.gone or all(peer.life != life for peer in now.peers):
                    return
            time.sleep(0.2)
        raise ClusterError(
            f"{name} has not left in {_LEAVE_WITHIN:g} s: it may be stopped; the others go on without it"
        )


class _Narrator:
    """Says how the run goes, and when a peer may go after the end of the run."""

    def __init__(self, peer: LocalPeer, say: Say) -> None:
        self._say, self._next, self._ended = say, 0.0, 0.0
        self._tracker = Tracker(peer.job, peer.dataset, peer.learner, self._on_event)
        self._events = PeerEvents(self._tracker, self._on_event)
        self._me = ""

    def on_turn(self, node: PeerNode) -> bool:
        now = time.monotonic()
        if node.ended:
            self._ended = self._ended or now
            return now - self._ended > _STAY
        if node.mesh.has_model:
            self._me = node.mesh.me.name
            self._events.update(node.status(time.monotonic_ns(), Watch(0, self._events.evaluations)))
        elif now >= self._next:
            self._next = now + _SAY
            self._say("getting the model")
        return False

    def _on_event(self, event: RunEvent) -> None:
        match event:
            case Gone():
                left = f", {counted(len(self._events.living), 'worker')} left" if event.why != LEFT else ""
                self._say(f"{event.name} is gone: {event.why}{left}")
            case Elected():
                self._say(f"{event.name} leads" + (": that is this one" if event.name == self._me else ""))
            case Evaluated():
                loss = f"{event.test_loss:.4f}" if math.isfinite(event.test_loss) else "not finite"
                what = f"epoch {event.passes:.2f}, test loss {loss}, {counted(event.workers, 'worker')}"
                self._say(f"evaluation {event.number}: {what}")


def _result(node: PeerNode, peer: LocalPeer) -> JoinedRun:
    log, name = node.log, peer.me.name
    evaluation = {} if log.last is None else msgspec.structs.asdict(log.last)
    # In all its lives: it may have been evicted, and have rejoined.
    learned = sum(slots for life, (slots, _) in log.rates.items() if life.startswith(f"{name}."))
    if log.ended is None:
        return JoinedRun(name, learned, "", False, None, evaluation, log.done)
    model = peer.learner.keep(peer.model.weights())
    found: list[RunEvent] = []
    tracker = Tracker(peer.job, peer.dataset, peer.learner, found.append)
    tracker.begin(peer.job.workers)
    PeerEvents(tracker, found.append).update(node.status(time.monotonic_ns(), Watch(0)))
    found.append(Stopped(seconds=tracker.seconds, why=log.ended.why))
    return JoinedRun(name, learned, log.ended.why, log.ended.failed, model, evaluation, log.done, peer.job, found)

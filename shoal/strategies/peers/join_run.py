"""One more peer for a run that is under way, from any terminal of this machine; and asking one to leave.

Nothing but an address is needed: whoever answers there says what the run is about and who is here. The newcomer loads the same data by
itself, and is refused if they differ. It belongs to nobody: if all others are gone it goes on, leads, and ends as the run would.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
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
from shoal.events import RunEvent, Stopped, counted
from shoal.inspect.status import address_of, is_of_peers, look_at
from shoal.job import Job
from shoal.launch.processes import short_folder
from shoal.security.address import check_address
from shoal.strategies.peers.events import PeerEvents
from shoal.strategies.peers.observer import PeerObserver
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.worker import (
    PeerIncarnation,
    PeerParts,
    PeerSpec,
    live,
    sockets,
)
from shoal.training.preflight import import_own
from shoal.wire.messages.peers import (
    Peer,
    PeerGreeting,
    PeerStatus,
    Watch,
)
from shoal.wire.zmq import ZmqTransport

_DOOR = "door"  # what we call whoever answers at the address, until we know its name
_ANSWER = 5.0  # seconds
_LEAVE_WITHIN = 60.0  # seconds for a peer to finish what it is at
_TELL = 1.0  # seconds between two lines about how it goes
_STAY = 2.0  # seconds after the end of the run: whoever watches it copies the model

Say = Callable[[str], None]


@dataclass(slots=True)
class JoinedRun:
    """What a peer that joined has to say at the end."""

    name: str
    slots: int  # that it learned
    why: str  # the run ended; empty: it left before
    failed: bool
    model: Any = field(repr=False, default=None)  # if it was there to the end
    judged: dict[str, Any] = field(default_factory=dict)  # the last evaluation
    done: int = 0  # slots of the run
    job: Job | None = None
    events: list[RunEvent] = field(
        default_factory=list
    )  # what it has heard of the run, as whoever began it would tell it


@contextlib.contextmanager
def at(where: str, comes: str = "") -> Iterator[tuple[PeerObserver, PeerGreeting, str]]:
    """Whoever answers there: how to ask, what it says of the run, and the address. ``comes``: for one that wants to take part."""
    if "://" not in where and (Path(where) / "job.toml").exists() and not is_of_peers(where):
        raise Invalid(f"{where} is no run of peers: only those (--strategy peer-to-peer) can be joined and left")
    address = address_of(where)
    check_address(address)
    watching = PeerObserver(ZmqTransport(f"home-{secrets.token_hex(4)}"))
    try:
        watching.meet([Peer(_DOOR, _DOOR, 0, address)])
        try:
            here = watching.greet(_DOOR, _ANSWER, comes)
        except Unanswered:
            raise ClusterError(_why_silent(where, address)) from None
        watching.meet(here.peers)
        yield watching, here, address
    finally:
        watching.close()


def _why_silent(where: str, address: str) -> str:
    with contextlib.suppress(Unanswered), contextlib.closing(look_at(address)) as looking:
        looking.look()
        return (
            f"at {address} is a coordinator: its workers are dealt with by whoever started it, and nobody joins them by an "
            f"address; that is for strategy peer-to-peer"
        )
    more = "" if where == address else f"; if the run was killed, go on with it: shoal train --resume {where}"
    return (
        f"nobody answers at {address}: the run has ended, or that peer has; try the address of another (whoever joined was told its "
        f"own, and may go on){more}"
    )


def join(where: str, say: Say, closing: threading.Event, asked: threading.Event) -> JoinedRun:
    """Take part until the run ends, ``asked`` (it leaves in order) or ``closing`` (at once) is set."""
    with at(where, secrets.token_hex(8)) as (_, here, address):
        pass
    job = Job.of(tomllib.loads(here.job))
    import_own(job)
    dataset = load(job.data, job.seed, progress=say)
    mine, theirs = (dataset.train.rows, dataset.features), (here.rows, here.features)
    if mine != theirs:
        raise Invalid(
            f"the data are not the same: {mine[0]:,} rows of {mine[1]:,} features here, {theirs[0]:,} of {theirs[1]:,} there: "
            f"bring the same files to {job.data.source}"
        )
    say(f"{counted(len(here.peers), 'peer')} of {address}: {job.model.told}, {dataset.name}")
    made = PeerParts(PeerSpec(here.job, str(dataset.folder), here.number))
    with _folder(address) as folder:
        life = PeerIncarnation(made, sockets(made, folder))
        telling = _JoinedEvents(say)
        say(f"this is {life.me.name}, at {life.me.address}: shoal status, join and leave find the run there, too")
        try:
            node = live(life, [], [(one.life, one.address) for one in here.peers], closing, asked, telling.look)
        finally:
            made.learner.release()
    if node.why:
        raise ClusterError(f"{life.me.name} could not go on, and has told the others: {node.why}")
    return _result(node, made)


def standing(where: str) -> PeerStatus:
    """How a run of peers stands, by the word of whoever answers there."""
    with at(where) as (watching, here, _):
        watching.forget(_DOOR)  # the same one as another that we have met
        return watching.account(0, _ANSWER) if here.peers else watching.account(0, 0.0)


def leave(where: str, name: str, say: Say) -> None:
    """Ask one to finish what it is at, say what it learned, and go; returns when it has."""
    with at(where) as (watching, here, _):
        found = [peer for peer in here.peers if name in (peer.name, peer.life)]
        if not found:
            raise Invalid(f"no peer {name!r} in this run: there are {', '.join(peer.name for peer in here.peers)}")
        life, deadline = found[-1].life, time.monotonic() + _LEAVE_WITHIN
        say(f"{found[-1].name} finishes what it is at")
        while time.monotonic() < deadline:
            watching.stop(life, "asked to leave", leave=True)
            with contextlib.suppress(Unanswered):
                account = watching.account(1 << 40, 1.0)
                watching.meet(account.peers)
                if account.ended or life in account.gone or all(peer.life != life for peer in account.peers):
                    return
            time.sleep(0.2)  # it is learning: there is nothing to hear but that it is gone
        raise ClusterError(
            f"{name} has not left in {_LEAVE_WITHIN:g} s: it may be stopped; the others go on without it"
        )


class _JoinedEvents:
    """How it goes, for whoever looks on; and, when the run has ended, that it may go."""

    def __init__(self, say: Say) -> None:
        self._say, self._next, self._ended, self._judged = say, 0.0, 0.0, -1
        self._names: dict[str, str] = {}  # of all that were here, by life
        self._gone: set[str] = set()
        self._lead = ""

    def look(self, node: PeerNode) -> bool:
        now = time.monotonic()
        if node.ended:
            self._ended = self._ended or now
            return now - self._ended > _STAY
        if node.mesh.has_model:
            self._look_who(node)
        last = node.log.last
        if last is not None and last.number != self._judged and node.mesh.has_model:
            self._judged = last.number
            loss = "not finite" if last.loss is None else f"{last.loss:.4f}"
            passes = last.done / node.facts.slots.per_pass
            self._say(
                f"evaluation {last.number}: epoch {passes:.2f}, test loss {loss}, {counted(last.workers, 'worker')}"
            )
        elif now >= self._next:
            self._next = now + _TELL
            if not node.mesh.has_model:
                self._say("getting the model")
        return False

    def _look_who(self, node: PeerNode) -> None:
        """Who is gone since the last look, and who leads now."""
        mesh = node.mesh
        for life, why in mesh.gone.items():
            if life in self._names and life not in self._gone:
                left = f", {counted(len(mesh.members) + 1, 'worker')} left" if why else ""
                self._say(f"{self._names[life]} is gone: {why or 'it left'}{left}")
        self._gone.update(mesh.gone)
        self._names.update({one.life: one.name for one in mesh.living})
        if mesh.leads != self._lead:
            self._lead = mesh.leads
            self._say(f"{self._names[self._lead]} leads" + (": that is this one" if self._lead == mesh.me.life else ""))


def _result(node: PeerNode, made: PeerParts) -> JoinedRun:
    book, ended = node.log, node.log.ended
    last = book.last
    judged = {} if last is None else msgspec.structs.asdict(last)
    # In all its lives: it may have been held for gone, and have come back.
    learned = sum(slots for life, (slots, _) in book.rates.items() if life.startswith(f"{node.mesh.me.name}."))
    if ended is None:
        return JoinedRun(node.mesh.me.name, learned, "", False, None, judged, book.done)
    model = made.learner.keep(made.core.weights())
    events: list[RunEvent] = []
    story = PeerEvents(made.job, made.slots, events.append)
    story.tell_started(made.dataset, made.job.workers)
    story.hear(node.status(time.monotonic_ns(), Watch(0)))
    events.append(Stopped(seconds=story.seconds, why=ended.why))
    return JoinedRun(node.mesh.me.name, learned, ended.why, ended.failed, model, judged, book.done, made.job, events)


@contextlib.contextmanager
def _folder(address: str) -> Iterator[str]:
    """For our own socket, where sockets are files: it outlives the folder of whoever began the run."""
    if not address.startswith("ipc:"):
        yield ""
        return
    folder = short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")
    os.mkdir(folder, 0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

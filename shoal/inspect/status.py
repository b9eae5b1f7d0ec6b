"""Reads the status of a cluster without joining it.

The coordinator reports the members and the progress of the run (``StatusRequest``), each server
its tables (``TableStatusRequest``). Unanswered requests are repeated: a killed coordinator may be
back in a moment.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from shoal.errors import ClusterError, Invalid, Refused, Unanswered
from shoal.events import Evaluated, Progress, RunEvent
from shoal.job import Job
from shoal.security.address import is_local, parsed
from shoal.strategy import strategies
from shoal.wire import Transport
from shoal.wire import messages as m

if TYPE_CHECKING:
    from shoal.security.safety import Safety

ADDRESS = "address"  # the file with the coordinator's address in a run's folder
PATIENCE = 2.0  # seconds until a node counts as not answering
_AGAIN = 0.25  # seconds until a request is repeated

Answer = TypeVar("Answer", bound=m.Message)
Kind = type[Answer] | tuple[type[Answer], ...]


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    server: str
    role: str  # primary, backup, filling
    version: int | None  # None: not reported
    lag: int | None  # versions behind the primary
    unacknowledged: int | None = None  # changes of the primary, over all segments


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    table: str
    number: int
    start: int
    stop: int
    epoch: int
    copies: list[ReplicaStatus]  # the primary first
    last: str  # the last holder, if it has none now


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    standing: m.StatusReply
    view: m.View
    # by server and table number
    told: dict[tuple[str, int], m.TableStatusReply] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)  # servers that did not answer

    def segments(self) -> list[SegmentStatus]:
        return [
            SegmentStatus(
                table.name,
                number,
                start,
                stop,
                place.epoch,
                self._copies(table.number, number, place),
                place.last if not place.servers else "",
            )
            for table in self.view.tables
            for number, (start, stop, place) in enumerate(
                zip(table.starts, [*table.starts[1:], table.spec.span], table.places, strict=True)
            )
        ]

    def clocks(self) -> dict[str, int]:
        """Each worker's lowest clock on any server; negative: parked."""
        found: dict[str, int] = {}
        for told in self.told.values():
            for worker, clock in told.clocks.items():
                found[worker] = min(clock, found.get(worker, clock))
        return dict(sorted(found.items()))

    def _copies(self, table: int, segment: int, place: m.Replicas) -> list[ReplicaStatus]:
        holders = [(name, "backup" if i else "primary") for i, name in enumerate(place.servers)]
        holders += [(place.filling, "filling")] if place.filling else []
        first = self.told.get((place.servers[0], table)) if place.servers else None
        newest = None if first is None else first.own.get(segment)
        copies = []
        for name, role in holders:
            told = self.told.get((name, table))
            version = newest if role == "primary" else None if told is None else told.copies.get(segment)
            lag = None if version is None or newest is None else max(0, newest - version)
            copies.append(ReplicaStatus(name, role, version, lag, None if first is None else first.lag.get(name)))
        return copies


class StatusClient:
    """Asks coordinator and servers. Any thread may use it, one at a time."""

    def __init__(self, open_transport: Callable[[str], Transport], name: str = "") -> None:
        self.name = name or f"look-{secrets.token_hex(4)}"
        self._open = open_transport
        self._transport: Transport | None = None
        self._lock = threading.Lock()
        self._request = 0

    def look(self, seconds: float = PATIENCE) -> m.StatusReply:
        """The coordinator's status; raises Unanswered."""
        return self._ask("look", "coordinator", m.StatusRequest, m.StatusReply, seconds)

    def view(self, seconds: float = PATIENCE) -> m.View:
        return self._ask("refresh the view", "coordinator", m.Refresh, m.View, seconds)

    def describe(self, seconds: float = PATIENCE) -> m.Described:
        """The description of the run, for a node that would join."""
        return self._ask("ask what the run is about", "coordinator", m.Describe, m.Described, seconds)

    def feed(self, after: int, seconds: float = PATIENCE) -> m.Fed:
        return self._ask("ask what happened", "coordinator", lambda request: m.Feed(request, after), m.Fed, seconds)

    def drain(self, name: str, seconds: float = PATIENCE) -> m.Message:
        """Ask to drain a node: Done or Refusal. Only members may ask, so it joins briefly."""
        hello = m.Hello(self.name, "client", secrets.token_hex(8))
        welcome = self._ask("join", "coordinator", lambda request: hello, (m.Welcome, m.Refusal), seconds)
        if not isinstance(welcome, m.Welcome):
            return welcome
        done = (m.Done, m.Refusal)
        try:
            return self._ask(f"let {name} go", "coordinator", lambda request: m.Drain(request, name), done, seconds)
        finally:
            self.tell(m.Leave(welcome.incarnation))

    def tell(self, message: m.Message) -> None:
        """Send a message that has no answer."""
        with self._lock:
            transport = self._opened()
            transport.send("coordinator", message, ())
            transport.flush()

    def status(self, seconds: float = PATIENCE) -> ClusterStatus:
        """The whole status; names servers that do not answer."""
        standing, view = self.look(seconds), self.view(seconds)
        status = ClusterStatus(standing, view)
        for member in view.members:
            if member.role != "server":
                continue
            for table in view.tables:
                if not any(member.name in (*place.servers, place.filling) for place in table.places):
                    continue
                try:
                    reply = self._table(member, table.number, seconds)
                except Unanswered:
                    status.silent.append(member.name)
                    break
                if reply is not None:
                    status.told[member.name, table.number] = reply
        return status

    def _table(self, server: m.Member, table: int, seconds: float) -> m.TableStatusReply | None:
        def ask(request: int) -> m.TableStatusRequest:
            return m.TableStatusRequest(request, table, 0)

        answer = self._ask(f"ask about table {table}", server.name, ask, m.Message, seconds, server.address)
        return answer if isinstance(answer, m.TableStatusReply) else None

    def close(self) -> None:
        with self._lock:
            if self._transport is not None:
                self._transport.close()
                self._transport = None

    def _opened(self) -> Transport:
        if self._transport is None:
            self._transport = self._open(self.name)
        return self._transport

    def _ask(
        self, what: str, to: str, make: Callable[[int], m.Message], kind: Kind[Answer], seconds: float, at: str = ""
    ) -> Answer:
        with self._lock:
            transport = self._opened()
            if at:
                transport.connect(to, at)
            self._request += 1
            question, now = make(self._request), time.monotonic()
            asked = getattr(question, "request", 0)
            deadline, again = now + seconds, 0.0
            while now < deadline:
                if now >= again:
                    transport.send(to, question, ())
                    transport.flush()
                    again = now + _AGAIN
                for event in transport.receive(max(0.0, min(again, deadline) - now)):
                    answer = event.message
                    if event.sender == to and isinstance(answer, m.Refusal) and answer.kind in ("key", "version"):
                        raise Refused(to, answer.reason)
                    # views have no request number
                    known = getattr(answer, "request", asked) == asked
                    if event.sender == to and known and isinstance(answer, kind):
                        return answer
                now = time.monotonic()
        raise Unanswered(what, to, seconds)


def further(course: m.RunProgress, event: RunEvent) -> m.RunProgress:
    """The progress of a run from its events, if no node is left to ask."""
    if not isinstance(event, Progress | Evaluated) or event.seconds < course.seconds:
        return course
    return msgspec.structs.replace(
        course,
        done=round(event.passes * course.per_pass),
        steps=event.steps,
        examples=event.examples,
        seconds=event.seconds,
        computing=event.seconds,
    )


def write_address(folder: Path, address: str) -> None:
    """Write the coordinator's address to the run folder, for ``address_of``."""
    with contextlib.suppress(OSError):  # full disk: then clients must know the address
        handle = os.open(folder / ADDRESS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(f"{address}\n")


def address_of(where: str) -> str:
    """The coordinator's address of the run in this folder; an address is returned as it is."""
    if "://" in where:
        return where
    folder, file = Path(where), Path(where) / ADDRESS
    resume = f"go on with it: shoal train --resume {where}"
    try:
        if file.exists() and not file.is_file():
            raise Invalid(f"{file} is no file: give the address itself (ipc://..., tcp://...)")
        address = file.read_bytes().decode(errors="replace").strip()
        if not address.isprintable() or "://" not in address or "\N{REPLACEMENT CHARACTER}" in address:
            what = "has no address in it" if address else "is empty"
            raise ClusterError(f"{file} {what}: if the run was killed, {resume}")
        return address
    except FileNotFoundError:
        job, threads = job_of(where), "it runs as threads, which cannot be inspected"
        if (folder / "summary.json").exists():
            why = f"the run in {where} has ended, or was interrupted: its figures are in {folder / 'summary.json'}; if it was "
            why += f"interrupted it goes on by shoal train --resume {where} (nodes from elsewhere: shoal launch coordinator --out {where})"
        elif not (folder / "job.toml").exists():
            meant = f": is tcp://{where} meant?" if re.fullmatch(r"[\w.@\[\]-]+:\d{1,5}", where) else ""
            raise Invalid(f"{where} is neither a run's folder nor an address (ipc://..., tcp://...){meant}") from None
        elif job is not None and not job.strategy.can_be_watched:
            why = f"a run by {job.strategy.name} has no coordinator that could be asked: how far it is, its events say "
            why += f"(shoal report {where}); if it was killed, {resume}"
        elif _has_owner(folder):
            why = f"the run in {where} is being started, or has just ended (or {threads}): ask again in a moment"
        else:
            why = f"no run is under way in {where} (or {threads}): if it was started just now, ask again in a moment; "
            why += f"if it was ended, {resume}"
        raise ClusterError(why) from None
    except OSError as error:
        raise Invalid(f"cannot read {file}: {error.strerror}") from None


def safety_for(where: str, keys: str | None = None, insecure: bool = False) -> Safety:
    """The security to use: the user's, else the run's, else what the address requires."""
    from shoal.security.safety import Safety

    if not keys and not insecure and (job := job_of(where)) is not None:
        keys, insecure = job.launch.keys or None, job.launch.insecure
    return Safety.chosen(keys, insecure, at=address_of(where))


def _has_owner(folder: Path) -> bool:
    """Whether a live process owns the folder; never tries its lock."""
    import psutil

    try:
        return bool(psutil.pid_exists(int((folder / "lock").read_text())))
    except (OSError, ValueError, OverflowError):
        return False


def is_of_peers(where: str, safety: Safety | None = None) -> bool:
    """Whether it is a peer-to-peer run, by its job or by the node at the address."""
    if "://" not in where:
        job = job_of(where)
        return job is not None and job.strategy.can_be_watched and not job.strategy.on_servers
    from shoal.security.safety import Safety

    safety = safety or Safety.chosen(at=where)
    safety.check(where)
    if parsed(where).key or not is_local(where):
        return False  # peers stay on one machine, without encryption
    observers = dict.fromkeys(kind.observer for kind in strategies().values() if kind.observer)
    return any(importlib.import_module(one).answers(where, safety, _AGAIN) for one in observers)


def job_of(where: str) -> Job | None:
    """The job of the run in this folder; None for an address, a store, or no run."""
    try:
        return None if "://" in where else Job.load(Path(where) / "job.toml")
    except Invalid:
        return None


def look_at(address: str, safety: Safety | None = None, who: str = "look") -> StatusClient:
    from shoal.security.safety import Safety

    safety = safety or Safety.chosen(at=address)
    return StatusClient(transport_to(address, safety), safety.named(f"{who}-{secrets.token_hex(4)}"))


def transport_to(address: str, safety: Safety | None = None, group: str = "") -> Callable[[str], Transport]:
    """A function that opens transports to this coordinator, with the default keys if needed."""
    from shoal.security.safety import Safety
    from shoal.wire.zmq import ZmqTransport

    safety = safety or Safety.chosen(at=address)
    safety.check(address)

    def transport(name: str) -> Transport:
        made = ZmqTransport(safety.named(name, group=group), safety=safety)
        try:
            made.connect("coordinator", address)
        except BaseException:
            made.close()
            raise
        return made

    return transport

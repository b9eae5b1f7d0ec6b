"""Runs nodes on virtual time, with a network that misbehaves on a seeded schedule.

The twin of ``nodes.loop``: the same nodes, events and effects, but time is a heap. Each purpose
draws from a generator of its own, so that one more draw in one place does not reshuffle the rest.
Every event enters a rolling hash: the same seed gives the same hash in any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from shoal.errors import ShoalError, WireError
from shoal.events import RunEvent
from shoal.limits import COORDINATOR, MILLISECOND, SECOND
from shoal.simulation.disk import Crashed, SimulatedDisk
from shoal.wire import effects as e
from shoal.wire.coding import decode, encode, name_of
from shoal.wire.messages import Arrays, Message

Frames = list[memoryview | bytes]
_TICK = e.Tick()
WELL_KNOWN = (COORDINATOR, "home")  # nodes know these addresses from their start


@dataclass(slots=True)
class SimulatedHost:
    node: e.Node
    life: int  # a restarted node is another life under the same name
    drift: float = 0.0  # how much faster its clock runs
    offset: int = 0
    paused_until: int = 0
    held: list[e.Event] = field(default_factory=list)  # until then
    frozen_at: int = 0  # when its clock stood still last,
    frozen_until: int = 0  # and until when: it goes on from where it stood
    behind: int = 0  # what it lost by standing still before that
    wake_at: int = -1
    computing: int = 0  # until when its compute thread is busy
    storing_until: int = 0
    stores: deque[Callable[[], object]] = field(default_factory=deque)  # for its disk thread
    called: set[str] = field(default_factory=set)  # those that it has a socket for
    callers: set[str] = field(default_factory=set)  # those that called it: answers have a way back

    def reaches(self, name: str) -> bool:
        return name in self.called or name in self.callers or name in WELL_KNOWN


@dataclass(slots=True)
class SimulatedJournal:
    """A node's append-only file: the durable records, and those being written."""

    durable: list[bytes] = field(default_factory=list)
    writing: deque[bytes] = field(default_factory=deque)
    busy_until: int = 0
    full_until: int = 0


@dataclass(slots=True)
class Weather:
    delay: int = MILLISECOND
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0  # the chance that a repeat comes very late
    slow: float = 0.0  # the chance that a message takes a hundred times as long
    corrupt: float = 0.0  # the chance that a bit of it is flipped, or that it is cut short
    clogs: dict[str, int] = field(default_factory=dict)  # by node: delayed until
    cuts: dict[tuple[str, str], int] = field(default_factory=dict)  # (from, to): blocked until
    # (from, to): until when, extra delay
    far: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


class World:
    """All nodes, the network and the time."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.now = 0
        self.hosts: dict[str, SimulatedHost] = {}
        self.twins: dict[str, SimulatedHost] = {}  # a second process under a name that is in use
        self.journals: dict[str, SimulatedJournal] = {}
        self.weather = Weather()
        self.counts: Counter[str] = Counter()
        self.events = 0
        self.trace = trace
        self.after_event: Callable[[str], None] = lambda name: None
        self.on_crash: Callable[[str], None] = lambda name: None
        self.on_tell: Callable[[RunEvent], None] = lambda event: None
        self.computing = (MILLISECOND, 20 * MILLISECOND)  # at least, less than
        self.duration: Callable[[str, int], int] = lambda node, computing: computing
        self.drop: Callable[[str, str, Message], bool] = lambda sender, to, message: False
        self.disk: SimulatedDisk | None = None  # for checkpoints, of all of them
        self._watches: dict[type[Message], list[Callable[[str, str, Any], None]]] = {}
        # arrival, sender, receiver, message
        self._tracked: dict[type[Message], list[tuple[int, str, str, Any]]] = {}
        self._network = Random(f"{seed}/network")
        self._ties = Random(f"{seed}/ties")
        self._disk = Random(f"{seed}/disk")
        self._heap: list[tuple[int, float, int, Callable[[], object]]] = []
        self._serial = 0
        self._lives = 0
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def at(self, time: int, action: Callable[[], object]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (max(time, self.now), self._ties.random(), self._serial, action))

    def run(self, until: Callable[[], bool], latest: int, most_events: int) -> bool:
        """Let time pass until ``until`` is true. False if it never is."""
        while self._heap and not until():
            if self._heap[0][0] > latest or self.events >= most_events:
                return False
            self.turn()
        return until()

    def turn(self) -> None:
        """Process the next event."""
        self.now, _, _, action = heapq.heappop(self._heap)
        action()

    def add(self, node: e.Node, drift: float = 0.0, offset: int = 0, twin: bool = False) -> SimulatedHost:
        """Starts a process; as ``twin`` a second one of its name: messages reach either of them."""
        self._lives += 1
        host = SimulatedHost(node, self._lives, drift, offset)
        (self.twins if twin else self.hosts)[node.name] = host
        self.at(self.now, lambda: self._feed(host, e.Tick()))
        return host

    def add_twin(self, node: e.Node, lasts: int) -> None:
        """Adds a second process under a name that is in use; messages to that name reach either."""
        self._log("twin", node.name)
        host = self.add(node, twin=True)
        self.at(self.now + lasts, lambda: self.twins.pop(node.name) if self.twins.get(node.name) is host else None)

    def crash(self, name: str) -> None:
        """End a process with its memory; its messages may still arrive."""
        self._tear(self.hosts.pop(name))
        self._log("crash", name)
        self.on_crash(name)
        # some of the records in flight may have been written
        if (journal := self.journals.get(name)) is not None:
            kept = self._disk.randrange(len(journal.writing) + 1)
            journal.durable += list(journal.writing)[:kept]
            self.counts["disk: records that were never acknowledged, and survived"] += kept
            journal.writing.clear()

    def durable_records(self, name: str) -> list[bytes]:
        return list(self.journals.get(name, SimulatedJournal()).durable)

    def end(self, name: str) -> None:
        """End a process that has finished."""
        del self.hosts[name]
        self._log("end", name)

    def watch(self, seen: Callable[[str, str, Any], None], *messages: type[Message]) -> None:
        """Calls ``seen(sender, receiver, message)`` when a message of these kinds is sent."""
        for message in messages:
            self._watches.setdefault(message, []).append(seen)

    def track(self, message: type[Message]) -> None:
        """Track messages of this kind in flight."""
        self._tracked[message] = []

    def in_flight(self, message: type[Message]) -> list[tuple[str, str, Any]]:
        """Messages in flight: sender (which may be gone by now), receiver, message."""
        found = self._tracked[message]
        asleep = {name for name, host in self.hosts.items() if host.paused_until >= self.now}
        found[:] = [one for one in found if one[0] >= self.now or one[2] in asleep]
        return [(sender, to, said) for _, sender, to, said in found]

    def pause(self, name: str, nanoseconds: int) -> None:
        """Pause a process: messages wait, timers fire late."""
        host = self.hosts[name]
        host.paused_until = max(host.paused_until, self.now + nanoseconds)
        self._log("pause", name)

    def wake_within(self, nanoseconds: int) -> None:
        """Shorten pauses; what waits for their end is delivered when they end now."""
        for host in self.hosts.values():
            if host.paused_until > self.now + nanoseconds:
                host.paused_until = self.now + nanoseconds
                self.at(host.paused_until, partial(self._deliver_held, host))

    def freeze(self, name: str, nanoseconds: int) -> None:
        """Stop the clock of a process that goes on."""
        host = self.hosts[name]
        host.behind += min(host.frozen_until, self.now) - host.frozen_at
        host.frozen_at, host.frozen_until = self.now, self.now + nanoseconds
        self._log("freeze", name)

    def stall_disk(self, name: str, nanoseconds: int) -> None:
        """Delay all writes from now on."""
        journal = self.journals.setdefault(name, SimulatedJournal())
        journal.busy_until = max(journal.busy_until, self.now + nanoseconds)
        if (host := self.hosts.get(name)) is not None:
            host.storing_until = max(host.storing_until, self.now + nanoseconds)

    def tell(self, name: str, event: e.Event = _TICK) -> None:
        """Deliver an event without a message."""
        if (host := self.hosts.get(name)) is not None:
            self._feed(host, event)

    def carry_out(self, name: str, effects: list[e.Effect]) -> None:
        """Carries out effects in a node's name; does nothing if the node is gone."""
        if (host := self.hosts.get(name)) is not None:
            for effect in effects:
                self._carry_out(host, effect)

    def local_time(self, host: SimulatedHost) -> int:
        frozen = min(self.now, host.frozen_until) - host.frozen_at
        passed = self.now - host.behind - frozen
        return SECOND + host.offset + passed + int(passed * host.drift)

    def _is_here(self, host: SimulatedHost) -> bool:
        name = host.node.name
        return self.hosts.get(name) is host or self.twins.get(name) is host

    def _deliver_held(self, host: SimulatedHost) -> None:
        held, host.held = host.held, []
        for event in held:
            self.at(self.now, partial(self._feed, host, event))

    def _feed(self, host: SimulatedHost, event: e.Event) -> None:
        if not self._is_here(host):
            return
        if host.paused_until > self.now:
            if not host.held:
                self.at(host.paused_until, partial(self._deliver_held, host))
            host.held.append(event)
            return
        self.events += 1
        if isinstance(event, e.Received):
            if self._calls(event.sender, host.node.name):
                host.callers.add(event.sender)
            self._log(event.sender, host.node.name, encode(event.message))
        for effect in host.node.handle(self.local_time(host), event):
            self._carry_out(host, effect)
        self.after_event(host.node.name)

    def _calls(self, sender: str, to: str) -> bool:
        """Whether the sender connected to us, as far as is known; else it replies."""
        found = [one for one in (self.hosts.get(sender), self.twins.get(sender)) if one is not None]
        return to in WELL_KNOWN or not found or any(to in one.called for one in found)

    def _carry_out(self, host: SimulatedHost, effect: e.Effect) -> None:
        match effect:
            case e.Send(to, message, arrays):
                if host.reaches(to):
                    self.send(host.node.name, to, message, arrays)
                else:
                    self.counts["network: nobody there"] += 1
            case e.Wake(at):
                self._wake(host, at)
            case e.Compute(token, function):
                self._compute(host, token, function)
            case e.Persist(token, record):
                self._persist(host, token, record)
            case e.Store(token, function):
                self._store(host, token, function)
            case e.Tell(event):
                self.on_tell(event)
            case e.Connect(name, ""):
                host.called.discard(name)  # a peer that connected to us still gets replies
            case e.Connect(name):
                host.called.add(name)

    def _wake(self, host: SimulatedHost, at: int) -> None:
        if at == host.wake_at:
            return
        host.wake_at = at
        when = max(self.now, host.frozen_until) + max(0, int((at - self.local_time(host)) / (1 + host.drift)) + 1)

        def fire() -> None:
            if host.wake_at == at:
                host.wake_at = -1
                self._feed(host, e.Tick())

        self.at(when, fire)

    def _persist(self, host: SimulatedHost, token: int, record: bytes) -> None:
        """Write records one after the other; a full disk takes none."""
        journal = self.journals.setdefault(host.node.name, SimulatedJournal())
        duration = self._disk.randrange(MILLISECOND // 10, 5 * MILLISECOND)
        journal.busy_until = max(self.now, journal.busy_until) + duration
        if journal.full_until > self.now:
            self.counts["disk: records refused by a full disk"] += 1
            self._finish(host, journal.busy_until, lambda: e.Durable(token, "no space left on device"))
            return
        journal.writing.append(record)

        def written() -> e.Event:
            journal.durable.append(journal.writing.popleft())
            return e.Durable(token)

        self._finish(host, journal.busy_until, written)

    def _store(self, host: SimulatedHost, token: int, function: Callable[[], object]) -> None:
        """Run disk operations one after the other; a crash leaves the current one partial."""
        host.storing_until = max(self.now, host.storing_until) + self._disk.randrange(MILLISECOND, 60 * MILLISECOND)
        host.stores.append(function)

        def done() -> e.Event:
            host.stores.popleft()
            try:
                return e.Stored(token, function())
            except (OSError, ShoalError) as error:
                return e.Stored(token, error=error)

        self._finish(host, host.storing_until, done)

    def _finish(self, host: SimulatedHost, at: int, done: Callable[[], e.Event]) -> None:
        self.at(at, lambda: self._feed(host, done()) if self._is_here(host) else None)

    def _tear(self, host: SimulatedHost) -> None:
        """Do the current work of the disk thread up to some operation."""
        if host.stores and self.disk is not None:
            self.disk.stop_at = len(self.disk.trace) + self._disk.randrange(8)
            with contextlib.suppress(Crashed, OSError, ShoalError):
                host.stores[0]()
            self.disk.stop_at = None
            self.counts["disk: writes torn by a crash"] += 1

    def _compute(self, host: SimulatedHost, token: int, function: Callable[[], object]) -> None:
        duration = self.duration(host.node.name, self._disk.randrange(*self.computing))
        host.computing = max(self.now, host.computing) + duration

        def done() -> e.Event:
            try:
                return e.Computed(token, function())
            except MemoryError as error:
                return e.Computed(token, error=error)

        self._finish(host, host.computing, done)

    def send(self, sender: str, to: str, message: Message, arrays: Arrays = ()) -> None:
        weather, random = self.weather, self._network
        for seen in self._watches.get(type(message), ()):
            seen(sender, to, message)
        if weather.cuts.get((sender, to), 0) > self.now:
            self.counts["network: cut off"] += 1
            return
        if self.drop(sender, to, message):
            return
        if weather.loss and random.random() < weather.loss:
            self.counts["network: lost"] += 1
            return
        frames = [array.data.cast("B") if array.size else b"" for array in arrays]
        header = encode(message, frames)
        if weather.corrupt and random.random() < weather.corrupt:
            header, frames = self._corrupted(header, frames)
        delays = [self._delay(sender, to)]
        if weather.repeat and random.random() < weather.repeat:
            self.counts["network: repeated"] += 1
            late = random.random() < weather.late
            self.counts["network: very late"] += late
            delays.append(self._delay(sender, to) + (random.randrange(20 * SECOND) if late else 0))
        for delay in delays:
            self.at(self.now + delay, partial(self._arrive, sender, to, header, frames))
            if (tracked := self._tracked.get(type(message))) is not None:
                tracked.append((self.now + delay, sender, to, message))

    def _delay(self, sender: str, to: str) -> int:
        delay = int(self._network.expovariate(1.0) * self.weather.delay)
        until, longer = self.weather.far.get((sender, to), (0, 0))
        if until > self.now:
            self.counts["network: far"] += 1
            delay += longer
        if clogs := self.weather.clogs:
            clogged = max(clogs.get(sender, 0), clogs.get(to, 0)) - self.now
            if clogged > 0:
                self.counts["network: clogged"] += 1
                delay += clogged
        if self.weather.slow and self._network.random() < self.weather.slow:
            self.counts["network: slow"] += 1
            delay *= 100
        return delay

    def _arrive(self, sender: str, to: str, header: bytes, frames: Frames) -> None:
        host = self.hosts.get(to)
        if to in self.twins and (host is None or self._network.random() < 0.5):
            host = self.twins[to]
        if host is None:
            return
        try:
            message, arrays = decode(header, frames)
        except WireError:  # as the transports do: it is dropped, and counted
            self.counts["network: dropped"] += 1
            return
        self._feed(host, e.Received(sender, message, arrays))

    def _corrupted(self, header: bytes, frames: Frames) -> tuple[bytes, Frames]:
        """One bit of the header or of an array is flipped, or the last array is cut short."""
        self.counts["network: corrupted"] += 1
        random = self._network
        if frames and len(frames[-1]) and random.random() < 0.3:
            return header, [*frames[:-1], frames[-1][: random.randrange(len(frames[-1]))]]
        which = random.randrange(-1, len(frames))
        if which < 0 or not len(frames[which]):
            return self._flipped(header), frames
        self.counts["network: corrupted in an array"] += 1
        return header, [*frames[:which], self._flipped(frames[which]), *frames[which + 1 :]]

    def _flipped(self, data: bytes | memoryview) -> bytes:
        flipped = bytearray(data)
        flipped[self._network.randrange(len(flipped))] ^= 1 << self._network.randrange(8)
        return bytes(flipped)

    def _log(self, sender: str, to: str, header: bytes = b"") -> None:
        self._hash.update(f"{self.now} {sender} {to} ".encode() + header)
        if self.trace is not None:
            what = f"{sender:>12} -> {to:<12} {name_of(decode(header)[0])}" if header else f"{sender} {to}"
            self.trace(f"{self.now / SECOND:10.6f}  {what}")

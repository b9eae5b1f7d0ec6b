"""Nodes on virtual time, and a network between them that misbehaves on a seeded schedule.

The twin of ``nodes.loop``: the same nodes, the same events and effects, but time is a heap. Every purpose draws from its
own generator, so that one more draw in one place does not reshuffle the rest, and every event enters a rolling hash: the
same seed gives the same hash, in any process.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shoal.limits import MILLISECOND, SECOND
from shoal.wire.coding import decode, encode, name_of
from shoal.wire.effects import (
    Compute,
    Computed,
    Connect,
    Durable,
    Effect,
    Event,
    Node,
    Persist,
    Received,
    Send,
    Tick,
    Wake,
)
from shoal.wire.messages import Arrays, Message


@dataclass(slots=True)
class Host:
    """One node on its machine."""

    node: Node
    life: int  # a restarted node is another life under the same name
    drift: float = 0.0  # how much faster its clock runs
    offset: int = 0
    paused_until: int = 0
    wake_at: int = -1
    computing: int = 0  # until when its compute thread is busy


@dataclass(slots=True)
class Weather:
    """How the network treats messages."""

    delay: int = MILLISECOND
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0  # the chance that a repeat comes very late
    slow: float = 0.0  # the chance that a message takes a hundred times as long
    cuts: dict[tuple[str, str], int] = field(default_factory=dict)  # (from, to) -> until when nothing passes


class World:
    """All nodes, the network, and what time it is."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        self.hosts: dict[str, Host] = {}
        self.weather = Weather()
        self.counts: Counter[str] = Counter()
        self.events = 0
        self.trace: Callable[[str], None] | None = None
        self.after_event: Callable[[str], None] | None = None
        self.on_crash: Callable[[str], None] | None = None
        self._network = Random(f"{seed}/network")
        self._ties = Random(f"{seed}/ties")
        self._disk = Random(f"{seed}/disk")
        self._heap: list[tuple[int, float, int, Callable[[], None]]] = []
        self._serial = 0
        self._lives = 0
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    # ------------------------------------------------------------ time

    def at(self, time: int, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (max(time, self.now), self._ties.random(), self._serial, action))

    def run(self, until: Callable[[], bool], latest: int, most_events: int) -> bool:
        """Let time pass until ``until`` says so. False if it never does."""
        while self._heap and not until():
            if self._heap[0][0] > latest or self.events >= most_events:
                return False
            self.now, _, _, action = heapq.heappop(self._heap)
            action()
        return until()

    # ------------------------------------------------------------ nodes

    def add(self, node: Node, drift: float = 0.0, offset: int = 0) -> Host:
        self._lives += 1
        host = self.hosts[node.name] = Host(node, self._lives, drift, offset)
        self.at(self.now, lambda: self._feed(host, Tick()))
        return host

    def crash(self, name: str) -> None:
        """The process is gone with all its memory; what it sent may still arrive."""
        del self.hosts[name]
        self._log("crash", name, b"")
        if self.on_crash is not None:
            self.on_crash(name)

    def pause(self, name: str, nanoseconds: int) -> None:
        """The process stands still: messages wait, timers fire late."""
        self.hosts[name].paused_until = self.now + nanoseconds
        self._log("pause", name, b"")

    def poke(self, name: str) -> None:
        """There is something new to do in this node."""
        if (host := self.hosts.get(name)) is not None:
            self._feed(host, Tick())

    def local_time(self, host: Host) -> int:
        return SECOND + host.offset + self.now + int(self.now * host.drift)

    def _is_here(self, host: Host) -> bool:
        return self.hosts.get(host.node.name) is host

    def _feed(self, host: Host, event: Event) -> None:
        """Hand one event in and carry out what comes of it."""
        if not self._is_here(host):
            return
        if host.paused_until > self.now:
            self.at(host.paused_until, lambda: self._feed(host, event))
            return
        self.events += 1
        if isinstance(event, Received):
            self._log(event.sender, host.node.name, encode(event.message))
        for effect in host.node.handle(self.local_time(host), event):
            self._carry_out(host, effect)
        if self.after_event is not None:
            self.after_event(host.node.name)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        match effect:
            case Send(to, message, arrays):
                self.send(host.node.name, to, message, arrays)
            case Wake(at):
                self._wake(host, at)
            case Compute(token, function):
                self._compute(host, token, function)
            case Persist(token, _):
                delay = self._disk.randrange(MILLISECOND // 10, 5 * MILLISECOND)
                self.at(self.now + delay, lambda: self._feed(host, Durable(token)))
            case Connect():
                pass  # here everybody reaches everybody

    def _wake(self, host: Host, at: int) -> None:
        if at == host.wake_at:
            return
        host.wake_at = at
        when = self.now + max(0, int((at - self.local_time(host)) / (1 + host.drift)) + 1)

        def fire() -> None:
            if host.wake_at == at and self._is_here(host):
                host.wake_at = -1
                self._feed(host, Tick())

        self.at(when, fire)

    def _compute(self, host: Host, token: int, function: Callable[[], object]) -> None:
        host.computing = max(self.now, host.computing) + self._disk.randrange(MILLISECOND, 20 * MILLISECOND)

        def finish() -> None:
            if not self._is_here(host):
                return
            try:
                event = Computed(token, function())
            except MemoryError as error:
                event = Computed(token, error=error)
            self._feed(host, event)

        self.at(host.computing, finish)

    # ------------------------------------------------------------ network

    def send(self, sender: str, to: str, message: Message, arrays: Arrays = ()) -> None:
        weather, random = self.weather, self._network
        if weather.cuts.get((sender, to), 0) > self.now:
            self.counts["cut off"] += 1
            return
        if weather.loss and random.random() < weather.loss:
            self.counts["lost"] += 1
            return
        header = encode(message)
        frames = [array.data.cast("B") if array.size else b"" for array in arrays]
        self._deliver(sender, to, header, frames, self._delay())
        if weather.repeat and random.random() < weather.repeat:
            self.counts["repeated"] += 1
            late = random.random() < weather.late
            self.counts["very late"] += late
            self._deliver(sender, to, header, frames, self._delay() + (random.randrange(20 * SECOND) if late else 0))

    def _delay(self) -> int:
        delay = int(self._network.expovariate(1.0) * self.weather.delay)
        if self.weather.slow and self._network.random() < self.weather.slow:
            self.counts["slow"] += 1
            delay *= 100
        return delay

    def _deliver(self, sender: str, to: str, header: bytes, frames: list[memoryview | bytes], delay: int) -> None:
        def arrive() -> None:
            host = self.hosts.get(to)
            if host is not None:
                message, arrays = decode(header, frames)
                self._feed(host, Received(sender, message, arrays))

        self.at(self.now + delay, arrive)

    def _log(self, sender: str, to: str, header: bytes) -> None:
        self._hash.update(f"{self.now} {sender} {to} ".encode() + header)
        if self.trace is not None:
            what = name_of(decode(header)[0]) if header else sender
            self.trace(
                f"{self.now / SECOND:10.6f}  {sender:>12} -> {to:<12} {what}"
                if header
                else f"{self.now / SECOND:10.6f}  {sender} {to}"
            )

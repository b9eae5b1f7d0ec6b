"""The link between hosts that are namespaces: forwards packets, delays them or drops them.

    ether = Ether()
    ether.plug(device, address)              one end of a host
    ether.weather = lambda sender, to: CUT   called whenever the weather is set

A real link would need a packet filter or a queueing discipline of the kernel, which not every
machine has; this needs only a tun device, and can apply every fault in both directions. Packets
are whole IP packets of the kernel's own TCP, which resends what is lost. Packets between two
hosts keep their order.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

_LARGEST = 65_536  # bytes of a packet
_AT_ONCE = 64  # packets of one host, before the next host's turn
_LONGEST = 0.5  # seconds between two checks whether it is over
_DEEP = 0.25  # seconds of packets that may queue on a slow link; later ones are lost


@dataclass(frozen=True, slots=True)
class Air:
    """The faults of packets in one direction between two hosts."""

    cut: bool = False
    loss: float = 0.0  # probability for each packet
    delay: float = 0.0  # seconds
    jitter: float = 0.0  # seconds more or less
    rate: float = 0.0  # bits per second; 0: unlimited


CLEAR, CUT = Air(), Air(cut=True)
Weather = Callable[[str, str], Air]


def clear(sender: str, to: str) -> Air:
    return CLEAR


class Way:
    """One direction between two hosts: its faults, and the state of its queue."""

    __slots__ = ("air", "free", "last", "random", "to")

    def __init__(self, to: int, air: Air, random: Random) -> None:
        self.to, self.air, self.random = to, air, random
        self.free = self.last = 0.0  # when the link is free, when the last packet arrives

    def due(self, now: float, size: int) -> float | None:
        """When a packet of this size arrives; None: never."""
        air = self.air
        if air.loss and self.random.random() < air.loss:
            return None
        if air.rate:
            if self.free - now > _DEEP:
                return None
            self.free = now = max(self.free, now) + size * 8 / air.rate
        if air.delay or air.jitter:
            now += max(0.0, air.delay + self.random.uniform(-air.jitter, air.jitter))
        self.last = max(self.last, now)
        return self.last


class Ether:
    """A thread that forwards packets. Use as a context."""

    def __init__(self, seed: int = 0) -> None:
        self.counts: Counter[str] = Counter()  # passed, lost, cut off, for nobody
        self._random = Random(seed)
        self._devices: dict[bytes, int] = {}  # by address
        self._names: dict[bytes, str] = {}
        self._weather: Weather = clear
        self._ways: dict[bytes, Way] = {}  # by both addresses, as in a packet's header
        self._late: list[tuple[float, int, int, bytes]] = []
        self._serial, self._over = 0, False
        self._poll = select.poll()
        self._changes: deque[Callable[[], None]] = deque()  # run by the thread that owns the state
        self._alarm, self._bell = os.pipe()
        self._poll.register(self._alarm, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="shoal-ether", daemon=True)

    def __enter__(self) -> Ether:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        os.write(self._bell, b"!")
        self._thread.join()
        for one in (*self._devices.values(), self._alarm, self._bell):
            os.close(one)
        self._devices.clear()

    def plug(self, name: str, device: int, address: bytes) -> None:
        """Adds a host's device (an open file of packets) and its four bytes of address."""
        os.set_blocking(device, False)

        def plug() -> None:
            self._devices[address], self._names[address] = device, name
            self._poll.register(device, select.POLLIN)
            self._survey()

        self._change(plug)

    @property
    def weather(self) -> Weather:
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        """Sets the weather at once; delayed packets still arrive on links that are up."""
        done = threading.Event()

        def change() -> None:
            self._weather = weather
            self._survey()
            done.set()

        self._change(change)
        if not done.wait(10 * _LONGEST):
            raise TimeoutError("the thread of the ether does not turn: has it been started, and is it alive?")

    def _change(self, change: Callable[[], None]) -> None:
        self._changes.append(change)
        os.write(self._bell, b"!")

    def _survey(self) -> None:
        """Updates the faults of all directions to this weather."""
        before, self._ways = self._ways, {}
        for one, sender in self._names.items():
            for other, to in self._names.items():
                way = before.get(one + other) or Way(self._devices[other], CLEAR, Random(self._random.random()))
                way.air = self._weather(sender, to)
                self._ways[one + other] = way
        self._late = [late for late in self._late if not self._ways[late[3][12:20]].air.cut]
        heapq.heapify(self._late)

    def _run(self) -> None:
        while not self._over:
            now = time.monotonic()
            until = min(self._late[0][0] - now, _LONGEST) if self._late else _LONGEST
            for device, _ in self._poll.poll(max(0.0, until) * 1_000):
                if device == self._alarm:
                    os.read(self._alarm, 4_096)
                    continue
                # Nothing is left, or the host is ending.
                with contextlib.suppress(BlockingIOError, OSError):
                    for _ in range(_AT_ONCE):
                        self._pass(os.read(device, _LARGEST))
            while self._changes:
                self._changes.popleft()()
            self._deliver()

    def _pass(self, packet: bytes) -> None:
        way = self._ways.get(packet[12:20])
        if way is None or packet[0] >> 4 != 4:  # multicast, other IP versions: nobody's
            self.counts["for nobody"] += 1
            return
        if way.air is CLEAR:
            self._write(way.to, packet)
            return
        if way.air.cut:
            self.counts["cut off"] += 1
            return
        due = way.due(time.monotonic(), len(packet))
        if due is None:
            self.counts["lost"] += 1
            return
        self._serial += 1
        heapq.heappush(self._late, (due, self._serial, way.to, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, to, packet = heapq.heappop(self._late)
            self._write(to, packet)

    def _write(self, to: int, packet: bytes) -> None:
        try:
            os.write(to, packet)
            self.counts["passed"] += 1
        except OSError:
            # Its device is down, or its queue is full: a real link loses such a packet, too.
            self.counts["lost"] += 1

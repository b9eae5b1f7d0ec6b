"""A proxy that repeats, drops, delays, cuts, flips and holds messages, drawn from a seed.

    with FaultyProxy(seed=3) as proxy, shoal.connect(proxy.through(cluster.address)) as kv:
        proxy.weather = LinkFaults(repeat=0.2)                  a fifth of all messages comes twice
        with proxy.hold("counted", to="ann") as held:           responses are held until released
            held.wait(1)

Each link draws from the seed in the order of its own messages.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from shoal.errors import WireError
from shoal.wire import coding
from tests.support.byte_proxy import ByteProxy, Frames, MessageInTransit, ProxiedLink, head, written

Where = Literal["prefix", "header", "length", "array", "framing"]
EVERYWHERE: tuple[Where, ...] = ("prefix", "header", "length", "array", "framing")
_TRIES = 200
_PATIENCE = 120.0  # seconds: a guard against hanging, not a measurement


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """The shares of messages that get each fault; times are in seconds."""

    repeat: float = 0.0
    late: float = 0.3  # the share of repeats that come much later
    later: float = 3.0  # at most this much later
    drop: float = 0.0
    delay: float = 0.0  # of every message, at most; the order is kept
    cut: float = 0.0  # the connection ends; messages in flight come later, over the next one
    flip: float = 0.0  # one bit is flipped
    where: tuple[Where, ...] = EVERYWHERE
    alter: float = 0.0  # replaced by the result of ``change``
    change: Callable[[MessageInTransit], Frames] = lambda passing: passing.frames
    most: int = 1 << 62  # faults except delays, in total
    only: Callable[[MessageInTransit], bool] = lambda passing: True


class HeldMessages:
    """Messages that are held until they are released or discarded."""

    def __init__(self, proxy: FaultyProxy, matches: Callable[[MessageInTransit], bool]) -> None:
        self.matches, self.caught = matches, list[MessageInTransit]()
        self._proxy, self._kept = proxy, list[tuple[ProxiedLink, bool, MessageInTransit]]()
        self._more = threading.Condition()

    def wait(self, count: int = 1, seconds: float = _PATIENCE) -> list[MessageInTransit]:
        """Waits until this many were held."""
        with self._more:
            enough = self._more.wait_for(lambda: len(self.caught) >= count, seconds)
        assert enough, f"{len(self.caught)} of {count} messages were held back after {seconds:g} s"
        return list(self.caught)

    def release(self) -> None:
        """Sends them in order, and holds no more messages."""
        self._end(lambda link, up, passing: link.schedule(up, written(passing.frames), 0.0))

    def discard(self) -> None:
        """Discards them, and holds no more messages."""
        self._end(lambda link, up, passing: None)

    def replace(self, data: bytes) -> None:
        """Sends these bytes instead of each of them."""
        self._end(lambda link, up, passing: link.schedule(up, data, 0.0))

    def _end(self, each: Callable[[ProxiedLink, bool, MessageInTransit], None]) -> None:
        def end() -> None:
            if self in self._proxy.holds:
                self._proxy.holds.remove(self)
            for one in self._kept:
                each(*one)
            self._kept.clear()

        self._proxy.call(end)

    def keep(self, link: ProxiedLink, up: bool, passing: MessageInTransit) -> None:
        with self._more:
            self.caught.append(passing)
            self._kept.append((link, up, passing))
            self._more.notify_all()

    def __enter__(self) -> HeldMessages:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class FaultyProxy(ByteProxy):
    """The proxy with random faults. Use as a context."""

    def __init__(self, seed: int = 0, rewrite: bool = True) -> None:
        self._weather = LinkFaults()
        self.struck = 0  # messages with a fault, in this weather and before
        # Messages that passed: (sender, to, kind).
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.holds: list[HeldMessages] = []
        self._seed, self._random = seed, Random(f"{seed}/proxy")
        self._draws: dict[tuple[str, str, bool], Random] = {}
        super().__init__(rewrite)
        self._linger = self.linger
        self.intercept = self._intercept

    @property
    def weather(self) -> LinkFaults:
        return self._weather

    @weather.setter
    def weather(self, weather: LinkFaults) -> None:
        self._weather = weather
        self.linger = self._linger + weather.delay

    def hold(self, *kinds: str, sender: str = "", to: str = "") -> HeldMessages:
        """Holds all messages of these kinds, from and to these nodes (empty: any)."""

        def matches(passing: MessageInTransit) -> bool:
            return passing.kind in kinds and sender in ("", passing.sender) and to in ("", passing.to)

        held = HeldMessages(self, matches)
        self.holds.append(held)
        return held

    def cut(self, caller: str, target: str) -> None:
        """Ends the connection between the two; they may make another."""

        def cut() -> None:
            for link in list(self._links.values()):
                if (link.caller, link.target) == (caller, target):
                    link.cut()

        self.call(cut)

    def _intercept(self, link: ProxiedLink, up: bool, passing: MessageInTransit) -> bool:
        self.seen[passing.sender, passing.to, passing.kind] += 1
        for held in self.holds:
            if held.matches(passing):
                held.keep(link, up, passing)
                return True
        weather = self.weather
        data = written(passing.frames)
        delay = self._random.uniform(0.0, weather.delay) if weather.delay else 0.0
        if not weather.only(passing) or self.struck >= weather.most:
            link.schedule(up, data, delay)
            return True
        before = self._faults()
        self._strike(link, up, passing, data, delay)
        self.struck += self._faults() > before
        return True

    def _draw(self, link: ProxiedLink, up: bool) -> Random:
        key = link.caller, link.target, up
        if key not in self._draws:
            self._draws[key] = Random(f"{self._seed}/{link.caller}/{link.target}/{up}")
        return self._draws[key]

    def _faults(self) -> int:
        return self.counts.total() - self.counts["passed"]

    def _strike(self, link: ProxiedLink, up: bool, passing: MessageInTransit, data: bytes, delay: float) -> None:
        draw, weather = self._draw(link, up), self.weather
        if draw.random() < weather.drop:
            self.counts["dropped"] += 1
            return
        if draw.random() < weather.repeat:
            late = draw.random() < weather.late
            self.counts["repeated late" if late else "repeated"] += 1
            again = draw.uniform(0.0, weather.later) if late else 0.0
            link.schedule(up, data, delay + again, in_order=not late)
        if draw.random() < weather.alter:
            self.counts["altered"] += 1
            header, *arrays = weather.change(passing)
            # This stands for a faulty sender, not a faulty wire: the checksum fits the arrays.
            data = written([coding.encode(coding.decode_header(header), arrays), *arrays])
        if draw.random() < weather.flip:
            where = draw.choice(weather.where)
            self.counts[f"flipped in {where}"] += 1
            data = self._flipped(passing.frames, where, draw)
        if draw.random() < weather.cut:
            link.cut()
            link.schedule(up, data, draw.uniform(0.0, weather.later), in_order=False)
            return
        link.schedule(up, data, delay)

    def _flipped(self, frames: Frames, where: Where, draw: Random) -> bytes:
        """The message with one bit flipped where it can be noticed."""
        first = frames[0]
        if where == "framing":
            sizes = [len(head(len(frame), False)) for frame in frames]
            which = draw.randrange(len(frames))
            at = sum(map(len, frames[:which])) + sum(sizes[:which])
            return _with_bit(written(frames), 8 * at + draw.randrange(8 * sizes[which]))
        if where == "length" and len(frames) > 1:
            which = draw.randrange(1, len(frames))
            size = len(frames[which]) ^ (1 << draw.randrange(12))
            return written([*frames[:which], frames[which][:size].ljust(size, b"\0"), *frames[which + 1 :]])
        if where == "array" and (full := [n for n in range(1, len(frames)) if frames[n]]):
            which = draw.choice(full)
            flipped = _with_bit(frames[which], draw.randrange(8 * len(frames[which])))
            return written([*frames[:which], flipped, *frames[which + 1 :]])
        for _ in range(_TRIES if where != "prefix" else 0):
            header = _with_bit(first, draw.randrange(16, max(17, 8 * len(first))) if len(first) > 2 else 0)
            try:
                coding.decode(header, frames[1:])
            except WireError:
                return written([header, *frames[1:]])
            self.counts["a flipped bit that nobody could notice"] += 1
        return written([_with_bit(first, draw.randrange(8 * min(2, len(first)))), *frames[1:]])


def _with_bit(data: bytes, bit: int) -> bytes:
    changed: Any = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)

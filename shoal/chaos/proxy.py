"""A network that misbehaves on purpose: it stands between real nodes and sees whole messages go by.

    with Proxy(seed=3) as proxy, shoal.connect(proxy.through(cluster.address)) as kv:
        proxy.weather = Weather(repeat=0.2)                     a fifth of all messages comes twice
        with proxy.hold("counted", to="ann") as held:           answers that are kept back until they are let go
            held.wait(1)

Whoever meets the coordinator through here meets everybody through here: the addresses in the views that pass are replaced
by others of ours. ``ProxiedCluster`` does that to all the nodes of a cluster, its servers too.

Each link draws from the seed in the order of its own messages (which is the machine's). Only the proxy's own thread touches its sockets.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import msgspec

from shoal.chaos.links import ProxiedConnection, ProxiedLink
from shoal.chaos.zmtp import Frames, head, written
from shoal.errors import WireError
from shoal.launch.process_main import ProcessOrders
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from shoal.wire import coding
from shoal.wire import messages as m

Where = Literal["prefix", "header", "length", "array", "framing"]
EVERYWHERE: tuple[Where, ...] = ("prefix", "header", "length", "array", "framing")
_TRIES = 200
_PATIENCE = 120.0  # seconds: a guard against hanging, not a measure


@dataclass(frozen=True, slots=True)
class MessageInTransit:
    """A message on its way."""

    sender: str
    to: str
    kind: str  # its tag; empty if it is none of ours
    frames: Frames = field(repr=False)

    @property
    def message(self) -> m.Message:
        return coding.decode_header(self.frames[0])


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """What befalls messages, as shares of them; times are seconds."""

    repeat: float = 0.0
    late: float = 0.3  # of the repeats, how many come much later
    later: float = 3.0  # at most so much
    drop: float = 0.0
    delay: float = 0.0  # of every message, at most; the order stays
    cut: float = 0.0  # the connection ends here; what was under way comes later, by the next one
    flip: float = 0.0  # one bit
    where: tuple[Where, ...] = EVERYWHERE
    alter: float = 0.0  # what ``change`` makes of them instead
    change: Callable[[MessageInTransit], Frames] = lambda passing: passing.frames
    most: int = 1 << 62  # messages that anything but a delay befalls, in all
    only: Callable[[MessageInTransit], bool] = lambda passing: True


class HeldMessages:
    """Messages that are kept back, until they are let go or thrown away."""

    def __init__(self, proxy: Proxy, matches: Callable[[MessageInTransit], bool]) -> None:
        self.matches, self.caught = matches, list[MessageInTransit]()
        self._proxy, self._kept = proxy, list[tuple[ProxiedLink, bool, MessageInTransit]]()
        self._more = threading.Condition()

    def wait(self, count: int = 1, seconds: float = _PATIENCE) -> list[MessageInTransit]:
        """Until so many were caught."""
        with self._more:
            enough = self._more.wait_for(lambda: len(self.caught) >= count, seconds)
        assert enough, f"{len(self.caught)} of {count} messages were held back after {seconds:g} s"
        return list(self.caught)

    def release(self) -> None:
        """Let them go, in their order, and keep nothing back any more."""
        self._end(lambda link, up, passing: link.schedule(up, written(passing.frames), 0.0))

    def discard(self) -> None:
        """Throw them away, and keep nothing back any more."""
        self._end(lambda link, up, passing: None)

    def replace(self, data: bytes) -> None:
        """These bytes go instead of each."""
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


class Proxy:
    """All the links, and the thread that carries what passes. Use as a context."""

    def __init__(self, seed: int = 0, rewrite: bool = True) -> None:
        self.weather = LinkFaults()
        self.befallen = 0  # messages that something befell, in this weather and before
        self.counts: Counter[str] = Counter()  # what was done to messages
        self.seen: Counter[tuple[str, str, str]] = Counter()  # what has passed: (sender, to, kind)
        self.holds: list[HeldMessages] = []
        self.selector = selectors.DefaultSelector()
        self.connections: set[ProxiedConnection] = set()
        self.seed, self._rewrite = seed, rewrite
        self._random = Random(f"{seed}/proxy")
        self._links: dict[tuple[str, str], ProxiedLink] = {}
        self._relays: dict[str, socket.socket] = {}  # by the address that they stand for
        self._names: dict[str, str] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._calls: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._alarm, self._bell = os.pipe()
        os.set_blocking(self._alarm, False)
        self.selector.register(self._alarm, selectors.EVENT_READ, lambda events: os.read(self._alarm, 4_096))
        self._stopped = False
        self.error: BaseException | None = None  # what ended it before its time
        self._thread = threading.Thread(target=self._run, name="shoal-proxy", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ for tests, from any thread

    def through(self, address: str, name: str = "coordinator") -> str:
        """Where the node at that address is met through here."""
        with self._lock:
            relay = self._relays.get(address)
            if relay is None:
                relay = self._relays[address] = socket.create_server(("127.0.0.1", 0), backlog=128)
                relay.setblocking(False)
                self._names[address] = name
                self.call(lambda: self._listen(address))
        return f"tcp://127.0.0.1:{relay.getsockname()[1]}"

    def hold(self, *kinds: str, sender: str = "", to: str = "") -> HeldMessages:
        """Keep back all messages of these kinds, from and to these nodes (empty: any)."""

        def matches(passing: MessageInTransit) -> bool:
            return passing.kind in kinds and sender in ("", passing.sender) and to in ("", passing.to)

        held = HeldMessages(self, matches)
        self.holds.append(held)
        return held

    def cut(self, caller: str, target: str) -> None:
        """End the connection between the two; they may make another."""

        def cut() -> None:
            for link in list(self._links.values()):
                if (link.caller, link.target) == (caller, target):
                    link.cut()

        self.call(cut)

    def call(self, what: Callable[[], None]) -> None:
        """Have the proxy's thread do this."""
        self._calls.append(what)
        with contextlib.suppress(OSError):
            os.write(self._bell, b"!")

    def close(self) -> None:
        self._stopped = True
        self.call(lambda: None)
        self._thread.join(_PATIENCE)
        os.close(self._bell)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        if self.error is not None and exception[0] is None:
            raise self.error

    # ------------------------------------------------------------ its own thread

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, what))

    def link(self, caller: str, address: str) -> ProxiedLink:
        if (caller, address) not in self._links:
            self._links[caller, address] = ProxiedLink(self, caller, self._names.get(address, address))
        return self._links[caller, address]

    def pass_on(self, link: ProxiedLink, up: bool, frames: Frames) -> None:
        """A message is here: what becomes of it?"""
        sender, to = (link.caller, link.target) if up else (link.target, link.caller)
        passing = self._rewritten(MessageInTransit(sender, to, _kind(frames), frames))
        self.counts["passed"] += 1
        self.seen[sender, to, passing.kind] += 1
        for held in self.holds:
            if held.matches(passing):
                held.keep(link, up, passing)
                return
        weather = self.weather
        data = written(passing.frames)
        delay = self._random.uniform(0.0, weather.delay) if weather.delay else 0.0
        if not weather.only(passing) or self.befallen >= weather.most:
            link.schedule(up, data, delay)
            return
        before = self._faults()
        self._strike(link, up, passing, data, delay)
        self.befallen += self._faults() > before

    def _faults(self) -> int:
        return self.counts.total() - self.counts["passed"]

    def _strike(self, link: ProxiedLink, up: bool, passing: MessageInTransit, data: bytes, delay: float) -> None:
        draw, weather = link.random[up], self.weather
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
            # It stands for a sender that is wrong, not for a wire that is: what it says of its arrays is so.
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

    def _rewritten(self, passing: MessageInTransit) -> MessageInTransit:
        if not self._rewrite or passing.sender != "coordinator" or passing.kind not in ("welcome", "view"):
            return passing
        message = passing.message
        replace = msgspec.structs.replace
        if isinstance(message, m.Welcome):
            message = replace(message, view=self._through_us(message.view))
        elif isinstance(message, m.View):
            message = self._through_us(message)
        return MessageInTransit(passing.sender, passing.to, passing.kind, [coding.encode(message), *passing.frames[1:]])

    def _through_us(self, view: m.View) -> m.View:
        members = [
            msgspec.structs.replace(one, address=self.through(one.address, one.name)) if one.address else one
            for one in view.members
        ]
        return msgspec.structs.replace(view, members=members)

    def _flipped(self, frames: Frames, where: Where, draw: Random) -> bytes:
        """The message with one bit changed, so that it can be noticed."""
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

    def _listen(self, address: str) -> None:
        relay = self._relays[address]

        def accept(events: int) -> None:
            with contextlib.suppress(BlockingIOError):
                near, _ = relay.accept()
                try:
                    self.connections.add(ProxiedConnection(self, near, address))
                except OSError:  # nobody is there: the caller sees it as if it had called itself
                    self.counts["nobody there"] += 1
                    near.close()

        self.selector.register(relay, selectors.EVENT_READ, accept)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._turn()
        except BaseException as error:
            self.error = error
        finally:
            for connection in list(self.connections):
                connection.close()
            for relay in self._relays.values():
                relay.close()
            self.selector.close()
            os.close(self._alarm)

    def _turn(self) -> None:
        while self._calls:
            self._calls.pop(0)()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        due = min([link.deliver() for link in self._links.values()], default=now + 1.0)
        if self._timers:
            due = min(due, self._timers[0][0])
        for key, events in self.selector.select(max(0.0, due - time.monotonic())):
            key.data(events)


class ProxiedCluster(ProcessCluster):
    """A cluster whose nodes meet each other through a proxy, all of them; close both."""

    def __init__(
        self,
        proxy: Proxy,
        servers: int,
        copies: int = 1,
        modules: tuple[str, ...] = (),
        journal: JournalFile | None = None,
        restart: bool | None = None,
    ) -> None:
        again = copies > 1 if restart is None else restart
        super().__init__(servers, "tcp", modules, journal or JournalFile(None), copies, again)
        self.proxy = proxy

    @property
    def address(self) -> str:
        return self.proxy.through(self._address)

    def _orders(self, name: str, kind: Any, work: dict[str, Any]) -> ProcessOrders:
        orders = super()._orders(name, kind, work)
        return orders if kind == "coordinator" else msgspec.structs.replace(orders, coordinator=self.address)


def _kind(frames: Frames) -> str:
    try:
        return coding.name_of(coding.decode_header(frames[0]))
    except WireError:
        return ""


def _with_bit(data: bytes, bit: int) -> bytes:
    changed: Any = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)

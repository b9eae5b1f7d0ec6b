"""A proxy between real nodes, which works on the bytes of their connections.

    with ByteProxy() as proxy, ProxiedCluster(proxy.through, servers=2) as cluster:
        proxy.intercept = lambda link, up, passing: passing.to == "server-1"  # dropped

The protocol is ZMTP 3 without keys. Unlike ``shoal.chaos.proxy`` it can cut connections, and send
bytes that are not messages. A node that connects to the coordinator through the proxy connects to
all others through it: the proxy replaces the addresses in the views that pass. Only the proxy's
thread uses its sockets.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.errors import WireError
from shoal.wire import coding
from shoal.wire import messages as m

# ---------------------------------------------------------------- ZMTP 3, without keys


GREETING = 64
MORE, LONG, COMMAND = 1, 2, 4
_READY, _IDENTITY = b"\x05READY", b"identity"

Frames = list[bytes]


class ZmtpStream:
    """Cuts one direction of a connection into protocol bytes and whole messages."""

    def __init__(self) -> None:
        self.ready = False  # READY was sent
        self.name = ""  # the name sent with it
        self._left = bytearray()
        self._greeting = GREETING  # bytes of it that are still missing
        self._parts: Frames = []

    def feed(self, data: bytes) -> list[bytes | Frames]:
        """The complete pieces in order: raw bytes to pass on, or frames of a message."""
        out: list[bytes | Frames] = []
        if self._greeting:
            head, data = data[: self._greeting], data[self._greeting :]
            self._greeting -= len(head)
            out.append(head)
        self._left += data
        at = 0
        while (found := _frame_at(self._left, at)) is not None:
            flags, start, stop = found
            body = bytes(self._left[start:stop])
            if flags & COMMAND:
                if body.startswith(_READY):
                    self.ready, self.name = True, _identity(body)
                out.append(bytes(self._left[at:stop]))
            else:
                self._parts.append(body)
                if not flags & MORE:
                    out.append(self._parts)
                    self._parts = []
            at = stop
        del self._left[:at]
        return out


def written(frames: Sequence[bytes]) -> bytes:
    """The bytes of a message on the wire."""
    out = bytearray()
    for i, frame in enumerate(frames):
        out += head(len(frame), i + 1 < len(frames)) + frame
    return bytes(out)


def handshake(name: str) -> bytes:
    """The first bytes of a caller of that name (a DEALER socket without keys)."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0")
    properties = {b"Socket-Type": b"DEALER", b"Identity": name.encode()}
    body = _READY + b"".join(
        bytes((len(key),)) + key + struct.pack(">I", len(value)) + value for key, value in properties.items()
    )
    return greeting.ljust(GREETING, b"\0") + bytes((COMMAND, len(body))) + body


def head(size: int, more: bool) -> bytes:
    """The header of a frame: its flags and its length."""
    if size < 256:
        return bytes((MORE * more, size))
    return bytes((MORE * more | LONG,)) + struct.pack(">Q", size)


def _frame_at(data: bytearray, at: int) -> tuple[int, int, int] | None:
    """The flags and body range of the frame at a position; None if it is incomplete."""
    if len(data) < at + 2:
        return None
    flags = data[at]
    if flags & LONG:
        if len(data) < at + 9:
            return None
        start, size = at + 9, int.from_bytes(data[at + 1 : at + 9])
    else:
        start, size = at + 2, data[at + 1]
    return (flags, start, start + size) if len(data) >= start + size else None


def _identity(ready: bytes) -> str:
    at = len(_READY)
    while at < len(ready):
        length = ready[at]
        key = ready[at + 1 : at + 1 + length]
        at += 1 + length
        size = int.from_bytes(ready[at : at + 4])
        value = ready[at + 4 : at + 4 + size]
        at += 4 + size
        if key.lower() == _IDENTITY:
            return value.partition(b"\0")[0].decode(
                errors="replace"
            )  # what follows says which process of that name it is
    return ""


# ---------------------------------------------------------------- links


_READ = 1 << 18
_LINGER = 0.3  # seconds that one side of a connection outlives the other


class ProxiedLink:
    """A caller and its target: the messages in flight over all their connections."""

    def __init__(self, proxy: ByteProxy, caller: str, target: str) -> None:
        self.proxy, self.caller, self.target = proxy, caller, target
        self.connection: ProxiedConnection | None = None
        self._due: dict[bool, list[tuple[float, int, bytes]]] = {True: [], False: []}
        self._last = {True: 0.0, False: 0.0}
        self._serial = 0

    def schedule(self, up: bool, data: bytes, delay: float, in_order: bool = True) -> None:
        due = time.monotonic() + delay
        if in_order:
            due = self._last[up] = max(due, self._last[up])
        self._serial += 1
        heapq.heappush(self._due[up], (due, self._serial, data))
        self.deliver()

    def deliver(self) -> float:
        """Pass on due messages, if connected; returns when the next one is due."""
        connection, now = self.connection, time.monotonic()
        if connection is None or not connection.ready:
            return now + 1.0
        for up, due in self._due.items():
            while due and due[0][0] <= now:
                connection.write(up, heapq.heappop(due)[2])
        return min((due[0][0] for due in self._due.values() if due), default=now + 1.0)

    def cut(self) -> None:
        if self.connection is not None:
            self.proxy.counts["cut"] += 1
            self.connection.end(self.connection.near, at_once=True)


class ProxiedConnection:
    """A connection from the caller (near), and the one made for it to its target (far)."""

    def __init__(self, proxy: ByteProxy, near: socket.socket, address: str) -> None:
        self.proxy, self.address = proxy, address
        self.near, self.far = near, _dial(address)
        self.link: ProxiedLink | None = None
        self._streams = {self.near: ZmtpStream(), self.far: ZmtpStream()}
        self._out = {self.near: bytearray(), self.far: bytearray()}
        self._open = [self.near, self.far]
        for end in self._open:
            end.setblocking(False)
            self._watch(end)

    @property
    def ready(self) -> bool:
        return len(self._open) == 2 and all(stream.ready for stream in self._streams.values())

    def write(self, up: bool, data: bytes) -> None:
        end = self.far if up else self.near
        if end in self._open:
            self._out[end] += data
            self._flush(end)

    def _watch(self, end: socket.socket) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out[end] else 0)
        selector = self.proxy.selector
        known = end in selector.get_map()
        (selector.modify if known else selector.register)(end, wanted, lambda events: self._happens(end, events))

    def _happens(self, end: socket.socket, events: int) -> None:
        if end in self._open and events & selectors.EVENT_WRITE:
            self._flush(end)
        if end in self._open and events & selectors.EVENT_READ:
            self._read(end)

    def _flush(self, end: socket.socket) -> None:
        out = self._out[end]
        try:
            while out:
                del out[: end.send(out)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return self.end(end)
        return self._watch(end)

    def _read(self, end: socket.socket) -> None:
        try:
            data = end.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.end(end)
            return
        up = end is self.near
        for piece in self._streams[end].feed(data):
            if isinstance(piece, bytes):
                self._introduce(end)
                self.write(up, piece)
            elif self.link is not None:
                self.proxy.pass_on(self.link, up, piece)

    def _introduce(self, end: socket.socket) -> None:
        if self.link is None and end is self.near and self._streams[end].ready:
            self.link = self.proxy.link(self._streams[end].name, self.address)
            self.link.connection = self

    def end(self, end: socket.socket, at_once: bool = False) -> None:
        """Close the other side a little later, after the messages in flight."""
        self._close(end)
        for other in list(self._open):
            self.proxy.at(time.monotonic() + self.proxy.linger, lambda other=other: self._close(other))  # type: ignore[misc]
        if at_once and self.link is not None and self.link.connection is self:
            self.link.connection = None

    def _close(self, end: socket.socket) -> None:
        if end in self._open:
            self._open.remove(end)
            self.proxy.selector.unregister(end)
            end.close()
            if not self._open:
                self.proxy.connections.discard(self)
                if self.link is not None and self.link.connection is self:
                    self.link.connection = None

    def close(self) -> None:
        for end in list(self._open):
            self._close(end)


def _dial(address: str) -> socket.socket:
    if address.startswith("ipc://"):
        far = socket.socket(socket.AF_UNIX)
        far.connect(address.removeprefix("ipc://"))
    else:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        far = socket.create_connection((host, int(port)), 1.0)
    return far


_PATIENCE = 120.0  # seconds: a guard against hanging, not a measurement


@dataclass(frozen=True, slots=True)
class MessageInTransit:
    """A message in flight."""

    sender: str
    to: str
    kind: str  # its tag; empty if it is not one of ours
    frames: Frames = field(repr=False)

    @property
    def message(self) -> m.Message:
        return coding.decode_header(self.frames[0])


class ByteProxy:
    """All links, and the thread that forwards messages. Use as a context."""

    def __init__(self, rewrite: bool = True) -> None:
        self.intercept: Callable[[ProxiedLink, bool, MessageInTransit], bool] = lambda link, up, passing: False
        self.linger = _LINGER  # seconds that one side of a connection outlives the other
        self.counts: Counter[str] = Counter()  # what was done to messages
        self.selector = selectors.DefaultSelector()
        self.connections: set[ProxiedConnection] = set()
        self._rewrite = rewrite
        self._links: dict[tuple[str, str], ProxiedLink] = {}
        self._relays: dict[str, socket.socket] = {}  # by the address of the node behind each
        self._names: dict[str, str] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._calls: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._alarm, self._bell = os.pipe()
        os.set_blocking(self._alarm, False)
        self.selector.register(self._alarm, selectors.EVENT_READ, lambda events: os.read(self._alarm, 4_096))
        self._stopped = False
        self.error: BaseException | None = None  # the error that ended it
        self._thread = threading.Thread(target=self._run, name="shoal-proxy", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ from any thread

    def through(self, address: str, name: str = "coordinator") -> str:
        """The proxy's address for the node at that address."""
        with self._lock:
            relay = self._relays.get(address)
            if relay is None:
                relay = self._relays[address] = socket.create_server(("127.0.0.1", 0), backlog=128)
                relay.setblocking(False)
                self._names[address] = name
                self.call(lambda: self._listen(address))
        return f"tcp://127.0.0.1:{relay.getsockname()[1]}"

    def call(self, what: Callable[[], None]) -> None:
        """Run this on the proxy's thread."""
        self._calls.append(what)
        with contextlib.suppress(OSError):
            os.write(self._bell, b"!")

    def close(self) -> None:
        self._stopped = True
        self.call(lambda: None)
        self._thread.join(_PATIENCE)
        os.close(self._bell)

    def __enter__(self) -> ByteProxy:
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
        """Count a message, and send it on unless ``intercept`` takes it."""
        sender, to = (link.caller, link.target) if up else (link.target, link.caller)
        passing = self._rewritten(MessageInTransit(sender, to, _kind(frames), frames))
        self.counts["passed"] += 1
        if not self.intercept(link, up, passing):
            link.schedule(up, written(passing.frames), 0.0)

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

    def _listen(self, address: str) -> None:
        relay = self._relays[address]

        def accept(events: int) -> None:
            with contextlib.suppress(BlockingIOError):
                near, _ = relay.accept()
                try:
                    self.connections.add(ProxiedConnection(self, near, address))
                except OSError:  # no node is there: the caller sees that as in a direct call
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


def _kind(frames: Frames) -> str:
    try:
        return coding.name_of(coding.decode_header(frames[0]))
    except WireError:
        return ""

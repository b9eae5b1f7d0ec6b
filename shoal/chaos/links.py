"""The wires of the proxy: links between nodes, and the connections that come and go under them.

A *link* is a caller and whom it calls, over all their connections: what is late comes by the connection of that day. Only
the proxy's thread is ever in here.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import time
from random import Random
from typing import TYPE_CHECKING

from shoal.chaos.zmtp import ZmtpStream

if TYPE_CHECKING:
    from shoal.chaos.proxy import Proxy

_READ = 1 << 18
_LINGER = 0.3  # seconds that one side of a connection outlives the other


class ProxiedLink:
    """A caller and whom it calls: what is under way between them, over all their connections."""

    def __init__(self, proxy: Proxy, caller: str, target: str) -> None:
        self.proxy, self.caller, self.target = proxy, caller, target
        self.connection: ProxiedConnection | None = None
        self.random = {up: Random(f"{proxy.seed}/{caller}/{target}/{up}") for up in (True, False)}
        self._due: dict[bool, list[tuple[float, int, bytes]]] = {True: [], False: []}  # up is to the one who is called
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
        """Pass on what is due, if there is a connection; when the next one is."""
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
    """One connection that was accepted, and the one that was made for it: near is the caller, far is who is called."""

    def __init__(self, proxy: Proxy, near: socket.socket, address: str) -> None:
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
        """This side is gone; the other one goes a little later, when what is under way to it has had its time."""
        self._close(end)
        for other in list(self._open):
            self.proxy.at(time.monotonic() + _LINGER + self.proxy.weather.delay, lambda other=other: self._close(other))  # type: ignore[misc]
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

"""A proxy between the nodes of a cluster, which can keep two of them apart.

    with Proxy() as proxy, ProxiedCluster(proxy.through, servers=2) as cluster:
        proxy.apart = {("worker-0", "server-1")}  # sender and receiver of dropped messages

A node that meets the coordinator through the proxy meets all others through it: addresses in the
views that pass are replaced by the proxy's own. A caller's socket here has the route of the caller,
so that nodes see the names that they would see without the proxy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from shoal import limits
from shoal.client import connected
from shoal.errors import WireError
from shoal.job import LaunchSettings
from shoal.launch.process_main import ProcessOrders
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from shoal.wire import Transport, coding
from shoal.wire import messages as m

_BATCH = 64  # messages of a socket before others have their turn
_POLL = 50  # milliseconds until new sockets are noticed
_LINGER = 50  # milliseconds; not 0, as in ZmqTransport


@dataclass(slots=True)
class ProxiedNode:
    """A node, the socket where its callers find it, and one to it for each caller."""

    name: str
    listening: zmq.Socket[bytes]
    address: str  # of the socket
    callers: dict[str, tuple[bytes, zmq.Socket[bytes]]] = field(default_factory=dict)  # with routes


class Proxy(contextlib.AbstractContextManager["Proxy"]):
    """Forwards messages on a thread of its own. Use as a context."""

    def __init__(self) -> None:
        self.apart: set[tuple[str, str]] = set()  # sender and receiver
        self._context = zmq.Context()
        self._context.setsockopt(zmq.SNDHWM, limits.QUEUE)  # of every socket made from now on
        self._context.setsockopt(zmq.RCVHWM, limits.QUEUE)
        self._poller = zmq.Poller()
        self._nodes: dict[str, ProxiedNode] = {}  # by their own addresses
        self._forward: dict[zmq.Socket[bytes], Callable[[list[Any]], None]] = {}
        self._lock = threading.RLock()  # of the above
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-proxy", daemon=True)
        self._thread.start()

    def through(self, address: str, name: str = limits.COORDINATOR) -> str:
        """The proxy's address for the node at that address."""
        with self._lock:
            if address not in self._nodes:
                socket = self._context.socket(zmq.ROUTER)
                socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
                port = socket.bind_to_random_port("tcp://127.0.0.1")
                self._watch(socket, lambda frames: self._to_node(address, frames))
                self._nodes[address] = ProxiedNode(name, socket, f"tcp://127.0.0.1:{port}")
            return self._nodes[address].address

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for socket in list(self._forward):
            self._drop(socket)
        self._context.term()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _watch(self, socket: zmq.Socket[bytes], forward: Callable[[list[Any]], None]) -> None:
        """The proxy's thread may use this socket from now on, and no other thread may."""
        self._forward[socket] = forward
        self._poller.register(socket, zmq.POLLIN)

    def _run(self) -> None:
        while not self._closing.is_set():
            for socket, _ in self._poller.poll(_POLL):
                with self._lock, contextlib.suppress(zmq.Again):
                    for _ in range(_BATCH):
                        if socket not in self._forward:
                            break  # closed meanwhile
                        self._forward[socket](socket.recv_multipart(zmq.DONTWAIT, copy=False))

    def _to_node(self, address: str, frames: list[Any]) -> None:
        node, route = self._nodes[address], frames.pop(0).bytes
        caller = route.partition(b"\0")[0].decode(errors="replace")
        known, socket = node.callers.get(caller, (b"", None))
        if socket is None or route != known:
            if socket is not None:  # of a process of this name that has ended
                self._drop(socket)
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, route)
            socket.connect(address)
            self._watch(socket, lambda answer: self._to_caller(node, caller, [route, *answer]))
            node.callers[caller] = route, socket
        if (caller, node.name) not in self.apart:
            _send(socket, frames)

    def _to_caller(self, node: ProxiedNode, caller: str, frames: list[Any]) -> None:
        if (node.name, caller) not in self.apart:
            if node.name == limits.COORDINATOR:
                frames[1] = self._rewritten(frames[1])
            _send(node.listening, frames)

    def _rewritten(self, header: zmq.Frame) -> Any:
        try:
            message = coding.decode_header(header.bytes)
        except WireError:
            return header
        if isinstance(message, m.Welcome):
            message = msgspec.structs.replace(message, view=self._through_us(message.view))
        elif isinstance(message, m.View):
            message = self._through_us(message)
        else:
            return header
        return coding.encode(message)

    def _through_us(self, view: m.View) -> m.View:
        here = {one.address for one in view.members}
        for address, node in list(self._nodes.items()):
            if address not in here and node.name != limits.COORDINATOR:
                del self._nodes[address]
                for socket in (node.listening, *(socket for _, socket in node.callers.values())):
                    self._drop(socket)
        members = [
            msgspec.structs.replace(one, address=self.through(one.address, one.name)) if one.address else one
            for one in view.members
        ]
        return msgspec.structs.replace(view, members=members)

    def _drop(self, socket: zmq.Socket[bytes]) -> None:
        del self._forward[socket]
        self._poller.unregister(socket)
        socket.close(_LINGER)


def _send(socket: zmq.Socket[bytes], frames: list[Any]) -> None:
    with contextlib.suppress(zmq.ZMQError):  # a full queue: the sender sends it again
        socket.send_multipart(frames, zmq.DONTWAIT, copy=False)


class ProxiedCluster(ProcessCluster):
    """A cluster whose nodes connect to an address ``through`` a proxy; close both."""

    def __init__(
        self,
        through: Callable[[str], str],
        servers: int,
        copies: int = 1,
        modules: tuple[str, ...] = (),
        journal: JournalFile | None = None,
        restart: bool | None = None,
    ) -> None:
        again = copies > 1 if restart is None else restart
        launch = LaunchSettings(transport="tcp", modules=list(modules))
        super().__init__(servers, launch, journal or JournalFile(None), copies, again)
        self._through = through

    @property
    def address(self) -> str:
        return self._through(self._address)

    def _orders(self, name: str, kind: Any, work: dict[str, Any]) -> ProcessOrders:
        orders = super()._orders(name, kind, work)
        return orders if kind == "coordinator" else msgspec.structs.replace(orders, coordinator=self.address)

    def _transport(self, name: str) -> Transport:
        return connected(name, self.address, self._safety)

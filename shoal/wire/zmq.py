"""Messages between processes, over ZeroMQ: tcp between hosts, ipc (Unix sockets) within one.

A node that others call binds one ROUTER socket; a node that calls others holds one DEALER socket for each, which says
its name when it connects. So every message is known by its sender's name, answers go back the way the question came, and
a peer that is gone costs nothing but what was sent to it. What does not decode is dropped and counted, and its sender is
told if it can be.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections import Counter
from typing import Any

import zmq

from shoal import limits
from shoal.errors import Invalid, OtherVersion, WireError
from shoal.wire.address import check_address
from shoal.wire.coding import decode, encode
from shoal.wire.effects import Received
from shoal.wire.messages import Arrays, Message, No

_BATCH = 64
_COPIED = limits.MB  # smaller arrays are copied: cheaper than to be told by another thread when they may go
_FRAMES = limits.FRAMES + 2  # a name, a header, and arrays
_SKIPPED = 4_096  # frames of a message that is too long, thrown away in one turn
_LINGER = 200  # milliseconds for the last words
_KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 5, zmq.TCP_KEEPALIVE_INTVL: 2, zmq.TCP_KEEPALIVE_CNT: 3}
# Those find a peer that vanished while nothing was on its way to it. With bytes on their way the kernel would go on sending
# them for a quarter of an hour, and a greeting that nobody hears is repeated ever more rarely, for two minutes.
_GIVEN_UP = {zmq.TCP_MAXRT: 10_000, zmq.CONNECT_TIMEOUT: 3_000}  # milliseconds


class ZmqTransport:
    """One node's sockets. Only one thread at a time may use them; ``wake`` may be called from any."""

    def __init__(self, name: str, bind: str | None = None) -> None:
        self._name = name.encode()
        self._context = zmq.Context()  # its own: a full queue or a slow close of one node is no matter of the others
        self._counts: Counter[str] = Counter()
        self._sent = self._received = 0  # bytes
        self._poller = zmq.Poller()
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._addresses: dict[str, str] = {}
        self._names: dict[zmq.Socket[bytes], str] = {}
        self._mutual: set[str] = set()  # nodes that we call and that call us
        self._too_long: dict[zmq.Socket[bytes], list[zmq.Frame]] = {}  # messages that have more frames than any may
        self._router: zmq.Socket[bytes] | None = None
        self._address = ""
        self._alarm, self._bell = os.pipe()  # unlike a socket, a pipe may be written to from any thread
        os.set_blocking(self._alarm, False)
        os.set_blocking(self._bell, False)
        self._pipe, self._open = [self._alarm, self._bell], list[zmq.Socket[bytes]]()
        self._shut = weakref.finalize(self, _shut, os.getpid(), self._context, self._open, self._pipe)
        self._shut.atexit = False  # by then it is closed, or nobody cares
        self._poller.register(self._alarm, zmq.POLLIN)
        if bind is not None:
            self._bind(bind)

    def _bind(self, address: str) -> None:
        check_address(address)
        self._router = self._socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a peer that is gone is an error we count, not silence
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a peer that comes back has its name again at once
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise Invalid(f"cannot listen at {address}: {error.strerror}: take another address") from None
        self._address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller.register(self._router, zmq.POLLIN)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, limits.QUEUE)
        socket.setsockopt(zmq.RCVHWM, limits.QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_BYTES + limits.HEADER_BYTES)  # our own check answers below this
        if kind == zmq.DEALER:
            # Who calls asks for signs of life, and says when it may be given up. A ROUTER must not ask: libzmq (4.3.5) aborts
            # the process if the timer for that meets a connection that ended while it could not be read, because its
            # queue was full or its name was taken over. So a caller's queue has no end either: all in it was asked for.
            socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
            socket.setsockopt(zmq.HEARTBEAT_TTL, 10_000)
            socket.setsockopt(zmq.RCVHWM, 0)
        for option, value in (_KEEPALIVE | _GIVEN_UP).items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.HANDSHAKE_IVL, limits.HELLO_WITHIN // limits.MILLISECOND)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        socket.copy_threshold = _COPIED
        self._open.append(socket)
        return socket

    @property
    def address(self) -> str:
        return self._address

    def connect(self, name: str, address: str, mutual: bool = False) -> None:
        """Reach this node here; ``mutual``: it calls us, too."""
        (self._mutual.add if mutual else self._mutual.discard)(name)
        if self._addresses.get(name) == address:
            return
        self.disconnect(name)
        check_address(address)
        dealer = self._socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, self._name)
        try:
            dealer.connect(address)
        except zmq.ZMQError as error:
            self._open.remove(dealer)
            dealer.close(0)
            raise Invalid(
                f"cannot connect to {address!r}: {error.strerror}: give tcp://127.0.0.1:PORT or ipc://PATH"
            ) from None
        self._dealers[name], self._names[dealer], self._addresses[name] = dealer, name, address
        self._poller.register(dealer, zmq.POLLIN)

    def disconnect(self, name: str) -> None:
        dealer = self._dealers.pop(name, None)
        if dealer is not None:
            self._poller.unregister(dealer)
            self._too_long.pop(dealer, None)
            del self._names[dealer], self._addresses[name]
            self._open.remove(dealer)
            dealer.close()

    def send(self, to: str, message: Message, arrays: Arrays) -> None:
        header = encode(message)
        frames: list[Any] = [header, *arrays]
        socket = self._dealers.get(to)
        if socket is None:
            if self._router is None:
                self._counts["nobody there"] += 1
                return
            socket = self._router
            frames.insert(0, to.encode())
        try:
            socket.send_multipart(frames, zmq.DONTWAIT, copy=False)
        except zmq.ZMQError:  # the peer is gone or its queue is full: who needs an answer asks again
            self._counts["not delivered"] += 1
            return
        self._sent += len(header) + sum(array.nbytes for array in arrays)

    def flush(self) -> None:
        return  # zmq has a thread of its own for that

    def receive(self, seconds: float) -> list[Received]:
        found: list[Received] = []
        for socket, _ in self._poller.poll(max(0, math.ceil(seconds * 1_000))):
            if socket == self._alarm:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._alarm, 65_536)
                continue
            for _ in range(_BATCH):
                frames = self._frames(socket)
                if not frames:
                    break
                self._take(socket, frames, found)
                if not socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                    break
        return found

    def _frames(self, socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
        """A message; of one that is too long, enough to see that. What follows is thrown away, in this turn or the next ones."""
        frames = self._too_long.pop(socket, [])
        if not frames:
            frames.append(socket.recv(zmq.DONTWAIT, copy=False))
            while frames[-1].more and len(frames) <= _FRAMES:
                frames.append(socket.recv(zmq.DONTWAIT, copy=False))
        for _ in range(_SKIPPED if frames[-1].more else 0):
            frames[-1] = socket.recv(zmq.DONTWAIT, copy=False)
            if not frames[-1].more:
                break
        if not frames[-1].more:
            return frames
        self._too_long[socket] = frames  # nobody else is heard until it is over, but the loop goes on
        return []

    def _take(self, socket: zmq.Socket[bytes], frames: list[zmq.Frame], found: list[Received]) -> None:
        if socket is self._router:
            sender = frames.pop(0).bytes.decode(errors="replace")
            if (
                sender in self._dealers and sender not in self._mutual
            ):  # that node we call ourselves: whoever comes in under its name is another
                self._counts["impostor"] += 1
                return
        else:
            sender = self._names[socket]
        self._received += sum(map(len, frames))
        try:
            if not frames:
                raise WireError("a message without a header")
            message, arrays = decode(frames[0].buffer, [frame.buffer for frame in frames[1:]])
        except WireError as error:
            self._counts["other version" if isinstance(error, OtherVersion) else "not a message"] += 1
            if socket is self._router:
                self.send(sender, No(0, "version" if isinstance(error, OtherVersion) else "wire", str(error)), ())
            return
        found.append(Received(sender, message, arrays))

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full of calls already
            if self._pipe:  # not closed
                os.write(self._bell, b"!")

    @property
    def traffic(self) -> tuple[int, int]:
        return self._sent, self._received

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self._shut()


def _shut(pid: int, context: zmq.Context[Any], sockets: list[zmq.Socket[bytes]], pipe: list[int]) -> None:
    """Close everything. Also called when a transport is forgotten: a context that ends before its sockets never ends."""
    if os.getpid() != pid:
        return  # a forked child: the sockets are its parent's
    for socket in sockets:
        socket.close(_LINGER)
    context.term()
    while pipe:
        os.close(pipe.pop())

"""Carries messages between processes over ZeroMQ: tcp, or ipc (Unix sockets).

A listening node binds one ROUTER socket; a calling node has a DEALER socket for each node it
calls, which sends its route when it connects. So the sender of every message is known by name.
Messages that do not decode are dropped and counted, and their sender hears of it if possible;
messages that are too large are not sent. With keys (``Safety``) tcp is encrypted (CURVE), and a
message is accepted only if its key allows its sender's name and its kind.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import zmq

from shoal import limits
from shoal.errors import Damaged, Invalid, OtherVersion, WireError
from shoal.security.address import check_address, parsed, with_key
from shoal.security.authorize import objection
from shoal.security.connections import EVENTS, ConnectionLimit, Reconnect, monitor
from shoal.security.curve import CallerList, CurveAuthenticator, RefusalLog
from shoal.security.keyring import PublicKey, bytes_of
from shoal.security.safety import Safety
from shoal.wire.coding import decode, encode, name_of, too_large
from shoal.wire.effects import Received
from shoal.wire.messages import Allowed, Arrays, Message, Refusal

_BATCH = 64
_COPIED = limits.MB  # smaller arrays are copied, which is cheaper than tracking their use
_FRAMES = limits.FRAMES + 3  # a route, a name, a header, and arrays
_SKIPPED = 4_096  # frames of a message that is too long, thrown away in one turn
_LINGER = 200  # milliseconds for the last words
# Linger in milliseconds for a node that we disconnect from. Not 0: libzmq (4.3.5) aborts the
# process if a connection ends after half a message while its socket closes without linger, and a
# leaving peer is closed here just when it ends there.
_PARTING = 50
_OPTIONS = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
    # Heartbeats detect a peer that vanished while idle. With bytes in flight the kernel would retry
    # for a quarter of an hour, and an unanswered connect with backoff for two minutes.
    zmq.TCP_MAXRT: 10_000,
    zmq.CONNECT_TIMEOUT: 3_000,  # milliseconds, both
    zmq.LINGER: 0,
    zmq.SNDHWM: limits.QUEUE,
    zmq.RCVHWM: limits.QUEUE,
    zmq.MAXMSGSIZE: limits.FRAME_BYTES + limits.HEADER_BYTES,  # our own check answers first
    zmq.HANDSHAKE_IVL: limits.HELLO_WITHIN // limits.MILLISECOND,
    zmq.RECONNECT_IVL_MAX: 1_000,
}
# Who calls asks for signs of life, and says when it may be given up. A ROUTER must not ask: libzmq
# (4.3.5) aborts the process if the timer for that meets a connection that ended while it could not
# be read, because its queue was full or its name was taken over. So a caller's queue has no end
# either: all in it was asked for.
_CALLER = {zmq.HEARTBEAT_IVL: 5_000, zmq.HEARTBEAT_TIMEOUT: 10_000, zmq.HEARTBEAT_TTL: 10_000, zmq.RCVHWM: 0}


@dataclass(slots=True)
class _Call:
    """A node that we call."""

    dealer: zmq.Socket[bytes]
    address: str
    link: Reconnect  # how our calls go
    mutual: bool  # it calls us, too


class ZmqTransport:
    """A node's sockets. One thread at a time may use them; any thread may call ``wake``.

    ``advertise`` is the host that others call, if it binds an address such as 0.0.0.0.
    """

    def __init__(self, name: str, bind: str | None = None, safety: Safety | None = None, advertise: str = "") -> None:
        self._name = name.encode()
        self._routes = Routes()  # where those who call us in the clear spoke from
        self._unsent: list[Received] = []  # why some of what we sent did not go
        self._safety = safety or Safety.local()
        # not shared: a full queue or slow close affects this node only
        self._context = zmq.Context()
        self._counts: Counter[str] = Counter()
        self._sent = self._received = 0  # bytes
        self._poller = zmq.Poller()
        self._calls: dict[str, _Call] = {}
        # sockets that bring news, not messages
        self._watched: dict[Any, Callable[[list[Received]], None]] = {}
        self._log = RefusalLog(name)
        self._curve: CurveAuthenticator | None = None  # where we listen with keys
        self._names: dict[zmq.Socket[bytes], str] = {}
        # messages that have more frames than any may
        self._too_long: dict[zmq.Socket[bytes], list[zmq.Frame]] = {}
        self._router: zmq.Socket[bytes] | None = None
        self._address = ""
        self._wake_out, self._wake_in = os.pipe()  # any thread may write to a pipe
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._pipe, self._open = [self._wake_out, self._wake_in], list[zmq.Socket[bytes]]()
        self._close_all = weakref.finalize(self, _close_all, os.getpid(), self._context, self._open, self._pipe)
        self._close_all.atexit = False  # by then it is closed, or nobody cares
        self._poller.register(self._wake_out, zmq.POLLIN)
        if bind is not None:
            self._bind(bind, advertise)

    def _bind(self, address: str, advertise: str) -> None:
        try:
            self._safety.check(address := parsed(address).plain)
            own = self._safety.own(self._name.decode()) if self._safety.has_keys and address.startswith("tcp") else None
        except Invalid:
            self.close()
            raise
        self._router = self._socket(zmq.ROUTER)
        listening = ConnectionLimit(self._context, self._router, self._counts, self._log, own is not None)
        self._watch(listening.watch, lambda found: listening.look())
        if own is not None:
            guests = CallerList(self._safety.folder, own)
            self._curve = curve = CurveAuthenticator(
                self._context, self._name.decode(), guests, self._counts, self._log
            )
            self._watch(curve.socket, lambda found: curve.answer())
            self._router.setsockopt(zmq.CURVE_SERVER, 1)
            self._router.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
            self._router.setsockopt(zmq.ZAP_DOMAIN, b"shoal")
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a dead peer is an error that we count
        # A peer whose connection broke gets its route back at once. Not with keys: any accepted key
        # could take over another caller's route, and receive its messages.
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 0 if own is not None else 1)
        try:
            self._address = listening.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise Invalid(f"cannot listen at {address}: {error.strerror}: take another address") from None
        if advertise:
            self._address = f"tcp://{advertise}:{self._address.rpartition(':')[2]}"
        if own is not None:
            self._address = with_key(self._address, own.public)
        self._poller.register(self._router, zmq.POLLIN)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        for option, value in (_OPTIONS | _CALLER if kind == zmq.DEALER else _OPTIONS).items():
            socket.setsockopt(option, value)
        socket.copy_threshold = _COPIED
        self._open.append(socket)
        return socket

    @property
    def address(self) -> str:
        return self._address

    def connect(self, name: str, address: str, mutual: bool = False) -> None:
        """Connect to this node; ``mutual``: it connects to us, too."""
        call = self._calls.get(name)
        if call is not None and call.address == address:
            call.mutual = mutual
            return
        if not isinstance(address, str):
            check_address(address)
        where = parsed(address)
        key = self._safety.key_at(name, where)
        self.disconnect(name)
        dealer = self._socket(zmq.DEALER)
        if not key:
            dealer.setsockopt(zmq.IDENTITY, route_of(self._name))
        try:
            if key:
                own = self._safety.own(self._name.decode())
                dealer.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
                dealer.setsockopt(zmq.CURVE_PUBLICKEY, bytes_of(own.public))
                dealer.setsockopt(zmq.CURVE_SERVERKEY, bytes_of(key))
            link = Reconnect(name, where.plain, key, monitor(self._context, dealer, EVENTS))
            self._watch(link.watch, partial(self._look, link))
            self._calls[name], self._names[dealer] = _Call(dealer, address, link, mutual), name
            self._poller.register(dealer, zmq.POLLIN)
            dealer.connect(where.plain)
        except (zmq.ZMQError, Invalid) as error:
            if name in self._calls:
                self._drop(name, 0)
            else:
                self._open.remove(dealer)
                dealer.close(0)
            if isinstance(error, Invalid):
                raise
            raise Invalid(
                f"cannot connect to {address!r}: {error.strerror}: give tcp://127.0.0.1:PORT or ipc://PATH"
            ) from None
        if key and name == limits.COORDINATOR and self._curve is not None:
            self._curve.guests.trust(key)

    def _watch(self, socket: zmq.Socket[bytes], look: Callable[[list[Received]], None]) -> None:
        self._watched[socket] = look
        self._open.append(socket)
        self._poller.register(socket, zmq.POLLIN)

    def _redial(self, name: str) -> None:
        """Reconnect after libzmq gave the connection up."""
        self._counts["dialled again"] += 1
        call = self._calls[name]
        self._drop(name, 0)  # there is no connection that could end
        self.connect(name, call.address, call.mutual)

    def disconnect(self, name: str) -> None:
        self._drop(name, _PARTING)

    def _drop(self, name: str, linger: int) -> None:
        call = self._calls.pop(name, None)
        if call is not None:
            self._too_long.pop(call.dealer, None)
            del self._names[call.dealer], self._watched[call.link.watch]
            call.dealer.disable_monitor()
            for socket, wait in ((call.dealer, linger), (call.link.watch, 0)):
                self._poller.unregister(socket)
                self._open.remove(socket)
                socket.close(wait)

    def send(self, to: str, message: Message, arrays: Arrays) -> None:
        call = self._calls.get(to)
        # What is encrypted needs no checksum: a flipped bit does not decrypt.
        is_checked = self._safety.checksums and self._curve is None and not (call is not None and call.link.key)
        header = encode(message, arrays if is_checked else ())
        if why := too_large(header, arrays):
            self._refuse(to, message, why)
            return
        frames: list[Any] = [header, *arrays]
        if call is not None and call.link.may_dial():
            self._look(call.link, self._unsent)  # libzmq may have tried again meanwhile
            if call.link.may_dial():
                self._redial(to)
                call = self._calls[to]
        if call is None:
            if self._router is None or (self._curve is not None and not self._curve.may_hear(to)):
                self._counts["nobody there"] += 1
                return
            socket = self._router
            frames.insert(0, self._routes.to(to) if self._curve is None else self._curve.names[to].route)
        else:
            socket = call.dealer
            if call.link.key:
                frames.insert(0, self._name)
        try:
            socket.send_multipart(frames, zmq.DONTWAIT, copy=False)
        except zmq.ZMQError:  # the peer is gone or its queue is full: the sender resends
            self._counts["not delivered"] += 1
            return
        self._sent += len(header) + sum(array.nbytes for array in arrays)

    def _refuse(self, to: str, message: Message, why: str) -> None:
        """Do not send a message that is too large; tell the node that waits for it."""
        self._counts["too large"] += 1
        self._log(f"a {name_of(message)} to {to[: limits.NAME_CHARS]!r} was not sent: {why}")
        refusal = Refusal(getattr(message, "request", 0), "wire", f"{why}: it was not sent")
        if to in self._calls:
            self._unsent.append(Received(to, refusal, ()))
        elif not isinstance(message, Refusal):
            self.send(to, refusal, ())

    def flush(self) -> None:
        return  # zmq has a thread of its own for that

    def receive(self, seconds: float) -> list[Received]:
        found, self._unsent = self._unsent, []
        if self._curve is not None and self._curve.look():
            self._tell_list(found)
        for socket, _ in self._poller.poll(max(0, math.ceil(seconds * 1_000)) if not found else 0):
            if socket == self._wake_out:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_out, 65_536)
                continue
            if (handle := self._watched.get(socket)) is not None:
                handle(found)
                continue
            if socket.closed:  # it was reconnected just now
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
        """The frames of a message; of one with too many frames the rest is discarded."""
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
        # nobody else is heard until it is over, but the loop goes on
        self._too_long[socket] = frames
        return []

    def _take(self, socket: zmq.Socket[bytes], frames: list[zmq.Frame], found: list[Received]) -> None:
        key: PublicKey | None = None
        if socket is self._router:
            named = route = frames.pop(0)
            if self._curve is not None and frames:
                named = frames.pop(0)
            if len(named) > ROUTE_BYTES:
                self._counts["not a message"] += 1
                return
            sender = self._routes.sender(named.bytes) if self._curve is None else named.bytes.decode(errors="replace")
            # We call that node ourselves: a caller of that name is another one.
            if (call := self._calls.get(sender)) is not None and not call.mutual:
                self._counts["impostor"] += 1
                return
            if self._curve is not None:
                key, why = self._curve.sender(sender, route.bytes, named)
                if key is None:
                    if why:
                        self._send_refusal(route.bytes, why)
                    return
        else:
            sender = self._names[socket]
        self._received += sum(map(len, frames))
        try:
            if not frames:
                raise WireError("a message without a header")
            message, arrays = decode(frames[0].buffer, [frame.buffer for frame in frames[1:]])
        except WireError as error:
            self._not_understood(socket, sender, error, found)
            return
        if key is not None and not self._is_welcome(sender, key, message):
            return
        if isinstance(message, Allowed):
            call = self._calls.get(sender)
            if self._curve is not None and sender == limits.COORDINATOR and call is not None and call.link.key:
                self._curve.take_list(message)
                self._tell_list(found)
            return
        found.append(Received(sender, message, arrays))

    def _not_understood(self, socket: Any, sender: str, error: WireError, found: list[Received]) -> None:
        """Tell the caller that its message does not decode; report another protocol version."""
        other = isinstance(error, OtherVersion)
        self._counts["other version" if other else "damaged" if isinstance(error, Damaged) else "not a message"] += 1
        refusal = Refusal(0, "version" if other else "wire", str(error))
        if socket is self._router:
            if other:
                self._log(f"{sender[: limits.NAME_CHARS]!r} was refused: {error}")
            self.send(sender, refusal, ())
        elif other:
            found.append(Received(sender, refusal, ()))

    # ------------------------------------------------------------ keys

    def _look(self, link: Reconnect, found: list[Received]) -> None:
        if why := link.look():
            self._counts["refused"] += 1
            found.append(Received(link.name, Refusal(0, "key", why), ()))

    def _is_welcome(self, sender: str, key: PublicKey, message: Message) -> bool:
        """Whether the key allows this message; listening nodes also get the list of keys."""
        assert self._curve is not None
        if why := objection(key, message, sender):
            self._counts["not theirs to say"] += 1
            self._curve.log(f"what {sender!r} says is not taken: {why}")
            self.send(sender, Refusal(getattr(message, "request", 0), "key", why), ())
            return False
        if self._curve.lacks_list(sender, key):
            self.send(sender, self._curve.list(), ())
        return True

    def _tell_list(self, found: list[Received]) -> None:
        """Send the changed list of keys to listening nodes, and refusals to revoked ones."""
        assert self._curve is not None
        for name, (public, route) in list(self._curve.names.items()):
            if (refusal := self._curve.guests.refusal(public, name)) is not None:
                self._curve.forget(name)
                self._send_refusal(route, refusal.why)
                if self._curve.is_authority:
                    found.append(Received(name, Refusal(0, "key", refusal.end), ()))
            elif (key := self._curve.guests.find(public)) is not None and self._curve.lacks_list(name, key):
                self.send(name, self._curve.list(), ())

    def _send_refusal(self, route: bytes, why: str) -> None:
        assert self._router is not None
        with contextlib.suppress(zmq.ZMQError):  # gone already
            self._router.send_multipart([route, encode(Refusal(0, "key", why))], zmq.DONTWAIT)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full of calls already
            if self._pipe:  # not closed
                os.write(self._wake_in, b"!")

    @property
    def traffic(self) -> tuple[int, int]:
        return self._sent, self._received

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self._close_all()


def _close_all(pid: int, context: zmq.Context[Any], sockets: list[zmq.Socket[bytes]], pipe: list[int]) -> None:
    """Close all sockets, then the context (which would otherwise never end)."""
    if os.getpid() != pid:
        return  # a forked child: the sockets are its parent's
    for socket in sockets:
        socket.close(_LINGER)
    context.term()
    while pipe:
        os.close(pipe.pop())


ROUTE_BYTES = 255  # libzmq has no room for more
_DRAWN = 8  # bytes


def route_of(name: bytes) -> bytes:
    return name[: ROUTE_BYTES - 1 - _DRAWN] + b"\0" + os.urandom(_DRAWN)


class Routes:
    """The latest route of each unencrypted caller: its name, a zero byte and a random number.

    libzmq identifies a caller by a *route* that the caller chooses. If that were the name alone, a
    second process of the same name would take over the connection of the first. So all are heard,
    each is answered, and the coordinator decides between them by incarnation. A bare name is
    accepted, too: it may be of another version, and is told so. The longest silent is dropped.
    """

    def __init__(self) -> None:
        self._last: dict[str, bytes] = {}

    def sender(self, route: bytes) -> str:
        """The name of the sender on this route, which gets the answers from now on."""
        name = route.partition(b"\0")[0].decode(errors="replace")
        self._last.pop(name, None)
        self._last[name] = route
        if len(self._last) > 2 * limits.MEMBERS:
            del self._last[next(iter(self._last))]
        return name

    def to(self, name: str) -> bytes:
        return self._last.get(name) or name.encode()

"""Watches connections: bounds those of a listening node, and sees why calls are refused.

Without a limit, a storm of callers would use up the descriptors, and the files and calls of
members would fail. libzmq accepts every connection, and to stop listening would end all
connections. So while the node is full, a socket filter on the listening socket lets the kernel
drop new connections: strangers get no answer, members with a broken connection retry, and open
connections are unaffected.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import socket as sockets
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from shoal import limits
from shoal.security.curve import EXPIRED

EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
)
# seconds: what lasts longer was no refusal, the other side did not get round to it
_BROKEN_OFF = 2.0
_numbers = itertools.count()


def monitor(context: zmq.Context[Any], socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """A monitor of a socket's connections. Unbounded: libzmq would block on a full one."""
    where = f"inproc://monitor-{next(_numbers)}"
    socket.monitor(where, events)
    watch: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    watch.setsockopt(zmq.LINGER, 0)
    watch.setsockopt(zmq.RCVHWM, 0)
    watch.connect(where)
    return watch


@dataclass(slots=True)
class Reconnect:
    """One outgoing connection. libzmq does not report a refusal to the caller, so it is watched.

    It is refused by key, there is no common mechanism (one side has no keys), or every handshake is
    broken off (the other side has another key than the address says): the node gets a ``Refusal``
    by the called node. Or libzmq gives it up, since something that is no message arrived: then it
    is opened again after a while.
    """

    name: str
    address: str  # without the key
    key: str  # that the other side must have; empty: it is called in the clear
    watch: zmq.Socket[bytes]
    answered: bool = False  # it has let us in, once at least
    broken: int = 0  # greetings that it broke off, since then
    connected: float = 0.0
    dead: float = 0.0  # when libzmq gave it up

    def look(self) -> str:
        """Why the other side refuses us; empty if nothing is new."""
        why = ""
        while self.watch.poll(0):
            event: Any = parse_monitor_message(self.watch.recv_multipart(zmq.DONTWAIT))
            why = self._happened(event["event"], event["value"]) or why
        return why

    def may_dial(self) -> bool:
        return bool(self.dead) and time.monotonic() - self.dead >= limits.REDIAL / limits.SECOND

    def _happened(self, event: int, value: int) -> str:
        now = time.monotonic()
        if event == zmq.EVENT_CONNECTED:
            self.connected = now
        elif event == zmq.EVENT_DISCONNECTED:
            # libzmq says nothing when it gives a connection up; if it does not, it says in the
            # same breath that it tries again.
            self.dead = now
        elif event == zmq.EVENT_CONNECT_RETRIED:
            self.dead = 0.0
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.answered, self.broken, self.dead = True, 0, 0.0
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.dead = now
            if value == EXPIRED:
                return (
                    f"{self.address} did not let us in: the key of this host has expired there: on the coordinator's host it is let in again "
                    f"(shoal key add LINE --until LATER, with the line that shoal key list shows here)"
                )
            return (
                f"{self.address} did not let us in: the key of this host is not on the list there (shoal key list shows it here, "
                f"shoal key add puts it on the coordinator's list), or was revoked (then shoal key new makes another)"
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self.dead = now
            return "" if self.answered else self._no_language()
        elif now - self.connected < _BROKEN_OFF:
            self.broken += 1
            if self.broken % limits.REFUSED_AFTER == 0 and not self.answered:
                return self._no_language() if not self.key else self._wrong_key()
        return ""

    def _no_language(self) -> str:
        if self.key:
            return f"{self.address} runs without keys, or is no shoal: call it without KEY@, or start it with --keys"
        return (
            f"{self.address} runs with keys and was called without (or is no shoal): give its whole address, tcp://KEY@HOST:PORT, "
            f"and a key of this host (shoal key new)"
        )

    def _wrong_key(self) -> str:
        return (
            f"{self.address} breaks off whenever it is greeted: it has another key than the address says, or runs without keys: take the address that it "
            f"prints now, or shoal key list there"
        )


# whichever side sees it first
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED
_AT_ONCE = 1_024  # things that happened, looked at in one turn
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # of Linux; Python has no names for them
# the shortest filter there is: "return 0", that is, keep no byte of what came
_NOTHING = (ctypes.c_ubyte * 8)(0x06)


class ConnectionLimit:
    def __init__(
        self,
        context: zmq.Context[Any],
        socket: zmq.Socket[bytes],
        counts: Counter[str],
        log: Callable[[str], None],
        keys: bool,
    ) -> None:
        self.watch = monitor(context, socket, _EVENTS)
        self._socket, self._counts, self._log, self._keys = socket, counts, log, keys
        self._endpoint = ""
        self._door = -1  # the descriptor that is listened at
        self._open: set[int] = set()  # descriptors of those who are connected
        self._room = 0
        self._full = False

    def bind(self, address: str) -> str:
        """Bind, and return the address with the chosen port. Raises ZMQError."""
        self._socket.bind(address)
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._room = room()
        return self._endpoint

    def look(self) -> None:
        for _ in range(_AT_ONCE):
            if not self.watch.poll(0):
                break
            event: Any = parse_monitor_message(self.watch.recv_multipart(zmq.DONTWAIT))
            self._happened(event["event"], event["value"])
        if self._full != (len(self._open) >= self._room * (limits.CONNECTIONS_AGAIN if self._full else 1)):
            self._turn(not self._full)

    def _happened(self, event: int, value: int) -> None:
        if event == zmq.EVENT_LISTENING:
            self._door = value
        elif event == zmq.EVENT_ACCEPTED:
            self._open.add(value)
        elif event == zmq.EVENT_DISCONNECTED:
            self._open.discard(value)
        elif self._keys:
            self._counts["no key"] += 1
            self._log(f"a caller was refused at {self._endpoint}: it has no key, expects another one, or is no shoal")

    def _turn(self, full: bool) -> None:
        self._full = full
        if full:
            self._counts["full"] += 1
            self._log(f"no more callers at {self._endpoint}: {len(self._open):,} of {self._room:,} are connected")
        if not self._endpoint.startswith("tcp") or self._door < 0:
            return  # who can reach a Unix socket is one of us
        with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(self._door)) as door:
            # Where the kernel cannot do this, the descriptors are the bound.
            if full:
                program = struct.pack("@HP", 1, ctypes.addressof(_NOTHING))
                door.setsockopt(sockets.SOL_SOCKET, _ATTACH_FILTER, program)
            else:
                door.setsockopt(sockets.SOL_SOCKET, _DETACH_FILTER, 0)


def room() -> int:
    """Descriptors for connections: all but those in use and a reserve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    free = limits.CONNECTIONS if soft == resource.RLIM_INFINITY else soft - used - limits.DESCRIPTORS_KEPT
    return max(limits.CONNECTIONS_LEAST, min(limits.CONNECTIONS, free))


def raise_descriptors() -> None:
    """Raise the soft limit to the hard limit, in our own processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.CONNECTIONS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

"""Limits the connections of a listening node, so that it never runs out of file descriptors.

Without a limit, a storm of callers would use up the descriptors, and the files and calls of
members would fail. libzmq accepts every connection, and to stop listening would end all
connections. So while the node is full, a socket filter on the listening socket lets the kernel
drop new connections: strangers get no answer, members with a broken connection retry, and open
connections are unaffected.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket as sockets
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from shoal import limits
from shoal.security.reconnect import monitor

# whichever side sees it first
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED
_AT_ONCE = 1_024  # things that happened, looked at in one turn
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # of Linux; Python has no names for them
# the shortest filter there is: "return 0", that is, keep no byte of what came
_NOTHING = (ctypes.c_ubyte * 8)(0x06)


class ConnectionLimit:
    """The connections of one listening socket."""

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
        """Handle new and ended connections."""
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
            self._log(
                f"a caller was refused at {self._endpoint}: it has no key, or took this for a node with another key (or is no shoal)"
            )

    def _turn(self, full: bool) -> None:
        self._full = full
        if full:
            self._counts["full"] += 1
            self._log(
                f"no more callers at {self._endpoint}: {len(self._open):,} are connected, and there is room for {self._room:,}"
            )
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

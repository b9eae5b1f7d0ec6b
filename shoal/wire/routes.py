"""Routes answers to unencrypted callers: a route is a node's name and a number per socket.

libzmq identifies a caller by a *route* that the caller chooses. If that were the name alone, a
second process of the same name would take over the connection of the first, which would hear
nothing more (so would two sockets of one process, if the closing one reconnects last), until its
connection times out ten seconds later. So a route is a name, a zero byte and a random number for
each socket: all are heard, each is answered, and the coordinator decides between them by
incarnation. A caller with a bare name is accepted, too: it may be of another version, and is told
so.
"""

from __future__ import annotations

import os

from shoal import limits

MOST = 255  # bytes: more have no room in what libzmq says of a connection
_DRAWN = 8  # bytes


def route_of(name: bytes) -> bytes:
    """A new route for a socket of this node."""
    return name[: MOST - 1 - _DRAWN] + b"\0" + os.urandom(_DRAWN)


class Routes:
    """The latest route of each name. Bounded: the name that was silent longest is dropped first."""

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

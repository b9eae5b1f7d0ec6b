"""Where those who call in the clear are answered: a name, and which socket of that name it is.

libzmq knows a caller by a *route* that the caller chooses. Were that the name alone, a second process of a name would take over the
connection of the first, which would hear nothing more and not know why; so would two sockets of one process, if the one that is being closed
connects once more after the other. The one that lost its route seems to be connected, and nothing that it says is heard, until
its connection is given up ten seconds later. So a route is a name, a zero byte and a number drawn for each
socket: all are heard, each is answered when it speaks, and whoever decides between them (the coordinator, by incarnations) can
tell the other. A caller that gives a bare name is taken as well: it may be of another version, and is told so.
"""

from __future__ import annotations

import os

from shoal import limits

MOST = 255  # bytes: more have no room in what libzmq says of a connection
_DRAWN = 8  # bytes


def route_of(name: bytes) -> bytes:
    """A route for one socket of a node that is called so."""
    return name[: MOST - 1 - _DRAWN] + b"\0" + os.urandom(_DRAWN)


class Routes:
    """By name, the route that was spoken from last. Names are made up by whoever comes: who was silent longest is forgotten first."""

    def __init__(self) -> None:
        self._last: dict[str, bytes] = {}

    def sender(self, route: bytes) -> str:
        """The name of whoever speaks from there. Answers go there from now on."""
        name = route.partition(b"\0")[0].decode(errors="replace")
        self._last.pop(name, None)
        self._last[name] = route
        if len(self._last) > 2 * limits.MEMBERS:
            del self._last[next(iter(self._last))]
        return name

    def to(self, name: str) -> bytes:
        return self._last.get(name) or name.encode()

"""Watches outgoing connections, because libzmq does not report a refusal to the caller.

    refused by key      the other side does not accept this key
    no common mechanism one side has keys and the other has none
    broken off          every handshake fails: the other side has another key than the address says,
                        or has keys while we call without
    given up            something other than a message arrived (e.g. a frame beyond the size limit):
                        libzmq ends such a connection for good

All but the last are reported to the node as a ``Refusal`` by the called node. A connection that
libzmq gave up is opened again after a while: a key may have been added meanwhile.
"""

from __future__ import annotations

import itertools
import time
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
    """The state of one outgoing connection."""

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

"""How bytes travel.

``messages`` is everything one node can say to another, on one page; ``effects`` is what a state machine sees and asks
for; a ``Transport`` carries messages between nodes that know each other by name: ``memory`` between threads (references),
``zmq`` between processes (tcp, ipc). Nothing here knows what a message means.
"""

from __future__ import annotations

from typing import Protocol

from shoal.wire.effects import Received
from shoal.wire.messages import Arrays, Message


class Transport(Protocol):
    """Carries messages. One thread at a time may use it; only ``wake`` may be called from any thread."""

    @property
    def address(self) -> str:
        """Where others reach this node, or an empty string if nobody can call it first."""

    def connect(self, name: str, address: str, mutual: bool = False) -> None:
        """From now on ``name`` is reached at ``address``."""

    def disconnect(self, name: str) -> None:
        """``name`` is gone; what was meant for it is dropped."""

    def send(self, to: str, message: Message, arrays: Arrays) -> None:
        """Never blocks and never raises for a peer that is gone: what is lost is sent again by who cares."""

    def flush(self) -> None:
        """What was sent may have waited for more to go with it: now it goes."""

    def receive(self, seconds: float) -> list[Received]:
        """What has come, waiting at most so long for the first."""

    def wake(self) -> None:
        """End a ``receive`` that waits in another thread."""

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""

    def counters(self) -> dict[str, int]:
        """What was dropped, by reason."""

    def close(self) -> None: ...

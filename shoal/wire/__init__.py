"""Messages, and the transports that carry them.

``messages`` has everything one node can say to another; ``effects`` has the events and effects of a
state machine. A ``Transport`` carries messages between named nodes: ``memory`` between threads (by
reference), ``zmq`` between processes (tcp, ipc).
"""

from __future__ import annotations

from typing import Protocol

from shoal.wire.effects import Received
from shoal.wire.messages import Arrays, Message

PUBLIC = (
    "coding",
    "effects",
    "half_precision",
    "memory",
    "messages",
    "zmq",
)  # for other packages; the other modules are private


class Transport(Protocol):
    """Carries messages. One thread at a time may use it; any thread may call ``wake``."""

    @property
    def address(self) -> str:
        """Where others reach this node; empty if it does not listen."""

    def connect(self, name: str, address: str, mutual: bool = False) -> None:
        """From now on ``name`` is reached at ``address``."""

    def disconnect(self, name: str) -> None:
        """``name`` is gone; messages for it are dropped."""

    def send(self, to: str, message: Message, arrays: Arrays) -> None:
        """Never blocks, and never raises for a dead peer: senders resend what matters."""

    def flush(self) -> None:
        """Send what was batched."""

    def receive(self, seconds: float) -> list[Received]:
        """The messages that have arrived; waits at most this long for the first."""

    def wake(self) -> None:
        """End a ``receive`` that waits in another thread."""

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""

    def counters(self) -> dict[str, int]:
        """The number of dropped messages by reason."""

    def close(self) -> None: ...

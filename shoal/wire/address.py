"""Which addresses may be used: those of this machine, until there are keys.

Anything else would let strangers write to the model.
"""

from __future__ import annotations

from shoal.errors import Invalid

_LOCAL = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:", "ipc://", "inproc://", "memory:")
_SOCKET_PATH = 100  # characters: a Unix socket's path ends at 107


def check_address(address: str) -> None:
    if not isinstance(address, str) or not address.startswith(_LOCAL):
        raise Invalid(
            f"address {address!r} is not on this machine: only loopback (tcp://127.0.0.1:PORT) and ipc are safe"
        )
    if address.startswith("ipc://") and len(address.encode()) > _SOCKET_PATH + len("ipc://"):
        raise Invalid(f"socket path {address!r} is too long: {_SOCKET_PATH} characters at most")

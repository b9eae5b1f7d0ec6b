"""Which addresses may be used: those of this machine; others only with keys, or where somebody said that it need not be safe.

    tcp://127.0.0.1:7000            this machine, in the clear
    ipc:///run/me/coordinator       a Unix socket, guarded by the folder that it is in
    tcp://KEY@10.0.0.1:7000         any machine: encrypted, and only the holder of that key can answer

So an address is all that it takes to call a node: the key in it says who must answer. Anything else would let strangers
write to the model.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, NamedTuple

from shoal import limits
from shoal.errors import Invalid

if TYPE_CHECKING:
    from shoal.wire.security import Safety

_LOCAL = ("ipc://", "inproc://", "memory:")
_LOOPBACK = ("localhost", "[::1]")
_SOCKET_PATH = 100  # characters: a Unix socket's path ends at 107
_KEY = re.compile(r"(\w+://)([a-z2-7]{52})@(.*)", re.DOTALL)
_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.%\w]+\]|[\w.*-]+):(\d+|\*)")


class Address(NamedTuple):
    """Where a node is reached, and the key that only it has; empty: none."""

    plain: str
    key: str


def parsed(address: str) -> Address:
    found = _KEY.fullmatch(address)
    return Address(address, "") if found is None else Address(found[1] + found[3], found[2])


def with_key(address: str, key: str) -> str:
    """The same, for callers who are to know who answers."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{key}@{rest}"


def is_local(address: str) -> bool:
    """Nobody outside of this machine can reach it."""
    plain = parsed(address).plain
    if plain.startswith(_LOCAL):
        return True
    found = _TCP.fullmatch(plain)
    return found is not None and (found[1] in _LOOPBACK or _is_loopback(found[1]))


def _is_loopback(host: str) -> bool:
    """127.x.y.z as numbers: a name that begins so may be anywhere."""
    try:
        return IPv4Address(host).is_loopback
    except ValueError:
        return False


def check_address(address: str, safety: Safety | None = None) -> None:
    """Raises Invalid if nobody may be called or heard there; by default only this machine is safe."""
    plain = parsed(address).plain if isinstance(address, str) else ""
    if len(plain) > limits.ADDRESS_CHARS:
        raise Invalid(f"address {plain[:64]!r}... has {len(plain):,} characters: {limits.ADDRESS_CHARS} at most")
    if not is_local(plain):
        if not _TCP.fullmatch(plain):
            raise Invalid(f"address {address!r} is none: give tcp://HOST:PORT, or ipc://PATH on this machine")
        if safety is None or not (safety.has_keys or safety.is_insecure):
            raise Invalid(
                f"address {address!r} is not on this machine, and there only keys are safe (shoal key new NAME makes one; --keys "
                f"FOLDER, or SHOAL_KEYS): only loopback (tcp://127.0.0.1:PORT) and ipc need none; --insecure does without"
            )
    if plain.startswith("ipc://") and len(plain.encode()) > _SOCKET_PATH + len("ipc://"):
        raise Invalid(f"socket path {address!r} is too long: {_SOCKET_PATH} characters at most")

"""Checks addresses: other machines need keys, or an explicit ``insecure``.

    tcp://127.0.0.1:7000            this machine, in the clear
    ipc:///run/me/coordinator       a Unix socket, guarded by the folder that it is in
    tcp://KEY@10.0.0.1:7000         any machine: encrypted, with the key of its holder

An address is all that is needed to call a node: the key in it says who must answer. Otherwise
strangers could write to the model.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shoal.errors import Invalid

_LOCAL = ("ipc://", "inproc://", "memory:")
_LOOPBACK = re.compile(r"tcp://(127(\.\d{1,3}){3}|localhost|\[::1\]):(\d{1,5}|\*)")
_LONGEST = 300  # characters: every view has the addresses of all
_SOCKET_PATH = 100  # characters: a Unix socket's path ends at 107
_KEY = re.compile(r"(\w+://)([a-z2-7]{52})@(.*)", re.DOTALL)
_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.%\w]+\]|[\w.*-]+):(\d+|\*)")


class Address(NamedTuple):
    """Where a node is reached, and its public key (empty: none)."""

    plain: str
    key: str


def parsed(address: str) -> Address:
    found = _KEY.fullmatch(address)
    return Address(address, "") if found is None else Address(found[1] + found[3], found[2])


def with_key(address: str, key: str) -> str:
    """The address with the key of the node that must answer."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{key}@{rest}"


def is_local(address: str) -> bool:
    plain = parsed(address).plain
    return plain.startswith(_LOCAL) or _LOOPBACK.fullmatch(plain) is not None


def check_address(address: str, anywhere: bool = False) -> None:
    """Raises Invalid for an address that may not be used; by default only this machine's may."""
    plain = parsed(address).plain if isinstance(address, str) else ""
    if len(plain) > _LONGEST:
        raise Invalid(f"address {plain[:40]!r}... is too long: {_LONGEST} characters at most")
    if not is_local(plain):
        if not _TCP.fullmatch(plain):
            raise Invalid(f"address {address!r} is none: give tcp://HOST:PORT, or ipc://PATH on this machine")
        if not anywhere:
            raise Invalid(
                f"address {address!r} can be reached from other machines (it is no loopback address), and there only keys are safe (shoal "
                f"key new NAME makes one; --keys FOLDER, in Python keys=FOLDER, or SHOAL_KEYS): only loopback (tcp://127.0.0.1:PORT) and ipc need "
                f"none; --insecure, in Python insecure=True, does without"
            )
    if plain.startswith("ipc://") and len(plain.encode()) > _SOCKET_PATH + len("ipc://"):
        raise Invalid(f"socket path {address!r} is too long: {_SOCKET_PATH} characters at most")

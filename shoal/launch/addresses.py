"""Chooses the address a node binds, and the address it advertises.

A node of another host is given one address, the coordinator's. It listens at the local address that
packets to the coordinator leave by, on any free port. An address that means "all interfaces" cannot
be called, so the node then advertises that local address, or what ``--advertise`` says.
"""

from __future__ import annotations

import errno
import re
import secrets
import socket
import time

from shoal.errors import Invalid
from shoal.security.address import parsed as plain

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/?#\s]+)(:(?P<port>\d{1,5}|\*))?")
_ALL = ("0.0.0.0", "*", "[::]")  # bound, never called
_NAME = re.compile(r"[^\w-]+")
_HOST_CHARS = 32
_FREED = 3.0  # seconds until a previous process at this address has released it
_RETRY = 0.1


def parsed(address: str) -> tuple[str, str]:
    """Host and port of tcp://HOST:PORT; "*" stands for any free port."""
    found = _TCP.fullmatch(address if "://" in address else f"tcp://{address}")
    if found is None or (found["port"] not in (None, "*") and not 1 <= int(found["port"]) <= 65_535):
        raise Invalid(f"address {address!r}: give tcp://HOST:PORT, or tcp://HOST for any port that is free")
    return found["host"], found["port"] or "*"


def check_callable(listen: str, advertise: str) -> None:
    """Raises Invalid if others could not call this address and none is advertised."""
    if advertise:
        parsed(advertise)
    if listen and not advertise and parsed(listen)[0] in _ALL:
        raise Invalid(f"others cannot call {listen}: give an address of this host, or the one they call (--advertise)")


def bind_of(listen: str, port: str = "") -> str:
    """The address a socket binds. ``port`` replaces an open port; "*" opens a fixed one."""
    host, own = parsed(listen)
    return f"tcp://{host}:{own if own != '*' and port != '*' else port or own}"


def check_free(bind: str) -> None:
    """Raises Invalid if this machine cannot listen there: a foreign address, or one in use."""
    host, port = parsed(bind)
    kind, bare = (socket.AF_INET6, host.strip("[]")) if ":" in host else (socket.AF_INET, host)
    deadline = time.monotonic() + _FREED
    while True:
        try:
            with socket.socket(kind, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("" if bare == "*" else bare, 0 if port == "*" else int(port)))
            return
        except socket.gaierror:
            return  # a host name: binding it reports what is wrong
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise Invalid(f"cannot listen at {bind}: {_why(error)}") from None
            time.sleep(_RETRY)  # nothing signals that it is free


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address: give one it has (see: ip address), or use --advertise"
    if error.errno == errno.EADDRINUSE:
        return "another process listens there: end it first, or take another port"
    return f"{error.strerror}: take another address"


def host_of(advertise: str) -> str:
    """The host of tcp://HOST or HOST; ports are those that are bound."""
    return parsed(advertise)[0] if advertise else ""


def advertised(bind: str, advertise: str, towards: str) -> str:
    """The host that others call, if not the bound one; ``towards`` is the coordinator."""
    if advertise or not bind.startswith("tcp://"):
        return host_of(advertise)
    return route_address(towards) if parsed(bind)[0] in _ALL else ""


def route_address(address: str) -> str:
    """This host's address on the route to another one. Sends nothing."""
    host, port = parsed(plain(address).plain)
    host = host.strip("[]")
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port) if port != "*" else 9))
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise Invalid(f"no route to {address}: {error.strerror or error}: check the address and the network") from None
    return f"[{own}]" if ":" in own else own


def join_address(coordinator: str, listen: str, name: str, folder: str) -> str:
    """Where a joining node binds: at ``listen``, or by the kind of the coordinator's address."""
    if listen:
        return bind_of(listen)
    if coordinator.startswith("tcp://"):
        return f"tcp://{route_address(coordinator)}:*"
    return f"ipc://{folder}/{name}"


def new_name(role: str) -> str:
    """A node name unique across hosts: role, host name, random digits."""
    host = _NAME.sub("-", socket.gethostname().split(".")[0])[:_HOST_CHARS].strip("-") or "host"
    return f"{role}-{host}-{secrets.token_hex(2)}"

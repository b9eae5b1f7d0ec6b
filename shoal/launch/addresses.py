"""Where a node listens, and what it tells others to call it by.

Who comes from another host gives one address, that of the coordinator; where it listens itself follows from the way there: the
address of this host that such packets leave by, and any port that is free. An address that means "all interfaces" is none that
others could call: then that way's address is told, or what the operator says (``--advertise``).
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
_FREED = 3.0  # seconds until a former life at the same address has let go of it
_AGAIN = 0.1


def parsed(address: str) -> tuple[str, str]:
    """Host and port of tcp://HOST:PORT; without a port any that is free."""
    found = _TCP.fullmatch(address if "://" in address else f"tcp://{address}")
    if found is None or (found["port"] not in (None, "*") and not 1 <= int(found["port"]) <= 65_535):
        raise Invalid(f"address {address!r}: give tcp://HOST:PORT, or tcp://HOST for any port that is free")
    return found["host"], found["port"] or "*"


def check_callable(listen: str, advertise: str) -> None:
    """Where it listens others can call it, or the operator says how."""
    if advertise:
        parsed(advertise)
    if listen and not advertise and parsed(listen)[0] in _ALL:
        raise Invalid(
            f"{listen} is no address that others could call: give this host's own, or say what they call it by (--advertise)"
        )


def bind_of(listen: str, port: str = "") -> str:
    """What a socket is bound to; ``port``: instead of one that was left open. "*" leaves it open again."""
    host, own = parsed(listen)
    return f"tcp://{host}:{own if own != '*' and port != '*' else port or own}"


def check_free(bind: str) -> None:
    """Raises Invalid if nobody can listen there: it is another machine's address, or somebody has it."""
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
            return  # a name: whoever binds it will say what is wrong with it
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise Invalid(f"cannot listen at {bind}: {_why(error)}") from None
            time.sleep(_AGAIN)  # nobody tells us when it is free


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "that is no address of this machine: give one that is (ip address shows them), or --advertise what others call it by"
    if error.errno == errno.EADDRINUSE:
        return "somebody listens there already: end that first, or take another port"
    return f"{error.strerror}: take another address"


def host_of(advertise: str) -> str:
    """Of tcp://HOST, or HOST: the ports are those that are bound."""
    return parsed(advertise)[0] if advertise else ""


def advertised(bind: str, advertise: str, towards: str) -> str:
    """The host that others know us by, if not the one that is bound; ``towards``: the coordinator, whom they and we reach."""
    if advertise or not bind.startswith("tcp://"):
        return host_of(advertise)
    return way_to(towards) if parsed(bind)[0] in _ALL else ""


def way_to(address: str) -> str:
    """The address of this host that packets to that one leave by. Nothing is sent to find out."""
    host, port = parsed(plain(address).plain)
    host = host.strip("[]")
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port) if port != "*" else 9))
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise Invalid(
            f"no way to {address}: {error.strerror or error}: look at the address, and at the network"
        ) from None
    return f"[{own}]" if ":" in own else own


def beside(coordinator: str, listen: str, name: str, folder: str) -> str:
    """Where a newcomer binds: as it was told, or as the coordinator's own address suggests."""
    if listen:
        return bind_of(listen)
    if coordinator.startswith("tcp://"):
        return f"tcp://{way_to(coordinator)}:*"
    return f"ipc://{folder}/{name}"


def new_name(role: str) -> str:
    """One that no node of any other host has: the role, this host, and some chance."""
    host = _NAME.sub("-", socket.gethostname().split(".")[0])[:_HOST_CHARS].strip("-") or "host"
    return f"{role}-{host}-{secrets.token_hex(2)}"

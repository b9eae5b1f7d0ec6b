"""Who may join: the coordinator's answer to a hello, before anything is changed by it."""

from __future__ import annotations

from collections.abc import Callable

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.roster import Roster
from shoal.errors import Invalid
from shoal.wire import coding
from shoal.wire import messages as m

_CALLED = ("server", "scheduler")  # by others, so they must say where they are reached


def why_not(roster: Roster, hello: m.Hello, check_address: Callable[[str], None]) -> str:
    """Why this node may not join; empty if it may."""
    return (
        _too_long(hello)
        or roster.may_join(hello.name, hello.role, hello.token)
        or groups.refuses(roster, hello)
        or _unreachable(hello, check_address)
        or _crowded(roster, hello)
    )


def _too_long(hello: m.Hello) -> str:
    """Whatever is said here is in the journal, and in part in every view."""
    if len(hello.token) > limits.NAME_CHARS or len(hello.group) > limits.NAME_CHARS:
        return f"a token or the name of a group has {limits.NAME_CHARS} characters at most"
    return ""


def _crowded(roster: Roster, hello: m.Hello) -> str:
    """A view that no message could tell would keep everybody from hearing of anything."""
    if hello.name in roster.people or len(coding.encode(roster.view())) <= limits.VIEW_BYTES:
        return ""
    return "the cluster is full: its members, tables and groups are as many as one message can tell"


def _unreachable(hello: m.Hello, check_address: Callable[[str], None]) -> str:
    """Why others could not call this node; empty if they can, or need not."""
    if hello.role not in _CALLED and not hello.address:
        return ""
    try:
        check_address(hello.address)
    except Invalid as error:
        return str(error)
    return ""

"""Who may join: the coordinator's answer to a hello, before anything is changed by it."""

from __future__ import annotations

from collections.abc import Callable

from shoal.cluster import groups
from shoal.cluster.membership import Roster
from shoal.errors import Invalid
from shoal.wire import messages as m

_CALLED = ("server", "scheduler")  # by others, so they must say where they are reached


def why_not(roster: Roster, hello: m.Hello, check_address: Callable[[str], None]) -> str:
    """Why this node may not join; empty if it may."""
    return (
        roster.may_join(hello.name, hello.role, hello.token)
        or groups.refuses(roster, hello)
        or _unreachable(hello, check_address)
    )


def _unreachable(hello: m.Hello, check_address: Callable[[str], None]) -> str:
    """Why others could not call this node; empty if they can, or need not."""
    if hello.role not in _CALLED and not hello.address:
        return ""
    try:
        check_address(hello.address)
    except Invalid as error:
        return str(error)
    return ""

"""Drains a node while the run goes on, and waits until it has left.

A server leaves when others have its segments, a worker when it has finished its slots. The
coordinator refuses impossible requests, with the reason. No progress for a minute is an error, and
the node stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal import limits
from shoal.errors import ClusterError, Invalid, Unanswered
from shoal.events import LEFT, counted
from shoal.inspect.status import StatusClient
from shoal.wire import messages as m

_LOOK = 0.1  # seconds between two polls: only members are notified of a departure

Say = Callable[[str], None]


def let_go(client: StatusClient, name: str, say: Say = lambda text: None, still: float | None = None) -> None:
    """Drain a node and wait for its end; fail after ``still`` seconds without progress."""
    view = client.view()
    patience = view.timing.leave_still / limits.SECOND if still is None else still
    here = {member.name: member for member in view.members}
    if name not in here:
        names = ", ".join(sorted(one.name for one in view.members if one.role in ("server", "worker")))
        raise Invalid(f"no node {name!r} here: there are {names or 'none that could leave'}")
    incarnation, total = here[name].incarnation, held(view, name)
    answer = client.drain(name)
    if isinstance(answer, m.Refusal):
        raise ClusterError(f"{name} cannot leave: {answer.reason}")
    left, since, said = total, time.monotonic(), -1
    while _is_here(view, name, incarnation):
        if left != said and here[name].role == "server":
            said = left
            say(f"{name}: {left} of {counted(total, 'segment')} left" if total else f"{name}: it holds nothing")
        if time.monotonic() - since > patience:
            raise ClusterError(_no_progress(client, name, left, patience))
        time.sleep(_LOOK)
        try:
            view = client.view()
        except Unanswered:  # a restarted coordinator still knows which nodes leave
            continue
        if _is_here(view, name, incarnation) and (now := held(view, name)) != left:
            left, since = now, time.monotonic()
    if left and (why := _died(client, view, name)):
        early = f"{name} ended before others had taken over its segments: {why}"
        raise ClusterError(f"{early}; shoal status shows which servers hold what")
    if total and said:
        say(f"{name}: 0 of {counted(total, 'segment')} left")


def _is_here(view: m.View, name: str, incarnation: int) -> bool:
    return any(one.name == name and one.incarnation == incarnation for one in view.members)


def held(view: m.View, name: str) -> int:
    """The number of segments of which a server is primary or backup."""
    return sum(name in place.servers for table in view.tables for place in table.places)


def _died(client: StatusClient, view: m.View, name: str) -> str:
    """Why it ended, if not because it was drained."""
    if any(one.name == name for one in view.members):
        return "its process ended, and another one has its name by now"
    try:
        why = client.look().lost.get(name, "")
    except Unanswered:
        return ""
    return "" if why.startswith(LEFT) else why


def _no_progress(client: StatusClient, name: str, left: int, patience: float) -> str:
    try:
        moves = [one for one in client.look().moves if one.source == name]
    except Unanswered:
        return f"the coordinator does not answer, and {name} has not left: look again in a moment (shoal status)"
    doing = f"{counted(len(moves), 'segment')} on their way to {moves[0].target}" if moves else "none on its way"
    still = f"nothing changed for {patience:g} s, with {counted(left, 'segment')} left and {doing}"
    return f"{name} has not left: {still}; it goes on leaving (shoal status shows how far it is)"

"""Who holds how many parts, told to those who look at a run whenever that has changed.

A function of the views that are on disk: nothing is counted that could still be undone, and nothing here decides anything.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shoal.events import Shared
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Tell
from shoal.wire.messages.groups import namespace

if TYPE_CHECKING:
    from shoal.nodes.scheduling import Scheduler


class OwnershipEvents:
    """What was told last."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, int], dict[str, int]] = {}, {}

    def told(self, view: m.View, dealing: Scheduler | None) -> list[Effect]:
        """This view is on disk, and everybody is told."""
        if dealing is None or dealing.ended or not view.tables:
            return []
        found = held(view)
        if found == self._last:
            return []
        self._last = found
        return [Tell(Shared(seconds=dealing.seconds, serves=found[0], copies=found[1]))]


def held(view: m.View) -> tuple[dict[str, int], dict[str, int]]:
    """Parts of the run's tables that each server serves, and those of which it keeps a copy; who holds none is there, too.

    Not of the tables of groups, which come and go as these like.
    """
    places = [place for table in view.tables if not namespace(table.name) for place in table.places]
    first = Counter(place.servers[0] for place in places if place.servers)
    more = Counter(name for place in places for name in place.servers[1:])
    servers = [member.name for member in view.members if member.role == "server"]
    return {name: first[name] for name in servers}, {name: more[name] for name in servers}

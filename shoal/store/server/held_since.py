"""Since when a server has held what it holds of a table.

A request is for all that a server held by the view that its sender had. It can be answered as long as that is what the server holds
now: so a server refuses what is older than the last change of its own segments, not of anybody's. Whoever looks at places only
sees who holds a segment now; what a server has lost is seen by what it had before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.wire.messages import TablePlaces


@dataclass(frozen=True, slots=True)
class HeldSince:
    """What one server is primary of, in one table."""

    starts: list[int]  # of all segments: by them they have their numbers
    held: dict[int, int] = field(default_factory=dict)  # segment: since which view
    since: int = 0  # the view in which any of this last changed


def ours(me: str, placed: TablePlaces, before: HeldSince | None) -> HeldSince:
    """By the newest placement; views may have been missed. Without a ``before`` all that ever changed may have been ours."""
    places = placed.places
    held = {segment: place.since for segment, place in enumerate(places) if place.servers[:1] == [me]}
    if before is None or before.starts != placed.starts:
        changed, since = list(range(len(places))), 0
    else:
        changed = [n for n in range(len(places)) if held.get(n) != before.held.get(n)]
        since = before.since
    return HeldSince(placed.starts, held, max((places[segment].since for segment in changed), default=since))

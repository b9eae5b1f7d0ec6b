"""A segment becomes two: its range of keys is cut, both halves stay with whoever has it, and all later segments are renumbered.

Every segment of the table is of that view from then on (``since``, ``epoch``): what clients had cut otherwise is sent again, and what
servers said of the old numbers counts for nothing. So it is done only while nothing of the table is on its way, and when all servers
have the table as it is.
"""

from __future__ import annotations

from msgspec.structs import replace

from shoal import limits
from shoal.errors import Invalid
from shoal.wire.messages import TablePlaces


def halved(table: TablePlaces, segment: int, at: int, view: int) -> TablePlaces:
    """The table with this segment cut at that key, by the view of that number."""
    if (why := why_not(table, segment, at)) != "":
        raise Invalid(f"segment {segment} of table {table.name!r} cannot be split at {at}: {why}")
    starts = [*table.starts[: segment + 1], at, *table.starts[segment + 1 :]]
    places = [replace(place, epoch=view, since=view) for place in table.places]
    places.insert(segment, places[segment])
    return replace(table, starts=starts, places=places, cut=view)


def why_not(table: TablePlaces, segment: int, at: int) -> str:
    """What stands against it; empty: nothing."""
    if not 0 <= segment < len(table.starts):
        return f"there are {len(table.starts)} segments"
    if len(table.starts) >= limits.SEGMENTS_PER_TABLE:
        return f"it has {limits.SEGMENTS_PER_TABLE:,} segments already, and no table has more"
    stop = table.starts[segment + 1] if segment + 1 < len(table.starts) else table.spec.span
    if not table.starts[segment] < at < stop:
        return f"that lies not inside it, it has the keys from {table.starts[segment]} to {stop - 1}"
    if any(place.filling for place in table.places):
        return "some of its segments are on their way to another server"
    if not all(place.servers for place in table.places):
        return "parts of the table are lost"
    return ""

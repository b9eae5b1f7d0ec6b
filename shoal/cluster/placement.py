"""Which keys make a segment, and which servers hold it.

Servers and segments are points on one ring. A segment walks clockwise from its own point to the
first server that has room, and its backups are the next distinct servers it meets that have room
for those (consistent hashing with bounded loads, Mirrokni et al., SODA 2018).

    segments = q * servers + r      every server is primary of q segments, r of them of one more

For backups the bound is half above the mean.

The answer follows from the table's id, the segments' numbers and the servers' names alone, in
whatever order the names are given: no randomness, no ``hash``, no order taken from a set.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b

from msgspec.structs import replace

from shoal import limits
from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.limits import DENSE_SEGMENT_BYTES, ROWS_PER_TABLE, SEGMENTS_PER_SERVER, SEGMENTS_PER_TABLE
from shoal.tables import Dense, Table
from shoal.wire.messages import TablePlaces

POINTS_PER_SERVER = 64  # more make arcs more even; the bound on loads does the rest
BACKUPS_PER_MEAN = Fraction(3, 2)
FLOAT_BYTES = 4

Holders = tuple[str, ...]  # primary, backup, ...


def segments_of(spec: Table, servers: int) -> list[KeyRange]:
    """A table's keys in near-equal ranges: 8 per server, more for large dense segments."""
    if servers < 1:
        raise Invalid(f"a table on {servers} servers: start at least one")
    count = SEGMENTS_PER_SERVER * servers
    if isinstance(spec, Dense):
        if spec.rows > ROWS_PER_TABLE * servers:
            raise Invalid(f"rows={spec.rows} on {servers} servers: one holds {ROWS_PER_TABLE} at most, start more")
        most = max(1, DENSE_SEGMENT_BYTES // (spec.push_width * FLOAT_BYTES))
        count = max(count, -(-spec.rows // most))
    if count > SEGMENTS_PER_TABLE:
        raise Invalid(f"a table of {count:,} segments ({SEGMENTS_PER_TABLE:,} at most): make it smaller, or several")
    count = min(count, spec.span)
    return [KeyRange(i * spec.span // count, (i + 1) * spec.span // count) for i in range(count)]


def place(table: int, segments: int, servers: Sequence[str], copies: int = 1) -> list[Holders]:
    """Primary and backups of each segment of a new table; as many as there are servers."""
    if not servers or copies < 1:
        raise Invalid(f"{copies} copies on {len(servers)} servers: needs at least one of each")
    if len(frozenset(servers)) < len(servers):
        raise Invalid(f"servers {sorted(servers)}: each is named once")
    ring = _ring(tuple(sorted(servers)))
    placed: list[list[str]] = [[] for _ in range(segments)]
    for rank in range(min(copies, len(servers))):
        floor, extras = divmod(segments, len(servers))
        if rank:  # backups
            floor, extras = int(-(-segments * BACKUPS_PER_MEAN // len(servers))), 0
        room = _Capacity(floor, extras, dict.fromkeys(servers, 0))
        for number, names in enumerate(placed):
            names.append(room.take_first(name for name in ring.walk(table, number) if name not in names))
    return [tuple(names) for names in placed]


def backup_for(
    table: int, segment: int, servers: Sequence[str], holders: Sequence[str], loads: Mapping[str, int] | None = None
) -> str:
    """The next server on the ring that could hold this segment, too; empty if there is none.

    Servers whose ``loads`` (segments held or coming) are their share are passed by if possible.
    """
    loads = loads or {}
    names = tuple(sorted(servers))
    free = [name for name in dict.fromkeys(_ring(names).walk(table, segment)) if name not in holders]
    share = -(-(1 + sum(loads.get(name, 0) for name in names)) // max(1, len(names)))
    least = min((loads.get(name, 0) for name in free), default=0)
    return next((name for name in free if loads.get(name, 0) <= max(least, share - 1)), "")


@dataclass(slots=True)
class _Capacity:
    floor: int
    extras: int  # servers that may still go one over the floor
    loads: dict[str, int]

    def take(self, server: str) -> bool:
        load = self.loads.get(server)
        if load is None or load > self.floor or (load == self.floor and not self.extras):
            return False
        self.extras -= load == self.floor
        self.loads[server] = load + 1
        return True

    def take_first(self, walk: Iterator[str]) -> str:
        """The first that has room; if none that lacks the segment has, the least loaded."""
        met: dict[str, None] = {}
        for name in walk:
            if name not in met and self.take(name):
                return name
            met.setdefault(name)
        name = min(met, key=self.loads.__getitem__)
        self.loads[name] += 1
        return name


class HashRing:
    """The servers' points in order; each has many, so that all others are its neighbours."""

    def __init__(self, servers: Sequence[str]) -> None:
        points = sorted((point(f"server {name} {i}"), name) for name in servers for i in range(POINTS_PER_SERVER))
        self._at = [at for at, _ in points]
        self._names = [name for _, name in points]

    def walk(self, table: int, segment: int) -> Iterator[str]:
        """Once round the ring from the segment's point; each server once for each point."""
        start = bisect_left(self._at, point(f"segment {table} {segment}"))
        for i in range(len(self._names)):
            yield self._names[(start + i) % len(self._names)]


_ring = lru_cache(maxsize=8)(HashRing)


def point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def halved(table: TablePlaces, segment: int, at: int, view: int) -> TablePlaces:
    """The table with this segment split at that key, by the view of that number.

    Both halves stay where they are. All segments are of that view then, so that clients send
    again what they had cut otherwise. Not while a segment of the table moves.
    """
    if (why := why_not(table, segment, at)) != "":
        raise Invalid(f"segment {segment} of table {table.name!r} cannot be split at {at}: {why}")
    starts = [*table.starts[: segment + 1], at, *table.starts[segment + 1 :]]
    places = [replace(place, epoch=view, since=view) for place in table.places]
    places.insert(segment, places[segment])
    return replace(table, starts=starts, places=places, cut=view)


def keys_of(table: TablePlaces, segment: int) -> tuple[int, int]:
    return table.starts[segment], [*table.starts, table.spec.span][segment + 1]


def why_not(table: TablePlaces, segment: int, at: int) -> str:
    """Why it cannot be split there; empty if it can."""
    if not 0 <= segment < len(table.starts):
        return f"there are {len(table.starts)} segments"
    if len(table.starts) >= limits.SEGMENTS_PER_TABLE:
        return f"it has {limits.SEGMENTS_PER_TABLE:,} segments already, and no table has more"
    start, stop = keys_of(table, segment)
    if not start < at < stop:
        return f"that is not inside it, its keys are {start} to {stop - 1}"
    if any(place.filling for place in table.places):
        return "some of its segments are moving to another server"
    if not all(place.servers for place in table.places):
        return "some of its segments are lost"
    return ""

"""Which keys make a segment, and which servers hold it.

Servers and segments are points on one ring. A segment walks clockwise from its own point to the first server that has
room, and its backups are the next distinct servers it meets (consistent hashing with bounded loads, Mirrokni et al.,
SODA 2018). The bound is as tight as can be:

    segments = q * servers + r      every server is primary of q segments, r of them of one more

``move`` is the same walk after servers came or went, for those segments only that cannot stay. Placing a new table is
the move from nowhere.

The answer follows from the table's id, the segments' numbers and the servers' names alone, in whatever order the names
are given: no randomness, no ``hash`` (it differs from process to process), no order taken from a set.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain

from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.limits import DENSE_SEGMENT_BYTES, ROWS_PER_TABLE, SEGMENTS_PER_SERVER, SEGMENTS_PER_TABLE
from shoal.tables import Dense, Table

POINTS_PER_SERVER = 64  # more make arcs more even; the bound on loads does the rest
FLOAT_BYTES = 4

Holders = tuple[str, ...]  # primary, backup, ...


def segments_of(spec: Table, servers: int) -> list[KeyRange]:
    """The table's key space, cut into near-equal ranges: 8 per server, more where a dense one would be too large."""
    if servers < 1:
        raise Invalid(f"a table on {servers} servers: start at least one")
    count = SEGMENTS_PER_SERVER * servers
    if isinstance(spec, Dense):
        if spec.rows > ROWS_PER_TABLE * servers:
            raise Invalid(f"rows={spec.rows} on {servers} servers: one holds {ROWS_PER_TABLE} at most, start more")
        most = max(1, DENSE_SEGMENT_BYTES // (spec.width * FLOAT_BYTES))
        count = max(count, -(-spec.rows // most))
    if count > SEGMENTS_PER_TABLE:
        raise Invalid(f"a table of {count:,} segments ({SEGMENTS_PER_TABLE:,} at most): make it smaller, or several")
    count = min(count, spec.span)
    return [KeyRange(i * spec.span // count, (i + 1) * spec.span // count) for i in range(count)]


def place(table: int, segments: int, servers: Sequence[str], copies: int = 1) -> list[Holders]:
    """For each segment of a new table its primary and backups; fewer where there are fewer servers than copies."""
    return move(table, [()] * segments, servers, copies)


def move(table: int, old: Sequence[Holders], servers: Sequence[str], copies: int = 1) -> list[Holders]:
    """The placement after servers came or went. A primary stays unless it left or is over the bound.

    Backups stay as long as they live, so a newcomer begins as primary only and backs up what is placed after it came.
    """
    if not servers or copies < 1:
        raise Invalid(f"{copies} copies on {len(servers)} servers: needs at least one of each")
    room = _Room.for_all(servers, len(old))
    ring = _Ring(servers)
    # All that can stay do so before anyone moves: a newcomer must not push out one who had the place.
    primaries = [holders[0] if holders and room.take(holders[0]) else None for holders in old]
    return [
        _holders(primary, [name for name in holders if name in room.loads], ring.walk(table, number), room, copies)
        for number, (primary, holders) in enumerate(zip(primaries, old, strict=True))
    ]


def backup_for(
    table: int, segment: int, servers: Sequence[str], holders: Sequence[str], loads: Mapping[str, int]
) -> str:
    """Of these servers, who is to back a segment up as well: the next on the ring among those that back up least."""
    able = [name for name in servers if name not in holders]
    least = min(loads.get(name, 0) for name in able)
    able = [name for name in able if loads.get(name, 0) == least]
    return next(name for name in _Ring(able).walk(table, segment) if name in able)


def _holders(primary: str | None, kept: list[str], walk: Iterator[str], room: _Room, copies: int) -> Holders:
    met: list[str] = []  # walked past for want of room: backups only once the walk has come round
    if primary is None:  # one that holds the segment already needs no copying
        primary = next((name for name in kept if room.take(name)), None)
    while primary is None:
        name = next(walk)
        if room.take(name):
            primary = name
        elif name not in met:
            met.append(name)
    chosen = dict.fromkeys([primary, *kept])
    for name in chain(walk, met):
        if len(chosen) >= copies:
            break
        chosen.setdefault(name)
    return tuple(chosen)[:copies]


@dataclass(slots=True)
class _Room:
    """How many segments each server may still become primary of."""

    floor: int
    extras: int  # servers that may still go one over the floor
    loads: dict[str, int] = field(default_factory=dict)

    @classmethod
    def for_all(cls, servers: Sequence[str], segments: int) -> _Room:
        loads = dict.fromkeys(servers, 0)
        if len(loads) < len(servers):
            raise Invalid(f"servers {sorted(servers)}: each is named once")
        return cls(*divmod(segments, len(servers)), loads)

    def take(self, server: str) -> bool:
        load = self.loads.get(server)
        if load is None or load > self.floor or (load == self.floor and not self.extras):
            return False
        self.extras -= load == self.floor
        self.loads[server] = load + 1
        return True


class _Ring:
    """The servers' points in order; each server has many, so that its neighbours are all the others."""

    def __init__(self, servers: Sequence[str]) -> None:
        points = sorted((_point(f"server {name} {i}"), name) for name in servers for i in range(POINTS_PER_SERVER))
        self._at = [at for at, _ in points]
        self._names = [name for _, name in points]

    def walk(self, table: int, segment: int) -> Iterator[str]:
        """Once round the ring from the segment's point; a server comes by once for each of its points."""
        start = bisect_left(self._at, _point(f"segment {table} {segment}"))
        for i in range(len(self._names)):
            yield self._names[(start + i) % len(self._names)]


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

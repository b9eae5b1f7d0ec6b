"""Who holds what, while a plan is made: every table as if all that is on its way had arrived, and the moves that are wanted so far.

A segment is given away once in a plan, and not at all while something of it is on its way (``fixed``). Moves of one ``trade`` are begun
together or not at all: half of one would leave one server with too many, and the rule of counts would then undo it, or finish it in another way.

Nothing here decides who gives what to whom: ``rebalance`` does that by count, ``by_load`` by what is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal import limits
from shoal.cluster.placement import FLOAT_BYTES, point
from shoal.tables import Dense
from shoal.wire.messages import TablePlaces

Loads = Mapping[int, Mapping[int, float]]  # rows a second by table's number and segment
Sizes = Mapping[int, Mapping[int, int]]  # bytes, likewise


@dataclass(frozen=True, slots=True)
class WantedMove:
    """One segment that should change hands: ``target`` takes the place of ``source`` in its set.

    A target that is in the set already swaps places with the source: nothing is copied.
    """

    table: str
    segment: int
    source: str
    target: str  # empty: nobody is left to take it, the set gets smaller
    why: str  # leaving, count, load
    gain: str = ""  # what is better for it, in words
    trade: int = 0  # those of one number go together; 0: alone


def estimated(table: TablePlaces, segment: int) -> int:
    """Bytes of a segment, as far as its table's settings tell."""
    start, stop = keys_of(table, segment)
    if isinstance(table.spec, Dense):
        return (stop - start) * table.spec.push_width * FLOAT_BYTES
    return limits.MOVE_BYTES // limits.SEGMENTS_PER_SERVER


def keys_of(table: TablePlaces, segment: int) -> tuple[int, int]:
    """The first key, and the one after the last."""
    stop = table.starts[segment + 1] if segment + 1 < len(table.starts) else table.spec.span
    return table.starts[segment], stop


@dataclass(slots=True)
class BalancePlan:
    """What is known of all servers, while a plan is made."""

    names: list[str]
    loads: Loads
    sizes: Sizes
    wanted: list[WantedMove] = field(default_factory=list)
    held: dict[str, int] = field(init=False)  # segments of all tables
    asked: dict[str, float] = field(init=False)  # rows a second

    def __post_init__(self) -> None:
        self.held = dict.fromkeys(self.names, 0)
        self.asked = dict.fromkeys(self.names, 0.0)

    @property
    def mean(self) -> float:
        return sum(self.asked.values()) / len(self.names)


class TablePlacement:
    """One table: who holds its segments, as if all that is on its way had arrived."""

    def __init__(self, cluster: BalancePlan, table: TablePlaces, under_way: Collection[tuple[int, int]]) -> None:
        self.cluster, self.table = cluster, table
        self.loads = cluster.loads.get(table.number, {})
        self.sets: list[list[str]] = []
        self.fixed: list[bool] = []
        self.primaries = dict.fromkeys(cluster.names, 0)
        self.copies = dict.fromkeys(cluster.names, 0)
        self._points = {name: point(f"server {name} of {table.number}") for name in cluster.names}
        for segment, place in enumerate(table.places):
            holders = [place.filling if one == place.instead else one for one in place.servers]
            if place.filling and place.filling not in holders:
                holders.append(place.filling)
            self.fixed.append(bool(place.filling) or not place.servers or (table.number, segment) in under_way)
            self.sets.append(holders)
            for rank, name in enumerate(holders):
                self._count(segment, rank, name, 1)
        self.is_moving = any(fixed and place.servers for fixed, place in zip(self.fixed, table.places, strict=True))

    def load(self, segment: int) -> float:
        return self.loads.get(segment, 0.0)

    def _count(self, segment: int, rank: int, name: str, by: int) -> None:
        if name not in self.copies:
            return
        self.copies[name] += by
        self.cluster.held[name] += by
        if rank == 0:
            self.primaries[name] += by
            self.cluster.asked[name] += by * self.load(segment)

    def give(self, segment: int, rank: int, target: str, why: str, gain: str = "", trade: int = 0) -> None:
        """This server takes the place of whoever is there; one that is of the set already changes places with the primary."""
        source = self.sets[segment][rank]
        if target in self.sets[segment]:
            self._swap(segment, target)
        else:
            self._move(segment, rank, target)
        self.cluster.wanted.append(WantedMove(self.table.name, segment, source, target, why, gain, trade))

    def _move(self, segment: int, rank: int, target: str) -> None:
        source = self.sets[segment][rank]
        self.fixed[segment] = True  # one at a time takes the place of another
        self._count(segment, rank, source, -1)
        if target:
            self.sets[segment][rank] = target
            self._count(segment, rank, target, 1)
        else:
            del self.sets[segment][rank]
            for name in self.sets[segment][:1] if rank == 0 else ():  # its first backup comes after it
                self._count(segment, 1, name, -1)
                self._count(segment, 0, name, 1)

    def _swap(self, segment: int, target: str) -> None:
        """Its primary and one of its backups change places."""
        holders = self.sets[segment]
        source, rank = holders[0], holders.index(target)
        self.fixed[segment] = True
        for name, at, by in ((source, 0, -1), (target, rank, -1), (target, 0, 1), (source, rank, 1)):
            self._count(segment, at, name, by)
        holders[0], holders[rank] = target, source

    def order(self, counts: Mapping[str, int], name: str) -> tuple[int, int, int]:
        """Who has least comes first."""
        return counts[name], self.cluster.held[name], self._points[name]

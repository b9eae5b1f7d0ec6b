"""Who should hold what next: few moves that bring every server to its share, first of segments, then of what is asked of them.

    leaving    what a server that goes still holds goes to others; where no other is left, the set gets smaller
    count      primaries of a table: no two servers differ by more than one; of all its copies every server has about the mean
    load       the server that is asked for most, if that is well above the mean, trades a segment for a colder one of the
               server that is asked for least; a segment that is above the mean all alone should be two (``split``)

A trade keeps the count, so the two rules never undo each other. What is on its way counts as if it had arrived: so a plan
that was carried out in part goes on where it was, by the same few moves, and a balanced cluster wants none. The number of moves
by count is the least that there can be: each goes from one that has too many to one that has too few.

A plan is cut to what may be on the way at once (``most`` bytes from one primary to one server). It follows from its inputs alone, in whatever order the
servers are named: no randomness, no clock, nothing is sent from here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal import limits
from shoal.cluster.placement import FLOAT_BYTES, point
from shoal.tables import Dense
from shoal.wire.messages import Placed

Loads = Mapping[int, Mapping[int, float]]  # rows a second by table's number and segment
Sizes = Mapping[int, Mapping[int, int]]  # bytes, likewise


@dataclass(frozen=True, slots=True)
class Wanted:
    """One segment that should change hands: ``target`` takes the place of ``source`` in its set.

    A target that is in the set already swaps places with the source: nothing is copied.
    """

    table: str
    segment: int
    source: str
    target: str  # empty: nobody is left to take it, the set gets smaller
    why: str  # leaving, count, load


@dataclass(frozen=True, slots=True)
class Halved:
    """One segment that should be two: the second begins at this key."""

    table: str
    segment: int
    at: int
    why: str


def plan(
    tables: Sequence[Placed],
    servers: Collection[str],
    *,
    leaving: Collection[str] = (),
    loads: Loads | None = None,
    sizes: Sizes | None = None,
    under_way: Collection[tuple[int, int]] = (),
    balance: str = "load",
    most: int = limits.MOVE_BYTES,
) -> list[Wanted]:
    """The next moves; none if all is as it should be, or nothing can be done about it before others have arrived.

    ``servers`` may hold more, ``leaving`` ones may not and hold something still; whoever is neither keeps what it has.
    ``under_way`` are segments (table's number, segment) that are not to be touched, beside those that are being filled.
    """
    names = sorted(name for name in servers if name not in leaving)
    if not names:
        return []
    cluster = _Cluster(names, loads or {}, sizes or {})
    parts = [_Part(cluster, table, under_way) for table in sorted(tables, key=lambda one: one.number)]
    for part in parts:
        part.empty(leaving)
    if balance != "none":
        for part in parts:
            part.even_primaries()
            part.even_copies()
    quiet = not cluster.wanted and not any(part.is_moving for part in parts)
    if balance == "load" and quiet:
        _trade(cluster, parts)
    return list(_at_once(cluster.wanted, {table.name: table for table in tables}, sizes or {}, most))


def split(
    tables: Sequence[Placed],
    servers: Collection[str],
    loads: Loads,
    halves: Mapping[int, Mapping[int, int]] | None = None,
    under_way: Collection[tuple[int, int]] = (),
) -> Halved | None:
    """A segment that should be two, if there is one; only of a table of which nothing is on its way.

    ``halves`` says at which key a segment's load is cut in two, where a server could tell.
    """
    cluster = _Cluster(sorted(servers), loads, {})
    parts = [_Part(cluster, table, under_way) for table in sorted(tables, key=lambda one: one.number)]
    if not parts or any(part.is_moving for part in parts):
        return None
    for part, segment in _hot_alone(cluster, parts):
        table = part.table
        if len(table.starts) >= limits.SEGMENTS_PER_TABLE:
            continue
        start, stop = _keys(table, segment)
        at = (halves or {}).get(table.number, {}).get(segment, start + (stop - start) // 2)
        if start < at < stop:
            share = loads[table.number][segment] / max(1.0, cluster.mean)
            return Halved(table.name, segment, at, f"{share:.1f} times what the mean server is asked for")
    return None


def estimated(table: Placed, segment: int) -> int:
    """Bytes of a segment, as far as its table's settings tell."""
    start, stop = _keys(table, segment)
    if isinstance(table.spec, Dense):
        return (stop - start) * table.spec.push_width * FLOAT_BYTES
    return limits.MOVE_BYTES // limits.SEGMENTS_PER_SERVER


def _keys(table: Placed, segment: int) -> tuple[int, int]:
    stop = table.starts[segment + 1] if segment + 1 < len(table.starts) else table.spec.span
    return table.starts[segment], stop


@dataclass(slots=True)
class _Cluster:
    """What is known of all servers, while a plan is made."""

    names: list[str]
    loads: Loads
    sizes: Sizes
    wanted: list[Wanted] = field(default_factory=list)
    held: dict[str, int] = field(init=False)  # segments of all tables
    asked: dict[str, float] = field(init=False)  # rows a second

    def __post_init__(self) -> None:
        self.held = dict.fromkeys(self.names, 0)
        self.asked = dict.fromkeys(self.names, 0.0)

    @property
    def mean(self) -> float:
        return sum(self.asked.values()) / len(self.names)


class _Part:
    """One table: who holds its segments, as if all that is on its way had arrived."""

    def __init__(self, cluster: _Cluster, table: Placed, under_way: Collection[tuple[int, int]]) -> None:
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

    def _move(self, segment: int, rank: int, target: str, why: str) -> None:
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
        self.cluster.wanted.append(Wanted(self.table.name, segment, source, target, why))

    def _swap(self, segment: int, target: str, why: str) -> None:
        """Its primary and one of its backups change places."""
        holders = self.sets[segment]
        source, rank = holders[0], holders.index(target)
        self.fixed[segment] = True
        for name, at, by in ((source, 0, -1), (target, rank, -1), (target, 0, 1), (source, rank, 1)):
            self._count(segment, at, name, by)
        holders[0], holders[rank] = target, source
        self.cluster.wanted.append(Wanted(self.table.name, segment, source, target, why))

    def give(self, segment: int, rank: int, target: str, why: str) -> None:
        if target in self.sets[segment]:
            self._swap(segment, target, why)
        else:
            self._move(segment, rank, target, why)

    # ------------------------------------------------------------ leaving

    def empty(self, leaving: Collection[str]) -> None:
        """Everything that those who go still hold, to whoever has least; one of a set at a time."""
        for segment, holders in enumerate(self.sets):
            rank = next((rank for rank, name in enumerate(holders) if name in leaving), None)
            if rank is None or self.fixed[segment]:
                continue
            counts = self.primaries if rank == 0 else self.copies
            free = [name for name in self.cluster.names if name not in holders]
            if free:
                self._move(segment, rank, min(free, key=lambda name: self._order(counts, name)), "leaving")
            elif len(holders) > 1:
                self._move(segment, rank, "", "leaving")

    def _order(self, counts: Mapping[str, int], name: str) -> tuple[int, int, int]:
        return counts[name], self.cluster.held[name], self._points[name]

    # ------------------------------------------------------------ count

    def even_primaries(self) -> None:
        self._even(self.primaries, lambda holders: range(min(1, len(holders))))

    def even_copies(self) -> None:
        if any(len(holders) > 1 for holders in self.sets):
            self._even(self.copies, lambda holders: range(1, len(holders)))

    def _even(self, counts: dict[str, int], ranks: Callable[[Sequence[str]], range]) -> None:
        """From those who have most to those who have least, until they differ by one, or are near enough."""
        if len(counts) < 2 or max(counts.values()) - min(counts.values()) < 2:
            return
        have: dict[str, list[tuple[float, int, int, int]]] = {name: [] for name in self.cluster.names}
        for segment, holders in enumerate(self.sets):
            for rank in ranks(holders):
                if not self.fixed[segment] and holders[rank] in have:
                    hot = self.load(segment) if rank == 0 else 0.0
                    have[holders[rank]].append((hot, point(f"move {self.table.number} {segment}"), segment, rank))
        for those in have.values():
            those.sort()
        while (found := self._next(counts, have)) is not None:
            _, _, segment, rank = found[1]
            have[found[0]].remove(found[1])
            self.give(segment, rank, found[2], "count")

    def _next(
        self, counts: Mapping[str, int], have: Mapping[str, list[tuple[float, int, int, int]]]
    ) -> tuple[str, tuple[float, int, int, int], str] | None:
        by_count = sorted(counts, key=lambda name: self._order(counts, name))
        mean = sum(counts.values()) / len(counts)
        within = 0.0 if counts is self.primaries else limits.COPIES_WITHIN * mean
        for source in reversed(by_count):
            for target in by_count:
                if counts[source] - counts[target] < 2:
                    break
                if max(counts[source] - mean, mean - counts[target]) <= within:
                    break  # neither has far too many, nor far too few
                if (one := self._fitting(have[source], source, target, counts)) is not None:
                    return source, one, target
        return None

    def _fitting(
        self, those: list[tuple[float, int, int, int]], source: str, target: str, counts: Mapping[str, int]
    ) -> tuple[float, int, int, int] | None:
        """Of these, one that brings the target near its share of what is asked.

        One of which it has a copy, since the two swap places then; but where it lacks copies, too, one of which it has none.
        """
        lacks = max(1, sum(counts.values()) // len(counts) - counts[target])
        ideal = max(0.0, (self.cluster.mean - self.cluster.asked[target]) / lacks)
        other = next((one for one in _nearest(those, ideal) if target not in self.sets[one[2]]), None)
        if counts is self.primaries and (other is None or self.copies[source] - self.copies[target] < 2):
            return next((one for one in _nearest(those, ideal) if target in self.sets[one[2]]), other)
        return other

    # ------------------------------------------------------------ load

    def trade(self, hot: str, cold: str, swaps: bool) -> tuple[float, list[tuple[int, str]]]:
        """The move, or exchange, that does most for these two, and what the busier one is spared by it."""
        gap = self.cluster.asked[hot] - self.cluster.asked[cold]
        givers = [segment for segment in self._owned(hot) if (cold in self.sets[segment]) == swaps]
        takers = [segment for segment in self._owned(cold) if (hot in self.sets[segment]) == swaps]
        best: tuple[float, list[tuple[int, str]]] = (0.0, [])
        if self.primaries[hot] > self.primaries[cold] and (swaps or self.copies[hot] > self.copies[cold]):
            # The counts stay as even as they were if one goes alone.
            for segment in givers:
                best = max(best, (_spared(gap, self.load(segment)), [(segment, cold)]), key=lambda one: one[0])
        for segment in givers:
            wanted = self.load(segment) - gap / 2
            at = bisect_left(takers, wanted, key=self.load)
            for other in takers[max(0, at - 1) : at + 1]:
                spared = _spared(gap, self.load(segment) - self.load(other))
                if spared > best[0]:
                    best = spared, [(segment, cold), (other, hot)]
        return best

    def _owned(self, server: str) -> list[int]:
        found = [s for s, holders in enumerate(self.sets) if holders[:1] == [server] and not self.fixed[s]]
        return sorted(found, key=self.load)


def hottest(asked: Mapping[str, float]) -> str | None:
    """The server that is asked for well more than the mean; None if there is none, or all of it is little."""
    mean = sum(asked.values()) / max(1, len(asked))
    if len(asked) < 2 or mean * len(asked) < limits.LOAD_LEAST:
        return None
    name = max(sorted(asked), key=asked.__getitem__)
    return name if asked[name] > mean * (1 + limits.LOAD_ABOVE) else None


def _hot_alone(cluster: _Cluster, parts: Sequence[_Part]) -> list[tuple[_Part, int]]:
    """Segments of the hottest server that could be split, and are above the mean all alone; the hottest first."""
    if (hot := hottest(cluster.asked)) is None:
        return []
    found = [
        (-part.load(segment), at, segment)
        for at, part in enumerate(parts)
        for segment, holders in enumerate(part.sets)
        if holders[:1] == [hot] and part.load(segment) > cluster.mean and _may_split(part, segment)
    ]
    return [(parts[at], segment) for _, at, segment in sorted(found)]


def _may_split(part: _Part, segment: int) -> bool:
    start, stop = _keys(part.table, segment)
    return stop - start >= 2 and len(part.table.starts) < limits.SEGMENTS_PER_TABLE


def _trade(cluster: _Cluster, parts: Sequence[_Part]) -> None:
    """One exchange between the hottest server and the coldest with which one helps."""
    if (hot := hottest(cluster.asked)) is None or not parts:
        return
    for cold in sorted(cluster.names, key=lambda name: (cluster.asked[name], name)):
        if cold == hot:
            continue
        for swaps in (True, False):  # a swap copies nothing
            spared, moves, part = max(((*part.trade(hot, cold, swaps), part) for part in parts), key=lambda one: one[0])
            if spared >= limits.LOAD_GAIN * cluster.mean:
                for segment, target in moves:
                    part.give(segment, 0, target, "load")
                return


def _spared(gap: float, moved: float) -> float:
    """How much less the busier of two has when this much goes over."""
    return min(moved, gap - moved)


def _nearest(those: Sequence[tuple[float, int, int, int]], ideal: float) -> Iterator[tuple[float, int, int, int]]:
    """In order of how near their first number is."""
    high = bisect_left(those, ideal, key=lambda one: one[0])
    low = high - 1
    while low >= 0 or high < len(those):
        if low < 0 or (high < len(those) and those[high][0] - ideal <= ideal - those[low][0]):
            yield those[high]
            high += 1
        else:
            yield those[low]
            low -= 1


def _at_once(wanted: Sequence[Wanted], tables: Mapping[str, Placed], sizes: Sizes, most: int) -> Iterator[Wanted]:
    """As much as may be on its way: from one primary to one server some bytes, and nothing more while there is any."""
    room: dict[tuple[str, str], int] = {}
    for table in tables.values():
        for place in table.places:
            if place.filling and place.servers:
                room[place.servers[0], place.filling] = 0
    for one in wanted:
        table = tables[one.table]
        sender = table.places[one.segment].servers[0]
        known = sizes.get(table.number, {})
        size = known[one.segment] if one.segment in known else estimated(table, one.segment)
        left = room.get((sender, one.target), most)
        if not one.target or one.target in table.places[one.segment].servers:
            yield one  # nothing is copied
        elif left == most or size <= left:
            room[sender, one.target] = max(0, left - size)
            yield one

"""Measures load, and plans few moves that give every server its share of segments and load.

    leaving    a leaving server's segments go to others; where none is left, the set shrinks
    count      primaries of a table differ by at most one; copies are near the mean
    load       the hottest server, if it is well above the mean, trades segments for colder ones of
               the coldest servers (``trade``)

A trade keeps the counts and is begun in full or not at all, so that the two rules never undo each
other. What is on its way counts as if it had arrived: a balanced cluster wants no moves. A plan is
limited to ``most`` bytes from one primary to one server, and follows from its inputs alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from shoal import limits
from shoal.cluster.placement import FLOAT_BYTES, keys_of, point
from shoal.tables import Dense
from shoal.timing import DEFAULT
from shoal.wire.messages import Heartbeat, TablePlaces

_One = tuple[float, int, int, int]  # its load, a tie-breaker, a segment, a rank


def plan(
    tables: Sequence[TablePlaces],
    servers: Collection[str],
    *,
    leaving: Collection[str] = (),
    loads: Loads | None = None,
    under_way: Collection[tuple[int, int]] = (),
    balance: str = "load",
    most: int = limits.MOVE_BYTES,
) -> list[WantedMove]:
    """The next moves; none if all is balanced, or if other moves have to arrive first.

    ``servers`` may hold more, ``leaving`` ones must not; any other server keeps what it has.
    ``under_way`` are segments (table's number, segment) that are not to be touched.
    """
    if not (names := sorted(name for name in servers if name not in leaving)):
        return []
    cluster = BalancePlan(names, loads or {})
    parts = [TablePlacement(cluster, table, under_way) for table in sorted(tables, key=lambda one: one.number)]
    for part in parts:
        _empty(part, leaving)
    if balance != "none":
        for part in parts:
            _even(part, part.primaries, lambda holders: range(min(1, len(holders))))
            if any(len(holders) > 1 for holders in part.sets):
                _even(part, part.copies, lambda holders: range(1, len(holders)))
    quiet = not cluster.wanted and not any(part.is_moving for part in parts)
    if balance == "load" and quiet:
        trade(cluster, parts)
    return list(_at_once(cluster.wanted, {table.name: table for table in tables}, most))


def _empty(part: TablePlacement, leaving: Collection[str]) -> None:
    """Move what leaving servers still hold to those with least; one of a set at a time."""
    for segment, holders in enumerate(part.sets):
        rank = next((rank for rank, name in enumerate(holders) if name in leaving), None)
        if rank is None or part.fixed[segment]:
            continue
        counts = part.primaries if rank == 0 else part.copies
        free = [name for name in part.cluster.names if name not in holders]
        if free:
            part.give(segment, rank, min(free, key=lambda name: part.order(counts, name)), "leaving")
        elif len(holders) > 1:
            part.give(segment, rank, "", "leaving")


def _even(part: TablePlacement, counts: dict[str, int], ranks: Callable[[Sequence[str]], range]) -> None:
    """Move from those with most to those with least, until they differ by one or little."""
    if len(counts) < 2 or max(counts.values()) - min(counts.values()) < 2:
        return
    before = dict(counts)
    have: dict[str, list[_One]] = {name: [] for name in part.cluster.names}
    for segment, holders in enumerate(part.sets):
        for rank in ranks(holders):
            if not part.fixed[segment] and holders[rank] in have:
                hot = part.load(segment) if rank == 0 else 0.0
                have[holders[rank]].append((hot, point(f"move {part.table.number} {segment}"), segment, rank))
    for those in have.values():
        those.sort()
    while (found := _next(part, counts, have)) is not None:
        source, one, target = found
        have[source].remove(one)
        gain = f"{source} had {before[source]:,}, {target} {before[target]:,}"
        part.give(one[2], one[3], target, "count", gain)


def _next(
    part: TablePlacement, counts: Mapping[str, int], have: Mapping[str, list[_One]]
) -> tuple[str, _One, str] | None:
    by_count = sorted(counts, key=lambda name: part.order(counts, name))
    mean = sum(counts.values()) / len(counts)
    within = 0.0 if counts is part.primaries else limits.COPIES_WITHIN * mean
    for source in reversed(by_count):
        for target in by_count:
            if counts[source] - counts[target] < 2:
                break
            if max(counts[source] - mean, mean - counts[target]) <= within:
                break  # neither has far too many, nor far too few
            if (one := _fitting(part, have[source], source, target, counts)) is not None:
                return source, one, target
    return None


def _fitting(
    part: TablePlacement, those: list[_One], source: str, target: str, counts: Mapping[str, int]
) -> _One | None:
    """Of these, one that brings the target near its share of what is asked.

    Preferably one of which it has a copy (the two swap), unless it lacks copies, too.
    """
    cluster = part.cluster
    lacks = max(1, sum(counts.values()) // len(counts) - counts[target])
    ideal = max(0.0, (cluster.mean - cluster.asked[target]) / lacks)
    other = next((one for one in _nearest(those, ideal) if target not in part.sets[one[2]]), None)
    if counts is part.primaries and (other is None or part.copies[source] - part.copies[target] < 2):
        return next((one for one in _nearest(those, ideal) if target in part.sets[one[2]]), other)
    return other


def _nearest(those: Sequence[_One], ideal: float) -> Iterator[_One]:
    high = bisect_left(those, ideal, key=lambda one: one[0])
    low = high - 1
    while low >= 0 or high < len(those):
        if low < 0 or (high < len(those) and those[high][0] - ideal <= ideal - those[low][0]):
            yield those[high]
            high += 1
        else:
            yield those[low]
            low -= 1


def together(wanted: Sequence[WantedMove]) -> Iterator[list[WantedMove]]:
    """Moves that are begun all or none: those of a trade, and every other one alone."""
    for _, those in groupby(enumerate(wanted), key=lambda one: (one[1].trade, 0 if one[1].trade else one[0])):
        yield [one for _, one in those]


def _at_once(wanted: Sequence[WantedMove], tables: Mapping[str, TablePlaces], most: int) -> Iterator[WantedMove]:
    """Limit the bytes from one primary to one server; a trade goes in full or not at all."""
    room: dict[tuple[str, str], int] = {}
    for table in tables.values():
        for place in table.places:
            if place.filling and place.servers:
                room[place.servers[0], place.filling] = 0
    for those in together(wanted):
        after = dict(room)
        if all(_has_room(after, one, tables[one.table], most) for one in those):
            room = after
            yield from those


def _has_room(room: dict[tuple[str, str], int], one: WantedMove, table: TablePlaces, most: int) -> bool:
    holders = table.places[one.segment].servers
    if not one.target or one.target in holders:
        return True  # nothing is copied
    size = estimated(table, one.segment)
    left = room.get((holders[0], one.target), most)
    if left < most and size > left:
        return False
    room[holders[0], one.target] = max(0, left - size)
    return True


Loads = Mapping[int, Mapping[int, float]]  # rows a second by table's number and segment


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
    start, stop = keys_of(table, segment)
    if isinstance(table.spec, Dense):
        return (stop - start) * table.spec.push_width * FLOAT_BYTES
    return limits.MOVE_BYTES // limits.SEGMENTS_PER_SERVER


@dataclass(slots=True)
class BalancePlan:
    """All servers while a plan is made: what they hold, their load, and the moves wanted so far."""

    names: list[str]
    loads: Loads
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
        """The target replaces the holder of this rank, or swaps with the primary."""
        holders = self.sets[segment]
        source = holders[rank]
        self.fixed[segment] = True  # one at a time takes the place of another
        if target in holders:
            at = holders.index(target)
            for name, place, by in ((source, 0, -1), (target, at, -1), (target, 0, 1), (source, at, 1)):
                self._count(segment, place, name, by)
            holders[0], holders[at] = target, source
        else:
            self._move(segment, rank, target)
        self.cluster.wanted.append(WantedMove(self.table.name, segment, source, target, why, gain, trade))

    def _move(self, segment: int, rank: int, target: str) -> None:
        self._count(segment, rank, self.sets[segment][rank], -1)
        if target:
            self.sets[segment][rank] = target
            self._count(segment, rank, target, 1)
        else:
            del self.sets[segment][rank]
            for name in self.sets[segment][:1] if rank == 0 else ():  # its first backup is next
                self._count(segment, 1, name, -1)
                self._count(segment, 0, name, 1)

    def order(self, counts: Mapping[str, int], name: str) -> tuple[int, int, int]:
        return counts[name], self.cluster.held[name], self._points[name]


_Trade = tuple[float, list[tuple[int, str]]]  # load it saves the busier; segments and targets


@dataclass(frozen=True, slots=True)
class SplitSegment:
    """One segment that should be two: the second begins at this key."""

    table: str
    segment: int
    at: int
    why: str


def hottest(asked: Mapping[str, float], above: float = limits.LOAD_ABOVE) -> str | None:
    """The server with well more load than the mean; None if there is none."""
    mean = sum(asked.values()) / max(1, len(asked))
    if len(asked) < 2 or mean * len(asked) < limits.LOAD_LEAST:
        return None
    name = max(sorted(asked), key=asked.__getitem__)
    return name if asked[name] > mean * (1 + above) else None


def trade(cluster: BalancePlan, parts: Sequence[TablePlacement]) -> None:
    """Trade between the hottest server and the coldest that helps, as long as it helps.

    It begins when a server is above the mean by ``LOAD_ABOVE`` and ends when none is by half as
    much. A trade is an exchange, or one segment alone where the giver has one more.
    """
    above = limits.LOAD_ABOVE
    for number in range(1, limits.LOAD_TRADES + 1):
        hot = hottest(cluster.asked, above)
        if hot is None or not parts or not _traded(cluster, parts, hot, number):
            return
        above = limits.LOAD_ABOVE / 2


def _traded(cluster: BalancePlan, parts: Sequence[TablePlacement], hot: str, number: int) -> bool:
    for cold in sorted(cluster.names, key=lambda name: (cluster.asked[name], name)):
        if cold == hot:
            continue
        for swaps in (True, False):  # a swap copies nothing
            best = ((*_best(part, hot, cold, swaps), part) for part in parts)
            spared, moves, part = max(best, key=lambda one: one[0])
            if spared >= limits.LOAD_GAIN * cluster.mean:
                before, after = (load / cluster.mean for load in (cluster.asked[hot], cluster.asked[hot] - spared))
                once = "with this" if len(moves) == 1 else "after this exchange"
                for segment, target in moves:
                    gain = f"{hot} was asked for {before:.2f} times the mean, {after:.2f} {once}"
                    part.give(segment, 0, target, "load", gain, number)
                return True
    return False


def _best(part: TablePlacement, hot: str, cold: str, swaps: bool) -> _Trade:
    gap = part.cluster.asked[hot] - part.cluster.asked[cold]
    givers = [segment for segment in _owned(part, hot) if (cold in part.sets[segment]) == swaps]
    takers = [segment for segment in _owned(part, cold) if (hot in part.sets[segment]) == swaps]
    best: _Trade = (0.0, [])
    if part.primaries[hot] > part.primaries[cold] and (swaps or part.copies[hot] > part.copies[cold]):
        # The counts stay as even as they were if one goes alone.
        for segment in givers:
            best = max(best, (_spared(gap, part.load(segment)), [(segment, cold)]), key=lambda one: one[0])
    for segment in givers:
        wanted = part.load(segment) - gap / 2
        at = bisect_left(takers, wanted, key=part.load)
        for other in takers[max(0, at - 1) : at + 1]:
            spared = _spared(gap, part.load(segment) - part.load(other))
            if spared > best[0]:
                best = spared, [(segment, cold), (other, hot)]
    return best


def _owned(part: TablePlacement, server: str) -> list[int]:
    found = [s for s, holders in enumerate(part.sets) if holders[:1] == [server] and not part.fixed[s]]
    return sorted(found, key=part.load)


def _spared(gap: float, moved: float) -> float:
    """How much less the busier of two has when this much goes over."""
    return min(moved, gap - moved)


def split(
    tables: Sequence[TablePlaces],
    servers: Collection[str],
    loads: Loads,
    halves: Mapping[int, Mapping[int, int]],
    under_way: Collection[tuple[int, int]] = (),
) -> SplitSegment | None:
    """A segment to split, if there is one; ``halves``: the keys that halve a segment's load."""
    cluster = BalancePlan(sorted(servers), loads)
    parts = [TablePlacement(cluster, table, under_way) for table in sorted(tables, key=lambda one: one.number)]
    if not parts or any(part.is_moving for part in parts):
        return None
    if (hot := hottest(cluster.asked)) is None:
        return None
    alone = [
        (-part.load(segment), at, segment)
        for at, part in enumerate(parts)
        if len(part.table.starts) < limits.SEGMENTS_PER_TABLE
        for segment, holders in enumerate(part.sets)
        if holders[:1] == [hot] and part.load(segment) > cluster.mean
    ]
    for _, number, segment in sorted(alone):
        table = parts[number].table
        start, stop = keys_of(table, segment)
        at = halves.get(table.number, {}).get(segment, start + (stop - start) // 2)
        if start < at < stop:
            share = loads[table.number][segment] / max(1.0, cluster.mean)
            return SplitSegment(table.name, segment, at, f"{share:.1f} times the load of the mean server")
    return None


@dataclass(slots=True)
class LoadStats:
    """The load of each segment, as its owner reported it last: rows a second.

    A segment that changes hands keeps its load until its new owner has measured it. Reports are
    noisy: a hot server is relieved only if it was the hottest for some reports since the last move,
    after every trade for twice as many (up to ``LOAD_PATIENCE``), until the set of servers changes.
    """

    rates: dict[int, dict[int, float]] = field(default_factory=dict)
    halves: dict[int, dict[int, int]] = field(default_factory=dict)  # keys that halve a load
    _hot: str | None = None
    _since: int = 0  # when it became the hottest, or who has what changed
    _known: tuple[object, ...] = ()  # who is here, and who has what
    _patience: int = 0  # tellings; 0: the least

    def heard(self, server: str, beat: Heartbeat, tables: Mapping[str, TablePlaces]) -> None:
        """What a server told of its own segments; by a view that knew them by these numbers."""
        if not beat.loads:
            return
        for table in tables.values():
            told, halves = beat.loads.get(table.number, {}), beat.halves.get(table.number, {})
            rates, cuts = self.rates.setdefault(table.number, {}), self.halves.setdefault(table.number, {})
            for segment, rate in told.items():
                place = table.places[segment] if 0 <= segment < len(table.places) else None
                if place is None or place.servers[:1] != [server] or place.since > beat.view:
                    continue  # it was another's, or another segment, when that was measured
                if 0 <= rate < inf:
                    rates[segment] = rate
                    cuts.pop(segment, None)
                    if segment in halves:
                        cuts[segment] = halves[segment]

    def is_time(
        self, now: int, servers: Sequence[str], tables: Mapping[str, TablePlaces], every: int = DEFAULT.load_every
    ) -> bool:
        """Whether a server has been hot for so long that it is no chance."""
        asked = self.by_server(tables)
        hot = hottest({name: asked.get(name, 0.0) for name in servers})
        here = sorted(servers)
        owners = [(table.number, [place.servers[:1] for place in table.places]) for table in tables.values()]
        if self._known[:1] != (here,):
            self._patience = 0
        if self._known != (here, owners) or hot != self._hot:
            self._known, self._hot, self._since = (here, owners), hot, now
        return hot is not None and now - self._since >= max(self._patience, limits.LOAD_STEADY) * every

    def traded(self) -> None:
        """Something was done about it: if that was not enough, or too much, be slower next time."""
        self._patience = min(limits.LOAD_PATIENCE, 2 * max(self._patience, limits.LOAD_STEADY))

    def keep(self, tables: Mapping[str, TablePlaces]) -> None:
        numbers = {table.number for table in tables.values()}
        for known in (self.rates, self.halves):
            for number in [number for number in known if number not in numbers]:
                del known[number]

    def was_split(self, table: int, segment: int) -> None:
        """A segment was split: later ones are renumbered, and each half gets half its load."""
        rates = self.rates.get(table, {})
        self.rates[table] = {number + (number > segment): rate for number, rate in rates.items()}
        if segment in rates:
            self.rates[table][segment] = self.rates[table][segment + 1] = rates[segment] / 2
        self.halves.pop(table, None)

    def by_server(self, tables: Mapping[str, TablePlaces]) -> dict[str, float]:
        """All that is asked of those who own anything."""
        found: dict[str, float] = {}
        for table in tables.values():
            rates = self.rates.get(table.number, {})
            for segment, place in enumerate(table.places):
                for owner in place.servers[:1]:
                    found[owner] = found.get(owner, 0.0) + rates.get(segment, 0.0)
        return found

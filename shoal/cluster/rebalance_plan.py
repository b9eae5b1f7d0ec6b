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

_Candidate = tuple[float, int, int, int]  # its load, a tie-breaker, a segment, a rank


def plan(
    tables: Sequence[TablePlaces],
    servers: Collection[str],
    *,
    leaving: Collection[str] = (),
    loads: Loads | None = None,
    in_flight: Collection[tuple[int, int]] = (),
    balance: str = "load",
    most: int = limits.MOVE_BYTES,
) -> list[WantedMove]:
    """The next moves; none if all is balanced, or if other moves have to arrive first.

    ``servers`` may hold more, ``leaving`` ones must not; any other server keeps what it has.
    ``in_flight`` are segments (table's number, segment) that are not to be touched.
    """
    if not (names := sorted(name for name in servers if name not in leaving)):
        return []
    cluster = BalancePlan(names, loads or {})
    placements = [TablePlacement(cluster, table, in_flight) for table in sorted(tables, key=lambda one: one.number)]
    for placement in placements:
        _drain_leaving(placement, leaving)
    if balance != "none":
        for placement in placements:
            _balance_counts(placement, placement.primaries, lambda holders: range(min(1, len(holders))))
            if any(len(holders) > 1 for holders in placement.sets):
                _balance_counts(placement, placement.copies, lambda holders: range(1, len(holders)))
    quiet = not cluster.moves and not any(placement.is_moving for placement in placements)
    if balance == "load" and quiet:
        trade(cluster, placements)
    return list(_limit_bytes(cluster.moves, {table.name: table for table in tables}, most))


def _drain_leaving(placement: TablePlacement, leaving: Collection[str]) -> None:
    """Move what leaving servers still hold to those with least; one of a set at a time."""
    for segment, holders in enumerate(placement.sets):
        rank = next((rank for rank, name in enumerate(holders) if name in leaving), None)
        if rank is None or placement.fixed[segment]:
            continue
        counts = placement.primaries if rank == 0 else placement.copies
        free = [name for name in placement.cluster.names if name not in holders]
        if free:
            placement.give(segment, rank, min(free, key=lambda name: placement.order(counts, name)), "leaving")
        elif len(holders) > 1:
            placement.give(segment, rank, "", "leaving")


def _balance_counts(placement: TablePlacement, counts: dict[str, int], ranks: Callable[[Sequence[str]], range]) -> None:
    """Move from those with most to those with least, until they differ by one or little."""
    if len(counts) < 2 or max(counts.values()) - min(counts.values()) < 2:
        return
    before = dict(counts)
    have: dict[str, list[_Candidate]] = {name: [] for name in placement.cluster.names}
    for segment, holders in enumerate(placement.sets):
        for rank in ranks(holders):
            if not placement.fixed[segment] and holders[rank] in have:
                hot = placement.load(segment) if rank == 0 else 0.0
                have[holders[rank]].append((hot, point(f"move {placement.table.number} {segment}"), segment, rank))
    for those in have.values():
        those.sort()
    while (found := _next_move(placement, counts, have)) is not None:
        source, one, target = found
        have[source].remove(one)
        gain = f"{source} had {before[source]:,}, {target} {before[target]:,}"
        placement.give(one[2], one[3], target, "count", gain)


def _next_move(
    placement: TablePlacement, counts: Mapping[str, int], have: Mapping[str, list[_Candidate]]
) -> tuple[str, _Candidate, str] | None:
    by_count = sorted(counts, key=lambda name: placement.order(counts, name))
    mean = sum(counts.values()) / len(counts)
    within = 0.0 if counts is placement.primaries else limits.COPIES_WITHIN * mean
    for source in reversed(by_count):
        for target in by_count:
            if counts[source] - counts[target] < 2:
                break
            if max(counts[source] - mean, mean - counts[target]) <= within:
                break  # neither has far too many, nor far too few
            if (one := _best_fit(placement, have[source], source, target, counts)) is not None:
                return source, one, target
    return None


def _best_fit(
    placement: TablePlacement, those: list[_Candidate], source: str, target: str, counts: Mapping[str, int]
) -> _Candidate | None:
    """Of these, one that brings the target near its share of the load.

    Preferably one of which it has a copy (the two swap), unless it lacks copies, too.
    """
    cluster = placement.cluster
    lacks = max(1, sum(counts.values()) // len(counts) - counts[target])
    ideal = max(0.0, (cluster.mean - cluster.load_of[target]) / lacks)
    other = next((one for one in _nearest(those, ideal) if target not in placement.sets[one[2]]), None)
    if counts is placement.primaries and (other is None or placement.copies[source] - placement.copies[target] < 2):
        return next((one for one in _nearest(those, ideal) if target in placement.sets[one[2]]), other)
    return other


def _nearest(those: Sequence[_Candidate], ideal: float) -> Iterator[_Candidate]:
    high = bisect_left(those, ideal, key=lambda one: one[0])
    low = high - 1
    while low >= 0 or high < len(those):
        if low < 0 or (high < len(those) and those[high][0] - ideal <= ideal - those[low][0]):
            yield those[high]
            high += 1
        else:
            yield those[low]
            low -= 1


def atomic_groups(wanted: Sequence[WantedMove]) -> Iterator[list[WantedMove]]:
    """Moves that are begun all or none: those of a trade, and every other one alone."""
    for _, those in groupby(enumerate(wanted), key=lambda one: (one[1].trade, 0 if one[1].trade else one[0])):
        yield [one for _, one in those]


def _limit_bytes(wanted: Sequence[WantedMove], tables: Mapping[str, TablePlaces], most: int) -> Iterator[WantedMove]:
    """Limit the bytes from one primary to one server; a trade goes in full or not at all."""
    room: dict[tuple[str, str], int] = {}
    for table in tables.values():
        for place in table.places:
            if place.filling and place.servers:
                room[place.servers[0], place.filling] = 0
    for those in atomic_groups(wanted):
        after = dict(room)
        if all(_has_room(after, one, tables[one.table], most) for one in those):
            room = after
            yield from those


def _has_room(room: dict[tuple[str, str], int], one: WantedMove, table: TablePlaces, most: int) -> bool:
    holders = table.places[one.segment].servers
    if not one.target or one.target in holders:
        return True  # nothing is copied
    size = estimated_bytes(table, one.segment)
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
    target: str  # empty: no server is left to take it, the set gets smaller
    why: str  # leaving, count, load
    gain: str = ""  # what improves, in words
    trade: int = 0  # those of one number go together; 0: alone


def estimated_bytes(table: TablePlaces, segment: int) -> int:
    start, stop = keys_of(table, segment)
    if isinstance(table.spec, Dense):
        return (stop - start) * table.spec.push_width * FLOAT_BYTES
    return limits.MOVE_BYTES // limits.SEGMENTS_PER_SERVER


@dataclass(slots=True)
class BalancePlan:
    """All servers while a plan is made: what they hold, their load, and the moves wanted so far."""

    names: list[str]
    loads: Loads
    moves: list[WantedMove] = field(default_factory=list)
    segments: dict[str, int] = field(init=False)  # segments of all tables
    load_of: dict[str, float] = field(init=False)  # rows a second

    def __post_init__(self) -> None:
        self.segments = dict.fromkeys(self.names, 0)
        self.load_of = dict.fromkeys(self.names, 0.0)

    @property
    def mean(self) -> float:
        return sum(self.load_of.values()) / len(self.names)


class TablePlacement:
    """One table: who holds its segments, as if all that is on its way had arrived."""

    def __init__(self, cluster: BalancePlan, table: TablePlaces, in_flight: Collection[tuple[int, int]]) -> None:
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
            self.fixed.append(bool(place.filling) or not place.servers or (table.number, segment) in in_flight)
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
        self.cluster.segments[name] += by
        if rank == 0:
            self.primaries[name] += by
            self.cluster.load_of[name] += by * self.load(segment)

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
        self.cluster.moves.append(WantedMove(self.table.name, segment, source, target, why, gain, trade))

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
        return counts[name], self.cluster.segments[name], self._points[name]


_Trade = tuple[float, list[tuple[int, str]]]  # load it saves the busier; segments and targets


@dataclass(frozen=True, slots=True)
class SplitSegment:
    """One segment that should be two: the second begins at this key."""

    table: str
    segment: int
    at: int
    why: str


def hottest(loads: Mapping[str, float], above: float = limits.LOAD_ABOVE) -> str | None:
    """The server with well more load than the mean; None if there is none."""
    mean = sum(loads.values()) / max(1, len(loads))
    if len(loads) < 2 or mean * len(loads) < limits.LOAD_LEAST:
        return None
    name = max(sorted(loads), key=loads.__getitem__)
    return name if loads[name] > mean * (1 + above) else None


def trade(cluster: BalancePlan, placements: Sequence[TablePlacement]) -> None:
    """Trade between the hottest server and the coldest that helps, as long as it helps.

    It begins when a server is above the mean by ``LOAD_ABOVE`` and ends when none is by half as
    much. A trade is an exchange, or one segment alone where the giver has one more.
    """
    above = limits.LOAD_ABOVE
    for number in range(1, limits.LOAD_TRADES + 1):
        hot = hottest(cluster.load_of, above)
        if hot is None or not placements or not _trade_once(cluster, placements, hot, number):
            return
        above = limits.LOAD_ABOVE / 2


def _trade_once(cluster: BalancePlan, placements: Sequence[TablePlacement], hot: str, number: int) -> bool:
    for cold in sorted(cluster.names, key=lambda name: (cluster.load_of[name], name)):
        if cold == hot:
            continue
        for swaps in (True, False):  # a swap copies nothing
            best = ((*_best_trade(placement, hot, cold, swaps), placement) for placement in placements)
            saved, moves, placement = max(best, key=lambda one: one[0])
            if saved >= limits.LOAD_GAIN * cluster.mean:
                before, after = (load / cluster.mean for load in (cluster.load_of[hot], cluster.load_of[hot] - saved))
                once = "with this" if len(moves) == 1 else "after this exchange"
                for segment, target in moves:
                    gain = f"{hot} was asked for {before:.2f} times the mean, {after:.2f} {once}"
                    placement.give(segment, 0, target, "load", gain, number)
                return True
    return False


def _best_trade(placement: TablePlacement, hot: str, cold: str, swaps: bool) -> _Trade:
    gap = placement.cluster.load_of[hot] - placement.cluster.load_of[cold]
    givers = [segment for segment in _owned(placement, hot) if (cold in placement.sets[segment]) == swaps]
    takers = [segment for segment in _owned(placement, cold) if (hot in placement.sets[segment]) == swaps]
    best: _Trade = (0.0, [])
    primaries, copies = placement.primaries, placement.copies
    if primaries[hot] > primaries[cold] and (swaps or copies[hot] > copies[cold]):
        # The counts stay as even as they were if one goes alone.
        for segment in givers:
            best = max(best, (_load_saved(gap, placement.load(segment)), [(segment, cold)]), key=lambda one: one[0])
    for segment in givers:
        wanted = placement.load(segment) - gap / 2
        at = bisect_left(takers, wanted, key=placement.load)
        for other in takers[max(0, at - 1) : at + 1]:
            saved = _load_saved(gap, placement.load(segment) - placement.load(other))
            if saved > best[0]:
                best = saved, [(segment, cold), (other, hot)]
    return best


def _owned(placement: TablePlacement, server: str) -> list[int]:
    found = [s for s, holders in enumerate(placement.sets) if holders[:1] == [server] and not placement.fixed[s]]
    return sorted(found, key=placement.load)


def _load_saved(gap: float, moved: float) -> float:
    """How much load the busier of two loses when this much moves."""
    return min(moved, gap - moved)


def split(
    tables: Sequence[TablePlaces],
    servers: Collection[str],
    loads: Loads,
    halves: Mapping[int, Mapping[int, int]],
    in_flight: Collection[tuple[int, int]] = (),
) -> SplitSegment | None:
    """A segment to split, if there is one; ``halves``: the keys that halve a segment's load."""
    cluster = BalancePlan(sorted(servers), loads)
    placements = [TablePlacement(cluster, table, in_flight) for table in sorted(tables, key=lambda one: one.number)]
    if not placements or any(placement.is_moving for placement in placements):
        return None
    if (hot := hottest(cluster.load_of)) is None:
        return None
    alone = [
        (-placement.load(segment), at, segment)
        for at, placement in enumerate(placements)
        if len(placement.table.starts) < limits.SEGMENTS_PER_TABLE
        for segment, holders in enumerate(placement.sets)
        if holders[:1] == [hot] and placement.load(segment) > cluster.mean
    ]
    for _, number, segment in sorted(alone):
        table = placements[number].table
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
    _seen_state: tuple[object, ...] = ()  # who is here, and who has what
    _patience: int = 0  # reports; 0: the least

    def record(self, server: str, beat: Heartbeat, tables: Mapping[str, TablePlaces]) -> None:
        """What a server reported of its own segments; by a view that knew them by these numbers."""
        if not beat.loads:
            return
        for table in tables.values():
            reported, halves = beat.loads.get(table.number, {}), beat.halves.get(table.number, {})
            rates, cuts = self.rates.setdefault(table.number, {}), self.halves.setdefault(table.number, {})
            for segment, rate in reported.items():
                place = table.places[segment] if 0 <= segment < len(table.places) else None
                if place is None or place.servers[:1] != [server] or place.since > beat.view:
                    continue  # measured under another owner, or of another segment
                if 0 <= rate < inf:
                    rates[segment] = rate
                    cuts.pop(segment, None)
                    if segment in halves:
                        cuts[segment] = halves[segment]

    def should_relieve(
        self, now: int, servers: Sequence[str], tables: Mapping[str, TablePlaces], every: int = DEFAULT.load_every
    ) -> bool:
        """Whether a server has been the hottest for long enough to act."""
        loads = self.by_server(tables)
        hot = hottest({name: loads.get(name, 0.0) for name in servers})
        here = sorted(servers)
        owners = [(table.number, [place.servers[:1] for place in table.places]) for table in tables.values()]
        if self._seen_state[:1] != (here,):
            self._patience = 0
        if self._seen_state != (here, owners) or hot != self._hot:
            self._seen_state, self._hot, self._since = (here, owners), hot, now
        return hot is not None and now - self._since >= max(self._patience, limits.LOAD_STEADY) * every

    def note_trade(self) -> None:
        """A trade was begun: wait longer before the next one."""
        self._patience = min(limits.LOAD_PATIENCE, 2 * max(self._patience, limits.LOAD_STEADY))

    def prune(self, tables: Mapping[str, TablePlaces]) -> None:
        numbers = {table.number for table in tables.values()}
        for known in (self.rates, self.halves):
            for number in [number for number in known if number not in numbers]:
                del known[number]

    def note_split(self, table: int, segment: int) -> None:
        """A segment was split: later ones are renumbered, and each half gets half its load."""
        rates = self.rates.get(table, {})
        self.rates[table] = {number + (number > segment): rate for number, rate in rates.items()}
        if segment in rates:
            self.rates[table][segment] = self.rates[table][segment + 1] = rates[segment] / 2
        self.halves.pop(table, None)

    def by_server(self, tables: Mapping[str, TablePlaces]) -> dict[str, float]:
        """The load of every server that is primary of a segment."""
        found: dict[str, float] = {}
        for table in tables.values():
            rates = self.rates.get(table.number, {})
            for segment, place in enumerate(table.places):
                for owner in place.servers[:1]:
                    found[owner] = found.get(owner, 0.0) + rates.get(segment, 0.0)
        return found

"""Who should hold what next: few moves that bring every server to its share, first of segments, then of what is asked of them.

    leaving    what a server that goes still holds goes to others; where no other is left, the set gets smaller
    count      primaries of a table: no two servers differ by more than one; of all its copies every server has about the mean
    load       the server that is asked for most, if that is well above the mean, trades segments for colder ones of the
               servers that are asked for least (``by_load``)

A trade keeps the counts and is begun as a whole or not at all, so the two rules never undo each other. What is on its way counts as if
it had arrived: so a plan that was carried out in part goes on where it was, by the same few moves, and a balanced cluster wants none.
The number of moves by count is the least that there can be: each goes from one that has too many to one that has too few. Every move says what it is good for.

A plan is cut to what may be on the way at once (``most`` bytes from one primary to one server). It follows from its inputs alone, in whatever order the
servers are named: no randomness, no clock, nothing is sent from here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby

from shoal import limits
from shoal.cluster import load_balance
from shoal.cluster.balance_plan import (
    BalancePlan,
    Loads,
    Sizes,
    TablePlacement,
    WantedMove,
    estimated,
)
from shoal.cluster.placement import point
from shoal.wire.messages import TablePlaces

_One = tuple[float, int, int, int]  # what is asked of it, a number that differs for each, a segment, a rank


def plan(
    tables: Sequence[TablePlaces],
    servers: Collection[str],
    *,
    leaving: Collection[str] = (),
    loads: Loads | None = None,
    sizes: Sizes | None = None,
    under_way: Collection[tuple[int, int]] = (),
    balance: str = "load",
    most: int = limits.MOVE_BYTES,
) -> list[WantedMove]:
    """The next moves; none if all is as it should be, or nothing can be done about it before others have arrived.

    ``servers`` may hold more, ``leaving`` ones may not and hold something still; whoever is neither keeps what it has.
    ``under_way`` are segments (table's number, segment) that are not to be touched, beside those that are being filled.
    """
    names = sorted(name for name in servers if name not in leaving)
    if not names:
        return []
    cluster = BalancePlan(names, loads or {}, sizes or {})
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
        load_balance.trade(cluster, parts)
    return list(_at_once(cluster.wanted, {table.name: table for table in tables}, sizes or {}, most))


def _empty(part: TablePlacement, leaving: Collection[str]) -> None:
    """Everything that those who go still hold, to whoever has least; one of a set at a time."""
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


# ------------------------------------------------------------ count


def _even(part: TablePlacement, counts: dict[str, int], ranks: Callable[[Sequence[str]], range]) -> None:
    """From those who have most to those who have least, until they differ by one, or are near enough."""
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

    One of which it has a copy, since the two swap places then; but where it lacks copies, too, one of which it has none.
    """
    cluster = part.cluster
    lacks = max(1, sum(counts.values()) // len(counts) - counts[target])
    ideal = max(0.0, (cluster.mean - cluster.asked[target]) / lacks)
    other = next((one for one in _nearest(those, ideal) if target not in part.sets[one[2]]), None)
    if counts is part.primaries and (other is None or part.copies[source] - part.copies[target] < 2):
        return next((one for one in _nearest(those, ideal) if target in part.sets[one[2]]), other)
    return other


def _nearest(those: Sequence[_One], ideal: float) -> Iterator[_One]:
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


# ------------------------------------------------------------ as much as may be on its way


def together(wanted: Sequence[WantedMove]) -> Iterator[list[WantedMove]]:
    """Moves that are begun all or none: those of a trade, and every other one alone."""
    for _, those in groupby(enumerate(wanted), key=lambda one: (one[1].trade, 0 if one[1].trade else one[0])):
        yield [one for _, one in those]


def _at_once(
    wanted: Sequence[WantedMove], tables: Mapping[str, TablePlaces], sizes: Sizes, most: int
) -> Iterator[WantedMove]:
    """From one primary to one server some bytes, and nothing more while there is any; of a trade all or nothing."""
    room: dict[tuple[str, str], int] = {}
    for table in tables.values():
        for place in table.places:
            if place.filling and place.servers:
                room[place.servers[0], place.filling] = 0
    for those in together(wanted):
        after = dict(room)
        if all(_has_room(after, one, tables[one.table], sizes, most) for one in those):
            room = after
            yield from those


def _has_room(room: dict[tuple[str, str], int], one: WantedMove, table: TablePlaces, sizes: Sizes, most: int) -> bool:
    holders = table.places[one.segment].servers
    if not one.target or one.target in holders:
        return True  # nothing is copied
    known = sizes.get(table.number, {})
    size = known[one.segment] if one.segment in known else estimated(table, one.segment)
    left = room.get((holders[0], one.target), most)
    if left < most and size > left:
        return False
    room[holders[0], one.target] = max(0, left - size)
    return True

"""What is asked of servers, made more even: trades between the hottest and a cold one, and segments that are cut in two.

    begin     a server is asked for well more than the mean (``LOAD_ABOVE``)
    go on     with what is known, until none is by half as much: else the least chance would begin it again
    each      spares the busier of two a part of the mean (``LOAD_GAIN``), says so, and leaves the counts as they were

A trade is an exchange, or one segment alone where the giver has one more than the taker. A segment that is above the mean all alone
should be two. When it is time for this is not decided here (``loads.Loads``): nothing here reads the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shoal import limits
from shoal.cluster.balance_plan import (
    BalancePlan,
    Loads,
    TablePlacement,
    keys_of,
)
from shoal.wire.messages import TablePlaces

_Trade = tuple[float, list[tuple[int, str]]]  # what the busier of two is spared by it; segments, and who gets them


@dataclass(frozen=True, slots=True)
class SplitSegment:
    """One segment that should be two: the second begins at this key."""

    table: str
    segment: int
    at: int
    why: str


def hottest(asked: Mapping[str, float], above: float | None = None) -> str | None:
    """The server that is asked for well more than the mean; None if there is none, or all of it is little."""
    mean = sum(asked.values()) / max(1, len(asked))
    if len(asked) < 2 or mean * len(asked) < limits.LOAD_LEAST:
        return None
    name = max(sorted(asked), key=asked.__getitem__)
    return name if asked[name] > mean * (1 + (limits.LOAD_ABOVE if above is None else above)) else None


def trade(cluster: BalancePlan, parts: Sequence[TablePlacement]) -> None:
    """Exchanges between the hottest server and the coldest with which one helps, as long as they do."""
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
    """The move, or exchange, that does most for these two."""
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
    halves: Mapping[int, Mapping[int, int]] | None = None,
    under_way: Collection[tuple[int, int]] = (),
) -> SplitSegment | None:
    """A segment that should be two, if there is one; only of a table of which nothing is on its way.

    ``halves`` says at which key a segment's load is cut in two, where a server could tell.
    """
    cluster = BalancePlan(sorted(servers), loads, {})
    parts = [TablePlacement(cluster, table, under_way) for table in sorted(tables, key=lambda one: one.number)]
    if not parts or any(part.is_moving for part in parts):
        return None
    for part, segment in _hot_alone(cluster, parts):
        table = part.table
        start, stop = keys_of(table, segment)
        at = (halves or {}).get(table.number, {}).get(segment, start + (stop - start) // 2)
        if start < at < stop:
            share = loads[table.number][segment] / max(1.0, cluster.mean)
            return SplitSegment(table.name, segment, at, f"{share:.1f} times what the mean server is asked for")
    return None


def _hot_alone(cluster: BalancePlan, parts: Sequence[TablePlacement]) -> list[tuple[TablePlacement, int]]:
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


def _may_split(part: TablePlacement, segment: int) -> bool:
    start, stop = keys_of(part.table, segment)
    return stop - start >= 2 and len(part.table.starts) < limits.SEGMENTS_PER_TABLE

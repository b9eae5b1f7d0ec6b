"""Laws of every rebalance plan, by count and by load."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.cluster import placement
from shoal.cluster.rebalance_plan import (
    WantedMove,
    atomic_groups,
    plan,
    split,
)
from shoal.limits import COPIES_WITHIN, LOAD_ABOVE, MOVE_BYTES
from shoal.tables import Dense
from shoal.wire.messages import Replicas, TablePlaces

NAMES = [f"server-{i}" for i in range(7)]
SPAN = 64_000


def table_of(number: int, holders: list[tuple[str, ...]]) -> TablePlaces:
    starts = [i * SPAN // len(holders) for i in range(len(holders))]
    return TablePlaces(
        number, f"table-{number}", Dense(rows=SPAN), starts, [Replicas(1, list(names)) for names in holders]
    )


def done(tables: list[TablePlaces], moves: list[WantedMove]) -> list[TablePlaces]:
    """The tables after all these moves."""
    by_name = {table.name: table for table in tables}
    for one in moves:
        places = list(by_name[one.table].places)
        # If the target is in the set, source and target swap places.
        turn = {one.source: one.target, one.target: one.source}
        servers = [turn.get(name, name) for name in places[one.segment].servers]
        places[one.segment] = replace(places[one.segment], servers=[name for name in servers if name])
        by_name[one.table] = replace(by_name[one.table], places=places)
    return list(by_name.values())


def counts(table: TablePlaces, servers: list[str], ranks: slice) -> list[int]:
    return [sum(name in place.servers[ranks] for place in table.places) for name in servers]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[TablePlaces], list[str], list[str], int]:
    """Tables that were placed on some servers; others have joined since, and some are leaving."""
    before = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    copies = draw(st.integers(1, 2))
    tables = [
        table_of(i + 1, placement.place(i + 1, draw(st.integers(1, 40)), before, copies))
        for i in range(draw(st.integers(1, 3)))
    ]
    leaving = draw(st.lists(st.sampled_from(before), unique=True, max_size=len(before) - 1))
    more = draw(st.lists(st.sampled_from(NAMES), unique=True))
    servers = [name for name in dict.fromkeys([*before, *more]) if name not in leaving]
    return tables, servers, leaving, copies


def settled(
    tables: list[TablePlaces], servers: list[str], leaving: list[str], balance: str, **more: object
) -> list[TablePlaces]:
    for _ in range(500):
        moves = plan(tables, servers, leaving=leaving, balance=balance, **more)  # type: ignore[arg-type]
        if not moves:
            return tables
        tables = done(tables, moves)
    raise AssertionError("there is always one more move")


@settings(deadline=None)
@given(clusters())
def test_a_plan_ends_with_even_counts_and_nothing_on_those_who_leave(
    found: tuple[list[TablePlaces], list[str], list[str], int],
) -> None:
    tables, servers, leaving, copies = found
    for table in settled(tables, servers, leaving, "count"):
        assert not any(name in leaving for place in table.places for name in place.servers)
        assert all(len(set(place.servers)) == len(place.servers) > 0 for place in table.places)
        primaries, held = counts(table, servers, slice(0, 1)), counts(table, servers, slice(0, copies))
        assert max(primaries) - min(primaries) <= 1
        mean = sum(held) / len(held)
        assert max(held) - min(held) <= 1 or max(max(held) - mean, mean - min(held)) <= COPIES_WITHIN * mean


@settings(deadline=None)
@given(clusters())
def test_nothing_moves_once_it_is_settled_and_nobody_comes_or_goes(
    found: tuple[list[TablePlaces], list[str], list[str], int],
) -> None:
    tables, servers, leaving, _ = found
    assert plan(settled(tables, servers, leaving, "count"), servers, balance="count") == []


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_thousand_changes_copy_little_more_than_they_must(copies: int) -> None:
    """Random joins and leaves, one after another, each on the result of the one before."""
    draw = Random(copies)
    servers, born = [f"server-{i}" for i in range(6)], 6
    tables = [table_of(1, placement.place(1, 64, servers, copies))]
    made = must = 0
    for _ in range(1_000):
        leaving = []
        if len(servers) <= copies or (len(servers) < 16 and draw.random() < 0.5):
            servers, born = [*servers, f"server-{born}"], born + 1
            must += 64 // len(servers)  # the primaries of the server that has just joined
        else:
            leaving = [draw.choice(servers)]
            servers = [name for name in servers if name not in leaving]
            must += sum(leaving[0] in place.servers for place in tables[0].places)
        before, tables = tables, settled(tables, servers, leaving, "count")
        for was, now in zip(before[0].places, tables[0].places, strict=True):
            assert len(now.servers) == len(set(now.servers)) == copies
            assert set(now.servers) <= set(servers)
            made += len(set(now.servers) - set(was.servers))
        primaries = counts(tables[0], servers, slice(0, 1))
        assert max(primaries) - min(primaries) <= 1
    print(f"{made:,} segments copied where {must:,} is the least: {made / must:.3f}")
    assert must <= made <= 1.4 * must  # backups are spread, too


@settings(deadline=None)
@given(clusters())
def test_by_count_no_rule_could_move_fewer(found: tuple[list[TablePlaces], list[str], list[str], int]) -> None:
    tables, servers, leaving, copies = found
    if copies > 1:
        return
    for table in tables:
        held = counts(table, servers, slice(0, 1))
        floor, more = divmod(len(table.places), len(servers))
        shares = [floor + (i < more) for i in range(len(servers))]
        least = sum(max(0, share - has) for share, has in zip(shares, sorted(held, reverse=True), strict=True))
        assert len(plan([table], servers, leaving=leaving, balance="count", most=1 << 60)) == least


@settings(deadline=None)
@given(clusters(), st.data())
def test_what_is_under_way_is_left_alone_and_nobody_who_leaves_is_given_anything(
    found: tuple[list[TablePlaces], list[str], list[str], int], data: st.DataObject
) -> None:
    tables, servers, leaving, _ = found
    every = [(table.number, segment) for table in tables for segment in range(len(table.places))]
    in_flight = data.draw(st.lists(st.sampled_from(every), unique=True))
    numbers = {table.name: table.number for table in tables}
    moves = plan(tables, servers, leaving=leaving, in_flight=in_flight)
    for one in moves:
        assert (numbers[one.table], one.segment) not in in_flight
        assert one.target in servers or not one.target
        place = next(table for table in tables if table.name == one.table).places[one.segment]
        assert one.source in place.servers
        assert one.target not in place.servers or one.source == place.servers[0]
    assert len({(one.table, one.segment) for one in moves}) == len(moves)


@settings(deadline=None)
@given(clusters())
def test_moves_that_are_on_their_way_are_not_wanted_again(
    found: tuple[list[TablePlaces], list[str], list[str], int],
) -> None:
    tables, servers, leaving, _ = found
    first = plan(tables, servers, leaving=leaving, balance="count", most=1 << 60)
    by_name = {table.name: table for table in tables}
    for one in first:
        places = list(by_name[one.table].places)
        if not one.target or one.target in places[one.segment].servers:
            by_name = {table.name: table for table in done(list(by_name.values()), [one])}
            continue
        places[one.segment] = replace(places[one.segment], filling=one.target, instead=one.source)
        by_name[one.table] = replace(by_name[one.table], places=places)
    again = plan(list(by_name.values()), servers, leaving=leaving, balance="count", most=1 << 60)
    assert not {(one.table, one.segment) for one in again} & {(one.table, one.segment) for one in first}


@settings(deadline=None)
@given(clusters(), st.data())
def test_the_order_of_names_plays_no_part(
    found: tuple[list[TablePlaces], list[str], list[str], int], data: st.DataObject
) -> None:
    tables, servers, leaving, _ = found
    other = data.draw(st.permutations(servers))
    assert plan(tables, servers, leaving=leaving) == plan(tables, other, leaving=leaving)


@settings(deadline=None)
@given(clusters(), st.integers(0, 1_000_000))
def test_by_load_a_plan_ends_and_never_makes_the_busiest_busier(
    found: tuple[list[TablePlaces], list[str], list[str], int], seed: int
) -> None:
    tables, servers, leaving, _ = found
    loads = {
        table.number: {i: float((seed * 31 + 7919 * i * table.number) % 9973) for i in range(len(table.places))}
        for table in tables
    }
    tables = settled(tables, servers, leaving, "count")

    def busiest(tables: list[TablePlaces]) -> float:
        return max(
            sum(loads[t.number][i] for t in tables for i, place in enumerate(t.places) if place.servers[0] == name)
            for name in servers
        )

    before = busiest(tables)
    after = settled(tables, servers, leaving, "load", loads=loads)
    assert busiest(after) <= before
    for old, new in zip(tables, after, strict=True):
        assert sorted(counts(old, servers, slice(0, 1))) == sorted(counts(new, servers, slice(0, 1)))


def test_a_hot_server_trades_a_hot_segment_for_a_cold_one() -> None:
    table = table_of(1, [("ann",), ("ann",), ("bob",), ("bob",)])
    loads = {1: {0: 9_000.0, 1: 8_000.0, 2: 1_000.0, 3: 500.0}}
    moves = plan([table], ["ann", "bob"], loads=loads)
    assert {(one.source, one.target, one.why) for one in moves} == {("ann", "bob", "load"), ("bob", "ann", "load")}
    after = done([table], moves)
    assert plan(after, ["ann", "bob"], loads=loads) == []
    assert plan([table], ["ann", "bob"], loads=loads, balance="count") == []


def test_who_is_only_a_little_above_the_mean_keeps_what_it_has() -> None:
    table = table_of(1, [("ann",), ("ann",), ("bob",), ("bob",)])
    little = 9_000.0 * (1 + LOAD_ABOVE * 0.9)
    assert plan([table], ["ann", "bob"], loads={1: {0: little, 1: 0.0, 2: 18_000.0 - little, 3: 0.0}}) == []


def test_a_segment_that_alone_is_above_the_mean_is_split_where_its_load_is_halved() -> None:
    table = table_of(1, [("ann",), ("ann",), ("bob",), ("bob",)])
    loads = {1: {0: 90_000.0, 1: 10.0, 2: 100.0, 3: 50.0}}
    middle = split([table], ["ann", "bob"], loads, {})
    assert middle is not None and (middle.segment, middle.at) == (0, SPAN // 8)
    told = split([table], ["ann", "bob"], loads, {1: {0: 17}})
    assert told is not None and told.at == 17
    # One key has the whole load, so the segment cannot be split.
    assert split([table], ["ann", "bob"], loads, {1: {0: 0}}) is None
    assert split([table], ["ann", "bob"], loads, {}, in_flight=[(1, 3)]) is None


def test_only_so_much_is_on_its_way_between_two_servers() -> None:
    big = Dense(rows=SPAN, width=4_096)  # 1 GB in 64 segments
    starts = [i * SPAN // 64 for i in range(64)]
    table = TablePlaces(1, "w", big, starts, [Replicas(1, ["ann"]) for _ in starts])
    moves = plan([table], ["ann", "bob"])
    per_segment = SPAN // 64 * 4_096 * 4
    assert 1 <= len(moves) == MOVE_BYTES // per_segment


def test_a_trade_is_on_its_way_as_a_whole_or_not_at_all() -> None:
    table = table_of(1, [("ann",), ("ann",), ("bob",), ("bob",)])
    loads = {1: {0: 9_000.0, 1: 8_000.0, 2: 1_000.0, 3: 500.0}}
    moves = plan([table], ["ann", "bob"], loads=loads)
    assert [len(those) for those in atomic_groups(moves)] == [2]
    assert {one.gain for one in moves} == {"ann was asked for 1.84 times the mean, 1.03 after this exchange"}
    alone = [WantedMove(one.table, one.segment, one.source, one.target, one.why) for one in moves]
    assert [len(those) for those in atomic_groups(alone)] == [1, 1]
    big = TablePlaces(1, "w", Dense(rows=SPAN, width=4_096), table.starts, table.places)
    # More bytes than may be in flight, but nothing else is in flight.
    assert len(plan([big], ["ann", "bob"], loads=loads)) == 2


def test_trades_go_on_until_nobody_is_much_above_the_mean_and_each_keeps_the_counts() -> None:
    table = table_of(1, [("ann",)] * 8 + [("bob",)] * 8)
    loads = {1: {i: 10_000.0 + i if i < 8 else 10.0 * i for i in range(16)}}
    moves = plan([table], ["ann", "bob"], loads=loads)
    assert [len(those) for those in atomic_groups(moves)] == [2] * 4
    assert plan(done([table], moves), ["ann", "bob"], loads=loads) == []

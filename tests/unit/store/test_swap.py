"""A primary and its backup swap roles, and every push counts exactly once.

Nothing is copied and nothing is lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.cluster.placement import halved
from shoal.keys import KeyRange
from shoal.limits import SECOND
from shoal.wire import messages as m
from tests.unit.store.server.test_replicate import ALL, digests, two
from tests.unit.store.test_copies import ANN, ROWS, SERVERS, Town, placed


def swapped(table: m.TablePlaces, view: int, segments: list[int] | None = None) -> m.TablePlaces:
    """Swap the first two servers of these segments."""
    places = [
        replace(one, servers=[one.servers[1], one.servers[0], *one.servers[2:]], epoch=view, since=view)
        if segments is None or number in segments
        else one
        for number, one in enumerate(table.places)
    ]
    return replace(table, places=places)


def push(town: Town, table: m.TablePlaces, number: int) -> None:
    """Ann adds 1 to all rows, at the servers that serve them."""
    for name, table_server in town.holdings.items():
        own = table_server.primary
        if own is None or table_server.opening or table_server.placed.places != table.places:
            continue
        mine = [s for s, place in enumerate(table.places) if place.servers[0] == name]
        if own.segments != mine:
            continue
        keys = np.concatenate([np.arange(r.start, r.stop) for r in own.check.ranges]).astype(np.uint64)
        facts: dict[str, Any] = {"request": number + 1, "table": 1, "view": town.view, "generation": 0}
        facts |= {"count": len(keys), "incarnation": ANN, "stream": -ANN, "number": number, "floor": 0, "step": 0}
        ask = m.Push(**facts, entered=0, spell=0, first=0, last=m.EVERYWHERE)
        town.carry_out(name, own.push(town.now, "ann", ask, (keys, np.ones(len(keys), np.float32))))


def values(town: Town) -> list[float]:
    found = np.full(ROWS, -1.0)
    for table_server in town.holdings.values():
        if table_server.primary is not None:
            for keys in table_server.primary.check.ranges:
                rows = table_server.primary.check.read(KeyRange(keys.start, keys.stop))[0][-1]
                found[keys.start : keys.stop] = rows
    return found.tolist()


def settle(town: Town) -> None:
    for _ in range(8):
        town.now += SECOND // 3
        for name, table_server in town.holdings.items():
            town.carry_out(name, table_server.tick(town.now, False))
        town.deliver()


def without(table: m.TablePlaces, view: int, asked: m.Shrink) -> m.TablePlaces:
    """Returns the coordinator's decision: the server that asked goes on without the other."""
    asker = next(name for name, incarnation in SERVERS.items() if incarnation == asked.incarnation)
    places = [
        replace(one, servers=[name for name in one.servers if name != asked.server], epoch=view)
        if one.servers[0] == asker
        else one
        for one in table.places
    ]
    return replace(table, places=places)


def test_who_was_primary_backs_up_with_what_it_has_and_nothing_is_filled() -> None:
    town = Town(placed("server-0", "server-1"))
    push(town, town.table, 0)
    town.deliver()
    after = swapped(town.table, town.view + 1)
    town.become(after)
    assert not any(isinstance(send.message, m.BackfillPiece) for _, send in town.post)
    town.deliver()
    assert any(isinstance(one, m.Opened) for one in town.told)
    push(town, after, 0)  # sent again by the new view
    push(town, after, 1)
    town.deliver()
    assert values(town) == [2] * ROWS and len(town.digests()) == 1


def test_what_the_backup_had_and_the_primary_had_not_counted_yet_is_counted_once() -> None:
    town = Town(placed("server-0", "server-1"))
    push(town, town.table, 0)
    town.deliver(m.Append)  # the backup has it, and the primary does not know
    after = swapped(town.table, town.view + 1)
    town.become(after)
    settle(town)
    push(town, after, 0)
    settle(town)
    assert values(town) == [1] * ROWS and len(town.digests()) == 1


def test_two_that_change_places_twice_before_they_are_level_lose_nothing() -> None:
    town = Town(placed("server-0", "server-1"))
    push(town, town.table, 0)
    town.deliver()
    once = swapped(town.table, town.view + 1)
    town.become(once)
    twice = swapped(once, town.view + 1)
    town.become(twice)
    settle(town)
    push(town, twice, 1)
    settle(town)
    assert values(town) == [2] * ROWS and len(town.digests()) == 1


def test_if_the_new_primary_dies_before_they_are_level_the_old_one_takes_over_with_all_that_was_counted() -> None:
    town = Town(placed("server-0", "server-1"))
    push(town, town.table, 0)
    town.deliver()
    town.become(swapped(town.table, town.view + 1))
    town.post.clear()
    del town.holdings["server-1"]
    town.view += 1
    alone = replace(town.table, places=[m.Replicas(town.view, ["server-0"], since=town.view)])
    members = {name: one for name, one in SERVERS.items() if name != "server-1"}
    for name, table_server in town.holdings.items():
        town.carry_out(name, table_server.apply_placement(town.now, alone, members, town.view))
    assert values(town) == [1] * ROWS


def test_one_that_missed_a_split_and_two_swaps_does_not_take_the_old_log_for_the_new_one() -> None:
    town = Town(two())
    push(town, town.table, 0)
    town.deliver()
    cut = halved(town.table, 0, 1, town.view + 1)
    there = swapped(cut, town.view + 2)
    back = swapped(there, town.view + 3)
    late = town.holdings.pop("server-2")
    for table in (cut, there, back):
        town.become(table)
    town.post = type(town.post)(one for one in town.post if one[1].to != "server-2")
    town.holdings["server-2"] = late
    town.carry_out("server-2", late.apply_placement(town.now, back, SERVERS, town.view))
    settle(town)
    push(town, back, 1)
    settle(town)
    assert values(town) == [2] * ROWS and [len(one) for one in digests(town)] == [1, 1, 1]


# The copies that the last primary must be level with have the segment from another log than the
# primary has: it goes on without them.
OTHER_LOG = [("push", 0)] * 3 + [
    ("swap", 1),
    ("show", 0),
    ("show", 1),
    ("show", 2),
    ("all", 0),
    ("all", 0),
    ("swap", 1),
]


@settings(deadline=None)
@example(OTHER_LOG)
@given(
    st.lists(st.tuples(st.sampled_from(("push", "one", "all", "split", "swap", "show", "tick")), st.integers(0, 99)))
)
def test_whatever_the_order_of_swaps_and_splits_every_push_counts_once(story: list[tuple[str, int]]) -> None:
    town = Town(two())
    tables, shown, pushed = {1: town.table}, dict.fromkeys(ALL, 1), 0

    def show(name: str, view: int) -> None:
        if view > shown[name]:
            shown[name], town.view = view, max(town.view, view)
            town.carry_out(name, town.holdings[name].apply_placement(town.now, tables[view], SERVERS, view))

    def deliver(at: int) -> None:
        sender, send = town.post[at]
        if getattr(send.message, "view", 0) <= shown[send.to]:
            del town.post[at]
            outcome = town.holdings[send.to].handle(town.now, sender, send.message, tuple(send.arrays))  # type: ignore[arg-type]
            town.carry_out(send.to, outcome)

    for what, number in story:
        newest = max(tables)
        table = tables[newest]
        segment = number % len(table.starts)
        if what == "push":
            push(town, table, pushed)
            pushed += 1
        elif what == "one" and town.post:
            deliver(number % len(town.post))
        elif what == "all":
            for _ in range(len(town.post)):
                deliver(0)
                town.post.rotate(-1)
        elif what == "split" and all(one.placed is table for one in town.holdings.values()):
            if [*table.starts[1:], ROWS][segment] - table.starts[segment] > 1:
                tables[newest + 1] = halved(table, segment, table.starts[segment] + 1, newest + 1)
        elif what == "swap" and all(one.placed is table for one in town.holdings.values()):
            tables[newest + 1] = swapped(table, newest + 1, [segment])
        elif what == "show":
            show(ALL[number % 3], newest)
        elif what == "tick":
            town.now += SECOND // 3
            for name, table_server in town.holdings.items():
                town.carry_out(name, table_server.tick(town.now, False))
    for name in ALL:
        show(name, max(tables))
    settle(town)
    # One does not answer: the coordinator decides.
    while any(one.opening for one in town.holdings.values()):
        town.told.clear()
        while not any(isinstance(one, m.Shrink) for one in town.told):
            settle(town)
        newest = max(tables)
        asked = next(one for one in town.told if isinstance(one, m.Shrink))
        tables[newest + 1] = without(tables[newest], newest + 1, asked)
        for name in ALL:
            show(name, newest + 1)
        settle(town)
    for again in range(pushed):  # clients resend everything, by the newest view
        push(town, tables[max(tables)], again)
    settle(town)
    assert values(town) == [pushed] * ROWS
    assert [len(one) for one in digests(town)] == [1] * len(tables[max(tables)].starts)

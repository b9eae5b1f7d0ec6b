"""A segment is split while pushes are under way, and every push counts exactly once.

All copies agree afterwards.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.cluster.placement import halved
from shoal.keys import KeyRange
from shoal.limits import SECOND
from shoal.store.server.replicate import new_numbers, renumbered, split_map
from shoal.store.table.update import Sum
from shoal.tables import Dense, Each, Step
from shoal.wire import messages as m
from tests.unit.store.test_copies import ROWS, SERVERS, Town

ALL = ("server-0", "server-1", "server-2")


def two(apply: Each | Step | None = None) -> m.TablePlaces:
    """A table of two segments, each on all servers."""
    places = [m.Replicas(1, list(ALL), since=1), m.Replicas(1, list(ALL), since=1)]
    return m.TablePlaces(1, "w", Dense(rows=ROWS, update=Sum(), apply=apply or Each()), [0, 2], places)


def digests(town: Town) -> list[set[str]]:
    """Returns for each segment the digests of all servers that hold it."""
    told = [
        table_server.status(m.TableStatusRequest(1, 1, town.view, digests=True)).digests
        for table_server in town.holdings.values()
    ]
    numbers = sorted({number for one in told for number in one})
    return [{one[number] for one in told if number in one} for number in numbers]


def test_numbers_follow_from_where_segments_start() -> None:
    to = split_map([0, 10, 20], [0, 10, 13, 15, 20])
    assert [list(one) for one in to] == [[0], [1, 2, 3], [4]]
    assert new_numbers([1, 2], to) == [1, 2, 3, 4]
    assert renumbered(m.ReplicatedChange(5, "push", only=[0, 1]), to).only == [0, 1, 2, 3]
    # Everything that its message covers, as before.
    assert renumbered(m.ReplicatedChange(5, "push"), to).only == []


def test_a_push_that_was_on_its_way_to_the_copies_counts_once_in_both_halves() -> None:
    town = Town(two())
    town.push(0)  # sent to all copies, none has answered
    town.become(halved(town.table, 0, 1, town.view + 1))
    town.deliver()  # refused, because it has the old numbers
    assert town.values() == [0] * ROWS
    town.now += SECOND
    for name, table_server in town.holdings.items():
        town.carry_out(name, table_server.tick(town.now, False))
    town.deliver()
    assert town.values() == [1] * ROWS
    town.push(0)  # the client sends it again, by the new view
    town.push(1)
    town.deliver()
    assert town.values() == [2] * ROWS and town.counted() == [1, 2]
    assert [len(one) for one in digests(town)] == [1, 1, 1]


def test_who_takes_over_a_half_brings_the_others_level() -> None:
    town = Town(two())
    town.push(0)
    late = town.post.pop()  # one copy does not get it
    town.deliver(m.Append)
    cut = halved(town.table, 0, 1, town.view + 1)
    town.become(cut)
    town.post.clear()
    del town.holdings["server-0"], late  # server-0 dies before it can resend the message
    view = town.view + 1
    places = [m.Replicas(view, ["server-1", "server-2"], since=view) for _ in cut.places]
    town.view = view
    members = {name: one for name, one in SERVERS.items() if name != "server-0"}
    for name, table_server in town.holdings.items():
        town.carry_out(name, table_server.apply_placement(town.now, replace(cut, places=places), members, view))
    town.deliver()
    own = town.holdings["server-1"].primary
    assert own is not None and own.segments == [0, 1, 2]
    assert own.check.read(KeyRange(0, ROWS))[0][-1].tolist() == [1] * ROWS
    assert [len(one) for one in digests(town)] == [1, 1, 1]


def test_a_step_that_is_open_is_sent_again_and_taken_once() -> None:
    town = Town(two(Step(slots=2)))
    town.push(0)
    town.become(halved(town.table, 1, 3, town.view + 1))
    town.push(0)
    town.push(1)
    town.deliver()
    assert town.values() == [2] * ROWS
    assert [len(one) for one in digests(town)] == [1, 1, 1]


def test_a_server_that_missed_the_views_in_between_finds_all_cuts_at_once() -> None:
    town = Town(two())
    town.push(0)
    town.deliver()
    once = halved(town.table, 0, 1, town.view + 1)
    twice = halved(once, 2, 3, town.view + 2)
    first, *others = ALL
    for at, table in enumerate((once, twice)):
        outcome = town.holdings[first].apply_placement(town.now, table, SERVERS, town.view + 1 + at)
        town.carry_out(first, outcome)
    town.view += 2
    for name in others:
        town.carry_out(name, town.holdings[name].apply_placement(town.now, twice, SERVERS, town.view))
    town.push(1)
    town.deliver()
    assert town.values() == [2] * ROWS and [len(one) for one in digests(town)] == [1] * 4


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("push", "again", "one", "all", "split", "show", "tick")), st.integers(0, 99)))
)
def test_whatever_the_order_every_push_counts_once_and_copies_agree(story: list[tuple[str, int]]) -> None:
    """Servers apply views at different moments; messages arrive in any order, or twice.

    In the end every push is counted.
    """
    town = Town(two())
    tables, shown, pushed = {1: town.table}, dict.fromkeys(ALL, 1), 0

    def show(name: str, view: int) -> None:
        if view > shown[name]:
            shown[name] = view
            town.carry_out(name, town.holdings[name].apply_placement(town.now, tables[view], SERVERS, view))

    def deliver(at: int) -> None:
        sender, send = town.post[at]
        if getattr(send.message, "view", 0) > shown[send.to]:
            return  # the server keeps it until it has that view, or drops it: it is sent again
        del town.post[at]
        town.carry_out(send.to, town.holdings[send.to].handle(town.now, sender, send.message, tuple(send.arrays)))  # type: ignore[arg-type]

    for what, number in [*story, *[("end", at) for at in range(12)]]:
        if what == "push" or (what == "again" and pushed):
            town.push(pushed if what == "push" else number % pushed)
            pushed += what == "push"
        elif what == "one" and town.post:
            deliver(number % len(town.post))
        elif what == "split":
            table, view = tables[max(tables)], max(tables) + 1
            segment = number % len(table.starts)
            stop = [*table.starts[1:], ROWS][segment]
            if stop - table.starts[segment] > 1:
                tables[view] = halved(table, segment, table.starts[segment] + 1, view)
        elif what == "show":
            show(ALL[number % 3], max(tables))
        elif what in ("tick", "end", "all"):
            if what == "end":
                for name in ALL:
                    show(name, max(tables))
                if number == 6:
                    for again in range(pushed):  # clients resend everything, by the newest view
                        town.push(again)
            if what != "all":
                town.now += SECOND // 3
                for name, table_server in town.holdings.items():
                    town.carry_out(name, table_server.tick(town.now, False))
            for _ in range(len(town.post)):
                deliver(0) if getattr(town.post[0][1].message, "view", 0) <= shown[town.post[0][1].to] else None
                town.post.rotate(-1) if town.post else None
    assert town.values() == [pushed] * ROWS
    assert [len(one) for one in digests(town)] == [1] * len(tables[max(tables)].starts)


def test_every_key_is_in_one_half_and_what_cannot_be_cut_is_refused_with_the_reason() -> None:
    table = two()
    cut = halved(table, 1, 3, 7)
    assert cut.starts == [0, 2, 3] and len(cut.places) == 3
    assert {(place.epoch, place.since) for place in cut.places} == {(7, 7)}
    for segment, at, why in ((0, 0, "not inside"), (0, 2, "not inside"), (1, 4, "not inside"), (5, 1, "2 segments")):
        with pytest.raises(ValueError, match=why):
            halved(table, segment, at, 7)
    moving = replace(table, places=[replace(table.places[0], filling="server-9"), table.places[1]])
    with pytest.raises(ValueError, match="are moving"):
        halved(moving, 1, 3, 7)


@settings(deadline=None)
@given(st.lists(st.integers(1, 999), unique=True), st.data())
def test_split_keeps_every_key_in_exactly_one_segment(cuts: list[int], data: st.DataObject) -> None:
    starts = [0, *sorted(cuts)]
    table = m.TablePlaces(1, "w", Dense(rows=1_000), starts, [m.Replicas(1, ["ann"]) for _ in starts])
    wide = [i for i, stop in enumerate([*starts[1:], 1_000]) if stop - starts[i] > 1]
    if not wide:
        return
    segment = data.draw(st.sampled_from(wide))
    at = data.draw(st.integers(starts[segment] + 1, [*starts[1:], 1_000][segment] - 1))
    cut = halved(table, segment, at, 2)
    owners = np.searchsorted(cut.starts, np.arange(1_000), side="right") - 1
    before = np.searchsorted(starts, np.arange(1_000), side="right") - 1
    to = split_map(starts, cut.starts)
    assert all(new in to[old] for old, new in zip(before.tolist(), owners.tolist(), strict=True))
    assert sorted(cut.starts) == cut.starts and len(set(cut.starts)) == len(cut.places)

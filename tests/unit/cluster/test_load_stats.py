"""The coordinator collects the load of servers."""

from __future__ import annotations

from math import inf, nan

from shoal.cluster.rebalance_plan import LoadStats
from shoal.limits import LOAD_LEAST, LOAD_PATIENCE, LOAD_STEADY
from shoal.tables import Dense
from shoal.timing import DEFAULT
from shoal.wire.messages import Heartbeat, Replicas, TablePlaces


def table(*owners: str, since: int = 0) -> dict[str, TablePlaces]:
    starts = [10 * i for i in range(len(owners))]
    places = [Replicas(1, [owner], since=since) for owner in owners]
    return {"w": TablePlaces(1, "w", Dense(rows=10 * len(owners)), starts, places)}


def test_an_owner_is_believed_and_nobody_else() -> None:
    loads = LoadStats()
    told = {0: 5.0, 1: 7.0, 9: 1.0, -1: 1.0}
    loads.record("ann", Heartbeat(1, 3, {}, {1: told, 8: {0: 1.0}}, {1: {0: 4, 1: 14}}), table("ann", "bob"))
    assert loads.rates == {1: {0: 5.0}} and loads.halves == {1: {0: 4}}
    loads.record("ann", Heartbeat(1, 3, {}, {1: {0: nan, 1: inf}}), table("ann", "ann"))
    assert loads.rates == {1: {0: 5.0}}
    assert loads.by_server(table("ann", "bob")) == {"ann": 5.0, "bob": 0.0}


def test_what_was_measured_before_a_segment_was_cut_is_not_taken_for_what_it_is_now() -> None:
    loads = LoadStats()
    loads.record("ann", Heartbeat(1, 3, {}, {1: {0: 5.0}}), table("ann", since=4))
    assert loads.rates == {1: {}}
    loads.record("ann", Heartbeat(1, 4, {}, {1: {0: 5.0}}), table("ann", since=4))
    assert loads.rates == {1: {0: 5.0}}


SERVERS = ["ann", "bob"]
LONG = LOAD_STEADY * DEFAULT.load_every


def hot(loads: LoadStats, at: int, tables: dict[str, TablePlaces]) -> None:
    """The owner of this segment gets the whole load."""
    loads.rates[1] = {segment: LOAD_LEAST if segment == at else 0.0 for segment in range(len(tables["w"].places))}


def test_only_one_that_is_the_hottest_for_a_while_is_taken_for_hot() -> None:
    loads, tables = LoadStats(), table("ann", "bob")
    hot(loads, 0, tables)
    assert not loads.should_relieve(0, SERVERS, tables)
    assert not loads.should_relieve(LONG - 1, SERVERS, tables)
    assert loads.should_relieve(LONG, SERVERS, tables)
    hot(loads, 1, tables)
    assert not loads.should_relieve(LONG, SERVERS, tables)  # another segment: that may be chance
    loads.rates[1] = {}
    assert not loads.should_relieve(2 * LONG, SERVERS, tables)
    hot(loads, 1, tables)
    assert not loads.should_relieve(3 * LONG, SERVERS, tables)
    assert loads.should_relieve(4 * LONG, SERVERS, tables)


def test_nothing_is_done_about_what_was_told_before_the_owners_changed() -> None:
    loads, tables = LoadStats(), table("ann", "bob")
    hot(loads, 0, tables)
    assert not loads.should_relieve(0, SERVERS, tables)
    tables = table("ann", "bob", "bob")
    hot(loads, 0, tables)
    # A segment was split or has a new owner, which must report first.
    assert not loads.should_relieve(LONG, SERVERS, tables)
    assert loads.should_relieve(2 * LONG, SERVERS, tables)


def test_after_every_trade_it_takes_longer_until_others_are_here() -> None:
    loads, tables, now = LoadStats(), table("ann", "bob"), 0
    hot(loads, 0, tables)
    assert not loads.should_relieve(now, SERVERS, tables)
    for tellings in [LOAD_STEADY * 2**i for i in range(1, 5)]:
        loads.note_trade()
        assert not loads.should_relieve(min(tellings, LOAD_PATIENCE) * DEFAULT.load_every - 1, SERVERS, tables)
        assert loads.should_relieve(min(tellings, LOAD_PATIENCE) * DEFAULT.load_every, SERVERS, tables)
    loads.note_trade()
    # The wait never gets longer than this.
    assert loads.should_relieve(LOAD_PATIENCE * DEFAULT.load_every, SERVERS, tables)
    others = [*SERVERS, "cat"]
    assert not loads.should_relieve(0, others, tables)
    assert loads.should_relieve(LONG, others, tables)


def test_what_is_known_of_a_segment_stays_when_it_changes_hands_and_is_shared_when_it_is_split() -> None:
    loads = LoadStats()
    loads.record("ann", Heartbeat(1, 3, {}, {1: {0: 5.0, 1: 8.0}}), table("ann", "ann"))
    assert loads.by_server(table("bob", "ann")) == {"bob": 5.0, "ann": 8.0}
    loads.note_split(1, 0)
    assert loads.rates == {1: {0: 2.5, 1: 2.5, 2: 8.0}}
    loads.prune({})
    assert loads.rates == {}

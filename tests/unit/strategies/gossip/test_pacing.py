"""How long legs are, and who gets how much of one."""

from __future__ import annotations

from shoal.strategies.gossip.controller import (
    FASTER,
    LEG,
    SHARE,
    LegPace,
)


def leg(pace: LegPace, took: float, slots: dict[str, int], done: dict[str, float] | None = None) -> None:
    pace.begin(100.0)
    for name, at in (done or {}).items():
        pace.is_done(name, 100.0 + at)
    pace.end(100.0 + took, slots)


def test_legs_grow_until_they_take_as_long_as_they_should() -> None:
    pace, rounds = LegPace("sync"), 1
    assert pace.rounds(0.0, 0, None) == 1
    for _ in range(10):
        leg(pace, rounds * 0.01, {})
        before, rounds = rounds, pace.rounds(100.0 + rounds * 0.01, rounds, None)
        assert rounds <= FASTER * before
    assert abs(rounds * 0.01 - LEG["sync"]) < 0.02


def test_a_leg_is_longer_where_the_pause_before_it_was() -> None:
    pace = LegPace("sync")
    leg(pace, 1.0, {})
    assert pace.rounds(102.0, 1_000, None) == FASTER  # of one at the beginning
    for _ in range(9):
        found = pace.rounds(102.0, 1_000, None)
    assert found == 1_000 * SHARE


def test_no_leg_is_longer_than_the_time_that_is_left_and_none_is_shorter_than_a_round() -> None:
    pace = LegPace("sync")
    leg(pace, 1.0, {})
    for _ in range(9):
        found = pace.rounds(101.0, 100, 0.25)
    assert found == 25
    assert pace.rounds(101.0, 100, -3.0) == 1


def test_where_nobody_waits_each_gets_what_it_does_in_the_same_time() -> None:
    pace = LegPace("async")
    assert pace.shares(["ann", "bob"]) is None
    leg(pace, 1.0, {"ann": 10, "bob": 10}, {"ann": 0.25, "bob": 1.0})
    assert pace.shares(["ann", "bob"]) == [40.0, 10.0]
    leg(pace, 1.0, {"ann": 60, "bob": 20}, {"ann": 1.0, "bob": 1.0})
    assert pace.shares(["bob", "ann"]) == [15.0, 50.0]  # half of it is new


def test_where_all_wait_for_all_everybody_gets_the_same() -> None:
    pace = LegPace("sync")
    leg(pace, 1.0, {"ann": 10, "bob": 10}, {"ann": 0.25, "bob": 1.0})
    assert pace.shares(["ann", "bob"]) is None


def test_what_took_no_time_says_nothing_of_how_fast_somebody_is() -> None:
    pace = LegPace("async")
    leg(pace, 0.01, {"ann": 10})
    assert pace.shares(["ann"]) is None

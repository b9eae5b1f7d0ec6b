"""Slots as intervals behave like a set of numbers."""

from __future__ import annotations

import random

from shoal.schedule.intervals import Intervals, count, runs


def test_it_is_a_set_of_numbers_whatever_is_done_to_it() -> None:
    chance = random.Random(7)
    spans, plain = Intervals(), set[int]()
    for _ in range(4_000):
        first = chance.randrange(120)
        some = [(first, first + chance.randrange(12)), (chance.randrange(130), chance.randrange(130))]
        numbers = {slot for a, b in some for slot in range(a, b)}
        assert spans.within([(a, b) for a, b in some[:1]]) == len(plain & set(range(*some[0])))
        if chance.random() < 0.5:
            assert spans.add(some) == len(numbers - plain)
            plain |= numbers
        else:
            assert spans.remove(some) == len(numbers & plain)
            plain -= numbers
        assert spans.runs == runs(sorted(plain))
        assert spans.size == len(plain) == count(spans)
        assert spans.end == max(plain, default=-1) + 1
        assert spans.missing(100).runs == runs(slot for slot in range(100) if slot not in plain)
        slot = chance.randrange(120)
        assert (slot in spans) == (slot in plain)


def test_the_lowest_are_taken_out_first_and_none_beyond_where_it_ends() -> None:
    spans = Intervals([(10, 20), (30, 40)])
    assert spans.pop(12) == [(10, 20), (30, 32)]
    assert spans.pop(100, below=35) == [(32, 35)]
    assert spans.pop(0) == [] and spans.runs == [(35, 40)]


def test_runs_are_joined_and_taken_away() -> None:
    assert Intervals([(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]).runs == [(0, 3), (5, 9)]
    assert Intervals([(0, 10)]).without([(2, 4), (6, 7)]).runs == [(0, 2), (4, 6), (7, 10)]
    both = Intervals([(0, 3), (5, 9)])
    assert both.without([(2, 6)]).runs == [(0, 2), (6, 9)]
    assert not both.without([(0, 99)]) and both.without([]).runs == both.runs == [(0, 3), (5, 9)]

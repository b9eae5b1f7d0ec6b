"""Vector clocks and range clocks: cases that can be checked by hand (S1-17 to S1-19)."""

from __future__ import annotations

import pytest

from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.limits import KEY_LIMIT
from shoal.store.server.vector_clock import GONE, RangeClocks, VectorClock

P, Q, R = 1, 2, 3


def test_the_example_with_three_processes() -> None:
    """S1-17: d before j, and g and j concurrent.

    p   a   b   c   d          b goes to f, d goes to j
    q     e   f       g        g is a step of its own after f
    r       h   i       j
    """
    a = VectorClock().local(P)
    b = a.send(P)
    c = b.local(P)
    d = c.send(P)
    e = VectorClock().local(Q)
    f = e.receive(Q, b)
    g = f.local(Q)
    h = VectorClock().local(R)
    i = h.local(R)
    j = i.receive(R, d)

    assert d == VectorClock({P: 4})
    assert g == VectorClock({P: 2, Q: 3})
    assert j == VectorClock({P: 4, R: 3})
    assert d.before(j)
    assert not j.before(d)
    assert g.concurrent(j)
    assert b.before(f) and b.before(g) and b.before(j)  # both know what p did before it sent
    assert c.concurrent(g)  # q knows b only


def test_an_event_is_neither_before_nor_concurrent_with_itself() -> None:
    clock = VectorClock({P: 2, Q: 1})
    same = VectorClock({Q: 1, P: 2, R: 0})
    assert clock == same
    assert not clock.before(same)
    assert not clock.concurrent(same)


def test_a_count_below_zero_is_refused() -> None:
    with pytest.raises(Invalid, match="from 0"):
        VectorClock({P: -1})


def test_a_task_on_part_of_a_range_leaves_three() -> None:
    clocks = RangeClocks(100)
    clocks.tick(P)
    assert len(clocks) == 1
    clocks.tick(P, KeyRange(10, 20))
    assert clocks.read() == [
        (KeyRange(0, 10), VectorClock({P: 1})),
        (KeyRange(10, 20), VectorClock({P: 2})),
        (KeyRange(20, 100), VectorClock({P: 1})),
    ]


def test_the_whole_span_in_pieces_is_one_clock_again() -> None:
    clocks = RangeClocks(100)
    for start in (0, 75, 25, 50):
        clocks.tick(P, KeyRange(start, start + 25))
    assert clocks.read() == [(KeyRange(0, 100), VectorClock({P: 1}))]


def test_many_tasks_on_the_same_ranges_need_no_more_clocks() -> None:
    clocks = RangeClocks(1 << 40)
    for round in range(100):
        clocks.tick(1 + round % 7, KeyRange(1_000, 2_000))
        clocks.tick(1 + round % 5, KeyRange(5_000, 1 << 39))
        clocks.tick(1)
    assert len(clocks) == 5  # two ranges, and the gaps around them


def test_a_read_is_cut_to_the_keys_that_were_asked_for() -> None:
    clocks = RangeClocks(100)
    clocks.tick(P, KeyRange(10, 20))
    assert clocks.read(KeyRange(5, 15)) == [
        (KeyRange(5, 10), VectorClock()),
        (KeyRange(10, 15), VectorClock({P: 1})),
    ]
    assert clocks.read(KeyRange(12, 12)) == []


def test_very_many_clocks_are_read_as_one_that_knows_them_all() -> None:
    clocks = RangeClocks(100)
    for start in range(0, 100, 20):
        clocks.tick(P, KeyRange(start, start + 10))
    clocks.tick(Q, KeyRange(90, 100))
    assert len(clocks.read(most=11)) == 10
    assert clocks.read(KeyRange(5, 95), most=4) == [(KeyRange(5, 95), VectorClock({P: 1, Q: 1}))]


def test_all_keys_there_can_be_have_a_clock() -> None:
    clocks = RangeClocks(KEY_LIMIT)
    clocks.tick(P, KeyRange(KEY_LIMIT - 1, KEY_LIMIT))
    clocks.tick(Q)
    assert [(len(range(keys.start, keys.stop)) > 1, clock) for keys, clock in clocks.read()] == [
        (True, VectorClock({Q: 1})),
        (False, VectorClock({P: 1, Q: 1})),
    ]


def test_past_the_bound_a_task_counts_for_whole_ranges() -> None:
    clocks = RangeClocks(100, most=3)
    clocks.tick(P, KeyRange(10, 20))
    clocks.tick(Q, KeyRange(15, 30))
    assert clocks.widened == 1
    assert clocks.read() == [
        (KeyRange(0, 10), VectorClock()),
        (KeyRange(10, 20), VectorClock({P: 1, Q: 1})),
        (KeyRange(20, 100), VectorClock({Q: 1})),
    ]


def test_what_a_retired_node_did_stays_counted() -> None:
    clocks = RangeClocks(100)
    clocks.tick(7, KeyRange(0, 50))
    clocks.tick(8)
    clocks.tick(9, KeyRange(50, 100))
    clocks.retire(7)
    clocks.retire(9)
    clocks.retire(9)  # repeated or unknown nodes have no effect
    clocks.retire(10)
    assert clocks.read() == [(KeyRange(0, 100), VectorClock({GONE: 1, 8: 1}))]


def test_a_segment_brings_its_clock_along() -> None:
    clocks = RangeClocks(100)
    clocks.tick(P)
    clocks.write(KeyRange(50, 100), VectorClock({Q: 4}))
    assert clocks.read() == [(KeyRange(0, 50), VectorClock({P: 1})), (KeyRange(50, 100), VectorClock({Q: 4}))]
    clocks.write(KeyRange(50, 100), VectorClock({P: 1}))
    assert len(clocks) == 1


def test_keys_that_there_are_not_have_no_clock() -> None:
    clocks = RangeClocks(100)
    with pytest.raises(Invalid, match="end at 100"):
        clocks.tick(P, KeyRange(50, 101))
    with pytest.raises(Invalid, match="at least one"):
        RangeClocks(0)

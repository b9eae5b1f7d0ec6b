"""The load of a segment is counted by message and reported as rows per second."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.keys import KeyRange
from shoal.store.server.load import SegmentLoad, load_report
from shoal.tables import Dense, Sparse, Table

HELD = [(0, KeyRange(0, 100)), (3, KeyRange(300, 400)), (4, KeyRange(400, 401))]


def keys(*some: int) -> np.ndarray:
    return np.array(some, np.uint64)


def watched(spec: Table, held: list[tuple[int, KeyRange]]) -> SegmentLoad:
    """Returns a load that was reset once: its first interval, seen in part, is not reported."""
    asked = SegmentLoad(spec, held)
    asked.update_rates(1.0)
    assert asked.rates() == {}
    return asked


def test_rows_of_lists_and_ranges_are_counted_where_they_lie() -> None:
    asked = watched(Dense(rows=1_000), HELD)
    asked.count(keys(0, 5, 99, 300))  # fewer keys than bins
    asked.count(np.r_[np.arange(100), np.arange(300, 401)].astype(np.uint64))  # more keys than bins
    asked.count(KeyRange(50, 350))  # by arithmetic
    asked.count(keys())
    asked.update_rates(2.0)
    assert asked.rates() == {0: (3 + 100 + 50) / 2, 3: (1 + 100 + 50) / 2, 4: 0.5}


def test_ranges_of_a_sparse_table_are_not_counted() -> None:
    asked = watched(Sparse(keys=1 << 40), [(0, KeyRange(0, 1 << 40))])
    asked.count(KeyRange(0, 1 << 40))
    asked.count(keys(1, 2))
    asked.update_rates(1.0)
    assert asked.rates() == {0: 2.0}


def test_rates_are_evened_out_and_nothing_is_told_before_it_was_watched() -> None:
    asked = watched(Dense(rows=1_000), HELD)
    assert asked.rates() == {}
    asked.count(KeyRange(0, 100))
    asked.update_rates(1.0)
    asked.update_rates(1.0)
    assert 0 < asked.rates()[0] < 100


def test_the_key_that_halves_a_load_is_near_where_it_lies() -> None:
    asked = watched(Dense(rows=1_000), HELD)
    for _ in range(10):
        asked.count(keys(0, 1, 2, 310))
    asked.count(keys(400))
    rates, halves = load_report({7: asked}, 1.0)
    assert rates == {7: {0: 30.0, 3: 10.0, 4: 1.0}}
    # The first eighth of segment 0 has all its load; the others have less than a quarter of the
    # total.
    assert halves == {7: {0: 12}}
    assert asked.split_keys(0.5) == {0: 12, 3: 312}  # a segment of one key cannot be split


def test_all_keys_from_two_to_the_sixty_third_down_can_be_counted() -> None:
    asked = watched(Sparse(hashed=True), [(0, KeyRange(0, 1 << 62)), (1, KeyRange(1 << 62, 1 << 63))])
    asked.count(keys(0, (1 << 62) - 1, 1 << 62, (1 << 63) - 1))
    asked.update_rates(1.0)
    assert asked.rates() == {0: 2.0, 1: 2.0}
    assert asked.split_keys(1.0) == {0: pytest.approx(1 << 61, rel=1), 1: pytest.approx(3 << 61, rel=1)}


def test_what_is_known_of_a_segment_stays_when_others_come_and_go() -> None:
    old = watched(Dense(rows=1_000), HELD)
    old.count(KeyRange(300, 400))
    old.update_rates(1.0)
    new = SegmentLoad(Dense(rows=1_000), [(2, KeyRange(200, 300)), (3, KeyRange(300, 400))])
    new.take_over(old, {3: 3})
    assert new.rates() == {3: 100.0}  # segment 2 is reported once it was watched, too


def test_many_segments_are_counted_whole() -> None:
    held = [(i, KeyRange(i * 10, i * 10 + 10)) for i in range(8_192)]
    asked = watched(Dense(rows=81_920), held)
    asked.count(keys(5, 15, 81_919))
    asked.update_rates(1.0)
    rates = asked.rates()
    assert (rates[0], rates[1], rates[8_191], sum(rates.values())) == (1.0, 1.0, 1.0, 3.0)


def test_of_many_messages_a_sample_is_counted_for_all_of_them() -> None:
    asked = watched(Dense(rows=1_000), HELD)
    for _ in range(2):
        for _ in range(7_000):
            asked.count(keys(5))
            asked.count(keys(305))
        asked.update_rates(1.0)
    assert asked.rates() == {0: 7_000.0, 3: 7_000.0, 4: 0.0}

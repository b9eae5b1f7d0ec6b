"""A change ticks the vector clocks of its segments, and they always fit a header."""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.keys import KeyRange, KeyValues
from shoal.limits import HEADER_BYTES
from shoal.store.server.segment_state import SegmentState
from shoal.store.server.vector_clock import VectorClock
from shoal.tables import Dense
from shoal.wire import messages as m

HELD = [(0, KeyRange(0, 100)), (2, KeyRange(200, 300))]


def pushed(start: int, stop: int) -> KeyValues:
    return KeyValues(KeyRange(start, stop), np.ones((stop - start, 1), np.float32))


def clocks(part: SegmentState, keys: KeyRange) -> list[tuple[KeyRange, VectorClock]]:
    return part.vector_clocks.read(keys)


def test_a_range_ticks_its_own_keys_only() -> None:
    part = SegmentState(1, Dense(rows=300), HELD)
    part.record(m.ReplicatedChange(1, "push", incarnation=5), part.check.all_mask, True, pushed(50, 250))
    assert clocks(part, KeyRange(0, 100)) == [
        (KeyRange(0, 50), VectorClock()),
        (KeyRange(50, 100), VectorClock({5: 1})),
    ]


def test_a_segment_that_had_the_change_before_is_not_ticked_again() -> None:
    part = SegmentState(1, Dense(rows=300), HELD)
    part.record(m.ReplicatedChange(1, "push", incarnation=5), part.check.mask([2]), False, pushed(50, 250))
    assert clocks(part, KeyRange(0, 100)) == [(KeyRange(0, 100), VectorClock())]
    assert clocks(part, KeyRange(200, 300)) == [
        (KeyRange(200, 250), VectorClock({5: 1})),
        (KeyRange(250, 300), VectorClock()),
    ]


def test_a_list_of_keys_ticks_the_segments_it_went_to() -> None:
    part = SegmentState(1, Dense(rows=300), HELD)
    listed = KeyValues(np.array([201], np.uint64), np.ones((1, 1), np.float32))
    part.record(m.ReplicatedChange(1, "push", incarnation=5), part.check.mask([2]), False, listed)
    both = KeyValues(np.array([3, 201], np.uint64), np.ones((2, 1), np.float32))
    part.record(m.ReplicatedChange(2, "push", incarnation=6), part.check.all_mask, True, both)
    # It has no rows for us.
    part.record(m.ReplicatedChange(3, "push", incarnation=7), part.check.all_mask, True, None)
    part.record(m.ReplicatedChange(4, "push", incarnation=5), part.check.all_mask, True, listed)
    assert clocks(part, KeyRange(0, 100)) == [(KeyRange(0, 100), VectorClock({6: 1}))]
    assert clocks(part, KeyRange(200, 300)) == [(KeyRange(200, 300), VectorClock({5: 2, 6: 1}))]


def test_the_clocks_of_all_segments_fit_one_header_however_many_there_are() -> None:
    rows = 8_000
    part = SegmentState(1, Dense(rows=rows), [(i, KeyRange(i * 1_000, (i + 1) * 1_000)) for i in range(8)])
    for i in range(3_000):
        part.vector_clocks.tick(1 + i % 60, KeyRange(2 * i, 2 * i + 1))
    for node in range(1, 101):
        part.vector_clocks.tick(node)
    assert len(part.vector_clocks) > 2_000
    books = [part.books(segment) for segment in part.segments]
    assert len(msgspec.msgpack.encode(books)) < HEADER_BYTES // 2
    for segment, book in enumerate(books):
        # A merged range has a clock that includes everything that happened there.
        for start, stop, counts in book.events:
            told = VectorClock(counts)
            assert all(clock <= told for _, clock in part.vector_clocks.read(KeyRange(start, stop))), segment

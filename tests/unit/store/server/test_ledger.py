"""The ledger counts each number once, in any order, and separately for every segment."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.limits import LEDGER_WINDOW
from shoal.store.server.ledger import Ledger, Mask, PushStream


def mask(*segments: bool | int) -> Mask:
    return np.array(segments, np.bool_)


def counted(stream: PushStream, numbers: range) -> list[list[int]]:
    """Returns for each segment which of these numbers are counted."""
    return [[n for n in numbers if stream.has(n)[segment]] for segment in range(len(stream.mark))]


def test_numbers_in_order_move_the_mark_and_touch_no_bit() -> None:
    stream = PushStream(2)
    for number in range(200):
        assert not stream.has(number).any()
        stream.add(number, mask(1, 1))
        assert stream.has(number).all()
    assert stream.mark.tolist() == [200, 200]
    assert not stream.bits.any()


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 2, 1), (2, 0, 1), (1, 0, 2)])
def test_numbers_may_come_in_any_order(order: tuple[int, ...]) -> None:
    stream = PushStream(1)
    for done, number in enumerate(order):
        assert not stream.has(number).any()
        stream.add(number, mask(1))
        assert counted(stream, range(5)) == [sorted(order[: done + 1])]
    assert stream.mark.tolist() == [3]
    assert not stream.bits.any()  # numbers below the mark need no bit


def test_a_number_that_is_added_twice_changes_nothing() -> None:
    stream = PushStream(1)
    for number in (0, 3, 3, 0):
        stream.add(number, mask(1))
    assert counted(stream, range(6)) == [[0, 3]]
    assert stream.mark.tolist() == [1]


def test_every_segment_has_its_own_truth() -> None:
    stream = PushStream(3)
    stream.add(0, mask(1, 0, 1))
    stream.add(1, mask(0, 1, 1))
    assert counted(stream, range(3)) == [[0], [1], [0, 1]]
    assert stream.mark.tolist() == [1, 0, 2]
    stream.add(0, mask(0, 1, 0))  # the part that was sent again
    assert counted(stream, range(3)) == [[0], [0, 1], [0, 1]]
    assert stream.mark.tolist() == [1, 2, 2]


def test_a_number_for_no_segment_is_counted_nowhere() -> None:
    stream = PushStream(2)
    stream.add(0, mask(0, 0))
    stream.add(5, mask(0, 0))
    assert counted(stream, range(8)) == [[], []]
    stream.add(0, mask(1, 1))
    assert counted(stream, range(8)) == [[0], [0]]


def test_the_ring_of_bits_widens_and_forgets_nothing() -> None:
    stream = PushStream(2)
    stream.add(0, mask(1, 0))  # the marks differ, so the two rings are rotated differently
    numbers = [5, 63, 64, 70, 200, 1_000]
    for number in numbers:
        stream.add(number, mask(1, 1))
    assert counted(stream, range(2_000)) == [[0, *numbers], numbers]
    assert stream.bits.shape[1] == 1_024
    for number in range(1, 5):
        stream.add(number, mask(1, 1))
    stream.add(0, mask(0, 1))
    assert stream.mark.tolist() == [6, 6]


def test_a_full_ring_is_passed_in_one_go() -> None:
    stream = PushStream(1)
    for number in range(1, 129):
        stream.add(number, mask(1))
    assert stream.mark.tolist() == [0]
    stream.add(0, mask(1))
    assert stream.mark.tolist() == [129]
    assert not stream.bits.any()


def test_what_is_below_a_floor_is_over() -> None:
    stream = PushStream(2)
    stream.add(2, mask(1, 1))
    stream.add(7, mask(1, 0))
    assert stream.raise_to(5)
    assert counted(stream, range(10)) == [[0, 1, 2, 3, 4, 7], [0, 1, 2, 3, 4]]
    assert stream.mark.tolist() == [5, 5]


def test_a_floor_that_meets_a_counted_number_goes_on_past_it() -> None:
    stream = PushStream(1)
    stream.add(5, mask(1))
    stream.add(6, mask(1))
    assert stream.raise_to(5)
    assert stream.mark.tolist() == [7]


def test_a_floor_that_is_not_above_the_mark_changes_nothing() -> None:
    stream = PushStream(1)
    stream.add(0, mask(1))
    assert not stream.raise_to(1)
    assert not stream.raise_to(0)
    assert stream.mark.tolist() == [1]


def test_a_bit_that_a_floor_has_passed_is_not_met_again() -> None:
    stream = PushStream(1)
    stream.add(3, mask(1))
    stream.raise_to(10)
    assert not stream.has(67).any()  # 3 and 67 share a place in the ring
    stream.add(10, mask(1))
    assert counted(stream, range(9, 100)) == [[9, 10]]


def test_each_segment_may_have_its_own_floor() -> None:
    stream = PushStream(3)
    stream.add(4, mask(1, 1, 1))
    assert stream.raise_to(np.array([2, 0, 9]))
    assert counted(stream, range(12)) == [[0, 1, 4], [4], list(range(9))]


def test_a_floor_far_ahead_costs_nothing() -> None:
    stream = PushStream(1)
    stream.raise_to(1 << 60)
    assert stream.has((1 << 60) - 1).all()
    assert not stream.has(1 << 60).any()
    stream.add(1 << 60, mask(1))
    assert stream.mark.tolist() == [(1 << 60) + 1]


def test_a_number_fits_if_it_is_within_the_window_of_every_segment() -> None:
    stream = PushStream(2)
    assert stream.fits(LEDGER_WINDOW - 1)
    assert not stream.fits(LEDGER_WINDOW)
    stream.add(0, mask(1, 0))
    assert not stream.fits(LEDGER_WINDOW)  # the slower segment decides
    stream.add(0, mask(0, 1))
    assert stream.fits(LEDGER_WINDOW)


def test_a_segment_that_was_left_alone_for_long_holds_nobody_up() -> None:
    stream = PushStream(2)
    for number in range(0, 3 * LEDGER_WINDOW, LEDGER_WINDOW // 2):
        assert stream.fits(number, floor=number)
        stream.raise_to(np.array([number, 0]))
        stream.add(number, mask(1, 0))
    assert stream.mark[1] == 0 and stream.bits.shape[1] == 64  # nothing was stored for it either
    assert not stream.fits(number + 1)
    stream.raise_to(np.array([0, number]))
    stream.add(number, mask(0, 1))
    assert stream.mark.tolist() == [number + 1, number + 1]


def test_streams_know_nothing_of_each_other() -> None:
    marks = Ledger(1)
    marks.stream(0).add(4, mask(1))
    marks.stream(-7).add(0, mask(1))
    assert counted(marks.stream(0), range(6)) == [[4]]
    assert counted(marks.stream(-7), range(6)) == [[0]]
    assert marks.streams() == [0, -7]


def test_a_stream_that_was_dropped_starts_afresh() -> None:
    marks = Ledger(1)
    marks.stream(-7).add(0, mask(1))
    assert -7 in marks
    marks.drop(-7)
    assert -7 not in marks
    assert not marks.stream(-7).has(0).any()
    marks.drop(-8)  # never seen: no effect

"""A step's slots become one gradient: in slot order, in any order of arrival."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from shoal.keys import KeyRange, Keys, KeyValues, Values
from shoal.store.server.aggregate import OpenStep, SlotPiece

BOTH = np.ones(2, np.bool_)
LEFT, RIGHT = np.array([True, False]), np.array([False, True])  # keys 0..5, keys 5..10


def listed(keys: KeyRange) -> Keys:
    return np.arange(keys.start, keys.stop, dtype=np.uint64)


def values(*rows: float | list[float]) -> Values:
    return np.array(rows, np.float32).reshape(len(rows), -1)


def keyed(keys: list[int], *rows: float | list[float]) -> KeyValues:
    return KeyValues(np.array(keys, np.uint64), values(*rows))


def ranged(start: int, *rows: float | list[float]) -> KeyValues:
    return KeyValues(KeyRange(start, start + len(rows)), values(*rows))


def step_of(*slots: KeyValues | None) -> OpenStep:
    opened = OpenStep.of(0, len(slots), 2)
    for slot, given in enumerate(slots):
        opened.add(slot, SlotPiece(BOTH, given, void=False))
    return opened


def sums(opened: OpenStep, mean: bool = False) -> dict[int, list[float]]:
    total = opened.total(mean, listed)
    assert total is not None
    keys = listed(total.keys) if isinstance(total.keys, KeyRange) else total.keys
    return dict(zip(keys.tolist(), total.values.tolist(), strict=True))


@pytest.mark.parametrize("by_range", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_the_sum_is_the_same_bit_for_bit_in_any_order_of_arrival(by_range: bool, mean: bool) -> None:
    # The float64 sum of these numbers depends on the order of addition.
    rows = [values(1e16, 0.1), values(3.3, 1e8), values(-1e16, 1e-8), values(0.7, -1e8)]
    keys: Keys | KeyRange = KeyRange(4, 6) if by_range else np.array([4, 9], np.uint64)
    seen = set()
    for arrival in permutations(range(4)):
        opened = OpenStep.of(0, 4, 2)
        for slot in arrival:
            opened.add(slot, SlotPiece(BOTH, KeyValues(keys, rows[slot]), void=False))
        total = opened.total(mean, listed)
        assert total is not None
        seen.add(total.values.tobytes())
    assert len(seen) == 1
    expected = rows[0].astype(np.float64)
    for row in rows[1:]:
        expected = expected + row
    assert seen == {(expected / 4 if mean else expected).astype(np.float32).tobytes()}


def test_slots_are_added_in_double_precision_and_rounded_once() -> None:
    tiny = 2.0**-24  # too small to change 1 in float32 if added one at a time
    assert sums(step_of(keyed([1], 1.0), keyed([1], tiny), keyed([1], tiny))) == {1: [1 + 2.0**-23]}


def test_keys_need_not_be_the_same_in_every_slot() -> None:
    opened = step_of(keyed([1, 5], 1, 2), keyed([5, 7], 10, 20), None, keyed([0], 4))
    assert sums(opened) == {0: [4], 1: [1], 5: [12], 7: [20]}


def test_the_mean_divides_by_all_slots_also_those_that_have_nothing_for_this_server() -> None:
    assert sums(step_of(keyed([1], 8), None, keyed([2], 4), None), mean=True) == {1: [2], 2: [1]}


def test_a_void_slot_takes_no_part_in_the_mean() -> None:
    opened = OpenStep.of(0, 3, 2)
    opened.add(0, SlotPiece(BOTH, keyed([1], 8), void=False))
    opened.add(1, SlotPiece(BOTH, None, void=True))
    opened.add(2, SlotPiece(BOTH, keyed([1], 4), void=False))
    assert opened.complete().all()
    assert sums(opened, mean=True) == {1: [6]}
    assert sums(opened, mean=False) == {1: [12]}


def test_a_step_of_void_slots_only_has_nothing_to_add() -> None:
    opened = OpenStep.of(0, 2, 2)
    for slot in range(2):
        opened.add(slot, SlotPiece(BOTH, None, void=True))
    assert opened.complete().all()
    assert opened.total(True, listed) is None


def test_the_last_step_of_a_pass_may_have_fewer_slots() -> None:
    opened = OpenStep.of(3, 2, 1)  # two slots, where other steps have eight
    for slot in range(2):
        opened.add(slot, SlotPiece(np.ones(1, np.bool_), keyed([1], 6), void=False))
    assert opened.complete().all()
    assert sums(opened, mean=True) == {1: [6]}


def test_ranges_and_key_lists_mix() -> None:
    opened = step_of(ranged(2, 1, 2, 3), keyed([3, 9], 10, 20), ranged(3, 100, 200))
    assert sums(opened) == {2: [1], 3: [112], 4: [203], 9: [20]}


def test_equal_ranges_stay_a_range() -> None:
    total = step_of(ranged(2, 1, 2), ranged(2, 3, 4)).total(False, listed)
    assert total is not None
    assert total.keys == KeyRange(2, 4)
    assert total.values.tolist() == [[4], [6]]


def test_a_range_stands_for_the_keys_that_are_held_of_it() -> None:
    held = np.array([2, 3, 8], np.uint64)  # a gap between two segments
    opened = step_of(KeyValues(KeyRange(2, 9), values(1, 2, 3)), keyed([8], 10))
    total = opened.total(False, lambda keys: held)
    assert total is not None
    assert (total.keys.tolist(), total.values.tolist()) == ([2, 3, 8], [[1], [2], [13]])


def test_rows_of_any_width_are_added() -> None:
    assert sums(step_of(keyed([1], [1, 2, 3]), keyed([1], [10, 20, 30]))) == {1: [11, 22, 33]}


def test_a_segment_is_complete_when_every_slot_is_there_for_it() -> None:
    opened = OpenStep.of(0, 2, 2)
    opened.add(0, SlotPiece(BOTH, None, void=False))
    assert opened.missing() == [1]
    opened.add(1, SlotPiece(RIGHT, keyed([7], 1), void=False))
    assert opened.complete().tolist() == [False, True]
    assert opened.missing() == [1]  # missing in one of the segments
    opened.add(1, SlotPiece(LEFT, keyed([1], 2), void=False))
    assert opened.complete().tolist() == [True, True]
    assert opened.missing() == []
    assert sums(opened) == {1: [2], 7: [1]}


def test_a_slot_in_two_pieces_counts_once_in_the_mean() -> None:
    opened = OpenStep.of(0, 2, 2)
    opened.add(0, SlotPiece(LEFT, keyed([1], 2), void=False))
    opened.add(0, SlotPiece(RIGHT, keyed([7], 4), void=False))
    opened.add(1, SlotPiece(BOTH, keyed([1, 7], 2, 4), void=False))
    assert sums(opened, mean=True) == {1: [2], 7: [4]}


def test_finite_slots_never_make_an_infinite_sum() -> None:
    most = float(np.finfo(np.float32).max)
    for one in (keyed([1], most), ranged(1, most)):
        assert sums(step_of(one, one)) == {1: [most]}
    assert sums(step_of(keyed([1], -most), keyed([1], -most))) == {1: [-most]}
    # The mean fits.
    assert sums(step_of(keyed([1], most), keyed([1], most)), mean=True) == {1: [most]}


def test_what_is_held_is_known_by_its_size() -> None:
    opened = step_of(keyed([1, 2], 1, 2), None, ranged(0, 1, 2, 3))
    assert opened.size == 5 * 4


def test_what_was_pushed_is_not_written_to() -> None:
    mine = values(1, 2)
    opened = step_of(KeyValues(KeyRange(0, 2), mine), ranged(0, 5, 5))
    opened.total(False, listed)
    assert mine.tolist() == [[1], [2]]

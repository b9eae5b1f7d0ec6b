"""Keys as users give them, and as they are sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyList, KeyRange, KeyValues, add_up, as_keys, as_range, as_values, distinct, is_sorted, tidy
from shoal.limits import KEY_LIMIT


def test_a_range_counts_its_keys_and_shows_its_ends() -> None:
    assert len(KeyRange(3, 7)) == 4
    assert len(KeyRange(3, 3)) == 0
    assert str(KeyRange(3, 7)) == "[3, 7)"
    assert KeyRange(0, KEY_LIMIT).stop == KEY_LIMIT


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, KEY_LIMIT + 1)])
def test_a_range_that_cannot_be_is_refused(start: int, stop: int) -> None:
    with pytest.raises(BadKeys, match="needs 0 <= start <= stop"):
        KeyRange(start, stop)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (KeyRange(2, 5), KeyRange(2, 5)),
        (slice(2, 5), KeyRange(2, 5)),
        (slice(2, 5, 1), KeyRange(2, 5)),
        (slice(5), KeyRange(0, 5)),
        (slice(np.int64(2), np.uint8(5)), KeyRange(2, 5)),
        (range(2, 5), KeyRange(2, 5)),
        (range(5), KeyRange(0, 5)),
        (range(5, 2), KeyRange(5, 5)),
    ],
)
def test_a_range_is_meant_by_several_things(given: Any, meant: KeyRange) -> None:
    assert as_range(given) == meant


@pytest.mark.parametrize("given", [[1, 2], (1, 2), 3, np.arange(3), "ab", None])
def test_other_things_are_no_range(given: Any) -> None:
    assert as_range(given) is None


@pytest.mark.parametrize("given", [slice(2, None), slice(None), slice(0, 6, 2), range(0, 6, 2), range(5, 0, -1)])
def test_a_range_needs_an_end_and_goes_by_one(given: Any) -> None:
    with pytest.raises(BadKeys):
        as_range(given)


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(BadKeys):
        as_range(slice(5, 2))
    with pytest.raises(BadKeys):
        as_range(slice(0, -1))


@pytest.mark.parametrize(
    "given",
    [
        [3, 1],
        (3, 1),
        np.array([3, 1]),
        np.array([3, 1], np.uint8),
        np.array([3, 1], ">i4"),
        np.array([3, 9, 1, 9])[::2],
    ],
)
def test_keys_become_unsigned_and_stay_in_order(given: Any) -> None:
    keys = as_keys(given)
    assert (keys.dtype, keys.tolist()) == (np.dtype(np.uint64), [3, 1])
    assert keys.flags.c_contiguous


def test_one_number_is_one_key_and_nothing_is_none() -> None:
    assert as_keys(7).tolist() == [7]
    assert as_keys(np.uint64(KEY_LIMIT - 1)).tolist() == [KEY_LIMIT - 1]
    assert as_keys([]).tolist() == []
    assert as_keys(()).dtype == np.uint64


@pytest.mark.parametrize(
    "given",
    [[-1], [1.0], [True], ["1"], [[1, 2]], np.array([KEY_LIMIT], np.uint64), [2**64], [None], np.array([1j])],
)
def test_keys_that_cannot_be_are_refused(given: Any) -> None:
    with pytest.raises(BadKeys):
        as_keys(given)


@pytest.mark.parametrize(
    ("given", "rows", "width"),
    [([1, 2, 3], 3, 1), ([[1], [2], [3]], 3, 1), ([[1, 2], [3, 4]], 2, 2), ([1, 2, 3, 4], 2, 2), (5, 1, 1), ([], 0, 3)],
)
def test_values_become_rows_of_float32(given: Any, rows: int, width: int) -> None:
    values = as_values(given, rows, width)
    assert (values.dtype, values.shape) == (np.dtype(np.float32), (rows, width))
    assert values.reshape(-1).tolist() == np.ravel(given).tolist()
    assert values.flags.c_contiguous


def test_values_that_are_right_already_are_not_copied() -> None:
    mine = np.ones((4, 2), np.float32)
    assert np.shares_memory(as_values(mine, 4, 2), mine)


@pytest.mark.parametrize(
    ("given", "rows", "width", "reason"),
    [
        ([1, 2], 3, 1, r"these keys need \(3,\)"),
        ([[1, 2, 3]], 3, 1, "shape"),
        ([[1, 2], [3, 4]], 4, 1, "shape"),
        ([[1, 2, 3, 4]], 2, 2, r"\(2, 2\)"),
        (["a"], 1, 1, "numbers are needed"),
        ([True], 1, 1, "numbers are needed"),
        ([1, np.nan], 2, 1, "row 1 are not finite"),
        ([[1, 2], [3, -np.inf]], 2, 2, "row 1 are not finite"),
        ([1e39], 1, 1, "row 0 are not finite"),
    ],
)
def test_values_that_cannot_be_are_refused(given: Any, rows: int, width: int, reason: str) -> None:
    with pytest.raises(BadValues, match=reason):
        as_values(given, rows, width)


def test_bad_input_is_also_a_value_error() -> None:
    assert issubclass(BadKeys, ValueError) and issubclass(BadValues, ValueError) and issubclass(Invalid, ValueError)


def test_large_finite_values_are_finite_though_their_sum_is_not() -> None:
    assert as_values(np.full(4, 3e38, np.float32), 4, 1).tolist() == [[float(np.float32(3e38))]] * 4
    with pytest.raises(BadValues, match="row 1"):
        as_values(np.array([1, np.inf, -np.inf], np.float32), 3, 1)


def test_sorted_means_each_key_once() -> None:
    for keys, answer in (([], True), ([5], True), ([1, 2, 9], True), ([1, 1], False), ([2, 1], False)):
        assert is_sorted(np.array(keys, np.uint64)) == answer


def test_tidy_leaves_sorted_keys_as_they_are() -> None:
    keys = np.array([1, 5, 9], np.uint64)
    same, places = tidy(keys)
    assert same is keys and places is None


def test_tidy_remembers_where_every_key_went() -> None:
    keys = np.array([9, 1, 9, 5], np.uint64)
    unique, places = tidy(keys)
    assert unique.tolist() == [1, 5, 9]
    assert places is not None and places.tolist() == [2, 0, 2, 1]
    assert unique[places].tolist() == keys.tolist()


def test_rows_under_the_same_key_are_added_in_the_order_given() -> None:
    rows = np.array([[1e8], [1], [-1e8], [3]], np.float32)
    # Summed in double precision, rounded once.
    assert add_up(rows, np.array([0, 0, 0, 1]), 2).tolist() == [[1], [3]]


def test_keys_and_values_count_their_keys() -> None:
    assert len(KeyValues(KeyRange(2, 5), np.zeros((3, 1), np.float32))) == 3
    assert len(KeyValues(np.array([7], np.uint64), np.zeros((1, 2), np.float32))) == 1


def test_distinct_keys_are_those_that_numpy_finds() -> None:
    draw = np.random.default_rng(0)
    for size in (0, 1, 2, 50, 1_000):
        keys = draw.integers(0, 200, size=size, dtype=np.uint64)
        assert distinct(keys).tolist() == np.unique(keys).tolist() and distinct(keys).dtype == np.uint64


def test_a_list_is_made_of_whatever_are_sorted_keys() -> None:
    for keys in ([3, 17, 99], np.array([3, 17, 99]), np.array([3, 17, 99], np.uint8), (3, 17, 99)):
        made = KeyList(keys)
        assert made.keys.dtype == np.uint64 and made.keys.tolist() == [3, 17, 99] and made.last == 99
    assert len(KeyList([])) == 0
    for bad, said in (
        ([17, 3], r"np.unique\(keys\)"),
        ([-1, 3], "negative"),
        ([0.5], "whole numbers"),
        ([[1]], "dimension"),
        ("abc", "whole numbers"),
        (None, "whole numbers"),
        (KeyList([1]), "keys are"),
    ):
        with pytest.raises(BadKeys, match=said):
            KeyList(bad)

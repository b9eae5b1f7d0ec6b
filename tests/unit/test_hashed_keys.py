"""Ids of any type are hashed to evenly spread keys, and mapped back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.keys import mixed, unmixed
from shoal.limits import KEY_LIMIT


@given(st.lists(st.integers(0, KEY_LIMIT - 1), max_size=20))
def test_every_id_comes_back(ids: list[int]) -> None:
    keys = mixed(np.array(ids, np.uint64))
    assert all(key < KEY_LIMIT for key in keys.tolist())
    assert unmixed(keys).tolist() == ids


@given(st.lists(st.integers(0, KEY_LIMIT - 1), max_size=20))
def test_every_key_is_some_id(keys: list[int]) -> None:
    assert mixed(unmixed(np.array(keys, np.uint64))).tolist() == keys


def test_no_two_ids_share_a_key() -> None:
    ids = np.concatenate([np.arange(50_000), KEY_LIMIT - 1 - np.arange(50_000), np.arange(50_000) << 40])
    assert len(np.unique(mixed(ids.astype(np.uint64)))) == len(np.unique(ids))


def test_ids_in_a_row_are_spread_evenly() -> None:
    for ids in (np.arange(80_000), np.arange(80_000) * 1_024, np.arange(80_000) << 43):
        parts = np.bincount((mixed(ids.astype(np.uint64)) >> np.uint64(60)).astype(int), minlength=8)
        assert parts.sum() == 80_000
        assert parts.min() > 9_000 and parts.max() < 11_000


def test_the_mixture_stays_as_it_is() -> None:
    # A change here makes every stored hashed table unreadable.
    known = [0, 1994084597083118636, 3988169194166237272, 1663893758788734347]
    assert mixed(np.array([0, 1, 2, KEY_LIMIT - 1], np.uint64)).tolist() == known


def test_the_ids_are_not_written_to() -> None:
    ids = np.arange(4, dtype=np.uint64)
    mixed(ids)
    unmixed(ids)
    assert ids.tolist() == [0, 1, 2, 3]

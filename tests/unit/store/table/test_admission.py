"""Admission decides which keys get a row.

It counts exactly where keys are few; where they are many, no key is admitted too late.
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import Invalid
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.store.table import admission
from shoal.store.table.admission import Admission
from shoal.store.table.slab import SparseRows
from shoal.store.table.table import ServerTable
from shoal.tables import Constant, Sparse, checked


def made(spec: Sparse, *segments: KeyRange) -> tuple[ServerTable, Admission]:
    table = ServerTable(spec, segments or [KeyRange(0, spec.span)])
    assert isinstance(table.storage, SparseRows)
    return table, Admission(table.storage, spec.admit, spec.span)


def push(table: ServerTable, counting: Admission, keys: Keys) -> list[int]:
    """Push ones, and return the keys that were admitted."""
    given = counting.admit(KeyValues(keys, np.ones((len(keys), 1), np.float32)))
    if given is None:
        return []
    table.push(given.keys, given.values)
    assert not isinstance(given.keys, KeyRange)
    return [int(key) for key in given.keys]


def some(*keys: int) -> Keys:
    return np.array(keys, np.uint64)


def test_a_key_gets_a_row_at_its_third_push_and_keeps_it() -> None:
    table, counting = made(Sparse(keys=100, admit=3), KeyRange(10, 40), KeyRange(50, 100))
    assert push(table, counting, some(10, 39, 50)) == []
    assert push(table, counting, some(10, 50, 99)) == []
    assert push(table, counting, some(10, 39, 99)) == [10]
    assert push(table, counting, some(10, 39, 50, 99)) == [10, 39, 50, 99]
    assert table.pull(some(10, 39, 50, 99)).reshape(-1).tolist() == [2, 1, 1, 1]
    assert counting.memory == 80  # a byte for each key that is held


def test_a_sketch_is_never_late_and_seldom_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sketch that grows keeps the counts from before."""
    monkeypatch.setattr(admission, "ADMISSION_FIRST", 1 << 14)
    monkeypatch.setattr(admission, "ADMISSION_BYTES", 1 << 18)
    table, counting = made(Sparse(hashed=True, admit=3))
    draw = np.random.default_rng(0)
    keys = np.unique(draw.integers(0, 1 << 63, size=20_000, dtype=np.uint64))
    times = draw.integers(1, 5, size=len(keys))
    got_in = np.full(len(keys), 99)
    for turn in range(1, 5):
        for part in range(20):
            here = (np.arange(len(keys)) % 20 == part) & (times >= turn)
            inside = np.isin(keys, some(*push(table, counting, keys[here])))
            got_in[inside & (got_in == 99)] = turn
    assert counting.memory == (1 << 14) + (1 << 18)
    assert (got_in[times >= 3] <= 3).all()
    early = ((got_in < 3) | ((times < 3) & (got_in < 99))).mean()
    assert early < 0.1
    assert table.rows == (got_in < 99).sum()


def test_a_sketch_of_few_keys_is_exact_and_small() -> None:
    table, counting = made(Sparse(hashed=True, admit=2))
    assert push(table, counting, some(5, 1 << 62)) == []
    assert push(table, counting, some(5, 6)) == [5]
    assert counting.memory == admission.ADMISSION_FIRST


def holds(table: ServerTable, counting: Admission, *segments: KeyRange) -> ServerTable:
    """Returns a table with these segments in the same storage."""
    table = ServerTable(table.spec, segments, table.storage)
    counting.keep_held()
    return table


@pytest.mark.parametrize("room", [100, 90], ids=["all keys", "those held"])
def test_segments_that_stay_keep_their_counts_whatever_comes_and_goes_beside_them(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ADMISSION_BYTES", room)
    table, counting = made(Sparse(keys=100, admit=3), KeyRange(0, 20), KeyRange(20, 40), KeyRange(60, 80))
    for _ in range(2):
        assert push(table, counting, some(0, 19, 20, 39, 60, 79)) == []
    table = holds(table, counting, KeyRange(20, 40), KeyRange(40, 60), KeyRange(60, 80))
    assert counting.memory == 60
    # Counts of new segments start at zero.
    assert push(table, counting, some(20, 40, 59, 60)) == [20, 60]
    table = holds(table, counting, KeyRange(0, 20), KeyRange(20, 30), KeyRange(30, 40), KeyRange(40, 60))
    assert push(table, counting, some(20, 39, 40, 59)) == [20, 39]  # also where a segment was split
    # Key 0 was held before: its count is still there.
    assert push(table, counting, some(0, 40, 59)) == [0, 40, 59]


def test_counts_go_into_a_sketch_when_the_keys_of_more_segments_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ADMISSION_BYTES", 1 << 18)
    first, second, third = KeyRange(0, 1 << 17), KeyRange(1 << 17, 1 << 18), KeyRange(1 << 18, 1 << 19)
    table, counting = made(Sparse(keys=1 << 20, admit=3), first, second)
    assert push(table, counting, some(1, 7, 1 << 17)) == []
    assert push(table, counting, some(7, 1 << 17)) == []
    table = holds(table, counting, second, third)
    assert counting.memory == admission.ADMISSION_FIRST
    assert push(table, counting, some(1 << 17, 1 << 18)) == [1 << 17]
    table = holds(table, counting, first)  # Few keys again: it stays a sketch, with its counts.
    assert push(table, counting, some(1, 7)) == [7]


@pytest.mark.parametrize("admit", [-1, 256])
def test_a_byte_counts_to_255(admit: int) -> None:
    with pytest.raises(Invalid, match=r"admit=-?\d+: a key gets a row at its n-th push"):
        checked(Sparse(keys=9, admit=admit))


def test_a_row_that_would_not_read_as_zero_cannot_be_let_go() -> None:
    with pytest.raises(Invalid, match="must read as 0"):
        checked(Sparse(keys=9, evict=True, initial=Constant(0.5)))
    assert checked(Sparse(keys=9, evict=True)).span == 9


def test_a_table_that_shrinks_gives_memory_back_and_grows_again() -> None:
    table = ServerTable(Sparse(keys=1 << 20, evict=True), [KeyRange(0, 1 << 20)])
    keys = np.arange(100_000, dtype=np.uint64)
    ones = np.ones((len(keys), 1), np.float32)
    table.push(keys, ones)
    large, moved = table.memory, table.layout
    table.push(keys[10:], -ones[10:])
    assert table.evict(np.array([True])) == 99_990
    assert table.rows == 10 and table.memory < large / 20 and table.layout > moved
    assert len(table.storage.slab) < 5_000
    table.push(keys, ones)
    assert table.rows == 100_000 and table.pull(keys).reshape(-1).tolist() == [2.0] * 10 + [1.0] * 99_990

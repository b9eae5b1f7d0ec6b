"""Segments are added and removed on one storage.

Segments that stay are not touched, removed ones are freed, and new ones lie where they will be
read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal import tables
from shoal.keys import KeyRange, joined, without
from shoal.limits import MB
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.arena import DenseArena
from shoal.store.table.slab import DenseRows
from shoal.store.table.table import ServerTable, storage_for
from shoal.wire import messages as m


def ranges(*bounds: tuple[int, int]) -> list[KeyRange]:
    return [KeyRange(*one) for one in bounds]


def some(spec: tables.Table, segments: list[KeyRange]) -> ServerTable:
    """Returns a table in which the weight of a key is the key."""
    table = ServerTable(spec, segments)
    keys = np.concatenate([np.arange(one.start, one.stop, dtype=np.uint64) for one in segments])
    table.push(keys, keys.astype(np.float32).reshape(-1, 1))
    return table


@pytest.mark.parametrize("spec", [tables.Dense(rows=100), tables.Sparse(keys=100)])
def test_what_stays_is_where_it_was_and_what_goes_is_gone(spec: tables.Table) -> None:
    table = some(spec, ranges((0, 20), (20, 40), (60, 80)))
    storage = table.storage
    fewer = ServerTable(spec, ranges((0, 20), (60, 80)), storage)
    assert fewer.storage is storage and fewer.rows == 40
    keys = np.array([0, 19, 60, 79], np.uint64)
    assert fewer.pull(keys).ravel().tolist() == [0, 19, 60, 79]
    assert "not held here" in str(fewer.check_keys(np.array([20], np.uint64)))


@pytest.mark.parametrize("spec", [tables.Dense(rows=100), tables.Sparse(keys=100)])
def test_a_segment_that_was_cut_in_two_keeps_its_rows(spec: tables.Table) -> None:
    table = some(spec, ranges((0, 20), (20, 60)))
    halves = ServerTable(spec, ranges((0, 20), (20, 31), (31, 60)), table.storage)
    keys = np.arange(60, dtype=np.uint64)
    assert halves.pull(keys).ravel().tolist() == keys.tolist()


@pytest.mark.parametrize("spec", [tables.Dense(rows=100), tables.Sparse(keys=100)])
def test_a_segment_comes_in_pieces_and_goes_and_comes_again(spec: tables.Table) -> None:
    table = some(spec, ranges((0, 20)))
    other = some(spec, ranges((40, 60)))
    for _ in range(3):
        rows, names = other.image(0)
        for at in (0, 8, 16):
            piece = None if names is None else names[at : at + 8]
            table.storage.place(KeyRange(40, 60), at, rows[at : at + 8], piece)
        both = ServerTable(spec, ranges((0, 20), (40, 60)), table.storage)
        assert both.pull(np.array([3, 40, 59], np.uint64)).ravel().tolist() == [3, 40, 59]
        assert both.rows == 40
        table = ServerTable(spec, ranges((0, 20)), both.storage)
        assert table.rows == 20


def test_a_range_goes_over_the_gaps_between_segments() -> None:
    table = some(tables.Dense(rows=100), ranges((0, 20), (20, 30), (60, 80)))
    keys = KeyRange(25, 65)
    assert table.pull(keys).ravel().tolist() == [25, 26, 27, 28, 29, 60, 61, 62, 63, 64]
    table.push(keys, np.full((10, 1), 1000, np.float32))
    assert table.pull(KeyRange(24, 66)).ravel().tolist() == [
        24, 1025, 1026, 1027, 1028, 1029, 1060, 1061, 1062, 1063, 1064, 65,
    ]  # fmt: skip
    assert len(table.pull(KeyRange(40, 50))) == 0


def test_rows_that_moved_are_found_again_by_those_who_knew_where_they_were() -> None:
    table = some(tables.Sparse(keys=100), ranges((0, 20), (20, 100)))
    layout = table.layout
    fewer = ServerTable(tables.Sparse(keys=100), ranges((20, 100)), table.storage)
    assert fewer.layout > layout
    keys = np.arange(20, 100, dtype=np.uint64)
    assert fewer.pull(keys).ravel().tolist() == keys.tolist()


def test_a_sparse_ground_that_lost_most_of_its_rows_is_small_again() -> None:
    spec = tables.Sparse(keys=1 << 20)
    table = some(spec, ranges((0, 1000), (1000, 200_000)))
    before = table.memory
    fewer = ServerTable(spec, ranges((0, 1000)), table.storage)
    while fewer.storage.compact_some():
        pass
    assert fewer.memory < before / 20


def test_what_a_dense_table_lets_go_of_is_given_back_to_the_system() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("how much memory a process has is read from /proc, which is not here")
    rows, half = 16 * MB, 8 * MB
    table = ServerTable(tables.Dense(rows=rows), ranges((0, half), (half, rows)))
    empty = resident()
    table.push(KeyRange(0, rows), np.ones((rows, 1), np.float32))
    full = resident()
    fewer = ServerTable(tables.Dense(rows=rows), ranges((0, half)), table.storage)
    assert full - empty > 3.9 * rows
    assert full - resident() > 0.9 * 4 * half
    assert fewer.pull(KeyRange(half - 2, rows)).ravel().tolist() == [1, 1]


def test_address_space_for_a_table_larger_than_memory_costs_nothing_until_it_is_written_to() -> None:
    reserve = DenseArena(1 << 40, 1)
    reserve.slab[1 << 39] = 7.0
    assert reserve.slab[1 << 39, 0] == 7.0
    with pytest.raises(MemoryError, match="more than a process can address"):
        DenseArena(1 << 50, 1)


def test_a_part_on_the_same_ground_has_the_books_it_is_given() -> None:
    spec = tables.Dense(rows=30, update=tables.Update("adagrad", {"step": 0.1}))
    part = SegmentState(1, spec, [(0, KeyRange(0, 10)), (1, KeyRange(10, 20))])
    part.write(m.ReplicatedChange(1, "push"), None, part.check.all_mask)
    part.table.push(KeyRange(0, 20), np.ones((20, 1), np.float32))
    part.version[:] = [4, 5]
    digest, books = part.digest(1), part.books(1)
    alone = SegmentState(1, spec, [(1, KeyRange(10, 20))], part.storage)
    alone.load_books([books])
    assert alone.digest(1) == digest and alone.version.tolist() == [5]


def test_ranges_are_joined_and_taken_from_one_another_however_they_are_cut() -> None:
    assert joined(ranges((0, 5), (5, 9), (10, 12))) == ranges((0, 9), (10, 12))
    assert without(ranges((0, 10), (20, 30)), ranges((3, 4), (8, 25))) == ranges((0, 3), (4, 8), (25, 30))
    assert without(ranges((0, 5), (5, 10)), ranges((0, 10))) == []
    assert without(ranges((0, 10)), []) == ranges((0, 10))
    assert without([], ranges((0, 10))) == []


@pytest.mark.parametrize("seed", range(20))
def test_taking_ranges_from_one_another_is_taking_their_keys(seed: int) -> None:
    random = np.random.default_rng(seed)

    def cut() -> list[KeyRange]:
        at = np.unique(random.integers(0, 60, 12)).tolist()
        return [KeyRange(a, b) for a, b in zip(at[:-1:2], at[1::2], strict=False)]

    these, those = cut(), cut()
    left = {key for one in without(these, those) for key in range(one.start, one.stop)}
    assert left == {k for one in these for k in range(one.start, one.stop)} - {
        k for one in those for k in range(one.start, one.stop)
    }


def test_a_ground_without_segments_holds_nothing() -> None:
    for spec in (tables.Dense(rows=10, initial=tables.Constant(3.0)), tables.Sparse(keys=10)):
        assert storage_for(spec).rows == 0


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_segment_goes_from_one_ground_to_the_other_beside_it_as_it_lies() -> None:
    spec = tables.Dense(rows=100, initial=tables.Constant(2.0))
    copies = storage_for(spec, ranges((0, 20), (40, 60)))
    own = ServerTable(spec, ranges((40, 60)), storage_for(spec, (), copies))
    rows, _ = copies.image(KeyRange(40, 60), copy=False)
    own.storage.place(KeyRange(40, 60), 0, rows, None)
    assert np.shares_memory(own.image(0, copy=False)[0], rows)
    copies.set_segments(tuple(ranges((0, 20))))  # its earlier holder frees nothing
    assert own.pull(np.array([40, 59], np.uint64)).ravel().tolist() == [2, 2]


def test_only_who_claimed_rows_last_gives_them_back() -> None:
    reserve, page = DenseArena(1 << 20, 1), 1 << 16
    reserve.slab[:] = 1.0
    one, other = reserve.new_holder(), reserve.new_holder()
    reserve.claim(one, ranges((0, 4 * page)))
    reserve.claim(other, ranges((page, 2 * page)))
    reserve.release(one, KeyRange(0, 3 * page))
    assert reserve.slab[[0, page, 2 * page, 3 * page], 0].tolist() == [0, 1, 0, 1]
    reserve.release(other, KeyRange(0, 4 * page))
    assert reserve.slab[[0, page, 2 * page, 3 * page], 0].tolist() == [0, 0, 0, 1]


def test_of_holders_that_are_over_nothing_is_kept() -> None:
    spec = tables.Dense(rows=100)
    own = storage_for(spec, ranges((0, 20)))
    assert isinstance(own, DenseRows)
    for _ in range(50):  # servers that join, hand over a segment, and leave
        copies = storage_for(spec, ranges((40, 60)), own)
        storage_for(spec, (), copies).place(KeyRange(40, 60), 0, copies.image(KeyRange(40, 60), copy=False)[0], None)
        own.set_segments(tuple(ranges((0, 20), (40, 60))))
        own.set_segments(tuple(ranges((0, 20))))
    assert list(own._reserve._claims.values()) == [ranges((0, 20))]


def test_an_old_table_never_shows_the_rows_of_another_segment() -> None:
    for spec in (tables.Dense(rows=100), tables.Sparse(keys=100)):
        old = some(spec, ranges((0, 20), (20, 40)))
        ServerTable(spec, ranges((20, 40)), old.storage)
        assert len(old.image(1)[0]) == 20
        with pytest.raises(AssertionError, match="is not stored here any more"):
            old.image(0)

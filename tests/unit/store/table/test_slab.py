"""Rows of removed segments are cleared piece by piece, and nobody sees them meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.keys import KeyRange, Keys
from shoal.limits import MB
from shoal.store.table import slab
from shoal.store.table.slab import SparseRows
from shoal.store.table.table import ServerTable, row_views
from shoal.store.table.update import Sum
from shoal.tables import Sparse

SPAN, STEP = 6_000, 1_000
SPEC = Sparse(keys=SPAN, update=Sum())


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab, "CLEAR_ROWS", 64)
    monkeypatch.setattr(slab, "CLEAR_BYTES", 4_096)


def segments(*numbers: int) -> list[KeyRange]:
    return [KeyRange(STEP * number, STEP * (number + 1)) for number in numbers]


def filled(*numbers: int) -> ServerTable:
    """Returns a table where every other key has a row, in random order, with its key as weight."""
    table = ServerTable(SPEC, segments(*numbers))
    keys = np.arange(0, SPAN, 2, dtype=np.uint64)
    keys = keys[np.isin(keys // STEP, numbers)]
    for part in np.array_split(np.random.default_rng(0).permutation(keys), 7):
        table.push(np.sort(part), np.sort(part).astype(np.float32))
    return table


def storage(table: ServerTable) -> SparseRows:
    assert isinstance(table.storage, SparseRows)
    return table.storage


def cleared(table: ServerTable) -> int:
    """Clear all rows, and return in how many pieces."""
    count = 1
    while storage(table).compact_some():
        count += 1
    return count


def is_whole(table: ServerTable, *numbers: int) -> bool:
    """Whether all rows of these segments, and no others, are found.

    By their keys, by ranges, and in row views.
    """
    keys = np.concatenate([np.arange(one.start, one.stop, 2, dtype=np.uint64) for one in segments(*numbers)])
    names, values, rest = table.pull_live(KeyRange(0, SPAN), SPAN)
    few, _, after = table.pull_live(KeyRange(0, SPAN), 10)
    handed = [part for part, _ in row_views(table, KeyRange(0, SPAN), 100) if part is not None]
    found = [table.pull(keys).ravel(), values.ravel(), names, np.sort(np.concatenate(handed))]
    assert after == keys[10] and few.tolist() == keys[:10].tolist()
    return rest is None and all(one.tolist() == keys.tolist() for one in found)


def test_rows_of_a_segment_that_went_are_cleared_away_in_many_pieces_and_never_seen() -> None:
    table = filled(0, 1, 2, 3, 4, 5)
    full = table.memory
    table = ServerTable(SPEC, segments(1, 2, 5), storage(table))
    assert table.rows == SPAN // 2  # none of them is cleared yet
    while storage(table).compact_some():
        if table.rows % 16 == 0:  # now and then
            assert is_whole(table, 1, 2, 5)
    assert is_whole(table, 1, 2, 5) and table.rows == SPAN // 4 and table.memory < full
    assert "not held here" in str(table.check_keys(np.array([0], np.uint64)))


def test_few_rows_go_at_once() -> None:
    table = ServerTable(SPEC, segments(0, 1))
    table.push(np.arange(980, 1_020, dtype=np.uint64), np.ones(40, np.float32))
    assert ServerTable(SPEC, segments(1), storage(table)).rows == 20


def test_keys_are_pushed_while_others_are_cleared_away() -> None:
    """More keys are pushed than there is room for, so that slab and index grow meanwhile."""
    spec = Sparse(keys=1 << 20, update=Sum())
    table = ServerTable(spec, [KeyRange(0, 5_000), KeyRange(5_000, 1 << 20)])
    first = np.arange(0, 10_000, dtype=np.uint64)
    table.push(first, first.astype(np.float32))
    table = ServerTable(spec, [KeyRange(5_000, 1 << 20)], storage(table))
    new, more = np.arange(10_000, 40_000, dtype=np.uint64), True
    for part in np.array_split(new, 400):
        more = storage(table).compact_some()
        table.push(part, part.astype(np.float32))
    cleared(table)
    keys = np.concatenate([first[5_000:], new])
    assert more and table.rows == len(keys) and table.pull(keys).ravel().tolist() == keys.tolist()


@pytest.mark.parametrize("after", [0, 3, 70, 110])
def test_a_segment_comes_back_before_its_rows_are_gone(after: int) -> None:
    table, other = filled(0, 1, 2), filled(0)
    table = ServerTable(SPEC, segments(1, 2), storage(table))
    for _ in range(after):
        storage(table).compact_some()
    rows, names = other.image(0)
    assert names is not None
    table.storage.place(segments(0)[0], 0, rows[:200], names[:200])
    table.storage.place(segments(0)[0], 200, rows[200:], names[200:])
    table = ServerTable(SPEC, segments(0, 1, 2), storage(table))
    assert is_whole(table, 0, 1, 2)
    cleared(table)
    assert is_whole(table, 0, 1, 2) and table.rows == 3 * STEP // 2


def test_more_goes_while_what_went_before_is_not_gone() -> None:
    table = filled(0, 1, 2, 3)
    for stays in ((0, 2, 3), (0, 3), (3,)):
        table = ServerTable(SPEC, segments(*stays), storage(table))
        for _ in range(20):
            storage(table).compact_some()
        assert is_whole(table, *stays)
    cleared(table)
    assert is_whole(table, 3) and table.rows == STEP // 2


def test_rows_that_are_zero_again_are_let_go_of_while_others_are_cleared_away() -> None:
    table = filled(0, 1, 2)
    table = ServerTable(SPEC, segments(1, 2), storage(table))
    storage(table).compact_some()
    gone = np.arange(STEP, 2 * STEP, 2, dtype=np.uint64)
    table.push(gone, -gone.astype(np.float32))
    assert table.evict(np.array([True, True])) == len(gone)
    cleared(table)
    assert is_whole(table, 2) and table.rows == STEP // 2


def test_whoever_knew_where_rows_were_finds_them_where_they_are() -> None:
    table = filled(0, 1)
    table = ServerTable(SPEC, segments(1), storage(table))
    keys: Keys = np.arange(STEP, 2 * STEP, 2, dtype=np.uint64)
    table.row_cache.register(keys)
    assert table.check_keys(keys) is None
    for _ in range(cleared(filled(0, 1))):
        storage(table).compact_some()
        assert table.pull(keys).ravel().tolist() == keys.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_in_whatever_order_it_is_as_in_a_dictionary(seed: int) -> None:
    draw = np.random.default_rng(seed)
    table, held, twin = ServerTable(SPEC, segments(0, 1, 2)), {0, 1, 2}, dict[int, float]()
    for _ in range(120):
        match draw.integers(6):
            case 0:
                came = {int(draw.integers(6))} - held
                stay = {one for one in sorted(held) if draw.random() < 0.8} or held
                held = stay | came
                table = ServerTable(SPEC, segments(*sorted(held)), storage(table))
                twin = {key: value for key, value in twin.items() if key // STEP in stay}
            case 1 | 2:
                for _ in range(draw.integers(40)):
                    storage(table).compact_some()
            case _:
                keys = np.unique(draw.integers(0, SPAN, 300, dtype=np.uint64))
                keys = keys[np.isin(keys // STEP, sorted(held))]
                table.push(keys, np.ones(len(keys), np.float32))
                twin |= {key: twin.get(key, 0.0) + 1.0 for key in keys.tolist()}
        names, values, _ = table.pull_live(KeyRange(0, SPAN), SPAN)
        assert dict(zip(names.tolist(), values.ravel().tolist(), strict=True)) == twin
        keys = np.array(sorted(twin), np.uint64)
        assert table.pull(keys).ravel().tolist() == [twin[key] for key in keys.tolist()]
    cleared(table)
    assert table.rows == len(twin)


def test_without_memory_for_another_index_the_one_there_is_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    table = ServerTable(SPEC, segments(1), storage(filled(0, 1)))
    monkeypatch.setattr(slab.arena, "new_index", fail)
    cleared(table)
    assert is_whole(table, 1) and table.rows == STEP // 2


def test_what_is_cleared_away_is_given_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("how much memory a process has is read from /proc, which is not here")
    monkeypatch.setattr(slab, "CLEAR_ROWS", 1 << 20)
    monkeypatch.setattr(slab, "CLEAR_BYTES", MB)
    spec = Sparse(keys=100_000, width=128, update=Sum())
    table = ServerTable(spec, [KeyRange(0, 10_000), KeyRange(10_000, 100_000)])
    keys = np.arange(100_000, dtype=np.uint64)
    table.push(keys, np.ones((100_000, 128), np.float32))
    monkeypatch.setattr(slab, "CLEAR_ROWS", 16_384)
    full = _resident()
    table = ServerTable(spec, [KeyRange(0, 10_000)], storage(table))
    cleared(table)
    assert full - _resident() > 0.8 * 90_000 * 128 * 4
    assert table.pull(keys[:10_000]).sum() == 10_000 * 128


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

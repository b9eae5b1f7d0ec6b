"""Compiled loops of admission, eviction and compaction.

As in ``kernels``, every signature is spelled out, nothing checks its arguments, and the import is
late.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, uint8, uint64
from numba.core import types

from shoal.jit import compiled, mix
from shoal.store.table.kernels import (
    BLOCK,
    GOLDEN,
    HALF,
    KEY_WORDS,
    LINE_START,
    ONE,
    find_block,
    index_in,
    keys_in,
    keys_out,
    lower,
    prefetch,
    rows_in,
    slab_out,
    slots_in,
    slots_out,
)

MOST = 255  # that a cell counts
NOBODY = ~np.uint64(0)  # no key
_DROPPING = 16  # rows that can be looked at in the time of one drop
cells_in = types.Array(uint8, 1, "C", readonly=True)
cells_out = types.Array(uint8, 1, "C")
chosen_out = types.Array(boolean, 1, "C")


@compiled(types.void(index_in, slots_in, int64, keys_in, chosen_out))
def have_rows(index, slots, used, keys, chosen):
    """chosen[i]: keys[i] has a row."""
    size = min(len(keys), BLOCK)
    hashes, rows = np.empty(size, np.uint64), np.empty(size, np.int64)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        find_block(index, slots, used, keys, start, count, hashes, rows)
        for i in range(count):
            chosen[start + i] = rows[i] >= 0


@compiled(int64(rows_in, cells_out, int64, chosen_out))
def count_each(places, cells, wanted, chosen):
    """A cell per key: count those not chosen yet, and choose those that came often enough."""
    for i in range(len(places)):
        if not chosen[i]:
            place = places[i]
            cells[place] = min(MOST, cells[place] + 1)
            chosen[i] = cells[place] >= wanted
    found = 0
    for i in range(len(chosen)):
        found += chosen[i]
    return found


@compiled(int64(uint64, cells_in))
def seen_before(key, cells):
    """What cells have counted of a key; 0 if there are no cells."""
    if len(cells) == 0:
        return int64(0)
    half = uint64(len(cells) // 2)
    hashed = mix(key ^ GOLDEN)
    one, two = hashed & (half - uint64(1)), half + ((hashed >> uint64(32)) & (half - uint64(1)))
    return min(int64(cells[one]), int64(cells[two]))


@compiled(types.UniTuple(int64, 2)(keys_in, cells_in, cells_out, int64, chosen_out))
def count_hashed(keys, before, cells, wanted, chosen):
    """Two cells per key, one in each half, shared: the smaller is never less than the truth.

    Only the smaller cell is raised (Estan, Varghese, 2002). ``before`` are full cells, which are
    added and stay as they are. Returns how many are chosen, and how many keys looked new.
    """
    new = 0
    size = min(len(keys), BLOCK)
    one, two = np.empty(size, np.uint64), np.empty(size, np.uint64)
    half = uint64(len(cells) // 2)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        for i in range(count):
            hashed = mix(keys[start + i] ^ GOLDEN)
            one[i] = hashed & (half - uint64(1))
            two[i] = half + ((hashed >> uint64(32)) & (half - uint64(1)))
            if not chosen[start + i]:
                prefetch(cells, one[i])
                prefetch(cells, two[i])
        for i in range(count):
            if chosen[start + i]:
                continue
            a, b = int64(cells[one[i]]), int64(cells[two[i]])
            least = min(a, b)
            new += least == 0
            if least < MOST:
                if a == least:
                    cells[one[i]] = least + 1
                if b == least:
                    cells[two[i]] = least + 1
            chosen[start + i] = least + 1 + seen_before(keys[start + i], before) >= wanted
    found = 0
    for i in range(len(chosen)):
        found += chosen[i]
    return found, new


@compiled(int64(slots_out, slab_out, int64, int64, keys_in, keys_in))
def let_go(slots, slab, rows, width, starts, stops):
    """Drop zero rows of these sorted key ranges, closing up in order; how many rows stay."""
    kept = 0
    for row in range(rows):
        zero = True
        for c in range(KEY_WORDS, KEY_WORDS + width):
            zero = zero and slab[row, c] == 0.0
        if zero:
            at = lower(starts, 0, slots[row, 0] + uint64(1)) - 1
            if at >= 0 and slots[row, 0] < stops[at]:
                continue
        if kept != row:
            for c in range(slots.shape[1]):
                slots[kept, c] = slots[row, c]
        kept += 1
    return kept


@compiled(int64(slots_out, int64, keys_in, keys_in))
def drop_ranges(slots, rows, starts, stops):
    """Drop rows of these sorted key ranges, the last ones filling the gaps; how many stay."""
    row = 0
    while row < rows:
        at = lower(starts, 0, slots[row, 0] + uint64(1)) - 1
        if at >= 0 and slots[row, 0] < stops[at]:
            rows -= 1
            for c in range(slots.shape[1]):
                slots[row, c] = slots[rows, c]
        else:
            row += 1
    return rows


@compiled(types.UniTuple(int64, 2)(keys_out, slots_out, int64, int64, int64, keys_in, keys_in))
def drop_some(index, slots, row, rows, most, starts, stops):
    """Drop rows below ``row`` in these sorted key ranges, from the last down, filling gaps.

    Stops after the time it takes to look at ``most`` rows. The index learns of rows that moved;
    entries of dropped ones still point at their old rows. Returns the row it came to, and how many
    there are.
    """
    mask = uint64(len(index)) - ONE
    while row > 0 and most > 0:
        row -= 1
        most -= 1
        key = slots[row, 0]
        at = lower(starts, 0, key + ONE) - 1
        if at < 0 or key >= stops[at]:
            continue
        most -= _DROPPING
        rows -= 1
        if row != rows:
            hashed = mix(slots[rows, 0])
            tag = (hashed >> HALF) << HALF
            place = hashed & mask & LINE_START
            while index[place] != tag | uint64(rows + 1):
                place = (place + ONE) & mask
            index[place] = tag | uint64(row + 1)
            for c in range(slots.shape[1]):
                slots[row, c] = slots[rows, c]
        slots[rows, 0] = NOBODY
    return row, rows

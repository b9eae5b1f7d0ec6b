"""Compiled loops over a peer's weights and their shadow (``local_model``).

Nothing here checks its arguments: ``local_model`` has.
"""

from __future__ import annotations

from numba import float32, int64, uint64
from numba.core import types

from shoal.jit import compiled

ids_in = types.Array(int64, 1, "C", readonly=True)
keys_in = types.Array(uint64, 1, "C", readonly=True)
floats_in = types.Array(float32, 1, "C", readonly=True)
keys_out = types.Array(uint64, 1, "C")
floats_out = types.Array(float32, 1, "C")
slab_out = types.Array(float32, 2, "C")


@compiled(int64(slab_out, int64, floats_out, keys_out, floats_out))
def changed(slab, width, shadow, keys, values):
    """Collect all weights that differ from their shadow, in key order; returns how many."""
    count = 0
    for row in range(uint64(len(slab))):
        for column in range(uint64(width)):
            key = row * uint64(width) + column
            weight = slab[row, column]
            if weight != shadow[key]:
                keys[count], values[count] = key, weight - shadow[key]
                shadow[key] = weight
                count += 1
    return count


@compiled(int64(slab_out, floats_out, ids_in, ids_in, ids_in, keys_out, floats_out))
def changed_in(slab, shadow, starts, lists, slots, keys, values):
    """The same for the keys of these slots only, unordered; each key is found once."""
    count = 0
    for slot in slots:
        for at in range(uint64(starts[slot]), uint64(starts[slot + 1])):
            key = uint64(lists[at])
            weight = slab[key, 0]
            if weight != shadow[key]:
                keys[count], values[count] = key, weight - shadow[key]
                shadow[key] = weight
                count += 1
    return count


@compiled(types.void(slab_out, int64, floats_out, keys_in, floats_in))
def add(slab, width, shadow, keys, values):
    """Add what others changed, to weights and shadow."""
    for i in range(uint64(len(keys))):
        key = keys[i]
        slab[key // uint64(width), key % uint64(width)] += values[i]
        shadow[key] += values[i]

"""Kernels of all Hogwild loops: atomic operations, slots, canary, merges, hot_cold's plan.

    add(words, i, by)           words[i] += by, atomically; returns the value before
    change(words, i, old, new)  words[i] = new if it is old, atomically; returns the value before
    read(words, i)              as it is now, and whatever its writer wrote before it
    write(words, i, value)      after everything that was written before

These four are for contiguous arrays of int64 (``write`` also int8). A ``read`` is never kept in a
register over a loop, and a ``write`` is never left out. Nothing here checks its arguments: ``loop``
does. Importing this costs about half a second (numba), so it is imported late.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int64, uint32, uint64
from numba.core import cgutils, types
from numba.extending import intrinsic

from shoal.jit import compiled
from shoal.models.kernels import FOUR, ONE, THREE, TWO, columns_in, doubles_out, floats_in, indptr_in, value_at
from shoal.strategies.hogwild import BEATS, CANARY, CELLS, CURSOR, LIMIT, LINE, LOCK, ROWS, SLOTS, STOP, TURNS

SPINS = 64  # looks at a lock before the core is offered to others

CURSOR_AT, LIMIT_AT, STOP_AT, LOCK_AT, CANARY_AT = (line * LINE for line in (CURSOR, LIMIT, STOP, LOCK, CANARY))

words_out = types.Array(int64, 1, "C")
ids_out = words_out
slab_out = types.Array(float32, 2, "C")
tally_out = types.Array(types.int8, 1, "C")

give_way = types.ExternalFunction("sched_yield", types.int32())


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, arguments[0])
    return cgutils.get_item_pointer(context, builder, kind, array, [arguments[1]], wraparound=False)


@intrinsic
def add(typing, words, i, by):
    def made(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _pointer(context, builder, signature, arguments), arguments[2], "seq_cst")

    return words.dtype(words, types.intp, words.dtype), made


@intrinsic
def change(typing, words, i, old, new):
    def made(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments)
        both = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(both, 0)

    return words.dtype(words, types.intp, words.dtype, words.dtype), made


@intrinsic
def read(typing, words, i):
    def made(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "acquire", words.dtype.bitwidth // 8)

    return words.dtype(words, types.intp), made


@intrinsic
def write(typing, words, i, value):
    def made(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", words.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, words.dtype), made


@compiled(types.void(words_out, int64, int64))
def lock(words, i, owner):
    """Spin until words[i] is 0, and make it ``owner``. Others free the lock of a dead owner."""
    looks = 0
    while read(words, i) != 0 or change(words, i, 0, owner) != 0:
        looks += 1
        if looks % SPINS == 0:
            give_way()  # with more threads than cores, the owner may wait for a core


@compiled(int64(words_out, int64, int64, int64))
def changed(words, i, old, new):
    return change(words, i, old, new)


@compiled(int64(words_out, tally_out, indptr_in))
def take(words, tally, order):
    """The next slot's number, or -1: all are taken, or the round was stopped."""
    if read(words, STOP_AT) != 0:
        return -1
    number = add(words, CURSOR_AT, 1)
    return number if number < min(read(words, LIMIT_AT), len(order), len(tally)) else -1


@compiled(types.void(words_out, doubles_out, tally_out, int64, int64, int64, float64))
def done(words, sums, tally, worker, number, rows, loss):
    """Count a slot: for oneself in one's line, and for all in the tally."""
    line = (CELLS + worker) * LINE
    write(words, line + SLOTS, words[line + SLOTS] + 1)
    write(words, line + ROWS, words[line + ROWS] + rows)
    sums[LINE * worker] += loss
    write(tally, number, np.int8(1))


@compiled(int64(words_out, int64, int64, int64))
def beat(words, worker, canary, count):
    """Read the canary before so many updates, if it is due; else -1."""
    line = (CELLS + worker) * LINE
    words[line + TURNS] += count
    if canary == 0 or words[line + TURNS] < canary:
        return -1
    words[line + TURNS] %= canary
    words[line + BEATS] += 1
    return read(words, CANARY_AT)


@compiled(float64(doubles_out, floats_in, uint64, uint64))
def dot_there(gathered, values, start, count):
    """sum of value start + i * gathered[i]."""
    a = b = c = d = 0.0
    i = uint64(0)
    while i + FOUR <= count:
        a += value_at(values, start + i) * gathered[i]
        b += value_at(values, start + i + ONE) * gathered[i + ONE]
        c += value_at(values, start + i + TWO) * gathered[i + TWO]
        d += value_at(values, start + i + THREE) * gathered[i + THREE]
        i += FOUR
    while i < count:
        a += value_at(values, start + i) * gathered[i]
        i += ONE
    return (a + b) + (c + d)


@compiled(types.void(slab_out, indptr_in, slab_out, slab_out, uint64))
def merge(slab, hot, mine, base, averaged):
    """Add the changes since the last merge to the shared rows, and copy them back.

    Not so the weights of the first ``averaged``, which every row has: a copy has learned all there
    is to learn about them before it is merged, and the same correction by every worker would be so
    many times too much. They go half way to one's own.
    """
    for i in range(uint64(len(hot))):
        row = uint64(hot[i])
        for c in range(uint64(slab.shape[1])):
            now, was, new = slab[row, c], base[i, c], mine[i, c]
            if new != was:
                if now == was:
                    now = new  # no other worker wrote: exactly, as if there were no copy
                elif c == 0 and i < averaged:
                    now += (new - now) * float32(0.5)
                else:
                    now += new - was
                slab[row, c] = now
            mine[i, c] = now
            base[i, c] = now


@compiled(types.void(columns_in, ids_out))
def count(columns, out):
    for j in range(uint64(len(columns))):
        out[columns[j]] += 1


@compiled(types.void(indptr_in, columns_in, floats_in, ids_out, ids_out, uint32[::1], float32[::1]))
def hot_first(indptr, columns, values, places, middles, out, out_values):
    """Put the columns that have a place first in each row; the others begin at middles[i]."""
    for i in range(uint64(len(indptr) - 1)):
        start, stop = uint64(indptr[i]), uint64(indptr[i + uint64(1)])
        middle = start
        for j in range(start, stop):
            if places[columns[j]] >= 0:
                middle += uint64(1)
        middles[i] = middle
        hot, cold = start, middle
        for j in range(start, stop):
            place = places[columns[j]]
            to = hot if place >= 0 else cold
            out[to] = uint32(place) if place >= 0 else columns[j]
            if len(values) > 0:
                out_values[to] = values[j]
            hot += uint64(place >= 0)
            cold += uint64(place < 0)

"""Kernels of all Hogwild loops: take a slot, count it, margins, merge; hot_cold's plan.

Nothing here checks its arguments: ``loop`` does.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int64, uint32, uint64
from numba.core import types

from shoal.jit import compiled
from shoal.strategies.hogwild.atomics import (
    add,
    read,
    words_out,
    write,
)
from shoal.strategies.hogwild.loop import (
    BEATS,
    CANARY,
    CELLS,
    CURSOR,
    LIMIT,
    LINE,
    LOCK,
    ROWS,
    SLOTS,
    STOP,
    TURNS,
)

CURSOR_AT, LIMIT_AT, STOP_AT, LOCK_AT, CANARY_AT = (line * LINE for line in (CURSOR, LIMIT, STOP, LOCK, CANARY))
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)

indptr_in = types.Array(int64, 1, "C", readonly=True)
columns_in = types.Array(uint32, 1, "C", readonly=True)
floats_in = types.Array(float32, 1, "C", readonly=True)
ids_out = types.Array(int64, 1, "C")
doubles_out = types.Array(float64, 1, "C")
slab_out = types.Array(float32, 2, "C")
tally_out = types.Array(types.int8, 1, "C")


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


@compiled(float64(slab_out, columns_in, floats_in, uint64, uint64))
def dot(slab, columns, values, start, stop):
    """sum of values[j] * slab[columns[j], 0], summed as in ``models.kernels``; none: all 1."""
    a = b = c = d = 0.0
    j, first = start, uint64(0)
    if len(values) > 0:
        while j + FOUR <= stop:
            a += float64(values[j]) * float64(slab[columns[j], first])
            b += float64(values[j + ONE]) * float64(slab[columns[j + ONE], first])
            c += float64(values[j + TWO]) * float64(slab[columns[j + TWO], first])
            d += float64(values[j + THREE]) * float64(slab[columns[j + THREE], first])
            j += FOUR
        while j < stop:
            a += float64(values[j]) * float64(slab[columns[j], first])
            j += ONE
    else:
        while j + FOUR <= stop:
            a += float64(slab[columns[j], first])
            b += float64(slab[columns[j + ONE], first])
            c += float64(slab[columns[j + TWO], first])
            d += float64(slab[columns[j + THREE], first])
            j += FOUR
        while j < stop:
            a += float64(slab[columns[j], first])
            j += ONE
    return (a + b) + (c + d)


@compiled(float64(doubles_out, floats_in, uint64, uint64))
def dot_there(gathered, values, start, count):
    """sum of values[start + i] * gathered[i]; without values, all are 1."""
    a = b = c = d = 0.0
    i = uint64(0)
    if len(values) > 0:
        while i + FOUR <= count:
            a += float64(values[start + i]) * gathered[i]
            b += float64(values[start + i + ONE]) * gathered[i + ONE]
            c += float64(values[start + i + TWO]) * gathered[i + TWO]
            d += float64(values[start + i + THREE]) * gathered[i + THREE]
            i += FOUR
        while i < count:
            a += float64(values[start + i]) * gathered[i]
            i += ONE
    else:
        while i + FOUR <= count:
            a += gathered[i]
            b += gathered[i + ONE]
            c += gathered[i + TWO]
            d += gathered[i + THREE]
            i += FOUR
        while i < count:
            a += gathered[i]
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
    """out[k] += 1 for every column k."""
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

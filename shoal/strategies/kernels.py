"""The compiled loop under hot_cold's plan: which columns are hot, and rows with those first."""

from __future__ import annotations

from numba import float32, int64, uint32, uint64
from numba.core import types

from shoal.compiled import compiled

indptr_in = types.Array(int64, 1, "C", readonly=True)
columns_in = types.Array(uint32, 1, "C", readonly=True)
floats_in = types.Array(float32, 1, "C", readonly=True)
ids_out = types.Array(int64, 1, "C")


@compiled(types.void(columns_in, ids_out))
def count(columns, out):
    """out[k] += 1 for every column k."""
    for j in range(uint64(len(columns))):
        out[columns[j]] += 1


@compiled(types.void(indptr_in, columns_in, floats_in, ids_out, ids_out, uint32[::1], float32[::1]))
def hot_first(indptr, columns, values, places, middles, out, out_values):
    """Each row's columns with a place (not -1) first, as places; then the others as they are. Row i's others begin at middles[i]."""
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

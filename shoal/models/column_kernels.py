"""Compiled loops of block-wise solvers: transpose rows, update margins, gradient, curvature.

``state`` has four numbers per row: slope and curvature of its loss at its margin, its reach (how
much of the active block it has), and how much it has of all active keys. They are adjacent, since
the rows of a column are scattered. Sums are in double precision, in row order. Nothing here checks
its arguments.
"""

from __future__ import annotations

import math

from numba import boolean, float32, float64, int64, uint32, uint64
from numba.core import types

from shoal.jit import compiled
from shoal.models.kernels import LOGISTIC, columns_in, doubles_out, floats_in, floats_out, indptr_in, sigmoid, value_at

SLOPE, CURVE, REACH, ALL = 0, 1, 2, 3
TOGETHER = 512  # factors whose product is not below 2^-512
STEEPEST = 0.25  # the largest curvature of a logistic loss

places_in = types.Array(int64, 1, "C", readonly=True)
indptr_out = types.Array(int64, 1, "C")
rows_out = types.Array(uint32, 1, "C")
state_out = types.Array(float32, 2, "C")
pairs_out = types.Array(float32, 2, "C")


@compiled(types.void(boolean, indptr_in, columns_in, floats_in, indptr_out, rows_out, floats_out))
def turn(bias, indptr, columns, values, ends, at, turned):
    """Transpose: column k has rows at[ends[k]:ends[k + 1]], ascending; the bias is the last.

    ``ends`` must be zero before.
    """
    rows = len(indptr) - 1
    for j in range(indptr[0], indptr[-1]):
        ends[uint64(columns[j]) + uint64(1)] += 1
    if bias:
        ends[-1] += rows
    for k in range(1, len(ends)):
        ends[k] += ends[k - 1]
    to = ends[:-1].copy()
    for i in range(rows):
        for j in range(indptr[i], indptr[i + 1]):
            k = uint64(columns[j])
            at[to[k]] = uint32(i)
            if len(values):
                turned[to[k]] = values[j]
            to[k] += 1
        if bias:
            at[to[-1]] = uint32(i)
            if len(values):
                turned[to[-1]] = float32(1.0)
            to[-1] += 1


@compiled(types.void(int64, float64, float64, state_out, int64))
def look(kind, margin, label, state, i):
    if kind == LOGISTIC:
        wrong = sigmoid(-label * margin)
        state[i, SLOPE] = float32(-label * wrong)
        state[i, CURVE] = float32(wrong * (1.0 - wrong))
    else:
        state[i, SLOPE] = float32(margin - label)
        state[i, CURVE] = float32(1.0)


@compiled(types.void(int64, doubles_out, floats_in, state_out))
def look_at_all(kind, margins, labels, state):
    for i in range(len(margins)):
        look(kind, margins[i], float64(labels[i]), state, i)


@compiled(float64(int64, doubles_out, floats_in, state_out))
def total_loss(kind, margins, labels, state):
    """The sum of the losses of all rows.

    With p = |slope|, log(1 + exp(-ym)) is -log(1 - p), or -ym - log(p) where that is larger.
    Factors of 1/2 to 1 are multiplied, with one logarithm for as many as cannot underflow.
    """
    total, product = 0.0, 1.0
    for i in range(len(margins)):
        slope = float64(state[i, SLOPE])
        if kind != LOGISTIC:
            total += 0.5 * slope * slope
            continue
        towards = float64(labels[i]) * margins[i]
        if towards < 0.0:
            total -= towards
            product *= abs(slope)
        else:
            product *= 1.0 - abs(slope)
        if i % TOGETHER == TOGETHER - 1:
            total -= math.log(product)
            product = 1.0
    return total - math.log(product)


@compiled(types.void(indptr_in, columns_in, floats_in, floats_in, doubles_out))
def multiply(indptr, at, values, weights, margins):
    """margins[i] += <row i, weights>, column by column."""
    for k in range(len(weights)):
        if weights[k] != float32(0.0):
            weight = float64(weights[k])
            for j in range(uint64(indptr[k]), uint64(indptr[k + 1])):
                margins[at[j]] += weight * value_at(values, j)


@compiled(types.void(indptr_in, columns_in, floats_in, places_in, float32, state_out, int64))
def count(indptr, at, values, places, share, state, column):
    """state[i, column] += share * |x_ik| for all these keys k."""
    for p in range(len(places)):
        k = places[p]
        if len(values):
            for j in range(uint64(indptr[k]), uint64(indptr[k + 1])):
                state[at[j], column] += share * abs(values[j])
        else:
            for j in range(uint64(indptr[k]), uint64(indptr[k + 1])):
                state[at[j], column] += share


@compiled(int64(int64, floats_in, doubles_out, state_out, doubles_out, rows_out, int64))
def settle(kind, labels, margins, state, change, touched, found):
    """Add the changes of the touched rows to their margins, and update slope and curvature."""
    for f in range(found):
        i = touched[f]
        if change[i] != 0.0:
            margins[i] += change[i]
            change[i] = 0.0
            look(kind, margins[i], float64(labels[i]), state, i)
    return 0


@compiled(
    float64(
        int64, indptr_in, columns_in, floats_in, places_in, floats_in, floats_out, floats_in, doubles_out, state_out,
        doubles_out, rows_out,
    )
)  # fmt: skip
def take(kind, indptr, at, values, places, new, weights, labels, margins, state, change, touched):
    """margins[i] += sum of x_ik * (new weight - old weight); the largest change of a margin.

    ``change`` is zero before and after. Only rows with a changed margin are updated.
    """
    found = 0
    for p in range(len(places)):
        k = places[p]
        by = float64(new[p]) - float64(weights[k])
        weights[k] = new[p]
        if by == 0.0:
            continue
        for j in range(uint64(indptr[k]), uint64(indptr[k + 1])):
            i = at[j]
            # a row whose changes cancel would be listed twice: check for room
            if change[i] == 0.0:
                if found == len(touched):
                    found = settle(kind, labels, margins, state, change, touched, found)
                touched[found] = i
                found += 1
            change[i] += by * value_at(values, j)
    most = 0.0
    for f in range(found):
        most = max(most, abs(change[touched[f]]))
    settle(kind, labels, margins, state, change, touched, found)
    return most


@compiled(
    types.void(indptr_in, columns_in, floats_in, places_in, floats_in, float64, float64, float64, state_out, pairs_out)
)
def gradient(indptr, at, values, places, shares, grow, most, between, state, out):
    """out[p] = (g, u) of key p.

    g = sum of slope_i * x_ik, u = sum of curvature_i * |x_ik| * reach_i / share_k. curvature_i =
    min(most, grow * the present one). reach_i = sum of share_k * |x_ik| over the keys, plus
    ``between`` times what the row has elsewhere. REACH is filled before and unchanged after.
    """
    for p in range(len(places)):
        k = places[p]
        slope = bound = 0.0
        for j in range(uint64(indptr[k]), uint64(indptr[k + 1])):
            i, x = at[j], value_at(values, j)
            here, every = float64(state[i, REACH]), float64(state[i, ALL])
            slope += float64(state[i, SLOPE]) * x
            reach = here + between * max(every - here, 0.0)
            bound += min(most, grow * float64(state[i, CURVE])) * abs(x) * reach
        out[p, 0] = float32(slope)
        out[p, 1] = float32(bound / float64(shares[p]))

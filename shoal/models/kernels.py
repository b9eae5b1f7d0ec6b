"""Compiled loops of the linear models: rows in, losses and gradients out.

Each row is read twice: once for its margin, once to add its slope times its values to the
gradient. ``values`` is empty for rows of ones. Sums are in double precision, in an order that
depends only on the row, and rounded once at the end, without fastmath. So the same rows and weights
give the same bits on every node.

Nothing here checks its arguments: ``linear`` has, and the indices of a Local are right by
construction. Importing this module takes about half a second (numba), so it is imported late.
"""

from __future__ import annotations

import math

import numpy as np
from numba import boolean, float32, float64, int64, uint32, uint64
from numba.core import types

from shoal.jit import arrays, compiled

LOGISTIC, HINGE, SQUARED = 0, 1, 2
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)

indptr_in, columns_in = arrays(int64)[0], arrays(uint32)[0]
floats_in, floats_out = arrays(float32)
doubles_in, doubles_out = arrays(float64)
strided_in = types.Array(float32, 1, "A", readonly=True)


@compiled(float64(floats_in, uint64))
def value_at(values, j):
    """values[j]; without values all are 1. Loops over it become two, one for rows of ones."""
    return float64(values[j]) if len(values) > 0 else 1.0


@compiled([float64(columns_in, floats_in, weights, uint64, uint64) for weights in (floats_in, strided_in)])
def dot(columns, values, weights, start, stop):
    """sum of value j * weights[columns[j]], in four independent sums (one alone would stall)."""
    a = b = c = d = 0.0
    j = start
    while j + FOUR <= stop:
        a += value_at(values, j) * float64(weights[columns[j]])
        b += value_at(values, j + ONE) * float64(weights[columns[j + ONE]])
        c += value_at(values, j + TWO) * float64(weights[columns[j + TWO]])
        d += value_at(values, j + THREE) * float64(weights[columns[j + THREE]])
        j += FOUR
    while j < stop:
        a += value_at(values, j) * float64(weights[columns[j]])
        j += ONE
    return (a + b) + (c + d)


@compiled(float64(float64))
def softplus(x):
    """log(1 + exp(x)), without overflow or loss of precision."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@compiled(float64(float64))
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow."""
    small = math.exp(-abs(x))
    return (1.0 if x >= 0.0 else small) / (1.0 + small)


@compiled(float64(float64))
def side_of(label):
    """+1 or -1, for classes written -1/+1 or 0/1."""
    return 1.0 if label > 0.0 else -1.0


@compiled(float64(int64, float64, float64))
def loss_at(kind, margin, label):
    """log(1 + exp(-y m)), max(0, 1 - y m) or (m - y)^2 / 2."""
    if kind == SQUARED:
        return 0.5 * (margin - label) * (margin - label)
    towards = side_of(label) * margin
    if kind == LOGISTIC:
        return softplus(-towards)
    return 0.0 if towards >= 1.0 else 1.0 - towards  # in this order a NaN stays NaN


@compiled(float64(int64, float64, float64))
def slope_at(kind, margin, label):
    """The derivative of the loss by the margin; 0 at the kink of the hinge."""
    if kind == SQUARED:
        return margin - label
    side = side_of(label)
    if kind == LOGISTIC:
        return -side * sigmoid(-side * margin)
    return 0.0 if side * margin >= 1.0 else -side


@compiled(float64(int64, boolean, indptr_in, columns_in, floats_in, floats_in, floats_in, doubles_out))
def add_gradient(kind, bias, indptr, columns, values, labels, weights, sums):
    """sums[k] += slope_i * value_ik over all rows i; the sum of their losses.

    The weight of a bias is the last, and every row has it with the value 1.
    """
    last = uint64(max(len(weights) - 1, 0))
    constant = float64(weights[last]) if bias else 0.0
    total = slopes = 0.0
    start = uint64(indptr[0])
    for i in range(uint64(len(labels))):
        stop = uint64(indptr[i + ONE])
        label = float64(labels[i])
        margin = constant + dot(columns, values, weights, start, stop)
        total += loss_at(kind, margin, label)
        slope = slope_at(kind, margin, label)
        if slope != 0.0:
            slopes += slope
            for j in range(start, stop):
                sums[columns[j]] += slope * value_at(values, j)
        start = stop
    if bias:
        sums[last] += slopes
    return total


@compiled(types.void(float64, indptr_in, columns_in, floats_in, floats_in, doubles_out))
def add_penalty(l2, indptr, columns, weights, counts, sums):
    """sums[k] += l2 * weight_k / count_k for each row with k; not for the bias.

    Every key of a row has a count.
    """
    each = np.empty(len(weights), np.float64)
    for k in range(uint64(len(weights))):
        each[k] = l2 * float64(weights[k]) / float64(counts[k]) if counts[k] > float32(0.0) else 0.0
    for j in range(uint64(indptr[0]), uint64(indptr[-1])):
        sums[columns[j]] += each[columns[j]]


@compiled(
    float64(
        int64, boolean, float64, float64, indptr_in, columns_in, floats_in, floats_in, floats_in, floats_in, floats_out
    )
)
def gradient(kind, bias, scale, l2, indptr, columns, values, labels, weights, counts, out):
    """out = scale * (sum of the rows' gradients with penalty); their total loss without penalty."""
    sums = np.zeros(len(out), np.float64)
    total = add_gradient(kind, bias, indptr, columns, values, labels, weights, sums)
    if l2 > 0.0:
        add_penalty(l2, indptr, columns, weights, counts, sums)
    for k in range(uint64(len(out))):
        out[k] = float32(sums[k] * scale)
    return total


@compiled(types.void(boolean, indptr_in, columns_in, floats_in, floats_in, doubles_out))
def margins(bias, indptr, columns, values, weights, out):
    """out[i] = <row i, weights>, plus the last weight if there is a bias."""
    constant = float64(weights[uint64(max(len(weights) - 1, 0))]) if bias else 0.0
    start = uint64(indptr[0])
    for i in range(uint64(len(out))):
        stop = uint64(indptr[i + ONE])
        out[i] = constant + dot(columns, values, weights, start, stop)
        start = stop


@compiled(float64(int64, doubles_in, floats_in))
def total_loss(kind, margins, labels):
    total = 0.0
    for i in range(uint64(len(labels))):
        total += loss_at(kind, margins[i], float64(labels[i]))
    return total


@compiled(types.void(doubles_out))
def to_probabilities(margins):
    for i in range(uint64(len(margins))):
        margins[i] = sigmoid(margins[i])


@compiled(int64(floats_in, boolean))
def first_no_class(labels, zero):
    """The index of the first label that is not +1, -1 or (if allowed) 0; else -1."""
    for i in range(len(labels)):
        size = abs(labels[i])
        if size != float32(1.0) and not (zero and size == float32(0.0)):
            return i
    return -1


@compiled(int64(doubles_in, floats_in))
def hits(margins, labels):
    """The number of rows whose label matches the sign of the margin (0 counts as -1)."""
    count = 0
    for i in range(uint64(len(labels))):
        if (margins[i] > 0.0) == (labels[i] > float32(0.0)):
            count += 1
    return count


@compiled(int64(doubles_in, doubles_in))
def twice_pairs_won(positives, negatives):
    """Sum over all (positive, negative) margins: 2 where the positive is larger, 1 at ties.

    Both arrays are sorted. The sum of integers is exact in any order.
    """
    below = upto = won = 0
    for i in range(len(positives)):
        while below < len(negatives) and negatives[below] < positives[i]:
            below += 1
        upto = max(upto, below)
        while upto < len(negatives) and negatives[upto] <= positives[i]:
            upto += 1
        won += below + upto
    return won

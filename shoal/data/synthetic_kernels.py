"""Compiled loops that make synthetic rows, each from its seed and number alone.

No generator has a state: a draw is the hash of (seed, row, draw number), so any worker can make
any row.
"""
# mypy: ignore-errors
# numba has no stubs, and kernels are typed by their signatures

from __future__ import annotations

import math

import numpy as np
from numba import float32, float64, int64, uint8, uint32, uint64
from numba.core import types

from shoal.jit import arrays, compiled, mix

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
TRUTH = np.uint64(0x7472757468)  # the stream of true weights
PART = np.uint64(0x3FFF)
CARRY = 51  # of 256 features, this many have a weight
LONGEST = 1_000  # most draws per text
GUIDE = 1 << 16

numbers_in, numbers_out = arrays(int64)
doubles_in, doubles_out = arrays(float64)
columns_in, columns_out = arrays(uint32)
floats_in, floats_out = arrays(float32)
bytes_out = arrays(uint8)[1]


@compiled(float64(uint64, uint64))
def uniform(start, draw):
    """Draw number ``draw`` of a row, in [0, 1)."""
    return float64(mix(start + draw * GOLDEN) >> uint64(11)) * (1.0 / 9007199254740992.0)


@compiled(float64(uint64, uint64))
def normal(start, draw):
    """Approximately normal: the sum of four uniform draws from one hash."""
    bits = mix(start + draw * GOLDEN)
    total = (bits & PART) + (bits >> uint64(14) & PART) + (bits >> uint64(28) & PART) + (bits >> uint64(42) & PART)
    return (float64(total) - 32766.0) * (1.0 / 9459.0)


@compiled(float64(uint64, uint64))
def true_weight(seed, feature):
    """The true weight of a feature: one in five has one, about normal; the others have 0."""
    start = mix(feature * GOLDEN + (seed ^ TRUTH))
    if start & uint64(255) >= uint64(CARRY):
        return 0.0
    return normal(start, uint64(1))


@compiled(types.void(int64, uint64, numbers_in, float64, float64, columns_out, doubles_out, floats_out))
def clicks(first, seed, starts, scale, bias, columns, margins, labels):
    """One feature per field, the k-th commonest with chance ~1/k; a click by sigmoid(margin)."""
    fields = len(starts) - 1
    for i in range(len(labels)):
        start = mix(uint64(first + i) + mix(seed + GOLDEN))
        total = 0.0
        for field in range(fields):
            size = starts[field + 1] - starts[field]
            rank = int64(math.exp(uniform(start, uint64(field + 1)) * math.log(float64(size + 1)))) - 1
            feature = starts[field] + min(rank, size - 1)
            columns[i * fields + field] = uint32(feature)
            total += true_weight(seed, uint64(feature))
        margins[i] = scale * total + bias
        chance = 1.0 / (1.0 + math.exp(-margins[i]))
        labels[i] = float32(1.0) if uniform(start, uint64(fields + 1)) < chance else float32(0.0)


@compiled(int64(doubles_in, numbers_in, float64))
def find(cumulated, guide, draw):
    """The first index whose cumulative share is above ``draw``."""
    place = guide[int64(draw * GUIDE)]
    while cumulated[place] <= draw:
        place += 1
    return place


@compiled(
    int64(
        int64, uint64, doubles_in, numbers_in, doubles_in, columns_in, float64, float64, float64, float64, numbers_out,
        columns_out, floats_out, doubles_out, floats_out,
    )
)  # fmt: skip
def texts(first, seed, cumulated, guide, rarity, ids, log_mean, log_spread, level, noise, indptr, columns, values, margins, labels):  # fmt: skip
    """Words drawn by share, log-normally many; log tf * rarity, unit length, six decimals.

    The label is the side of ``level`` of the row's true margin, flipped for a share of ``noise``.
    Returns how many rows fit.
    """
    drawn = np.empty(LONGEST, np.int64)
    indptr[0] = 0
    for i in range(len(labels)):
        start = mix(uint64(first + i) + mix(seed + GOLDEN))
        words = int64(math.exp(log_mean + log_spread * normal(start, uint64(1))))
        words = min(max(words, 1), LONGEST)
        at = indptr[i]
        if at + words > len(columns):
            return i
        for j in range(words):
            drawn[j] = ids[find(cumulated, guide, uniform(start, uint64(j + 10)))]
        drawn[:words].sort()
        squares, place, j = 0.0, at, 0
        while j < words:
            word, times = drawn[j], 0
            while j < words and drawn[j] == word:
                times += 1
                j += 1
            # Term frequencies: half of the words occur once, a quarter twice, and so on.
            times += int64(-math.log2(1.0 - uniform(start ^ uint64(word), uint64(2))))
            value = (1.0 + math.log(float64(times))) * rarity[word]
            columns[place] = uint32(word)
            values[place] = float32(value)
            squares += value * value
            place += 1
        length, total = math.sqrt(squares), 0.0
        for k in range(at, place):
            rounded = max(math.floor(float64(values[k]) / length * 1e6 + 0.5), 1.0) / 1e6
            values[k] = float32(rounded)
            total += true_weight(seed, uint64(columns[k])) * rounded / rarity[columns[k]] ** 2
        margins[i] = total
        side = (total > level) != (uniform(start, uint64(3)) < noise)
        labels[i] = float32(1.0) if side else float32(-1.0)
        indptr[i + 1] = place
    return len(labels)


@compiled(int64(bytes_out, int64, int64))
def digits(out, at, value):
    """Write a non-negative integer in decimal; returns the end position."""
    size, rest = 1, value
    while rest >= 10:
        rest //= 10
        size += 1
    for place in range(at + size - 1, at - 1, -1):
        out[place] = 48 + value % 10
        value //= 10
    return at + size


@compiled(int64(numbers_in, columns_in, floats_in, floats_in, bytes_out))
def as_libsvm(indptr, columns, values, labels, out):
    """Rows as LIBSVM lines: ids from 1, six decimals or 1; returns the number of bytes."""
    at = 0
    for row in range(len(labels)):
        if labels[row] < 0:
            out[at] = 45
            at += 1
        at = digits(out, at, int64(abs(labels[row])))
        for j in range(indptr[row], indptr[row + 1]):
            out[at] = 32
            at = digits(out, at + 1, int64(columns[j]) + 1)
            out[at] = 58
            if len(values) == 0:
                out[at + 1] = 49
                at += 2
                continue
            millionths = int64(math.floor(float64(values[j]) * 1e6 + 0.5))
            at = digits(out, at + 1, millionths // 1_000_000)
            out[at] = 46
            for place in range(at + 6, at, -1):
                out[place] = 48 + millionths % 10
                millionths //= 10
            at += 7
        out[at] = 10
        at += 1
    return at

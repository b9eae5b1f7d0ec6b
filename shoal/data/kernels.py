"""Compiled loops from a packed set to a gradient: choose rows, gather them, localise them.

The caller allocates all arrays. Anything that could access out of bounds (a damaged set, a wrong
row number) is checked here and reported by a negative result, since nothing else checks every
element.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int64, uint32, uint64
from numba.core import types
from numba.extending import intrinsic

from shoal.jit import arrays, compiled, mix

ROUNDS = 6  # of the Feistel network
SMALL = 8  # bits: fewer allow too few shuffles of small sets, and there longer walks are cheap
GOLDEN = np.uint64(0x9E3779B97F4A7C15)

indptr_in = arrays(int64)[0]
columns_in, columns_out = arrays(uint32)
floats_in, floats_out = arrays(float32)
keys_in, keys_out = arrays(uint64)
rows_out = arrays(int64)[1]
doubles_out = arrays(float64)[1]
ranks_out = arrays(uint64, 2)[1]
rows_in = indptr_in


@intrinsic
def ones_in(typing, word):
    """The number of set bits of a word."""

    def generate(context, builder, signature, args):
        return builder.ctpop(args[0])

    return uint64(uint64), generate


@intrinsic
def first_one(typing, word):
    """The index of the lowest set bit of a word that is not 0."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], context.get_constant(types.boolean, True))

    return uint64(uint64), generate


@compiled(int64(int64, int64, uint64))
def permuted(place, length, seed):
    """The position of ``place`` in a shuffle of 0..length: a computed bijection, not stored.

    A Feistel network over the next power of two, repeated until the result is in range (Black and
    Rogaway, 2002).
    """
    bits = SMALL
    while (int64(1) << bits) < length:
        bits += 1
    low = uint64(bits // 2)
    low_mask = (uint64(1) << low) - uint64(1)
    high_mask = (uint64(1) << uint64(bits - bits // 2)) - uint64(1)
    x = uint64(place)
    while True:
        left, right = x >> low, x & low_mask
        for turn in range(0, ROUNDS, 2):
            left ^= mix(right + seed + uint64(turn + 1) * GOLDEN) & high_mask
            right ^= mix(left + seed + uint64(turn + 2) * GOLDEN) & low_mask
        x = left << low | right
        if x < uint64(length):
            return int64(x)


@compiled(types.void(int64, int64, uint64, rows_out))
def permute(first, length, seed, out):
    """out[i] = the position of first + i in the shuffle."""
    for i in range(len(out)):
        out[i] = permuted(first + i, length, seed)


@compiled(types.void(int64, uint64, doubles_out))
def draws(first, seed, out):
    """out[i] = a draw in [0, 1) for row first + i, always the same."""
    for i in range(len(out)):
        out[i] = float64(mix(uint64(first + i) * GOLDEN + seed) >> uint64(11)) * (1.0 / 9007199254740992.0)


@compiled(int64(indptr_in, int64, rows_in, rows_out))
def measure(indptr, nonzeros, rows, out):
    """out = the indptr of these rows; returns their nonzeros, or -1 - i if rows[i] is bad."""
    total = 0
    out[0] = 0
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(indptr) - 1:
            return -1 - i
        start, stop = indptr[row], indptr[row + 1]
        if start < 0 or stop < start or stop > nonzeros:
            return -1 - i
        total += stop - start
        out[i + 1] = total
    return total


@compiled(types.void(indptr_in, columns_in, floats_in, rows_in, rows_in, columns_out, floats_out))
def gather(indptr, columns, values, rows, places, columns_to, values_to):
    """Copy row rows[i] to places[i]; without values if their output is empty."""
    for i in range(len(rows)):
        start, to = indptr[rows[i]], places[i]
        for j in range(places[i + 1] - to):
            columns_to[to + j] = columns[start + j]
        if len(values_to):
            for j in range(places[i + 1] - to):
                values_to[to + j] = values[start + j]


@compiled(types.void(floats_in, rows_in, floats_out))
def pick(values, rows, out):
    for i in range(len(rows)):
        out[i] = values[rows[i]]


@compiled(types.void(columns_in, columns_out))
def count(columns, counts):
    """counts[c] += 1 for each column c."""
    for c in columns:
        if counts[c] < uint32(0xFFFFFFFF):
            counts[c] += uint32(1)


@compiled(int64(keys_out, int64, ranks_out, int64))
def emit(keys, found, ranks, word):
    """Append the ids of a word's set bits to ``keys``; store how many precede the word."""
    bits = ranks[word, 0]
    ranks[word, 1] = uint64(found)
    while bits:
        keys[found] = uint64(word) << uint64(6) | first_one(bits)
        bits &= bits - uint64(1)
        found += 1
    return found


@compiled(int64(keys_out, int64, ranks_out, keys_in, int64))
def emit_group(keys, found, ranks, groups, group):
    bits = groups[group]
    while bits:
        found = emit(keys, found, ranks, group << 6 | int64(first_one(bits)))
        bits &= bits - uint64(1)
    return found


@compiled(int64(columns_in, int64, ranks_out, keys_out, keys_out, keys_out, columns_out))
def localise(columns, features, ranks, groups, tops, keys, places):
    """keys = the sorted distinct columns, places[j] = index of columns[j]; the count, or -1.

    One bit per feature. ``groups`` has a bit for each nonzero word of these, ``tops`` one for each
    nonzero word of groups, so that a few rows in a huge space need no full scan. place = keys
    before the word + set bits before ours in it. All three are zero before and after.
    """
    words = (features + 63) >> 6
    direct = words <= len(columns)  # then scanning all words is cheaper than listing those in use
    deep = len(groups) > len(columns)
    fine = True
    for c in columns:
        if c >= features:
            fine = False
            break
        ranks[c >> uint32(6), 0] |= uint64(1) << uint64(c & uint32(63))
        if not direct:
            groups[c >> uint32(12)] |= uint64(1) << uint64((c >> uint32(6)) & uint32(63))
            if deep:
                tops[c >> uint32(18)] |= uint64(1) << uint64((c >> uint32(12)) & uint32(63))
    found = 0
    if direct:
        for word in range(words):
            if ranks[word, 0]:
                found = emit(keys, found, ranks, word)
    elif not deep:
        for group in range(len(groups)):
            found = emit_group(keys, found, ranks, groups, group)
    else:
        for top in range(len(tops)):
            bits = tops[top]
            while bits:
                found = emit_group(keys, found, ranks, groups, top << 6 | int64(first_one(bits)))
                bits &= bits - uint64(1)
    if fine:
        for j in range(len(columns)):
            word = columns[j] >> uint32(6)
            before = (uint64(1) << uint64(columns[j] & uint32(63))) - uint64(1)
            places[j] = uint32(ranks[word, 1] + ones_in(ranks[word, 0] & before))
    for k in range(found):
        ranks[keys[k] >> uint64(6), 0] = uint64(0)
        if not direct:
            groups[keys[k] >> uint64(12)] = uint64(0)
            tops[keys[k] >> uint64(18)] = uint64(0)
    return found if fine else -1

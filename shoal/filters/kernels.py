"""Compiled loops of filters: keys as differences, values in eight bits and in one.

Random draws are a hash of a seed and a value's position: the same push makes the same bytes on
every node. Importing this takes about half a second (numba), so it is imported late, and only for
such filters.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float32, float64, int8, int64, types, uint8, uint64

from shoal.jit import arrays, compiled, mix

keys_in, keys_out = arrays(uint64)
bytes_in, bytes_out = arrays(uint8)
rows_in, rows_out = arrays(float32, 2)
codes_in, codes_out = arrays(int8, 2)
column_in, column_out = arrays(float32)
bits_out = arrays(uint8, 2)[1]

GOLDEN = uint64(0x9E3779B97F4A7C15)
FRACTION = 1.0 / 16777216.0  # a step of 24 bits
LARGEST = float32(3.4028234663852886e38)


@compiled(int64(keys_in, bytes_out))
def encode_deltas(keys, out):
    """Each key minus the previous one and 1, as LEB128; returns the bytes, -1 if not sorted."""
    at = 0
    before = uint64(0)
    for i in range(len(keys)):
        key = keys[i]
        if i > 0 and key <= before:
            return -1
        rest = key if i == 0 else uint64(key - before - uint64(1))
        before = key
        while rest >= uint64(0x80):
            out[at] = uint8((rest & uint64(0x7F)) | uint64(0x80))
            at += 1
            rest >>= uint64(7)
        out[at] = uint8(rest)
        at += 1
    return at


@compiled(int64(bytes_in, keys_out))
def decode_deltas(data, out):
    """The keys of these differences; their number, or -1 if too many, too large or truncated."""
    at = 0
    found = 0
    before = uint64(0)
    while at < len(data):
        if found >= len(out):
            return -1
        rest = uint64(0)
        shift = uint64(0)
        while True:
            if at >= len(data):
                return -1
            byte = uint64(data[at])
            at += 1
            group = uint64(byte & uint64(0x7F))
            if shift > uint64(56) and (shift > uint64(63) or group > uint64(1)):
                return -1
            rest |= uint64(group << shift)
            if byte < uint64(0x80):
                break
            shift += uint64(7)
        key = rest
        if found > 0:
            key = uint64(before + uint64(rest + uint64(1)))
            if key <= before:
                return -1
        out[found] = key
        before = key
        found += 1
    return found


@compiled(types.void(rows_in, column_out))
def largest(values, out):
    """out[j] = the largest absolute value in column j."""
    for j in range(values.shape[1]):
        out[j] = float32(0.0)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[j] = max(out[j], abs(values[i, j]))


@compiled(types.void(rows_in, column_in, uint64, boolean, codes_out))
def to_int8(values, scales, seed, chance, out):
    """out[i, j] = values[i, j] / scales[j], rounded to nearest or at random; -128 is -0.0."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j]
            if value == float32(0.0):
                out[i, j] = int8(-128) if np.float32(value).view(np.uint32) != 0 else int8(0)
                continue
            code = float64(value) / float64(scales[j])
            if chance:
                drawn = mix(uint64(seed + GOLDEN * uint64(i * values.shape[1] + j + 1)))
                code = np.floor(code + float64(drawn >> uint64(40)) * FRACTION)
            else:
                code = np.rint(code)
            out[i, j] = int8(min(127.0, max(-127.0, code)))


@compiled(types.void(codes_in, column_in, rows_out))
def from_int8(codes, scales, out):
    """out[i, j] = codes[i, j] * scales[j]."""
    for i in range(codes.shape[0]):
        for j in range(codes.shape[1]):
            code = codes[i, j]
            if code == int8(-128):
                out[i, j] = float32(-0.0)
            else:
                out[i, j] = float32(min(float64(LARGEST), max(-float64(LARGEST), float64(code) * float64(scales[j]))))


@compiled(types.void(rows_in, column_out, column_out))
def means(values, low, high):
    """The means of the negative and of the positive values of each column."""
    for j in range(values.shape[1]):
        below, above = 0.0, 0.0
        negative, positive = 0, 0
        for i in range(values.shape[0]):
            value = float64(values[i, j])
            if value < 0:
                below += value
                negative += 1
            elif value > 0:
                above += value
                positive += 1
        low[j] = float32(below / negative) if negative else float32(0.0)
        high[j] = float32(above / positive) if positive else float32(0.0)


@compiled(types.void(rows_in, column_in, column_in, uint64, boolean, bits_out))
def to_bits(values, low, high, seed, chance, out):
    """out[i, j] = 1 if nearer to high, or at random, so that the expected value is unchanged."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            wide = float64(high[j]) - float64(low[j])
            share = 0.5
            if chance:
                drawn = mix(uint64(seed + GOLDEN * uint64(i * values.shape[1] + j + 1)))
                share = float64(drawn >> uint64(40)) * FRACTION
            upper = share * wide < float64(values[i, j]) - float64(low[j])
            out[i, j] = uint8(1) if upper else uint8(0)

"""Compiled conversion between float32 and 16-bit floats, on bits: numba has no half floats.

    float16     sign, 5 bits of exponent, 10 of fraction: three digits, from 6e-8 to 65,504
    bfloat16    the upper half of a float32, rounded: two digits, all of its range

Both round to nearest, ties to even. Importing this takes about half a second (numba), so it is
imported late, and only where values are converted.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32, int64, types, uint16, uint32

from shoal.jit import arrays, compiled

SIZE = uint32(0x7FFFFFFF)  # all but the sign
REBIAS = uint32(112 << 23)  # exponents of float32 start 112 lower
NORMAL = uint32(0x38800000)  # 2^-14: what is smaller has fewer bits in a float16
HALF = uint32(0x3F000000)  # 0.5

words_in, words_out = arrays(uint32)
shorts_in, shorts_out = arrays(uint16)

# numba makes uint64 of sums of uint32; the casts keep uint32, which doubles the SIMD width.


@compiled(int64(words_in, shorts_out))
def to_float16(words, out):
    """out[i] = float16(words[i]); returns the bits of the largest value, which must fit."""
    largest = uint32(0)
    for i in range(len(out)):
        word = words[i]
        size = uint32(word & SIZE)
        largest = max(largest, size)
        even = uint32(uint32(size >> uint32(13)) & uint32(1))
        normal = uint32(uint32(uint32(size - REBIAS) + uint32(0xFFF) + even) >> uint32(13))
        # Between 0.5 and 1 a float32 has steps of 2^-24, the smallest float16: the addition rounds.
        small = np.float32(np.uint32(size).view(np.float32) + float32(0.5)).view(np.uint32)
        kept = normal if size >= NORMAL else uint32(uint32(small) - HALF)
        out[i] = uint16(uint32(uint32(word >> uint32(16)) & uint32(0x8000)) | kept)
    return int64(largest)


@compiled(types.void(shorts_in, words_out))
def from_float16(shorts, out):
    """out[i] = float32(shorts[i]), exactly, infinities and NaN included."""
    for i in range(len(out)):
        word = uint32(shorts[i])
        size = uint32(word & uint32(0x7FFF))
        small = np.float32(float32(int32(size)) * float32(2.0**-24)).view(np.uint32)
        more = REBIAS if size < uint32(0x7C00) else uint32(2 * REBIAS)
        kept = uint32(small) if size < uint32(0x400) else uint32(uint32(size << uint32(13)) + more)
        out[i] = uint32(uint32(word & uint32(0x8000)) << uint32(16)) | kept


@compiled(int64(words_in, shorts_out))
def to_bfloat16(words, out):
    """out[i] = bfloat16(words[i]); returns the bits of the largest value, which must fit."""
    largest = uint32(0)
    for i in range(len(out)):
        word = words[i]
        largest = max(largest, uint32(word & SIZE))
        even = uint32(uint32(word >> uint32(16)) & uint32(1))
        out[i] = uint16(uint32(uint32(word + uint32(0x7FFF)) + even) >> uint32(16))
    return int64(largest)


@compiled(types.void(shorts_in, words_out))
def from_bfloat16(shorts, out):
    """out[i] = shorts[i] as a float32, exactly."""
    for i in range(len(out)):
        out[i] = uint32(shorts[i]) << uint32(16)

"""Quantizers: sixteen, eight or one bit per value.

    float16, bfloat16    rounded to nearest; for any table
    int8                 each column of a push (or answer) has one scale, so that its largest
                         value is at most 127 steps; code -128 is -0.0, which pulls preserve
    one_bit              each column of a push has two values, the mean of its negative and of its
                         positive values

The last two round at random, so that small values count on average; with ``chance=0`` to nearest,
which is better for updates with squared gradients (AdaGrad, Adam). The client adds what pushes
lose to a later push; so these two are for tables that sum pushes.
"""

from __future__ import annotations

import numpy as np

from shoal.filters.base import Bytes, Quantizer, RegisteredFilter
from shoal.keys import Values
from shoal.tables import Wire
from shoal.wire.half_precision import restored, shortened
from shoal.wire.messages.base import Array

_BOTH = {"pushes": (0.0, 1.0), "pulls": (0.0, 1.0)}
_CHANCE = {"chance": (0.0, 1.0)}
_NOTHING: Bytes = np.empty(0, np.uint8)


class _HalfPrecision(Quantizer):
    sums = False
    item = 2
    bounds = _BOTH
    whole = ("pushes", "pulls")
    form: Wire
    most: float

    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes] | None:
        codes = shortened(np.ascontiguousarray(values), self.form)
        return None if codes is None else (codes, _NOTHING)

    def size(self, rows: int, width: int) -> int:
        return 2 * rows * width

    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        return restored(packed.view(np.uint16), self.form).reshape(rows, width)

    def held(self, values: Values) -> Values:
        return np.clip(values, -np.float32(self.most), np.float32(self.most))


class Float16(_HalfPrecision):
    """16-bit floats with three digits."""

    form = "float16"
    most = 65504.0


class BFloat16(_HalfPrecision):
    """16-bit floats with two digits and the range of float32."""

    form = "bfloat16"
    most = 3.3895313892515355e38


class Int8(Quantizer):
    """One byte per value, and a scale per column."""

    compiled = True
    bounds = _BOTH | _CHANCE | {"steps": (1.0, 127.0)}
    whole = ("pushes", "pulls", "chance", "steps")

    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes] | None:
        from shoal.filters import kernels

        values = np.ascontiguousarray(values)
        if seed is None and not np.isfinite(values).all():
            return None  # diverged weights are sent unencoded
        scales = np.empty(values.shape[1], np.float32)
        kernels.largest(values, scales)
        some = scales > 0
        scales = np.where(some, np.maximum(scales / np.float32(self.settings.steps), np.float32(1e-45)), np.float32(1))
        codes = np.empty(values.shape, np.int8)
        kernels.to_int8(values, scales, np.uint64(seed or 0), seed is not None and bool(self.settings.chance), codes)
        return codes, scales.view(np.uint8)

    def size(self, rows: int, width: int) -> int:
        return rows * width + 4 * width

    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        from shoal.filters import kernels

        scales = packed[rows * width :].copy().view(np.float32)
        if not np.isfinite(scales).all():
            raise ValueError("a scale is not finite")
        out = np.empty((rows, width), np.float32)
        kernels.from_int8(packed[: rows * width].view(np.int8).reshape(rows, width), scales, out)
        return out


class OneBit(Quantizer):
    """One bit per value, and two means per column."""

    compiled = True
    directions = ("pushes",)
    bounds = _CHANCE
    whole = ("chance",)

    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes]:
        from shoal.filters import kernels

        values = np.ascontiguousarray(values)
        means = np.empty((2, values.shape[1]), np.float32)
        kernels.means(values, means[0], means[1])
        bits = np.empty(values.shape, np.uint8)
        kernels.to_bits(values, means[0], means[1], np.uint64(seed or 0), bool(self.settings.chance), bits)
        return bits, means.reshape(-1).view(np.uint8)

    def pack(self, codes: Array) -> Bytes:
        return np.packbits(codes.reshape(-1))

    def size(self, rows: int, width: int) -> int:
        return (rows * width + 7) // 8 + 8 * width

    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        bits = (rows * width + 7) // 8
        low, high = packed[bits:].copy().view(np.float32).reshape(2, width)
        upper = np.unpackbits(packed[:bits], count=rows * width).reshape(rows, width)
        return np.where(upper.astype(np.bool_), high, low)


_ON = {"pushes": 1.0, "pulls": 1.0}
KNOWN = {
    "float16": RegisteredFilter("float16", Float16, _ON),
    "bfloat16": RegisteredFilter("bfloat16", BFloat16, _ON),
    "int8": RegisteredFilter("int8", Int8, _ON | {"chance": 1.0, "steps": 127.0}),
    "one_bit": RegisteredFilter("one_bit", OneBit, {"chance": 1.0}),
}

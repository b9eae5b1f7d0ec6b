"""Rounds values on the wire to 16 bits, and restores them (a table's ``wire``).

The header names the form, so the receiver need not know the table. Rounding is to nearest, ties to
even: representable values survive unchanged, and equal values make equal bytes everywhere. Values
that would become infinite are not rounded: a client refuses to send them, a server sends float32.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import BadValues
from shoal.keys import Values
from shoal.tables import Wire
from shoal.wire.messages.base import Array

# float32 bits from here on round to infinity
_INFINITE = {"float16": 0x477FF000, "bfloat16": 0x7F7F8000}
_MOST = {"float16": "65,504", "bfloat16": "3.39e38"}
_WIDER = {"float16": "bfloat16", "bfloat16": "float32"}  # the next form that holds more


def shortened(values: Values, form: Wire) -> Array | None:
    """The values in this form (uint16, same shape); None if one is too large or not finite."""
    if form == "float32":
        return values
    from shoal.wire import kernels

    shorten = kernels.to_float16 if form == "float16" else kernels.to_bfloat16
    out = np.empty(values.size, np.uint16)
    largest = shorten(values.reshape(-1).view(np.uint32), out)
    return out.reshape(values.shape) if largest < _INFINITE[form] else None


def restored(array: Array, form: Wire) -> Values:
    if form == "float32":
        return array
    from shoal.wire import kernels

    restore = kernels.from_float16 if form == "float16" else kernels.from_bfloat16
    out = np.empty(array.size, np.uint32)
    restore(array.reshape(-1), out)
    values: Values = out.view(np.float32).reshape(array.shape)
    return values


def too_large(values: Values, form: Wire) -> BadValues:
    largest = values.flat[np.argmax(np.abs(values))]
    return BadValues(
        f"value {largest:g} is more than {form} holds ({_MOST[form]}), and so the values of this table travel: nothing was sent; "
        f"scale it down, or make the table with wire={_WIDER[form]!r}"
    )

"""Values on their way between client and server: float32 as they are, or rounded to 16 bits (a table's ``wire``).

A header says in which form its values are, so whoever gets them need not know the table. Rounding is to the nearest, ties to even, so
what a form can say exactly comes back exactly, and the same values make the same bytes wherever they are shortened. Nothing is
shortened that would become infinite: a client refuses to send it, a server sends it as it is.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import BadValues
from shoal.keys import Values
from shoal.tables import Wire
from shoal.wire.messages.base import Array

_INFINITE = {"float16": 0x477FF000, "bfloat16": 0x7F7F8000}  # sizes from here on, as bits of a float32, round to it
_MOST = {"float16": "65,504", "bfloat16": "3.39e38"}
_WIDER = {"float16": "bfloat16", "bfloat16": "float32"}  # the next form that holds more


def shortened(values: Values, form: Wire) -> Array | None:
    """The values in this form, in the same shape (16 bits as uint16); None if one of them is too large for it, or not finite."""
    if form == "float32":
        return values
    from shoal.wire import kernels

    shorten = kernels.to_float16 if form == "float16" else kernels.to_bfloat16
    out = np.empty(values.size, np.uint16)
    largest = shorten(values.reshape(-1).view(np.uint32), out)
    return out.reshape(values.shape) if largest < _INFINITE[form] else None


def restored(array: Array, form: Wire) -> Values:
    """The values that an array in this form says."""
    if form == "float32":
        return array
    from shoal.wire import kernels

    restore = kernels.from_float16 if form == "float16" else kernels.from_bfloat16
    out = np.empty(array.size, np.uint32)
    restore(array.reshape(-1), out)
    values: Values = out.view(np.float32).reshape(array.shape)
    return values


def too_large(values: Values, form: Wire) -> BadValues:
    """What to say of values that cannot be shortened to this form."""
    largest = values.flat[np.argmax(np.abs(values))]
    return BadValues(
        f"value {largest:g} is more than {form} holds ({_MOST[form]}), and so the values of this table travel: nothing was sent; "
        f"scale it down, or make the table with wire={_WIDER[form]!r}"
    )

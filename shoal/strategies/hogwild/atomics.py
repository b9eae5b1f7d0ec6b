"""Atomic operations for numba kernels, on words that several workers change at once.

    add(words, i, by)               words[i] += by, whole; what was there before
    change(words, i, old, new)      words[i] = new where it is old, whole; what was there before
    read(words, i)                  as it is now, and whatever its writer wrote before it
    write(words, i, value)          after everything that was written before

Arrays of int64 (``write`` also int8) that lie side by side in memory, one index. Indices are not
checked. The two in the middle of a kernel that matter: a ``read`` is never kept in a register over
a loop, and a ``write`` is never left out. Importing this costs about half a second (numba), so it
is imported late.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

from shoal.jit import compiled

SPINS = 64  # looks at a lock before the core is offered to others

give_way = types.ExternalFunction("sched_yield", types.int32())


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, arguments[0])
    return cgutils.get_item_pointer(context, builder, kind, array, [arguments[1]], wraparound=False)


@intrinsic
def add(typing, words, i, by):
    """words[i] += by, atomically; returns the value before."""

    def made(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _pointer(context, builder, signature, arguments), arguments[2], "seq_cst")

    return words.dtype(words, types.intp, words.dtype), made


@intrinsic
def change(typing, words, i, old, new):
    """words[i] = new if it is old, atomically; returns the value before."""

    def made(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments)
        both = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(both, 0)

    return words.dtype(words, types.intp, words.dtype, words.dtype), made


@intrinsic
def read(typing, words, i):
    """words[i] as it is now."""

    def made(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "acquire", words.dtype.bitwidth // 8)

    return words.dtype(words, types.intp), made


@intrinsic
def write(typing, words, i, value):
    """words[i] = value, after all that was written before."""

    def made(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", words.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, words.dtype), made


words_out = types.Array(types.int64, 1, "C")


@compiled(types.void(words_out, types.int64, types.int64))
def lock(words, i, owner):
    """Spin until words[i] is 0, and make it ``owner``. Others free the lock of a dead owner."""
    looks = 0
    while read(words, i) != 0 or change(words, i, 0, owner) != 0:
        looks += 1
        if looks % SPINS == 0:
            give_way()  # with more threads than cores, the owner may wait for a core


@compiled(types.void(words_out, types.int64, types.int64))
def meet(words, i, many):
    """A barrier: add 1, and wait until words[i] is ``many``."""
    looks = 0
    add(words, i, 1)
    while read(words, i) < many:
        looks += 1
        if looks % SPINS == 0:
            give_way()


@compiled(types.int64(words_out, types.int64, types.int64, types.int64))
def changed(words, i, old, new):
    """``change``, for Python."""
    return change(words, i, old, new)

"""Compiles kernels with numba, and has the hash that all kernels share.

This import takes about half a second (numba), so only kernels do it, and kernels are imported late.
"""

from __future__ import annotations

from numba import njit, types, uint64


def arrays(kind, dimensions=1):
    """The types of contiguous arrays that a kernel reads, and that it writes."""
    return types.Array(kind, dimensions, "C", readonly=True), types.Array(kind, dimensions, "C")


def compiled(signature):
    """njit with a signature; without a cache folder it compiles in every process."""

    def decorate(function):
        try:
            return njit(signature, nogil=True, cache=True)(function)
        except Exception:  # also a damaged cache; our own errors are raised again below
            return njit(signature, nogil=True)(function)

    return decorate


@compiled(uint64(uint64))
def mix(key):  # never change it: numba's cache of its callers would not notice
    """A 64-bit bijection that mixes all bits (the finalizer of MurmurHash3)."""
    key ^= key >> uint64(33)
    key *= uint64(0xFF51AFD7ED558CCD)
    key ^= key >> uint64(33)
    key *= uint64(0xC4CEB9FE1A85EC53)
    key ^= key >> uint64(33)
    return key

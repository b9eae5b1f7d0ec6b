"""How a kernel is compiled, and the one hash that kernels of all rooms share.

Importing this costs about half a second (numba), so only kernels do it, and kernels are imported late.
"""

from __future__ import annotations

from numba import njit, uint64


def compiled(signature):
    """njit with a signature; without a place for numba's cache (a read-only install, no home) it compiles each time."""

    def decorate(function):
        try:
            return njit(signature, nogil=True, cache=True)(function)
        except Exception:  # also a cache cut short by a power cut; an error of ours comes again below
            return njit(signature, nogil=True)(function)

    return decorate


@compiled(uint64(uint64))
def mix(key):  # never to be changed: numba's cache of a kernel that calls it would not notice
    """A bijection on 64 bits whose every bit depends on all bits of the key (the finalizer of MurmurHash3)."""
    key ^= key >> uint64(33)
    key *= uint64(0xFF51AFD7ED558CCD)
    key ^= key >> uint64(33)
    key *= uint64(0xC4CEB9FE1A85EC53)
    key ^= key >> uint64(33)
    return key

"""Memory that several processes share: one piece, without a name, made of arrays that each begin on a page of their own.

    segment = Segment.make({"slab": ((keys, 2), "float32"), "tally": ((slots,), "int8")})
    segment["slab"][:] = 0.0
    there = Segment.open(segment.place)         in another process of the same user, while this one lives

It is a file in memory (memfd) that stands in no folder: when the last process that has it is gone, however that ended, so is it.
There is nothing to sweep, no limit of /dev/shm, and no other process of shared memory's own (``multiprocessing`` has one).

All of it is taken when it is made: whoever is short of memory hears so then, not in the middle of a run by a signal.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from shoal.errors import Invalid, StartFailed
from shoal.limits import MB

Shapes = Mapping[str, tuple[tuple[int, ...], str]]  # by name: shape and type


class SharedLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where another process finds it, and what is where in it: plain data."""

    pid: int
    descriptor: int
    size: int
    arrays: dict[str, tuple[int, list[int], str]]  # by name: its first byte, shape and type


class SharedMemory:
    """One piece of shared memory. Whoever holds one of its arrays holds all of it, also after ``close``."""

    def __init__(self, descriptor: int, place: SharedLayout) -> None:
        self._descriptor, self.place = descriptor, place
        memory = mmap.mmap(descriptor, place.size)
        self.arrays = {
            name: np.ndarray(tuple(shape), kind, memory, first) for name, (first, shape, kind) in place.arrays.items()
        }

    @classmethod
    def make(cls, shapes: Shapes) -> SharedMemory:
        """All zeros."""
        arrays, size = {}, 0
        for name, (shape, kind) in shapes.items():
            arrays[name] = (size, list(shape), kind)
            bytes_of = int(np.dtype(kind).itemsize * np.prod(shape, dtype=object))
            size += -(-max(1, bytes_of) // mmap.PAGESIZE) * mmap.PAGESIZE
        _check_free(size)
        descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size)
            return cls(descriptor, SharedLayout(os.getpid(), descriptor, size, arrays))
        except OSError as error:
            os.close(descriptor)
            raise _short(size, error.strerror or "no memory") from None
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, place: SharedLayout) -> SharedMemory:
        """That of another process, or of this one once more."""
        return cls(open_of(place.pid, place.descriptor, os.O_RDWR), place)

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def close(self) -> None:
        """Let go of it: nobody else can open it any more. The memory goes with the last array of it that anybody holds."""
        self.arrays.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def open_of(pid: int, descriptor: int, flags: int) -> int:
    """A descriptor of another process, opened here: of a file without a name, or of one end of a pipe."""
    try:
        return os.open(f"/proc/{pid}/fd/{descriptor}", flags | os.O_CLOEXEC)
    except OSError as error:
        raise StartFailed(
            f"cannot open what process {pid} shares ({error.strerror}): it has ended, or belongs to another user; threads share "
            f"without asking (--set launch.how=threads)"
        ) from None


def _check_free(size: int) -> None:
    import psutil

    free = int(psutil.virtual_memory().available)
    if size > free:
        raise _short(size, f"{free // MB:,} MB are free")


def _short(size: int, why: str) -> Invalid:
    return Invalid(
        f"the model and its plan take {-(-size // MB):,} MB of shared memory: {why}: take fewer keys (--set data.hash_bits=20), or a "
        f"rule with less state (--set update.rule=sgd)"
    )

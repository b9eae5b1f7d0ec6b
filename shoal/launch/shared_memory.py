"""Shared memory between processes: one anonymous file of page-aligned arrays.

    memory = SharedMemory.make({"slab": ((keys, 2), "float32"), "tally": ((slots,), "int8")})
    memory["slab"][:] = 0.0
    there = SharedMemory.open(memory.place)     in another process of this user

It is a memfd, a file without a name: it vanishes with the last process that has it, however that
ended. So there is nothing to clean up, no limit of /dev/shm, and no helper process as in
``multiprocessing``. All memory is allocated at once, so that a shortage is an error at the start
and not a signal in mid-run.
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

Shapes = Mapping[str, tuple[tuple[int, ...], str]]  # shape and dtype by name


class SharedLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where another process finds the memory and the arrays in it: plain data."""

    pid: int
    descriptor: int
    size: int
    arrays: dict[str, tuple[int, list[int], str]]  # first byte, shape and dtype by name


class SharedMemory:
    """Shared memory. Any of its arrays keeps all of it alive, also after ``close``."""

    def __init__(self, descriptor: int, place: SharedLayout) -> None:
        self._descriptor, self.place = descriptor, place
        memory = mmap.mmap(descriptor, place.size)
        self.arrays = {
            name: np.ndarray(tuple(shape), kind, memory, first) for name, (first, shape, kind) in place.arrays.items()
        }

    @classmethod
    def make(cls, shapes: Shapes) -> SharedMemory:
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
        return cls(open_of(place.pid, place.descriptor, os.O_RDWR), place)

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def close(self) -> None:
        """Nobody can open it any more. The memory goes with the last array that uses it."""
        self.arrays.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def open_of(pid: int, descriptor: int, flags: int) -> int:
    """Open a file descriptor of another process: an anonymous file or an end of a pipe."""
    try:
        return os.open(f"/proc/{pid}/fd/{descriptor}", flags | os.O_CLOEXEC)
    except OSError as error:
        raise StartFailed(
            f"cannot open the shared memory of process {pid} ({error.strerror}): it has ended, or belongs to another "
            f"user; threads need no shared memory (--set launch.how=threads)"
        ) from None


def _check_free(size: int) -> None:
    import psutil

    free = int(psutil.virtual_memory().available)
    if size > free:
        raise _short(size, f"{free // MB:,} MB are free")


def _short(size: int, why: str) -> Invalid:
    return Invalid(
        f"the model and its plan need {-(-size // MB):,} MB of shared memory: {why}: use fewer keys "
        f"(--set data.hash_bits=20), or a rule with less state (--set update.rule=sgd)"
    )

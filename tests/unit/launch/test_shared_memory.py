"""Shared memory has no name: every process that has it sees it; it ends with the last one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shoal.errors import Invalid, StartFailed
from shoal.launch.shared_memory import SharedLayout, SharedMemory

SHAPES = {"slab": ((3, 5), "float32"), "tally": ((7,), "int8"), "none": ((0, 4), "int64")}


def mapped() -> int:
    """Number of shared pieces that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("/memfd:shoal")


def test_what_one_writes_the_other_reads() -> None:
    mine = SharedMemory.make(SHAPES)
    theirs = SharedMemory.open(mine.place)
    mine["slab"][1, 2] = 7.5
    theirs["tally"][:] = 1
    assert theirs["slab"][1, 2] == 7.5 and mine["tally"].sum() == 7
    assert mine["none"].shape == (0, 4)
    mine.close()
    theirs.close()


def test_arrays_begin_on_pages_of_their_own_and_with_zeros() -> None:
    segment = SharedMemory.make(SHAPES)
    assert not segment["slab"].any()
    assert all(one.ctypes.data % 4096 == 0 for one in segment.arrays.values() if one.size)
    segment.close()


def test_another_process_finds_it_by_plain_data() -> None:
    segment = SharedMemory.make(SHAPES)
    code = (
        "import sys, msgspec; from shoal.launch.shared_memory import SharedLayout, SharedMemory\n"
        "SharedMemory.open(msgspec.json.decode(sys.argv[1], type=SharedLayout))['slab'][:] += 2"
    )
    subprocess.run([sys.executable, "-c", code, msgspec.json.encode(segment.place).decode()], check=True, timeout=60)
    assert (segment["slab"] == 2).all()
    segment.close()


def test_nothing_of_it_stays_when_it_is_closed_and_nobody_holds_an_array() -> None:
    before, descriptors = mapped(), set(os.listdir("/proc/self/fd"))
    segment = SharedMemory.make(SHAPES)
    slab = segment["slab"]
    assert mapped() > before
    segment.close()
    segment.close()
    assert (slab == 0).all()  # an array that is still held stays usable
    del slab
    assert mapped() == before and set(os.listdir("/proc/self/fd")) == descriptors


def test_nobody_opens_it_once_it_is_closed() -> None:
    segment = SharedMemory.make(SHAPES)
    place = segment.place
    segment.close()
    with pytest.raises(StartFailed, match="cannot open the shared memory of process"):
        SharedMemory.open(msgspec.structs.replace(place, descriptor=10_000))


def test_more_memory_than_there_is_is_refused_with_the_next_move() -> None:
    with pytest.raises(Invalid, match=r"need [\d,]+ MB of shared memory: [\d,]+ MB are free: use fewer keys"):
        SharedMemory.make({"slab": ((1 << 44,), "float32")})


def test_its_place_is_plain_data() -> None:
    segment = SharedMemory.make(SHAPES)
    again = msgspec.json.decode(msgspec.json.encode(segment.place), type=SharedLayout)
    assert again == segment.place
    assert np.prod(again.arrays["slab"][1]) == 15
    segment.close()

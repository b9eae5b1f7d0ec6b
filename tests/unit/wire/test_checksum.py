"""The checksum of arrays notices any flipped bit, and pages that swap places."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from shoal.errors import Damaged
from shoal.job import Job
from shoal.launch.processes import safety_of
from shoal.security.safety import Safety
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.coding import _LONG, _ROW, checksum

SIZES = [1, 4, 8, 1_000, _LONG - 4, _LONG, _LONG + 4, 8 * _ROW * 4, 8 * _ROW * 5 + 12, 100_004]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def flipped(data: bytes, bit: int) -> bytes:
    changed: Any = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_bit_anywhere_is_noticed(size: int) -> None:
    data, draw = noise(size), random.Random(size)
    whole = checksum([b"keys", data])
    bits = {0, 8 * size - 1, *(draw.randrange(8 * size) for _ in range(300))}
    assert all(checksum([b"keys", flipped(data, bit)]) != whole for bit in bits)


@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_same_for_all_that_has_the_same_bytes(size: int) -> None:
    data = noise(size)
    octets = np.frombuffer(data, np.uint8)
    odd = np.empty(size + 1, np.uint8)[1:]
    odd[:] = octets
    assert len({checksum([data]), checksum([memoryview(data)]), checksum([octets]), checksum([odd])}) == 1


@pytest.mark.parametrize(
    "others",
    [[b"aa", b"b"], [b"a"], [b"a", b"b", b""], [b"b", b"a"], [b"ab"], []],
    ids=str,
)
def test_arrays_that_are_cut_otherwise_are_others(others: list[bytes]) -> None:
    assert checksum(others) != checksum([b"a", b"b"])


@pytest.mark.parametrize("page", [512, 4_096, 16_384])
def test_pages_that_change_places_are_noticed(page: int) -> None:
    data = noise(1 << 20)
    swapped = data[page : 2 * page] + data[:page] + data[2 * page :]
    assert checksum([swapped]) != checksum([data])


def test_damage_within_four_kilobytes_is_noticed() -> None:
    data = noise(1 << 20)
    whole = checksum([data])
    for seed in range(200):
        draw = random.Random(seed)
        start, length = draw.randrange(len(data) - 4_000), draw.randrange(1, 4_000)
        wrong = data[:start] + draw.choice([bytes(length), draw.randbytes(length)]) + data[start + length :]
        assert (checksum([wrong]) != whole) == (wrong != data)


def test_arrays_that_do_not_fit_their_header_are_damaged_and_without_a_checksum_they_are_believed() -> None:
    keys, values = np.arange(5, dtype=np.uint64), np.ones(5, np.float32)
    answer = m.Values(1, 5, [3])
    frames = [keys.tobytes(), values.tobytes()]
    checked = coding.encode(answer, [keys, values])
    _, arrays = coding.decode(checked, frames)
    assert [array.tolist() for array in arrays] == [keys.tolist(), values.tolist()]
    for wrong in ([frames[0], flipped(frames[1], 31)], [flipped(frames[0], 0), frames[1]], [frames[1]]):
        with pytest.raises(Damaged, match="damaged on their way"):
            coding.decode(checked, wrong)
        coding.decode(coding.encode(answer), wrong)
    with pytest.raises(Damaged):
        coding.decode(checked, [])


def test_safety_says_whether_there_are_checksums_and_so_does_its_word() -> None:
    assert Safety.local().checksums
    for safety in (Safety.local(), Safety.insecure()):
        for checksums in (True, False):
            told = Safety.of_plain(safety.checking(checksums).plain)
            assert (told.checksums, told.is_insecure) == (checksums, safety.is_insecure)
    assert Safety.local().checking(False).checking(True).plain == "local"


def test_a_job_turns_them_off_for_all_its_processes() -> None:
    assert safety_of(Job()).plain == "local"
    assert safety_of(Job.of({"launch": {"checksums": False}})).plain == "unchecked:local"

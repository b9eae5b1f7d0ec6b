"""Several threads change words at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from shoal.jit import compiled
from shoal.strategies.hogwild import kernels
from shoal.strategies.hogwild.kernels import (
    add,
    lock,
    read,
    words_out,
    write,
)

THREADS, TIMES = 4, 50_000


@compiled("void(int64[::1], int64)")
def added(words, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        add(words, 0, 1)


@compiled("void(int64[::1], int64, int64)")
def guarded(words, times, owner):  # type: ignore[no-untyped-def]
    for _ in range(times):
        lock(words, 8, owner)
        there = read(words, 0)
        write(words, 0, there + 1)
        write(words, 8, 0)


def _together(call: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=call, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_no_addition_is_lost() -> None:
    words = np.zeros(16, np.int64)
    _together(lambda _: added(words, TIMES))
    assert words[0] == THREADS * TIMES and not words[1:].any()


def test_under_a_lock_plain_additions_are_not_lost_either() -> None:
    words = np.zeros(16, np.int64)
    _together(lambda number: guarded(words, TIMES // 10, number + 1))
    assert words[0] == THREADS * TIMES // 10 and words[8] == 0


def test_a_word_is_changed_only_from_what_it_was_taken_for() -> None:
    words = np.array([0, 3], np.int64)
    assert kernels.changed(words, 1, 2, 0) == 3 and words[1] == 3
    assert kernels.changed(words, 1, 3, 0) == 3 and words[1] == 0


def test_who_waits_for_a_lock_gets_it_when_somebody_else_frees_it() -> None:
    words = np.zeros(2, np.int64)
    words[1] = 7  # the lock of a worker that died
    waiting = threading.Thread(target=lock, args=(words, 1, 2))
    waiting.start()
    assert kernels.changed(words, 1, 7, 0) == 7
    waiting.join()
    assert words[1] == 2 and words_out.ndim == 1

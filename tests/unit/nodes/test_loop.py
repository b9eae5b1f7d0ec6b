"""The loop never blocks: neither on a computation nor on a disk (F32)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from shoal import limits
from shoal.nodes.loop import Loop
from shoal.wire.effects import Compute, Computed, Effect, Event, Store, Stored, Tick, Wake
from shoal.wire.memory import Hub


class Clerk:
    """A node that requests each of these effects once, and keeps the results."""

    name = "clerk"

    def __init__(self, *effects: Effect) -> None:
        self.effects = list(effects)
        self.heard: list[Any] = []
        self.ticks = 0

    def handle(self, now: int, event: Event) -> list[Effect]:
        effects, self.effects = self.effects, []
        if isinstance(event, Tick):
            self.ticks += 1
        else:
            self.heard.append(event)
        return [*effects, Wake(now + limits.MILLISECOND)]


def turn_until(loop: Loop, clerk: Clerk, heard: int) -> None:
    for _ in range(10_000):
        if len(clerk.heard) >= heard:
            return
        loop.turn(0.01)
    raise AssertionError(f"only {clerk.heard}")


def test_what_a_disk_does_comes_back_in_order_and_so_does_its_refusal() -> None:
    threads: list[str] = []

    def full() -> None:
        threads.append(threading.current_thread().name)
        raise OSError(28, "No space left on device")

    clerk = Clerk(Store(1, lambda: "one"), Store(2, full), Store(3, lambda: [3]))
    loop = Loop(clerk, Hub().open("clerk"))
    turn_until(loop, clerk, 3)
    loop.close()
    assert [(one.token, one.result) for one in clerk.heard] == [(1, "one"), (2, None), (3, [3])]
    assert isinstance(clerk.heard[1].error, OSError) and threads == ["clerk-disk"]


def test_neither_the_loop_nor_computations_wait_for_a_disk() -> None:
    go_on = threading.Event()
    clerk = Clerk(Store(1, lambda: go_on.wait(60)), Compute(1, lambda: "computed"))
    loop = Loop(clerk, Hub().open("clerk"))
    turn_until(loop, clerk, 1)
    ticks = clerk.ticks
    while clerk.ticks < ticks + 3:
        loop.turn(0.01)
    assert clerk.heard == [Computed(1, "computed")]
    go_on.set()
    turn_until(loop, clerk, 2)
    loop.close()
    assert clerk.heard[1] == Stored(1, True)


def test_a_disk_that_hangs_keeps_nobody_from_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DRAIN", limits.MILLISECOND)
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def hang() -> None:
        begun.set()
        go_on.wait(60)

    clerk = Clerk(Store(1, hang), Store(2, lambda: done.append(2)))
    loop = Loop(clerk, Hub().open("clerk"))
    loop.turn(0.01)
    assert begun.wait(60)
    loop.close()
    go_on.set()
    (disk,) = [thread for thread in threading.enumerate() if thread.name == "clerk-disk"] or [threading.Thread()]
    if disk.ident is not None:
        disk.join(60)
    assert clerk.heard == [] and done == []  # what had not begun never begins


def test_a_node_is_never_told_an_earlier_time_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5, 3, 9, 4, 12] * 20)
    told: list[int] = []

    class Watchman(Clerk):
        def handle(self, now: int, event: Event) -> list[Effect]:
            told.append(now)
            return [Wake(now)]

    loop = Loop(Watchman(), Hub().open("clerk"))
    monkeypatch.setattr("shoal.nodes.loop.time.monotonic_ns", lambda: next(times))
    for _ in range(8):
        loop.turn(0)
    monkeypatch.undo()
    loop.close()
    assert told == sorted(told) and len(set(told)) > 1

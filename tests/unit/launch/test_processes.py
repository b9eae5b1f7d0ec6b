"""A process that ends is restarted at once, but not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from shoal.errors import StartFailed
from shoal.launch import processes
from shoal.launch.processes import MOST, Supervisor
from tests.support import PATIENCE


class Shop:
    """Records what a supervisor does; uses events instead of waiting."""

    def __init__(self, fails: Callable[[str], bool] = lambda name: False) -> None:
        self.supervisor = Supervisor(self.again, self.give_up)
        self.started: list[str] = []
        self.gave_up: list[str] = []
        self._fails = fails
        self._news = threading.Condition()

    def again(self, name: str) -> None:
        with self._news:
            self.started.append(name)
            self._news.notify_all()
        if self._fails(name):
            raise StartFailed(f"{name} did not start: no room")

    def give_up(self, why: str) -> None:
        with self._news:
            self.gave_up.append(why)
            self._news.notify_all()

    def until(self, done: Callable[[], object]) -> None:
        with self._news:
            assert self._news.wait_for(done, PATIENCE)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_SOON", 1e-4)
    monkeypatch.setattr(processes, "_LATEST", 1e-4)


def test_who_ends_is_started_again_each_time() -> None:
    shop = Shop()
    for number in range(1, 4):
        shop.supervisor.ended("ann", "killed")
        shop.until(lambda number=number: len(shop.started) == number)  # type: ignore[misc]
    shop.supervisor.ended("bob", "killed")
    shop.until(lambda: shop.started == ["ann", "ann", "ann", "bob"])
    assert shop.gave_up == []


def test_after_ten_times_in_a_minute_it_is_left_and_the_reason_told() -> None:
    shop = Shop()
    for number in range(1, MOST + 1):
        shop.supervisor.ended("ann", "killed")
        shop.until(lambda number=number: len(shop.started) == number)  # type: ignore[misc]
    shop.supervisor.ended("ann", "its process ended (exit code 3)")
    assert len(shop.gave_up) == 1
    assert "ann was restarted 10 times in 60 s" in shop.gave_up[0]
    assert "exit code 3" in shop.gave_up[0]
    shop.supervisor.ended("bob", "killed")  # nodes are counted separately
    shop.until(lambda: shop.started[-1] == "bob")


def test_one_that_does_not_start_is_tried_again_and_then_left() -> None:
    shop = Shop(fails=lambda name: True)
    shop.supervisor.ended("ann", "killed")
    shop.until(lambda: shop.gave_up)
    assert len(shop.started) == MOST
    assert "ann did not start: no room" in shop.gave_up[0]


def test_one_that_is_closed_starts_nobody() -> None:
    shop = Shop()
    shop.supervisor.delay = PATIENCE
    shop.supervisor.ended("ann", "killed")  # the restart waits
    shop.supervisor.close()
    shop.supervisor.ended("bob", "killed")
    for thread in threading.enumerate():
        if thread.name.startswith("shoal-again-"):
            thread.join(PATIENCE)
    assert shop.started == shop.gave_up == []

"""max_delay = auto: the smallest delay at which workers hardly wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.limits import MILLISECOND
from shoal.schedule.auto_delay import LONGEST, AutoDelay


def run(auto: AutoDelay, share: Callable[[int, float], float], seconds: float) -> list[tuple[float, int]]:
    """What it is changed to, and when, where so much is waited at a delay and a time."""
    changes = []
    for tick in range(int(seconds * 10)):
        now = (tick + 1) * 100 * MILLISECOND
        auto.take(int(share(auto.delay, tick / 10) * 100_000), 100_000, 10)
        if auto.look(now, 4):
            changes.append((tick / 10, auto.delay))
    return changes


@pytest.mark.parametrize("enough", [0, 1, 2, 3, 5, 8, 13, 40])
def test_the_smallest_delay_that_is_enough_is_found_and_kept(enough: int) -> None:
    auto = AutoDelay()
    changes = run(auto, lambda delay, _: 0.5 / (1 + delay) if delay < enough and 0.5 / (1 + delay) > 0.05 else
                  0.06 if delay < enough else 0.01, 120)  # fmt: skip
    assert auto.delay in (enough, enough - 1)  # the one below is tried now and then
    late = [delay for at, delay in changes if at > 14]
    assert set(late) <= {enough, enough - 1} and len(late) < 20


def test_a_worker_that_is_far_slower_than_the_others_is_no_matter_of_the_delay() -> None:
    auto = AutoDelay()
    run(auto, lambda delay, _: 0.6, 30)
    assert auto.delay == LONGEST and auto.too_short


def test_room_that_is_still_being_used_up_is_not_taken_for_enough() -> None:
    """A fast worker does not wait until it is as far ahead as it may be: that takes as many steps as it is given."""
    auto, ahead, delays = AutoDelay(), 0.0, [0]
    for tick in range(3_000):  # two workers, one takes a step in a tick, the other one in five
        waits = ahead >= auto.delay
        ahead += -0.2 if waits else 0.8
        auto.take(100_000 * waits, 200_000, 1)
        if auto.look((tick + 1) * 10 * MILLISECOND, 2):
            delays.append(auto.delay)
    assert delays == sorted(delays) and delays[-1] == LONGEST and auto.too_short


def test_when_the_slow_one_has_gone_the_delay_gets_smaller_again() -> None:
    auto = AutoDelay()
    run(auto, lambda delay, at: (0.3 if delay < 8 else 0.0) if at < 20 else (0.3 if delay < 1 else 0.0), 400)
    assert auto.delay in (0, 1)


def test_a_single_bad_moment_changes_nothing() -> None:
    auto = AutoDelay()
    changes = run(auto, lambda delay, at: 0.3 if delay < 4 or 15 <= at < 15.1 else 0.0, 18)
    assert auto.delay == 4 and not [at for at, _ in changes if at > 14]


def test_nothing_is_decided_on_few_steps() -> None:
    auto = AutoDelay()
    for tick in range(100):
        auto.take(100, 100, 0)
        assert not auto.look((tick + 1) * 100 * MILLISECOND, 4)

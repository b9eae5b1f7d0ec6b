"""A pause of all processes at once removes no node, even if it is longer than ``dead``.

Pauses of single processes end as planned.
"""

from __future__ import annotations

import msgspec
import pytest

from shoal.limits import MILLISECOND, SECOND
from shoal.simulation.faults import FaultPlan
from shoal.simulation.store_scenario import StoreRun
from shoal.simulation.world import World
from shoal.wire.effects import Effect, Event


@pytest.mark.parametrize("seed", range(40, 56))
def test_a_pause_of_the_whole_program_removes_nobody(seed: int) -> None:
    """This is not a fault of a plan, because it breaks no node.

    The faults of a plan break as many nodes at once as the copies allow.
    """
    plan = msgspec.structs.replace(FaultPlan.draw(seed), faults=(), habits=(), lasts=20_000, scale=1.0, beyond=False)
    run, paused = StoreRun(plan), list[str]()

    def pause() -> None:
        for name in list(run.world.hosts):
            run.world.pause(name, 15 * SECOND)
            paused.append(name)

    run.world.at(run.world.now + 700 * MILLISECOND, pause)
    verdict = run.verdict()
    assert verdict.violations == []
    assert set(plan.names[: 1 + plan.servers]) <= set(paused)
    assert not [one for one in verdict.history if getattr(one, "what", "") == "removed"]


class Clock:
    """A node that records when it gets events."""

    name = "clock"

    def __init__(self, world: World) -> None:
        self.world, self.fed = world, list[int]()

    def handle(self, now: int, event: Event) -> list[Effect]:
        self.fed.append(self.world.now // SECOND)
        return []


@pytest.mark.parametrize(
    ("second", "woken", "ends"),
    [(1, None, 8), (9, None, 11), (1, 1, 6)],
    ids=["a shorter pause ends no longer one", "a longer one extends it", "all wake early"],
)
def test_what_waits_for_the_end_of_a_pause_comes_when_it_ends(second: int, woken: int | None, ends: int) -> None:
    world = World(1)
    clock = Clock(world)
    world.add(clock)
    world.run(lambda: bool(clock.fed), SECOND, 10)
    world.pause("clock", 8 * SECOND)
    for at in (1, 3, 4):
        world.at(at * SECOND, lambda: world.tell("clock"))
    world.at(2 * SECOND, lambda: world.pause("clock", second * SECOND))
    if woken is not None:
        world.at(5 * SECOND, lambda: world.wake_within(woken * SECOND))
    world.run(lambda: len(clock.fed) == 4, 20 * SECOND, 100)
    assert clock.fed == [0, ends, ends, ends]

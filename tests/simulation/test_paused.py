"""Everybody is paused at once for three times as long as silence is forgiven: nobody is removed for it, and every promise holds."""

from __future__ import annotations

import msgspec
import pytest

from shoal.limits import MILLISECOND, SECOND
from shoal.simulation.faults import FaultPlan
from shoal.simulation.store_scenario import StoreRun


@pytest.mark.parametrize("seed", range(40, 56))
def test_a_pause_of_the_whole_program_removes_nobody(seed: int) -> None:
    """Not a fault of a plan: those break so many at once as copies can bear, and this breaks nobody."""
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

"""The coordinator is killed at any moment, and another continues from its journal.

All other nodes go on meanwhile (F14, F15).
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.datasets import Dataset, load
from shoal.events import Evaluated, Gone, Joined, Started, Stopped
from shoal.job import Job
from shoal.nodes.coordinator import Coordinator
from tests.support.one_thread_run import JOB, Ship

SEEDS = 12


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    job = Job.of(JOB)
    return load(job.data, job.seed, cache=tmp_path_factory.mktemp("data"))


def sail(rows: Dataset, strategy: str, seed: int, lose: str = "") -> Ship:
    """Runs with three coordinator restarts at moments drawn from the seed.

    With ``lose`` that worker is killed together with the first restart.
    """
    ship = Ship(rows, seed=seed, strategy=strategy, workers=3, stop__epochs=2)
    for number in range(3):
        turns = ship.draw.randrange(400)
        for _ in range(turns):
            if not ship.all(Stopped):
                ship.turn()
        if ship.all(Stopped):
            break
        if lose and number == 0 and lose in ship.nodes:
            ship.restart_coordinator()
            ship.kill(lose)
        else:
            ship.restart_coordinator()
    return ship.home()


@pytest.mark.variants(slow=["async-*", "bounded-*"])
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("strategy", ["sync", "bounded", "async"])
def test_a_run_goes_on_whenever_its_coordinator_is_killed(rows: Dataset, strategy: str, seed: int) -> None:
    ship = sail(rows, strategy, seed)
    assert ship.slots_done() == 50 and ship.scheduler.examples == 800
    assert {event.why for event in ship.all(Stopped)} == {"2 epochs done"}
    assert not ship.all(Gone)
    coordinator = ship.nodes["coordinator"]
    assert isinstance(coordinator, Coordinator)
    # Two servers, launcher, evaluator, three workers: no node joined again.
    assert coordinator.roster.incarnations == 7
    assert all(task.error is None for task in ship.ends.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_synchronous_run_is_the_same_bit_for_bit(rows: Dataset, seed: int) -> None:
    calm = Ship(rows, strategy="sync", workers=1, stop__epochs=2).home()
    stormy = sail(rows, "sync", seed)
    np.testing.assert_array_equal(calm.weights, stormy.weights)
    losses = {event.number: event.test_loss for event in stormy.all(Evaluated)}
    assert losses == {event.number: event.test_loss for event in calm.all(Evaluated)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_a_worker_lost_together_with_the_coordinator_is_made_up_for(rows: Dataset, strategy: str, seed: int) -> None:
    ship = sail(rows, strategy, seed, lose="worker-1")
    assert ship.slots_done() == 50
    assert "worker-1" not in ship.nodes["coordinator"].roster.members  # type: ignore[attr-defined]
    assert len(ship.all(Started)) >= 1 and len({event.name for event in ship.all(Joined)}) <= 5

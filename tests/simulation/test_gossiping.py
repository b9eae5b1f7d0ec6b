"""In gossip runs the sum of the models changes only by known losses (I10, F40).

Every leg ends (I13). Each run is drawn from one seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.simulation.faults import Fault
from shoal.simulation.gossip_scenario import GOSSIP, GossipPlan, GossipScenario
from shoal.strategies.gossip.topology import Graph
from tests.harness.seeds import by_tier, check, check_caught

FIRST, SEEDS, SOAK = 100, 300, 2_000  # `make soak` runs thousands of new seeds
CATCHES = {
    "leg told again with other weights": 234,
    "loss told only once": 171,
    "steps divided by what vanishes": 59,
    "offer of any round": 10,
}
FOUND = (  # these seeds broke a promise once
    # An offer that came between a leg and its first round was taken for one of the previous leg.
    290,
    1755,  # two workers that always asked each other at the same time swapped models for ever
    59,  # a worker that gets no messages any more divided its steps by a weight that went to zero
    3401272,  # so did the last worker left, since a single worker counts as connected
)

# These broke a promise once. They are kept as plans, because a seed gives another plan as soon as
# the drawing changes.
PLANS = {
    35000713: "who was dealt little seemed slow, for the rounds that it took part in after its slots: so it was dealt little for ever",
    87003969: "the check: one that slept moved towards one that had died meanwhile, and counted that as lost at once",
}

SCRIPT = """
import json
from shoal.simulation.gossip_scenario import GOSSIP
print(json.dumps([(one.digest, one.events, one.seconds) for one in map(GOSSIP.simulate, range(30))]))
"""


@pytest.mark.timeout(3_600)
@by_tier(FIRST, SEEDS, SOAK)
def test_no_weight_is_lost_or_doubled_unseen_and_every_leg_ends(seeds: range, seldom: tuple[str, ...] | None) -> None:
    check(seeds, "gossip", seldom)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_broken_once_holds(seed: int) -> None:
    assert GOSSIP.simulate(seed).violations == []


@pytest.mark.parametrize("seed", PLANS)
def test_a_plan_that_broke_a_promise_keeps_all_of_them(seed: int) -> None:
    file = Path(__file__).parent / "plans" / "gossip" / f"{seed}.txt"
    assert GossipScenario(GossipPlan.read(file.read_text())).verdict().violations == []


@pytest.mark.variants(
    slow=[
        "met applied twice",
        "share kept and given",
        "nobody asks again",
        "loss told only once",
        "leg told again with other weights",
        "shown before all are done",
        "steps divided by what vanishes",
    ]
)
@pytest.mark.parametrize("name", GOSSIP.mutants)
def test_a_mutant_is_caught(name: str) -> None:
    check_caught(name, GOSSIP.mutated(name), GOSSIP.simulate, CATCHES, within=600, never="raised")


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "4242")
    ]
    first, second = (json.loads(run.communicate(timeout=200)[0]) for run in runs)
    assert len({digest for digest, *_ in first}) == 30, "different seeds are different runs"
    assert first == second


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_on_a_disconnected_graph_each_piece_comes_to_a_mean_of_its_own(mode: Literal["sync", "async"]) -> None:
    plan = GossipPlan(seed=3, mode=mode, nodes=6, legs=1, rounds=60, learns=False, faults=(Fault("loss", rate=0.05),))
    run = GossipScenario(plan, graph=Graph("two rings", 6, [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)]))
    starts = np.stack([model.weights for model in run.models.values()])
    assert run.verdict().violations == []
    ends = np.stack([model.weights for model in run.models.values()])
    for piece in (slice(0, 3), slice(3, 6)):
        assert np.allclose(ends[piece], starts[piece].mean(0), atol=1e-4)
    assert np.abs(ends[0] - ends[3]).max() > 0.1, "they never agree"


@pytest.mark.slow
def test_the_command_runs_seeds_of_gossip_and_shows_a_mutant_caught() -> None:
    result = CliRunner().invoke(main, ["simulate", "--of", "gossip", "--seeds", "20", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "every promise held in all of them" in result.output
    broken = CliRunner().invoke(
        main, ["simulate", "--of", "gossip", "--seeds", "20", "--jobs", "1", "--mutant", "meet answered twice"]
    )
    assert broken.exit_code == 1
    assert "shoal simulate --of gossip --seed" in broken.output
    traced = CliRunner().invoke(main, ["simulate", "--of", "gossip", "--seed", "4", "--trace"])
    assert " -> worker-0 " in traced.output
    shrunk = CliRunner().invoke(main, ["simulate", "--of", "gossip", "--seed", "4", "--shrink"])
    assert "nothing to shrink" in shrunk.output
    refused = CliRunner().invoke(main, ["simulate", "--of", "gossip", "--seed", "4", "--history", "here"])
    assert refused.exit_code == 2
    assert "use --seed with --trace" in refused.output

"""Peers without a server join, leave, die or are cut off, and agree in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.simulation.peers_scenario import PEERS, CountingLearner, PeersPlan, PeersScenario
from shoal.strategies.peers.mesh import Mesh
from shoal.wire.messages import peers as p
from tests.harness.seeds import by_tier, check, check_caught

FIRST, SEEDS, SOAK = 60, 160, 2_000  # `make soak` runs thousands of new seeds

# Each of these seeds broke a promise once.
BROKE = (
    9,  # early messages of a dead peer were delivered though no peer knew of them
    12,  # no peer connected the two halves any more
    22,  # a leaving peer that was the first of two removed the other one
    67,  # all peers that knew both halves had died
    122,  # two halves never called each other
    123,  # a leaving peer took the only one left for silent, and left
    130,  # a leaving peer got no message that it may leave
    221,  # owned: the copy of a joining peer lacked messages that were in flight
    1130,  # owned: it was not known what some parts of the weights contain
    1247,  # a joining peer that did not know the news removed the half that had won
    1521,  # a joining peer between two halves made both give way
    1649,  # a peer that had slept counted peers that were gone, and so outweighed the others
    1982,  # owned: the parts of peers that were cut off had no owner
    100_463,  # a joining peer waited for ever for one that had given way
    100_483,  # the message that all was learned arrived, but not what was learned
    200_743,  # a peer that had slept gave way to one that was dead by then
    132_000_468,  # a leaving peer waited for ever for one that had died
)

# These broke a promise, too. They are kept as shortened plans, because a seed gives another plan
# as soon as the drawing changes.
PLANS = {
    34001780: "one that slept, with the only model, gave way to a newcomer that had none",
    34002730: "two copies of different moments, and all who had the words between them died",
    34004457: "the last of one half took its model along, and the other half had just given way to it",
    34004757: "the same, with a newcomer more",
    51000128: "nobody called the other half any more: the one that had refused it was gone",
    64000024: "owned: what an owner told was heard, and not what was learned, and all died who had heard that",
    93001934: "the check: a founder that died before the other one had ever heard it is waited for as one that starts late",
    103003275: "owned: a newcomer took the lead before the one that led knew of it, and both named owners by the same number",
    103004470: "one that had slept left before the half that had gone on without it could call it, and nobody else knew of both",
}

# A seed that catches each mutant, so that few seeds run. If plans are drawn differently one day,
# other seeds are tried.
CATCHES = {
    "early words of the dead": 145,
    "halves that never call": 12,
    "no half gives way": 12,
    "copied before entered": 7,
    "nothing handed on": 31,
    "closed at once": 31,
    "taken from the dead": 25,
}


@pytest.mark.timeout(3_600)
@by_tier(FIRST, SEEDS, SOAK)
def test_all_that_live_have_the_same_weights_and_nothing_twice(seeds: range, seldom: tuple[str, ...] | None) -> None:
    check(seeds, "peers", seldom)


@pytest.mark.variants(
    slow=["130", "221", "1130", "1247", "1521", "1649", "1982", "100463", "100483", "200743", "132000468"]
)
@pytest.mark.parametrize("seed", BROKE)
def test_what_was_broken_once_holds(seed: int) -> None:
    assert PEERS.simulate(seed).violations == []


def kept(seed: int) -> PeersPlan:
    file = Path(__file__).parent / "plans" / "peers" / f"{seed}.json"
    return msgspec.json.decode(file.read_bytes(), type=PeersPlan)


@pytest.mark.parametrize("seed", PLANS)
def test_a_plan_that_broke_a_promise_keeps_all_of_them(seed: int) -> None:
    plan = kept(seed)
    assert plan.faults, "a plan in which nothing goes wrong shows nothing"
    assert PeersScenario(plan).verdict().violations == []


def test_a_founder_that_nobody_heard_is_waited_for_and_not_for_good() -> None:
    with mock.patch.object(Mesh, "mark_gone", lambda self, now, life, why: []):
        verdict = PeersScenario(kept(93001934)).verdict()
    assert verdict.violations[0].rule == "live"


def test_what_is_in_some_parts_of_the_weights_hides_nothing_else() -> None:
    run = PeersScenario(PeersPlan(seed=1, founders=1, lasts=1_000, told=True, send="owned", slots=30))
    assert run.verdict().violations == []
    learner = run.peers["worker-0.1"]
    assert isinstance(learner, CountingLearner)
    book, replica = learner.node.log, learner.replica
    # A peer that died had learned two slots again, and only the owner of the first part has
    # reported it.
    learner.mesh.gone["ann"] = "killed"
    book.open["ann"] = [p.Learned([(3, 5)], 2, 0.0, part=1)]
    book.included[0]["ann"] = 1
    assert learner.errors() == ["slots [3, 4] are counted, but not in the weights"]
    replica.add(np.array([3, 4], np.uint64), np.ones(2, np.float32))
    assert learner.errors() == []
    # The extra weights are fewer than those of two whole slots, but they are of another slot.
    replica.add(np.array([7], np.uint64), np.ones(1, np.float32))
    assert learner.errors() == ["0.333333 extra slots are in the weights, expected 0: [7]"]


def test_there_are_the_mutants_that_were_asked_for() -> None:
    assert set(PEERS.mutants) >= {
        "words heard again",
        "nothing handed on",
        "copied before entered",
        "nothing kept for newcomers",
        "version off by one",
        "taken from the dead",
        "closed at once",
    }


@pytest.mark.variants(
    slow=[
        "words heard again",
        "copied before entered",
        "early words of the dead",
        "halves that never call",
        "no half gives way",
        "taken from the dead",
        "closed at once",
        "adopted at once",
    ]
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PEERS.mutants)
def test_a_broken_variant_is_caught(name: str) -> None:
    check_caught(name, PEERS.mutated(name), PEERS.simulate, CATCHES, within=400)


SCRIPT = """
import json
from shoal.simulation.peers_scenario import PEERS
print(json.dumps([PEERS.simulate(seed).digest for seed in range(12)]))
"""


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_under_different_hash_seeds() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "4242")
    ]
    first, second = (json.loads(run.communicate(timeout=200)[0]) for run in runs)
    assert len(set(first)) == 12, "different seeds are different runs"
    assert first == second


def test_the_command_runs_seeds_of_peers_and_lists_their_mutants() -> None:
    result = CliRunner().invoke(main, ["simulate", "--of", "peers", "--seeds", "5", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "5 schedules" in result.output
    assert "every promise held" in result.output
    one = CliRunner().invoke(main, ["simulate", "--of", "peers", "--seed", "9", "--trace"])
    assert one.exit_code == 0, one.output
    assert "beat" in one.output
    listed = CliRunner().invoke(main, ["simulate", "--of", "peers", "--mutant", "list"])
    assert "nothing handed on" in listed.output

"""The simulator trains with the trainers, evaluator, strategies and schedulers that ship."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.events import RolledBack, Saved, Stopped
from shoal.limits import SECOND
from shoal.schedule.slot_queue import SlotQueue
from shoal.simulation.faults import FaultPlan
from shoal.simulation.reference import FIRST as FIRST_HAND
from shoal.simulation.reference import BlocksBegun, BlockTurn, serial, weights_by_iteration
from shoal.simulation.training_plan import GROUP, STEP, TrainingPlan, draw
from shoal.simulation.training_scenario import TRAINING, TrainingChecker, TrainingScenario, _lost
from shoal.simulation.training_world import PartsWatch, TrainingWorld, data_of, paced
from shoal.strategies.block_proximal.algorithm import BlockProximal, HeldPart
from shoal.tables import TABLE, TALLY
from tests.harness.seeds import by_tier, check, check_caught

STRATEGIES: dict[str, dict[str, Any]] = {
    "sync": {"slots_per_step": 3},
    "bounded": {"max_delay": 1},
    "async": {},
    "block-proximal": {"parts": 3, "blocks": 4},
}


def trained(plan: TrainingPlan) -> tuple[TrainingWorld, Any, Any]:
    """A finished run, its weights and its tally."""
    run = TrainingWorld(plan)
    with paced(plan):
        assert run.set_up()
        assert run.until(lambda: run.over, 60 * SECOND)
        weights, tally = run.pull(TABLE), run.pull(TALLY)
    run.close()
    return run, weights, tally


@pytest.mark.parametrize("group", ["", GROUP])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_with_nothing_in_its_way_counts_every_slot_once(strategy: Any, group: str) -> None:
    in_steps = strategy in ("sync", "block-proximal")
    plan = TrainingPlan(
        seed=3, strategy=strategy, kind="step" if in_steps else "each", settings=STRATEGIES[strategy], servers=2, copies=2,
        workers=3, slots_per_pass=12, stop={"epochs": 2}, think=100, group=group,
    )  # fmt: skip
    run, weights, tally = trained(plan)
    assert [one.why for one in run.events if isinstance(one, Stopped)] == ["2 epochs done"] and not run.broken
    assert tally[:24].tolist() == [1] * 24 and not tally[24:].any()
    if in_steps:
        np.testing.assert_array_equal(weights, serial(plan.job, run.dataset))
    else:
        assert (weights / STEP).tolist() == [2] * 12


def test_a_slot_that_is_counted_must_be_in_the_model_and_one_that_is_not_may_be_in_the_tally_alone() -> None:
    plan = TrainingPlan(
        seed=3, strategy="bounded", kind="each", settings={"max_delay": 1}, servers=2, workers=2, slots_per_pass=4,
        stop={"epochs": 1}, think=100,
    )  # fmt: skip
    run, weights, tally = trained(plan)
    assert run.dealt == {0, 1, 2, 3}
    key = run.scheduler.workload.order.content(0, 3)

    def wrong(by: int, is_counted: bool, restarted: bool) -> list[str]:
        """What the checker says if slot 3 is in the model once, plus ``by`` times."""
        work = run.scheduler.workload
        mine, found = (replaced(work) if not is_counted else work), weights.copy()
        found[key] += by * STEP
        checker = TrainingChecker(run, found, tally, resumed=False)
        checker.work, run.scheduler._resumed = mine, restarted
        return [one.what for one in checker._counted_in_weights(found)]

    def replaced(work: SlotQueue) -> SlotQueue:
        without = SlotQueue(work.order, 3, work.step)
        without.resume([0, 1, 2], None, {}, {})
        return without

    assert wrong(-1, is_counted=True, restarted=True) == ["1 weights differ from the counted slots: 0, expected 1"]
    assert wrong(+1, is_counted=True, restarted=True) == ["1 weights differ from the counted slots: 2, expected 1"]
    assert wrong(0, is_counted=True, restarted=False) == []
    # Its worker died when one push of two was counted. The scheduler had died before, and the next
    # one knows nothing of the slot.
    assert wrong(-1, is_counted=False, restarted=True) == []
    assert wrong(0, is_counted=False, restarted=True) == []
    assert wrong(+1, is_counted=False, restarted=True) == ["1 weights differ from the counted slots: 2, expected 0"]
    assert wrong(0, is_counted=False, restarted=False) == ["1 weights differ from the counted slots: 1, expected 0"]


def test_a_checkpoint_that_was_told_of_must_be_there_after_a_crash() -> None:
    run = TrainingWorld(TrainingPlan(seed=3, checkpoint=100, stop={"epochs": 1}))
    assert _lost(run, None) == []  # no checkpoint was reported
    run.events.append(Saved(seconds=1.0, number=2, steps=3, bytes=1, took=0.1))
    assert [one.rule for one in _lost(run, None)] == ["I9 durable"]
    run.events.append(
        RolledBack(seconds=2.0, checkpoint=None, steps_before=3, steps_after=0, slots=[], why="all copies are lost")
    )
    assert _lost(run, None) == []  # it had rolled back to the beginning
    run.events.append(Saved(seconds=3.0, number=3, steps=3, bytes=1, took=0.1))
    run.cluster.damaged.add(3)
    assert _lost(run, None) == []
    run.close()


# A part begins again after a restart.
PARTS = Path(__file__).parent / "plans" / "training" / "102001209-shrunk.txt"


def test_a_part_that_begins_anew_with_other_weights_is_caught() -> None:
    """The weights differ a little: their objective is nearly the same."""
    plan, begin = TrainingPlan.read(PARTS.read_text()), BlockProximal._begin
    assert isinstance(plan, TrainingPlan)

    async def astray(self: BlockProximal, lane: Any, slot: Any, part: Any) -> HeldPart | None:
        held = await begin(self, lane, slot, part)
        if held is not None:
            held.margins.refresh(held.margins.all_weights * np.float32(1.0001))
        return held

    with mock.patch.object(BlockProximal, "_begin", astray):
        assert [one.rule for one in TrainingScenario(plan).verdict().violations] == ["P3 same bits"]


def test_a_slot_that_several_pushed_is_of_one_of_them_or_in_some_segments_of_one_and_in_some_of_another() -> None:
    watch, anew = PartsWatch(), BlocksBegun(1, 1)
    for turn, began in ((BlockTurn(0, 0), FIRST_HAND), (BlockTurn(1, 0), FIRST_HAND), (BlockTurn(1, 0), anew)):
        watch._note(turn, (0, 0), began)
    ways = [holders[BlockTurn(1, 0)] for holders in watch.holders(segments=2)]
    assert ways[:2] == [(FIRST_HAND,) * 2, (anew,) * 2]
    assert set(ways[2:]) == {(one, two) for one in (FIRST_HAND, anew) for two in (FIRST_HAND, anew)}
    watch._note(BlockTurn(1, 0), (0, 1), anew)  # the run rolled back and did it again
    # A push from before the rollback comes too late.
    watch._note(BlockTurn(1, 0), (0, 0), FIRST_HAND)
    assert [holders[BlockTurn(1, 0)] for holders in watch.holders(segments=2)] == [(anew,) * 2]

    plan = TrainingPlan(
        seed=3, strategy="block-proximal", kind="step", settings={"parts": 2, "blocks": 4, "max_delay": 0},
        slots_per_pass=8, batch=16, features=9, stop={"steps": 8},
    )  # fmt: skip
    data, turn = data_of(plan), BlockTurn(6, 1)
    one, two, both = (
        next(islice(weights_by_iteration(plan.job, data, {turn: whose}, (0, 5)), 7, None))
        for whose in ((FIRST_HAND,) * 2, (BlocksBegun(6, 6),) * 2, (FIRST_HAND, BlocksBegun(6, 6)))
    )
    assert (one != two)[:5].any() and (one != two)[5:].any()
    np.testing.assert_array_equal(both, np.concatenate([one[:5], two[5:]]))


FIRST, SEEDS, SOAK = 24, 144, 3_000  # `make soak` runs thousands of new seeds
CATCHES = {
    "worker ends when a disk is full": 1164,
    "auto delay past its bound": 484,
    "delay shrinks while they wait": 470,
    "run ends with slots that nobody asked about": 445,
    "void slot not pushed": 86,
    "time counts before the first weights are read": 84,
    "target loss not looked at again": 48,
    "patience off by one": 44,
    "checkpoint says what is counted now": 39,
    "delay off by one": 36,
    "slot reported before it is counted": 33,
    "scheduler forgets its journal": 29,
    "what is given back is lost": 25,
    "slots of the dead not dealt again": 20,
    "second copy counted twice": 7,
    "rollback keeps what was counted": 7,
    "fenced trainer keeps its slots": 7,
    "manifest before data": 6,
    "no directory sync": 6,
    "ledger not in checkpoint": 6,
    "resume deals counted slots again": 6,
    "resume skips slots": 6,
}
SELDOM = ("rare: ", "disk: ", "fault: ", "run: ", "stopped: ", "void", "delays", "schedulers", "client: ", "network: ")

SCRIPT = """
import json
from shoal.simulation.training_scenario import TRAINING
print(json.dumps([(one.digest, one.events, one.seconds) for one in map(TRAINING.simulate, range(12))]))
"""


@pytest.mark.timeout(3_600)
@by_tier(FIRST, SEEDS, SOAK, seldom=SELDOM)
def test_every_slot_counts_once_and_sync_is_the_same_bit_for_bit(seeds: range, seldom: tuple[str, ...] | None) -> None:
    check(seeds, "training", seldom)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING.mutants)
@pytest.mark.timeout(1_200)
def test_a_mutant_of_what_trains_is_caught(name: str) -> None:
    check_caught(name, TRAINING.mutated(name), TRAINING.simulate, CATCHES, within=300)


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "4242")
    ]
    first, second = (json.loads(run.communicate(timeout=200)[0]) for run in runs)
    assert len({tuple(one) for one in first}) == 12, "different seeds are different runs"
    assert first == second


def test_a_plan_is_read_back_as_it_prints_itself() -> None:
    for seed in range(50):
        plan = draw(seed)
        assert FaultPlan.read(repr(plan)) == plan


def test_the_command_runs_one_seed_of_training() -> None:
    result = CliRunner().invoke(main, ["simulate", "--of", "training", "--seed", "3", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["plan"].startswith("TrainingPlan(seed=3")

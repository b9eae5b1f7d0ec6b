"""A whole block-proximal run in one thread has the same result in any order of messages.

Workers join and leave during it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.datasets import Dataset, load
from shoal.data.packed import sparse
from shoal.errors import Invalid
from shoal.events import Evaluated, Gone, Stopped
from shoal.job import Job
from shoal.models.learner import objective_at
from shoal.models.linear import Linear
from shoal.settings_tree import changed
from shoal.simulation.reference import serial
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.tables import Update
from tests.support.one_thread_run import JOB, Ship

BLOCKS: dict[str, Any] = {
    "strategy": "block-proximal", "strategy.blocks": 6, "strategy.recheck": 2, "update.l1": 0.3, "stop.epochs": 8,
    "evaluate.every": 1.0,
}  # fmt: skip
NEAR = 1e-4  # relative to the objective, when it is solved
ABOUT = 0.03  # before it is solved


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    job = Job.of(JOB)
    return load(job.data, job.seed, cache=tmp_path_factory.mktemp("data"))


def ship_of(rows: Dataset, seed: int = 0, **settings: Any) -> Ship:
    blocks = {name.replace(".", "__"): value for name, value in BLOCKS.items()}
    return Ship(rows, seed=seed, **{**blocks, **settings})


def job_of(**settings: Any) -> Job:
    return Job.of(changed(JOB, {**BLOCKS, **{name.replace("__", "."): value for name, value in settings.items()}}))


def objective(weights: npt.NDArray[np.float32], rows: Dataset, l1: float = BLOCKS["update.l1"]) -> float:
    return objective_at(sparse(rows.train), Linear(), weights, l1)["objective"]


# ---------------------------------------------------------------- the same run with any workers


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize(("workers", "servers", "by"), [(1, 1, "count"), (3, 2, "count"), (4, 3, "range")])
def test_the_weights_are_those_of_the_serial_run_bit_for_bit(
    rows: Dataset, delay: int, workers: int, servers: int, by: str
) -> None:
    settings = {"strategy__max_delay": delay, "workers": workers, "servers": servers, "strategy__by": by}
    ship = ship_of(rows, seed=workers, **settings).home()
    np.testing.assert_array_equal(ship.weights, serial(ship.job, rows))
    assert (ship.slots_done(), ship.scheduler.examples) == (8 * 6 * 4, 8 * 400)


def test_a_sparse_table_gives_the_same_bits(rows: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = serial(job_of(), rows)
    monkeypatch.setattr("shoal.nodes.server_strategy._DENSE_ROWS", 0)
    ship = ship_of(rows, workers=2).home()
    np.testing.assert_array_equal(ship.weights, expected)
    assert np.array_equal(np.signbit(ship.weights), np.signbit(expected))


def test_squared_losses_are_solved_too(rows: Dataset) -> None:
    ship = ship_of(rows, workers=2, model="squared").home()
    np.testing.assert_array_equal(ship.weights, serial(ship.job, rows))
    found = [event.metrics["mse"] or 0.0 for event in ship.all(Evaluated)]
    assert found[-1] < 0.9 * found[0]


def test_with_the_filter_and_without_it_the_solution_is_the_same(rows: Dataset) -> None:
    settings = {"stop__epochs": 150, "update__l1": 1.0}
    plain, *filtered = (serial(job_of(strategy__kkt=kkt, **settings), rows) for kkt in ("off", "nips", "osdi"))
    assert not np.signbit(plain[plain == 0]).any()
    for weights in filtered:
        assert np.signbit(weights[weights == 0]).mean() > 0.5
        assert objective(weights, rows, 1.0) == pytest.approx(objective(plain, rows, 1.0), rel=NEAR)
        assert np.count_nonzero(weights) == pytest.approx(np.count_nonzero(plain), rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on_the_same_when_its_coordinator_is_killed(rows: Dataset, seed: int) -> None:
    ship = ship_of(rows, seed=seed, workers=3, strategy__max_delay=seed % 2)
    for share in (7 + seed, 60, 130):
        ship.until(lambda share=share: ship.slots_done() >= share)  # type: ignore[misc]
        ship.restart_coordinator()
    ship.home()
    assert ship.slots_done() == 8 * 6 * 4
    assert objective(ship.weights, rows) == pytest.approx(objective(serial(ship.job, rows), rows), rel=ABOUT)


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_parts_of_workers_that_are_gone_are_taken_over(rows: Dataset, delay: int, seed: int) -> None:
    ship = ship_of(rows, seed=seed, workers=3, strategy__max_delay=delay)
    ship.until(lambda: ship.slots_done() >= 20 + 7 * seed)
    ship.kill("worker-1")
    ship.until(lambda: ship.slots_done() >= 90)
    ship.hire("worker-3")
    ship.until(lambda: ship.slots_done() >= 120 + seed)
    ship.trainers["worker-0"].leave()
    ship.until(lambda: ship.ends["worker-0"].done)
    ship.home()
    assert [event.name for event in ship.all(Gone)] == ["worker-1", "worker-0"]
    assert ship.slots_done() == 8 * 6 * 4 and not ship.scheduler.workload.voids
    # A worker that takes over a part does not know how far its margins moved last, and with a
    # delay it reads weights that may be newer than necessary: no longer the same run, but no
    # worse.
    assert objective(ship.weights, rows) == pytest.approx(objective(serial(ship.job, rows), rows), rel=ABOUT)


def test_a_part_whose_gradient_is_no_number_is_void_and_the_others_go_on(
    rows: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.strategies.block_proximal.algorithm import HeldPart

    turn = HeldPart.turn

    def spoilt(self: HeldPart, block: int, *more: Any) -> Any:
        loss, places, listed, values = turn(self, block, *more)
        return loss, places, listed, values * (np.nan if self.next == 9 and listed.last < 500 else 1.0)

    monkeypatch.setattr(HeldPart, "turn", spoilt)
    ship = ship_of(rows, workers=2).home()
    assert ship.all(Stopped)[-1].why == "8 epochs done"
    assert all(task.error is None for task in ship.ends.values())


# ---------------------------------------------------------------- jobs


def test_the_rule_and_when_it_is_solved_need_not_be_said() -> None:
    job = Job.of({"data": "rcv1", "strategy": "block-proximal"})
    assert (job.update.rule, job.update.l1, job.update.update().name) == ("block_proximal", 1.0, "block_proximal")
    assert (job.stop.objective, job.stop.violation) == (3e-6, 1.0)
    assert job.evaluate.every == 5
    assert Job.of({"data": "rcv1", "strategy": "block-proximal", "stop": {"epochs": 3}}).stop.objective is None
    late = Job.of({"data": "rcv1", "strategy": {"name": "block-proximal", "max_delay": 2}})
    assert isinstance(late.strategy, BlockProximal) and late.strategy.blocks == 3 * BlockProximal().blocks


def test_the_threshold_of_the_filter_is_a_setting_of_the_servers_rule() -> None:
    update = Update("block_proximal", {"l1": 2.0})
    for settings, threshold in (
        ({}, 1.8),
        ({"kkt_delta": 0.5}, 1.5),
        ({"kkt": "osdi", "kkt_delta": 0.5}, 0.5),
        ({"kkt": "osdi"}, 1.0),
        ({"kkt": "off"}, 0.0),
    ):
        table = BlockProximal(**settings).table(10, update, 64)  # type: ignore[arg-type]
        assert (table.pushed, table.update.settings["kkt"]) == (2, pytest.approx(threshold))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy__blocks": 0}, "strategy.blocks=0: needs 1 to"),
        ({"strategy__max_delay": 6}, "take more blocks"),
        ({"strategy__parts": 0}, "strategy.parts=0: needs 1 to"),
        ({"strategy__recheck": 0}, "strategy.recheck=0: needs 1 to"),
        ({"strategy__kkt_delta": 0.5}, r"kkt_delta=0.5, update.l1=0.3: .* needs 0 to 0.3"),
        ({"strategy__kkt_delta": -1.0}, "needs 0 or more"),
        ({"strategy__kkt_delta": 0.1, "strategy__kkt": "off"}, "needs 0 or more, and a filter"),
        ({"strategy__kkt": "none"}, "there are nips, osdi, off"),
        ({"workers": 5}, "5 workers and 4 parts of the rows.*--set strategy.parts=5"),
        ({"update__rule": "adagrad"}, "needs 'block_proximal'"),
        ({"update__rule": "block_proximl"}, "did you mean 'block_proximal'"),
        ({"update__rule": "mine"}, "launch.modules names where your own are"),
        ({"model__loss": "hinge"}, "linear models with loss logistic or squared"),
        ({"model__l2_per_count": 0.1}, "update.l2 for a penalty"),
        ({"strategy__prefetch": 2}, "has no setting 'prefetch', only sync"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        job_of(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"update.rule": "block_proximal"}, "is for strategy 'block-proximal'"),
        ({"stop.objective": 0.1}, "are for strategy 'block-proximal'"),
        ({"stop.violation": 0.1}, "take stop.target_loss or stop.patience"),
    ],
)
def test_other_strategies_refuse_what_is_only_for_this_one(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        Job.of(changed({"data": "rcv1", "strategy": "async"}, settings))


def test_a_rule_of_ones_own_needs_servers_that_import_it() -> None:
    settings = {"update.rule": "mine", "launch.modules": ["somewhere"], "update.l1": 0.5}
    job = Job.of(changed({"data": "rcv1", "strategy": "async"}, settings))
    assert job.update.update() == Update("mine", {"l1": 0.5})
    with pytest.raises(Invalid, match="your own need a strategy with servers"):
        Job.of(changed({"data": "rcv1", "strategy": "serial"}, settings))


def test_the_example_of_the_docs_gives_the_same_bits(rows: Dataset) -> None:
    """A user writes the step of examples/proximal_step.py, and uses it by its name (S1-28)."""
    path = Path(__file__).parents[4] / "examples"
    sys.path.insert(0, str(path))
    try:
        importlib.import_module("proximal_step")
        own = ship_of(rows, workers=2, update__rule="proximal_step", launch__modules=["proximal_step"]).home()
    finally:
        sys.path.remove(str(path))
    np.testing.assert_array_equal(own.weights, serial(job_of(), rows))


def test_a_network_is_refused_by_what_it_is() -> None:
    with pytest.raises(Invalid, match=r"solves linear models with loss logistic or squared, and this is a module"):
        Job.of({"data": "mnist", "strategy": "block-proximal", "model": {"net": "linear"}})

"""Trainers, servers, the evaluator and the coordinator run in one thread.

The order of messages is drawn from a seed, and nothing sleeps.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.datasets import Dataset, load
from shoal.errors import Fenced
from shoal.events import Evaluated, Gone, Started, Stopped, Voided
from shoal.job import Job
from shoal.models.learner import LinearLearner
from shoal.models.linear import Linear
from shoal.nodes.trainer import SlotStream
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stragglers import SpeculativeCopies
from shoal.wire import messages as m
from shoal.wire.effects import ProcessEnd, Tick
from tests.support.one_thread_run import JOB, Ship

STRATEGIES = ("async", "bounded", "sync")
ALL = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    job = Job.of(JOB)
    return load(job.data, job.seed, cache=tmp_path_factory.mktemp("data"))


# ---------------------------------------------------------------- a run


@ALL
def test_a_run_counts_every_slot_once_and_learns(rows: Dataset, strategy: str) -> None:
    ship = Ship(rows, strategy=strategy).home()
    assert ship.all(Stopped)[0].why == "3 epochs done"
    assert ship.slots_done() == 75 and ship.scheduler.examples == 3 * 400
    losses = [event.test_loss for event in ship.all(Evaluated)]
    assert losses[0] == pytest.approx(np.log(2)) and losses[-1] < 0.98 * losses[0]
    assert all(task.error is None for task in ship.ends.values())


def test_a_synchronous_run_is_the_same_for_any_number_of_workers_and_any_order_of_messages(rows: Dataset) -> None:
    one = Ship(rows, strategy="sync", workers=1).home()
    for seed, workers in ((1, 2), (2, 3)):
        other = Ship(rows, seed=seed, strategy="sync", workers=workers).home()
        np.testing.assert_array_equal(one.weights, other.weights)
        assert [event.test_loss for event in other.all(Evaluated)] == [event.test_loss for event in one.all(Evaluated)]


def test_a_synchronous_run_is_the_same_whoever_dies_in_it(rows: Dataset) -> None:
    calm = Ship(rows, strategy="sync", workers=1, stop__epochs=2).home()
    for seed in range(6):
        ship = Ship(rows, seed=seed, strategy="sync", workers=3, strategy__slots_per_step=4, stop__epochs=2)
        ship.until(lambda ship=ship: ship.slots_done() >= 5)  # type: ignore[misc]
        ship.kill("worker-1")
        ship.until(lambda ship=ship: ship.slots_done() >= 10 + ship.job.seed)  # type: ignore[misc]
        ship.kill("worker-2")  # it also loses slots that were dealt to it again
        ship.home()
        assert ship.slots_done() == 50
        assert len(ship.all(Gone)) == 2
    assert calm.slots_done() == 50


class Generous(SpeculativeCopies):
    """Lends every worker what others hold of the oldest step, which may be pushed now."""

    def choose(self, now: int, worker: int, work: SlotQueue) -> list[int]:
        held = {slot for other in work._names if other != worker for slot in work.held(other)}
        late = {slot for slot in held - set(work.held(worker)) if work.step_of(slot) <= work.steps}
        found = sorted(late - set(self._copied))
        self._copied.update(dict.fromkeys(found, worker))
        work.lend(worker, found)
        return found


@pytest.mark.variants(slow=["True"])
@pytest.mark.parametrize("dies", [False, True])
def test_second_copies_change_nothing_also_where_one_server_is_ahead(rows: Dataset, dies: bool) -> None:
    """A copy may find its step taken by one server and not by the other.

    It then leaves the slot to the worker that pushed it to the first server.
    """
    settings: dict[str, Any] = {"strategy": "sync", "strategy__slots_per_step": 4, "stop__epochs": 2}
    calm, left = Ship(rows, workers=1, **settings).home(), 0
    for seed in range(4):
        ship = Ship(rows, seed=seed, workers=3, strategy__second_copies=True, **settings)
        ship.scheduler.speculative = Generous()
        ship.drop = partial(lost_on_the_way_to_one_server, ship)
        if dies:
            ship.until(lambda ship=ship: ship.slots_done() >= 9)  # type: ignore[misc]
            ship.kill("worker-1")
        ship.home()
        left += sum(len(trainer._returned) for trainer in ship.trainers.values())
        assert ship.slots_done() == 50 and ship.scheduler.examples == 2 * 400
        newer = ship.scheduler.counts["slots with newer weights"]
        assert dies or not newer
        if not newer:
            np.testing.assert_array_equal(ship.weights, calm.weights)
    assert left > 0


def test_a_slot_that_read_newer_weights_is_admitted_before_it_goes_on(rows: Dataset) -> None:
    ship = Ship(rows, strategy="sync", workers=1)
    ship.until(lambda: ship.slots_done() >= 2)
    lane = ship.trainers["worker-0"]._stream
    admitted = lane.report_newer()
    assert not admitted.done
    ship.until(lambda: admitted.done)
    assert admitted.error is None and ship.scheduler.counts["slots with newer weights"] == 1
    again = lane.report_newer()
    lane.close(Fenced("worker-0", 1))  # the report is not sent in the name of the next incarnation
    assert again.error is not None and lane.report_newer().error is not None


def lost_on_the_way_to_one_server(ship: Ship, sender: str, to: str, message: m.Message) -> bool:
    return isinstance(message, m.Push) and to == "server-1" and ship.draw.random() < 0.08


def test_slots_that_come_again_in_several_deals_do_not_wait_for_each_other(rows: Dataset) -> None:
    """A deal of earlier steps may arrive while a deal of later steps is under way.

    So each deal has a lane of its own.
    """
    for seed in range(8):
        ship = Ship(rows, seed=seed, strategy="sync", workers=4, strategy__slots_per_step=2, stop__epochs=2)
        for number, lost in enumerate(("worker-1", "worker-2", "worker-3")):
            ship.until(lambda ship=ship, number=number: ship.slots_done() >= 4 * (number + 1))  # type: ignore[misc]
            ship.kill(lost)
        ship.home()
        assert ship.slots_done() == 50 and ship.all(Stopped)[0].why == "2 epochs done"


@ALL
def test_who_joins_late_takes_part_and_who_dies_is_replaced(rows: Dataset, strategy: str) -> None:
    ship = Ship(rows, strategy=strategy, workers=2)
    ship.until(lambda: ship.slots_done() >= 10)
    ship.kill("worker-0")
    late = ship.hire("worker-9")
    ship.home()
    assert ship.slots_done() == 75 and late._done > 0


# ---------------------------------------------------------------- leaving and new incarnations


@ALL
def test_who_is_asked_to_leave_finishes_what_it_began_and_gives_back_the_rest(rows: Dataset, strategy: str) -> None:
    ship = Ship(rows, strategy=strategy, workers=2)
    ship.until(lambda: ship.slots_done() >= 10)
    leaver = ship.trainers["worker-0"]
    leaver.leave()
    ship.until(lambda: ship.ends["worker-0"].done)
    assert ship.ends["worker-0"].error is None
    incarnation = leaver.worker.client.session.incarnation
    assert ship.scheduler.workload.has(incarnation) == 0  # all slots were counted or given back
    ship.home()
    assert ship.slots_done() == 75
    assert ship.scheduler.counts["workers lost"] == 0
    # Slots that it gave back it did not compute.
    assert sum(trainer._done for trainer in ship.trainers.values()) == 75


@ALL
def test_a_worker_that_was_declared_dead_starts_afresh_and_counts_nothing_twice(rows: Dataset, strategy: str) -> None:
    for seed in range(4):
        ship = Ship(rows, seed=seed, strategy=strategy, workers=2)
        ship.until(lambda ship=ship: ship.slots_done() >= 10)  # type: ignore[misc]
        trainer = ship.trainers["worker-0"]
        before = trainer.worker.client.session.incarnation
        ship.feed("coordinator", ProcessEnd("worker-0", "it looked dead"))
        ship.home()
        assert trainer.worker.client.session.incarnation > before
        assert ship.slots_done() == 75
        assert ship.scheduler.examples <= 3 * 400
        assert all(task.error is None for task in ship.ends.values())


def test_a_lane_of_a_former_life_pushes_nothing_in_the_name_of_the_next(rows: Dataset) -> None:
    ship = Ship(rows, strategy="sync")
    trainer = ship.trainers["worker-0"]
    lane, waits = SlotStream(trainer, [3, 4]), SlotStream(trainer)
    task = waits.more()
    for one in (lane, waits):
        trainer._run(one)
    assert trainer.worker.on_fenced is not None
    trainer.worker.on_fenced()
    ship.feed("worker-0", Tick())
    assert [type(run.error) for run in trainer._streams.values()] == [Fenced, Fenced]
    for call in (lane.next, lambda: lane.client, task.result, lane.more().result):
        with pytest.raises(Fenced):
            call()


def test_a_lane_that_is_given_slots_ends_with_them_and_another_with_the_run(rows: Dataset) -> None:
    trainer = Ship(rows, strategy="sync").trainers["worker-0"]
    given, other = SlotStream(trainer, [3, 29]), SlotStream(trainer)
    assert not given.over and not other.over
    assert [given.next(), given.next(), given.next()] == [(0, 3), (1, 4), None]
    assert given.over and not other.over
    other.queue.append(5)
    trainer.over = True
    assert not other.over  # slots that were dealt are computed
    assert other.more().done
    other.next()
    assert other.over and other.more().done


def test_answers_that_are_lost_delay_a_run_and_change_nothing(rows: Dataset) -> None:
    ship = Ship(rows, seed=5, strategy="async")
    lost = {m.Deal: 0, m.EvaluateNow: 0, m.Want: 0}

    def drop(sender: str, to: str, message: m.Message) -> bool:
        kind = type(message)
        if kind not in lost or lost[kind] >= 6 or ship.draw.random() < 0.7:
            return False
        lost[kind] += 1
        return True

    ship.drop = drop
    ship.home()
    assert min(lost.values()) >= 1  # the fault did happen
    assert ship.slots_done() == 75 and ship.scheduler.examples == 1_200


# ---------------------------------------------------------------- rows


def test_rows_that_a_worker_had_are_kept_up_to_a_bound(rows: Dataset) -> None:
    free = Ship(rows, strategy="async", workers=1).trainers["worker-0"]
    first = free.batches.local((0, 0))
    assert free.batches.local((0, 0)) is first
    same = next(number for number in range(25) if free.slots.content(1, number) == free.slots.content(0, 0))
    assert free.batches.local((1, same)) is first  # the same group of rows in the next pass
    tight = Ship(rows, strategy="async", workers=1, cache=0).trainers["worker-0"]
    assert tight.batches.local((0, 0)) is not tight.batches.local((0, 0))
    assert tight.batches.local((0, 0)).keys.tolist() == first.keys.tolist()


def test_penalties_per_count_are_those_of_the_whole_set(rows: Dataset) -> None:
    ship = Ship(rows, strategy="async", workers=1, model__l2_per_count=0.5)
    trainer = ship.trainers["worker-0"]
    local = trainer.batches.local((0, 0))
    weights = np.ones(len(local.keys), np.float32)
    _, gradient = trainer.learner.gradient(local, weights, False)
    counts = np.append(rows.train.counts[local.keys[:-1]], 1).astype(np.float32)
    _, expected = ship.job.model.gradient(local, weights, False, counts)
    np.testing.assert_array_equal(gradient, expected)
    assert ship.home().slots_done() == 75


# ---------------------------------------------------------------- what cannot be pushed


class Poisoned(LinearLearner):
    """A learner whose gradient is not a number for one slot."""

    def __init__(self, model: Linear, train: Any, bad: list[int]) -> None:
        super().__init__(model, train)
        self._bad = bad

    def gradient(self, local: Any, weights: Any, mean: bool) -> tuple[float, Any]:
        loss, values = super().gradient(local, weights, mean)
        return loss, values * np.float32("nan") if local.keys.tolist() == self._bad else values


@ALL
def test_gradients_that_are_no_numbers_become_void_slots_and_the_run_ends_well(rows: Dataset, strategy: str) -> None:
    ship = Ship(rows, strategy=strategy, workers=2, model="squared", stop__epochs=1)
    ship.until(lambda: bool(ship.all(Started)))
    for trainer in ship.trainers.values():
        trainer.learner = Poisoned(trainer.learner.model, rows.train, trainer.batches.local((0, 3)).keys.tolist())
    ship.home()
    assert [event.slot for event in ship.all(Voided)] == [(0, 3)]
    assert ship.slots_done() == 25 and ship.all(Stopped)[0].why == "1 epoch done"
    assert ship.scheduler.examples == 400 - 16


# ---------------------------------------------------------------- the evaluator


def test_the_best_weights_are_kept_as_they_were_judged(rows: Dataset) -> None:
    ship = Ship(rows, strategy="sync", workers=2, stop__patience=2, stop__epochs=60, update="sgd", update__step=3.0)
    ship.home()
    best, last = ship.evaluator.best, ship.evaluator.last
    assert best is not None and last is not None
    events = ship.all(Evaluated)
    assert best.loss == min(event.test_loss for event in events)
    assert last.loss == events[-1].test_loss
    assert ship.job.model.evaluate(rows.test, best.weights)[0] == best.loss


def test_an_evaluator_that_cannot_judge_says_so_and_the_run_fails(rows: Dataset, tmp_path: Path) -> None:
    ship = Ship(rows, strategy="async")
    ship.evaluator._rows += 1  # it asks for one weight too many
    ship.until(lambda: bool(ship.all(Stopped)))
    assert "the model cannot be evaluated" in ship.all(Stopped)[0].why
    ship.until(lambda: ship.ends["evaluator"].done)
    assert ship.ends["evaluator"].error is not None

"""The scheduler's state survives a coordinator restart (F14) and a rollback (F8).

A new run also continues it from a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.data.datasets import Dataset, load
from shoal.events import Evaluated, Gone, RolledBack, Started, Stopped, Voided, Warned
from shoal.job import Job
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.evaluator import EvaluatedModel
from shoal.nodes.membership_journal import split
from shoal.nodes.scheduler import (
    Scheduler,
)
from shoal.nodes.scheduler_journal import (
    JournalMark,
    JournalSnapshot,
    ScheduleState,
    counted_everywhere,
    replayed,
    to_begin_with,
)
from shoal.schedule.intervals import Intervals, runs, spread
from shoal.schedule.stop_rules import StopRules
from shoal.schedule.stragglers import SpeculativeCopies
from shoal.wire import messages as m
from shoal.wire.effects import Persist, ProcessEnd, Send
from tests.support.fake_run import PER_PASS, Desk, scheduler
from tests.support.one_thread_run import JOB, Ship

BOTH = pytest.mark.parametrize("slots", [0, 3], ids=["each", "step"])
STRATEGIES = pytest.mark.parametrize("strategy", ["sync", "bounded", "async"])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    job = Job.of(JOB)
    return load(job.data, job.seed, cache=tmp_path_factory.mktemp("data"))


def next_life(desk: Desk, workers: Sequence[int] = (), **made: Any) -> Desk:
    """Restart the coordinator, which then waits for these workers.

    All workers keep the slots that they hold.
    """
    again = scheduler(**made)
    again.resume(split(desk.journal)[1], workers)
    return Desk(again, desk.now + 5 * SECOND, journal=list(desk.journal), hands=desk.hands, requests=desk.requests)


def new_run(state: ScheduleState, counted: list[tuple[int, int]] | None = None, **made: Any) -> Desk:
    """Start everything again from a checkpoint, with all workers present."""
    again = scheduler(**made)
    state = msgspec.json.decode(msgspec.json.encode(state), type=ScheduleState)
    again.resume([JournalSnapshot(to_begin_with(state, counted))])
    desk = Desk(again)
    desk.want(1)
    desk.want(2)
    return desk


# ---------------------------------------------------------------- the coordinator is restarted


@BOTH
def test_a_run_goes_on_where_its_coordinator_was_started_again(slots: int) -> None:
    made: dict[str, Any] = {"rules": StopRules(epochs=4), "slots": slots, "every": 0.5}
    desk = Desk(scheduler(**made)).begin()
    for _ in range(5):
        desk.now += SECOND
        for who in (1, 2):
            desk.work(who)
        desk.evaluate(0.6)
    former, told = desk.scheduler, len(desk.all(Evaluated))
    again = next_life(desk, **made)
    assert not again.all(Started)
    assert again.scheduler.workload.barrier == former.workload.barrier
    # As last journalled; downtime does not count.
    assert again.scheduler.seconds == pytest.approx(former.seconds, abs=1.1)
    again.run(loss=0.5)
    assert again.why == "4 epochs done"
    assert again.scheduler.workload.done == again.scheduler.workload.limit
    numbers = [event.number for event in (*desk.all(Evaluated), *again.all(Evaluated))]
    # None is evaluated twice, none is left out.
    assert numbers == list(range(len(numbers))) and told > 1


@BOTH
def test_what_workers_did_for_the_former_life_counts_in_the_next(slots: int) -> None:
    made: dict[str, Any] = {"slots": slots, "every": math.inf}
    desk = Desk(scheduler(**made)).begin()
    desk.want(1, 3)
    desk.want(2, 3)
    had = sorted(desk.hands[1] + desk.hands[2])
    assert had  # nothing of it is journalled
    again = next_life(desk, **made)
    for who in (1, 2):
        mine, again.hands[who] = again.hands[who], []
        again.want(who, 0, counted=mine, examples=len(mine), loss=0.5 * len(mine))
    assert spread(again.scheduler.workload.counted(), 99) == had
    assert again.scheduler.examples == len(had)
    again.run()
    assert again.scheduler.workload.done == again.scheduler.examples == 16


@BOTH
def test_a_report_that_the_former_life_had_journalled_counts_nothing_twice(slots: int) -> None:
    made: dict[str, Any] = {"slots": slots, "every": math.inf}
    desk = Desk(scheduler(**made)).begin()
    desk.want(1, 3)
    mine = list(desk.hands[1])
    report = m.Want(50, 1, 0, runs(sorted(mine)), examples=len(mine), loss=1.0)
    desk.send(1, report)
    desk.wait(0.3)
    again = next_life(desk, **made)
    again.requests = 60
    assert again.scheduler.examples == len(mine)
    again.send(1, report)  # repeated, because the answer was lost
    assert again.scheduler.examples == again.scheduler.workload.done == len(mine)


def test_who_joined_in_this_life_cannot_claim_what_nobody_dealt_it() -> None:
    desk = next_life(Desk(scheduler()).begin())
    desk.feed(desk.scheduler.joined(desk.now, "worker-7", "worker"))
    desk.want(7, 0, counted=[0, 1, 2])
    assert desk.scheduler.workload.done == 0
    desk.want(1, 0, counted=[0, 1, 2, 1 << 40])
    assert desk.scheduler.workload.done == 3


@BOTH
def test_a_rule_that_ends_a_run_right_after_a_restart_ends_it_with_what_workers_hold(slots: int) -> None:
    """The journal does not say which slots a worker holds.

    A run that ended at once would leave them out, or let two workers compute them.
    """
    made: dict[str, Any] = {"rules": StopRules(seconds=1), "slots": slots, "every": math.inf}
    desk = Desk(scheduler(**made)).begin()
    for who in (1, 2):
        desk.want(who, 3)
    had = sorted(desk.hands[1] + desk.hands[2])
    again = next_life(desk, workers=(1, 2), **made)
    again.wait(1.2)
    assert again.scheduler.over == "1 seconds are over" and not again.scheduler.workload.finished
    # The third process remembers that the run ends, and asks again what workers hold.
    third = next_life(again, workers=(1, 2), **made)
    assert third.scheduler.over == "1 seconds are over" and not third.scheduler.workload.finished
    for who in (1, 2):
        third.want(who, 4, holds=runs(sorted(third.hands[who])))
    third.run()
    assert third.why == "1 seconds are over"
    counted = spread(third.scheduler.workload.counted(), 99)
    assert set(had) <= set(counted) and third.scheduler.workload.done == third.scheduler.workload.limit
    # Whole steps.
    assert counted == had or (slots and len(counted) == third.scheduler.workload.slots_until(2))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("told", [False, True], ids=["died with it", "had told"])
def test_a_run_that_ends_after_a_restart_has_the_slots_of_a_worker_that_cannot_say_what_it_had(
    slots: int, told: bool
) -> None:
    """The worker may have pushed those slots.

    A run that ended before them would have a model of more steps than it counted.
    """
    made: dict[str, Any] = {"rules": StopRules(seconds=1), "slots": slots, "every": math.inf}
    desk = Desk(scheduler(**made)).begin()
    desk.want(1, 2)
    desk.want(2, 4)
    had = sorted(desk.hands[1] + desk.hands[2])
    assert had[-1] in desk.hands[2]
    if told:  # The earlier process had received the report, and ended before journalling it.
        mine, desk.hands[2] = desk.hands[2], []
        desk.want(2, 0, counted=mine, examples=len(mine), loss=0.5 * len(mine))
    again = next_life(desk, workers=(1, 2), **made)
    assert again.scheduler.workload.done == 0
    again.wait(1.2)
    again.gone(2)
    again.want(1, 0, holds=runs(sorted(again.hands[1])))
    assert again.scheduler.over == "1 seconds are over"
    assert (
        had[-1]
        < again.scheduler.workload.limit
        == again.scheduler.workload.slots_until(again.scheduler.workload.steps_until(had[-1] + 1))
    )
    again.run()
    assert again.why == "1 seconds are over"
    assert set(had) <= set(spread(again.scheduler.workload.counted(), 99))


def test_in_steps_nobody_is_dealt_what_a_full_disk_does_not_know_of() -> None:
    desk = Desk(scheduler(slots=3)).begin()
    desk.disk_error = "no space left on device"
    desk.requests += 1
    want = m.Want(desk.requests, 1, 3)
    assert desk.feed(desk.scheduler.want(desk.now, "worker-1", want)) == []
    # The request is repeated.
    assert desk.feed(desk.scheduler.want(desk.now, "worker-1", want)) == []
    desk.disk_error, desk.now = "", desk.now + SECOND
    (deal,) = desk.feed(desk.scheduler.tick(desk.now))
    assert isinstance(deal, m.Deal) and deal.slots
    assert next_life(desk, slots=3).scheduler.workload.next == desk.scheduler.workload.next > 0


def test_in_steps_a_line_says_a_little_more_than_was_dealt_so_that_few_deals_wait_for_one() -> None:
    made: dict[str, Any] = {"rules": StopRules(epochs=40), "slots": 1, "every": math.inf}
    desk = Desk(scheduler(**made)).begin()
    lines, furthest = [], 0
    for turn in range(60):  # each worker computes all that it asks for in 10 ms
        desk.now += 10 * MILLISECOND
        before = len(desk.journal)
        for who in (1, 2):
            desk.work(who, most=2)
        assert next_life(desk, **made).scheduler.workload.next >= desk.scheduler.workload.next > furthest
        furthest = desk.scheduler.workload.next
        lines += [turn] * (len(desk.journal) - before)
    # Of 29 turns, in a bit more than a quarter of a second.
    assert len([turn for turn in lines if turn > 30]) <= 6


def test_in_steps_a_deal_waits_for_the_line_on_its_way_that_allows_it() -> None:
    desk = Desk(scheduler(slots=1, every=math.inf, rules=StopRules(epochs=40))).begin()
    run, work = desk.scheduler, desk.scheduler.workload
    for _ in range(45):
        desk.now += 10 * MILLISECOND
        for who in (1, 2):
            desk.work(who, most=2)
    desk.now += 250 * MILLISECOND
    # The line with the counted slots.
    (line,) = (one for one in run.tick(desk.now) if isinstance(one, Persist))
    for turn in range(40):
        who = 1 + turn % 2
        done = runs(sorted(desk.hands[who]))
        said = desk.feed(run.want(desk.now, f"worker-{who}", m.Want(desk.requests + turn + 1, who, 2, done)))
        if not said:
            break
        (dealt,) = (one for one in said if isinstance(one, m.Deal))
        desk.hands[who] = spread(dealt.slots, 99)
    assert not said and run.journal.promised < work.next <= replayed(split([line.record])[1]).account.dealt
    (deal,) = (one.message for one in run.journal.durable(desk.now, "") if isinstance(one, Send))
    # No other line had to be written for it.
    assert isinstance(deal, m.Deal) and not run.journal.writing


@BOTH
def test_nobody_hears_of_what_a_full_disk_did_not_take_until_it_does(slots: int) -> None:
    desk = Desk(scheduler(slots=slots)).begin()
    desk.run_until_asked()
    desk.disk_error = "no space left on device"
    asked, told = desk.requests, len(desk.told)
    assert desk.feed(desk.scheduler.ready(desk.now, "evaluator", m.EvaluationReady(asked + 1, 90, 1))) == []
    # The request is repeated.
    assert desk.feed(desk.scheduler.ready(desk.now, "evaluator", m.EvaluationReady(asked + 1, 90, 1))) == []
    desk.wait(3)
    assert [event.what for event in desk.all(Warned)] == ["the journal cannot be written: no space left on device"]
    assert not [event for event in desk.told[told:] if not isinstance(event, Warned)]
    before = next_life(desk, slots=slots)
    assert before.scheduler.evaluations.held == 0
    desk.disk_error, desk.now = "", desk.now + SECOND
    (judge,) = desk.feed(desk.scheduler.tick(desk.now))
    assert isinstance(judge, m.EvaluateNow) and judge.request == asked + 1
    after = next_life(desk, slots=slots)
    assert after.scheduler.evaluations.held == 1
    # That line contains everything.
    assert after.scheduler.workload.counted() == desk.scheduler.workload.counted()


def test_a_disk_that_stays_full_does_not_hold_a_run_up_for_good() -> None:
    desk = Desk(scheduler()).begin()
    desk.run_until_asked()
    desk.disk_error = "no space left on device"
    assert desk.feed(desk.scheduler.ready(desk.now, "evaluator", m.EvaluationReady(desk.requests + 1, 90, 1))) == []
    desk.wait(40)
    desk.run()
    assert desk.why == "2 epochs done"


@BOTH
def test_what_the_last_line_of_a_journal_was_to_tell_is_told_again_as_it_was(slots: int) -> None:
    desk = Desk(scheduler(slots=slots)).begin()
    desk.run_until_asked()
    desk.ready(holds=1)
    desk.requests += 1
    found = m.EvaluationReady(desk.requests, 90, 1, 1, 0.25, {}, "")
    (line,) = desk.scheduler.ready(desk.now, "evaluator", found)
    assert isinstance(line, Persist)
    desk.journal.append(line.record)  # the process ended here
    again = next_life(desk, slots=slots)
    again.feed(again.scheduler.tick(again.now))
    (told,) = again.all(Evaluated)
    assert (told.number, told.test_loss, told.seconds) == (1, 0.25, desk.scheduler.seconds)
    third = next_life(again, slots=slots)  # now the journal says that it was reported
    third.feed(third.scheduler.tick(third.now))
    assert not third.all(Evaluated)


def test_no_view_shows_tables_of_another_past_than_the_journal_would_take_the_run_up_from() -> None:
    desk = Desk(scheduler()).begin()
    desk.work(1)
    desk.disk_error = "no space left on device"
    desk.feed(desk.scheduler.rollback(desk.now, None, [], "all copies are lost"))
    assert desk.scheduler.journal.is_behind(desk.now) and not desk.all(RolledBack)
    desk.disk_error, desk.now = "", desk.now + SECOND
    desk.feed(desk.scheduler.tick(desk.now))
    assert not desk.scheduler.journal.is_behind(desk.now) and len(desk.all(RolledBack)) == 1
    assert next_life(desk).scheduler.generation == 1


@pytest.mark.parametrize("back", [False, True], ids=["started again", "rolled back"])
def test_a_run_does_not_wait_for_good_for_an_evaluator_that_nobody_misses(back: bool) -> None:
    desk = Desk(scheduler()).begin()
    desk.work(1)
    if back:
        desk.feed(desk.scheduler.rollback(desk.now, None, [], "all copies are lost"))
    else:
        desk = next_life(desk)
    for _ in range(40):
        desk.wait(1)
        desk.want(1)
        desk.want(2)
    assert "the evaluator did not ask" in desk.why


def test_after_a_restart_the_last_pass_has_as_many_slots_as_it_should_whoever_holds_them() -> None:
    """Where pushes count at once half a pass is any half of its slots.

    What a worker holds is part of that half.
    """
    made: dict[str, Any] = {"rules": StopRules(epochs=1.5), "every": math.inf}
    desk = Desk(scheduler(**made)).begin()
    for _ in range(3):
        desk.work(1, 3)
        desk.work(2, 3)
    desk.wait(0.3)
    desk.want(1, 3)
    assert any(slot >= PER_PASS for slot in desk.hands[1])
    again = next_life(desk, workers=(1, 2), **made)
    for who in (2, 1):
        again.want(who, 4, holds=runs(sorted(again.hands[who])))
    again.run()
    assert again.why == "1.5 epochs done" and again.scheduler.workload.done == 12


@BOTH
def test_a_slot_that_is_void_is_on_disk_before_it_is_dealt(slots: int) -> None:
    desk = Desk(scheduler(slots=slots)).begin()
    desk.want(1, 1)
    (slot,) = desk.hands[1]
    desk.want(1, refused={slot: "nan"})
    desk.requests += 1
    effects = desk.scheduler.want(desk.now, "worker-1", m.Want(desk.requests, 1, 1, refused={slot: "nan"}))
    assert [type(effect) for effect in effects] == [Persist]  # answered when that is on disk
    (deal,) = desk.feed(effects)
    assert isinstance(deal, m.Deal) and deal.void == [slot]
    again = next_life(desk, slots=slots)
    assert slot in again.scheduler.workload.voids
    again.run()
    assert not again.all(Voided) and again.scheduler.workload.done == 16


@BOTH
def test_an_evaluation_under_way_is_judged_once_whatever_the_coordinator_remembers(slots: int) -> None:
    made: dict[str, Any] = {"slots": slots, "rules": StopRules(epochs=5)}
    desk = Desk(scheduler(**made)).begin()
    for _ in range(20):
        desk.work(1)
        desk.work(2)
    asked = desk.ready()
    assert asked.number == 1
    again = next_life(desk, **made)  # requested, not read
    assert again.ready() == msgspec.structs.replace(asked, request=again.requests)
    again.ready(holds=1)
    third = next_life(again, **made)  # read, not evaluated
    third.want(1, 4)
    assert third.hands[1]  # training went on
    third.ready(holds=1, found=1, loss=0.4)
    assert [event.number for event in third.all(Evaluated)] == [1]
    fourth = next_life(third, **made)
    assert fourth.ready(holds=1, found=1, loss=0.4).number == -1 and not fourth.all(Evaluated)


def test_stop_rules_remember_what_they_have_seen() -> None:
    made: dict[str, Any] = {"rules": StopRules(patience=3)}
    desk = Desk(scheduler(**made)).begin(loss=0.5)
    number = 0
    while number < 2:
        for who in (1, 2):
            desk.work(who)
        number = max(number, desk.evaluate(0.6))
    again = next_life(desk, **made)
    again.run(loss=0.6)
    assert again.why == "no improvement in 3 evaluations"
    assert again.all(Evaluated)[0].number == 3


@BOTH
def test_a_run_that_was_stopping_stops_and_one_that_had_ended_has_ended(slots: int) -> None:
    made: dict[str, Any] = {"rules": StopRules(seconds=1), "slots": slots}
    desk = Desk(scheduler(**made)).begin()
    desk.work(1)
    desk.wait(1.2)
    assert desk.scheduler.over and not desk.scheduler.ended
    again = next_life(desk, **made)
    assert (
        again.scheduler.over == "1 seconds are over" and again.scheduler.workload.limit == desk.scheduler.workload.limit
    )
    again.run()
    assert again.why == "1 seconds are over"
    third = next_life(again, **made)
    assert third.scheduler.ended and third.ready().over and third.want(1, 4).over
    assert not third.told


@pytest.mark.variants(slow=["async", "bounded"])
@STRATEGIES
def test_every_slot_counts_once_when_the_coordinator_is_started_again(rows: Dataset, strategy: str) -> None:
    for seed in range(4):
        ship = Ship(rows, seed=seed, strategy=strategy, workers=3)
        for share in (7 + seed, 30, 50):
            ship.until(lambda ship=ship, share=share: ship.slots_done() >= share)  # type: ignore[misc]
            ship.restart_coordinator()
        ship.home()
        assert ship.slots_done() == 75 and ship.scheduler.examples == 3 * 400
        assert ship.all(Stopped)[-1].why == "3 epochs done" and len(ship.all(Started)) == 1
        # The next process reports again what was reported and not on disk yet.
        numbers = list(dict.fromkeys(event.number for event in ship.all(Evaluated)))
        assert numbers == list(range(len(numbers))) and ship.all(Evaluated)[-1].passes == 3.0
        assert strategy != "sync" or len(numbers) == 4
        assert all(task.error is None for task in ship.ends.values())


@pytest.mark.slow
def test_a_synchronous_run_is_the_same_bit_for_bit_when_its_coordinator_is_started_again(
    rows: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.nodes.trainer._FIRST", 0)  # few slots at a time
    settings = {"strategy": "sync", "strategy__slots_per_step": 4, "evaluate__every": 0.3}
    calm = Ship(rows, workers=1, **settings).home()
    for seed in range(6):
        ship = Ship(rows, seed=seed, workers=3, **settings)
        for share in (5 + seed, 20 + 3 * seed, 60):
            ship.until(lambda ship=ship, share=share: ship.slots_done() >= share)  # type: ignore[misc]
            ship.restart_coordinator()
        ship.home()
        np.testing.assert_array_equal(ship.weights, calm.weights)
        assert [event.test_loss for event in ship.all(Evaluated)] == [event.test_loss for event in calm.all(Evaluated)]


@pytest.mark.slow
def test_nothing_hangs_when_a_worker_dies_with_slots_that_nobody_knows_it_has(
    rows: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F15: the others' queues may be full of later slots that wait for one of the dead worker's."""
    monkeypatch.setattr("shoal.nodes.trainer._FIRST", 0)  # so that their queues are full soon
    for seed in range(12):
        ship = Ship(rows, seed=seed, strategy="sync", workers=3, strategy__slots_per_step=3, evaluate__every=math.inf)
        ship.until(lambda ship=ship, seed=seed: ship.slots_done() >= 2 * seed + 2)  # type: ignore[misc]
        ship.restart_coordinator()
        ship.kill("worker-1")
        ship.home()
        assert ship.slots_done() == 75 and ship.scheduler.examples == 3 * 400
        assert [event.name for event in ship.all(Gone)] == ["worker-1"]


@pytest.mark.variants(slow=["async", "bounded"])
@STRATEGIES
def test_an_evaluator_that_was_declared_dead_comes_back_and_judges_on(rows: Dataset, strategy: str) -> None:
    calm = Ship(rows, strategy=strategy, evaluate__every=0.5).home()
    for seed in range(3):
        ship = Ship(rows, seed=seed, strategy=strategy, evaluate__every=0.5)
        ship.until(lambda ship=ship, seed=seed: ship.slots_done() >= 10 * seed + 1)  # type: ignore[misc]
        before = ship.evaluator.worker.client.session.incarnation
        ship.feed("coordinator", ProcessEnd("evaluator", "it was asleep"))
        ship.home()
        assert ship.evaluator.worker.client.session.incarnation > before
        assert ship.all(Stopped)[-1].why == "3 epochs done" and ship.ends["evaluator"].error is None
        numbers = [event.number for event in ship.all(Evaluated)]
        assert numbers == list(range(len(numbers)))
        if strategy == "sync":
            losses = [event.test_loss for event in calm.all(Evaluated)]
            assert [event.test_loss for event in ship.all(Evaluated)] == losses


def test_every_better_model_is_kept_and_one_of_a_former_life_if_it_is_better(rows: Dataset) -> None:
    kept: list[EvaluatedModel] = []
    ship = Ship(rows, strategy="sync", evaluate__every=0.5)
    ship.evaluator._save_best = kept.append
    ship.home()
    assert ship.evaluator.best is kept[-1]
    assert [one.loss for one in kept] == sorted((one.loss for one in kept), reverse=True)
    former = EvaluatedModel(2, kept[0].weights, 0.0, {})
    other = Ship(rows, strategy="sync")
    other.evaluator.best = former
    assert other.home().evaluator.best is former


# ---------------------------------------------------------------- a run continues from a checkpoint


@BOTH
def test_a_checkpoint_says_all_that_is_needed_to_go_on(slots: int) -> None:
    made: dict[str, Any] = {"rules": StopRules(epochs=3, patience=5), "slots": slots, "every": 0.5}
    desk = Desk(scheduler(**made)).begin(loss=0.7)
    for _ in range(4):
        desk.now += SECOND
        for who in (1, 2):
            desk.work(who)
        desk.evaluate(0.6)
    cut = desk.scheduler.cut
    assert cut is not None
    state = desk.scheduler.state(cut)
    again = new_run(state, **made)
    work = again.scheduler.workload
    assert work.counted() == state.counted and again.scheduler.examples == work.done
    if slots:
        assert state.counted == [(0, work.slots_until(cut))] and work.steps == cut
    assert again.scheduler.seconds == desk.scheduler.seconds
    assert again.all(Started)
    again.run(loss=0.5)
    assert again.why == "3 epochs done" and again.scheduler.examples == work.done == work.limit
    numbers = [event.number for event in again.all(Evaluated)]
    assert numbers == list(range(state.account.judgements.found + 1, numbers[-1] + 1))


def test_a_slot_that_becomes_void_while_servers_are_on_their_way_to_the_cut_is_void_in_the_checkpoint() -> None:
    """Servers are asked to cut at a future step, and one of its slots becomes void before that."""
    desk = Desk(scheduler(slots=1)).begin()
    (slot,) = spread(desk.want(1, 1).slots, 9)
    cut = desk.scheduler.cut
    assert slot == 0 and cut == 2
    state = desk.scheduler.state(cut)  # when servers are asked
    for _ in range(2):
        desk.want(1, refused={slot: "nan"})
    assert slot in desk.scheduler.workload.voids
    state = desk.scheduler.completed(state)  # when the manifest is written
    again = new_run(state, slots=1)
    assert again.scheduler.workload.voids == {slot: "nan"}
    assert again.scheduler.workload.counted() == [(0, 2)] and again.scheduler.examples == 1


def test_a_slot_that_read_newer_weights_while_servers_were_on_their_way_to_the_cut_is_counted_in_the_checkpoint() -> (
    None
):
    """The slot is in the model of that checkpoint.

    A run that continues from there no longer equals the serial run, and reports so.
    """
    desk = Desk(scheduler(slots=1)).begin()
    desk.want(1, 1)
    cut = desk.scheduler.cut
    assert cut is not None
    state = desk.scheduler.state(cut)
    desk.want(1, newer=1)
    again = new_run(desk.scheduler.completed(state), slots=1)
    assert again.scheduler.counts["slots with newer weights"] == 1


def test_who_says_that_a_slot_read_newer_weights_is_answered_when_the_journal_has_it() -> None:
    """The worker pushes the slot after the answer, and may die then: only the journal knows it."""
    desk = Desk(scheduler(slots=3)).begin()
    desk.disk_error = "no space left on device"
    desk.requests += 1
    assert desk.feed(desk.scheduler.want(desk.now, "worker-1", m.Want(desk.requests, 1, 0, newer=1))) == []
    assert next_life(desk, slots=3).scheduler.counts["slots with newer weights"] == 0
    desk.disk_error, desk.now = "", desk.now + SECOND
    (deal,) = desk.feed(desk.scheduler.tick(desk.now))
    assert isinstance(deal, m.Deal)
    assert next_life(desk, slots=3).scheduler.counts["slots with newer weights"] == 1


@pytest.mark.parametrize("turns", range(1, 14))
def test_evaluations_after_a_checkpoint_are_those_of_a_run_that_never_stopped(turns: int) -> None:
    """In step mode evaluations are at the same steps, whatever was under way at the cut."""
    made: dict[str, Any] = {"rules": StopRules(epochs=3), "slots": 3, "every": 0.5}
    calm = Desk(scheduler(**made)).begin().run()
    desk = Desk(scheduler(**made)).begin()
    for turn in range(turns):
        desk.work(1 + turn % 2, 2)
        if turn % 3 == 0:
            desk.evaluate()
    cut = desk.scheduler.cut
    if cut is None:  # an earlier evaluation is under way
        assert desk.scheduler.evaluations.open >= 0
        return
    again = new_run(desk.scheduler.state(cut), **made).run()
    found = {event.number: event.steps for event in (*desk.all(Evaluated), *again.all(Evaluated))}
    assert found == {event.number: event.steps for event in calm.all(Evaluated)}


def test_a_checkpoint_of_the_end_is_judged_again_and_ends() -> None:
    desk = Desk(scheduler(StopRules(epochs=1), slots=4)).begin().run()
    again = new_run(desk.scheduler.state(2), rules=StopRules(epochs=1), slots=4)
    again.run()
    assert again.why == "1 epoch done" and again.scheduler.workload.done == 8


def test_nothing_is_cut_before_the_first_weights_are_read() -> None:
    desk = Desk(scheduler(slots=3))
    assert desk.scheduler.cut is None
    desk.want(1)
    desk.want(2)
    assert desk.scheduler.cut is None
    desk.evaluate()
    assert desk.scheduler.cut == 1
    assert Desk(scheduler()).begin().scheduler.cut == m.NO_CLOCK


def test_slots_that_any_segment_lacks_are_dealt_again() -> None:
    """In each mode segments are cut at different moments."""
    books = [
        m.SegmentBooks(9, {0: m.Counts(8), 1: m.Counts.of(2, [5]), -7: m.Counts(40)}),
        m.SegmentBooks(9, {0: m.Counts(8), 1: m.Counts.of(3, [6])}),
        m.SegmentBooks(9, {0: m.Counts.of(7, []), 1: m.Counts.of(0, [0, 1, 5, 6])}),
    ]
    counted = counted_everywhere(books, PER_PASS)
    assert counted == [(0, 7), (8, 10)]
    assert counted_everywhere([*books, m.SegmentBooks(0)], PER_PASS) == counted_everywhere([], PER_PASS) == []
    desk = new_run(ScheduleState(), counted, rules=StopRules(epochs=2))
    assert desk.scheduler.workload.done == desk.scheduler.examples == 9
    desk.evaluate()
    again = sorted(spread([*desk.want(1, 9).again, *desk.want(2, 9).again], 99))
    assert again == [7, *range(10, 16)]
    assert desk.run().scheduler.workload.done == 16


# ---------------------------------------------------------------- rollback


@BOTH
@pytest.mark.parametrize("checkpoint", [4, None])
def test_a_rollback_does_everything_since_the_checkpoint_again(slots: int, checkpoint: int | None) -> None:
    made: dict[str, Any] = {"rules": StopRules(epochs=3), "slots": slots, "every": 0.5}
    desk = Desk(scheduler(**made)).begin()
    for _ in range(3):
        desk.work(1), desk.work(2)
        desk.evaluate()
    cut = desk.scheduler.cut
    assert cut is not None
    state = desk.scheduler.state(cut) if checkpoint is not None else None
    while not desk.scheduler.workload.done >= 15:
        desk.now += SECOND
        desk.work(1), desk.work(2)
        desk.evaluate()
    before, counted = desk.scheduler.workload, desk.scheduler.workload.counted()
    seconds = desk.scheduler.seconds
    desk.feed(desk.scheduler.rollback(desk.now, state, state.counted if state else [], "server-0 is gone", checkpoint))
    (told,) = desk.all(RolledBack)
    assert (told.checkpoint, told.steps_before, told.why) == (checkpoint, before.steps, "server-0 is gone")
    assert told.steps_after == desk.scheduler.workload.steps < told.steps_before
    assert told.slots == Intervals(counted).without(state.counted if state else []).runs
    assert desk.scheduler.seconds == seconds and desk.scheduler.generation == 1  # time goes on
    assert desk.scheduler.examples == desk.scheduler.workload.done
    desk.hands = {}
    for _ in range(200):  # all workers have joined again as new ones
        desk.now += SECOND // 100
        for who in (11, 12):
            desk.work(who)
        desk.evaluate()
        if desk.scheduler.ended:
            break
    assert desk.why == "3 epochs done" and desk.scheduler.examples == desk.scheduler.workload.done == 24
    assert desk.scheduler.counts["rollbacks"] == 1
    again = next_life(desk, **made)  # the journal has the rollback
    assert again.scheduler.generation == 1 and again.scheduler.workload.done == 24


@pytest.mark.variants(slow=["async", "bounded"])
@STRATEGIES
def test_a_run_that_lost_a_server_goes_back_and_ends_well(rows: Dataset, strategy: str) -> None:
    """No worker gives up meanwhile: they are fenced, and join again as new incarnations."""
    calm = Ship(rows, strategy=strategy, evaluate__every=0.5).home()
    for seed in range(4):
        ship = Ship(rows, seed=seed, strategy=strategy, evaluate__every=0.5)
        ship.until(lambda ship=ship, seed=seed: ship.slots_done() >= 1 + 15 * seed)  # type: ignore[misc]
        ship.kill("server-0")
        ship.home()
        (told,) = ship.all(RolledBack)
        assert "server-0 is gone" in told.why and (told.checkpoint, told.steps_after) == (None, 0)
        assert ship.slots_done() == 75 and ship.scheduler.examples == 3 * 400
        assert all(task.error is None for task in ship.ends.values())
        if strategy == "sync":
            np.testing.assert_array_equal(ship.weights, calm.weights)
            found = {event.number: event.test_loss for event in ship.all(Evaluated)}
            assert found == {event.number: event.test_loss for event in calm.all(Evaluated)}


def test_a_journal_in_which_the_run_went_back_says_what_holds_now() -> None:
    whole = JournalSnapshot(ScheduleState(counted=[(0, 3)], voids={1: "nan"}))
    assert replayed(
        [JournalMark([(0, 9)]), whole, JournalMark([(4, 6)]), JournalMark([(3, 4)], {5: "x"})]
    ) == ScheduleState(counted=[(0, 6)], voids={1: "nan", 5: "x"})


def test_after_a_rollback_nothing_is_known_of_who_was_slow_before() -> None:
    """All workers are new incarnations after a rollback.

    No turn is kept for a worker that is gone, and slots that are dealt again may be copied again.
    """
    desk = Desk(scheduler(StopRules(epochs=3), slots=3))
    second = desk.scheduler.speculative = SpeculativeCopies()
    desk.begin()
    for who, each in ((1, 5_000), (2, 1_000), (3, 1_000)):
        second.take(who, 9 * each, 9)
    assert second.slow() == {1}
    desk.feed(desk.scheduler.rollback(desk.now, None, [], "server-0 is gone", None))
    assert desk.scheduler.speculative is not None and desk.scheduler.speculative is not second
    assert desk.scheduler.speculative.slow() == set()


def test_a_rollback_after_the_end_is_none() -> None:
    desk = Desk(scheduler(StopRules(epochs=1))).begin().run()
    assert desk.scheduler.rollback(desk.now, None, [], "too late") == []


def test_a_state_survives_as_json(tmp_path: Path) -> None:
    desk: Scheduler = Desk(scheduler(slots=3)).begin(loss=0.5).run().scheduler
    for state in (desk.state(), ScheduleState(), scheduler().state()):
        assert msgspec.json.decode(msgspec.json.encode(state), type=ScheduleState) == state


@BOTH
def test_what_a_worker_was_dealt_and_never_got_is_dealt_again(slots: int) -> None:
    """Two processes of the coordinator answered one request.

    The worker took the answer of the other process.
    """
    desk = Desk(scheduler(slots=slots)).begin()
    lost = desk.want(1, more=4)
    desk.hands[1] = []
    again = desk.want(1, holds=[])  # the worker that asks gets them: another may wait for them
    assert desk.scheduler.counts["slots that never came"] == len(spread(lost.slots, 99)) > 0
    assert spread(again.again, 99) == sorted(spread(lost.slots, 99))
    desk.run()
    assert desk.scheduler.workload.done == 2 * PER_PASS

"""Drives the scheduler by hand: deals, evaluations, stop rules, and events."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest

from shoal.events import Evaluated, Gone, Joined, Progress, RunEvent, Started, Stopped, Voided, Warned
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.scheduler_journal import (
    JournalMark,
)
from shoal.schedule.intervals import runs, spread
from shoal.schedule.stop_rules import StopRules
from shoal.wire import messages as m
from shoal.wire.effects import Durable, Persist, ProcessEnd, Received, Send, Tell, Tick
from tests.support.fake_run import PER_PASS, Desk, scheduler

BOTH = pytest.mark.parametrize("slots", [0, 3], ids=["each", "step"])


# ---------------------------------------------------------------- beginning


@BOTH
def test_nothing_is_dealt_until_all_workers_are_here_and_the_first_weights_are_read(slots: int) -> None:
    desk = Desk(scheduler(slots=slots))
    assert desk.want(1, 4).slots == []
    assert desk.ready().number == -1  # there is nothing to evaluate either
    assert desk.want(2, 4).slots == []
    assert [event.workers for event in desk.all(Started)] == [2]
    asked = desk.ready()
    assert (asked.number, asked.clock) == (0, 0 if slots else m.NO_CLOCK)
    assert desk.want(1, 4).slots == []
    desk.ready(holds=0)
    assert desk.want(1, 4).slots != []  # dealt while the evaluator evaluates


@BOTH
def test_the_first_weights_are_read_first_also_when_there_is_no_evaluation_in_between(slots: int) -> None:
    desk = Desk(scheduler(slots=slots, every=math.inf))
    desk.want(1)
    assert desk.want(2, 4).slots == []
    desk.evaluate(0.7)
    desk.run()
    assert [(event.number, event.passes) for event in desk.all(Evaluated)] == [(0, 0.0), (1, 2.0)]


def test_where_workers_come_from_elsewhere_a_run_says_how_many_were_there_when_it_began() -> None:
    desk = Desk(scheduler(workers=3))
    desk.scheduler.elsewhere = True
    desk.want(1)
    desk.want(2)
    desk.now += 31 * SECOND
    desk.feed(desk.scheduler.tick(desk.now))
    assert [event.workers for event in desk.all(Started)] == [2]


def test_a_worker_that_is_lost_before_the_beginning_is_not_waited_for() -> None:
    desk = Desk(scheduler(workers=3))
    desk.want(1)
    desk.want(2)
    assert not desk.all(Started)
    desk.feed(desk.scheduler.never_came(desk.now, "worker-3", "killed by signal 9"))
    assert desk.all(Started) and desk.all(Gone)[0].name == "worker-3"
    desk.evaluate()
    assert desk.run().why == "2 epochs done"


def test_a_run_that_loses_all_its_workers_before_the_beginning_ends() -> None:
    desk = Desk(scheduler())
    desk.want(1)
    desk.gone(1)
    assert not desk.scheduler.ended  # the other worker may still join
    desk.feed(desk.scheduler.never_came(desk.now, "worker-2", "exit code 1"))
    assert "no worker was there" in desk.why


def test_workers_that_answer_and_get_nothing_done_are_named_once() -> None:
    desk = Desk(scheduler()).begin()
    desk.wait(60)
    (warned,) = desk.all(Warned)
    assert "after slot 0 nothing was counted for 30 s: " in warned.what and "worker-1" in warned.what


def test_one_that_slept_itself_blames_nobody() -> None:
    desk = Desk(scheduler()).begin()
    desk.wait(20)
    desk.now += 600 * SECOND
    desk.wait(9)
    assert desk.all(Warned) == []
    desk.wait(5)
    assert len(desk.all(Warned)) == 1


def test_a_server_that_does_not_answer_is_named_with_what_helps_and_no_worker_is_blamed() -> None:
    desk = Desk(scheduler()).begin()
    desk.scheduler.silent_servers = ["guest"]
    desk.wait(60)
    (warned,) = desk.all(Warned)
    assert "guest does not answer" in warned.what and "--name guest" in warned.what and "worker" not in warned.what


# ---------------------------------------------------------------- which worker did what


def test_an_evaluation_tells_what_every_worker_did_since_the_last_one() -> None:
    desk = Desk(scheduler()).begin()
    desk.want(1, 4)
    done, desk.hands[1] = desk.hands[1], []
    desk.want(1, 4, counted=done, spent=[250_000, 0, 500_000])
    desk.want(1, 4, spent=[250_000, 0, 500_000])
    desk.run()
    before, *after = desk.all(Evaluated)
    assert before.each == {"worker-1": {"slots": 0}, "worker-2": {"slots": 0}}
    did = {name: sum(event.each.get(name, {}).get("slots", 0) for event in after) for name in ("worker-1", "worker-2")}
    assert sum(did.values()) == desk.scheduler.workload.done
    assert sum(event.each.get("worker-1", {}).get("compute", 0) for event in after) == 0.5
    assert sum(event.each.get("worker-1", {}).get("wait", 0) for event in after) == 1.0


# ---------------------------------------------------------------- repeated requests


@BOTH
def test_a_want_that_is_sent_again_gets_the_same_deal_and_counts_nothing_twice(slots: int) -> None:
    desk = Desk(scheduler(slots=slots)).begin()
    desk.want(1, 4)
    (first, *_) = desk.hands[1]
    want = m.Want(77, 1, 4, [(first, first + 1)], examples=5, loss=1.0)
    deal = desk.send(1, want)
    before = (desk.scheduler.workload.done, desk.scheduler.examples, desk.scheduler.workload.has(1))
    assert desk.send(1, want) == deal
    assert (
        (desk.scheduler.workload.done, desk.scheduler.examples, desk.scheduler.workload.has(1))
        == before
        == (1, 5, before[2])
    )


def test_a_want_that_comes_after_the_next_one_is_over_and_deals_nothing() -> None:
    """The worker no longer waits for that answer, so it would not compute the slots."""
    desk = Desk(scheduler()).begin()
    late = m.Want(desk.requests + 1, 1, 2, examples=5)
    desk.requests += 1
    desk.send(1, late)
    desk.want(1, 1)
    has = desk.scheduler.workload.has(1)
    assert desk.scheduler.want(desk.now, "worker-1", late) == []
    assert desk.scheduler.workload.has(1) == has and desk.scheduler.examples == 5


def test_reports_of_what_a_worker_does_not_have_take_nothing_from_what_it_has() -> None:
    """For example a slot that an earlier incarnation of the worker pushed after all."""
    desk = Desk(scheduler()).begin()
    desk.want(1, 2)
    mine = desk.hands[1]
    desk.want(1, 0, counted=[*mine, 40, 41, 42])
    assert desk.scheduler.workload.done == len(mine)


@pytest.mark.parametrize("absurd", [(0, 1 << 61), (1 << 60, 1 << 61), (9, 2)])
def test_absurd_runs_do_no_harm(absurd: tuple[int, int]) -> None:
    desk = Desk(scheduler()).begin()
    desk.requests += 1
    desk.send(1, m.Want(desk.requests, 1, 1 << 61, [absurd], [absurd], {1 << 61: "no", 3: "no"}))
    assert desk.scheduler.workload.done == 0 and not desk.scheduler.workload.voids
    desk.hands[1], held = [], desk.hands[1]
    desk.want(1, counted=held)
    assert desk.run().why == "2 epochs done"


@pytest.mark.parametrize(("holds", "found"), [(7, -1), (-1, 7), (7, 7), (1 << 61, 1 << 61), (-(1 << 61), -2)])
def test_evaluations_that_nobody_asked_for_are_ignored(holds: int, found: int) -> None:
    desk = Desk(scheduler(slots=3))
    desk.ready(holds, found)  # before any evaluation was requested
    desk.begin()
    desk.ready(holds, found, loss=0.0)
    assert [event.number for event in desk.all(Evaluated)] == [0]
    assert desk.run().why == "2 epochs done"


def test_a_loss_that_is_told_twice_is_judged_once() -> None:
    desk = Desk(scheduler(StopRules(epochs=2, patience=2))).begin()
    for _ in range(5):
        desk.ready(holds=0, found=0, loss=0.9)
    assert len(desk.all(Evaluated)) == 1 and not desk.scheduler.over


# ---------------------------------------------------------------- evaluations


def test_in_each_mode_an_evaluation_is_asked_for_whenever_so_many_slots_are_counted() -> None:
    desk = Desk(scheduler(StopRules(epochs=4), every=0.5)).begin().run()
    assert [event.number for event in desk.all(Evaluated)] == list(range(len(desk.all(Evaluated))))
    marks = [int(event.passes / 0.5) for event in desk.all(Evaluated)]
    assert marks[0] == 0 and marks[-1] == 8
    assert all(a < b for a, b in pairwise(marks))


def test_in_step_mode_nothing_past_an_evaluation_is_dealt_until_its_weights_are_read() -> None:
    desk = Desk(scheduler(StopRules(epochs=2), slots=3, every=0.5)).begin()
    for _ in range(20):
        for who in (1, 2):
            desk.work(who)
    assert desk.scheduler.workload.done == 6  # four slots are half a pass: two steps of three
    asked = desk.ready()
    assert (asked.number, asked.clock) == (1, 2)
    assert desk.work(1) + desk.work(2) == 0
    desk.ready(holds=1)
    assert desk.work(1) + desk.work(2) == 0
    # The last step of the pass, while the evaluator evaluates.
    assert desk.work(1) + desk.work(2) == 2
    desk.ready(holds=1, found=1)
    desk.run()
    assert [event.steps for event in desk.all(Evaluated)] == [0, 2, 3, 5, 6]
    assert [event.passes for event in desk.all(Evaluated)] == [0.0, 0.75, 1.0, 1.75, 2.0]


def test_one_evaluation_is_asked_for_at_a_time() -> None:
    desk = Desk(scheduler(StopRules(epochs=2), every=0.25))
    desk.want(1)
    desk.want(2)
    assert desk.ready().number == 0
    assert desk.ready(holds=0).number == -1  # read, but not yet evaluated
    for _ in range(20):
        desk.work(1)
        desk.work(2)
    # An evaluator that asks what to do has forgotten that it evaluates.
    assert desk.ready().number == 0
    assert desk.ready(found=0, holds=0).number == 1


def test_an_evaluation_says_how_many_were_at_work_and_what_they_found() -> None:
    desk = Desk(scheduler(StopRules(epochs=1))).begin()
    desk.run(loss=0.4)
    first, last = desk.all(Evaluated)
    assert (first.train_loss, first.examples, first.workers, first.best) == (None, 0, 2, True)
    assert (last.train_loss, last.examples, last.workers, last.best, last.test_loss) == (0.5, 8, 2, True, 0.4)


# ---------------------------------------------------------------- stopping


@BOTH
@pytest.mark.parametrize(
    ("rules", "done", "why"),
    [
        (StopRules(epochs=1), 8, "1 epoch done"),
        (StopRules(epochs=0.25), 2, "0.25 epochs done"),
        (StopRules(epochs=1.5), 12, "1.5 epochs done"),
        (StopRules(steps=3), 3, "3 steps done"),
        (StopRules(steps=100, epochs=1), 8, "1 epoch done"),
    ],
)
def test_passes_and_steps_end_a_run_exactly(rules: StopRules, done: int, why: str, slots: int) -> None:
    desk = Desk(scheduler(rules, slots=slots)).begin().run()
    assert desk.why == why
    work = desk.scheduler.workload
    if not slots:
        assert work.done == done
    elif rules.steps == 3:
        assert (work.steps, work.done) == (3, 8)
    else:  # up to the end of the step
        assert work.done == {2: 3, 8: 8, 12: 14}[done]
    last = desk.all(Evaluated)[-1]
    # The last evaluation includes everything that was counted.
    assert last.passes == work.done / PER_PASS


@BOTH
def test_time_ends_a_run_when_what_is_dealt_is_counted(slots: int) -> None:
    desk = Desk(scheduler(StopRules(seconds=1), slots=slots)).begin()
    desk.work(1)
    desk.wait(1.1)
    assert desk.scheduler.over == "1 seconds are over" and not desk.scheduler.ended
    assert desk.over[1] == ""  # it has slots to finish
    desk.run()
    assert desk.why == "1 seconds are over"
    assert desk.want(1).over == desk.want(2).over == desk.why
    assert desk.all(Evaluated)[-1].examples == desk.scheduler.examples == desk.scheduler.workload.done


@BOTH
def test_a_target_ends_a_run(slots: int) -> None:
    desk = Desk(scheduler(StopRules(target_loss=0.45), slots=slots)).begin().run(loss=0.44)
    assert desk.why == "target loss 0.45 reached"
    assert desk.scheduler.workload.finished


@BOTH
def test_a_target_that_is_reached_before_the_first_slot_ends_a_run_at_once(slots: int) -> None:
    desk = Desk(scheduler(StopRules(target_loss=0.9), slots=slots))
    desk.want(1)
    desk.want(2)
    desk.evaluate(0.7)
    desk.run(loss=0.7)
    assert desk.why == "target loss 0.9 reached" and desk.scheduler.examples == 0


@BOTH
def test_patience_ends_a_run(slots: int) -> None:
    desk = Desk(scheduler(StopRules(patience=3), slots=slots)).begin(loss=0.7).run(loss=0.6)
    assert desk.why == "no improvement in 3 evaluations"
    assert [event.best for event in desk.all(Evaluated)][:5] == [True, True, False, False, False]


@BOTH
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_a_run(loss: float, slots: int) -> None:
    desk = Desk(scheduler(slots=slots)).begin().run(loss=loss)
    assert "take a smaller step" in desk.why and desk.scheduler.failed == desk.why


@BOTH
def test_a_run_is_over_only_when_all_is_counted_and_judged(slots: int) -> None:
    desk = Desk(scheduler(StopRules(epochs=1), slots=slots)).begin()
    while not desk.scheduler.workload.finished:
        assert not desk.scheduler.over and desk.over == {1: "", 2: ""}
        for who in (1, 2):
            desk.work(who)
    assert desk.want(1).over == desk.want(2).over == "1 epoch done" and not desk.scheduler.ended
    assert desk.evaluate() == 1
    assert desk.scheduler.ended and desk.ready().over
    assert isinstance(desk.told[-1], Stopped) and isinstance(desk.told[-2], Progress)


def test_what_comes_after_the_end_is_no_part_of_the_run() -> None:
    desk = Desk(scheduler(StopRules(epochs=1))).begin().run()
    seconds, told = desk.scheduler.seconds, len(desk.told)
    desk.wait(30)
    desk.gone(1)
    desk.gone(7, role="server")
    desk.ready(error="too late")
    desk.want(2, 4)
    assert (desk.scheduler.seconds, len(desk.told)) == (seconds, told)
    assert not desk.scheduler.failed


# ---------------------------------------------------------------- nodes that are gone


@BOTH
@pytest.mark.parametrize("died", [True, False])
def test_slots_of_a_worker_that_is_gone_are_done_by_another(died: bool, slots: int) -> None:
    desk = Desk(scheduler(slots=slots)).begin()
    desk.work(1)
    had = len(desk.hands[1])
    desk.gone(1, died)
    (gone,) = desk.all(Gone)
    assert gone.slots >= had > 0
    assert desk.scheduler.counts["workers lost"] == died
    desk.want(3)  # a third worker joins late
    for _ in range(100):
        desk.work(2)
        desk.work(3)
        desk.evaluate()
    assert desk.why == "2 epochs done" and desk.scheduler.workload.done == 16


def test_a_worker_that_leaves_while_the_rest_is_finished_loses_nothing() -> None:
    """In step mode slots may be reserved for it that it never asked for."""
    desk = Desk(scheduler(StopRules(seconds=1), slots=8, every=math.inf)).begin()
    desk.work(1, 3)
    desk.wait(1.1)
    assert desk.scheduler.over
    desk.want(2, 0, leaving=True)
    desk.gone(2, died=False)
    for _ in range(20):
        desk.work(1)
        desk.evaluate()
    assert desk.why == "1 seconds are over"


def test_who_leaves_gives_back_and_is_dealt_nothing() -> None:
    desk = Desk(scheduler()).begin()
    desk.want(1, 2)
    back, desk.hands[1] = desk.hands[1], []
    deal = desk.want(1, 4, back=runs(sorted(back)), leaving=True)
    assert (deal.slots, deal.again, deal.over) == ([], [], "you left")
    assert spread(desk.want(2, 0).again, 9) == sorted(back)


def test_a_first_want_of_one_that_leaves_is_answered_and_forgotten() -> None:
    desk = Desk(scheduler())
    assert desk.want(1, 4, leaving=True).over == "you left"
    desk.want(2)
    assert not desk.all(Started)


def test_a_worker_that_joins_late_takes_part() -> None:
    desk = Desk(scheduler(StopRules(epochs=9))).begin()
    desk.feed(desk.scheduler.joined(desk.now, "worker-3", "worker"))
    assert [event.name for event in desk.all(Joined)] == ["worker-3"]
    desk.want(3, 4)
    assert desk.hands[3]


def test_a_run_without_any_worker_fails_after_a_while_and_not_if_one_comes() -> None:
    desk = Desk(scheduler()).begin()
    desk.gone(1)
    desk.gone(2)
    desk.wait(9)
    desk.want(3, 1)
    desk.gone(3)
    desk.wait(9)
    assert not desk.scheduler.failed
    desk.wait(9)
    assert "no worker is left" in desk.why
    assert desk.ready().over


def test_a_server_that_is_lost_is_told_and_no_end_of_the_run() -> None:
    desk = Desk(scheduler()).begin()
    desk.gone(7, role="server")
    assert desk.all(Gone)[-1].name == "server-7" and not desk.scheduler.failed
    assert not desk.want(1, 4).over


def test_an_evaluator_that_is_lost_or_cannot_judge_ends_the_run() -> None:
    desk = Desk(scheduler()).begin()
    desk.gone(90, role="evaluator")
    desk.work(1)
    desk.wait(9)
    assert not desk.scheduler.ended  # it may join again
    desk.wait(9)
    assert "the evaluator is gone" in desk.why
    desk = Desk(scheduler()).begin()
    assert desk.ready(error="no memory").over
    assert desk.why == "the model cannot be evaluated: no memory"


def test_a_client_may_come_and_go() -> None:
    desk = Desk(scheduler()).begin()
    desk.feed(desk.scheduler.joined(desk.now, "launcher", "client"))
    desk.gone(5, role="client")
    assert not desk.all(Gone) and not desk.all(Joined) and not desk.scheduler.ended


# ---------------------------------------------------------------- events


def test_a_slot_that_is_void_is_told_once_dealt_as_void_and_journalled() -> None:
    desk = Desk(scheduler(StopRules(epochs=1))).begin()
    desk.want(1, 1)
    (slot,) = desk.hands[1]
    desk.want(1, refused={slot: "nan"})
    assert slot in desk.hands[1]
    deal = desk.want(1, refused={slot: "nan again"})
    assert deal.void == [slot]
    assert [(event.slot, event.why) for event in desk.all(Voided)] == [((0, slot), "nan again")]
    desk.run()
    lines = [msgspec.msgpack.decode(record, type=JournalMark) for record in desk.journal]
    assert {slot: "nan again"} in [line.voids for line in lines]
    assert len(desk.all(Voided)) == 1


def test_what_is_counted_is_journalled_once_and_progress_told_four_times_a_second() -> None:
    desk = Desk(scheduler(StopRules(epochs=3))).begin().run()
    lines = [msgspec.msgpack.decode(record, type=JournalMark) for record in desk.journal]
    assert sorted(slot for line in lines for slot in spread(line.counted, 99)) == list(range(24))
    progress = desk.all(Progress)
    assert progress[-1].passes == 3.0 and progress[-1].steps == 24 and progress[-1].examples == 24
    gaps = [b.seconds - a.seconds for a, b in pairwise(progress[:-1])]
    assert all(gap >= 0.25 for gap in gaps)


def test_progress_is_the_mean_of_what_was_computed_since() -> None:
    desk = Desk(scheduler(StopRules(epochs=9))).begin()
    desk.want(1, examples=4, loss=2.0)
    desk.want(2, examples=12, loss=3.0)
    desk.wait(0.3)
    desk.wait(0.3)
    assert [event.train_loss for event in desk.all(Progress)] == [5 / 16, None]


def test_traffic_is_that_of_all_workers_there_ever_were() -> None:
    desk = Desk(scheduler()).begin()
    desk.want(1, sent=10, received=1)
    desk.want(1, sent=25, received=2)
    desk.gone(1)
    desk.want(2, sent=100, received=5)
    assert desk.scheduler.traffic.totals() == (125, 7)


def test_a_warning_is_told_once_and_counted() -> None:
    desk = Desk(scheduler())
    for _ in range(3):
        desk.feed(desk.scheduler.warn("the journal cannot be written: no space"))
    assert len(desk.all(Warned)) == 1
    assert desk.scheduler.counts["the journal cannot be written: no space"] == 3


# ---------------------------------------------------------------- in the coordinator


@dataclass
class Office:
    """A coordinator that trains, and a disk that writes at once."""

    coordinator: Coordinator
    now: int = 100 * SECOND
    journal: list[bytes] = field(default_factory=list)
    told: list[RunEvent] = field(default_factory=list)

    def say(self, sender: str, message: m.Message) -> list[m.Message]:
        return self.feed(Received(sender, message), sender)

    def feed(self, event: object, to: str = "") -> list[m.Message]:
        said: list[m.Message] = []
        queue = [event]
        while queue:
            for effect in self.coordinator.handle(self.now, queue.pop(0)):  # type: ignore[arg-type]
                match effect:
                    case Persist(token, record):
                        self.journal.append(record)
                        queue.append(Durable(token))
                    case Send(name, message) if name == to and not isinstance(message, m.View | m.Alive):
                        said.append(message)
                    case Tell(happening):
                        self.told.append(happening)
        return said

    def join(self, name: str, role: str) -> int:
        (welcome,) = self.say(name, m.Hello(name, role, f"{name}.0", f"memory:{name}"))
        assert isinstance(welcome, m.Welcome)
        return welcome.incarnation


def test_only_workers_want_and_only_evaluators_judge() -> None:
    office = Office(Coordinator(scheduler=scheduler()))
    for name, role in (("ann", "client"), ("eve", "evaluator"), ("bob", "worker")):
        incarnation = office.join(name, role)
        (wanted,) = office.say(name, m.Want(1, incarnation, 4))
        assert isinstance(wanted, m.Deal if role == "worker" else m.Refusal)
        (judge,) = office.say(name, m.EvaluationReady(2, incarnation))
        assert isinstance(judge, m.EvaluateNow if role == "evaluator" else m.Refusal)
    assert office.say("bob", m.Want(3, 99, 4)) == [m.Fence(0, 99)]
    assert office.say("mallory", m.Want(3, 1, 4)) == [m.Fence(0, 1)]


def test_where_there_is_no_run_a_want_is_refused() -> None:
    office = Office(Coordinator())
    (answer,) = office.say("bob", m.Want(1, office.join("bob", "worker"), 4))
    assert isinstance(answer, m.Refusal) and "no run here" in answer.reason


def test_a_worker_that_is_seen_to_end_before_it_joined_is_not_waited_for() -> None:
    office = Office(Coordinator(scheduler=scheduler()))
    office.say("worker-0", m.Want(1, office.join("worker-0", "worker"), 4))
    office.feed(ProcessEnd("worker-1", "exit code 1"))
    assert any(isinstance(event, Started) for event in office.told)


def test_a_journal_that_cannot_be_written_is_a_warning_and_training_goes_on() -> None:
    desk = Desk(scheduler()).begin()
    desk.disk_error = "no space left on device"
    desk.work(1, 2)
    assert desk.work(1, 2) == 2
    desk.wait(0.3)  # counted slots are due to be written
    assert [event.what for event in desk.all(Warned)] == ["the journal cannot be written: no space left on device"]
    desk.work(2, 2)
    assert desk.hands[2] and desk.work(2) == 2


@BOTH
def test_a_coordinator_that_is_started_again_takes_up_what_its_journal_says(slots: int) -> None:
    desk = Desk(scheduler(slots=slots, every=math.inf)).begin()
    for _ in range(3):
        desk.work(1)
    desk.wait(1)
    done = desk.scheduler.workload.done
    assert 0 < done < 16
    second = scheduler(slots=slots, every=math.inf)
    again = Desk(Coordinator(journal=desk.journal, scheduler=second).scheduler or second)
    assert again.scheduler.workload.done == done
    again.run()
    # Nothing is counted twice.
    assert again.scheduler.workload.done == again.scheduler.examples == 16
    assert not again.all(Started)  # the run had already begun


@BOTH
def test_a_void_slot_is_void_in_the_next_life_of_the_coordinator(slots: int) -> None:
    line = msgspec.msgpack.encode(JournalMark([(0, 3)], {5: "nan"}))
    second = scheduler(slots=slots)
    Coordinator(journal=[line], scheduler=second)
    desk = Desk(second).begin()
    voids = [desk.want(who, 9).void for who in (1, 2)]
    assert [5] in voids
    assert desk.all(Voided) == []  # reported by the earlier process


def test_time_goes_on_while_nothing_comes() -> None:
    office = Office(Coordinator(scheduler=scheduler(StopRules(seconds=1))))
    ids = [office.join(f"worker-{i}", "worker") for i in range(2)]
    for i, incarnation in enumerate(ids):
        office.say(f"worker-{i}", m.Want(1, incarnation, 0))
    assert office.coordinator.scheduler is not None
    # The evaluator is late, and nothing is dealt before: that time does not count.
    for _ in range(3):
        office.now += 500 * MILLISECOND
        office.feed(Tick())
    assert office.coordinator.scheduler.over == ""
    office.say("eve", m.EvaluationReady(1, office.join("eve", "evaluator"), holds=0))
    for _ in range(3):
        office.now += 500 * MILLISECOND
        office.feed(Tick())
    assert office.coordinator.scheduler.over == "1 seconds are over"


def test_weights_of_a_later_step_are_not_told_as_those_that_were_asked_for() -> None:
    """The evaluator reported that it read step 0, and died.

    The next evaluator is asked for step 0, and finds step 3.
    """
    desk = Desk(scheduler(slots=1))
    desk.want(1)
    desk.want(2)
    assert (desk.ready().number, desk.ready(holds=0).number) == (0, -1)
    for _ in range(3):
        desk.work(1, 1)
    asked = desk.ready()
    assert (asked.number, asked.clock) == (0, 0)
    for found in (-1, 0):
        desk.requests += 1
        desk.feed(
            desk.scheduler.ready(desk.now, "evaluator", m.EvaluationReady(desk.requests, 91, 0, found, 0.5, clock=3))
        )
    (told,) = desk.all(Evaluated)
    assert (told.number, told.steps) == (0, 3)
    assert desk.scheduler.counts["evaluations of a later step"] == 1
    desk.run()
    assert [one.steps for one in desk.all(Evaluated)] == [3, 8, 16] and desk.why == "2 epochs done"

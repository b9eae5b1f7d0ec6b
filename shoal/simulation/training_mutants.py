"""Broken variants of what trains: each must be caught within a few hundred seeds, or the checks are blind.

A mutant replaces one method of a real class, for as long as its ``with`` block lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

from msgspec.structs import replace

from shoal.cluster.roster import Roster
from shoal.nodes import factory
from shoal.nodes.evaluator import EvaluationOrder, Evaluator, Judgement
from shoal.nodes.scheduler import SchedulerNode
from shoal.nodes.scheduler_journal import JournalledSchedule
from shoal.nodes.scheduler_state import ScheduleState
from shoal.nodes.scheduling import Scheduler
from shoal.nodes.slot_stream import SlotStream
from shoal.nodes.strategy import Slot, SlotRows
from shoal.nodes.trainer import Trainer
from shoal.nodes.worker import Worker
from shoal.schedule.auto_delay import AutoDelay
from shoal.schedule.evaluations import Evaluations
from shoal.schedule.runs import Runs
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stop_rules import StopDecision
from shoal.simulation.disk import CHECKPOINT_MUTANTS
from shoal.store.client.task import Task
from shoal.store.server.clock import Clocks
from shoal.strategies.parameter_server.algorithm import InflightStep, ParameterServer
from shoal.wire import messages as m
from shoal.wire.effects import Effect

MUTANTS: dict[str, Callable[[], Any]] = dict(CHECKPOINT_MUTANTS)


def mutant(function: Callable[[], Any]) -> Callable[[], Any]:
    MUTANTS[function.__name__.replace("_", " ")] = function
    return function


def patched(owner: type, name: str, value: Any) -> Any:
    """In place of what is there: a name that is not is a mutant that changes nothing."""
    assert hasattr(owner, name)
    return mock.patch.object(owner, name, value)


@mutant
def slot_reported_before_it_is_counted() -> Any:
    """A worker tells that a slot is done when its gradient is sent."""

    def push(self: SlotStream, slot: Slot, local: SlotRows | None, loss: float, task: Task) -> None:
        number = self._trainer.number(slot)
        self._trainer.tally(self, slot)
        self._trainer.pushed(number, 0 if local is None else len(local), loss, Task("sent"))

    return patched(SlotStream, "push", push)


@mutant
def slots_of_the_dead_not_dealt_again() -> Any:
    """What a worker had that is gone is dealt to nobody."""
    real = SlotQueue.leave

    def leave(self: SlotQueue, worker: int, died: bool) -> int:
        with mock.patch.object(SlotQueue, "_return", lambda *_: None):
            return real(self, worker, died)

    return patched(SlotQueue, "leave", leave)


@mutant
def what_is_given_back_is_lost() -> Any:
    """A worker that leaves gives its queue back, and nobody else gets it."""

    def give_back(self: SlotQueue, worker: int, slots: Iterable[int]) -> None:
        for slot in slots:
            self._out.get(worker, {}).pop(slot, 0)

    return patched(SlotQueue, "give_back", give_back)


@mutant
def void_slot_not_pushed() -> Any:
    """A slot that nobody can compute is reported, and never pushed."""
    real = ParameterServer._push

    async def push(
        self: ParameterServer, lane: Any, one: InflightStep, weights: Any, clock: int, second: InflightStep | None
    ) -> InflightStep | None:
        if one.local is None:
            nothing = Task("nothing to push")
            nothing.finish()
            lane.push(one.slot, None, 0.0, nothing)
            return InflightStep(one.slot, None, nothing)
        return await real(self, lane, one, weights, clock, second)

    return patched(ParameterServer, "_push", push)


@mutant
def evaluation_of_a_later_step() -> Any:
    """The evaluator says that it has read the step that it was asked for, and reads whatever is newest later on."""
    real = Evaluator._answer

    async def answer(self: Evaluator, asked: EvaluationOrder) -> Judgement:
        await self._ready(holds=asked.number)
        await self.worker.sleep(300_000_000)
        weights, _ = await self._weights(m.NO_CLOCK)
        self._read = asked, (weights, asked.clock)
        return await real(self, asked)

    return patched(Evaluator, "_answer", answer)


@mutant
def dealt_past_an_evaluation() -> Any:
    """Slots are dealt although the model of an evaluation is not read yet."""
    return patched(Evaluations, "barrier", lambda self, work, over: None)


@mutant
def resume_deals_counted_slots_again() -> Any:
    """A run that is taken up from a checkpoint begins as if nothing was counted."""
    real = factory.state_to_resume

    def state(*given: Any, **more: Any) -> ScheduleState:
        return replace(real(*given, **more), counted=[])

    return mock.patch("shoal.simulation.training_run.state_to_resume", state)


@mutant
def resume_skips_slots() -> Any:
    """A run that is taken up from a checkpoint takes two slots more for counted than are in the model."""
    real = factory.state_to_resume

    def state(*given: Any, **more: Any) -> ScheduleState:
        found = real(*given, **more)
        last = found.counted[-1][1] if found.counted else 0
        return replace(found, counted=[*found.counted, (last, last + 2)])

    return mock.patch("shoal.simulation.training_run.state_to_resume", state)


@mutant
def checkpoint_says_what_is_counted_now() -> Any:
    """A checkpoint of a step says what is counted when it is begun, not what will be at that step."""
    real = JournalledSchedule.state
    return patched(JournalledSchedule, "state", lambda self, cut=m.NO_CLOCK: real(self))


@mutant
def one_step_too_many() -> Any:
    """A run of so many passes or steps has one slot more."""
    real = StopDecision.limit

    def limit(self: StopDecision, per_pass: int, slots_of_steps: int | None) -> tuple[int, str]:
        found, why = real(self, per_pass, slots_of_steps)
        return found + 1, why

    return patched(StopDecision, "limit", limit)


@mutant
def patience_off_by_one() -> Any:
    """A run goes on for one evaluation longer than its patience lasts."""
    real = StopDecision.judged

    def judged(self: StopDecision, loss: float, metrics: Any = None) -> tuple[bool, str]:
        best, why = real(self, loss, metrics)
        late = why.startswith("no improvement") and self._without <= (self.rules.patience or 0)
        return best, "" if late else why

    return patched(StopDecision, "judged", judged)


@mutant
def target_loss_not_looked_at_again() -> Any:
    """A loss that is just reached does not end the run."""
    real = StopDecision.judged

    def judged(self: StopDecision, loss: float, metrics: Any = None) -> tuple[bool, str]:
        best, why = real(self, loss, metrics)
        return best, "" if why.startswith("target") and self.rules.target_loss != loss else why

    return patched(StopDecision, "judged", judged)


@mutant
def second_copy_counted_twice() -> Any:
    """A slot that two workers computed counts as two."""
    real = SlotQueue._mark

    def mark(self: SlotQueue, slot: int, name: str) -> bool:
        if not real(self, slot, name):
            self.done += 1
        return True

    return patched(SlotQueue, "_mark", mark)


@mutant
def auto_delay_past_its_bound() -> Any:
    """A delay that is found while it runs may grow for ever."""
    real = AutoDelay._longer

    def longer(self: AutoDelay) -> int:
        found = real(self)
        return found if found != self.delay or self._doubt else self.delay + 1

    return patched(AutoDelay, "_longer", longer)


@mutant
def rollback_keeps_what_was_counted() -> Any:
    """After a rollback the slots since the checkpoint stay counted."""
    real = JournalledSchedule.rollback

    def rollback(
        self: JournalledSchedule,
        now: int,
        state: ScheduleState | None,
        counted: Runs,
        why: str,
        checkpoint: int | None = None,
    ) -> list[Effect]:
        return real(self, now, state, self.workload.counted(), why, checkpoint)

    return patched(JournalledSchedule, "rollback", rollback)


@mutant
def fenced_trainer_keeps_its_slots() -> Any:
    """A worker that was declared dead goes on with what it had, as another."""
    real = Trainer._forget

    def forget(self: Trainer) -> None:
        counted, mine = list(self._counted), set(self._mine)
        real(self)
        self._counted, self._mine = counted, mine

    return patched(Trainer, "_forget", forget)


@mutant
def run_ends_with_slots_that_nobody_asked_about() -> Any:
    """A coordinator that was started again ends a run without asking what workers hold."""
    real = JournalledSchedule.resume

    def resume(self: JournalledSchedule, lines: Any, workers: Any = ()) -> None:
        real(self, lines, ())

    return patched(JournalledSchedule, "resume", resume)


@mutant
def time_counts_before_the_first_weights_are_read() -> Any:
    """A run is out of time although it has not begun."""
    real = Scheduler.tick

    def tick(self: Scheduler, now: int) -> list[Effect]:
        held = self.evaluations.held
        early = self._begun and held < 0 and not self.over and not self.ended
        if early and (why := self.stopping.out_of_time(self.seconds)):
            self._stop(why)
        return real(self, now)

    return patched(Scheduler, "tick", tick)


@mutant
def worker_ends_when_a_disk_is_full() -> Any:
    """A worker that is to wait for room on the coordinator's disk ends."""
    real = Worker._received

    def received(self: Worker, now: int, event: Any) -> list[Effect]:
        patient, self.client.patient = self.client.patient, False
        try:
            return real(self, now, event)
        finally:
            self.client.patient = patient

    return patched(Worker, "_received", received)


@mutant
def scheduler_forgets_its_journal() -> Any:
    """A group's scheduler that is started again begins anew."""
    real = SchedulerNode.__init__

    def init(self: SchedulerNode, *given: Any, **more: Any) -> None:
        real(self, *given[:5], **more)

    return mock.patch.object(SchedulerNode, "__init__", init)


@mutant
def delay_off_by_one() -> Any:
    """Workers run one step further ahead than they may."""
    real = Clocks.may_pull
    return patched(Clocks, "may_pull", lambda self, clock, segments: real(self, clock - 1, segments))


@mutant
def delay_shrinks_while_they_wait() -> Any:
    """Where workers wait too much, the automatic delay gets shorter, once it is more than one step."""
    real = AutoDelay._longer
    return patched(AutoDelay, "_longer", lambda self: real(self) if self.delay < 2 else self.delay - 1)


@mutant
def no_generation_after_rollback() -> Any:
    """Everybody goes on as if nothing had been taken back."""

    def roll_back(self: Roster, origins: dict[str, tuple[list[int], str]]) -> None:
        for name, table in list(self.tables.items()):
            del self.tables[name]
            starts, origin = origins.get(name, (table.starts, ""))
            self.create(name, table.spec, starts, origin)

    return patched(Roster, "roll_back", roll_back)

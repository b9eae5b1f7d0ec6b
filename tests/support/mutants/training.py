"""Broken variants of training, and of writing checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

from shoal.cluster.roster import Roster
from shoal.data.slots import Slot, SlotRows
from shoal.files import Disk
from shoal.nodes import factory
from shoal.nodes.evaluator import EvaluationOrder, Evaluator
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_journal import ScheduleState
from shoal.nodes.scheduler_node import SchedulerNode
from shoal.nodes.trainer import SlotStream, Trainer
from shoal.nodes.worker import Worker
from shoal.schedule.evaluations import Evaluations
from shoal.schedule.intervals import Runs
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stop_rules import StopDecision
from shoal.schedule.stragglers import AutoDelay
from shoal.simulation.disk import SimulatedDisk
from shoal.store.checkpoint import segment_file
from shoal.store.client.task import Task
from shoal.store.server.clock import Clocks
from shoal.store.table.table import SegmentImage
from shoal.strategies.parameter_server.algorithm import InflightStep, ParameterServer
from shoal.wire import messages as m
from tests.support.mutants.patches import Mutants

CHECKPOINT_MUTANTS, MUTANTS = Mutants(), Mutants()
mutant = MUTANTS.replacing


@mutant(SlotStream, "push")
def slot_reported_before_it_is_counted(_: Any) -> Any:
    """A worker reports a slot as done when its gradient is sent."""

    def push(self: SlotStream, slot: Slot, local: SlotRows | None, loss: float, task: Task) -> None:
        self._tally(slot)
        self._pushed(self._number(slot), 0 if local is None else len(local), loss, Task("sent"))

    return push


@mutant(SlotQueue, "leave")
def slots_of_the_dead_not_dealt_again(real: Any) -> Any:
    """The slots of a lost worker are not assigned again."""

    def leave(self: SlotQueue, worker: int, died: bool) -> Any:
        with mock.patch.object(SlotQueue, "_return", lambda *_: None):
            return real(self, worker, died)

    return leave


@mutant(SlotQueue, "give_back")
def what_is_given_back_is_lost(_: Any) -> Any:
    """The returned slots of a leaving worker are lost."""

    def give_back(self: SlotQueue, worker: int, slots: Iterable[int]) -> None:
        for slot in slots:
            self._out.get(worker, {}).pop(slot, 0)

    return give_back


@mutant(ParameterServer, "_push")
def void_slot_not_pushed(real: Any) -> Any:
    """A void slot is reported, but never pushed."""

    async def push(
        self: ParameterServer, lane: Any, one: InflightStep, weights: Any, clock: int, second: InflightStep | None
    ) -> Any:
        if one.local is None:
            nothing = Task("nothing to push")
            nothing.finish()
            lane.push(one.slot, None, 0.0, nothing)
            return InflightStep(one.slot, None, nothing)
        return await real(self, lane, one, weights, clock, second)

    return push


@mutant(Evaluator, "_answer")
def evaluation_of_a_later_step(real: Any) -> Any:
    """The evaluator claims to have read the requested step, and reads the newest later on."""

    async def answer(self: Evaluator, asked: EvaluationOrder) -> Any:
        await self._ready(holds=asked.number)
        await self.worker.sleep(300_000_000)
        weights, _ = await self._weights(m.NO_CLOCK)
        self._read = asked, (weights, asked.clock)
        return await real(self, asked)

    return answer


@mutant(Evaluations, "barrier")
def dealt_past_an_evaluation(_: Any) -> Any:
    """Slots are dealt although the model of an evaluation is not read yet."""
    return lambda self, work, over: None


@MUTANTS.add
def resume_deals_counted_slots_again() -> Any:
    """A resumed run begins as if no slot was counted."""
    real = factory.state_to_resume

    def state(*given: Any, **more: Any) -> ScheduleState:
        return replace(real(*given, **more), counted=[])

    return mock.patch("shoal.simulation.training_world.state_to_resume", state)


@MUTANTS.add
def resume_skips_slots() -> Any:
    """A resumed run takes two more slots for counted than are in the model."""
    real = factory.state_to_resume

    def state(*given: Any, **more: Any) -> ScheduleState:
        found = real(*given, **more)
        last = found.counted[-1][1] if found.counted else 0
        return replace(found, counted=[*found.counted, (last, last + 2)])

    return mock.patch("shoal.simulation.training_world.state_to_resume", state)


@mutant(Scheduler, "state")
def checkpoint_says_what_is_counted_now(real: Any) -> Any:
    """A checkpoint of a step lists the slots counted at its start, not at that step."""
    return lambda self, cut=m.NO_CLOCK: real(self)


@mutant(StopDecision, "limit")
def one_step_too_many(real: Any) -> Any:
    """A run has one slot too many for its epochs or steps."""

    def limit(self: StopDecision, per_pass: int, slots_of_steps: int | None) -> Any:
        found, why = real(self, per_pass, slots_of_steps)
        return found + 1, why

    return limit


@mutant(StopDecision, "judged")
def patience_off_by_one(real: Any) -> Any:
    """A run goes on for one evaluation longer than its patience lasts."""

    def judged(self: StopDecision, loss: float, metrics: Any = None) -> Any:
        best, why = real(self, loss, metrics)
        late = why.startswith("no improvement") and self._without <= (self.rules.patience or 0)
        return best, "" if late else why

    return judged


@mutant(StopDecision, "judged")
def target_loss_not_looked_at_again(real: Any) -> Any:
    """A loss that is just reached does not end the run."""

    def judged(self: StopDecision, loss: float, metrics: Any = None) -> Any:
        best, why = real(self, loss, metrics)
        return best, "" if why.startswith("target") and self.rules.target_loss != loss else why

    return judged


@mutant(SlotQueue, "_mark")
def second_copy_counted_twice(real: Any) -> Any:
    """A slot that two workers computed counts as two."""

    def mark(self: SlotQueue, slot: int, name: str) -> Any:
        if not real(self, slot, name):
            self.done += 1
        return True

    return mark


@mutant(AutoDelay, "_longer")
def auto_delay_past_its_bound(real: Any) -> Any:
    """An automatic delay grows without a bound."""

    def longer(self: AutoDelay) -> Any:
        found = real(self)
        return found if found != self.delay or self._doubt else self.delay + 1

    return longer


@mutant(Scheduler, "rollback")
def rollback_keeps_what_was_counted(real: Any) -> Any:
    """After a rollback the slots since the checkpoint stay counted."""

    def rollback(
        self: Scheduler,
        now: int,
        state: ScheduleState | None,
        counted: Runs,
        why: str,
        checkpoint: int | None = None,
    ) -> Any:
        return real(self, now, state, self.workload.counted(), why, checkpoint)

    return rollback


@mutant(Trainer, "_forget")
def fenced_trainer_keeps_its_slots(real: Any) -> Any:
    """A fenced worker keeps its slots as a new incarnation."""

    def forget(self: Trainer) -> None:
        counted, mine = list(self._counted), set(self._assigned)
        real(self)
        self._counted, self._assigned = counted, mine

    return forget


@mutant(Scheduler, "resume")
def run_ends_with_slots_that_nobody_asked_about(real: Any) -> Any:
    """A restarted coordinator ends a run without asking which slots the workers hold."""

    def resume(self: Scheduler, lines: Any, workers: Any = ()) -> None:
        real(self, lines, ())

    return resume


@mutant(Scheduler, "tick")
def time_counts_before_the_first_weights_are_read(real: Any) -> Any:
    """A run runs out of time before it has begun."""

    def tick(self: Scheduler, now: int) -> Any:
        held = self.evaluations.held
        early = self.begun and held < 0 and not self.over and not self.ended
        if early and (why := self.stopping.out_of_time(self.seconds)):
            self._stop(why)
        return real(self, now)

    return tick


@mutant(Worker, "_received")
def worker_ends_when_a_disk_is_full(real: Any) -> Any:
    """A worker ends when it should wait for room on the coordinator's disk."""

    def received(self: Worker, now: int, event: Any) -> Any:
        patient, self.client.dispatcher.patient = self.client.dispatcher.patient, False
        try:
            return real(self, now, event)
        finally:
            self.client.dispatcher.patient = patient

    return received


@mutant(SchedulerNode, "__init__")
def scheduler_forgets_its_journal(real: Any) -> Any:
    """A group's scheduler that restarts starts from zero."""

    def init(self: SchedulerNode, *given: Any, **more: Any) -> None:
        real(self, *given[:5], **more)

    return init


@mutant(Clocks, "may_pull")
def delay_off_by_one(real: Any) -> Any:
    """Workers run one step further ahead than they may."""
    return lambda self, clock, segments: real(self, clock - 1, segments)


@mutant(AutoDelay, "_longer")
def delay_shrinks_while_they_wait(real: Any) -> Any:
    """The automatic delay shrinks where workers wait too much, if it is more than one step."""
    return lambda self: real(self) if self.delay < 2 else self.delay - 1


@mutant(Roster, "roll_back")
def no_generation_after_rollback(_: Any) -> Any:
    """Nodes go on after a rollback as if there was none."""

    def roll_back(self: Roster, origins: dict[str, tuple[list[int], str]]) -> None:
        for name, table in list(self.tables.items()):
            del self.tables[name]
            starts, origin = origins.get(name, (table.starts, ""))
            self.create(name, table.spec, starts, origin)

    return roll_back


# ---------------------------------------------------------------- checkpoints


@CHECKPOINT_MUTANTS.replacing(SimulatedDisk, "_sync")
def manifest_before_data(real: Any) -> Any:
    """The manifest is written before the blocks of its segments."""

    def sync(self: SimulatedDisk, path: Path, file: Any) -> None:
        if path.suffix != ".safetensors":
            real(self, path, file)

    return sync


@CHECKPOINT_MUTANTS.replacing(SimulatedDisk, "sync_folder")
def no_directory_sync(_: Any) -> Any:
    """Names are left to the page cache."""
    return lambda self, folder: None


@CHECKPOINT_MUTANTS.replacing(segment_file, "write_segment")
def ledger_not_in_checkpoint(real: Any) -> Any:
    """A checkpoint has rows and versions, but no ledger."""

    def write_segment(disk: Disk, folder: Path, name: str, number: int, image: SegmentImage) -> Any:
        written = real(disk, folder, name, number, image)
        return replace(written, books=replace(written.books, ledger={}))

    return write_segment


MUTANTS.update(CHECKPOINT_MUTANTS)

"""What is known of a run while it is dealt: how it is journalled, kept in a checkpoint, and taken up again.

Three ways to go on:

    resume      the coordinator was started again: servers, workers and the evaluator are as they were, and go on
    restore     the whole run was started again, from a checkpoint: everybody is new
    rollback    the servers lost a part of the model: everybody goes back to a checkpoint, under a new generation

What is counted is journalled four times a second, who was dealt what is not (decision 0007). What others act on at once (an
evaluation asked for, read or judged, a void slot, a stop rule; in step mode how far is dealt, and a slot that read newer weights)
is in the journal before anybody hears of it (``held_back``): a coordinator that is started again knows all that was said, and says nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from shoal import limits
from shoal.events import RolledBack, Started, Warned
from shoal.nodes.held_events import HeldEvents
from shoal.nodes.scheduler_state import (
    JournalMark,
    JournalSnapshot,
    Judgements,
    Line,
    LossTally,
    RunSummary,
    Said,
    ScheduleState,
    TrafficTotals,
    finite,
    folded,
    to_begin_with,
    without,
)
from shoal.schedule.auto_delay import AutoDelay
from shoal.schedule.evaluations import Evaluations
from shoal.schedule.runs import Runs, runs, spread
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.speculative import SpeculativeCopies
from shoal.schedule.stop_rules import StopDecision
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Persist, Tell

JOURNAL_TOKEN = -1  # of a Persist of ours: there is one at a time
NEWER = "slots with newer weights"  # as they are counted


class JournalledSchedule:
    """One run, as far as it is kept."""

    timing: TimingSettings = DEFAULT  # until whoever holds it knows better

    def __init__(
        self,
        workload: SlotQueue,
        stopping: StopDecision,
        started: Started,
        every: int,
        limit_reason: str,
        auto: AutoDelay | None = None,
        seconds: SpeculativeCopies | None = None,
    ) -> None:
        self.workload, self.stopping = workload, stopping
        self.auto, self.second = auto, seconds
        self.evaluations = Evaluations(every)
        self.generation = 0
        self.over = ""  # nothing more is dealt, and why
        self.failed = ""  # the run cannot end well, and why
        self.examples = 0
        self.traffic = TrafficTotals()
        self.counts: Counter[str] = Counter()
        self._started, self._limit_reason = started, limit_reason
        self._limit = workload.limit  # if no rule ends it before
        self._awaited = started.workers  # before the first slot is dealt
        self._first_seen = 0  # when the first of them asked
        self._begun = False
        self._before = 0.0  # seconds of former lives
        self._since = 0  # when this life's began to count
        self._now = 0
        self._computed: float | None = None  # seconds when the last slot was counted
        self._seen: dict[int, str] = {}  # workers that have asked for work, by incarnation
        self._answers: dict[int, m.Deal] = {}
        self._former = False  # workers may hold what a former life of the coordinator dealt them
        self._unheard: dict[int, None] = {}  # of the workers that a former life dealt to: what they hold is not known
        self._listens_until = 0  # for them: who says nothing holds nothing that is waited for
        self._stops_later = False  # a rule has ended it; where, is known when all of these were heard
        self._new: set[str] = set()  # those that joined in this life, and hold nothing of the kind
        self._last_loss: float | None = None
        self._progress, self._between = LossTally(), LossTally()
        self._told = 0
        self._spent: list[int] = []  # microseconds of the workers, by kind, not yet told
        self._each: dict[str, dict[str, float]] = {}  # of every worker, since the last evaluation
        self._read_at: float | None = None  # seconds when the weights that are judged were read
        self._counted: list[int] = []  # not yet journalled
        self._voided: dict[int, str] = {}
        self._known_voids: set[int] = set()
        self._alone_since = 0
        self._judge_gone = (0, "")  # since when, and why
        self._judge_asked = 0  # its last request
        self._judge_unheard: int | None = None  # after a restart or a rollback: since when; None: it was heard
        self._finished = False  # the last evaluation is in
        self._noted = self._milestone  # journalled so far
        self._promised = 0  # step mode: the journal has that no slot past this was dealt
        self._promising = 0  # the line that is on its way has
        self._lately, self._last_next = 0, 0  # step mode: slots dealt in the last quarter of a second; up to then
        self._held = HeldEvents()
        self._untold: list[Said] = []  # what a former life was to tell, and perhaps did not
        self._set_barrier()

    def await_only(self, workers: int) -> None:
        """So many are enough for the first slot, however many are to come."""
        self._awaited = workers

    @property
    def seconds(self) -> float:
        return self._before + (self._now - self._since) / limits.SECOND if self._since else self._before

    @property
    def computing_seconds(self) -> float:
        """From the first slot to the last: without the evaluation that comes after it."""
        return self.seconds if self._computed is None else self._computed

    @property
    def steps(self) -> int:
        return self.workload.steps

    @property
    def ended(self) -> bool:
        return self._finished or bool(self.failed)

    @property
    def cut(self) -> int | None:
        """The step at which a checkpoint may be cut now, or NO_CLOCK where there are no steps; None: not now."""
        if not self._begun or self.failed or self.evaluations.held < 0:
            return None
        return m.NO_CLOCK if self.workload.step is None else self.evaluations.cut(self.workload)

    def state(self, cut: int = m.NO_CLOCK) -> ScheduleState:
        """All that is known now; of a model that is cut after so many steps, as it will be then."""
        work, (refusals, deaths) = self.workload, self.workload.blame()
        counted = work.counted() if cut < 0 else [(0, work.slots_until(cut))] if cut else []
        return ScheduleState(counted, dict(work.voids), refusals, deaths, self._account())

    def completed(self, state: ScheduleState) -> ScheduleState:
        """What ``state`` said, when the model is cut: slots before a step that is cut later may have become void meanwhile.

        Or they read newer weights, which is in the model then: so what was counted of the run is as it is now.
        """
        account = msgspec.structs.replace(state.account, counts=dict(self.counts))
        return msgspec.structs.replace(state, voids={**state.voids, **self.workload.voids}, account=account)

    def resume(self, lines: Iterable[Line], workers: Iterable[int] = ()) -> None:
        """Take up a run that a former life of the coordinator dealt, by its journal: all others are as they were.

        Workers hold slots that nobody knows of. What they say is counted of these is counted, what they hold stays theirs, and
        all else is dealt again. So nothing is dealt, and no rule decides where the run ends, before all ``workers`` that were
        here (by incarnation) have said what they hold, or are gone: two that compute the same slot would not read the same
        weights in step mode, and a run that ends would leave out what is under way.
        """
        state = folded(lines)
        self._take(state, state.counted, state.account.dealt)
        self.evaluations.at = dict(state.account.judgements.at)
        self.evaluations.asked, self.evaluations.held = state.account.judgements.asked, state.account.judgements.held
        self._begun, self._finished = state.account.begun, state.account.finished
        if not self._begun:  # from a checkpoint, if anything is counted: what it says of examples is of another moment
            self.examples = self.workload.rows_counted
        self._former, self._untold = True, state.account.said
        self._judge_unheard = 0 if self._begun else None
        self._unheard = dict.fromkeys(workers)
        self._set_barrier()
        self._noted = self._milestone

    def restore(self, now: int, state: ScheduleState, counted: Runs | None = None) -> None:
        """Begin where a checkpoint ends, as ``resume`` does with a journal that has but this line."""
        self.resume([JournalSnapshot(to_begin_with(state, counted))])

    def rollback(
        self, now: int, state: ScheduleState | None, counted: Runs, why: str, checkpoint: int | None = None
    ) -> list[Effect]:
        """Everything after this checkpoint (or after the beginning, if there is none) is done again.

        Whoever took part does so no more: workers and the evaluator are fenced and come back as new incarnations. Time goes on.
        What was judged since is forgotten here; a slot that nobody could compute stays void.
        """
        self._it_is(now)
        if self.ended:
            return []
        work, seconds, counts, traffic = self.workload, self.seconds, Counter(self.counts), self.traffic
        state = state or ScheduleState(account=RunSummary(begun=self._begun))
        voids = {**work.voids, **state.voids}
        self._take(msgspec.structs.replace(state, voids=voids), counted)
        self.examples = self.workload.rows_counted
        self.generation += 1
        self._before, self._since = seconds, now
        again = without(work.counted(), self.workload.counted())
        self.counts, self.traffic = counts, traffic
        self.counts["rollbacks"] += 1
        self.counts["slots done again"] += sum(stop - first for first, stop in again)
        if self._begun and self.evaluations.asked < 0:
            self._ask()
        self._set_barrier()
        self._judge_unheard = now
        self._held.lacks = True  # what the journal says of the model holds no more
        told = RolledBack(
            seconds=self.seconds,
            checkpoint=checkpoint,
            steps_before=max(work.steps, self.workload.steps),  # the last reports may not have come yet
            steps_after=self.workload.steps,
            slots=again,
            why=why,
        )
        self._held.wait([Tell(told)])
        return self._write(now)

    def _take(self, state: ScheduleState, counted: Runs, dealt: int | None = None) -> None:
        """Everything is as it was then; nobody is here."""
        account, old = state.account, self.workload
        work = self.workload = SlotQueue(old.order, self._limit if account.limit is None else account.limit, old.step)
        work.voids.update(state.voids)
        work.resume(spread(counted, 1 << 40), dealt, state.refusals, state.deaths)
        self._promised, self._lately, self._last_next = 0, 0, work.next
        self._promised = self._promising = self._promise()
        self._known_voids = set(work.voids)
        self._counted, self._voided = [], {}
        self._seen, self._answers, self._new, self._unheard = {}, {}, set(), {}
        self._alone_since, self._judge_gone = 0, (0, "")
        if self.second is not None:
            self.second = SpeculativeCopies()
        self.generation = max(self.generation, account.generation)
        self.over, self._finished, self._computed = account.over, False, account.computing
        self._stops_later = bool(account.over) and account.limit is None
        self.examples, self._before, self._since = account.examples, account.seconds, 0
        self.traffic = TrafficTotals(dict(account.traffic), dict(account.filtered), dict(account.left))
        self.counts = Counter(account.counts)
        judgements = account.judgements
        self.evaluations.found, self.evaluations.at = judgements.found, dict(judgements.at)
        self.evaluations.forget_open()
        self._last_loss, self._progress = judgements.last_loss, LossTally()
        self._between = LossTally(judgements.since[0], math.nan if judgements.since[1] is None else judgements.since[1])
        self.stopping.restore(account.patience)

    def _it_is(self, now: int) -> None:
        if self.ended:
            return  # what comes later is no part of the run
        self._now = now
        if self._begun and not self._since:
            self._since = now

    def _account(self, said: list[Said] | None = None) -> RunSummary:
        asked, between = self.evaluations, self._between
        return RunSummary(
            generation=self.generation,
            begun=self._begun,
            seconds=self.seconds,
            computing=self._computed,
            examples=self.examples,
            dealt=self._promising,
            limit=self.workload.limit if self.over and not self._stops_later else None,
            over=self.over,
            finished=self._finished,
            judgements=Judgements(
                asked.asked,
                asked.held,
                asked.found,
                dict(asked.at),
                self._last_loss,
                (between.examples, finite(between.loss)),
            ),
            patience=self.stopping.state(),
            traffic=dict(self.traffic.by),
            filtered=dict(self.traffic.filtered),
            left=dict(self.traffic.left),
            counts=dict(self.counts),
            said=said or [],
        )

    @property
    def _milestone(self) -> tuple[object, ...]:
        """What is journalled as soon as it changes."""
        asked = self.evaluations
        newer = self.counts[NEWER]  # it is pushed when this is answered, and who pushed it may die
        return (self._begun, self.over, self._finished, asked.asked, asked.held, asked.found, newer)

    def _deals_past(self, promise: int) -> bool:
        """Step mode: more was dealt, to whomever, than this line of the journal says may be.

        A worker may die with what it was dealt, and what it pushed is in the model all the same. So a next life that has to
        end the run must know how far that may be, also if nobody is left who could say it.
        """
        return self.workload.step is not None and self.workload.next > promise

    def _promise(self) -> int:
        """Step mode: a line says that nothing past this is dealt before another one says so.

        That is a little further than was dealt: as far as in a quarter of a second, so that few deals have to wait for a line.
        """
        work = self.workload
        if work.step is None:
            return 0
        end = work.limit if work.barrier is None else min(work.limit, work.barrier)
        return max(work.next, self._promised, min(end, work.next + self._lately))

    @property
    def is_told(self) -> bool:
        """Nothing that has happened is still to be told."""
        return self._held.is_empty

    @property
    def is_behind(self) -> bool:
        """The journal would take the run up where it is no more: nothing else is written that follows from where it is."""
        return self._held.is_behind and not self._held.has_given_up(self._now, self.timing.journal)

    def durable(self, now: int, error: str) -> list[Effect]:
        """A line of ours is in the journal, or could not be written: what waited for it, and the next one."""
        if not self._held.writing:
            return []
        if error:
            self._held.refused(now)
            self._promising = self._promised
            return self.warn(f"the journal cannot be written: {error}")
        self._promised = self._promising
        return [*self._held.written(), *self._write(now)]

    def warn(self, what: str) -> list[Effect]:
        """Once for each thing."""
        self.counts[what] += 1
        return [Tell(Warned(seconds=self.seconds, what=what))] if self.counts[what] == 1 else []

    def _journalled(self, now: int, effects: list[Effect]) -> list[Effect]:
        """These as soon as what they say or follow from is in the journal, and a line for it, if one is due."""
        if self._untold:
            effects, self._untold = [*(Tell(event) for event in self._untold), *effects], []
            self._held.is_told_only_here = True
        if self._held.has_given_up(now, self.timing.journal):
            self._noted, self._voided = self._milestone, {}  # all is said anew, once anything can be written
            return [*self._held.give_up(), *effects, *self._write(now)]
        if self._milestone == self._noted and not self._voided and not self._deals_past(self._promising):
            past = self._deals_past(self._promised)  # and the line that is on its way says so
            return [*(self._held.behind(effects) if past else self._held.after(effects)), *self._write(now)]
        self._held.wait(effects)
        self._noted = self._milestone
        return self._write(now)

    def _write(self, now: int) -> list[Effect]:
        """The next line, if something waits for it and none is on its way."""
        return self._line() if self._held.is_due(now) else []

    def _mark(self, now: int) -> list[Effect]:
        """A line that nothing waits for: what was counted; four times a second, if anything was."""
        self._lately, self._last_next = self.workload.next - self._last_next, self.workload.next
        return self._line() if self._counted and self._held.may_write(now) else []

    def _line(self) -> list[Effect]:
        whole, said = self._held.begin()
        self._promising = self._promise()
        line: Line = JournalMark(runs(sorted(self._counted)), self._voided, self._account(said))
        if whole:
            line = JournalSnapshot(msgspec.structs.replace(self.state(), account=self._account(said)))
        self._counted, self._voided, self._noted = [], {}, self._milestone
        return [Persist(JOURNAL_TOKEN, msgspec.msgpack.encode(line))]

    def _ask(self) -> None:
        self.evaluations.ask(self.workload, self.examples, len(self._seen))

    def _set_barrier(self) -> None:
        self.workload.barrier = self.evaluations.barrier(self.workload, bool(self.over))

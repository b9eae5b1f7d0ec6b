"""Deals slots to workers, asks for evaluations, applies stop rules and reports events.

The scheduler is on no push or pull. The coordinator holds the one of its own run, and a worker
group has one in a process of its own (``scheduler_node``). A worker asks for slots (``Want``) and
says in the same message which are counted; an evaluator asks what to do (``EvaluationReady``). Both
get an answer at once, and ask again soon. No slot is dealt before the first weights are read,
and in step mode none past an evaluation, so that exactly that step is evaluated.

    resume      the coordinator was restarted: all other nodes go on as they were
    rollback    the servers lost a segment: back to a checkpoint, in a new generation

What others act on is in the journal before they hear of it (``scheduler_journal``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice

import msgspec

from shoal import limits
from shoal.cluster.roster import Roster
from shoal.events import Delayed, Evaluated, Gone, Joined, Progress, RolledBack, Spans, Started, Stopped, Voided, Warned
from shoal.nodes.scheduler_journal import (
    DurableEvent,
    EvaluationState,
    Line,
    LossTally,
    RunSummary,
    ScheduleJournal,
    ScheduleState,
    TrafficTotals,
    replayed,
)
from shoal.nodes.time_accounting import COMPUTE, IDLE, KINDS, WAIT
from shoal.schedule.evaluations import Evaluations
from shoal.schedule.intervals import Intervals, Runs, count, runs, spread
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stop_rules import StopDecision
from shoal.schedule.stragglers import AutoDelay, SpeculativeCopies
from shoal.tables import TABLE
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Tell

NEWER = "slots with newer weights"  # as they are counted
_REPORT = 250 * limits.MILLISECOND  # how often progress is reported and journalled
_LATE = 30 * limits.SECOND  # after the first worker: then the run begins without the others
_STALLED = 30 * limits.SECOND  # without any slot counted: worth a warning
_NOBODY = 10 * limits.SECOND  # without any worker or evaluator: then the run has failed
_VOIDS = 100  # void slots that a progress report names: one answer has an end


class WorkerReports:
    """Losses and times that workers reported since the last progress event and evaluation."""

    def __init__(self) -> None:
        self.progress = LossTally()  # since the last progress event
        self.between = LossTally()  # since the last evaluation
        self._spent = [0] * len(KINDS)  # microseconds, since the last progress event
        self.by_worker: dict[str, dict[str, float]] = {}  # since the last evaluation

    def add_time(self, worker: str | None, spent: list[int], slots: int) -> None:
        self._spent = [a + b for a, b in zip(self._spent, spent, strict=True)]
        if worker is None:
            return
        mine = self.by_worker.setdefault(worker, {"slots": 0})
        seconds = ((kind, one / 1e6) for kind, one in zip(KINDS, spent, strict=True))
        for what, one in (("slots", slots), *seconds):
            if one:
                mine[what] = round(mine.get(what, 0) + one, 6)

    def take_progress(self) -> tuple[float | None, dict[str, float]]:
        mean = self.progress.mean()
        spent = {kind: one / 1e6 for kind, one in zip(KINDS, self._spent, strict=True) if one}
        self.progress, self._spent = LossTally(), [0] * len(KINDS)
        return mean, spent


class Scheduler:
    """One run: its slots, its evaluations, its end."""

    timing: TimingSettings = DEFAULT  # until the view says otherwise
    silent_servers: Sequence[str] = ()  # servers that have not been heard for a while
    elsewhere = False  # workers come and go by themselves: that none is here does not end the run

    def __init__(
        self,
        workload: SlotQueue,
        stopping: StopDecision,
        started: Started,
        every: int,
        limit_reason: str,
        auto: AutoDelay | None = None,
        speculative: SpeculativeCopies | None = None,
    ) -> None:
        self.workload, self.stopping = workload, stopping
        self.auto, self.speculative = auto, speculative
        self.evaluations = Evaluations(every)
        self.generation = 0
        self.over = ""  # nothing more is dealt, and why
        self.failed = ""  # the run cannot end well, and why
        self.examples = 0
        self.traffic = TrafficTotals()
        self.counts: Counter[str] = Counter()
        self.begun = False
        self._started, self._limit_reason = started, limit_reason
        self._limit = workload.limit  # unless a rule ends the run before
        self._now = 0
        self._earlier = 0.0  # seconds of earlier processes of this run
        self._started_at = 0  # when the seconds of this process began
        self._last_counted_at: float | None = None  # seconds when the last slot was counted
        self._finished = False  # the last evaluation is in
        self._stops_later = False  # a rule has ended the run; where depends on ``_unreported``
        self._reports, self._reported = WorkerReports(), 0
        self._last_loss: float | None = None
        self._known_voids: set[int] = set()
        self._stall = (-1, 0, 0)  # slots done, since when, last looked at
        # Workers, by incarnation
        self.expected = started.workers  # before the first slot is dealt
        self._first_seen = 0  # when the first one asked for work
        self._workers: dict[int, str] = {}  # those that have asked for work
        self._answers: dict[int, m.Deal] = {}
        self.alone_since = 0  # when no worker was left; 0: there are some
        # After a restart: workers may hold slots that an earlier process of the scheduler dealt.
        self._resumed = False
        self._unreported: dict[int, None] = {}  # workers that have not said yet what they hold
        self._listens_until = 0  # then the run no longer waits for silent workers
        self._joined_since: set[str] = set()  # names; they hold none of those slots
        # The evaluator
        self._read_at: float | None = None  # seconds when the weights under evaluation were read
        self._evaluator_gone = (0, "")  # since when, and why
        self._last_gone = ""  # the last worker that left, and why
        self._evaluator_request = 0  # its last request
        self._evaluator_unheard: int | None = None  # since a restart or rollback; None: heard
        self.journal = ScheduleJournal(self)
        self._set_barrier()

    @property
    def seconds(self) -> float:
        return self._earlier + (self._now - self._started_at) / limits.SECOND if self._started_at else self._earlier

    @property
    def computing_seconds(self) -> float:
        return self.seconds if self._last_counted_at is None else self._last_counted_at

    @property
    def steps(self) -> int:
        return self.workload.steps

    @property
    def ended(self) -> bool:
        return self._finished or bool(self.failed)

    @property
    def is_done(self) -> bool:
        """No worker needs to compute any more."""
        return bool(self.failed) or (self.begun and self.workload.finished)

    @property
    def cut(self) -> int | None:
        """The step at which a checkpoint may be cut now; NO_CLOCK without steps; None: not now."""
        if not self.begun or self.failed or self.evaluations.held < 0:
            return None
        return m.NO_CLOCK if self.workload.step is None else self.evaluations.cut(self.workload)

    @property
    def milestone(self) -> tuple[object, ...]:
        """State that is journalled as soon as it changes."""
        asked = self.evaluations
        newer = self.counts[NEWER]  # it is pushed when this is answered, and its worker may die
        return (self.begun, self.over, self._finished, asked.asked, asked.held, asked.found, newer)

    def progress(self) -> m.RunProgress:
        work = self.workload
        slots = (work.done, work.limit, work.per_pass, work.steps, work.step is not None)
        voids, traffic = dict(islice(work.voids.items(), _VOIDS)), self.traffic
        figures = (self.examples, self.seconds, self.computing_seconds, *traffic.totals())
        end = (self.over, self.failed, self.ended)
        return m.RunProgress(*slots, *figures, *end, voids, dict(self.counts), traffic.through(), traffic.remainder())

    def _advance_time(self, now: int) -> None:
        if self.ended:
            return  # time after the end does not count
        self._now = now
        if self.begun and not self._started_at:
            self._started_at = now

    def joined(self, now: int, name: str, role: str) -> list[Effect]:
        self._advance_time(now)
        self._joined_since.add(name)
        return [] if role in ("client", "evaluator") else [Tell(Joined(seconds=self.seconds, name=name, role=role))]

    def gone(self, now: int, member: m.Member, why: str, died: bool) -> list[Effect]:
        """A member was removed. Of a server: others have copies, or the run rolls back."""
        self._advance_time(now)
        if self.ended or (self.is_done and not died) or member.role == "client":
            return []
        if member.role == "server":
            self.counts["servers lost"] += died
            return [Tell(Gone(seconds=self.seconds, name=member.name, role=member.role, why=why))]
        if member.role == "evaluator":  # it may only have been asleep, and join again
            self._evaluator_gone = (now, why)
            return []
        self._last_gone = f"{member.name}: {why}"
        self._unreported.pop(member.incarnation, None)
        if self.speculative is not None:
            self.speculative.gone(member.incarnation)
        slots = self.workload.leave(member.incarnation, died)
        self._workers.pop(member.incarnation, None)
        self._answers.pop(member.incarnation, None)
        left = self.traffic.gone(member.incarnation) if died else 0.0
        self.counts["workers lost"] += died
        self.counts["slots dealt again"] += slots
        gone = Gone(seconds=self.seconds, name=member.name, role=member.role, why=why, slots=slots, left=left)
        return self.journal.when_durable(now, [Tell(gone), *self._expect_one_less(now, self._last_gone)])

    def never_came(self, now: int, name: str, why: str) -> list[Effect]:
        self._advance_time(now)
        if self.begun or self.ended:
            return []
        self.counts["workers lost"] += 1
        gone = Tell(Gone(seconds=0.0, name=name, role="worker", why=why))
        return self.journal.when_durable(now, [gone, *self._expect_one_less(now, f"{name}: {why}")])

    def _expect_one_less(self, now: int, last: str) -> list[Effect]:
        if self.begun or self.elsewhere:
            return []
        self.expected -= 1
        if self.expected < 1 and not self._workers:
            return self._fail(f"no worker was there for the first slot: all ended or left (the last was {last})")
        return self._begin(now) if self._workers and len(self._workers) >= self.expected else []

    def started_again(self, now: int, term: int) -> list[Effect]:
        self._advance_time(now)
        self.counts["coordinator restarts"] += 1
        what = f"the coordinator ended and was started again (term {term}): it continues from its journal"
        return [Tell(Warned(seconds=self.seconds, what=what))]

    def tick(self, now: int) -> list[Effect]:
        """To be called after every event."""
        self._advance_time(now)
        effects: list[Effect] = []
        if self._unreported:
            self._listens_until = self._listens_until or now + self.timing.dead
            if now >= self._listens_until:
                self._unreported.clear()
        if self._stops_later and not self._unreported:
            self._stop(self.over)
            self._check_finished()
        if not self.begun and not self.ended and self._workers and now - self._first_seen > _LATE:
            missing = self.expected - len(self._workers)
            effects += self.warn(f"{missing} of the workers did not ask for work in time: it begins without them")
            effects += self._begin(now)
        if not self.begun or self.ended:
            return self.journal.when_durable(now, effects)
        # Time counts from when the first weights were read: before that no slot is dealt.
        if not self.over and self.evaluations.held >= 0 and (why := self.stopping.out_of_time(self.seconds)):
            self._stop(why)
        if why := self._missing_node(now):
            return self.journal.when_durable(now, [*effects, *self._fail(why)])
        if self.alone_since and self.elsewhere and now - self.alone_since > self._patience(_NOBODY):
            effects += self.warn("no worker is here any more: it goes on when one comes (shoal launch worker)")
        if self.auto is not None and not self.over and self.auto.look(now, len(self._workers)):
            effects.append(Tell(Delayed(seconds=self.seconds, max_delay=self.auto.delay, waiting=self.auto.share)))
        effects += self._warn_if_stalled(now)
        if now - self._reported < _REPORT:
            return self.journal.when_durable(now, effects)
        effects += self._report_progress(now)
        return [*self.journal.when_durable(now, effects), *self.journal.mark(now)]

    def _patience(self, least: int) -> int:
        return max(least, 2 * self.timing.dead)

    def _missing_node(self, now: int) -> str:
        if self._workers or self.workload.finished:
            self.alone_since = 0
        else:
            self.alone_since = self.alone_since or now
            if now - self.alone_since > self._patience(_NOBODY) and not self.elsewhere:
                last = f" (the last was {self._last_gone})" if self._last_gone else ""
                return f"no worker is left to compute: start it again, with more workers{last}"
        since, why = self._evaluator_gone
        if since and now - since > self._patience(_NOBODY):
            return f"the evaluator is gone ({why}), and did not come back"
        if self._evaluator_unheard is not None:  # it may have ended before, or during the restart
            self._evaluator_unheard = self._evaluator_unheard or now
            if now - self._evaluator_unheard > self._patience(_LATE):
                return "the evaluator did not ask for work in time: start it again, or the whole run"
        return ""

    def _warn_if_stalled(self, now: int) -> list[Effect]:
        done, (before, since, looked) = self.workload.done, self._stall
        if now - looked > self.timing.suspect:  # this process slept: blame no other node
            since += now - looked
        if done != before or self.workload.finished or not self._workers:
            since = now
        self._stall = (done, since, now)
        if now - since < _STALLED:
            return []
        what = f"after slot {done:,} nothing was counted for {_STALLED // limits.SECOND} s"
        if self.silent_servers:
            return self.warn(
                f"{what}: {', '.join(self.silent_servers[:4])} does not answer, and has the only copy of some segments; "
                f"if it was killed, start another under its name (shoal launch server --name {self.silent_servers[0]}): "
                f"then it goes on from the last checkpoint"
            )
        names = sorted(self._workers.values())
        who = ", ".join(names[:4]) + (f" and {len(names) - 4} others" if len(names) > 4 else "")
        return self.warn(f"{what}: {who} answer, and still compute or wait")

    def set_delay(self, roster: Roster) -> None:
        """Write the delay that was found into the table: servers learn it with the next view."""
        placed = roster.tables.get(TABLE)
        if self.auto is not None and placed is not None and placed.spec.max_delay != self.auto.delay:
            roster.set_max_delay(TABLE, self.auto.delay)

    def take(self, now: int, member: m.Member, ask: m.Want | m.EvaluationReady) -> list[Effect]:
        role = "worker" if isinstance(ask, m.Want) else "evaluator"
        if member.role != role:
            why = f"only a {role} may ask this, you are a {member.role}"
            return [Send(member.name, m.Refusal(ask.request, "setting", why))]
        return self.want(now, member.name, ask) if isinstance(ask, m.Want) else self.ready(now, member.name, ask)

    def want(self, now: int, sender: str, want: m.Want) -> list[Effect]:
        self._advance_time(now)
        known = self._answers.get(want.incarnation)
        if known is not None and want.request <= known.request:
            # The answer was lost: nothing is counted or dealt twice. An older request is not waited
            # for any more. While effects are held the answer may be among them: the worker asks
            # again.
            return [Send(sender, known)] if want.request == known.request and self.journal.is_empty else []
        work, who = self.workload, want.incarnation
        if not self.is_done and not want.leaving and who not in self._workers:
            self._workers[who] = sender
            self._first_seen = self._first_seen or now
            work.enter(who, sender)
        self.traffic.take(want)
        effects = self._report_spans(sender, want.spans)
        self._measure(want)
        self._count(who, sender, want)
        work.give_back(who, work.among(who, want.back))
        if want.leaving:
            work.goes(who)
        for slot, why in want.refused.items():
            work.refuse(who, slot, why)
        self._check_held(who, want.holds)
        effects += self._report_voids()
        if want.newer:
            self.counts[NEWER] += want.newer
            effects += self.warn("a slot that was reassigned read some weights that were one step newer")
        if not self.begun and not self.ended and len(self._workers) >= self.expected:
            effects += self._begin(now)
        may = self.begun and not want.leaving and not self.is_done and who in self._workers
        waits = self._unreported or self._stops_later
        again, fresh, late = self._deal(now, want) if may and not waits else ([], [], [])
        self._check_finished()
        void = [slot for slot in (*again, *fresh) if slot in work.voids]
        over = self.over if self.is_done else "you left" if want.leaving else ""
        deal = m.Deal(want.request, runs(fresh), runs(again), runs(late), void, over)
        self._answers[who] = deal
        return self.journal.when_durable(now, [*effects, Send(sender, deal)])

    def _deal(self, now: int, want: m.Want) -> tuple[list[int], list[int], list[int]]:
        again, fresh = self.workload.deal(want.incarnation, want.more)
        if self.speculative is None:
            return again, fresh, []
        lent = self.speculative.choose(now, want.incarnation, self.workload)
        self.counts["second copies"] += len(lent)
        return sorted([*again, *lent]), fresh, self.workload.late(want.incarnation)

    def _check_held(self, who: int, holds: Runs | None) -> None:
        if holds is not None and who in self._unreported and who in self._workers:
            self.workload.adopt(who, holds)
        elif holds is not None:  # slots that it holds by the answer of an earlier process
            self.counts["slots that never came"] += self.workload.keep_only(who, holds)
        self._unreported.pop(who, None)

    def _measure(self, want: m.Want) -> None:
        spent = [*want.spent[: len(KINDS)], *[0] * (len(KINDS) - len(want.spent))]
        done = count(want.counted)
        self._reports.add_time(self._workers.get(want.incarnation), spent, done)
        if self.auto is not None:
            self.auto.take(spent[WAIT], sum(spent) - spent[IDLE], done)
        if self.speculative is not None and want.incarnation in self._workers:
            self.speculative.take(want.incarnation, spent[COMPUTE], done)

    def _count(self, who: int, sender: str, want: m.Want) -> None:
        work = self.workload
        new = work.count(who, work.among(who, want.counted))
        if self._resumed and sender not in self._joined_since and who in self._workers:
            new += work.claim(who, want.counted)
        if self.speculative is not None:
            self.counts["second copies first"] += self.speculative.first(who, new)
        self.journal.counted += new
        reported = count(want.counted)
        examples, loss = want.examples, want.loss
        if reported > len(new) and examples:  # some were counted before
            examples = min(examples, work.rows(new))
            loss *= examples / want.examples
        self.examples += examples
        self._reports.progress.add(examples, loss)
        self._reports.between.add(examples, loss)

    def _begin(self, now: int) -> list[Effect]:
        self.begun, self._started_at, self._reported = True, now, now
        if self.evaluations.asked < 0:
            self._ask()
        workers = len(self._workers) if self.elsewhere else self._started.workers
        return [Tell(msgspec.structs.replace(self._started, seconds=self.seconds, workers=workers))]

    def _stop(self, why: str) -> None:
        self.over = self.over or why
        self._stops_later = bool(self._unreported)  # what they hold is part of the run
        if not self._stops_later:
            self.workload.stop()
            self.workload.barrier = None

    def _check_finished(self) -> None:
        if self.begun and self.workload.finished:
            self.over = self.over or self._limit_reason
            self._last_counted_at = self.seconds if self._last_counted_at is None else self._last_counted_at

    def ready(self, now: int, sender: str, ready: m.EvaluationReady) -> list[Effect]:
        self._advance_time(now)
        self._evaluator_gone, self._evaluator_unheard = (0, ""), None
        if not self.journal.is_empty and ready.request == self._evaluator_request:
            return []  # its answer is held
        self._evaluator_request = ready.request
        effects = self._report_spans(sender, ready.spans)
        asked, first = self.evaluations, self.evaluations.held < 0
        if ready.error:
            effects += self._fail(f"the model cannot be evaluated: {ready.error}")
        if self.workload.step is not None and ready.clock >= 0:
            effects += self._moved(ready)
        if asked.read(ready.holds):
            if first and not self.generation:  # the first weights are read: slots are dealt now
                self._started_at = self._reported = now
            self._read_at = self.seconds
            self._set_barrier()
        if not self.ended and (where := asked.judged(ready.found)) is not None:
            effects += self._judged(ready, *where)
        self._check_finished()
        if self.begun and not self.ended and asked.is_due(self.workload, bool(self.over)):
            self._ask()
        # An evaluator that asks evaluates nothing now: it may have forgotten what it was asked.
        number = asked.open if (ready.holds < 0 and ready.found < 0) or asked.open > asked.held else -1
        clock = m.NO_CLOCK
        if number >= 0 and self.workload.step is not None:
            clock = self.workload.steps_until(asked.at[number][0])
        answer = m.EvaluateNow(ready.request, number, clock, self.ended)
        return self.journal.when_durable(now, [*effects, Send(sender, answer)])

    def _moved(self, ready: m.EvaluationReady) -> list[Effect]:
        """The evaluator that had read these weights died: a later step is evaluated."""
        number, slots = max(ready.holds, ready.found), self.workload.slots_until(ready.clock)
        if not self.evaluations.moved(number, slots, max(self.examples, self.workload.rows_counted)):
            return []
        if self.evaluations.held >= 0:
            self._set_barrier()
        self.counts["evaluations of a later step"] += 1
        return self.warn("an evaluator was lost with the weights that it read: a later step was evaluated instead")

    def _judged(self, ready: m.EvaluationReady, slots: int, examples: int, workers: int) -> list[Effect]:
        best, why = self.stopping.judged(ready.loss, ready.metrics)
        by_worker, self._reports.by_worker = self._reports.by_worker, {}
        if ready.found > 0:
            between, self._reports.between = self._reports.between, LossTally()
            self._last_loss = between.mean() if between.examples else self._last_loss
        evaluated = Evaluated(
            seconds=self.seconds,
            number=ready.found,
            passes=slots / self.workload.per_pass,
            steps=self.workload.steps_until(slots),
            examples=examples,
            train_loss=self._last_loss,
            test_loss=ready.loss,
            metrics=ready.metrics,
            workers=workers,
            best=best,
            read=self._read_at,
            each=by_worker,
        )
        effects: list[Effect] = [Tell(evaluated)]
        if not math.isfinite(ready.loss):
            return [*effects, *self._fail(why)]
        if why and not self.over:
            self._stop(why)
            self._check_finished()
        if self.over and self.workload.finished and slots >= self.workload.done:
            self._finished = True
            effects += self._report_progress(self._now)
            effects.append(Tell(Stopped(seconds=self.seconds, why=self.over)))
        return effects

    def _ask(self) -> None:
        self.evaluations.ask(self.workload, self.examples, len(self._workers))

    def _set_barrier(self) -> None:
        self.workload.barrier = self.evaluations.barrier(self.workload, bool(self.over))

    def fail(self, why: str) -> list[Effect]:
        """The run cannot end well: its end is reported after all that has happened before."""
        return self.journal.after_held(self._fail(why))

    def _fail(self, why: str) -> list[Effect]:
        if self.ended:
            return []
        self.failed = self.over = why
        return [Tell(Stopped(seconds=self.seconds, why=why))]

    def warn(self, what: str) -> list[Effect]:
        """A warning, once for each text."""
        self.counts[what] += 1
        return [Tell(Warned(seconds=self.seconds, what=what))] if self.counts[what] == 1 else []

    def _report_progress(self, now: int) -> list[Effect]:
        self._reported = now
        work = self.workload
        loss, spent = self._reports.take_progress()
        progress = Progress(
            seconds=self.seconds,
            passes=work.done / work.per_pass,
            steps=work.steps,
            examples=self.examples,
            train_loss=loss,
            workers=len(self._workers),
            spent=spent,
        )
        return [Tell(progress)]

    def _report_spans(self, name: str, reported: list[tuple[int, int, int]]) -> list[Effect]:
        """What a node did, on our clock: it reports how long ago that was."""
        now = self.seconds
        spans = [
            (KINDS[kind], round(now - ago / 1e6, 6), round(length / 1e6, 6))
            for kind, ago, length in reported[: limits.SPANS]
            if kind < len(KINDS) and ago / 1e6 <= now
        ]
        counts = self.begun and self.evaluations.held >= 0 and not self.ended  # else time does not
        return [Tell(Spans(seconds=now, name=name, spans=spans))] if spans and counts else []

    def _report_voids(self) -> list[Effect]:
        effects: list[Effect] = []
        for slot, why in self.workload.voids.items():
            if slot not in self._known_voids:
                self._known_voids.add(slot)
                self.journal.voided[slot] = why
                named = divmod(slot, self.workload.per_pass)
                effects.append(Tell(Voided(seconds=self.seconds, slot=named, why=why)))
        return effects

    def state(self, cut: int = m.NO_CLOCK) -> ScheduleState:
        """All that is known now; of a model that is cut after so many steps, as it will be then."""
        work, (refusals, deaths) = self.workload, self.workload.blame()
        counted = work.counted() if cut < 0 else [(0, work.slots_until(cut))] if cut else []
        return ScheduleState(counted, dict(work.voids), refusals, deaths, self.summary())

    def completed(self, state: ScheduleState) -> ScheduleState:
        """``state``, once all segments are cut: with the voids and counts of now."""
        account = msgspec.structs.replace(state.account, counts=dict(self.counts))
        return msgspec.structs.replace(state, voids={**state.voids, **self.workload.voids}, account=account)

    def summary(self, said: list[DurableEvent] | None = None) -> RunSummary:
        asked, between = self.evaluations, self._reports.between
        since = between.examples, between.loss if math.isfinite(between.loss) else None
        return RunSummary(
            generation=self.generation,
            begun=self.begun,
            seconds=self.seconds,
            computing=self._last_counted_at,
            examples=self.examples,
            dealt=self.journal.promising,
            limit=self.workload.limit if self.over and not self._stops_later else None,
            over=self.over,
            finished=self._finished,
            judgements=EvaluationState(asked.asked, asked.held, asked.found, dict(asked.at), self._last_loss, since),
            patience=self.stopping.state(),
            **asdict(self.traffic),
            counts=dict(self.counts),
            said=said or [],
        )

    def resume(self, lines: Iterable[Line], workers: Iterable[int] = ()) -> None:
        """Continue a run from the journal of an earlier process; all other nodes are as they were.

        Workers hold slots that the journal does not name: they stay theirs, or are counted; all
        others are dealt again. Nothing is dealt, and no rule ends the run, before all ``workers``
        (by incarnation) have said what they hold or are gone: two that compute the same slot would
        read different weights in step mode, and a run that ends would leave out what is in flight.
        """
        state = replayed(lines)
        self._take_state(state, state.counted, state.account.dealt)
        judgements = state.account.judgements
        self.evaluations.at = dict(judgements.at)
        self.evaluations.asked, self.evaluations.held = judgements.asked, judgements.held
        self.begun, self._finished = state.account.begun, state.account.finished
        if not self.begun:  # from a checkpoint: its number of examples is of another moment
            self.examples = self.workload.rows_counted
        self._resumed = True
        self._evaluator_unheard = 0 if self.begun else None
        self._unreported = dict.fromkeys(workers)
        self._set_barrier()
        self.journal.resume(state.account.said)

    def rollback(
        self, now: int, state: ScheduleState | None, counted: Runs, why: str, checkpoint: int | None = None
    ) -> list[Effect]:
        """Do everything after this checkpoint again; without one, from the beginning.

        Workers and the evaluator join again as new incarnations. Time goes on, and voids stay void.
        """
        self._advance_time(now)
        if self.ended:
            return []
        work, seconds, counts, traffic = self.workload, self.seconds, Counter(self.counts), self.traffic
        state = state or ScheduleState(account=RunSummary(begun=self.begun))
        voids = {**work.voids, **state.voids}
        self._take_state(msgspec.structs.replace(state, voids=voids), counted)
        self.examples = self.workload.rows_counted
        self.generation += 1
        self._earlier, self._started_at = seconds, now
        again = Intervals(work.counted()).without(self.workload.counted())
        self.counts, self.traffic = counts, traffic
        self.counts["rollbacks"] += 1
        self.counts["slots done again"] += again.size
        if self.begun and self.evaluations.asked < 0:
            self._ask()
        self._set_barrier()
        self._evaluator_unheard = now
        rolled_back = RolledBack(
            seconds=self.seconds,
            checkpoint=checkpoint,
            steps_before=max(work.steps, self.workload.steps),  # the last reports may be missing
            steps_after=self.workload.steps,
            slots=again.runs,
            why=why,
        )
        return self.journal.rewrite(now, [Tell(rolled_back)])

    def _take_state(self, state: ScheduleState, counted: Runs, dealt: int | None = None) -> None:
        """Everything is as it was then; no worker is here."""
        account, old = state.account, self.workload
        work = self.workload = SlotQueue(old.order, self._limit if account.limit is None else account.limit, old.step)
        work.voids.update(state.voids)
        work.resume(spread(counted, 1 << 40), dealt, state.refusals, state.deaths)
        self.journal.restart()
        self._known_voids = set(work.voids)
        self._workers, self._answers, self._joined_since, self._unreported = {}, {}, set(), {}
        self.alone_since, self._evaluator_gone = 0, (0, "")
        if self.speculative is not None:
            self.speculative = SpeculativeCopies()
        self.generation = max(self.generation, account.generation)
        self.over, self._finished, self._last_counted_at = account.over, False, account.computing
        self._stops_later = bool(account.over) and account.limit is None
        self.examples, self._earlier, self._started_at = account.examples, account.seconds, 0
        self.traffic = TrafficTotals.of(account)
        self.counts = Counter(account.counts)
        judgements = account.judgements
        self.evaluations.found, self.evaluations.at = judgements.found, dict(judgements.at)
        self.evaluations.forget_open()
        self._last_loss = judgements.last_loss
        examples, loss = judgements.since
        self._reports.progress = LossTally()
        self._reports.between = LossTally(examples, math.nan if loss is None else loss)
        self.stopping.restore(account.patience)

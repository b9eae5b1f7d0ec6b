"""The coordinator's part in training: it deals slots, asks for evaluations, applies the stop rules, tells what happened.

It is on no push or pull. A worker asks for slots (``Want``) well before it runs out, and says with the same message what
is counted; an evaluator asks what to judge (``EvaluationReady``). Both are answered at once, with nothing if there is nothing, and
ask again a little later. No slot is dealt before the evaluator has read the first weights; in step mode none past any
evaluation, so that it judges exactly that step.

What it knows, and how that survives, is in ``nodes/scheduler_journal.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shoal import limits
from shoal.cluster.roster import Roster
from shoal.events import Delayed, Evaluated, Gone, Joined, Progress, Spans, Stopped, Voided, Warned
from shoal.nodes.scheduler_journal import JOURNAL_TOKEN as JOURNAL_TOKEN
from shoal.nodes.scheduler_journal import NEWER, JournalledSchedule
from shoal.nodes.scheduler_state import JournalMark as JournalMark
from shoal.nodes.scheduler_state import JournalSnapshot as JournalSnapshot
from shoal.nodes.scheduler_state import Line as Line
from shoal.nodes.scheduler_state import LossTally
from shoal.nodes.scheduler_state import ScheduleState as ScheduleState
from shoal.nodes.strategy import TABLE
from shoal.nodes.time_accounting import (
    COMPUTE,
    IDLE,
    KINDS,
    WAIT,
)
from shoal.schedule.runs import Runs, runs
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Tell

_TELL = 250 * limits.MILLISECOND  # how often progress is told and journalled
_LATE = 30 * limits.SECOND  # after the first worker: who has not asked by then is not waited for
_STILL = 30 * limits.SECOND  # without any slot counted: worth a word
# Without any worker, or any evaluator, for so long, a run has failed: a process that is started again takes its time.
_NOBODY = 10 * limits.SECOND


class Scheduler(JournalledSchedule):
    """One run, as the coordinator sees it."""

    silent: Sequence[str] = ()  # servers of which nothing was heard for a while
    _still = (-1, 0)  # slots that were counted, and since when it is so many
    _looked = 0  # when that was last looked at
    elsewhere = False  # workers come and go by themselves: that none is here is no reason to give up

    # ------------------------------------------------------------ who is here

    def joined(self, now: int, name: str, role: str) -> list[Effect]:
        self._it_is(now)
        self._new.add(name)
        return [] if role in ("client", "evaluator") else [Tell(Joined(seconds=self.seconds, name=name, role=role))]

    def gone(self, now: int, member: m.Member, why: str, died: bool) -> list[Effect]:
        """A member was removed. What a server had, others have; or the run goes back to a checkpoint."""
        self._it_is(now)
        if self.ended or (self.is_done and not died) or member.role == "client":
            return []
        if member.role == "server":
            self.counts["servers lost"] += died
            return [Tell(Gone(seconds=self.seconds, name=member.name, role=member.role, why=why))]
        if member.role == "evaluator":  # it may only have been asleep, and come back
            self._judge_gone = (now, why)
            return []
        self._unheard.pop(member.incarnation, None)
        if self.second is not None:
            self.second.gone(member.incarnation)
        slots = self.workload.leave(member.incarnation, died)
        self._seen.pop(member.incarnation, None)
        self._answers.pop(member.incarnation, None)
        left = self.traffic.gone(member.incarnation) if died else 0.0
        self.counts["workers lost"] += died
        self.counts["slots dealt again"] += slots
        told: list[Effect] = [
            Tell(Gone(seconds=self.seconds, name=member.name, role=member.role, why=why, slots=slots, left=left))
        ]
        return self._journalled(now, [*told, *self._one_less(now, f"{member.name}: {why}")])

    def never_came(self, now: int, name: str, why: str) -> list[Effect]:
        """A process ended before it had joined."""
        self._it_is(now)
        if self._begun or self.ended:
            return []
        self.counts["workers lost"] += 1
        gone = Tell(Gone(seconds=0.0, name=name, role="worker", why=why))
        return self._journalled(now, [gone, *self._one_less(now, f"{name}: {why}")])

    def _one_less(self, now: int, last: str) -> list[Effect]:
        """Before the beginning: who is gone is not waited for."""
        if self._begun or self.elsewhere:
            return []
        self._awaited -= 1
        if self._awaited < 1 and not self._seen:
            return self._fail(
                f"no worker was there for the first slot: they ended, or were asked to leave (the last was {last})"
            )
        return self._begin(now) if self._seen and len(self._seen) >= self._awaited else []

    def started_again(self, now: int, term: int) -> list[Effect]:
        """This coordinator took over from one that ended."""
        self._it_is(now)
        self.counts["coordinator restarts"] += 1
        what = f"the coordinator ended and was started again (term {term}): it goes on where it was"
        return [Tell(Warned(seconds=self.seconds, what=what))]

    @property
    def alone(self) -> bool:
        """No worker is left."""
        return bool(self._alone_since)

    def tick(self, now: int) -> list[Effect]:
        self._it_is(now)
        effects: list[Effect] = []
        if self._unheard:
            self._listens_until = self._listens_until or now + self.timing.dead
            if now >= self._listens_until:
                self._unheard.clear()
        if self._stops_later and not self._unheard:
            self._stop(self.over)
            self._check_finished()
        if not self._begun and not self.ended and self._seen and now - self._first_seen > _LATE:
            missing = self._awaited - len(self._seen)
            effects += self.warn(f"{missing} of the workers did not ask for work in time: it begins without them")
            effects += self._begin(now)
        if not self._begun or self.ended:
            return self._journalled(now, effects)
        # Time counts from when the first weights were read: before that nothing is dealt that could be too late.
        if not self.over and self.evaluations.held >= 0 and (why := self.stopping.out_of_time(self.seconds)):
            self._stop(why)
        if self._seen or self.workload.finished:
            self._alone_since = 0
        else:
            self._alone_since = self._alone_since or now
            if now - self._alone_since > max(_NOBODY, 2 * self.timing.dead):
                if not self.elsewhere:
                    why = "no worker is left to compute: start it again, with more workers"
                    return self._journalled(now, [*effects, *self._fail(why)])
                effects += self.warn("no worker is here any more: it goes on when one comes (shoal launch worker)")
        since, why = self._judge_gone
        if since and now - since > max(_NOBODY, 2 * self.timing.dead):
            why = f"the evaluator is gone ({why}), and did not come back"
            return self._journalled(now, [*effects, *self._fail(why)])
        if self._judge_unheard is not None:  # nobody may be there to be missed: it ended before, or while all came anew
            self._judge_unheard = self._judge_unheard or now
            if now - self._judge_unheard > max(_LATE, 2 * self.timing.dead):
                why = "the evaluator did not ask for work in time: start it again, or the whole run"
                return self._journalled(now, [*effects, *self._fail(why)])
        if self.auto is not None and not self.over and self.auto.look(now, len(self._seen)):
            effects.append(Tell(Delayed(seconds=self.seconds, max_delay=self.auto.delay, waiting=self.auto.share)))
        effects += self._tell_still(now)
        if now - self._told < _TELL:
            return self._journalled(now, effects)
        effects += self._tell_progress(now)
        return [*self._journalled(now, effects), *self._mark(now)]

    def _tell_still(self, now: int) -> list[Effect]:
        """Everybody is alive, and nothing gets done: say so, and who."""
        done, since = self._still
        gap, self._looked = now - self._looked, now
        if gap > self.timing.suspect:  # we slept ourselves: nobody is blamed for that
            since += gap
            self._still = done, since
        if self.workload.done != done or self.workload.finished or not self._seen:
            self._still = (self.workload.done, now)
            return []
        if now - since < _STILL:
            return []
        if self.silent:
            return self.warn(
                f"after slot {done:,} nothing was counted for {_STILL // limits.SECOND} s: {', '.join(self.silent[:4])} does not answer, and has "
                f"what nobody else has; if it was killed, start another under its name (shoal launch server --name {self.silent[0]}): "
                f"then it goes on from the last checkpoint"
            )
        names = sorted(self._seen.values())
        who = ", ".join(names[:4]) + (f" and {len(names) - 4} others" if len(names) > 4 else "")
        return self.warn(
            f"after slot {done:,} nothing was counted for {_STILL // limits.SECOND} s: {who} answer, and still compute or wait"
        )

    def set_delay(self, roster: Roster) -> None:
        """Workers may be as far apart as they should be: with the next view servers know it."""
        placed = roster.tables.get(TABLE)
        if self.auto is not None and placed is not None and placed.spec.max_delay != self.auto.delay:
            roster.delay(TABLE, self.auto.delay)

    # ------------------------------------------------------------ workers

    def want(self, now: int, sender: str, want: m.Want) -> list[Effect]:
        self._it_is(now)
        known = self._answers.get(want.incarnation)
        if known is not None and want.request <= known.request:
            # The answer was lost: nothing is counted or dealt twice. One that is older still waits for nothing any more.
            # While anything is held back the answer may be among it: it is asked for once more.
            return [Send(sender, known)] if want.request == known.request and self.is_told else []
        work, who = self.workload, want.incarnation
        if not self.is_done and not want.leaving and who not in self._seen:
            self._seen[who] = sender
            self._first_seen = self._first_seen or now
            work.enter(who, sender)
        self.traffic.take(want)
        effects = self._tell_spans(sender, want.spans)
        self._measure(want)
        self._count(who, sender, want)
        work.give_back(who, work.among(who, want.back))
        if want.leaving:
            work.goes(who)
        for slot, why in want.refused.items():
            work.refuse(who, slot, why)
        self._hold(who, want.holds)
        effects += self._tell_voids()
        if want.newer:
            self.counts[NEWER] += want.newer
            effects += self.warn("a slot that was dealt again read weights of which some were one step newer")
        if not self._begun and not self.ended and len(self._seen) >= self._awaited:
            effects += self._begin(now)
        again, fresh, late = self._deal(now, want) if self._may_deal(want) else ([], [], [])
        self._check_finished()
        void = [slot for slot in (*again, *fresh) if slot in work.voids]
        over = self.over if self.is_done else "you left" if want.leaving else ""
        deal = m.Deal(want.request, runs(fresh), runs(again), runs(late), void, over)
        self._answers[who] = deal
        return self._journalled(now, [*effects, Send(sender, deal)])

    def _deal(self, now: int, want: m.Want) -> tuple[list[int], list[int], list[int]]:
        """Slots that come again, new ones, and those it has that another one was faster with."""
        again, fresh = self.workload.deal(want.incarnation, want.more)
        if self.second is None:
            return again, fresh, []
        lent = self.second.choose(now, want.incarnation, self.workload)
        self.counts["second copies"] += len(lent)
        return sorted([*again, *lent]), fresh, self.workload.late(want.incarnation)

    def _hold(self, who: int, holds: Runs | None) -> None:
        if holds is not None and who in self._unheard and who in self._seen:
            self.workload.adopt(who, holds)
        elif holds is not None:  # one answer of a former life of ours and one of this: it took the other
            self.counts["slots that never came"] += self.workload.keep_only(who, holds)
        self._unheard.pop(who, None)

    def _measure(self, want: m.Want) -> None:
        """Where its time went, for whoever decides by that."""
        spent = [*want.spent[: len(KINDS)], *[0] * (len(KINDS) - len(want.spent))]
        self._spent = [a + b for a, b in zip(self._spent or [0] * len(KINDS), spent, strict=True)]
        done = sum(max(0, stop - first) for first, stop in want.counted)
        if (name := self._seen.get(want.incarnation)) is not None:
            did = self._each.setdefault(name, {"slots": 0})
            for what, one in (("slots", done), *((kind, one / 1e6) for kind, one in zip(KINDS, spent, strict=True))):
                if one:
                    did[what] = round(did.get(what, 0) + one, 6)
        if self.auto is not None:
            self.auto.take(spent[WAIT], sum(spent) - spent[IDLE], done)
        if self.second is not None and want.incarnation in self._seen:
            self.second.take(want.incarnation, spent[COMPUTE], done)

    def _count(self, who: int, sender: str, want: m.Want) -> None:
        work = self.workload
        new = work.count(who, work.among(who, want.counted))
        if self._former and sender not in self._new and who in self._seen:
            new += work.claim(who, want.counted)
        if self.second is not None:
            self.counts["second copies first"] += self.second.first(who, new)
        self._counted += new
        told = sum(max(0, stop - first) for first, stop in want.counted)
        examples, loss = want.examples, want.loss
        if told > len(new) and examples:  # some were counted before, by another or in a former life
            examples = min(examples, work.rows(new))
            loss *= examples / want.examples
        self.examples += examples
        self._progress.add(examples, loss)
        self._between.add(examples, loss)

    @property
    def is_done(self) -> bool:
        """Nobody needs to compute any more."""
        return bool(self.failed) or (bool(self._begun) and self.workload.finished)

    def _may_deal(self, want: m.Want) -> bool:
        if self._unheard or self._stops_later:
            return False
        return bool(self._begun) and not want.leaving and not self.is_done and want.incarnation in self._seen

    def _begin(self, now: int) -> list[Effect]:
        """All workers are here: judge the first weights, and start the clock."""
        self._begun, self._since, self._told = True, now, now
        if self.evaluations.asked < 0:
            self._ask()
        workers = len(self._seen) if self.elsewhere else self._started.workers  # there: whoever has come by now
        return [Tell(msgspec.structs.replace(self._started, seconds=self.seconds, workers=workers))]

    def _stop(self, why: str) -> None:
        self.over = self.over or why
        self._stops_later = bool(self._unheard)  # what they hold is part of the run
        if not self._stops_later:
            self.workload.stop()
            self.workload.barrier = None

    def _check_finished(self) -> None:
        if self._begun and self.workload.finished:
            self.over = self.over or self._limit_reason
            self._computed = self.seconds if self._computed is None else self._computed

    # ------------------------------------------------------------ evaluations

    def ready(self, now: int, sender: str, ready: m.EvaluationReady) -> list[Effect]:
        self._it_is(now)
        self._judge_gone, self._judge_unheard = (0, ""), None
        if not self.is_told and ready.request == self._judge_asked:
            return []  # its answer is held back
        self._judge_asked = ready.request
        effects = self._tell_spans(sender, ready.spans)
        asked, first = self.evaluations, self.evaluations.held < 0
        if ready.error:
            effects += self._fail(f"the model cannot be judged: {ready.error}")
        if self.workload.step is not None and ready.clock >= 0:
            effects += self._moved(ready)
        if asked.read(ready.holds):
            if first and not self.generation:  # the first weights are read: from here on slots are dealt
                self._since = self._told = now
            self._read_at = self.seconds
            self._set_barrier()
        if not self.ended and (where := asked.judged(ready.found)) is not None:
            effects += self._judged(ready, *where)
        self._check_finished()
        if self._begun and not self.ended and asked.is_due(self.workload, bool(self.over)):
            self._ask()
        # Who asks what to do judges nothing: if it was asked before, it has lost its way, or its life.
        number = asked.open if (ready.holds < 0 and ready.found < 0) or asked.open > asked.held else -1
        clock = m.NO_CLOCK
        if number >= 0 and self.workload.step is not None:
            clock = self.workload.steps_until(asked.at[number][0])
        return self._journalled(now, [*effects, Send(sender, m.EvaluateNow(ready.request, number, clock, self.ended))])

    def _moved(self, ready: m.EvaluationReady) -> list[Effect]:
        """Whoever had read the weights of this evaluation died with them: what is judged is a later step, and is said to be."""
        number, slots = max(ready.holds, ready.found), self.workload.slots_until(ready.clock)
        if not self.evaluations.moved(number, slots, max(self.examples, self.workload.rows_counted)):
            return []
        if self.evaluations.held >= 0:
            self._set_barrier()
        self.counts["evaluations of a later step"] += 1
        return self.warn(
            "an evaluator was lost with the weights that it had read: another one judged those of a later step"
        )

    def _judged(self, ready: m.EvaluationReady, slots: int, examples: int, workers: int) -> list[Effect]:
        best, why = self.stopping.judged(ready.loss, ready.metrics)
        if ready.found > 0:
            self._last_loss = self._between.mean() if self._between.examples else self._last_loss
            self._between = LossTally()
        effects: list[Effect] = [
            Tell(
                Evaluated(
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
                    each=self._each,
                )
            )
        ]
        self._each = {}
        if not math.isfinite(ready.loss):
            return [*effects, *self._fail(why)]
        if why and not self.over:
            self._stop(why)
            self._check_finished()
        if self.over and self.workload.finished and slots >= self.workload.done:
            self._finished = True
            effects += self._tell_progress(self._now)
            effects.append(Tell(Stopped(seconds=self.seconds, why=self.over)))
        return effects

    # ------------------------------------------------------------ telling

    def fail(self, why: str) -> list[Effect]:
        """It cannot end well: that is told after all that has happened before."""
        return self._held.after(self._fail(why))

    def _fail(self, why: str) -> list[Effect]:
        if self.ended:
            return []
        self.failed = self.over = why
        return [Tell(Stopped(seconds=self.seconds, why=why))]

    def _tell_progress(self, now: int) -> list[Effect]:
        self._told = now
        work = self.workload
        progress = Progress(
            seconds=self.seconds,
            passes=work.done / work.per_pass,
            steps=work.steps,
            examples=self.examples,
            train_loss=self._progress.mean(),
            workers=len(self._seen),
            spent={kind: spent / 1e6 for kind, spent in zip(KINDS, self._spent, strict=False) if spent},
        )
        self._progress, self._spent = LossTally(), []
        return [Tell(progress)]

    def _tell_spans(self, name: str, told: list[tuple[int, int, int]]) -> list[Effect]:
        """What a node did, on our clock: it says how long ago that was."""
        now = self.seconds
        spans = [
            (KINDS[kind], round(now - ago / 1e6, 6), round(length / 1e6, 6))
            for kind, ago, length in told[: limits.SPANS]
            if kind < len(KINDS) and ago / 1e6 <= now
        ]
        counts = (
            self._begun and self.evaluations.held >= 0 and not self.ended
        )  # before and after that, time does not count
        return [Tell(Spans(seconds=now, name=name, spans=spans))] if spans and counts else []

    def _tell_voids(self) -> list[Effect]:
        effects: list[Effect] = []
        for slot, why in self.workload.voids.items():
            if slot not in self._known_voids:
                self._known_voids.add(slot)
                self._voided[slot] = why
                named = divmod(slot, self.workload.per_pass)
                effects.append(Tell(Voided(seconds=self.seconds, slot=named, why=why)))
        return effects

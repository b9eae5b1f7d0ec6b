"""The coordinator's part in training: it deals slots, asks for evaluations, applies the stop rules, tells what happened.

It is on no push or pull. A worker asks for slots (``Want``) well before it runs out, and says with the same message what
is counted; an evaluator asks what to judge (``Ready``). Both are answered at once, with nothing if there is nothing, and
ask again a little later. No slot is dealt before the evaluator has read the first weights; in step mode none past any
evaluation, so that it judges exactly that step.

What is counted is journalled, deals are not: a slot that is dealt twice is counted once all the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from shoal import limits
from shoal.cluster.stopping import ENDLESS, Stopping
from shoal.cluster.workload import Runs, Workload, runs, spread
from shoal.events import Evaluated, Gone, Joined, Progress, Started, Stopped, Voided, Warned
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Persist, Send, Tell

JOURNAL_TOKEN = -1  # of a Persist whose answer only matters if it is an error
_TELL = 250 * limits.MILLISECOND  # how often progress is told and journalled
_LATE = 30 * limits.SECOND  # after the first worker: who has not asked by then is not waited for
_NOBODY = 10 * limits.SECOND  # without any worker for so long, a run has failed


class Marked(msgspec.Struct, frozen=True, array_like=True, tag="marked"):
    """One line of the journal: what was counted since the last."""

    counted: Runs
    voids: dict[int, str] = {}


@dataclass(slots=True)
class Tally:
    """Examples and losses since somebody last looked."""

    examples: int = 0
    loss: float = 0.0

    def mean(self) -> float | None:
        return self.loss / self.examples if self.examples else None


@dataclass(slots=True)
class Traffic:
    """Bytes of all workers there ever were."""

    by: dict[int, tuple[int, int]] = field(default_factory=dict)

    def totals(self) -> tuple[int, int]:
        return sum(sent for sent, _ in self.by.values()), sum(received for _, received in self.by.values())


class Dealing:
    """One run, as the coordinator sees it."""

    def __init__(self, workload: Workload, stopping: Stopping, started: Started, every: int, limit_reason: str) -> None:
        self.workload, self.stopping = workload, stopping
        self.over = ""  # nothing more is dealt, and why
        self.failed = ""  # the run cannot end well, and why
        self.examples = 0
        self.traffic = Traffic()
        self.counts: Counter[str] = Counter()
        self._started, self._every = started, every
        self._limit_reason = limit_reason
        self._awaited = started.workers  # before the first slot is dealt
        self._first_seen = 0  # when the first of them asked
        self._begun = 0  # when
        self._now = 0
        self._computed = 0  # when the last slot was counted
        self._seen: dict[int, str] = {}  # workers that have asked for work, by incarnation
        self._answers: dict[int, m.Deal] = {}
        self._evaluation = -1  # the last one asked for
        self._at: dict[int, tuple[int, int, int]] = {}  # of an evaluation: slots, examples, workers
        self._held, self._found = -1, -1  # the last ones whose weights were read, whose loss is known
        self._last_loss: float | None = None
        self._progress, self._since = Tally(), Tally()
        self._told = 0
        self._counted: list[int] = []  # not yet journalled
        self._voided: dict[int, str] = {}
        self._known_voids: set[int] = set()
        self._alone_since = 0
        self._finished = False  # the last evaluation is in
        self._set_barrier()

    @property
    def seconds(self) -> float:
        return (self._now - self._begun) / limits.SECOND if self._begun else 0.0

    @property
    def computing_seconds(self) -> float:
        """From the first slot to the last: without the evaluation that comes after it."""
        return ((self._computed or self._now) - self._begun) / limits.SECOND if self._begun else 0.0

    @property
    def ended(self) -> bool:
        return self._finished or bool(self.failed)

    def resume(self, lines: Iterable[Marked]) -> None:
        """Take up a run that a former life of the coordinator dealt, by its journal."""
        counted: list[int] = []
        for line in lines:
            counted += spread(line.counted, ENDLESS)
            self.workload.voids.update(line.voids)
        self._known_voids.update(self.workload.voids)
        self.workload.resume(counted)

    # ------------------------------------------------------------ who is here

    def joined(self, now: int, name: str, role: str) -> list[Effect]:
        self._it_is(now)
        return [] if role in ("client", "evaluator") else [Tell(Joined(seconds=self.seconds, name=name, role=role))]

    def gone(self, now: int, member: m.Member, why: str, died: bool) -> list[Effect]:
        """A member was removed."""
        self._it_is(now)
        if self.ended or (self._done and not died) or member.role == "client":
            return []
        if member.role == "server":
            return self._fail(f"{member.name} is gone ({why}), and with it the only copy of its part of the model")
        if member.role == "evaluator":
            return self._fail(f"the evaluator is gone ({why})")
        slots = self.workload.leave(member.incarnation, died)
        self._seen.pop(member.incarnation, None)
        self._answers.pop(member.incarnation, None)
        self.counts["workers lost"] += died
        self.counts["slots dealt again"] += slots
        told: list[Effect] = [
            Tell(Gone(seconds=self.seconds, name=member.name, role=member.role, why=why, slots=slots))
        ]
        return [*told, *self._one_less(now)]

    def server_gone(self, now: int, member: m.Member, why: str) -> list[Effect]:
        """A server was removed, and others have all that it had."""
        self._it_is(now)
        self.counts["servers lost"] += 1
        return [Tell(Gone(seconds=self.seconds, name=member.name, role=member.role, why=why))]

    def never_came(self, now: int, name: str, why: str) -> list[Effect]:
        """A process ended before it had joined."""
        self._it_is(now)
        if self._begun or self.ended:
            return []
        self.counts["workers lost"] += 1
        return [Tell(Gone(seconds=0.0, name=name, role="worker", why=why)), *self._one_less(now)]

    def _one_less(self, now: int) -> list[Effect]:
        """Before the beginning: who is gone is not waited for."""
        if self._begun:
            return []
        self._awaited -= 1
        if self._awaited < 1 and not self._seen:
            return self._fail("no worker was there for the first slot: they ended, or were asked to leave")
        return self._begin(now) if self._seen and len(self._seen) >= self._awaited else []

    def _it_is(self, now: int) -> None:
        if not self.ended:  # what comes later is no part of the run
            self._now = now

    def tick(self, now: int) -> list[Effect]:
        self._it_is(now)
        effects: list[Effect] = []
        if not self._begun and not self.ended and self._seen and now - self._first_seen > _LATE:
            missing = self._awaited - len(self._seen)
            effects += self.warn(f"{missing} of the workers did not ask for work in time: it begins without them")
            effects += self._begin(now)
        if not self._begun or self.ended:
            return effects
        if not self.over and (why := self.stopping.out_of_time(self.seconds)):
            self._stop(why)
        if self._seen or self.workload.finished:
            self._alone_since = 0
        else:
            self._alone_since = self._alone_since or now
            if now - self._alone_since > _NOBODY:
                return self._fail("no worker is left to compute: start it again, with more workers")
        if now - self._told >= _TELL:
            effects += self._tell_progress(now)
        return effects

    # ------------------------------------------------------------ workers

    def want(self, now: int, sender: str, want: m.Want) -> list[Effect]:
        self._it_is(now)
        known = self._answers.get(want.incarnation)
        if known is not None and want.request <= known.request:
            # The answer was lost: nothing is counted or dealt twice. One that is older still waits for nothing any more.
            return [Send(sender, known)] if want.request == known.request else []
        work, who = self.workload, want.incarnation
        if not self._done and not want.leaving and who not in self._seen:
            self._seen[who] = sender
            self._first_seen = self._first_seen or now
            work.enter(who, sender)
        self.traffic.by[who] = (want.sent, want.received)
        effects: list[Effect] = []
        new = work.count(who, work.among(who, want.counted))
        self._counted += new
        self.examples += want.examples
        for tally in (self._progress, self._since):
            tally.examples += want.examples
            tally.loss += want.loss
        work.give_back(who, work.among(who, want.back))
        for slot, why in want.refused.items():
            work.refuse(who, slot, why)
        effects += self._tell_voids()
        if want.newer:
            self.counts["slots with newer weights"] += want.newer
            effects += self.warn("a slot that was dealt again read weights of which some were one step newer")
        if not self._begun and not self.ended and len(self._seen) >= self._awaited:
            effects += self._begin(now)
        again, fresh = work.deal(who, want.more) if self._may_deal(want) else ([], [])
        self._check_finished()
        void = [slot for slot in (*again, *fresh) if slot in work.voids]
        over = self.over if self._done else "you left" if want.leaving else ""
        deal = m.Deal(want.request, runs(fresh), runs(again), void, over)
        self._answers[who] = deal
        return [*effects, Send(sender, deal)]

    @property
    def _done(self) -> bool:
        """Nobody needs to compute any more."""
        return bool(self.failed) or (bool(self._begun) and self.workload.finished)

    def _may_deal(self, want: m.Want) -> bool:
        return bool(self._begun) and not want.leaving and not self._done and want.incarnation in self._seen

    def _begin(self, now: int) -> list[Effect]:
        """All workers are here: judge the first weights, and start the clock."""
        self._begun = self._told = now
        self._ask()
        return [Tell(msgspec.structs.replace(self._started, seconds=0.0))]

    def _stop(self, why: str) -> None:
        self.over = self.over or why
        self.workload.stop()
        self.workload.barrier = None

    def _check_finished(self) -> None:
        if self._begun and self.workload.finished:
            self.over = self.over or self._limit_reason
            self._computed = self._computed or self._now

    # ------------------------------------------------------------ evaluations

    def ready(self, now: int, sender: str, ready: m.Ready) -> list[Effect]:
        self._it_is(now)
        effects: list[Effect] = []
        if ready.error:
            effects += self._fail(f"the model cannot be judged: {ready.error}")
        if ready.holds > self._held and ready.holds in self._at:
            if self._held < 0:  # the first weights are read: from here on slots are dealt
                self._begun = self._told = now
            self._held = ready.holds
            self._set_barrier()
        if ready.found > self._found and ready.found in self._at and not self.ended:
            self._found = ready.found
            effects += self._judged(ready)
        self._check_finished()
        if self._begun and self._found == self._evaluation and not self.ended:
            self._ask_if_due()
        number = self._evaluation if self._evaluation > self._found and self._evaluation > self._held else -1
        clock = m.NO_CLOCK
        if number >= 0 and self.workload.step is not None:
            clock = self.workload.steps_until(self._at[number][0])
        return [*effects, Send(sender, m.Judge(ready.request, number, clock, self.ended))]

    def _judged(self, ready: m.Ready) -> list[Effect]:
        slots, examples, workers = self._at[ready.found]
        best, why = self.stopping.judged(ready.loss)
        if ready.found > 0:
            self._last_loss = self._since.mean() if self._since.examples else self._last_loss
            self._since = Tally()
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
                )
            )
        ]
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

    def _ask_if_due(self) -> None:
        """Time for another evaluation? Asked only when the last one is in."""
        last, work = self._at[self._evaluation][0], self.workload
        reached = work.done if work.step is None else work.slots_until(work.steps)
        if work.finished:
            if last < work.done or self.over:
                self._ask()
        elif self.over:
            return  # what is dealt is finished, and then judged
        elif work.step is not None:
            if work.barrier is not None and reached >= work.barrier:
                self._ask()
        elif reached // self._every > last // self._every:
            self._ask()

    def _ask(self) -> None:
        work = self.workload
        slots = work.done if work.step is None else work.slots_until(work.steps)
        self._evaluation += 1
        self._at[self._evaluation] = (slots, self.examples, len(self._seen))

    def _set_barrier(self) -> None:
        """Deal no further than the next evaluation; where steps are not counted, than the one after it.

        So a stop rule is never more than one evaluation late, however short a pass is.
        """
        work = self.workload
        if self._held < 0:
            work.barrier = 0  # the first weights are judged before anything changes them
            return
        if self.over or self._every >= ENDLESS:
            work.barrier = None
            return
        next_at = (self._at[self._held][0] // self._every + (1 if work.step is not None else 2)) * self._every
        work.barrier = work.slots_until(work.steps_until(next_at))

    # ------------------------------------------------------------ telling

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
        )
        self._progress = Tally()
        effects: list[Effect] = [Tell(progress)]
        if self._counted or self._voided:
            line = Marked(runs(sorted(self._counted)), self._voided)
            self._counted, self._voided = [], {}
            effects.append(Persist(JOURNAL_TOKEN, msgspec.msgpack.encode(line)))
        return effects

    def _tell_voids(self) -> list[Effect]:
        effects: list[Effect] = []
        for slot, why in self.workload.voids.items():
            if slot not in self._known_voids:
                self._known_voids.add(slot)
                self._voided[slot] = why
                named = divmod(slot, self.workload.per_pass)
                effects.append(Tell(Voided(seconds=self.seconds, slot=named, why=why)))
        return effects

    def warn(self, what: str) -> list[Effect]:
        """Once for each thing."""
        self.counts[what] += 1
        return [Tell(Warned(seconds=self.seconds, what=what))] if self.counts[what] == 1 else []

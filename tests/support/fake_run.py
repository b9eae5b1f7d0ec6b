"""Plays the workers and the evaluator of a run by hand, for tests of the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeVar

from shoal.data.slots import Slots
from shoal.events import RunEvent, Started, Stopped
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_journal import JOURNAL_TOKEN
from shoal.schedule.intervals import runs, spread
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stop_rules import ENDLESS, StopDecision, StopRules
from shoal.tables import Step
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Persist, Send, Tell

PER_PASS = 8
E = TypeVar("E", bound=RunEvent)


def scheduler(rules: StopRules | None = None, slots: int = 0, workers: int = 2, every: float = 1.0) -> Scheduler:
    """A run with epochs of eight slots; ``slots`` is the number per step, 0 means no steps."""
    step = Step(slots=slots, slots_per_pass=PER_PASS) if slots else None
    workload = SlotQueue(Slots(PER_PASS, 1, seed=3), ENDLESS, step)
    stopping = StopDecision(rules or StopRules(epochs=2))
    steps = stopping.rules.steps
    limit, why = stopping.limit(PER_PASS, None if steps is None else workload.slots_until(steps))
    workload.limit = limit if limit >= ENDLESS else workload.slots_until(workload.steps_until(limit))
    started = Started(
        seconds=0.0, data="d", model="m", strategy="s", workers=workers, servers=1, seed=3, cores=2,
        rows=PER_PASS, test_rows=1, features=1, batch=1, slots=PER_PASS,
    )  # fmt: skip
    return Scheduler(workload, stopping, started, ENDLESS if math.isinf(every) else round(every * PER_PASS), why)


@dataclass
class Desk:
    """A run, its two workers and its evaluator, in one thread."""

    scheduler: Scheduler
    now: int = 100 * SECOND
    told: list[RunEvent] = field(default_factory=list)
    journal: list[bytes] = field(default_factory=list)
    # by worker: the slots it has and has not reported
    hands: dict[int, list[int]] = field(default_factory=dict)
    over: dict[int, str] = field(default_factory=dict)
    requests: int = 0
    disk_error: str = ""  # why no record can be written

    def feed(self, effects: list[Effect]) -> list[m.Message]:
        said: list[m.Message] = []
        for effect in effects:
            match effect:
                case Tell(event):
                    self.told.append(event)
                case Persist(token, record):
                    assert token == JOURNAL_TOKEN
                    self.journal += [record] if not self.disk_error else []
                    said += self.feed(self.scheduler.journal.durable(self.now, self.disk_error))
                case Send(_, message):
                    said.append(message)
        return said

    def want(self, who: int, more: int = 0, counted: list[int] | None = None, **rest: object) -> m.Deal:
        self.requests += 1
        told = runs(sorted(counted or []))
        return self.send(who, m.Want(self.requests, who, more, told, **rest))  # type: ignore[arg-type]

    def send(self, who: int, want: m.Want) -> m.Deal:
        (deal,) = self.feed(self.scheduler.want(self.now, f"worker-{who}", want))
        self.feed(self.scheduler.tick(self.now))  # as the coordinator does after every event
        assert isinstance(deal, m.Deal)
        self.hands.setdefault(who, []).extend(spread([*deal.again, *deal.slots], 1 << 20))
        self.over[who] = deal.over
        return deal

    def ready(self, holds: int = -1, found: int = -1, loss: float = 0.5, error: str = "") -> m.EvaluateNow:
        self.requests += 1
        ready = m.EvaluationReady(self.requests, 90, holds, found, loss, {}, error)
        (judge,) = self.feed(self.scheduler.ready(self.now, "evaluator", ready))
        assert isinstance(judge, m.EvaluateNow)
        return judge

    def evaluate(self, loss: float = 0.5) -> int:
        """Does the requested evaluation; returns its number, or -1."""
        asked = self.ready()
        if asked.number >= 0:
            self.ready(holds=asked.number)
            self.ready(holds=asked.number, found=asked.number, loss=loss)
        return asked.number

    def begin(self, loss: float = 0.7) -> Desk:
        """Both workers join, and the first weights are evaluated."""
        self.want(1)
        self.want(2)
        assert self.evaluate(loss) == 0
        return self

    def work(self, who: int, most: int = 4) -> int:
        """Reports all slots of a worker and takes more; returns how many were reported."""
        done, self.hands[who] = self.hands.get(who, []), []
        self.want(who, more=most, counted=done, examples=len(done), loss=0.5 * len(done))
        return len(done)

    def run(self, loss: float = 0.5, turns: int = 200) -> Desk:
        """Lets all workers work until the run is over."""
        for _ in range(turns):
            self.now += 10 * MILLISECOND
            for who in (1, 2):
                self.work(who)
            self.evaluate(loss)
            self.feed(self.scheduler.tick(self.now))
            if self.scheduler.ended:
                break
        return self

    def run_until_asked(self) -> None:
        """Works until another evaluation is requested."""
        asked = self.scheduler.evaluations.asked
        while self.scheduler.evaluations.asked == asked:
            self.now += 10 * MILLISECOND
            for who in (1, 2):
                self.work(who)
            self.ready()

    def gone(self, who: int, died: bool = True, role: str = "worker") -> None:
        member = m.Member(f"{role}-{who}", who, role, "")
        self.feed(self.scheduler.gone(self.now, member, "it is gone", died))
        self.hands.pop(who, None)

    def wait(self, seconds: float) -> None:
        steps = max(10, round(seconds))  # like a loop that does not sleep
        for _ in range(steps):
            self.now += int(seconds * SECOND / steps)
            self.feed(self.scheduler.tick(self.now))

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def why(self) -> str:
        (stopped,) = self.all(Stopped)
        return stopped.why

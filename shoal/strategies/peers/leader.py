"""The leader of a run of peers: it assigns slots, evaluates the model and ends the run.

The first of the living peers leads. It decides from its run log alone, which all peers have, and
publishes every decision: when it is gone the next peer continues from there, once it has heard
every decision that another leader made or may make (``Mesh.may_begin_to_lead``).

    assigning   every peer has about a second of work ahead, less towards the end, so that all
                finish together; slots of a life that is gone are assigned again once it is closed
    evaluating  the initial weights before any slot is assigned, then every so many slots. No slot
                past the next evaluation is assigned, so that a stop rule is at most one evaluation
                late
    ending      complete the epochs that were begun before the last one; then let all peers finish
                and rest, evaluate what was not evaluated, and let all go

Nothing here sends, computes or reads the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from shoal import limits
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.schedule.intervals import Intervals, Runs, count
from shoal.schedule.stop_rules import ENDLESS, StopDecision, StopRules
from shoal.strategies.peers import PeerToPeer
from shoal.strategies.peers.compute import Floats
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.model_transfer import ObserverAnswers
from shoal.strategies.peers.ownership import Ownership
from shoal.strategies.peers.run_log import RunLog, patience_of
from shoal.wire.effects import Effect, Store
from shoal.wire.messages import peers as p

AHEAD = 1_000_000  # microseconds of work that every peer has ahead
_LEAST = 4  # the last assignments are so many times smaller than what is published at once

Evaluate = Callable[[Floats], tuple[float, Mapping[str, float | None]]]


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What all peers of a run agree on."""

    slots: Slots
    stop: StopRules
    evaluate: int  # slots between two evaluations
    every: int  # rows between two times that a peer publishes its changes
    owned: bool = False

    @classmethod
    def of(cls, job: Job, rows: int) -> PeerFacts:
        assert isinstance(job.strategy, PeerToPeer)
        slots, epochs = Slots(rows, job.data.batch, job.seed), job.evaluate.every
        evaluate = max(1, round(epochs * slots.per_pass)) if epochs < ENDLESS / slots.per_pass else ENDLESS
        return cls(slots, job.stop, evaluate, job.strategy.every, job.strategy.send == "owned")

    @property
    def per_word(self) -> int:
        return max(1, -(-self.every // self.slots.batch))  # slots that are published at once

    @property
    def limit(self) -> tuple[int, str]:
        return StopDecision(self.stop).limit(self.slots.per_pass, self.stop.steps)


class Leader:
    """Whether this peer leads, what it decides then, and the clock of the run.

    All peers keep the clock. It starts when the initial weights are evaluated, and never goes back.
    """

    def __init__(
        self, mesh: Mesh, facts: PeerFacts, evaluate: Evaluate, log: RunLog, ownership: Ownership | None = None
    ) -> None:
        self._mesh, self._facts, self._evaluate, self._ownership = mesh, facts, evaluate, ownership
        self.log, self.answers = log, ObserverAnswers()
        self.leads = False
        self.stop = ""  # why a peer wants the run to end
        self._earlier = round(log.seconds * limits.SECOND)  # of a resumed run
        self._clock: int | None = None  # when the run began, by our own clock
        self._limit, self._reason = facts.limit
        self._token = 0  # of the running evaluation
        self._begin_to_lead()

    def _begin_to_lead(self) -> None:
        log = self.log
        self._stop_rules = StopDecision(self._facts.stop)
        if log.last is not None:
            self._stop_rules.restore(patience_of(log.last))
        self._pool, self._pool_version = Intervals(), (-1, -1)
        # The running evaluation, without its results; and the loss of everything in its weights.
        self._running: p.EvaluationDone | None = None
        self._loss = self._mark = log.mark  # sum and rows; and those at the last evaluation
        self._evaluated = log.last.done if log.last is not None else -1  # slots in those weights
        # Why the run ends; whether that is a failure; whether the last weights are to be evaluated;
        # and up to which slot all must be counted before it ends.
        self._why, self._failed, self._evaluates, self._floor = "", False, True, 0

    def seconds(self, now: int) -> float:
        return (now - self._clock if self._clock is not None else self._earlier) / limits.SECOND

    def set_clock(self, now: int, seconds: float) -> None:
        """The run is at least so old."""
        at = now - round(seconds * limits.SECOND)
        self._clock = at if self._clock is None else min(self._clock, at)

    def _has_begun(self, now: int) -> bool:
        """All founders are here, or it begins without those that were not heard from."""
        mesh = self._mesh
        return self._clock is not None or mesh.is_met or 0 <= mesh.started_at < now - mesh.timing.join_within

    def decide(self, now: int, may_lead: bool) -> list[p.Word]:
        """The words to publish, if we lead; there may be more when these are heard."""
        mesh, log = self._mesh, self.log
        led, is_first = self.leads, may_lead and mesh.leads == mesh.me.life
        self.leads = is_first and (led or mesh.may_begin_to_lead)
        if self.leads and not led:
            self._begin_to_lead()
        if self.leads and self.stop:
            self.end(self.stop, now=True)
        if not self.leads or not self._has_begun(now):
            return []
        if self._clock is None and log.last is not None:
            self._clock = now - self._earlier  # a resumed run
        if log.ended is not None:
            return []
        if self._ownership is not None and (owners := self._ownership.choose(log, self._living)) is not None:
            return [owners]
        seconds = self.seconds(now)
        if log.halt is not None:
            evaluated = not log.halt.judge or self._failed or self._is_evaluated()
            settled = evaluated and self._running is None and self._all_rest()
            return [p.PeersEnded(log.halt.why, log.halt.failed or self._failed, seconds)] if settled else []
        if log.last is None and not self._why:
            return []
        if why := self._reason if log.done >= self._limit else self._stop_rules.out_of_time(seconds):
            self.end(why)
        if self._why and log.counted.within([(0, self._floor)]) == self._floor and self._running is None:
            return [p.Halt(self._why, self._failed, self._evaluates)]
        return self._assign()

    def end(self, why: str, *, failed: bool = False, evaluates: bool = True, now: bool = False) -> None:
        if self._why and not failed:
            return
        self._why, self._failed, self._evaluates = why, failed, evaluates and not failed
        per_epoch = self._facts.slots.per_pass
        self._floor = 0 if failed or now else max(0, self.log.next - 1) // per_epoch * per_epoch

    @property
    def _living(self) -> list[str]:
        return [one.life for one in self._mesh.living]

    def is_closed(self, life: str) -> bool:
        ownership = self._ownership
        return self._mesh.is_closed(life) and (ownership is None or ownership.is_closed(life, self.log, self._living))

    def _all_rest(self) -> bool:
        log = self.log
        resting = all(life in log.rested and not log.open.get(life) for life in self._living)
        return resting and all(map(self.is_closed, self._mesh.gone))

    def _is_evaluated(self) -> bool:
        """All that is counted was, by a living peer: it still has the weights."""
        last = self.log.last
        return last is not None and last.done == self.log.done and last.by in self._living

    def is_evaluation_due(self, now: int) -> bool:
        log, last = self.log, self.log.last
        if not self.leads or not self._has_begun(now) or self._running is not None or log.ended is not None:
            return False
        if last is None:
            return True
        if log.halt is not None:  # the last evaluation follows when all rest
            return log.halt.judge and not self._is_evaluated() and self._all_rest()
        return not self._why and log.done // self._facts.evaluate > last.done // self._facts.evaluate

    def evaluate(self, now: int, weights: Floats, done: int, rows: int, loss: tuple[float, int]) -> list[Effect]:
        if not self.leads:
            return []
        number, workers = 0 if self.log.last is None else self.log.last.number + 1, len(self._living)
        seconds, me = self.seconds(now), self._mesh.me.life
        self._running = p.EvaluationDone(number, seconds, 0.0, done, rows, None, {}, None, workers, False, [], me)
        self._loss, self._evaluated = loss, done
        self.answers.keep(number, weights)
        self._token += 1
        return [Store(self._token, partial(_evaluated, self._evaluate, weights))]

    def evaluated(self, now: int, token: int, result: Any, error: BaseException | None) -> list[p.Word]:
        running = self._running
        if token != self._token or not self.leads or running is None:
            return []  # from an earlier time as leader
        self._running = None
        if error is not None:
            self.end(f"the model cannot be evaluated: {str(error) or type(error).__name__}", failed=True)
            return []
        loss, metrics = result
        best, why = self._stop_rules.judged(loss, metrics)
        if why:
            self.end(why, failed=not math.isfinite(loss), evaluates=False)
        mark, self._mark = self._mark, self._loss
        rows = self._loss[1] - mark[1]
        train = (self._loss[0] - mark[0]) / rows if rows > 0 and running.number else None
        self.answers.evaluated(running.number, best)
        running = msgspec.structs.replace(running, now=self.seconds(now), loss=_finite(loss), train=_finite(train))
        if self._clock is None:
            self._clock = now - self._earlier  # from here on slots are assigned
        metrics = {name: _finite(value) for name, value in metrics.items()}
        patience = list(msgspec.structs.astuple(self._stop_rules.state()))
        return [msgspec.structs.replace(running, metrics=metrics, best=best, patience=patience)]

    def _assign(self) -> list[p.Word]:
        log, workers = self.log, self._living
        if self._ownership is not None:
            workers = [life for life in workers if life in log.all_owners]
        pool = self._free()
        if self._why:
            room = pool.within([(0, self._floor)])
        else:
            next_but_one = (max(self._evaluated, 0) // self._facts.evaluate + 2) * self._facts.evaluate
            room = min(self._limit, next_but_one) - (log.next - pool.size)
        if room <= 0 or not workers:
            return []
        least = max(1, min(self._facts.per_word // _LEAST, room // len(workers)))
        fair = max(least, room // (2 * len(workers)))
        below = self._floor if self._why else None
        found: list[tuple[str, Runs]] = []
        again, first = 0, log.next
        for life in sorted(workers, key=log.left):  # who has least comes first
            slots, took = log.rates.get(life, (0, 0))
            ahead = max(2 * self._facts.per_word, slots * AHEAD // took if took else 0)
            target, has = min(ahead, fair), log.left(life)
            if room <= 0 or 2 * has > target:
                continue
            runs = pool.pop(min(target - has, room), below)
            again += count(runs)
            more = min(target - has, room) - count(runs)
            if more > 0 and not self._why and (stop := min(self._limit, first + more)) > first:
                runs.append((first, stop))
                first = stop
            if runs:
                room -= count(runs)
                found.append((life, runs))
        return [p.SlotsDealt(found, again)] if found else []

    def _free(self) -> Intervals:
        """Free slots; there are new ones only after a life was closed or gave slots back."""
        seen = (self.log.returned, sum(map(self.is_closed, self._mesh.gone)))
        if seen != self._pool_version or self._pool:
            self._pool, self._pool_version = self.log.free(self.is_closed), seen
        return self._pool


def _evaluated(evaluate: Evaluate, weights: Floats) -> tuple[float, Mapping[str, float | None]]:
    with np.errstate(over="ignore", invalid="ignore"):
        fine = math.isfinite(float(weights.sum(dtype=np.float64)))
    return evaluate(weights) if fine else (math.inf, {})


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None

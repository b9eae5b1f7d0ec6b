"""The leader of a run of peers: it assigns slots, evaluates the model and ends the run.

The first of the living peers leads. It decides from its run log alone, which all peers have, and
publishes every decision: when it is gone the next peer continues from there.

    assigning   every peer has about a second of work ahead, less towards the end, so that all
                finish together; slots of a life that is gone are assigned again once it is closed
    evaluating  the initial weights before any slot is assigned, then every so many slots. No slot
                past the next evaluation is assigned, so that a stop rule is at most one evaluation
                late
    ending      complete the epochs that were begun before the last one; then let all peers finish
                and rest, evaluate what was not evaluated, and let all go

``Leader`` decides, while this peer leads. ``Leadership`` knows whether it leads, and the run's
clock. Nothing here sends, computes or reads the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shoal import limits
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.schedule.intervals import Intervals, Runs, count
from shoal.schedule.stop_rules import ENDLESS, Patience, StopDecision, StopRules
from shoal.strategies.peers import PeerToPeer
from shoal.strategies.peers.compute import Floats
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.model_transfer import ObserverAnswers
from shoal.strategies.peers.ownership import Ownership
from shoal.strategies.peers.run_log import RunLog
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
        """Slots that are published at once."""
        return max(1, -(-self.every // self.slots.batch))

    @property
    def limit(self) -> tuple[int, str]:
        return StopDecision(self.stop).limit(self.slots.per_pass, self.stop.steps)


@dataclass(frozen=True, slots=True)
class RunningEvaluation:
    """The weights that are being evaluated: what is in them."""

    number: int
    seconds: float
    done: int
    rows: int
    loss: tuple[float, int]  # sum and rows, of all that was learned
    workers: int


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The members, as the leader sees them."""

    living: Sequence[str]
    gone: Sequence[str]
    is_closed: Callable[[str], bool]
    workers: Sequence[str]  # those of the living that may be assigned slots


class Leader:
    """The decisions of a peer while it leads."""

    def __init__(self, me: str, facts: PeerFacts, log: RunLog) -> None:
        self._me, self._facts, self._log = me, facts, log
        self._stop_rules = StopDecision(facts.stop)
        if log.last is not None and log.last.patience:
            best, mark, without, objective = log.last.patience
            self._stop_rules.restore(Patience(best, mark, round(without or 0), objective))
        self._limit, self._reason = facts.limit
        self._pool, self._seen = Intervals(), (-1, -1)
        self.running: RunningEvaluation | None = None
        self._evaluated = log.last.done if log.last is not None else -1  # slots in those weights
        self._mark = log.mark
        # Why the run ends; whether that is a failure; whether the last weights are to be evaluated;
        # and up to which slot all must be counted before it ends.
        self._why, self._failed, self._evaluates, self._floor = "", False, True, 0

    # ------------------------------------------------------------ evaluating

    @property
    def is_due(self) -> bool:
        """Is the model to be evaluated now?"""
        log, last = self._log, self._log.last
        if self.running is not None or log.ended is not None:
            return False
        if last is None:
            return True
        if log.halt is not None:
            return False  # the last evaluation follows when all rest
        return not self._why and log.done // self._facts.evaluate > last.done // self._facts.evaluate

    def is_last_due(self, view: LeaderView) -> bool:
        """Is the last evaluation to be made now, since all rest?"""
        log = self._log
        if self.running is not None or log.ended is not None or log.halt is None or not log.halt.judge:
            return False
        return not self._is_evaluated(view) and self._all_rest(view)

    def _is_evaluated(self, view: LeaderView) -> bool:
        """All that is counted was, by a living peer: it still has the weights."""
        last = self._log.last
        return last is not None and last.done == self._log.done and last.by in view.living

    def begin_evaluation(self, seconds: float, done: int, rows: int, loss: tuple[float, int], workers: int) -> int:
        """The weights were copied for an evaluation; returns its number."""
        number = 0 if self._log.last is None else self._log.last.number + 1
        self.running, self._evaluated = RunningEvaluation(number, seconds, done, rows, loss, workers), done
        return number

    def evaluated(self, seconds: float, loss: float, metrics: Mapping[str, float | None]) -> p.EvaluationDone:
        """The result of the running evaluation."""
        running, self.running = self.running, None
        assert running is not None
        best, why = self._stop_rules.judged(loss, metrics)
        rows = running.loss[1] - self._mark[1]
        train = (running.loss[0] - self._mark[0]) / rows if rows > 0 and running.number else None
        self._mark = running.loss
        state = self._stop_rules.state()
        fine = math.isfinite(loss)
        if not fine:
            self.end(why, failed=True)
        elif why:
            self.end(why, evaluates=False)
        return p.EvaluationDone(
            number=running.number,
            seconds=running.seconds,
            now=seconds,
            done=running.done,
            rows=running.rows,
            loss=loss if fine else None,
            metrics={name: _finite(value) for name, value in metrics.items()},
            train=_finite(train),
            workers=running.workers,
            best=best,
            patience=[state.best, state.mark, float(state.without), state.objective],
            by=self._me,
        )

    def evaluation_failed(self, why: str) -> None:
        self.running = None
        self.end(f"the model cannot be evaluated: {why}", failed=True)

    # ------------------------------------------------------------ the end

    def end(self, why: str, *, failed: bool = False, evaluates: bool = True, now: bool = False) -> None:
        """End the run; with ``now`` epochs may stay incomplete."""
        if self._why and not failed:
            return
        self._why, self._failed, self._evaluates = why, failed, evaluates and not failed
        per_epoch, reached = self._facts.slots.per_pass, self._log.next
        self._floor = 0 if failed or now else max(0, reached - 1) // per_epoch * per_epoch

    def decide(self, seconds: float, view: LeaderView) -> list[p.Word]:
        """The words to publish now."""
        log = self._log
        if log.ended is not None:
            return []
        if log.halt is not None:
            if not self._is_settled(view):
                return []
            return [p.PeersEnded(log.halt.why, log.halt.failed or self._failed, seconds)]
        if log.last is None and not self._why:
            return []
        if not self._why:
            if log.done >= self._limit:
                self.end(self._reason)
            elif why := self._stop_rules.out_of_time(seconds):
                self.end(why)
        if self._why and log.counted.within([(0, self._floor)]) == self._floor and self.running is None:
            return [p.Halt(self._why, self._failed, self._evaluates)]
        return self._assign(view)

    def _all_rest(self, view: LeaderView) -> bool:
        log = self._log
        unfinished = any(log.open.get(life) for life in view.living)
        resting = all(life in log.rested for life in view.living)
        return resting and not unfinished and all(map(view.is_closed, view.gone))

    def _is_settled(self, view: LeaderView) -> bool:
        """All rest, and nothing is left to evaluate."""
        log = self._log
        assert log.halt is not None
        if self.running is not None or not self._all_rest(view):
            return False
        return not log.halt.judge or self._failed or self._is_evaluated(view)

    # ------------------------------------------------------------ assigning slots

    def _assign(self, view: LeaderView) -> list[p.Word]:
        log, pool = self._log, self._free(view)
        room = self._room(pool)
        if room <= 0 or not view.workers:
            return []
        least = max(1, min(self._facts.per_word // _LEAST, room // len(view.workers)))
        fair = max(least, room // (2 * len(view.workers)))
        below = self._floor if self._why else None
        found: list[tuple[str, Runs]] = []
        again, first = 0, log.next
        for life in sorted(view.workers, key=log.left):  # who has least comes first
            target = min(self._ahead(life), fair)
            has = log.left(life)
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
        return [p.SlotsDealt([(life, list(runs)) for life, runs in found], again)] if found else []

    def _free(self, view: LeaderView) -> Intervals:
        """Free slots; there are new ones only after a life was closed or gave slots back."""
        log = self._log
        seen = (log.returned, sum(map(view.is_closed, view.gone)))
        if seen != self._seen or self._pool:
            self._pool, self._seen = log.free(view.is_closed), seen
        return self._pool

    def _room(self, pool: Intervals) -> int:
        """Slots that may be assigned."""
        if self._why:
            return pool.within([(0, self._floor)])
        end, every = self._limit, self._facts.evaluate
        if every < ENDLESS:
            end = min(end, (max(self._evaluated, 0) // every + 2) * every)
        return end - (self._log.next - pool.size)

    def _ahead(self, life: str) -> int:
        """Slots that it should have ahead."""
        slots, took = self._log.rates.get(life, (0, 0))
        return max(2 * self._facts.per_word, slots * AHEAD // took if took else 0, 1)


class Leadership:
    """Whether this peer leads, the clock of the run, and the evaluations.

    A peer begins to lead when it has heard every decision that another leader made or may make
    (``Mesh.may_begin_to_lead``), or two would lead at once. The clock starts when all founders are
    here and the initial weights are evaluated. Every peer keeps it, by what it hears; it never goes
    back.
    """

    def __init__(
        self,
        mesh: Mesh,
        facts: PeerFacts,
        evaluate: Evaluate,
        answers: ObserverAnswers,
        ownership: Ownership | None,
        before: float,
    ) -> None:
        """``before``: seconds of the run so far, if it is resumed."""
        self._mesh, self._facts, self._evaluate = mesh, facts, evaluate
        self._answers, self._ownership = answers, ownership
        self.leader: Leader | None = None
        self.stop = ""  # why a peer wants the run to end
        self._before = round(before * limits.SECOND)
        self._clock: int | None = None  # when the run began, by our own clock
        self._first: int | None = None  # when this peer began
        self._token = 0  # of the running evaluation

    # ------------------------------------------------------------ the clock

    def begin(self, now: int) -> None:
        """With the first event."""
        self._first = now if self._first is None else self._first

    def seconds(self, now: int) -> float:
        return (now - self._clock if self._clock is not None else self._before) / limits.SECOND

    def set_clock(self, now: int, seconds: float) -> None:
        """The run is at least so old."""
        at = now - round(seconds * limits.SECOND)
        self._clock = at if self._clock is None else min(self._clock, at)

    def _has_begun(self, now: int) -> bool:
        """All founders are here, or it begins without those that were not heard from."""
        if self._clock is not None or self._mesh.is_met:
            return True
        return self._first is not None and now - self._first > self._mesh.timing.join_within

    # ------------------------------------------------------------ deciding

    def view(self, log: RunLog) -> LeaderView:
        mesh, ownership = self._mesh, self._ownership
        living = [one.life for one in mesh.living]
        if ownership is None:
            return LeaderView(living, list(mesh.gone), mesh.is_closed, living)
        known = () if log.owners is None else (*log.owners.lives, *log.owners.others)

        def is_closed(life: str) -> bool:
            return mesh.is_closed(life) and ownership.is_closed(life, log, living)

        return LeaderView(living, list(mesh.gone), is_closed, [life for life in living if life in known])

    def decide(self, now: int, log: RunLog, may_lead: bool) -> list[p.Word]:
        """The words to publish, if we lead; there may be more when these are heard."""
        mesh = self._mesh
        if not may_lead or mesh.leads != mesh.me.life:
            self.leader = None
            return []
        if self.leader is None:
            if not mesh.may_begin_to_lead:
                return []
            self.leader = Leader(mesh.me.life, self._facts, log)
        if self.stop:
            self.leader.end(self.stop, now=True)
        if not self._has_begun(now):
            return []
        if self._clock is None and log.last is not None:
            self._clock = now - self._before  # a resumed run
        view = self.view(log)
        if self._ownership is not None and log.ended is None:
            owners = self._ownership.choose(log, view.living)
            if owners is not None:
                return [owners]
        return self.leader.decide(self.seconds(now), view)

    # ------------------------------------------------------------ evaluating

    def is_evaluation_due(self, now: int, log: RunLog) -> bool:
        if self.leader is None or not self._has_begun(now):
            return False
        return self.leader.is_due or self.leader.is_last_due(self.view(log))

    def evaluate(self, now: int, weights: Floats, done: int, rows: int, loss: tuple[float, int]) -> list[Effect]:
        """Evaluate these weights, beside the learning."""
        if self.leader is None:
            return []
        number = self.leader.begin_evaluation(self.seconds(now), done, rows, loss, len(self._mesh.living))
        self._answers.keep(number, weights)
        self._token += 1
        return [Store(self._token, partial(_evaluated, self._evaluate, weights))]

    def evaluated(self, now: int, token: int, result: Any, error: BaseException | None) -> list[p.Word]:
        leader = self.leader
        if token != self._token or leader is None or leader.running is None:
            return []  # from an earlier time as leader
        if error is not None:
            leader.evaluation_failed(str(error) or type(error).__name__)
            return []
        word = leader.evaluated(self.seconds(now), *result)
        self._answers.evaluated(word.number, word.best)
        if self._clock is None:
            self._clock = now - self._before  # from here on slots are assigned
        return [word]


def _evaluated(evaluate: Evaluate, weights: Floats) -> tuple[float, Mapping[str, float | None]]:
    with np.errstate(over="ignore", invalid="ignore"):
        fine = math.isfinite(float(weights.sum(dtype=np.float64)))
    return evaluate(weights) if fine else (math.inf, {})


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None

"""What the peer that leads decides: who learns from which slots, when the model is judged, and when the run is over.

It decides from its book alone (``cluster.book``), which all have: when it is gone the next one goes on from there.

    dealing     everybody has about a second of work ahead, less towards the end, so that all end together; slots of one that is gone
                are dealt again, once nobody can have heard more of it than we have
    judging     the first weights before anything is dealt; then every so many slots. Nothing is dealt past the evaluation after the
                one that is judged, so that a stop rule is never more than one evaluation late
    ending      passes that were begun before the last one are made whole; then all are told to rest, and when they do, what is
                unjudged is judged, and all may go

Nothing here sends, computes or reads the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shoal.data.slots import Slots
from shoal.job import Job
from shoal.schedule.intervals import Intervals, count
from shoal.schedule.runs import Runs
from shoal.schedule.stop_rules import (
    ENDLESS,
    Patience,
    StopDecision,
    StopRules,
)
from shoal.strategies.peers.run_log import RunLog
from shoal.strategies.peers.settings import PeerToPeer
from shoal.wire.messages import peers as p

AHEAD = 1_000_000  # microseconds of work that everybody has before it
_LEAST = 4  # the last deals have so many times fewer rows than are told at once


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What all peers of a run agree on."""

    slots: Slots
    stop: StopRules
    evaluate: int  # slots between two evaluations
    every: int  # rows between two times that a peer tells
    owned: bool = False

    @classmethod
    def of(cls, job: Job, rows: int) -> PeerFacts:
        assert isinstance(job.strategy, PeerToPeer)
        slots, passes = Slots(rows, job.data.batch, job.seed), job.evaluate.every
        evaluate = max(1, round(passes * slots.per_pass)) if passes < ENDLESS / slots.per_pass else ENDLESS
        return cls(slots, job.stop, evaluate, job.strategy.every, job.strategy.send == "owned")

    @property
    def per_told(self) -> int:
        """Slots in what is told at once."""
        return max(1, -(-self.every // self.slots.batch))

    @property
    def limit(self) -> tuple[int, str]:
        return StopDecision(self.stop).limit(self.slots.per_pass, self.stop.steps)


@dataclass(frozen=True, slots=True)
class LogCut:
    """The weights that are judged: what is in them."""

    number: int
    seconds: float
    done: int
    rows: int
    loss: tuple[float, int]  # of all that was learned, and rows
    workers: int


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who is there, as the one that leads sees it."""

    living: Sequence[str]
    gone: Sequence[str]
    is_closed: Callable[[str], bool]
    deals_to: Sequence[str]  # those of the living that may be dealt something


class Leader:
    """One peer's, while it leads."""

    def __init__(self, me: str, facts: PeerFacts, book: RunLog) -> None:
        self._me, self._facts, self._book = me, facts, book
        self._stopping = StopDecision(facts.stop)
        if book.last is not None and book.last.patience:
            best, mark, without, objective = book.last.patience
            self._stopping.restore(Patience(best, mark, round(without or 0), objective))
        self._limit, self._reason = facts.limit
        self._pool, self._seen = Intervals(), (-1, -1)
        self._open: LogCut | None = None  # is judged now
        self._held = book.last.done if book.last is not None else -1  # slots in the last weights that were cut
        self._mark = book.mark
        self._why, self._failed, self._judges, self._floor = "", False, True, 0

    # ------------------------------------------------------------ judging

    @property
    def due(self) -> bool:
        """The weights are to be cut now."""
        book, last = self._book, self._book.last
        if self._open is not None or book.ended is not None:
            return False
        if last is None:
            return True
        if book.halt is not None:
            return False  # what is unjudged then is judged when all rest
        return not self._why and book.done // self._facts.evaluate > last.done // self._facts.evaluate

    def is_last_due(self, view: LeaderView) -> bool:
        """All rest, and something is unjudged."""
        book = self._book
        if self._open is not None or book.ended is not None or book.halt is None or not book.halt.judge:
            return False
        return not self._is_judged(view) and self._all_rest(view)

    def _is_judged(self, view: LeaderView) -> bool:
        """All that is counted, by one that has the weights still: a former life of the run has not."""
        last = self._book.last
        return last is not None and last.done == self._book.done and last.by in view.living

    def cut(self, seconds: float, done: int, rows: int, loss: tuple[float, int], workers: int) -> None:
        """The weights were cut: they are judged while others are learned."""
        number = 0 if self._book.last is None else self._book.last.number + 1
        self._open, self._held = LogCut(number, seconds, done, rows, loss, workers), done

    @property
    def open(self) -> LogCut | None:
        return self._open

    def judged(self, seconds: float, loss: float, metrics: Mapping[str, float | None]) -> p.EvaluationDone:
        """What is found of those that were cut last."""
        cut, self._open = self._open, None
        assert cut is not None
        best, why = self._stopping.judged(loss, metrics)
        rows = cut.loss[1] - self._mark[1]
        train = (cut.loss[0] - self._mark[0]) / rows if rows > 0 and cut.number else None
        self._mark = cut.loss
        state = self._stopping.state()
        patience = [state.best, state.mark, float(state.without), state.objective]
        fine = math.isfinite(loss)
        found = {name: value if value is None or math.isfinite(value) else None for name, value in metrics.items()}
        train = train if train is None or math.isfinite(train) else None
        if not fine:
            self.end(why, failed=True)
        elif why:
            self.end(why, judges=False)
        return p.EvaluationDone(
            cut.number, cut.seconds, seconds, cut.done, cut.rows, loss if fine else None, found, train,
            cut.workers, best, patience, self._me,
        )  # fmt: skip

    def unjudged(self, why: str) -> None:
        """The model cannot be judged."""
        self._open = None
        self.end(f"the model cannot be judged: {why}", failed=True)

    # ------------------------------------------------------------ the end

    def end(self, why: str, *, failed: bool = False, judges: bool = True, now: bool = False) -> None:
        """It is over; ``now``: with passes that are not whole."""
        if self._why and not failed:
            return
        self._why, self._failed, self._judges = why, failed, judges and not failed
        per_pass, reached = self._facts.slots.per_pass, self._book.next
        self._floor = 0 if failed or now else max(0, reached - 1) // per_pass * per_pass

    def look(self, seconds: float, view: LeaderView) -> list[p.Word]:
        """What there is to be said now."""
        book = self._book
        if book.ended is not None:
            return []
        if book.halt is not None:
            if not self._is_settled(view):
                return []
            return [p.PeersEnded(book.halt.why, book.halt.failed or self._failed, seconds)]
        if book.last is None and not self._why:
            return []
        if not self._why:
            if book.done >= self._limit:
                self.end(self._reason)
            elif why := self._stopping.out_of_time(seconds):
                self.end(why)
        if self._why and book.counted.within([(0, self._floor)]) == self._floor and self._open is None:
            return [p.Halt(self._why, self._failed, self._judges)]
        return self._deal(view)

    def _all_rest(self, view: LeaderView) -> bool:
        book = self._book
        at_work = any(book.open.get(life) for life in view.living)
        return all(life in book.rested for life in view.living) and not at_work and all(map(view.is_closed, view.gone))

    def _is_settled(self, view: LeaderView) -> bool:
        """All rest, and nothing is left to be judged."""
        book = self._book
        assert book.halt is not None
        if self._open is not None or not self._all_rest(view):
            return False
        return not book.halt.judge or self._failed or self._is_judged(view)

    # ------------------------------------------------------------ dealing

    def _deal(self, view: LeaderView) -> list[p.Word]:
        book, pool = self._book, self._free(view)
        room = self._room(pool)
        if room <= 0 or not view.deals_to:
            return []
        least = max(1, min(self._facts.per_told // _LEAST, room // len(view.deals_to)))
        fair = max(least, room // (2 * len(view.deals_to)))
        below = self._floor if self._why else None
        found: list[tuple[str, Runs]] = []
        again, first = 0, book.next
        for life in sorted(view.deals_to, key=book.left):  # who has least comes first
            target = min(self._ahead(life), fair)
            has = book.left(life)
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
        """What nobody has any more; looked for only when somebody is gone or gave something back, for that is when there is any."""
        book = self._book
        seen = (book.returned, sum(map(view.is_closed, view.gone)))
        if seen != self._seen or self._pool:
            self._pool, self._seen = book.free(view.is_closed), seen
        return self._pool

    def _room(self, pool: Intervals) -> int:
        """Slots that may be dealt."""
        if self._why:
            return pool.within([(0, self._floor)])
        end, every = self._limit, self._facts.evaluate
        if every < ENDLESS:
            end = min(end, (max(self._held, 0) // every + 2) * every)
        return end - (self._book.next - pool.size)

    def _ahead(self, life: str) -> int:
        """Slots that it should have before it."""
        slots, took = self._book.rates.get(life, (0, 0))
        return max(2 * self._facts.per_told, slots * AHEAD // took if took else 0, 1)

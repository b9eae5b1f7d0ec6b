"""The evaluator: computes losses on held-out rows, and keeps the weights of the best.

It asks the coordinator what to evaluate and reads the whole model by range (in step mode as it is
after a named step). It reports that it has read the model, so that training goes on, and evaluates
it on its compute thread. The model with the lowest loss stays the best, also after a rollback.

A restarted coordinator may ask for what was read or evaluated before, and gets the same answer.
After a rollback (another generation) everything is read and evaluated again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shoal import limits
from shoal.errors import Fenced, ShoalError, Unanswered
from shoal.keys import KeyRange, KeyValues, Values
from shoal.models.learner import Learner
from shoal.nodes.time_accounting import COMMUNICATE, EVALUATE, IDLE, TimeAccounting
from shoal.nodes.worker import Worker, is_rolling_back
from shoal.store.client.task import Task
from shoal.tables import TABLE
from shoal.wire import messages as m

_ASK = 20 * limits.MILLISECOND


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedModel:
    """A model and what was found about it."""

    number: int
    weights: Values
    loss: float
    metrics: dict[str, float | None]


class EvaluationOrder(NamedTuple):
    generation: int
    number: int
    clock: int


class Evaluator:
    """The evaluator of one run."""

    def __init__(
        self,
        worker: Worker,
        learner: Learner,
        test: Any,
        best: EvaluatedModel | None = None,
        keep: Callable[[EvaluatedModel], None] | None = None,
    ) -> None:
        """``best``: of an earlier process; ``keep`` gets every better one, off the loop."""
        self.worker, self.learner, self.test = worker, learner, test
        worker.client.dispatcher.patient = True  # as a trainer is
        self.last: EvaluatedModel | None = None
        self.best = best
        self._save_best = keep
        self._read: tuple[EvaluationOrder, tuple[Values, int]] | None = None  # what was read last
        self._judged: tuple[EvaluationOrder, EvaluatedModel] | None = None
        self._rows = learner.keys
        self._times = TimeAccounting(worker.clock, limits.SPANS)
        self._closed = False  # what is evaluated from now on comes too late

    def start(self) -> Task:
        """The task is done when the run is over."""
        return self.worker.start(self._evaluate())

    def evaluate_now(self, pulled: Values | KeyValues) -> EvaluatedModel:
        """Evaluate these weights now, as the last ones: the run was interrupted."""
        self._closed = True
        weights = _spread(pulled, self._rows) if isinstance(pulled, KeyValues) else pulled
        number = 0 if self.last is None else self.last.number + 1
        judged = EvaluatedModel(number, weights, *_evaluate(self.learner, self.test, weights))
        if self._take(judged) and self._save_best is not None:
            self._save_best(judged)
        return judged

    def _take(self, judged: EvaluatedModel) -> bool:
        self.last = judged
        if self.best is None or judged.loss < self.best.loss:
            self.best = judged
        return self.best is judged

    async def _evaluate(self) -> None:
        await self.worker.joined
        while True:
            try:
                await self._live()
                return
            except Fenced:  # it slept for long, or the run rolled back: it joins again
                continue

    async def _live(self) -> None:
        client = self.worker.client
        while TABLE not in client.session.layouts or not client.session.incarnation:
            with contextlib.suppress(Unanswered):
                await client.refresh()
            await self.worker.sleep(_ASK)
        while True:
            self._times.record(IDLE)
            ask = await self._ready()
            if ask.over:
                return
            if ask.number < 0:
                await self.worker.sleep(_ASK)
                continue
            order = EvaluationOrder(client.session.view.generation, ask.number, ask.clock)
            try:
                judged = await self._answer(order)
            except Unanswered:
                continue  # by then there may be another server to read from
            except Fenced:
                raise
            except ShoalError as error:
                if await is_rolling_back(self.worker, order.generation):
                    await self.worker.sleep(_ASK)
                    continue
                await self._ready(error=str(error))
                raise
            if client.session.view.generation == order.generation:
                found, step = judged.number, m.NO_CLOCK if self._read is None else self._read[1][1]
                await self._ready(holds=found, found=found, loss=judged.loss, metrics=judged.metrics, clock=step)

    async def _answer(self, order: EvaluationOrder) -> EvaluatedModel:
        if self._judged is not None and self._judged[0] == order:
            return self._judged[1]
        if self._read is None or self._read[0] != order:
            self._times.record(IDLE)
            self._read = (order, await self._weights(order.clock))
            self._times.record(COMMUNICATE)
        weights, step = self._read[1]
        await self._ready(holds=order.number, clock=step)
        self._times.record(COMMUNICATE)
        loss, metrics = await self._off_the_loop(lambda: _evaluate(self.learner, self.test, weights))
        self._times.record(EVALUATE)
        judged = EvaluatedModel(order.number, weights, loss, metrics)
        self._judged = (order, judged)
        if not self._closed and self._take(judged) and self._save_best is not None:
            await self._off_the_loop(partial(self._save_best, judged))
        return judged

    async def _ready(self, **said: Any) -> m.EvaluateNow:
        """Tell the coordinator the fields of ``EvaluationReady``, and ask what to evaluate."""
        client = self.worker.client
        spans = [one for one in self._times.take()[1] if one[0] != IDLE]

        def ready(request: int) -> m.Message:
            return m.EvaluationReady(request, client.session.incarnation, spans=spans, **said)

        while True:
            with contextlib.suppress(Unanswered):  # a coordinator that is away comes back
                answer: m.EvaluateNow = await client.ask("ask what to evaluate", ready, m.EvaluateNow)
                return answer

    async def _weights(self, clock: int) -> tuple[Values, int]:
        """All weights, one for each row of the table, and the step they are of, if any.

        One that read this step before and died let training go on: the step is past, servers may be
        between two, and what was read is of some of both. That settles, for nothing past the next
        evaluation is dealt before this one is evaluated.
        """
        when = None if clock < 0 else clock
        while True:
            pull = self.worker.client.pull(TABLE, KeyRange(0, self._rows), clock=when, exact=True)
            pulled = await pull
            if when is None or len(pull.steps) == 1:
                break
            await self.worker.sleep(_ASK)
        step = m.NO_CLOCK if when is None else max(pull.steps)
        if isinstance(pulled, KeyValues):
            return await self._off_the_loop(lambda: _spread(pulled, self._rows)), step
        weights: Values = pulled
        return weights, step

    def _off_the_loop(self, function: Callable[[], Any]) -> Task:
        """However large the model is, heartbeats go on."""
        return self.worker.compute(function, limits.INLINE_ELEMENTS + 1)


def _spread(pulled: KeyValues, rows: int) -> Values:
    assert not isinstance(pulled.keys, KeyRange)
    weights: Values = np.zeros(rows, np.float32)
    weights[pulled.keys] = pulled.values
    return weights


def _evaluate(learner: Learner, test: Any, weights: Values) -> tuple[float, dict[str, float | None]]:
    if not np.isfinite(weights).all():
        return math.inf, {}
    return learner.evaluate(test, weights)

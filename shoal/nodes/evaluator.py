"""The evaluator: the one node that computes losses on held-out rows (S4-14), and keeps the very values it judged.

It asks the coordinator what to judge, reads the whole model by range (in step mode exactly as it is after a named step),
says so, so that training goes on, and judges it on its compute thread. When the loss is the lowest so far, those values
are the best model, whatever happens to the servers afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal import limits
from shoal.data.packed import Packed
from shoal.errors import ShoalError
from shoal.keys import KeyRange, KeyValues, Values
from shoal.models.linear import Linear
from shoal.nodes.worker import Worker
from shoal.store.task import Task
from shoal.strategies import TABLE
from shoal.wire import messages as m

_ASK = 20 * limits.MILLISECOND


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A model and what was found about it."""

    number: int
    weights: Values
    loss: float
    metrics: dict[str, float | None]


class Evaluator:
    """The judge of one run."""

    def __init__(self, worker: Worker, model: Linear, test: Packed) -> None:
        self.worker, self.model, self.test = worker, model, test
        worker.client.patient = True  # as a trainer is
        self.last: Judged | None = None
        self.best: Judged | None = None
        self._rows = model.keys(test.features)

    def start(self) -> Task:
        """The task is done when the run is over."""
        return self.worker.start(self._judge())

    def judge_now(self, pulled: Values | KeyValues) -> Judged:
        """Judge these weights here and now: the run was interrupted, and its loop is left alone."""
        weights = _spread(pulled, self._rows) if isinstance(pulled, KeyValues) else pulled
        number = 0 if self.last is None else self.last.number + 1
        judged = Judged(number, weights, *_judge(self.model, self.test, weights))
        self._keep(judged)
        return judged

    def _keep(self, judged: Judged) -> None:
        self.last = judged
        if self.best is None or judged.loss < self.best.loss:
            self.best = judged

    async def _judge(self) -> None:
        await self.worker.joined
        while TABLE not in self.worker.client.layouts:
            await self.worker.client.refresh()
            await self.worker.sleep(_ASK)
        while True:
            ask = await self._ready()
            if ask.over:
                return
            if ask.number < 0:
                await self.worker.sleep(_ASK)
                continue
            try:
                weights = await self._weights(ask.clock)
                await self._ready(holds=ask.number)
                judged = await self._found(ask.number, weights)
            except ShoalError as error:
                await self._ready(error=str(error))
                raise
            self._keep(judged)
            await self._ready(holds=judged.number, found=judged.number, loss=judged.loss, metrics=judged.metrics)

    async def _ready(
        self,
        holds: int = -1,
        found: int = -1,
        loss: float = 0.0,
        metrics: dict[str, float | None] | None = None,
        error: str = "",
    ) -> m.Judge:
        client = self.worker.client

        def ready(request: int) -> m.Message:
            return m.Ready(request, client.incarnation, holds, found, loss, metrics or {}, error)

        answer: m.Judge = await client.ask("ask what to judge", ready, m.Judge)
        return answer

    async def _weights(self, clock: int) -> Values:
        """All weights, one for each row of the table."""
        pulled = await self.worker.client.pull(TABLE, KeyRange(0, self._rows), clock=None if clock < 0 else clock)
        if isinstance(pulled, KeyValues):
            return await self._off_the_loop(lambda: _spread(pulled, self._rows))  # type: ignore[no-any-return]
        weights: Values = pulled
        return weights

    async def _found(self, number: int, weights: Values) -> Judged:
        loss, metrics = await self._off_the_loop(lambda: _judge(self.model, self.test, weights))
        return Judged(number, weights, loss, metrics)

    def _off_the_loop(self, function: Callable[[], Any]) -> Task:
        """However large the model is, heartbeats go on."""
        return self.worker.compute(function, limits.INLINE_ELEMENTS + 1)


def _spread(pulled: KeyValues, rows: int) -> Values:
    """The live rows of a sparse table among all."""
    assert not isinstance(pulled.keys, KeyRange)
    weights: Values = np.zeros(rows, np.float32)
    weights[pulled.keys] = pulled.values
    return weights


def _judge(model: Linear, test: Packed, weights: Values) -> tuple[float, dict[str, float | None]]:
    if not np.isfinite(weights).all():
        return math.inf, {}
    return model.judge(test, weights)

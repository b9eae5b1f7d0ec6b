"""Delayed block proximal gradient for sparse logistic regression (Li et al., 2014).

    iteration t         a block of features b(t), from the seed and t; each part of the rows pushes
                        g = the gradient of its rows, u = a bound of their curvature
    servers at t        add up g and u; proximal step in the diagonal norm of u (``block_proximal``)
    bounded delay       iteration t has in it exactly the iterations before t - max_delay

The answer to a push are the new weights of its keys, once its step is taken: they are put into the
part's margins ``max_delay + 1`` iterations later, so a run does not depend on who is fast. The
number of parts is a setting and not the number of workers. A part that comes from another worker
begins again: all its weights are pulled, and its margins made from them.

The KKT filter: a key whose weight is 0 and whose gradient, over all rows, is too small to change
that is answered as -0.0, and left out of pushes and answers until ``recheck``.
"""

from __future__ import annotations

import importlib
import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec
import numpy as np

from shoal.data.slots import Slot
from shoal.errors import BadValues, Invalid
from shoal.keys import KeyList
from shoal.limits import SLOTS_PER_STEP
from shoal.models.block_margins import BlockMargins
from shoal.models.columns import SOLVED, CscColumns
from shoal.models.learner import Learner, LinearLearner
from shoal.models.linear import Linear
from shoal.nodes.server_strategy import ServerStrategy
from shoal.store.client.task import Task
from shoal.strategies.block_proximal.order import BlockOrder
from shoal.strategies.parameter_server.algorithm import is_newer, settle
from shoal.strategy import register
from shoal.tables import TABLE, Apply, Step, Table, Update

if TYPE_CHECKING:
    from shoal.data.slots import SlotOrder
    from shoal.job import Job
    from shoal.nodes.trainer import SlotStream
    from shoal.strategies.block_proximal.columns import ColumnPart

_BLOCKS = 1 << 16
_DELAY = 32  # iterations; servers hold 64 steps ahead
# The default end: rcv1 and, with l1 = 10, a9a and criteo_tb end within 2e-5 of the minimum.
_SOLVED_AT = {"objective": 3e-6, "violation": 1.0}
NIPS, OSDI = 0.1, 0.5  # of l1: what kkt_delta is if it is not given


@register
class BlockProximal(ServerStrategy, frozen=True, tag="block-proximal", kw_only=True):
    """Block after block by proximal steps on servers: l1 logistic regression, solved."""

    solves: ClassVar[bool] = True

    blocks: int = 16  # of features, each once in an epoch; with a delay 1 + max_delay times as many
    by: Literal["count", "range"] = "count"  # blocks of as many nonzeros, or of as many keys
    parts: int = 4  # of the rows; as many workers can take part
    max_delay: int = 0  # iterations that the weights of a slot may be behind
    kkt: Literal["nips", "osdi", "off"] = "nips"  # drop a 0 if |g| <= l1 - kkt_delta, or kkt_delta
    kkt_delta: float | None = None  # nips: l1 / 10, osdi: l1 / 2
    recheck: int = 10  # epochs between checks of every key

    def __post_init__(self) -> None:
        bounds = (
            ("blocks", 1, _BLOCKS), ("parts", 1, SLOTS_PER_STEP), ("max_delay", 0, _DELAY), ("recheck", 1, 1 << 30),
        )  # fmt: skip
        for name, least, most in bounds:
            if not least <= getattr(self, name) <= most:
                raise Invalid(f"strategy.{name}={getattr(self, name)}: needs {least} to {most:,}")
        if self.max_delay >= self.blocks:
            raise Invalid(
                f"strategy.max_delay={self.max_delay} with {self.blocks} blocks: a block would come again before its last "
                f"step is known: take more blocks (--set strategy.blocks={4 * (self.max_delay + 1)}), or less delay"
            )
        if self.kkt_delta is not None and not (0 <= self.kkt_delta < math.inf and self.kkt != "off"):
            raise Invalid(f"strategy.kkt_delta={self.kkt_delta} with kkt={self.kkt!r}: needs 0 or more, and a filter")

    @property
    def in_steps(self) -> bool:
        return True

    @property
    def combine(self) -> Literal["mean", "sum"]:
        return "sum"

    def slots(self, rows: int, batch: int, seed: int) -> BlockOrder:
        return BlockOrder(rows, self.parts, self.blocks, seed, self.max_delay + 1)

    def consistency(self, slots_per_pass: int) -> tuple[Apply, int | None]:
        return Step(slots=self.parts, combine="sum", slots_per_pass=slots_per_pass), self.max_delay

    def table(self, rows: int, update: Update, slots_per_pass: int) -> Table:
        l1 = update.settings.get("l1", 0.0)
        update = Update(update.name, {"l1": 0.0, "l2": 0.0, **update.settings, "kkt": self.threshold(l1)})
        return msgspec.structs.replace(super().table(rows, update, slots_per_pass), pushed=2)

    def threshold(self, l1: float) -> float:
        """A weight of 0 stays so while its gradient is no larger; 0: nothing is left out."""
        if self.kkt == "off":
            return 0.0
        if self.kkt == "osdi":
            return OSDI * l1 if self.kkt_delta is None else self.kkt_delta
        return l1 - (NIPS * l1 if self.kkt_delta is None else self.kkt_delta)

    @classmethod
    def defaults(cls, tree: dict[str, Any]) -> None:
        tree["update"] = {"rule": "block_proximal", "l1": 1.0, **tree.get("update", {})}
        tree["stop"] = tree.get("stop") or dict(_SOLVED_AT)
        if isinstance(delay := tree["strategy"].get("max_delay"), int) and delay > 0:
            tree["strategy"].setdefault("blocks", cls().blocks * (1 + delay))
        tree["evaluate"] = tree.get("evaluate") or {"every": 5.0}  # epochs are short

    def check(self, job: Job) -> None:
        rule, model = job.update, job.model
        if rule.rule != "block_proximal" and not rule.is_own:
            raise Invalid(
                f"update.rule={rule.rule!r}: strategy 'block-proximal' needs 'block_proximal' (leave it out), or your own of "
                f"gradient and curvature, with settings step, l1, l2 and kkt"
            )
        if not isinstance(model, Linear) or model.loss not in SOLVED or model.l2_per_count:
            what = "a module"
            if isinstance(model, Linear):
                count = model.l2_per_count
                what = f"loss {model.loss!r}" + (f" with l2_per_count {count:g}" if count else "")
            raise Invalid(
                f"strategy 'block-proximal' solves linear models with loss {' or '.join(SOLVED)}, and this is {what}: "
                f"take model.loss={SOLVED[0]!r}, and update.l2 for a penalty; or strategy 'async'"
            )
        if job.workers > self.parts:
            what = f"{job.workers} workers and {self.parts} parts of the rows: a worker without a part would do nothing"
            raise Invalid(f"{what}; take more parts (--set strategy.parts={job.workers}), or fewer workers")
        if self.kkt_delta is not None and self.kkt_delta > rule.l1:
            what = "delta is taken off l1" if self.kkt == "nips" else "a weight with |g| above l1 must move"
            raise Invalid(
                f"strategy.kkt_delta={self.kkt_delta:g}, update.l1={rule.l1:g}: {what}: needs 0 to {rule.l1:g}"
            )

    def check_model(self, learner: Learner) -> None:
        if self.blocks > learner.keys:
            raise Invalid(f"{self.blocks} blocks of {learner.keys} keys: take fewer (--set strategy.blocks=...)")

    def evaluates(self, job: Job, learner: Learner) -> Learner:
        """The objective as well: how far it is from being solved."""
        from shoal.models.learner import ObjectiveLearner

        assert isinstance(learner, LinearLearner)
        return ObjectiveLearner(learner.model, learner.train, job.update.l1, job.update.l2)

    def batches(self, job: Job, learner: Learner, slots: SlotOrder) -> Any:
        importlib.import_module("shoal.models.column_kernels")  # compile before joining
        from shoal.models.columns import ColumnBlocks
        from shoal.strategies.block_proximal.columns import ColumnParts

        assert isinstance(learner, LinearLearner) and isinstance(slots, BlockOrder)
        data, bias = learner.train, learner.model.bias
        blocks = ColumnBlocks.cut(self.by, self.blocks, data.counts, bias, data.rows)
        return ColumnParts(data, slots, blocks, bias, learner.model.loss)

    async def run(self, stream: SlotStream) -> None:
        held: dict[int, HeldPart] = {}  # the parts that are with this lane
        pushed: deque[Task] = deque()
        while True:
            slot = stream.next()
            if slot is not None:
                if (push := await self._iterate(stream, slot, held)) is not None:
                    pushed.append(push)
                await settle(stream, pushed, SLOTS_PER_STEP)
            elif stream.over:
                break
            else:
                more = stream.more()
                await more
                stream.waited(more)
        await settle(stream, pushed)

    async def _iterate(self, stream: SlotStream, slot: Slot, held: dict[int, HeldPart]) -> Task | None:
        """One part's side of an iteration: apply new weights, push gradient and curvature."""
        part = cast("ColumnPart", stream.local(slot))
        turns: BlockOrder = part.turns
        t, number = turns.iteration(slot), turns.part(slot)
        one = held.pop(number, None)
        if stream.is_void(slot):
            void = stream.client.push(TABLE, (), (), slot=slot, void=True)
            stream.push(slot, None, 0.0, void)
            return void
        if one is None or one.next != t:
            one = await self._begin(stream, slot, part)
            if one is None:
                return None
        ready = one.pending.pop(t - self.max_delay - 1, None)
        weights = None
        if ready is not None:
            weights = await ready.task
            stream.waited(ready.task)
        everything = slot[0] % self.recheck == 0
        cost = one.margins.cost(turns.block(t)) + (0 if ready is None else one.margins.cost(ready.block))
        found = stream.compute(partial(one.turn, turns.block(t), everything, ready, weights), cost, len(part))
        try:
            loss, places, listed, values = await found
            push = stream.client.push_pull(TABLE, listed, values, slot=slot, of=None if ready is None else ready.task)
        except BadValues as error:
            stream.refuse(slot, str(error))
            return None
        one.pending[t], one.next = InflightBlock(turns.block(t), places, push), t + 1
        held[number] = one
        stream.push(slot, part, loss * len(part) / max(1, one.margins.columns.rows), push)
        return push

    async def _begin(self, stream: SlotStream, slot: Slot, part: ColumnPart) -> HeldPart | None:
        """Begin with a part that was elsewhere: pull its weights as before this iteration.

        Those of the last ``max_delay`` iterations are asked for again: they may come later.
        """
        turns, t = part.turns, part.turns.iteration(slot)
        columns: CscColumns = await stream.compute(part.columns, part.nonzeros, 0)
        one = HeldPart(BlockMargins(columns, self.max_delay), t)
        if t == 0:
            return one  # all weights are 0
        pull = stream.client.pull(TABLE, columns.listed, slot=slot)
        weights = await pull
        stream.waited(pull)
        if is_newer(stream.client, pull, slot):
            if stream.give_back(slot):
                return None  # another one pushed it, and some servers have that already
            await stream.report_newer()
        await stream.compute(partial(one.margins.refresh, weights), part.nonzeros, 0)
        for s in range(max(0, t - self.max_delay), t):
            block = turns.block(s)
            places = one.margins.places(block, everything=True)
            listed = one.listed(block, places)
            pull = stream.client.pull(TABLE, listed, clock=s + 1 + self.max_delay)
            one.pending[s] = InflightBlock(block, places, pull)
        return one


@dataclass(frozen=True, slots=True, eq=False)
class InflightBlock:
    """New weights of these positions of a block, in flight."""

    block: int
    places: Any
    task: Task


@dataclass(slots=True, eq=False)
class HeldPart:
    """A part in a lane: its margins, and pending changes to them."""

    margins: BlockMargins
    next: int  # the iteration that it is ready for
    pending: dict[int, InflightBlock] = field(default_factory=dict)  # by iteration
    _lists: dict[int, tuple[Any, KeyList]] = field(default_factory=dict)  # by block: last places

    def turn(
        self, block: int, everything: bool, ready: InflightBlock | None, weights: Any
    ) -> tuple[float, Any, KeyList, Any]:
        """Off the loop: apply the weights that arrived, then loss, gradient and curvature."""
        if ready is not None:
            self.margins.take(ready.block, ready.places, weights)
        loss, places, values = self.margins.gradient(block, everything)
        return loss, places, self.listed(block, places), values

    def listed(self, block: int, places: Any) -> KeyList:
        """The keys of these places: the same list as last time if equal: servers cache it."""
        known = self._lists.get(block)
        if known is None or not np.array_equal(known[0], places):
            known = self._lists[block] = (places, KeyList(self.margins.columns.keys_of(block)[places]))
        return known[1]

"""What a Hogwild worker runs: one compiled loop that takes slots from a cursor until the round is over.

    race = Race(Linear(), AdaGrad(step=0.1), Hogwild(), rows, 256, features, mean=True)
    race.run(slab, desk, sums, tally, order, worker=0)      by every worker, each in a thread or process of its own

They share four arrays, all zeros at first, in memory of one process or of several:

    slab    (keys, 1 + state)       each key's weight and what its rule keeps
    desk    desk(workers), int64    lines of one cell each: cursor, limit, stop, lock, canary; then a line for each worker
    sums    (workers, LINE)         float64, a line for each worker: the sum of the losses, then seconds (the caller's)
    tally   int8 for each slot of the round: 1 once it is counted

A round is ``order``: the i-th number taken from the cursor is the slot with the rows from order[i] * batch_size on. A
worker stops when limit numbers are taken, when stop is not 0, or when it has done ``most`` slots. The limit is 0 at first: set it last.

The loss that is summed is each row's before its own step. Nothing here waits but ``locked``, for a lock that holds 1 + the
number of its worker: where that one has died, whoever started it frees the lock (``free``).

``hot_cold`` adds up what several learned apart, which the rules in ADDITIVE bear. Others keep means or shrink weights, and P
times a shrinking is none: those it refuses. The bias goes half way (see ``kernels.merge``): added up, plain SGD diverges
with two workers. Until it is merged, what was learned on hot keys is its worker's: one that is killed takes at most ``merge``
rows of it along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Floats, Ids
from shoal.errors import Invalid
from shoal.models.linear import NONE, Linear
from shoal.store.table import codegen
from shoal.store.table.update import UpdateRule, rule_named
from shoal.strategies.hogwild import loop_kernels
from shoal.strategies.hogwild.settings import Hogwild
from shoal.tables import Update
from shoal.training.one_core import _checked_counts, _plan

LINE = 8  # int64 in a cache line: two cells on one line would be as slow as one cell for two
CURSOR, LIMIT, STOP, LOCK, CANARY = range(5)  # lines of the desk
CELLS = 8  # from this line on, one for each worker
SLOTS, ROWS, BEATS, TURNS = range(4)  # in a worker's line: done, done, what it added to the canary, updates since

ADDITIVE = ("sum", "sgd", "adagrad")  # a gradient of 0 moves nothing, and what was learned apart may be added up

Plan = dict[str, npt.NDArray[Any]]


def desk(workers: int) -> tuple[int, int]:
    """The shape of the desk, in int64."""
    return CELLS + workers, LINE


def free(shared: Ids, worker: int) -> bool:
    """Take the lock from a worker that has died; whether it was its."""
    from shoal.strategies.hogwild import atomics

    return bool(atomics.changed(shared.reshape(-1), LOCK * LINE, worker + 1, 0) == worker + 1)


def lost(shared: Ids) -> tuple[int, int]:
    """Of the updates of the canary, how many were made and how many of them are not in it."""
    made = int(shared[CELLS:, BEATS].sum())
    return made, made - int(shared[CANARY, 0])


class HogwildLoop:
    """The loop of one way, for one set of rows."""

    def __init__(
        self,
        model: Linear,
        update: Update,
        strategy: Hogwild,
        rows: Batch,
        batch_size: int,
        features: int,
        *,
        mean: bool,
        counts: Floats | None = None,
        plan: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        """``rows`` lie in slot order. ``plan``: what another Race of the same arguments has made, wherever that lies now."""
        if not len(rows) or batch_size < 1:
            raise Invalid(f"{len(rows)} rows in batches of {batch_size}: at least one of each is needed")
        rule, way = rule_named(update.name), strategy.way or "example"
        if way == "hot_cold" and rule.name not in ADDITIVE:
            raise Invalid(
                f"hot_cold adds up what workers learned apart, which {', '.join(ADDITIVE)} bear and {rule.name} does "
                f"not: take way = 'batched' or 'example', or another update"
            )
        if plan is None:
            model.check_labels(rows.labels)
            plan = made_plan(model, strategy, rows, batch_size, features)
        self.plan: Plan = dict(plan)
        self.shape = (model.keys(features), 1 + rule.state)
        self._slots = -(-len(rows) // batch_size)
        counts = _checked_counts(model, features, rows.columns.astype(np.int64), counts) if model.l2_per_count else NONE
        values = NONE if rows.values is None else rows.values
        given = np.array(rule.settings(update.settings), np.float64)
        how = (rows.labels, counts, batch_size, model.number, model.bias, model.l2_per_count)
        indptr, own, columns = rows.indptr, self.plan, self.plan.get("columns", rows.columns)
        tail: tuple[Any, ...]
        match way:
            case "batched":
                tail = (mean, own["starts"], own["keys"])
            case "hot_cold":
                values = own["values"]
                counted = counts[own["hot"]] if len(counts) else NONE
                tail = (strategy.merge, own["hot"], own["cold"], counted)
            case _:
                tail = (rule.name in ADDITIVE, way == "locked")
        self._race = loops(rule, way).race
        self._before = (strategy.canary, given, indptr, columns, values, *how, *tail)

    def run(
        self,
        slab: Floats,
        desk: Ids,
        sums: npt.NDArray[np.float64],
        tally: npt.NDArray[np.int8],
        order: Ids,
        worker: int,
        most: int = 2**62,
    ) -> int:
        """Take slots and compute them until there are no more, or ``most`` are done; how many were done."""
        if slab.shape != self.shape or desk.shape[1:] != (LINE,) or sums.shape != (len(desk) - CELLS, LINE):
            raise Invalid(
                f"a slab of {slab.shape}, a desk of {desk.shape} and sums of {sums.shape}: {self.shape}, "
                f"(workers + {CELLS}, {LINE}) and (workers, {LINE}) are needed"
            )
        if not 0 <= worker < len(sums):
            raise Invalid(f"worker {worker}: there are lines for {len(sums)}, numbered from 0")
        if order.size and not 0 <= order.min() <= order.max() < self._slots:
            raise Invalid(f"slots {order.min()} to {order.max()}: there are {self._slots}, numbered from 0")
        return int(self._race(slab, desk.reshape(-1), sums.reshape(-1), tally, order, worker, most, *self._before))


def made_plan(model: Linear, strategy: Hogwild, rows: Batch, batch_size: int, features: int) -> Plan:
    """What repeats, made once: key lists (batched), or columns with the hot ones first (hot_cold)."""
    match strategy.way:
        case "batched":
            starts, keys, columns = _plan(model, rows, batch_size, features)
            return {"starts": starts, "keys": keys.astype(np.uint32), "columns": columns}
        case "hot_cold":
            return _hot_first(model, strategy.hot, rows, features)
    return {}


def _hot_first(model: Linear, most: int, rows: Batch, features: int) -> Plan:
    """Each row's columns among the most frequent keys first, as places among those; then the others, as they are."""
    from shoal.strategies.hogwild import kernels

    seen = np.zeros(features, np.int64)
    kernels.count(rows.columns, seen)
    hot = np.argsort(-seen, kind="stable")[:most].astype(np.int64)
    hot.sort()  # they are merged in the order in which they lie
    places = np.full(features, -1, np.int64)
    places[hot] = np.arange(len(hot)) + model.bias
    values = NONE if rows.values is None else rows.values
    plan: Plan = {
        "hot": np.concatenate((np.array([features], np.int64), hot)) if model.bias else hot,
        "cold": np.empty(len(rows), np.int64),
        "columns": np.empty(len(rows.columns), np.uint32),
        "values": np.empty(len(values), np.float32),
    }
    kernels.hot_first(rows.indptr, rows.columns, values, places, plan["cold"], plan["columns"], plan["values"])
    return plan


def loops(rule: UpdateRule, way: str) -> ModuleType:
    """The loop of a way, compiled with this rule in it: ``race`` of this module."""
    match way:
        case "batched":
            text = codegen.ROWS + _common() + loop_kernels.BATCHED
        case "hot_cold":
            text = _common() + loop_kernels.STEPS + loop_kernels.HOT_COLD
        case _:
            text = _common() + loop_kernels.STEPS + loop_kernels.EXAMPLE
    return codegen._module(rule, text)


@lru_cache
def _common() -> str:
    """What all loops share, with the hashes of what is inlined into them: numba would not notice an edit."""
    from shoal.models import kernels as of_models
    from shoal.strategies.hogwild import atomics, kernels

    files = {"models": of_models, "atomics": atomics, "kernels": kernels}
    return loop_kernels.COMMON.format(
        **{name: hashlib.sha256(Path(str(file.__file__)).read_bytes()).hexdigest() for name, file in files.items()}
    )

"""What a Hogwild worker runs: one compiled loop that takes slots until the round is over.

    loop = HogwildLoop(Linear(), AdaGrad(step=0.1), Hogwild(), rows, 256, features, mean=True)
    loop.run(slab, desk, sums, tally, order, worker=0)      in every worker

The workers share these arrays, zeros at first, in memory of one process or of several:

    slab    (keys, 1 + state)       each key's weight and what its rule keeps
    desk    desk(workers), int64    a line each for cursor, limit, stop, lock, canary; then one
                                    for each worker
    sums    (workers, LINE)         float64, a line for each worker: the sum of the losses, then
                                    seconds (the caller's)
    tally   int8 for each slot of the round: 1 once it is counted

A round is ``order``: the i-th number taken from the cursor is slot order[i]. The limit is 0 at
first: set it last. A loss is each row's before its own step. Only ``locked`` waits, for a lock that
holds 1 + the number of its worker; if that one has died, others ``free`` the lock.

``hot_cold`` adds up what several workers learned apart, which is right for the rules in ADDITIVE;
others keep means or shrink weights. What a worker learned on hot keys since the last merge is lost
with it.

The loops are texts into which ``codegen`` inlines an update rule. No row of the slab is locked. Its
floats are not torn; but what two workers do to a key at once may be lost. The canary is a cell that
every worker adds 1 to as if it were a key: what it lacks in the end is what was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Floats, Ids
from shoal.errors import Invalid
from shoal.models.linear import NONE, Linear
from shoal.store.table import codegen
from shoal.store.table.update import UpdateRule, rule_named
from shoal.strategies.hogwild import CELLS, LINE, LOCK, Hogwild
from shoal.tables import Update
from shoal.training.one_core import SLOT, check_slots, checked_counts, hashes, key_lists, slots_in

# A gradient of 0 moves nothing, and what workers learned apart may be added up.
ADDITIVE = ("sum", "sgd", "adagrad")

Plan = dict[str, npt.NDArray[Any]]


COMMON = """

import shoal.strategies.hogwild.kernels as _shoal_s

_shoal_about = (
    _shoal_k.slab_out, _shoal_s.words_out, _shoal_m.doubles_out, _shoal_s.tally_out, _shoal_k.rows_in, _shoal_i8,
    _shoal_i8, _shoal_i8, _shoal_k.settings_in, _shoal_m.indptr_in, _shoal_m.columns_in, _shoal_m.floats_in,
    _shoal_m.floats_in, _shoal_m.floats_in, _shoal_i8, _shoal_i8, _shoal_types.boolean, _shoal_f8
)
_shoal_one = _shoal_np.uint64(1)
"""

STEPS = '''

@_shoal_njit(error_model="numpy")
def _shoal_gather(slab, columns, start, base, beyond, column):
    """The rows of these columns, from ``start`` on, into the places from ``base`` to ``beyond`` of scratch."""
    at, width = _shoal_u8(0), 1
    if base < beyond:
        for i in range(base, beyond):
            row = _shoal_u8(columns[start + (i - base)])
            column[i] = slab[row, at]{load}


@_shoal_njit(error_model="numpy")
def _shoal_scatter(slab, columns, start, base, beyond, column):
    """And back."""
    at, width = _shoal_u8(0), 1
    if base < beyond:
        for i in range(base, beyond):
            row = _shoal_u8(columns[start + (i - base)])
            slab[row, at] = _shoal_f4(column[i]){store}


@_shoal_njit(error_model="numpy")
def _shoal_slopes(values, start, count, slope, column):
    """Gradients of the gathered keys."""
    for i in range(_shoal_u8(count)):
        column[i + _shoal_u8({last} * _shoal_k.BLOCK)] = slope * _shoal_m.value_at(values, start + i)


@_shoal_njit(error_model="numpy")
def _shoal_penalty(l2, columns, counts, start, base, beyond, column):
    for i in range(base, beyond):
        penalty = l2 * column[i] / _shoal_f8(counts[columns[start + (i - base)]])
        column[i + _shoal_u8({last} * _shoal_k.BLOCK)] += penalty


@_shoal_njit(error_model="numpy")
def _shoal_step(count, settings, column):
    """One step of each of the gathered keys, on vectors (see ``_shoal_rows``)."""
    if count > 0:
        for i in range(_shoal_u8(count)):
            gradient = _shoal_f8(_shoal_f4(column[i + _shoal_u8({last} * _shoal_k.BLOCK)]))  # as it would be pushed
            weight, state = _shoal_rule(column[i], ({taken}), gradient, settings)
            column[i] = weight{kept}


@_shoal_njit(error_model="numpy")
def _shoal_learn(slab, columns, values, counts, start, stop, slope, l2, settings, column):
    """A step of each key of a row, from column ``start`` to ``stop``."""
    none, block = _shoal_u8(0), _shoal_u8(_shoal_k.BLOCK)
    for at in range(start, stop, block):
        count = min(block, stop - at)
        # Read again: what others wrote since the margin was computed is not undone.
        _shoal_gather(slab, columns, at, none, count, column)
        _shoal_slopes(values, at, count, slope, column)
        if l2 > 0.0:
            _shoal_penalty(l2, columns, counts, at, none, count, column)
        _shoal_step(count, settings, column)
        _shoal_scatter(slab, columns, at, none, count, column)


@_shoal_njit(error_model="numpy")
def _shoal_bias(slab, row, slope, settings, column):
    none = _shoal_u8(0)
    _shoal_gather(slab, row, none, none, _shoal_one, column)
    column[{last} * _shoal_k.BLOCK] = slope
    _shoal_step(_shoal_one, settings, column)
    _shoal_scatter(slab, row, none, none, _shoal_one, column)
'''

EXAMPLE = '''

@_shoal_njit(_shoal_i8(*_shoal_about, _shoal_types.boolean, _shoal_types.boolean), **_shoal_options)
def race(
    slab, words, sums, tally, order, worker, most, canary, given, indptr, columns, values, labels, counts,
    size, kind, bias, l2, idle, locked
):
    """Every row is a step; ``idle``: a gradient of 0 moves nothing, so none is written; ``locked``: one at a time."""
    settings = _shoal_Settings({given})
    last, one = _shoal_u8(len(slab) - 1), _shoal_np.full(1, len(slab) - 1, _shoal_np.uint32)
    column = _shoal_np.empty(({last} + 1) * _shoal_k.BLOCK)
    done = 0
    while done < most:
        number = _shoal_s.take(words, tally, order)
        if number < 0:
            break
        first, beyond = order[number] * size, min((order[number] + 1) * size, len(labels))
        total = 0.0
        for i in range(_shoal_u8(first), _shoal_u8(beyond)):
            start, stop = _shoal_u8(indptr[i]), _shoal_u8(indptr[i + _shoal_one])
            label = _shoal_f8(labels[i])
            if locked:
                _shoal_s.lock(words, _shoal_s.LOCK_AT, worker + 1)
            margin = _shoal_f8(slab[last, 0]) if bias else 0.0
            margin += _shoal_m.dot(columns, values, slab[:, 0], start, stop)
            total += _shoal_m.loss_at(kind, margin, label)
            slope = _shoal_m.slope_at(kind, margin, label)
            if slope != 0.0 or l2 > 0.0 or not idle:
                beat = _shoal_s.beat(words, worker, canary, _shoal_i8(stop - start))
                _shoal_learn(slab, columns, values, counts, start, stop, slope, l2, settings, column)
                if bias:
                    _shoal_bias(slab, one, slope, settings, column)
                if beat >= 0:
                    _shoal_s.write(words, _shoal_s.CANARY_AT, beat + 1)
            if locked:
                _shoal_s.write(words, _shoal_s.LOCK_AT, 0)
        _shoal_s.done(words, sums, tally, worker, number, beyond - first, total)
        done += 1
    return done
'''

BATCHED = '''

@_shoal_njit(_shoal_i8(*_shoal_about, _shoal_types.boolean, _shoal_k.rows_in, _shoal_m.columns_in), **_shoal_options)
def race(
    slab, words, sums, tally, order, worker, most, canary, given, indptr, columns, values, labels, counts,
    size, kind, bias, l2, mean, starts, keys
):
    """A slot is a step: its gradient at the weights as they were read, then one step of each key. Columns are places in a slot's keys."""
    settings = _shoal_Settings({given})
    weights, counted, slopes, gradients = _shoal_arrays(starts)
    scratch = _shoal_np.empty(({last} + 1, _shoal_k.BLOCK))
    done = 0
    while done < most:
        number = _shoal_s.take(words, tally, order)
        if number < 0:
            break
        slot = order[number]
        mine = keys[starts[slot] : starts[slot + 1]]
        first, beyond = slot * size, min((slot + 1) * size, len(labels))
        total = _shoal_gradient(
            slab, mine, first, beyond, indptr, columns, values, labels, counts, kind, bias, mean, l2, weights, counted,
            slopes, gradients
        )
        for at in range(0, len(mine), _shoal_k.BLOCK):
            part = mine[at : min(at + _shoal_k.BLOCK, len(mine))]
            beat = _shoal_s.beat(words, worker, canary, len(part))
            _shoal_rows(slab, part, len(part), 0, gradients, at, settings, scratch)
            if beat >= 0:
                _shoal_s.write(words, _shoal_s.CANARY_AT, beat + 1)
        _shoal_s.done(words, sums, tally, worker, number, beyond - first, total)
        done += 1
    return done
'''

HOT_COLD = '''

@_shoal_njit(
    _shoal_i8(*_shoal_about, _shoal_i8, _shoal_k.rows_in, _shoal_k.rows_in, _shoal_m.floats_in), **_shoal_options
)
def race(
    slab, words, sums, tally, order, worker, most, canary, given, indptr, columns, values, labels, counts,
    size, kind, bias, l2, merge, hot, cold, counted
):
    """Every row is a step. The columns of row i up to cold[i] are places in ``hot``, with the bias in place 0; the rest are features."""
    settings = _shoal_Settings({given})
    averaged = _shoal_u8(1 if bias else 0)
    mine = _shoal_np.zeros((len(hot), slab.shape[1]), _shoal_np.float32)
    base = _shoal_np.zeros((len(hot), slab.shape[1]), _shoal_np.float32)
    _shoal_s.merge(slab, hot, mine, base, averaged)
    column, one = _shoal_np.empty(({last} + 1) * _shoal_k.BLOCK), _shoal_np.zeros(1, _shoal_np.uint32)
    none, block = _shoal_u8(0), _shoal_u8(_shoal_k.BLOCK)
    done, since = 0, 0
    while done < most:
        number = _shoal_s.take(words, tally, order)
        if number < 0:
            break
        first, beyond = order[number] * size, min((order[number] + 1) * size, len(labels))
        total = 0.0
        for i in range(_shoal_u8(first), _shoal_u8(beyond)):
            start, middle, stop = _shoal_u8(indptr[i]), _shoal_u8(cold[i]), _shoal_u8(indptr[i + _shoal_one])
            hots, count = middle - start, stop - start
            label = _shoal_f8(labels[i])
            margin = _shoal_f8(mine[0, 0]) if bias else 0.0
            short = count <= block
            if short:  # read once: nobody else writes to the hot ones, and hardly anybody to the others
                _shoal_gather(mine, columns, start, none, hots, column)
                _shoal_gather(slab, columns, middle, hots, count, column)
                margin += _shoal_s.dot_there(column, values, start, count)
            else:
                margin += _shoal_m.dot(columns, values, mine[:, 0], start, middle)
                margin += _shoal_m.dot(columns, values, slab[:, 0], middle, stop)
            total += _shoal_m.loss_at(kind, margin, label)
            slope = _shoal_m.slope_at(kind, margin, label)
            if slope != 0.0 or l2 > 0.0:
                beat = _shoal_s.beat(words, worker, canary, _shoal_i8(stop - middle))
                if short:
                    _shoal_slopes(values, start, count, slope, column)
                    if l2 > 0.0:
                        _shoal_penalty(l2, columns, counted, start, none, hots, column)
                        _shoal_penalty(l2, columns, counts, middle, hots, count, column)
                    _shoal_step(count, settings, column)
                    _shoal_scatter(mine, columns, start, none, hots, column)
                    _shoal_scatter(slab, columns, middle, hots, count, column)
                else:
                    _shoal_learn(mine, columns, values, counted, start, middle, slope, l2, settings, column)
                    _shoal_learn(slab, columns, values, counts, middle, stop, slope, l2, settings, column)
                if bias:
                    _shoal_bias(mine, one, slope, settings, column)
                if beat >= 0:
                    _shoal_s.write(words, _shoal_s.CANARY_AT, beat + 1)
            since += 1
            if since >= merge:
                _shoal_s.merge(slab, hot, mine, base, averaged)
                since = 0
        _shoal_s.done(words, sums, tally, worker, number, beyond - first, total)
        done += 1
    _shoal_s.merge(slab, hot, mine, base, averaged)
    return done
'''


def free(shared: Ids, worker: int) -> bool:
    """Free the lock of a worker that has died; whether it had it."""
    from shoal.strategies.hogwild import kernels

    return bool(kernels.changed(shared.reshape(-1), LOCK * LINE, worker + 1, 0) == worker + 1)


class HogwildLoop:
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
        """``rows`` lie in slot order. ``plan``: as another loop of the same arguments made it."""
        self._slots = slots_in(rows, batch_size)
        rule, way = rule_named(update.name), strategy.way or "example"
        if way == "hot_cold" and rule.name not in ADDITIVE:
            raise Invalid(
                f"hot_cold adds up the changes of several workers, which is right for {', '.join(ADDITIVE)}, not for "
                f"{rule.name}: set way to 'batched' or 'example', or take another update"
            )
        if plan is None:
            model.check_labels(rows.labels)
            plan = made_plan(model, strategy, rows, batch_size, features)
        self.plan: Plan = dict(plan)
        self.shape = (model.keys(features), 1 + rule.state)
        counts = checked_counts(model, features, rows.columns, counts)
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
        """Take and compute slots until none is left, or ``most`` are done; how many were done."""
        if slab.shape != self.shape or desk.shape[1:] != (LINE,) or sums.shape != (len(desk) - CELLS, LINE):
            raise Invalid(
                f"a slab of {slab.shape}, a desk of {desk.shape} and sums of {sums.shape}: {self.shape}, "
                f"(workers + {CELLS}, {LINE}) and (workers, {LINE}) are needed"
            )
        if not 0 <= worker < len(sums):
            raise Invalid(f"worker {worker}: there are lines for {len(sums)}, numbered from 0")
        check_slots(order, self._slots)
        return int(self._race(slab, desk.reshape(-1), sums.reshape(-1), tally, order, worker, most, *self._before))


def made_plan(model: Linear, strategy: Hogwild, rows: Batch, batch_size: int, features: int) -> Plan:
    """What all epochs share: key lists (batched), or columns with the hot first (hot_cold)."""
    match strategy.way:
        case "batched":
            starts, keys, columns = key_lists(model, rows, batch_size, features)
            return {"starts": starts, "keys": keys.astype(np.uint32), "columns": columns}
        case "hot_cold":
            return _hot_first(model, strategy.hot, rows, features)
    return {}


def _hot_first(model: Linear, most: int, rows: Batch, features: int) -> Plan:
    """Each row's columns with the most frequent keys first, as places among these."""
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
    """The loop of a variant, compiled with this rule: ``race`` of this module."""
    from shoal.strategies.hogwild import kernels

    common = SLOT + COMMON
    variants = {"batched": codegen.ROWS + common + BATCHED, "hot_cold": common + STEPS + HOT_COLD}
    return codegen.rule_kernels(rule, variants.get(way, common + STEPS + EXAMPLE) + hashes(kernels.__file__))

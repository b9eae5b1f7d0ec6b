"""Minibatch training of a linear model on one core, without a store.

    one = OneCore(Linear(), AdaGrad(step=0.1), rows, 256, features)
    loss = one.run(order)       a step for each slot in this order; the sum of the losses

One compiled loop walks the slots of an epoch with the kernels of workers and servers. So it takes
the steps of one worker and one server with nothing prefetched, bit for bit, without their messages,
indexes or ledgers: the results of clusters are compared with it. The key list of each slot is made
once, as in the cache of a worker.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Floats, Ids, Localiser
from shoal.errors import Invalid
from shoal.models.linear import NONE, Linear
from shoal.store.table import codegen
from shoal.store.table.update import rule_named
from shoal.tables import Update

# The gradient of a slot; Hogwild's batched loop has it, too. Columns are places in the slot's keys.
SLOT = '''

import shoal.models.kernels as _shoal_m

from numba import types as _shoal_types


@_shoal_njit(error_model="numpy")
def _shoal_arrays(starts):
    room = 0
    for slot in range(len(starts) - 1):
        room = max(room, starts[slot + 1] - starts[slot])
    weights, counted = _shoal_np.empty(room, _shoal_np.float32), _shoal_np.empty(room, _shoal_np.float32)
    return weights, counted, _shoal_np.zeros(room), _shoal_np.empty((room, 1), _shoal_np.float32)


@_shoal_njit(error_model="numpy")
def _shoal_gradient(
    slab, mine, first, beyond, indptr, columns, values, labels, counts, kind, bias, mean, l2, weights, counted, sums,
    gradients
):
    """Fill ``gradients`` for the slot of these keys, at the weights in the slab; the sum of its losses."""
    count = len(mine)
    for i in range(_shoal_u8(count)):
        weights[i] = slab[_shoal_u8(mine[i]), 0]
    rows = indptr[first : beyond + 1]
    total = _shoal_m.add_gradient(
        kind, bias, rows, columns, values, labels[first:beyond], weights[:count], sums[:count]
    )
    if l2 > 0.0:
        for i in range(_shoal_u8(count)):
            counted[i] = counts[_shoal_u8(mine[i])]
        _shoal_m.add_penalty(l2, rows, columns, weights[:count], counted[:count], sums[:count])
    scale = 1.0 / (beyond - first) if mean else 1.0
    for i in range(_shoal_u8(count)):
        gradients[i, 0] = _shoal_f4(sums[i] * scale)
        sums[i] = 0.0
    return total
'''

LOOP = '''

@_shoal_njit(
    _shoal_f8(
        _shoal_k.slab_out, _shoal_k.rows_in, _shoal_k.rows_in, _shoal_m.indptr_in, _shoal_m.columns_in,
        _shoal_m.floats_in, _shoal_m.floats_in, _shoal_m.floats_in, _shoal_i8, _shoal_i8, _shoal_types.boolean,
        _shoal_types.boolean, _shoal_f8, _shoal_k.rows_in, _shoal_k.settings_in
    ),
    **_shoal_options,
)
def serial_pass(
    slab, starts, keys, indptr, columns, values, labels, counts, size, kind, bias, mean, l2, order, given
):
    """One step for each slot in ``order``; the sum of the losses. Slot s has the keys from starts[s] on."""
    settings = _shoal_Settings({given})
    weights, counted, sums, gradients = _shoal_arrays(starts)
    scratch = _shoal_np.empty(({last} + 1, _shoal_k.BLOCK))
    total = 0.0
    for slot in order:
        mine = keys[starts[slot] : starts[slot + 1]]
        total += _shoal_gradient(
            slab, mine, slot * size, min((slot + 1) * size, len(labels)), indptr, columns, values, labels, counts, kind,
            bias, mean, l2, weights, counted, sums, gradients
        )
        for start in range(0, len(mine), _shoal_k.BLOCK):
            part = mine[start : min(start + _shoal_k.BLOCK, len(mine))]
            _shoal_rows(slab, part, len(part), 0, gradients, start, settings, scratch)
    return total
'''


class OneCore:
    def __init__(
        self,
        model: Linear,
        update: Update,
        rows: Batch,
        batch_size: int,
        features: int,
        *,
        mean: bool = True,
        counts: Floats | None = None,
        slab: Floats | None = None,
    ) -> None:
        """``rows`` lie in slot order: slot s has rows s * batch_size to (s + 1) * batch_size.

        ``counts`` (for l2_per_count) is by key.
        """
        self._slots = slots_in(rows, batch_size)
        model.check_labels(rows.labels)
        rule = rule_named(update.name)
        self._slab = np.zeros((model.keys(features), 1 + rule.state), np.float32) if slab is None else slab
        self._given = np.array(rule.settings(update.settings), np.float64)
        # keys, and where each slot's start
        self.starts, self.keys, columns = key_lists(model, rows, batch_size, features)
        self._run = partial(
            codegen.rule_kernels(rule, codegen.ROWS + SLOT + LOOP + hashes()).serial_pass,
            self._slab, self.starts, self.keys, rows.indptr, columns, NONE if rows.values is None else rows.values,
            rows.labels, checked_counts(model, features, self.keys, counts), batch_size, model.number, model.bias, mean,
            model.l2_per_count,
        )  # fmt: skip

    @property
    def weights(self) -> Floats:
        return self._slab[:, 0].copy()

    def run(self, slots: Ids) -> float:
        """A step for each of these slots; the sum of the losses, each before its own step."""
        check_slots(slots, self._slots)
        return float(self._run(slots, self._given))


def slots_in(rows: Batch, batch_size: int) -> int:
    if not len(rows) or batch_size < 1:
        raise Invalid(f"{len(rows)} rows in batches of {batch_size}: at least one of each is needed")
    return -(-len(rows) // batch_size)


def check_slots(slots: Ids, count: int) -> None:
    if slots.size and not 0 <= slots.min() <= slots.max() < count:
        raise Invalid(f"slots {slots.min()} to {slots.max()}: there are {count}, numbered from 0")


def key_lists(model: Linear, rows: Batch, batch_size: int, features: int) -> tuple[Ids, Ids, npt.NDArray[np.uint32]]:
    """Where each slot's keys start, all keys, and all columns as places among their slot's keys."""
    localiser, keys, starts = Localiser(features), [], [0]
    columns = np.empty(len(rows.columns), np.uint32)
    for first in range(0, len(rows), batch_size):
        low, high = rows.indptr[first], rows.indptr[min(first + batch_size, len(rows))]
        local = localiser.local(Batch(rows.indptr[:1], rows.columns[low:high], None, rows.labels[:0]), model.bias)
        columns[low:high] = local.columns
        keys.append(local.keys.astype(np.int64))
        starts.append(starts[-1] + len(local.keys))
    return np.array(starts, np.int64), np.concatenate(keys), columns


def checked_counts(model: Linear, features: int, keys: npt.NDArray[Any], counts: Floats | None) -> Floats:
    if not model.l2_per_count:
        return NONE
    if counts is None or len(counts) != model.keys(features):
        raise Invalid("l2_per_count needs counts: for each key, how many rows have it")
    if (counts[keys[keys < features]] <= 0).any():
        raise Invalid("counts must be above 0 at every key of a row: count the rows that are trained on")
    return np.ascontiguousarray(counts, np.float32)


def hashes(*files: str) -> str:
    """For a generated text: the kernels are inlined, and numba would not notice an edit of them."""
    from shoal.models import kernels

    return "".join(f"\n# {codegen._hash_of(file)}" for file in (kernels.__file__, *files)) + "\n"

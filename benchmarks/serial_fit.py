"""Serial training on one core, timed: with key lists that are made beforehand, or without."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from shoal.data.batch import Batch, Floats, Ids
from shoal.errors import Invalid
from shoal.models.linear import NONE, Linear
from shoal.store.table import codegen
from shoal.store.table.update import rule_named
from shoal.tables import Update
from shoal.training.one_core import SLOT, OneCore, hashes

BARE = '''

@_shoal_njit(
    _shoal_f8(
        _shoal_k.slab_out, _shoal_m.indptr_in, _shoal_m.columns_in, _shoal_m.floats_in, _shoal_m.floats_in,
        _shoal_i8, _shoal_i8, _shoal_types.boolean, _shoal_types.boolean, _shoal_k.rows_in, _shoal_k.settings_in
    ),
    **_shoal_options,
)
def bare_pass(slab, indptr, columns, values, labels, size, kind, bias, mean, order, given):
    """The same without key lists: columns are features, and a slot's keys are found while it is computed."""
    settings = _shoal_Settings({given})
    keys = len(slab)
    sums, seen = _shoal_np.zeros(keys), _shoal_np.zeros(keys, _shoal_np.int64)
    touched = _shoal_np.empty(keys, _shoal_np.int64)
    gradients = _shoal_np.empty((keys, 1), _shoal_np.float32)
    scratch = _shoal_np.empty(({last} + 1, _shoal_k.BLOCK))
    given_values = len(values) > 0
    total, stamp = 0.0, 0
    for slot in order:
        stamp += 1
        count = 0
        if bias:
            touched[0], seen[keys - 1], count = keys - 1, stamp, 1
        first, beyond = slot * size, min((slot + 1) * size, len(labels))
        for i in range(first, beyond):
            begin, end = _shoal_u8(indptr[i]), _shoal_u8(indptr[i + 1])
            margin = _shoal_f8(slab[keys - 1, 0]) if bias else 0.0
            for j in range(begin, end):
                weight = _shoal_f8(slab[_shoal_u8(columns[j]), 0])
                margin += weight * _shoal_f8(values[j]) if given_values else weight
            label = _shoal_f8(labels[i])
            total += _shoal_m.loss_at(kind, margin, label)
            slope = _shoal_m.slope_at(kind, margin, label)
            if bias:
                sums[keys - 1] += slope
            for j in range(begin, end):
                key = _shoal_u8(columns[j])
                if seen[key] != stamp:
                    seen[key] = stamp
                    touched[count] = key
                    count += 1
                sums[key] += slope * _shoal_f8(values[j]) if given_values else slope
        scale = 1.0 / (beyond - first) if mean else 1.0
        for i in range(_shoal_u8(count)):
            key = _shoal_u8(touched[i])
            gradients[i, 0] = _shoal_f4(sums[key] * scale)
            sums[key] = 0.0
        for start in range(0, count, _shoal_k.BLOCK):
            part = touched[start : min(start + _shoal_k.BLOCK, count)]
            _shoal_rows(slab, part, len(part), 0, gradients, start, settings, scratch)
    return total
'''


class BareCore(OneCore):
    """OneCore without key lists that are made beforehand."""

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
    ) -> None:
        if model.l2_per_count:
            raise Invalid("l2_per_count is not there without key lists: leave bare out")
        super().__init__(model, update, rows, batch_size, features, mean=mean)
        bare_pass = codegen.rule_kernels(rule_named(update.name), codegen.ROWS + SLOT + BARE + hashes()).bare_pass
        values = NONE if rows.values is None else rows.values
        how = (batch_size, model.number, model.bias, mean)
        self._run = partial(bare_pass, self._slab, rows.indptr, rows.columns, values, rows.labels, *how)


def serial_fit(
    model: Linear,
    update: Update,
    rows: Batch,
    batch_size: int,
    features: int,
    passes: int,
    order: Ids,
    *,
    mean: bool = True,
    counts: Floats | None = None,
    bare: bool = False,
) -> tuple[Floats, list[float]]:
    """The weights after so many epochs, from zero, and the seconds of each epoch.

    ``order`` has a row for each epoch: its slots in order.
    """
    order = np.ascontiguousarray(order, np.int64)
    if order.ndim != 2 or len(order) < passes:
        raise Invalid(f"order has shape {order.shape} for {passes} passes: give a row of slots for each pass")
    make = BareCore if bare else OneCore
    one = make(model, update, rows, batch_size, features, mean=mean, counts=counts)
    seconds = []
    for of_pass in range(passes):
        start = time.perf_counter()
        one.run(order[of_pass])
        seconds.append(time.perf_counter() - start)
    return one.weights, seconds

"""The loops of Hogwild's workers, as text: ``generate`` inlines an update rule into them. ``racing`` says what they are given.

All three begin and end a slot alike: take a number from the cursor, compute, mark it in the tally. No row of the slab is
guarded. Its floats are aligned and 32 bits wide, so each is whole whoever writes; but a weight and its state are written one
after the other, and what two workers do to a key at once may be lost, or leave the state of one beside the weight of the other.

The canary is a cell that everybody adds 1 to as if it were a key: read with the keys of a row, or of a block of a slot, and
written with them. Whoever adds also counts for himself, so that what the cell lacks in the end is what was lost.
"""

from __future__ import annotations

COMMON = """

import shoal.models.kernels as _shoal_m  # {models}
import shoal.strategies.hogwild.atomics as _shoal_a  # {atomics}
import shoal.strategies.hogwild.kernels as _shoal_s  # {kernels}

from numba import types as _shoal_types

_shoal_words = _shoal_a.words_out
_shoal_about = (
    _shoal_k.slab_out, _shoal_words, _shoal_m.doubles_out, _shoal_types.Array(_shoal_types.int8, 1, "C"),
    _shoal_k.rows_in, _shoal_i8, _shoal_i8, _shoal_i8, _shoal_k.settings_in, _shoal_m.indptr_in, _shoal_m.columns_in,
    _shoal_m.floats_in, _shoal_m.floats_in, _shoal_m.floats_in, _shoal_i8, _shoal_i8, _shoal_types.boolean, _shoal_f8
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
    if len(values) > 0:
        for i in range(_shoal_u8(count)):
            column[i + _shoal_u8({last} * _shoal_k.BLOCK)] = slope * _shoal_f8(values[start + i])
    else:
        for i in range(_shoal_u8(count)):
            column[i + _shoal_u8({last} * _shoal_k.BLOCK)] = slope


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
    none, block = _shoal_u8(0), _shoal_u8(_shoal_k.BLOCK)
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
                _shoal_a.lock(words, _shoal_s.LOCK_AT, worker + 1)
            margin = _shoal_f8(slab[last, 0]) if bias else 0.0
            margin += _shoal_s.dot(slab, columns, values, start, stop)
            total += _shoal_m.loss_at(kind, margin, label)
            slope = _shoal_m.slope_at(kind, margin, label)
            if slope != 0.0 or l2 > 0.0 or not idle:
                beat = _shoal_s.beat(words, worker, canary, _shoal_i8(stop - start))
                for at in range(start, stop, block):
                    count = min(block, stop - at)
                    # Read again: what others wrote since the margin was computed is not undone.
                    _shoal_gather(slab, columns, at, none, count, column)
                    _shoal_slopes(values, at, count, slope, column)
                    if l2 > 0.0:
                        _shoal_penalty(l2, columns, counts, at, none, count, column)
                    _shoal_step(count, settings, column)
                    _shoal_scatter(slab, columns, at, none, count, column)
                if bias:
                    _shoal_gather(slab, one, none, none, _shoal_one, column)
                    column[{last} * _shoal_k.BLOCK] = slope
                    _shoal_step(_shoal_one, settings, column)
                    _shoal_scatter(slab, one, none, none, _shoal_one, column)
                if beat >= 0:
                    _shoal_a.write(words, _shoal_s.CANARY_AT, beat + 1)
            if locked:
                _shoal_a.write(words, _shoal_s.LOCK_AT, 0)
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
    room = 0
    for slot in range(len(starts) - 1):
        room = max(room, starts[slot + 1] - starts[slot])
    weights, counted = _shoal_np.empty(room, _shoal_np.float32), _shoal_np.empty(room, _shoal_np.float32)
    gradients, slopes = _shoal_np.empty((room, 1), _shoal_np.float32), _shoal_np.zeros(room)
    scratch = _shoal_np.empty(({last} + 1, _shoal_k.BLOCK))
    done = 0
    while done < most:
        number = _shoal_s.take(words, tally, order)
        if number < 0:
            break
        slot = order[number]
        mine = keys[starts[slot] : starts[slot + 1]]
        count = len(mine)
        for i in range(_shoal_u8(count)):
            weights[i] = slab[_shoal_u8(mine[i]), 0]
        first, beyond = slot * size, min((slot + 1) * size, len(labels))
        rows = indptr[first : beyond + 1]
        total = _shoal_m.add_gradient(
            kind, bias, rows, columns, values, labels[first:beyond], weights[:count], slopes[:count]
        )
        if l2 > 0.0:
            for i in range(_shoal_u8(count)):
                counted[i] = counts[_shoal_u8(mine[i])]
            _shoal_m.add_penalty(l2, rows, columns, weights[:count], counted[:count], slopes[:count])
        scale = 1.0 / (beyond - first) if mean else 1.0
        for i in range(_shoal_u8(count)):
            gradients[i, 0] = _shoal_f4(slopes[i] * scale)
            slopes[i] = 0.0
        for at in range(0, count, _shoal_k.BLOCK):
            part = mine[at : min(at + _shoal_k.BLOCK, count)]
            beat = _shoal_s.beat(words, worker, canary, len(part))
            _shoal_rows(slab, part, len(part), 0, gradients, at, settings, scratch)
            if beat >= 0:
                _shoal_a.write(words, _shoal_s.CANARY_AT, beat + 1)
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
                margin += _shoal_s.dot(mine, columns, values, start, middle)
                margin += _shoal_s.dot(slab, columns, values, middle, stop)
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
                    for at in range(start, middle, block):
                        here = min(block, middle - at)
                        _shoal_gather(mine, columns, at, none, here, column)
                        _shoal_slopes(values, at, here, slope, column)
                        if l2 > 0.0:
                            _shoal_penalty(l2, columns, counted, at, none, here, column)
                        _shoal_step(here, settings, column)
                        _shoal_scatter(mine, columns, at, none, here, column)
                    for at in range(middle, stop, block):
                        here = min(block, stop - at)
                        _shoal_gather(slab, columns, at, none, here, column)
                        _shoal_slopes(values, at, here, slope, column)
                        if l2 > 0.0:
                            _shoal_penalty(l2, columns, counts, at, none, here, column)
                        _shoal_step(here, settings, column)
                        _shoal_scatter(slab, columns, at, none, here, column)
                if bias:
                    _shoal_gather(mine, one, none, none, _shoal_one, column)
                    column[{last} * _shoal_k.BLOCK] = slope
                    _shoal_step(_shoal_one, settings, column)
                    _shoal_scatter(mine, one, none, none, _shoal_one, column)
                if beat >= 0:
                    _shoal_a.write(words, _shoal_s.CANARY_AT, beat + 1)
            since += 1
            if since >= merge:
                _shoal_s.merge(slab, hot, mine, base, averaged)
                since = 0
        _shoal_s.done(words, sums, tally, worker, number, beyond - first, total)
        done += 1
    _shoal_s.merge(slab, hot, mine, base, averaged)
    return done
'''

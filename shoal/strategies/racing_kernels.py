"""The loops of Hogwild's workers, as text: ``generate`` inlines an update rule into them. ``racing`` says what they are given.

All three begin and end a slot alike: take a number from the cursor, compute, mark it in the tally. No row of the slab is
guarded. Its floats are aligned and 32 bits wide, so each is whole whoever writes; but a weight and its state are written one
after the other, and what two workers do to a key at once may be lost, or leave the state of one beside the weight of the other.

The canary is a cell that everybody adds 1 to as if it were a key: read with the keys of a row, or of a block of a slot, and
written with them. Whoever adds also counts for himself, so that what the cell lacks in the end is what was lost.
"""

from __future__ import annotations

COMMON = '''

import shoal.models.kernels as _shoal_m  # {models}
import shoal.strategies.atomics as _shoal_a  # {atomics}

from numba import types as _shoal_types

_shoal_words = _shoal_a.words_out
_shoal_about = (
    _shoal_k.slab_out, _shoal_words, _shoal_m.doubles_out, _shoal_types.Array(_shoal_types.int8, 1, "C"),
    _shoal_k.rows_in, _shoal_i8, _shoal_i8, _shoal_i8, _shoal_k.settings_in, _shoal_m.indptr_in, _shoal_m.columns_in,
    _shoal_m.floats_in, _shoal_m.floats_in, _shoal_m.floats_in, _shoal_i8, _shoal_i8, _shoal_types.boolean, _shoal_f8
)
_shoal_cursor, _shoal_limit, _shoal_stop, _shoal_lock, _shoal_canary = {lines}
_shoal_one, _shoal_four = _shoal_np.uint64(1), _shoal_np.uint64(4)


@_shoal_njit(error_model="numpy")
def _shoal_take(words, tally, order):
    """The next slot's number, or -1: all are taken, or the round was stopped."""
    if _shoal_a.read(words, _shoal_stop) != 0:
        return -1
    number = _shoal_a.add(words, _shoal_cursor, 1)
    return number if number < min(_shoal_a.read(words, _shoal_limit), len(order), len(tally)) else -1


@_shoal_njit(error_model="numpy")
def _shoal_done(words, sums, tally, worker, number, rows, loss):
    """Count a slot: for all in the tally, for oneself in one's cell."""
    cell = {cells} + {line} * worker
    _shoal_a.write(words, cell, words[cell] + 1)
    _shoal_a.write(words, cell + 1, words[cell + 1] + rows)
    sums[{line} * worker] += loss
    _shoal_a.write(tally, number, _shoal_np.int8(1))


@_shoal_njit(error_model="numpy")
def _shoal_update(slab, keys, count, gradients, settings, scratch, words, worker, canary):
    """One step of each of these keys, the canary among them when its turn has come."""
    turns = {cells} + {line} * worker + 3
    words[turns] += count
    if canary == 0 or words[turns] < canary:
        _shoal_rows(slab, keys, count, 0, gradients, 0, settings, scratch)
        return
    words[turns] %= canary
    there = _shoal_a.read(words, _shoal_canary)
    _shoal_rows(slab, keys, count, 0, gradients, 0, settings, scratch)
    _shoal_a.write(words, _shoal_canary, there + 1)
    words[turns - 1] += 1


@_shoal_njit(error_model="numpy")
def _shoal_dot(slab, columns, values, start, stop):
    """sum of values[j] * slab[columns[j], 0], in the order of ``dot``; without values, all are 1."""
    a = b = c = d = 0.0
    j = start
    zero = _shoal_np.uint64(0)
    if len(values) > 0:
        while j + _shoal_four <= stop:
            a += _shoal_f8(values[j]) * _shoal_f8(slab[columns[j], zero])
            b += _shoal_f8(values[j + _shoal_u8(1)]) * _shoal_f8(slab[columns[j + _shoal_u8(1)], zero])
            c += _shoal_f8(values[j + _shoal_u8(2)]) * _shoal_f8(slab[columns[j + _shoal_u8(2)], zero])
            d += _shoal_f8(values[j + _shoal_u8(3)]) * _shoal_f8(slab[columns[j + _shoal_u8(3)], zero])
            j += _shoal_four
        while j < stop:
            a += _shoal_f8(values[j]) * _shoal_f8(slab[columns[j], zero])
            j += _shoal_one
    else:
        while j + _shoal_four <= stop:
            a += _shoal_f8(slab[columns[j], zero])
            b += _shoal_f8(slab[columns[j + _shoal_u8(1)], zero])
            c += _shoal_f8(slab[columns[j + _shoal_u8(2)], zero])
            d += _shoal_f8(slab[columns[j + _shoal_u8(3)], zero])
            j += _shoal_four
        while j < stop:
            a += _shoal_f8(slab[columns[j], zero])
            j += _shoal_one
    return (a + b) + (c + d)


@_shoal_njit(error_model="numpy")
def _shoal_some(slab, columns, values, counts, start, count, slope, l2, keys, gradients):
    """Keys and gradients of ``count`` of a row's columns, from ``start`` on."""
    for i in range(_shoal_u8(count)):
        j = _shoal_u8(start) + i
        key = columns[j]
        gradient = slope * _shoal_f8(values[j]) if len(values) > 0 else slope
        if l2 > 0.0:
            gradient += l2 * _shoal_f8(slab[key, _shoal_u8(0)]) / _shoal_f8(counts[key])
        keys[i] = key
        gradients[i, 0] = _shoal_f4(gradient)
'''

EXAMPLE = '''

@_shoal_njit(_shoal_i8(*_shoal_about, _shoal_types.boolean, _shoal_types.boolean), **_shoal_options)
def race(
    slab, words, sums, tally, order, worker, most, canary, given, indptr, columns, values, labels, counts,
    size, kind, bias, l2, idle, locked
):
    """Every row is a step; ``idle``: a gradient of 0 moves nothing, so none is written; ``locked``: one at a time."""
    settings = _shoal_Settings({given})
    keys = _shoal_np.empty(_shoal_k.BLOCK, _shoal_np.int64)
    gradients = _shoal_np.empty((_shoal_k.BLOCK, 1), _shoal_np.float32)
    scratch = _shoal_np.empty(({last} + 1, _shoal_k.BLOCK))
    last, one = _shoal_u8(len(slab) - 1), 1 if bias else 0
    done = 0
    while done < most:
        number = _shoal_take(words, tally, order)
        if number < 0:
            break
        first, beyond = order[number] * size, min((order[number] + 1) * size, len(labels))
        total = 0.0
        for i in range(_shoal_u8(first), _shoal_u8(beyond)):
            start, stop = _shoal_u8(indptr[i]), _shoal_u8(indptr[i + _shoal_one])
            label = _shoal_f8(labels[i])
            if locked:
                _shoal_a.lock(words, _shoal_lock, worker + 1)
            margin = _shoal_f8(slab[last, 0]) if bias else 0.0
            margin += _shoal_dot(slab, columns, values, start, stop)
            total += _shoal_m.loss_at(kind, margin, label)
            slope = _shoal_m.slope_at(kind, margin, label)
            if slope != 0.0 or l2 > 0.0 or not idle:
                whole = _shoal_i8(stop - start)
                for at in range(0, whole + one, _shoal_k.BLOCK):
                    count = min(_shoal_k.BLOCK, whole - at)
                    _shoal_some(slab, columns, values, counts, start + _shoal_u8(at), count, slope, l2, keys, gradients)
                    if bias and count < _shoal_k.BLOCK:
                        keys[count], gradients[count, 0] = last, _shoal_f4(slope)
                        count += 1
                    _shoal_update(slab, keys, count, gradients, settings, scratch, words, worker, canary)
            if locked:
                _shoal_a.write(words, _shoal_lock, 0)
        _shoal_done(words, sums, tally, worker, number, beyond - first, total)
        done += 1
    return done
'''

BATCHED = '''

@_shoal_njit(_shoal_i8(*_shoal_about, _shoal_types.boolean, _shoal_k.rows_in, _shoal_k.rows_in), **_shoal_options)
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
        number = _shoal_take(words, tally, order)
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
            _shoal_update(slab, part, len(part), gradients[at:], settings, scratch, words, worker, canary)
        _shoal_done(words, sums, tally, worker, number, beyond - first, total)
        done += 1
    return done
'''

HOT_COLD = '''

@_shoal_njit(error_model="numpy")
def _shoal_merge(slab, hot, mine, base):
    """Add to the shared rows what was learned since the last time, and begin again from what is there now."""
    for i in range(_shoal_u8(len(hot))):
        row = _shoal_u8(hot[i])
        for c in range(_shoal_u8(slab.shape[1])):
            now, was, new = slab[row, c], base[i, c], mine[i, c]
            if new != was:
                # Where nobody else wrote, to the bit: one worker alone learns as if there were no copy.
                now = new if now == was else now + (new - was)
                slab[row, c] = now
            mine[i, c] = now
            base[i, c] = now


@_shoal_njit(
    _shoal_i8(*_shoal_about, _shoal_i8, _shoal_k.rows_in, _shoal_k.rows_in, _shoal_m.floats_in), **_shoal_options
)
def race(
    slab, words, sums, tally, order, worker, most, canary, given, indptr, columns, values, labels, counts,
    size, kind, bias, l2, merge, hot, cold, counted
):
    """Every row is a step. The columns of row i up to cold[i] are places in ``hot``, with the bias in place 0; the rest are features."""
    settings = _shoal_Settings({given})
    mine = _shoal_np.zeros((len(hot), slab.shape[1]), _shoal_np.float32)
    base = _shoal_np.zeros((len(hot), slab.shape[1]), _shoal_np.float32)
    _shoal_merge(slab, hot, mine, base)
    keys = _shoal_np.empty(_shoal_k.BLOCK, _shoal_np.int64)
    gradients = _shoal_np.empty((_shoal_k.BLOCK, 1), _shoal_np.float32)
    scratch = _shoal_np.empty(({last} + 1, _shoal_k.BLOCK))
    one = 1 if bias else 0
    done, since = 0, 0
    while done < most:
        number = _shoal_take(words, tally, order)
        if number < 0:
            break
        first, beyond = order[number] * size, min((order[number] + 1) * size, len(labels))
        total = 0.0
        for i in range(_shoal_u8(first), _shoal_u8(beyond)):
            start, middle, stop = _shoal_u8(indptr[i]), _shoal_u8(cold[i]), _shoal_u8(indptr[i + _shoal_one])
            label = _shoal_f8(labels[i])
            margin = _shoal_f8(mine[0, 0]) if bias else 0.0
            margin += _shoal_dot(mine, columns, values, start, middle)
            margin += _shoal_dot(slab, columns, values, middle, stop)
            total += _shoal_m.loss_at(kind, margin, label)
            slope = _shoal_m.slope_at(kind, margin, label)
            if slope != 0.0 or l2 > 0.0:
                whole = _shoal_i8(middle - start)
                for at in range(0, whole + one, _shoal_k.BLOCK):
                    count = min(_shoal_k.BLOCK, whole - at)
                    _shoal_some(mine, columns, values, counted, start + _shoal_u8(at), count, slope, l2, keys, gradients)
                    if bias and count < _shoal_k.BLOCK:
                        keys[count], gradients[count, 0] = 0, _shoal_f4(slope)
                        count += 1
                    _shoal_rows(mine, keys, count, 0, gradients, 0, settings, scratch)
                for at in range(0, _shoal_i8(stop - middle), _shoal_k.BLOCK):
                    count = min(_shoal_k.BLOCK, _shoal_i8(stop - middle) - at)
                    _shoal_some(slab, columns, values, counts, middle + _shoal_u8(at), count, slope, l2, keys, gradients)
                    _shoal_update(slab, keys, count, gradients, settings, scratch, words, worker, canary)
            since += 1
            if since >= merge:
                _shoal_merge(slab, hot, mine, base)
                since = 0
        _shoal_done(words, sums, tally, worker, number, beyond - first, total)
        done += 1
    _shoal_merge(slab, hot, mine, base)
    return done
'''

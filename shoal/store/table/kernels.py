"""Compiled loops under a table: the sparse index, gathers, checks, admission, eviction.

A sparse index is one array of uint64, a power of two long, at most three quarters full:

    slot = tag << 32 | row + 1      tag = high half of the key's hash; 0 = empty
    place = hash & (length - 1)     probed linearly from the start of its cache line (eight slots)

The key itself is in its row of the slab. So a lookup costs two cache misses, one in the index and
one in the row that is used anyway. It runs over blocks of keys in phases (prefetch the index
lines; compare the eight tags of each and prefetch the rows; compare the keys): many misses
overlap, and few branches are mispredicted.

Every signature is spelled out: nothing is compiled because of what a message contains. Nothing
here checks its arguments (``table`` has), raises or allocates more than a block. Imported late.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import boolean, float32, float64, int64, uint8, uint32, uint64
from numba.core import cgutils, types
from numba.extending import intrinsic

from shoal.jit import arrays, compiled, mix

KEY_WORDS = 2  # float32 words of the key, at the start of a sparse row
BLOCK = 512  # keys per block: their slots and rows stay in the L2 cache
LINE = 8  # slots in one cache line
FAR = 1 << 20  # words of a slab whose rows are seldom cached
ROW_LINES = 4  # cache lines prefetched per row: hardware follows longer ones

CONSTANT, UNIFORM, NORMAL = 0, 1, 2  # kinds of initial values
FINE, DISORDER, ELSEWHERE = 0, 1, 2  # what a check of keys finds

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ONE = np.uint64(1)
NONE = np.uint64(0)
LINE_START = ~np.uint64(LINE - 1)
EXPONENT = np.uint32(0x7F800000)  # of a float32 that is infinite or NaN
MOST = 255  # that a cell counts
NOBODY = ~np.uint64(0)  # no key
_DROPPING = 16  # rows that can be looked at in the time of one drop

keys_in, keys_out = arrays(uint64)
rows_in, rows_out = arrays(int64)
words_in = arrays(uint32)[0]
slots_in, slots_out = arrays(uint64, 2)
slab_in, slab_out = arrays(float32, 2)
settings_in = arrays(float64)[0]
cells_in, cells_out = arrays(uint8)
chosen_out = arrays(boolean)[1]
index_in = keys_in
initial = (int64, float64, float64, uint64)  # kind, two parameters, seed


@compiled(float32(*initial, uint64, int64))
def initial_value(kind, first, second, seed, key, column):
    """The weight of a row that nobody has pushed yet, from key, column and seed alone.

    Only + and * on exactly the same numbers, so that all machines agree. Normal: the sum of twelve
    uniform draws, straightened by Teichroew's polynomial (Knuth, TAOCP 3.4.1), since log and cos
    differ between libraries.
    """
    if kind == CONSTANT:
        return float32(first)
    start = mix(mix(key ^ mix(seed + GOLDEN)) + uint64(column) * GOLDEN)
    if kind == UNIFORM:
        part = float64(mix(start + GOLDEN) >> uint64(11)) * (1.0 / 9007199254740992.0)
        value = float32(first + (second - first) * part)
        # Rounding may reach the upper end, which is not part of the interval.
        return value if value < float32(second) else float32(first)
    total = uint64(0)
    for draw in range(6):
        bits = mix(start + uint64(draw + 1) * GOLDEN)
        total += (bits & LOW) + (bits >> HALF)
    r = (float64(total) * (1.0 / 4294967296.0) - 6.0) * 0.25
    q = r * r
    odd = ((0.029899776 * q + 0.008355968) * q + 0.076542912) * q + 0.252408784
    return float32(first * ((odd * q + 3.949846138) * r))


@compiled(types.void(slab_out, int64, int64, uint64, int64, int64, *initial))
def fill(slab, row, count, key, word, width, kind, first, second, seed):
    """Create rows row..row + count for the keys from ``key`` on: initial weights, zero state."""
    for i in range(count):
        for c in range(width):
            slab[row + i, word + c] = initial_value(kind, first, second, seed, key + uint64(i), c)
        for c in range(word + width, slab.shape[1]):
            slab[row + i, c] = float32(0.0)


@intrinsic
def prefetch(typing, array, position):
    """Prefetch array[position] into the second-level cache, which can wait for more lines."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        # To read, second level, data.
        builder.call(function, [address, number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(array, position), generate


@intrinsic
def match_line(typing, index, place, tag):
    """The slot with this tag among the eight from ``place`` on, else 0; of two, the bitwise or."""

    def generate(context, builder, signature, args):
        slot = ir.IntType(64)
        line, lane = ir.VectorType(slot, LINE), ir.VectorType(ir.IntType(32), LINE)

        def spread(value):
            nothing = ir.Constant(line, ir.Undefined)
            one = builder.insert_element(nothing, value, ir.IntType(32)(0))
            return builder.shuffle_vector(one, nothing, ir.Constant(lane, [0] * LINE))

        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        slots = builder.load(builder.bitcast(builder.gep(data, [args[1]]), line.as_pointer()), align=8)
        same = builder.icmp_unsigned("==", builder.lshr(slots, spread(slot(32))), spread(args[2]))
        kept = builder.select(same, slots, ir.Constant(line, [0] * LINE))
        kind = ir.FunctionType(slot, [line])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.or.v8i64"), [kept])

    return uint64(index, uint64, uint64), generate


@compiled(int64(index_in, slots_in, uint64, uint64))
def search(index, slots, key, hashed):
    """The row of one key, or -1: the plain probe, for the few keys that are not in place."""
    mask = uint64(len(index)) - ONE
    place = hashed & mask & LINE_START
    while index[place] != NONE:
        if index[place] >> HALF == hashed >> HALF:
            row = (index[place] & LOW) - ONE
            if slots[row, 0] == key:
                return int64(row)
        place = (place + ONE) & mask
    return int64(-1)


@compiled(types.void(index_in, slots_in, int64, keys_in, int64, int64, keys_out, rows_out))
def find_block(index, slots, used, keys, start, count, hashes, rows):
    """rows[i] = the row of keys[start + i], or -1; hashes[i] = its hash. ``used`` rows exist."""
    mask = (uint64(len(index)) - ONE) & LINE_START
    words = slots.shape[1]
    flat = slots.reshape(-1)
    for i in range(count):
        hashes[i] = mix(keys[start + i])
        prefetch(index, hashes[i] & mask)
    for i in range(count):
        row = int64(match_line(index, hashes[i] & mask, hashes[i] >> HALF) & LOW) - 1
        rows[i] = row
        for at in range(0, min(words, ROW_LINES * LINE), LINE):
            prefetch(flat, row * words + at)  # also of row -1: a prefetch cannot fault
    for i in range(count):
        # One unsigned comparison also rejects what two equal tags in one line would make.
        row = uint64(rows[i])
        if row >= uint64(used) or slots[row, 0] != keys[start + i]:
            rows[i] = search(index, slots, keys[start + i], hashes[i])


@compiled(int64(index_in, slots_in, int64, keys_in, rows_out))
def find_rows(index, slots, used, keys, rows):
    """rows[i] = the row of keys[i], or -1; returns how many keys have none."""
    hashes = np.empty(min(len(keys), BLOCK), np.uint64)
    missing = 0
    for start in range(0, len(keys), BLOCK):
        some = rows[start : start + BLOCK]
        find_block(index, slots, used, keys, start, len(some), hashes, some)
        for i in range(len(some)):
            missing += some[i] < 0
    return missing


@compiled(uint64(keys_in))
def hash_keys(keys):
    """Sum of mix(keys[i] + (i + 1) * GOLDEN): a hash of a list, its order included."""
    total = NONE
    for i in range(uint64(len(keys))):
        total += mix(keys[i] + (uint64(i) + ONE) * GOLDEN)
    return mix(total ^ uint64(len(keys)))


@compiled(int64(keys_out, slots_out, slab_out, uint64, uint64, int64, int64, *initial))
def insert(index, slots, slab, key, hashed, row, width, kind, first, second, seed):
    """Give a key the next free row, ``row``, unless it has one by now; returns its row."""
    held = search(index, slots, key, hashed)
    if held >= 0:
        return held
    mask = uint64(len(index)) - ONE
    place = hashed & mask & LINE_START
    while index[place] != NONE:
        place = (place + ONE) & mask
    slots[row, 0] = key
    fill(slab, row, 1, key, KEY_WORDS, width, kind, first, second, seed)
    index[place] = ((hashed >> HALF) << HALF) | uint64(row + 1)
    return row


@compiled(int64(keys_out, slots_out, slab_out, int64, keys_in, int64, int64, keys_out, rows_out, int64, *initial))
def place_block(index, slots, slab, used, keys, start, count, hashes, rows, width, kind, first, second, seed):
    """find_block, with new rows for the missing keys; returns how many rows exist then."""
    find_block(index, slots, used, keys, start, count, hashes, rows)
    for i in range(count):
        if rows[i] < 0:
            key = keys[start + i]
            rows[i] = insert(index, slots, slab, key, hashes[i], used, width, kind, first, second, seed)
            used = max(used, rows[i] + 1)
    return used


@compiled(types.void(keys_out, slots_in, int64, int64))
def enter(index, slots, first, rows):
    """Enter rows first..rows of a slab into an index that has none of their keys."""
    mask = uint64(len(index)) - ONE
    size = min(rows - first, BLOCK)
    hashes = np.empty(size, np.uint64)
    for start in range(first, rows, BLOCK):
        count = min(BLOCK, rows - start)
        for i in range(count):
            hashes[i] = mix(slots[start + i, 0])
            prefetch(index, hashes[i] & mask & LINE_START)
        for i in range(count):
            place = hashes[i] & mask & LINE_START
            while index[place] != NONE:
                place = (place + ONE) & mask
            index[place] = ((hashes[i] >> HALF) << HALF) | uint64(start + i + 1)


@compiled(types.void(index_in, slots_in, slab_in, int64, keys_in, slab_out, *initial))
def gather_keys(index, slots, slab, used, keys, out, kind, first, second, seed):
    """out[i] = the weights of keys[i]; initial ones for a key without a row."""
    size = min(len(keys), BLOCK)
    hashes, rows = np.empty(size, np.uint64), np.empty(size, np.int64)
    width = out.shape[1]
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        find_block(index, slots, used, keys, start, count, hashes, rows)
        for i in range(count):
            row = rows[i]
            if row >= 0 and width == 1:  # most frequent, and twice as fast
                out[start + i, 0] = slab[row, KEY_WORDS]
            elif row >= 0:
                for c in range(width):
                    out[start + i, c] = slab[row, KEY_WORDS + c]
            else:
                for c in range(width):
                    out[start + i, c] = initial_value(kind, first, second, seed, keys[start + i], c)


@compiled(types.void(slab_in, rows_in, int64, slab_out))
def gather_rows(slab, rows, word, out):
    """out[i] = the weights of row rows[i]."""
    if out.shape[1] == 1:
        flat, words = slab.reshape(-1), slab.shape[1]
        for start in range(0, len(rows), BLOCK):
            some = rows[start : start + BLOCK]
            if len(flat) > FAR:
                for i in range(len(some)):
                    prefetch(flat, some[i] * words)
            for i in range(len(some)):
                # Unsigned: no look whether it counts from the end.
                out[start + i, 0] = slab[uint64(some[i]), uint64(word)]
        return
    for i in range(len(rows)):
        for c in range(out.shape[1]):
            out[i, c] = slab[rows[i], word + c]


@compiled(int64(keys_in, int64, uint64))
def lower(keys, low, key):
    """How many of the ascending keys are smaller than ``key``; the first ``low`` of them are."""
    high = len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled(types.UniTuple(int64, 2)(keys_in, keys_in, keys_in))
def check_keys(keys, starts, stops):
    """(code, position): whether keys ascend strictly and lie inside the sorted segments."""
    for start in range(0, len(keys) - 1, 4096):
        # Slices, not offsets, and no early exit: this vectorizes.
        these, those = keys[start : start + 4096], keys[start + 1 : start + 4097]
        bad = 0
        for i in range(len(those)):
            bad += these[i] >= those[i]
        if bad:
            for i in range(len(those)):
                if these[i] >= those[i]:
                    return DISORDER, start + i + 1
    at, part = 0, 0
    while at < len(keys) and part < len(starts):
        if keys[at] < starts[part]:
            return ELSEWHERE, at
        while part + 1 < len(starts) and stops[part] == starts[part + 1]:
            part += 1  # segments side by side are one
        at = len(keys) if keys[len(keys) - 1] < stops[part] else lower(keys, at, stops[part])
        part += 1
    return (FINE, 0) if at == len(keys) else (ELSEWHERE, at)


@compiled(int64(words_in))
def first_not_finite(words):
    """Position of the first float32, by its bits, that is infinite or NaN; -1 if none is."""
    for start in range(0, len(words), 4096):
        some = words[start : start + 4096]  # a slice, and no early exit: this vectorizes
        worst = uint32(0)
        for i in range(len(some)):
            worst = max(worst, some[i] & EXPONENT)
        if worst == EXPONENT:
            for i in range(len(some)):
                if some[i] & EXPONENT == EXPONENT:
                    return start + i
    return -1


@compiled(types.UniTuple(int64, 2)(slots_in, int64, int64, uint64, uint64, keys_out, rows_out, int64))
def collect(slots, row, rows, low, high, keys_found, rows_found, found):
    """Append live keys in [low, high) from ``row`` on, while there is room: next row, and count."""
    while row < rows and found < len(keys_found):
        key = slots[row, 0]
        if low <= key < high:
            keys_found[found] = key
            rows_found[found] = row
            found += 1
        row += 1
    return row, found


# ---------------------------------------------------------------- admission, eviction, compaction


@compiled(types.void(keys_in, cells_out, int64, chosen_out))
def count_each(keys, cells, wanted, chosen):
    """A cell per key: count those not chosen yet, and choose those that came often enough."""
    for i in range(len(keys)):
        if not chosen[i]:
            place = int64(keys[i])
            count = min(MOST, cells[place] + 1)
            cells[place] = count
            chosen[i] = count >= wanted


@compiled(int64(uint64, cells_in))
def seen_before(key, cells):
    """What cells have counted of a key; 0 if there are no cells."""
    if len(cells) == 0:
        return int64(0)
    half = uint64(len(cells) // 2)
    hashed = mix(key ^ GOLDEN)
    one, two = hashed & (half - uint64(1)), half + ((hashed >> uint64(32)) & (half - uint64(1)))
    return min(int64(cells[one]), int64(cells[two]))


@compiled(int64(keys_in, cells_in, cells_out, int64, chosen_out))
def count_hashed(keys, before, cells, wanted, chosen):
    """Two cells per key, one in each half, shared: the smaller is never less than the truth.

    Only the smaller cell is raised (Estan, Varghese, 2002). ``before`` are full cells, which are
    added and stay as they are. Returns how many keys looked new.
    """
    new = 0
    size = min(len(keys), BLOCK)
    one, two = np.empty(size, np.uint64), np.empty(size, np.uint64)
    half = uint64(len(cells) // 2)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        for i in range(count):
            hashed = mix(keys[start + i] ^ GOLDEN)
            one[i] = hashed & (half - uint64(1))
            two[i] = half + ((hashed >> uint64(32)) & (half - uint64(1)))
            if not chosen[start + i]:
                prefetch(cells, one[i])
                prefetch(cells, two[i])
        for i in range(count):
            if chosen[start + i]:
                continue
            a, b = int64(cells[one[i]]), int64(cells[two[i]])
            least = min(a, b)
            new += least == 0
            if least < MOST:
                if a == least:
                    cells[one[i]] = least + 1
                if b == least:
                    cells[two[i]] = least + 1
            chosen[start + i] = least + 1 + seen_before(keys[start + i], before) >= wanted
    return new


@compiled(int64(slots_out, slab_out, int64, int64, keys_in, keys_in))
def drop_zeros(slots, slab, rows, width, starts, stops):
    """Drop zero rows of these sorted key ranges, closing up in order; how many rows stay."""
    kept = 0
    for row in range(rows):
        zero = True
        for c in range(KEY_WORDS, KEY_WORDS + width):
            zero = zero and slab[row, c] == 0.0
        if zero:
            at = lower(starts, 0, slots[row, 0] + uint64(1)) - 1
            if at >= 0 and slots[row, 0] < stops[at]:
                continue
        if kept != row:
            for c in range(slots.shape[1]):
                slots[kept, c] = slots[row, c]
        kept += 1
    return kept


@compiled(types.UniTuple(int64, 2)(keys_out, slots_out, int64, int64, int64, keys_in, keys_in))
def drop_some(index, slots, row, rows, most, starts, stops):
    """Drop rows below ``row`` in these sorted key ranges, from the last down, filling gaps.

    Stops after the time it takes to look at ``most`` rows. The index learns of rows that moved;
    entries of dropped ones still point at their old rows. Returns the row it came to, and how many
    there are.
    """
    mask = uint64(len(index)) - ONE
    while row > 0 and most > 0:
        row -= 1
        most -= 1
        key = slots[row, 0]
        at = lower(starts, 0, key + ONE) - 1
        if at < 0 or key >= stops[at]:
            continue
        most -= _DROPPING
        rows -= 1
        if row != rows:
            hashed = mix(slots[rows, 0])
            tag = (hashed >> HALF) << HALF
            place = hashed & mask & LINE_START
            while index[place] != tag | uint64(rows + 1):
                place = (place + ONE) & mask
            index[place] = tag | uint64(row + 1)
            for c in range(slots.shape[1]):
                slots[row, c] = slots[rows, c]
        slots[rows, 0] = NOBODY
    return row, rows

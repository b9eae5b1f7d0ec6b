"""Compiled loops that read lines of arbitrary bytes: LIBSVM, and Criteo's click logs.

The caller passes complete lines, the last one terminated too: every loop stops at a newline, so
none runs past the end. A kernel reads lines until none are left or one is bad; then it returns the
error code and position, has undone that row, and is at the next line. ``state`` is where it starts
and stops:

    AT  next byte       ROWS, NONZEROS, LINES, REDOS  so far
    BEGIN  of the line  FROM  start of the bad token     FIELD  its column (Criteo)

A number is computed from its first 19 digits in double precision. That gives the nearest float32
unless it is within a few units in the last place of the midpoint of two. Those few tokens are
listed in ``redo`` (value index, or -1 - row for a label; start; end), and the caller reads all
their digits.
"""

# mypy: ignore-errors
# numba has no stubs, and kernels are typed by their signatures

from __future__ import annotations

import math

import numpy as np
from numba import float32, float64, int64, uint8, uint32, uint64
from numba.core import types

from shoal.jit import arrays, compiled, mix

AT, ROWS, NONZEROS, LINES, REDOS, BEGIN, FROM, FIELD = range(8)
STATE = 8

# Error codes of a line; 0: none.
DONE, TOO_LONG, BAD_LABEL, BAD_TOKEN, ID_ZERO, ID_NEGATIVE, ID_LARGE, REPEATED, DISORDER, NOT_FINITE = range(10)
FIELDS, NOT_ZERO_ONE, NOT_WHOLE, NOT_HEX = range(10, 14)

# Results of reading a number.
FINE, UNSURE, NO_NUMBER, INFINITE = range(4)

NEWLINE, RETURN, TAB, SPACE, HASH, COLON = 10, 13, 9, 32, 35, 58
PLUS, MINUS, POINT, ZERO = 43, 45, 46, 48

TENS = np.array([float(f"1e{power}") for power in range(67)])
DIGITS = 19  # as many as fit in 64 bits
TOO_LARGE = 3.4028235677973366e38  # from here on float32 is infinite
NORMAL = 1.1754943508222875e-38  # below, float32 is subnormal
STEPS = 7.136238463529799e44  # 2^149 = 1 / the smallest float32
LOW = (1 << 29) - 1  # the bits of a double that a float32 lacks
MIDDLE = 1 << 28
NEAR = 4
GREATEST = 3.4028234663852886e38
MOST = np.uint64(10**18)  # largest id that is read; hashed if there are fewer features
BEYOND = np.uint64(10**19)

HASHED = np.uint64(0x73686F616C)  # never change it: models are trained on these hashes

bytes_in = arrays(uint8)[0]
numbers_in, numbers_out = arrays(int64)
ids_in, ids_out = arrays(uint64)
floats_in, floats_out = arrays(float32)
doubles_in = arrays(float64)[0]
redo_out = arrays(int64, 2)[1]
columns_out = arrays(uint32)[1]


@compiled(types.boolean(bytes_in, int64, int64, int64, int64))
def word(data, at, first, second, third):
    """Whether these three characters are here, in either case."""
    return (data[at] | 32) == first and (data[at + 1] | 32) == second and (data[at + 2] | 32) == third


@compiled(int64(bytes_in, int64))
def line_end(data, at):
    while data[at] != NEWLINE:
        at += 1
    return at


@compiled(types.boolean(bytes_in, int64))
def ends_token(data, at):
    byte = data[at]
    if byte in (SPACE, NEWLINE, TAB, HASH):
        return True
    return byte == RETURN and data[at + 1] == NEWLINE


@compiled(types.Tuple((int64, float32))(uint64, int64))
def to_float32(digits, power):
    """The float32 nearest to digits * 10^power, and whether it is certain."""
    if digits == uint64(0) or power < -66:  # below 1e-47
        return FINE, float32(0.0)
    if power > 39:
        return INFINITE, float32(0.0)
    value = float64(digits)
    if power < 0:
        value /= TENS[-power]
    elif power > 0:
        value *= TENS[power]
    if value >= TOO_LARGE:
        return INFINITE, float32(0.0)
    if value < NORMAL:
        steps = value * STEPS
        whole = math.floor(steps)
        rest = steps - whole
        if abs(rest - 0.5) < 1e-8:
            return UNSURE, float32(NORMAL)
        return FINE, float32((whole + 1.0 if rest > 0.5 else whole) / STEPS)
    # otherwise exact, and float32 rounds correctly
    if power != 0 or digits > uint64(1 << 53):
        low = np.float64(value).view(np.int64) & LOW
        if abs(low - MIDDLE) <= NEAR:
            return UNSURE, float32(value)
    return FINE, float32(value)


@compiled(types.Tuple((int64, float32, int64))(bytes_in, int64))
def number(data, at):
    """Read a decimal number: status, number, end position."""
    negative = data[at] == MINUS
    if negative or data[at] == PLUS:
        at += 1
    digits, kept, power, begin = uint64(0), 0, 0, at
    while True:
        digit = int64(data[at]) - ZERO
        if digit < 0 or digit > 9:
            break
        if kept < DIGITS:
            digits = digits * uint64(10) + uint64(digit)
            kept += digits != uint64(0)
        else:
            power += 1
        at += 1
    seen = at - begin
    if data[at] == POINT:
        at += 1
        begin = at
        while True:
            digit = int64(data[at]) - ZERO
            if digit < 0 or digit > 9:
                break
            if kept < DIGITS:
                digits = digits * uint64(10) + uint64(digit)
                kept += digits != uint64(0)
                power -= 1
            at += 1
        seen += at - begin
    if seen == 0:
        if word(data, at, 110, 97, 110) or word(data, at, 105, 110, 102):
            while not ends_token(data, at):
                at += 1
            return INFINITE, float32(0.0), at
        return NO_NUMBER, float32(0.0), at
    if (data[at] | 32) == 101:
        at += 1
        below = data[at] == MINUS
        if below or data[at] == PLUS:
            at += 1
        begin, exponent = at, 0
        while True:
            digit = int64(data[at]) - ZERO
            if digit < 0 or digit > 9:
                break
            exponent = min(exponent * 10 + digit, 1 << 40)  # larger than any line is long
            at += 1
        if at == begin:
            return NO_NUMBER, float32(0.0), at
        power += -exponent if below else exponent
    how, value = to_float32(digits, power)
    return how, -value if negative else value, at


@compiled(types.Tuple((int64, uint64, int64, float32, int64))(bytes_in, int64))
def feature(data, at):
    """Read one ``id:value``: error code (or -UNSURE), id, start of the value, value, end."""
    nothing = float32(0.0)
    negative = data[at] == MINUS
    at += negative
    begin, name = at, uint64(0)
    while True:
        digit = int64(data[at]) - ZERO
        if digit < 0 or digit > 9:
            break
        name = name * uint64(10) + uint64(digit) if name < MOST else BEYOND
        at += 1
    if at == begin or data[at] != COLON:
        return BAD_TOKEN, name, at, nothing, at
    start = at + 1
    how, value, at = number(data, start)
    if how == NO_NUMBER or not ends_token(data, at):
        return BAD_TOKEN, name, start, nothing, at
    if negative:
        return ID_NEGATIVE, name, start, nothing, at
    if name == uint64(0):
        return ID_ZERO, name, start, nothing, at
    if how == INFINITE:
        return NOT_FINITE, name, start, nothing, at
    return -how, name, start, value, at


@compiled(int64(bytes_in, int64))
def query(data, at):
    """The end of a ``qid:7``; -1 if there is none; ``at`` itself if it is malformed."""
    if data[at] != 113 or data[at + 1] != 105 or data[at + 2] != 100 or data[at + 3] != COLON:
        return -1
    end = at + 4
    while data[end] >= ZERO and data[end] <= ZERO + 9:
        end += 1
    return end if end > at + 4 and ends_token(data, end) else at


@compiled(int64(bytes_in, int64, uint64, ids_out, floats_out, floats_out, redo_out, numbers_out))
def libsvm_row(data, at, limit, ids, values, labels, redo, state):
    """Read one row from its label on; advances ``state`` but for the row count. The error code."""
    nonzeros, redos, rows = state[NONZEROS], state[REDOS], state[ROWS]
    token, last, tokens = at, uint64(0), 0
    how, label, at = number(data, at)
    wrong = DONE
    if how == NO_NUMBER or not ends_token(data, at):
        wrong = BAD_LABEL
    elif how == INFINITE:
        wrong = NOT_FINITE
    elif how == UNSURE:
        redo[redos, 0], redo[redos, 1], redo[redos, 2] = -1 - rows, token, at
        redos += 1
    while wrong == DONE:
        while data[at] == SPACE or data[at] == TAB:
            at += 1
        if ends_token(data, at):
            break
        token = at
        tokens += 1
        if tokens == 1:
            end = query(data, at)
            if end == at:
                wrong = BAD_TOKEN
            if end >= 0:
                at = end
                continue
        wrong, name, start, value, at = feature(data, at)
        if wrong <= 0:
            if wrong == -UNSURE:
                redo[redos, 0], redo[redos, 1], redo[redos, 2] = nonzeros, start, at
                redos += 1
            wrong = DONE
            if name > limit:
                wrong = ID_LARGE
            elif name <= last:
                wrong = REPEATED if name == last else DISORDER
            elif value != float32(0.0):
                ids[nonzeros] = name
                values[nonzeros] = value
                nonzeros += 1
            last = name
    labels[rows] = label
    state[AT], state[NONZEROS], state[REDOS], state[FROM] = at, nonzeros, redos, token
    return wrong


@compiled(
    int64(bytes_in, int64, uint64, int64, ids_out, floats_out, floats_out, numbers_out, numbers_out, redo_out, numbers_out)
)  # fmt: skip
def libsvm(data, stop, limit, longest, ids, values, labels, indptr, lines, redo, state):
    """Parse lines ``label [qid:n] id:value ... [# comment]``. Returns why it stopped.

    Ids start at 1. The outputs need room for a row per 2 bytes and a feature per 4: no token is
    shorter.
    """
    while state[AT] < stop:
        begin, nonzeros, redos = state[AT], state[NONZEROS], state[REDOS]
        wrong, at = DONE, begin
        while data[at] == SPACE or data[at] == TAB:
            at += 1
        blank = ends_token(data, at)  # or a comment
        if not blank:
            wrong = libsvm_row(data, at, limit, ids, values, labels, redo, state)
            at = state[AT]
        end = line_end(data, at)
        state[AT], state[BEGIN] = end + 1, begin
        state[LINES] += 1
        if end - begin > longest:
            wrong, state[FROM] = TOO_LONG, begin
        if wrong != DONE:
            state[NONZEROS], state[REDOS] = nonzeros, redos
            return wrong
        if not blank:
            lines[state[ROWS]] = state[LINES]
            state[ROWS] += 1
            indptr[state[ROWS]] = state[NONZEROS]
    return DONE


@compiled(uint32(uint64, uint64))
def hashed(name, mask):
    return uint32(mix(name ^ HASHED) & mask)


@compiled(int64(numbers_in, ids_in, floats_in, uint64, ids_out, numbers_out, columns_out, floats_out))
def hash_rows(indptr, ids, values, mask, scratch, indptr_to, columns_to, values_to):
    """Hash ids, ascending in each row; values with equal hashes are added in their order."""
    found = 0
    indptr_to[0] = 0
    for row in range(len(indptr) - 1):
        start = indptr[row]
        count = indptr[row + 1] - start
        for j in range(count):
            scratch[j] = uint64(hashed(ids[start + j], mask)) << uint64(32) | uint64(j)
        scratch[:count].sort()
        j = 0
        while j < count:
            column, total = scratch[j] >> uint64(32), 0.0
            while j < count and scratch[j] >> uint64(32) == column:
                total += float64(values[start + int64(scratch[j] & uint64(0xFFFFFFFF))])
                j += 1
            total = min(max(total, -GREATEST), GREATEST)
            if float32(total) != float32(0.0):
                columns_to[found] = uint32(column)
                values_to[found] = float32(total)
                found += 1
        indptr_to[row + 1] = found
    return found


# ---------------------------------------------------------------- Criteo

COUNTS, COLUMNS = 13, 39
LARGE = np.uint64(1 << 32)  # the first bucket of large counts
MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
CATEGORY = np.uint64(0x9E3779B97F4A7C15)


@compiled(uint64(int64))
def bucket(count):
    """A count as a category: itself up to 2, then floor(log^2), as is usual with these logs."""
    if count <= 2:
        return uint64(count)
    root = math.log(float64(count))
    return LARGE + uint64(int64(root * root))


@compiled(types.Tuple((int64, uint64, int64))(bytes_in, int64))
def whole(data, at):
    """An integer of up to 18 digits as a category: error code, category, end position."""
    negative = data[at] == MINUS
    at += negative
    begin, value = at, 0
    while data[at] >= ZERO and data[at] <= ZERO + 9 and at - begin < 18:
        value = value * 10 + int64(data[at]) - ZERO
        at += 1
    return (DONE if at > begin else NOT_WHOLE), bucket(-value if negative else value), at


@compiled(types.Tuple((int64, uint64, int64))(bytes_in, int64))
def hexadecimal(data, at):
    """Up to 16 hexadecimal digits as a category."""
    begin, value = at, uint64(0)
    while at - begin < 16:
        byte = int64(data[at])
        letter = (byte | 32) - 97
        if byte >= ZERO and byte <= ZERO + 9:
            digit = byte - ZERO
        elif letter >= 0 and letter <= 5:
            digit = letter + 10
        else:
            break
        value = value << uint64(4) | uint64(digit)
        at += 1
    return (DONE if at > begin else NOT_HEX), value, at


@compiled(types.boolean(bytes_in, int64))
def ends_line(data, at):
    return data[at] == NEWLINE or (data[at] == RETURN and data[at + 1] == NEWLINE)


@compiled(int64(bytes_in, int64, uint64, columns_out, numbers_out))
def criteo_row(data, at, mask, found, state):
    """Hash the fields of one line with their column number into ``found``; the error code.

    An empty field is a category too: that improves AUC by 0.004 on both samples (three-fold
    cross-validation on the training rows).
    """
    state[FIELD], state[FROM] = 0, at
    if (data[at] != ZERO and data[at] != ZERO + 1) or not (data[at + 1] == TAB or ends_line(data, at + 1)):
        state[AT] = at
        return NOT_ZERO_ONE
    at += 1
    wrong = DONE
    for field in range(COLUMNS):
        state[FIELD], state[FROM] = field + 1, at + 1
        if data[at] != TAB:
            wrong = FIELDS
            break
        at += 1
        category = MISSING
        if data[at] != TAB and not ends_line(data, at):
            wrong, category, at = whole(data, at) if field < COUNTS else hexadecimal(data, at)
            if wrong != DONE or not (data[at] == TAB or ends_line(data, at)):
                wrong = NOT_WHOLE if field < COUNTS else NOT_HEX
                break
        found[field] = uint32(mix(category ^ mix(uint64(field + 1) * CATEGORY)) & mask)
    if wrong == DONE and not ends_line(data, at):
        wrong = FIELDS
    state[AT] = at
    return wrong


@compiled(int64(bytes_in, int64, int64))
def tabs(data, at, end):
    count = 0
    for place in range(at, end):
        count += data[place] == TAB
    return count


@compiled(int64(bytes_in, int64, uint64, int64, columns_out, floats_out, numbers_out, numbers_out, numbers_out))  # fmt: skip
def criteo(data, stop, mask, longest, columns, labels, indptr, lines, state):
    """Parse lines of 40 fields, at least 40 bytes a row. Returns why it stopped."""
    found = np.empty(COLUMNS, np.uint32)
    while state[AT] < stop:
        begin, nonzeros, rows = state[AT], state[NONZEROS], state[ROWS]
        wrong, blank = DONE, ends_line(data, begin)
        if not blank:
            wrong = criteo_row(data, begin, mask, found, state)
        at = state[AT]
        end = line_end(data, at)
        state[AT], state[BEGIN] = end + 1, begin
        state[LINES] += 1
        if end - begin > longest:
            wrong, state[FROM] = TOO_LONG, begin
        elif wrong != DONE and tabs(data, begin, end) != COLUMNS:
            wrong, state[FROM] = FIELDS, begin
        if wrong != DONE:
            return wrong
        if not blank:
            found.sort()
            for j in range(COLUMNS):
                if j == 0 or found[j] != found[j - 1]:  # equal hashes count once
                    columns[nonzeros] = found[j]
                    nonzeros += 1
            labels[rows] = float32(data[begin] - ZERO)
            lines[rows] = state[LINES]
            state[ROWS], state[NONZEROS] = rows + 1, nonzeros
            indptr[rows + 1] = nonzeros
    return DONE

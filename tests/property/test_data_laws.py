"""Laws of rows: shuffling, local places, and parsing of any bytes.

Shuffles lose nothing, local places lead back to the keys, and any bytes are parsed as a slow twin
parses them.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import kernels, text_kernels
from shoal.data.batch import Batch, Localiser, take
from shoal.data.readers import Criteo, Libsvm, nearest
from shoal.data.slots import Slots
from shoal.jit import mix

Row = tuple[float, list[int], list[float], int]  # label, columns, values, line
Wrong = tuple[int, int]  # line, error code

SEEDS = st.integers(-(2**63), 2**64 - 1)

# ------------------------------------------------------------ shuffles


@given(st.integers(1, 3_000), SEEDS)
@settings(max_examples=200, deadline=None)
def test_a_shuffle_is_a_bijection_for_any_length_and_seed(length: int, seed: int) -> None:
    out = np.empty(length, np.int64)
    kernels.permute(0, length, np.uint64(seed % 2**64), out)
    assert sorted(out.tolist()) == list(range(length))


@given(st.integers(1, 2**62), SEEDS, st.lists(st.integers(0, 2**62), min_size=1, max_size=50, unique=True))
@settings(max_examples=100, deadline=None)
def test_a_huge_shuffle_sends_no_two_places_to_one(length: int, seed: int, places: list[int]) -> None:
    inside = {place % length for place in places}
    found = {kernels.permuted(place, length, np.uint64(seed % 2**64)) for place in inside}
    assert len(found) == len(inside)
    assert all(0 <= place < length for place in found)


@given(st.integers(1, 2_000), st.integers(1, 300), SEEDS, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_pass_has_every_row_once_and_every_pass_the_same_contents(
    rows: int, batch: int, seed: int, of_pass: int
) -> None:
    slots = Slots(rows, batch, seed)
    contents = slots.contents(of_pass)
    assert sorted(contents.tolist()) == list(range(slots.per_pass))
    assert [slots.content(of_pass, number) for number in range(slots.per_pass)] == contents.tolist()
    held = np.concatenate([slots.rows(content) for content in contents])
    assert sorted(held.tolist()) == list(range(rows))


# ------------------------------------------------------------ local places


@st.composite
def batches(draw: st.DrawFn) -> tuple[Batch, int]:
    features = draw(st.sampled_from([1, 63, 64, 65, 5_000, 300_000, 2**24 + 1, 2**32 - 1]))
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12))
    seed = draw(st.integers(0, 2**32))
    chance = np.random.default_rng(seed)
    rows = [np.unique(chance.integers(0, features, length)) for length in lengths]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    values = chance.standard_normal(indptr[-1], np.float32) if draw(st.booleans()) else None
    return Batch(indptr, np.concatenate(rows).astype(np.uint32), values, chance.random(len(rows), np.float32)), features


# Kept for all batches, so that anything one batch leaves behind shows in the next.
SCRATCH: dict[int, Localiser] = {}


@given(batches(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_local_places_are_those_of_numpy(given_batch: tuple[Batch, int], bias: bool) -> None:
    batch, features = given_batch
    local = SCRATCH.setdefault(features, Localiser(features)).local(batch, bias)
    keys, places = np.unique(batch.columns, return_inverse=True)
    assert local.keys.dtype == np.uint64
    assert local.keys.tolist() == keys.tolist() + ([features] if bias else [])
    assert local.columns.tolist() == places.tolist()
    assert local.indptr is batch.indptr and local.values is batch.values and local.labels is batch.labels


@given(batches(), st.data())
@settings(max_examples=100, deadline=None)
def test_rows_that_are_taken_are_the_rows_that_are_there(given_batch: tuple[Batch, int], data: st.DataObject) -> None:
    batch, _ = given_batch
    rows = np.array(data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=20)), np.int64)
    taken = take(batch, rows)
    assert as_rows(taken) == [as_rows(batch)[row] for row in rows]


def as_rows(batch: Batch) -> list[tuple[float, list[int], list[float]]]:
    values = np.ones(len(batch.columns), np.float32) if batch.values is None else batch.values
    cuts = list(zip(batch.indptr[:-1].tolist(), batch.indptr[1:].tolist(), strict=True))
    return [
        (float(label), batch.columns[a:b].tolist(), values[a:b].tolist())
        for label, (a, b) in zip(batch.labels, cuts, strict=True)
    ]


# ------------------------------------------------------------ any bytes

NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NO_FINITE = re.compile(rb"[+-]?\.?(nan|inf)", re.IGNORECASE)
FEATURE = re.compile(rb"(-?)(\d+):(.*)", re.DOTALL)


def twin_number(token: bytes, bad: int) -> tuple[int, float]:
    if NO_FINITE.match(token):
        return text_kernels.NOT_FINITE, 0.0
    if not NUMBER.fullmatch(token):
        return bad, 0.0
    rough = float(token)
    if abs(rough) >= 3.4028235677973366e38:
        return text_kernels.NOT_FINITE, 0.0
    if abs(rough) < 1e-50:
        return text_kernels.DONE, 0.0
    exact, start = Fraction(token.decode()), np.float32(rough)
    with np.errstate(all="ignore"):
        near = [np.nextafter(start, np.float32(-np.inf)), start, np.nextafter(start, np.float32(np.inf))]
    finite = [float(one) for one in near if np.isfinite(one)]
    even = {float(one): not int(one.view(np.uint32)) & 1 for one in near}
    return text_kernels.DONE, min(finite, key=lambda one: (abs(Fraction(one) - exact), not even[one]))


def twin_line(line: bytes, limit: int, bits: int | None) -> tuple[int, Row | None]:
    """Parses one line of LIBSVM slowly; returns an error code, or the row if there is one."""
    tokens = [token for token in re.split(rb"[ \t]+", line.removesuffix(b"\r").split(b"#")[0]) if token]
    if not tokens:
        return text_kernels.DONE, None
    wrong, label = twin_number(tokens.pop(0), text_kernels.BAD_LABEL)
    if wrong:
        return wrong, None
    if tokens and tokens[0].startswith(b"qid:") and not re.fullmatch(rb"qid:\d+", tokens.pop(0)):
        return text_kernels.BAD_TOKEN, None
    columns, values, last = [], [], 0
    for token in tokens:
        match = FEATURE.fullmatch(token)
        wrong, value = twin_number(match[3], text_kernels.BAD_TOKEN) if match else (text_kernels.BAD_TOKEN, 0.0)
        if match is None or wrong == text_kernels.BAD_TOKEN:
            return text_kernels.BAD_TOKEN, None
        name = int(match[2])
        if match[1]:
            return text_kernels.ID_NEGATIVE, None
        if name == 0:
            return text_kernels.ID_ZERO, None
        if wrong:
            return wrong, None
        if name > limit:
            return text_kernels.ID_LARGE, None
        if name <= last:
            return (text_kernels.REPEATED if name == last else text_kernels.DISORDER), None
        last = name
        if value:
            columns.append(name)
            values.append(value)
    if bits is None:
        return text_kernels.DONE, (label, [column - 1 for column in columns], values, 0)
    total: dict[int, float] = {}
    for column, value in zip(columns, values, strict=True):
        place = int(mix(np.uint64(column) ^ text_kernels.HASHED)) & ((1 << bits) - 1)
        total[place] = total.get(place, 0.0) + value
    greatest = float(np.finfo(np.float32).max)
    hashed = sorted((k, float(np.float32(min(max(v, -greatest), greatest)))) for k, v in total.items())
    kept = [(k, v) for k, v in hashed if v]
    return text_kernels.DONE, (label, [k for k, _ in kept], [v for _, v in kept], 0)


def twin_click(line: bytes, bits: int) -> tuple[int, Row | None]:
    """Parses one line of a click log slowly."""
    line = line.removesuffix(b"\r")
    if not line:
        return text_kernels.DONE, None
    fields = line.split(b"\t")
    if len(fields) != 40:
        return text_kernels.FIELDS, None
    if fields[0] not in (b"0", b"1"):
        return text_kernels.NOT_ZERO_ONE, None
    found = set()
    for number, field in enumerate(fields[1:], start=1):
        if not field:
            category = 2**64 - 1
        elif number <= 13:
            if not re.fullmatch(rb"-?\d{1,18}", field):
                return text_kernels.NOT_WHOLE, None
            count = int(field)
            category = count % 2**64 if count <= 2 else 2**32 + int(math.log(count) ** 2)
        else:
            if not re.fullmatch(rb"[0-9a-fA-F]{1,16}", field):
                return text_kernels.NOT_HEX, None
            category = int(field, 16)
        salt = mix(np.uint64(number * 0x9E3779B97F4A7C15 % 2**64))
        found.add(int(mix(np.uint64(category) ^ salt)) & ((1 << bits) - 1))
    return text_kernels.DONE, (float(fields[0]), sorted(found), [1.0] * len(found), 0)


def parsed(parser: Libsvm | Criteo, text: bytes) -> tuple[list[Row], list[Wrong]]:
    data: npt.NDArray[np.uint8] = np.frombuffer(text, np.uint8)
    wrong = []
    parser.begin()
    while what := parser.parse(data, len(data)):
        wrong.append((parser.lines, what))
        assert all(parser.explain(what, data)[:1])  # every error has a message
    batch, lines = parser.taken(data)
    assert int(batch.indptr[0]) == 0 and int(batch.indptr[-1]) == len(batch.columns)
    return [(*row, int(line)) for row, line in zip(as_rows(batch), lines, strict=True)], wrong


def twin(text: bytes, line_of: object) -> tuple[list[Row], list[Wrong]]:
    rows, wrong = [], []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        what, row = line_of(line)  # type: ignore[operator]
        if what:
            wrong.append((number, what))
        elif row is not None:
            rows.append((*row[:3], number))
    return rows, wrong


PARSERS = {(limit, bits): Libsvm(limit, bits) for limit, bits in ((None, None), (50, None), (None, 3), (None, 20))}
CLICKS = {bits: Criteo(bits) for bits in (2, 20)}

decimals = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.integers(-(10**30), 10**30).map(str),
    st.from_regex(r"[+-]?[0-9]{0,25}\.?[0-9]{0,25}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        ["1", "0", "-0", "1e-46", "7.006492321624085e-46", "3.4028235e38", "3.5e38", "nan", "inf", "1e99999"]
    ),
)
blanks = st.sampled_from([" ", "  ", "\t", " \t "])


@st.composite
def libsvm_lines(draw: st.DrawFn) -> bytes:
    ids = sorted(set(draw(st.lists(st.integers(1, draw(st.sampled_from([9, 60, 2**33]))), max_size=8))))
    parts = [draw(decimals), *(["qid:7"] if draw(st.booleans()) else [])]
    parts += [f"{name}:{draw(decimals)}" for name in ids]
    text = draw(blanks).join(parts) + draw(st.sampled_from(["", " ", "\r", " # 1:1", "#x\r", "\t"]))
    return text.encode()


@st.composite
def click_lines(draw: st.DrawFn) -> bytes:
    counts = [draw(st.one_of(st.just(""), st.integers(-3, 10**6).map(str))) for _ in range(13)]
    names = [draw(st.one_of(st.just(""), st.from_regex("[0-9a-f]{8}", fullmatch=True))) for _ in range(3)]
    return "\t".join(
        [draw(st.sampled_from("01")), *counts, *(draw(st.sampled_from(names)) for _ in range(26))]
    ).encode()


@st.composite
def texts(draw: st.DrawFn, lines: st.SearchStrategy[bytes], letters: bytes) -> bytes:
    """Correct lines, lines with some bytes changed, or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300)) + b"\n"
    text = bytearray(b"\n".join(draw(st.lists(lines, min_size=1, max_size=5))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(text)))
        stop = place + draw(st.integers(0, 2))
        text[place:stop] = bytes(draw(st.lists(st.sampled_from(letters), max_size=3)))
    return bytes(text) + b"\n"


@given(texts(libsvm_lines(), b"\n\r\t #:.+-eEnaNifq0159\x00\xff"), st.sampled_from(sorted(PARSERS, key=str)))
@settings(max_examples=400, deadline=None)
def test_libsvm_text_is_parsed_as_the_slow_twin_parses_it(text: bytes, which: tuple[int | None, int | None]) -> None:
    features, bits = which
    limit = int(text_kernels.MOST) if bits is not None else features or 2**32 - 1
    assert parsed(PARSERS[which], text) == twin(text, lambda line: twin_line(line, limit, bits))


@pytest.mark.slow
@given(texts(click_lines(), b"\n\r\t -0129afgF\x00\xff"), st.sampled_from(sorted(CLICKS)))
@settings(max_examples=300, deadline=None)
def test_click_logs_are_parsed_as_the_slow_twin_parses_them(text: bytes, bits: int) -> None:
    assert parsed(CLICKS[bits], text) == twin(text, lambda line: twin_click(line, bits))


@given(st.floats(2**-149, 2.0**127, width=32), st.integers(-3, 3), st.integers(0, 60), st.booleans())
@settings(max_examples=400, deadline=None)
def test_a_number_beside_the_middle_of_two_floats_is_rounded_by_all_of_its_digits(
    value: float, nudge: int, zeros: int, negative: bool
) -> None:
    one = np.float32(value)
    above = (one.view(np.uint32) + np.uint32(1)).view(np.float32)
    middle = (Fraction(float(one)) + Fraction(float(above))) / 2
    # The middle of two floats has finitely many digits: write all of them, then change the last
    # ones.
    digits = 0
    while (middle * 10**digits).denominator > 1:
        digits += 1
    whole = str(int(middle * 10**digits)) + "0" * zeros
    text = f"{int(whole) + nudge}e-{digits + zeros}"
    text = "-" + text if negative else text
    _, expected = twin_number(text.encode(), text_kernels.BAD_LABEL)
    rows, wrong = parsed(PARSERS[None, None], f"{text} 7:{text}\n".encode())
    assert not wrong
    assert rows == [(expected, [6] if expected else [], [expected] if expected else [], 1)]
    assert float(nearest(text)) == expected


@pytest.mark.parametrize("unit", [b"1\n", b"1 1:1\n", b"1 1:5 2:5 3:5 4:5 5:5 6:5 7:5 8:5 9:5\n", b"\n"])
def test_there_is_room_for_the_densest_text(unit: bytes) -> None:
    from shoal.data.readers import ROOM

    text = unit * (ROOM // len(unit))
    rows = text.count(b"1 1") + (text.count(b"1\n") if unit == b"1\n" else 0)
    parser = Libsvm(None, None)
    parser.begin()
    assert parser.parse(np.frombuffer(text, np.uint8), len(text)) == text_kernels.DONE
    batch, _ = parser.taken(np.frombuffer(text, np.uint8))
    assert (len(batch), batch.nonzeros) == (rows, text.count(b":"))


def test_there_is_room_for_the_densest_click_log() -> None:
    from shoal.data.readers import ROOM

    text = (b"1" + b"\t" * 39 + b"\n") * (ROOM // 41)
    parser = Criteo(20)
    parser.begin()
    assert parser.parse(np.frombuffer(text, np.uint8), len(text)) == text_kernels.DONE
    batch, _ = parser.taken(np.frombuffer(text, np.uint8))
    assert (len(batch), batch.nonzeros) == (ROOM // 41, ROOM // 41 * text_kernels.COLUMNS)

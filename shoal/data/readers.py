"""Reads text into batches; a bad line is reported, never guessed.

    LIBSVM     label [qid:7] id:value ...   # comment    ids from 1, ascending; zeros are dropped
    Criteo     label, 13 counts, 26 hexadecimal categories, tab-separated; one hashed feature each

With ``hash_bits`` LIBSVM ids are hashed too, and values with equal hashes are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from shoal.data.batch import Batch, Ids, hash_ids
from shoal.data.text import Bytes, TextChunks
from shoal.errors import Invalid
from shoal.limits import BAD_LINES_SHOWN, CHUNK, FEATURES, HASH_BITS, LINE

Format = Literal["libsvm", "criteo"]

SHOWN = 80  # characters of a bad line in messages
TABS = 20  # a line with more tabs is not LIBSVM
# neither blank nor a comment
ROW = re.compile(rb"^[^\S\n]*+[^\s#][^\n]*", re.MULTILINE)


class RowReader:
    """The rows of a file: ``for batch, lines in reader``; ``lines`` are their line numbers."""

    def __init__(
        self,
        path: Path,
        format: Format,
        *,
        features: int | None = None,
        hash_bits: int | None = None,
        bad_lines: int = 0,
        rows: int | None = None,
    ) -> None:
        if format == "criteo" and features is not None:
            raise Invalid("features of click logs are hashes: say hash_bits instead of features")
        self.path, self.format, self.bad_lines, self.most = path, format, bad_lines, rows
        self.hash_bits = HASH_BITS if format == "criteo" and hash_bits is None else hash_bits
        self.limit = features
        self.rows = self.skipped = 0
        self.examples: list[str] = []  # the first few skipped lines
        self._seen = 0  # the largest id

    @property
    def features(self) -> int:
        """The number of features: as set, or by the hash or the largest id so far."""
        return self.limit or (1 << self.hash_bits if self.hash_bits is not None else self._seen)

    def notes(self) -> list[str]:
        if not self.skipped:
            return []
        more = f"; and {self.skipped - len(self.examples):,} more" if self.skipped > len(self.examples) else ""
        return [f"{self.skipped:,} bad lines skipped: " + "; ".join(self.examples) + more]

    def __iter__(self) -> Iterator[tuple[Batch, Ids]]:
        parse = Libsvm(self.limit, self.hash_bits) if self.format == "libsvm" else Criteo(self.hash_bits or HASH_BITS)
        lines, before = TextChunks(self.path), 0
        for stop in lines:
            parse.begin()
            while wrong := parse.parse(lines.data, stop):
                if self.most is not None and self.rows + parse.rows >= self.most:
                    break  # past the requested rows
                self._bad(parse, wrong, lines.data, before)
            batch, numbers = parse.taken(lines.data)
            numbers += before
            before += parse.lines
            if self.most is not None and self.rows + len(batch) >= self.most:
                yield from self._give(*_first(batch, numbers, self.most - self.rows))
                return
            yield from self._give(batch, numbers)
        if not self.rows:
            raise Invalid(f"{self.path} has no row in its {before:,} lines: rows are needed, one a line")

    def _give(self, batch: Batch, numbers: Ids) -> Iterator[tuple[Batch, Ids]]:
        if len(batch):
            self.rows += len(batch)
            self._seen = max(self._seen, int(batch.columns.max(initial=0)) + 1)
            yield batch, numbers

    def _bad(self, parse: Libsvm | Criteo, wrong: int, data: Bytes, before: int) -> None:
        what, move = parse.explain(wrong, data)
        said = f"line {before + parse.lines}: {what}: {shown(data, parse.line_start)}"
        self.skipped += 1
        if len(self.examples) < BAD_LINES_SHOWN:
            self.examples.append(said)
        if self.skipped > self.bad_lines:
            allowed = f" ({self.bad_lines:,} bad lines were allowed)" if self.bad_lines else ""
            raise Invalid(
                f"{self.path}, {said}{allowed}; {move or 'fix it, or skip such lines (--set data.bad_lines=N)'}"
            )


def read(path: Path, format: Format, hash_bits: int | None = None) -> Batch:
    batches = [batch for batch, _ in RowReader(path, format, hash_bits=hash_bits)]
    sizes = np.cumsum([0] + [len(batch.columns) for batch in batches])
    indptr = [np.zeros(1, np.int64)] + [batch.indptr[1:] + size for batch, size in zip(batches, sizes, strict=False)]
    values = None
    if any(batch.values is not None for batch in batches):
        values = np.concatenate(
            [np.ones(len(one.columns), np.float32) if one.values is None else one.values for one in batches]
        )
    return Batch(
        np.concatenate(indptr),
        np.concatenate([batch.columns for batch in batches]),
        values,
        np.concatenate([batch.labels for batch in batches]),
    )


def guess(path: Path) -> Format:
    lines = TextChunks(path)
    for stop in lines:
        if found := ROW.search(lines.data[:stop].data):
            return "criteo" if found[0].count(b"\t") > TABS else "libsvm"
    raise Invalid(f"{path} has no row: rows are needed, one a line")


def shown(data: Bytes, start: int) -> str:
    line = bytes(data[start : start + SHOWN]).partition(b"\n")[0]
    return line.decode("latin-1").encode("unicode_escape").decode("ascii")


def _first(batch: Batch, numbers: Ids, count: int) -> tuple[Batch, Ids]:
    end = int(batch.indptr[count])
    values = None if batch.values is None else batch.values[:end]
    return Batch(batch.indptr[: count + 1], batch.columns[:end], values, batch.labels[:count]), numbers[:count]


ROOM = LINE + CHUNK + 2  # bytes parsed at once, at most
TOKEN = 40  # bytes of a bad token in messages
GREATEST_BITS = 0x7F7FFFFF  # of the largest float32
_NO_CSV = "values between commas (CSV) are not read: write lines of LIBSVM (label id:value ...), of Criteo (tabs), or arrays (.npz)"
KEPT_DIGITS = 200  # the midpoint of two float32 has fewer digits


class _Parsing:
    """The position of the kernels in the current lines.

    Call ``begin`` with new lines, then ``parse`` until it returns 0; any other result is the error
    code of the line it stopped at. Then ``taken`` has the rows found since, and their line numbers
    from 1.
    """

    def __init__(self) -> None:
        from shoal.data import text_kernels

        self._state = np.zeros(text_kernels.STATE, np.int64)
        self._kernels = text_kernels

    @property
    def rows(self) -> int:
        return int(self._state[self._kernels.ROWS])

    @property
    def lines(self) -> int:
        return int(self._state[self._kernels.LINES])

    @property
    def line_start(self) -> int:
        return int(self._state[self._kernels.BEGIN])

    def begin(self) -> None:
        self._state[:] = 0


class Libsvm(_Parsing):
    """Lines of ``label id:value ...``. Without hashing, ids are 1 to ``features``."""

    def __init__(self, features: int | None, hash_bits: int | None) -> None:
        super().__init__()
        self._bits = hash_bits
        self._limit = int(self._kernels.MOST) if hash_bits is not None else min(features or FEATURES, FEATURES)
        # Untouched memory is not allocated: a chunk of usual text uses a third of this.
        self._ids, self._values = np.empty(ROOM // 4 + 1, np.uint64), np.empty(ROOM // 4 + 1, np.float32)
        self._labels, self._indptr = np.empty(ROOM // 2 + 1, np.float32), np.zeros(ROOM // 2 + 2, np.int64)
        self._lines, self._redo = np.empty(ROOM // 2 + 1, np.int64), np.empty((ROOM // 2 + 1, 3), np.int64)

    def parse(self, data: Bytes, stop: int) -> int:
        return int(
            self._kernels.libsvm(
                data, stop, self._limit, LINE, self._ids, self._values, self._labels, self._indptr, self._lines,
                self._redo, self._state,
            )
        )  # fmt: skip

    def taken(self, data: Bytes) -> tuple[Batch, Ids]:
        state = self._state
        rows, nonzeros = int(state[self._kernels.ROWS]), int(state[self._kernels.NONZEROS])
        if state[self._kernels.REDOS]:
            nonzeros = self._redone(data, rows, nonzeros)
        indptr, labels = self._indptr[: rows + 1].copy(), self._labels[:rows].copy()
        lines = self._lines[:rows].copy()
        ids, values = self._ids[:nonzeros], self._values[:nonzeros]
        if self._bits is not None:
            return hash_ids(indptr, ids, values, self._bits, labels), lines
        columns = (ids - np.uint64(1)).astype(np.uint32)
        return Batch(indptr, columns, None if (values == 1).all() else values.copy(), labels), lines

    def explain(self, wrong: int, data: Bytes) -> tuple[str, str]:
        """The error in words, and the next move if it is not the usual one."""
        k = self._kernels
        start = int(self._state[k.FROM])
        token = (bytes(data[start : start + TOKEN]).split(b"#")[0].split() or [b""])[0].decode("latin-1")
        hashing = f"ids are 1 to {self._limit:,}; hash them with hash_bits" if self._bits is None else ""
        return {
            k.TOO_LONG: (f"longer than {LINE:,} bytes", ""),
            k.BAD_LABEL: (f"label {token!a} is no number", _NO_CSV if "," in token else ""),
            k.BAD_TOKEN: (f"{token!a} is no id:value", ""),
            k.ID_ZERO: (
                "id 0, and ids start at 1",
                "add 1 to all ids of the file, or skip such lines (--set data.bad_lines=N)",
            ),
            k.ID_NEGATIVE: (f"negative id in {token!a}", ""),
            k.ID_LARGE: (f"id of {token!a} is above {self._limit:,}", hashing),
            k.REPEATED: (f"the id of {token!a} is given twice", ""),
            k.DISORDER: (f"the id of {token!a} is smaller than the one before", ""),
            k.NOT_FINITE: (f"{token!a} is not finite, or too large", ""),
        }[wrong]

    def _redone(self, data: Bytes, rows: int, nonzeros: int) -> int:
        """Reread numbers near a midpoint by all their digits; returns the number of nonzeros."""
        for place, start, stop in self._redo[: self._state[self._kernels.REDOS]].tolist():
            value = nearest(bytes(data[start:stop]).decode("ascii"))
            if place >= 0:
                self._values[place] = value
            else:
                self._labels[-1 - place] = value
        zero = self._values[:nonzeros] == 0
        if zero.any():  # rounds to 0
            keep = np.flatnonzero(~zero)
            self._indptr[: rows + 1] -= np.concatenate(([0], np.cumsum(zero)))[self._indptr[: rows + 1]]
            self._ids[: len(keep)], self._values[: len(keep)] = self._ids[keep], self._values[keep]
            nonzeros = len(keep)
        return nonzeros


class Criteo(_Parsing):
    """Click logs: 40 fields separated by tabs, some of which may be empty."""

    def __init__(self, hash_bits: int) -> None:
        super().__init__()
        self._mask = np.uint64((1 << hash_bits) - 1)
        rows = ROOM // 40 + 1
        self._columns = np.empty(rows * self._kernels.COLUMNS, np.uint32)
        self._labels, self._lines = np.empty(rows, np.float32), np.empty(rows, np.int64)
        self._indptr = np.zeros(rows + 1, np.int64)

    def parse(self, data: Bytes, stop: int) -> int:
        return int(
            self._kernels.criteo(
                data, stop, self._mask, LINE, self._columns, self._labels, self._indptr, self._lines,
                self._state,
            )
        )  # fmt: skip

    def taken(self, data: Bytes) -> tuple[Batch, Ids]:
        rows, nonzeros = int(self._state[self._kernels.ROWS]), int(self._state[self._kernels.NONZEROS])
        indptr, columns = self._indptr[: rows + 1].copy(), self._columns[:nonzeros].copy()
        return Batch(indptr, columns, None, self._labels[:rows].copy()), self._lines[:rows].copy()

    def explain(self, wrong: int, data: Bytes) -> tuple[str, str]:
        k = self._kernels
        start, field = int(self._state[k.FROM]), int(self._state[k.FIELD])
        token = bytes(data[start : start + TOKEN]).split(b"\t")[0].split(b"\n")[0].decode("latin-1")
        name = f"I{field}" if field <= self._kernels.COUNTS else f"C{field - self._kernels.COUNTS}"
        return {
            k.TOO_LONG: (f"longer than {LINE:,} bytes", ""),
            k.FIELDS: ("not 40 fields with tabs between", ""),
            k.NOT_ZERO_ONE: (f"label {token!a} is neither 0 nor 1", ""),
            k.NOT_WHOLE: (f"{name} is {token!a}, which is no whole number", ""),
            k.NOT_HEX: (f"{name} is {token!a}, which is not hexadecimal", ""),
        }[wrong]


def nearest(text: str) -> np.float32:
    """The float32 nearest to a decimal number by all its digits; ties go to the even one."""
    mantissa, _, exponent = text.lower().partition("e")
    before, _, behind = mantissa.lstrip("+-").partition(".")
    digits = (before + behind).lstrip("0")
    sign, size = ("-", exponent[1:]) if exponent.startswith("-") else ("", exponent.removeprefix("+"))
    power = int(sign + (size.lstrip("0") or "0")) - len(behind) + max(len(digits) - KEPT_DIGITS, 0)
    more = digits[KEPT_DIGITS:].strip("0") != ""
    exact = (Fraction(int(digits[:KEPT_DIGITS] or 0)) + Fraction(more, 10)) * Fraction(10) ** power
    bits = int(np.float32(float(exact)).view(np.uint32))  # off by one at most
    near = np.arange(max(bits - 1, 0), min(bits + 1, GREATEST_BITS) + 1, dtype=np.uint32)
    best = min(near, key=lambda one: (abs(Fraction(float(one.view(np.float32))) - exact), int(one) & 1))
    value: np.float32 = best.view(np.float32)
    return -value if mantissa.startswith("-") else value

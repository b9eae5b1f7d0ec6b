"""Reads text into batches; a bad line is reported, never guessed.

    LIBSVM     label [qid:7] id:value ...   # comment    ids from 1, ascending; zeros are dropped
    Criteo     label, 13 counts, 26 hexadecimal categories, tab-separated; one hashed feature each

With ``hash_bits`` LIBSVM ids are hashed too, and values with equal hashes are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from shoal.data.batch import Batch, Ids
from shoal.data.formats import Criteo, Libsvm
from shoal.data.text import Bytes, TextChunks
from shoal.errors import Invalid
from shoal.limits import BAD_LINES_SHOWN, HASH_BITS

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
                f"{self.path}, {said}{allowed}; {move or 'mend it, or let it be skipped (--set data.bad_lines=N)'}"
            )


def read(path: Path, format: Format, hash_bits: int | None = None) -> Batch:
    """Read all rows of a file into memory."""
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
    """The format, from the first line with content."""
    lines = TextChunks(path)
    for stop in lines:
        if found := ROW.search(lines.data[:stop].data):
            return "criteo" if found[0].count(b"\t") > TABS else "libsvm"
    raise Invalid(f"{path} has no row: rows are needed, one a line")


def shown(data: Bytes, start: int) -> str:
    """The start of a line in printable characters."""
    line = bytes(data[start : start + SHOWN]).partition(b"\n")[0]
    return line.decode("latin-1").encode("unicode_escape").decode("ascii")


def _first(batch: Batch, numbers: Ids, count: int) -> tuple[Batch, Ids]:
    end = int(batch.indptr[count])
    values = None if batch.values is None else batch.values[:end]
    return Batch(batch.indptr[: count + 1], batch.columns[:end], values, batch.labels[:count]), numbers[:count]

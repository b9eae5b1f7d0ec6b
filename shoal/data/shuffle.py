"""Shuffles the rows of a file while packing, so that adjacent rows are a fair minibatch.

A file may be sorted (by label, by day) and larger than memory. So rows are assigned at random to a
few buckets, each a packed set on disk, and each bucket is then read in random order. All access is
sequential but for the reads inside one bucket. The order depends only on the row numbers: the same
file gives the same set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.data.batch import Batch, Ids, take
from shoal.data.csr_file import CsrFile, CsrWriter
from shoal.limits import MB

BUCKET = 256 * MB  # bytes of the file, compressed or not: random reads should stay in memory
BUCKETS = 64
AT_ONCE = 16_384  # rows copied at once
DEAL, ORDER = np.uint64(0x6465616C), np.uint64(0x6F726472)


class Shuffle:
    """Takes batches like a ``CsrWriter``; ``into`` writes them shuffled. A context manager."""

    def __init__(self, folder: Path, size: int) -> None:
        count = max(1, min(BUCKETS, -(-size // BUCKET)))
        self.rows = 0
        self._writers = [CsrWriter(folder / f"bucket-{number}") for number in range(count)]

    def append(self, batch: Batch, lines: Ids) -> None:
        from shoal.data import kernels

        if len(self._writers) == 1:
            self._writers[0].append(batch, lines)
        else:
            draws = np.empty(len(batch), np.float64)
            kernels.draws(self.rows, DEAL, draws)
            bucket = (draws * len(self._writers)).astype(np.int64)
            for number, writer in enumerate(self._writers):
                rows = np.flatnonzero(bucket == number)
                writer.append(take(batch, rows), lines[rows])
        self.rows += len(batch)

    def into(self, final: CsrWriter) -> None:
        labels, more = _merged(self._writers)
        for number, writer in enumerate(self._writers):
            _copy(writer.finish(), number, final)
        final.know_labels(labels, more)

    def __enter__(self) -> Shuffle:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()


def _copy(bucket: CsrFile, number: int, final: CsrWriter) -> None:
    from shoal.data import kernels

    for first in range(0, bucket.rows, AT_ONCE):
        order = np.empty(min(AT_ONCE, bucket.rows - first), np.int64)
        kernels.permute(first, bucket.rows, ORDER + np.uint64(number), order)
        final.append(bucket.take(order))


def _merged(writers: list[CsrWriter]) -> tuple[dict[float, tuple[int, int]], bool]:
    """All labels with their row counts and first lines."""
    found: dict[float, tuple[int, int]] = {}
    for writer in writers:
        for value, (rows, line) in writer.labels.items():
            before, first = found.get(value, (0, line))
            found[value] = (before + rows, min(first, line))
    return found, any(writer.more_labels for writer in writers)

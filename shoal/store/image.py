"""A segment at one moment: what is copied, moved, written to disk and read back.

Rows are weights and optimizer state side by side, without keys: [rows, width * (1 + state)]. A
dense segment has a row for every key of its range, in order; for a sparse one ``names`` are the
sorted keys. ``books`` are its version, ledger and clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.keys import KeyRange, Keys, Values
from shoal.wire.messages import SegmentBooks


@dataclass(slots=True, eq=False)
class SegmentImage:
    segment: int
    keys: KeyRange
    books: SegmentBooks
    rows: Values
    names: Keys | None = None  # sparse: the key of each row

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + (0 if self.names is None else self.names.nbytes)

"""The rows of a table that lie in a range, handed out in pieces: views of the slab, which nobody can write to.

They are what they are at the moment: whoever looks at them has the table to itself, as a push or a pull has.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shoal.keys import KeyRange, Keys, Values
from shoal.store.hashed import unmixed
from shoal.store.table.slab import DenseRows, SparseRows
from shoal.store.table.table import ServerTable


def pieces(
    table: ServerTable, keys: KeyRange, elements: int, named: bool = True
) -> Iterator[tuple[Keys | None, Values]]:
    """At most so many elements each, and never an empty one. Without ``named``, no keys.

    The rows of a dense table come in key order, those of a sparse one in the order of their birth.
    """
    part = table._part
    most = max(1, elements // table.width)
    found = (
        _dense(table, part, keys, most, named)
        if isinstance(part, DenseRows)
        else _sparse(table, part, keys, most, named)
    )
    for names, weights in found:
        for view in (names, weights):
            if view is not None:
                view.flags.writeable = False
        yield names, weights


def _dense(
    table: ServerTable, part: DenseRows, keys: KeyRange, most: int, named: bool
) -> Iterator[tuple[Keys | None, Values]]:
    for segment in table.segments:
        start, stop = max(segment.start, keys.start), min(segment.stop, keys.stop)
        if start >= stop:
            continue
        for at in range(start, stop, most):
            upto = min(at + most, stop)
            names = np.arange(at, upto, dtype=np.uint64) if named else None
            yield names, part.slab[at:upto, : table.width]  # the row of a key is its number


def _sparse(
    table: ServerTable, part: SparseRows, keys: KeyRange, most: int, named: bool
) -> Iterator[tuple[Keys | None, Values]]:
    word, all_of_them = part.kernels.KEY_WORDS, keys == KeyRange(0, table.spec.span)
    for at in range(0, part.rows, most):
        rows = slice(at, min(at + most, part.rows))
        names, weights = part.slots[rows, 0], part.slab[rows, word : word + table.width]
        if not all_of_them or part.clearing.ranges:
            inside = (names >= np.uint64(keys.start)) & (names < np.uint64(keys.stop)) & ~part.clearing.hidden(names)
            if not inside.any():
                continue
            names, weights = names[inside], weights[inside]
        yield (unmixed(names) if table.spec.hashed else names) if named else None, weights

"""The rows of one table on one server, with checked pushes and pulls.

A push is taken whole or not at all: ``check`` says beforehand why it cannot be, memory is
allocated before anything changes, and the kernels that follow cannot fail. A pull never creates a
row. Nothing here locks: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shoal import tables
from shoal.errors import BadKeys, BadValues
from shoal.keys import KeyRange, Keys, Values, unmixed
from shoal.store.table.slab import DenseRows, Rows, SparseRows
from shoal.wire.messages import SegmentBooks


class CachedRows(msgspec.Struct, eq=False):
    keys: Keys  # keeps its id unique
    checked: bool = False
    rows: Rows | None = None
    layout: int = -1  # by which they were found
    uses: int = 0
    search_at: int = 2  # the use at which they are searched for


class RowCache:
    """The rows of key lists that come again: a list is known by being the very same array.

    Its keys are checked once. Sparse rows are searched for at the second use, and again when rows
    have moved (``layout``); if some keys have no row, again after twice as many uses.
    """

    def __init__(self, storage: DenseRows | SparseRows) -> None:
        self.storage = storage
        self._lists: dict[int, CachedRows] = {}  # by id of the array

    def __len__(self) -> int:
        return len(self._lists)

    def register(self, keys: Keys) -> bool:
        """This very array will come again. True if that is new."""
        if id(keys) in self._lists:
            return False
        self._lists[id(keys)] = CachedRows(keys)
        return True

    def forget(self, keys: Keys) -> None:
        self._lists.pop(id(keys), None)

    def find(self, keys: Keys) -> CachedRows | None:
        return self._lists.get(id(keys))

    def rows(self, keys: Keys) -> Rows | None:
        """The rows of these keys, if they are known or can be by now."""
        place = self._lists.get(id(keys))
        if place is None or not place.checked or isinstance(self.storage, DenseRows):
            return None
        place.uses += 1
        if place.rows is not None and place.layout == self.storage.layout:
            return place.rows
        if place.uses < place.search_at:
            return None
        place.rows, place.layout = self.storage.find(place.keys), self.storage.layout
        if place.rows is None:
            place.search_at = 2 * place.uses
        return place.rows


T = TypeVar("T", bound=np.generic)


class SegmentImage(msgspec.Struct, eq=False):
    """A segment at one moment: what is copied, moved, written to disk and read back.

    Rows are weights and optimizer state side by side, without keys: [rows, width * (1 + state)]. A
    dense segment has a row for every key of its range, in order.
    """

    segment: int
    keys: KeyRange
    books: SegmentBooks  # its version, ledger and clocks
    rows: Values
    names: Keys | None = None  # sparse: the sorted keys of the rows

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + (0 if self.names is None else self.names.nbytes)


RowStorage = DenseRows | SparseRows  # where rows lie; it outlives a set of segments


def storage_for(spec: tables.Table, segments: Sequence[KeyRange] = (), beside: RowStorage | None = None) -> RowStorage:
    """Room for rows of these segments, ``beside`` what else the server has of the table."""
    if isinstance(spec, tables.Dense):
        return DenseRows(spec, tuple(segments), beside if isinstance(beside, DenseRows) else None)
    return SparseRows(spec, tuple(segments))


class ServerTable:
    """What one server holds of one table: the rows of its segments."""

    def __init__(self, spec: tables.Table, segments: Sequence[KeyRange], storage: RowStorage | None = None) -> None:
        """Take over ``storage``, if given: rows of other segments go, new ones are to be placed."""
        self.spec, self.segments = tables.checked(spec), _checked(spec, segments)
        self.width, self.push_width = spec.width, spec.push_width
        if storage is None:
            storage = storage_for(spec, self.segments)
        else:
            storage.set_segments(self.segments)
        self.storage = storage
        self.row_cache = RowCache(self.storage)  # rows of key lists that come again

    @property
    def rows(self) -> int:
        return self.storage.rows

    @property
    def memory(self) -> int:
        """Bytes in use, without pages of the slab that were never touched."""
        return self.storage.memory

    @property
    def layout(self) -> int:
        """Raised when rows move: cached positions are void."""
        return self.storage.layout

    def cost(self, keys: Keys | KeyRange) -> int:
        """Elements that a push or pull of these keys touches, at most."""
        if not isinstance(keys, KeyRange):
            return len(keys) * self.width
        low, high = self.storage.interval(keys)
        return (high - low) * self.width

    def keys_held(self, keys: KeyRange) -> Keys:
        """The keys of a range that lie in segments held here."""
        parts = [(max(s.start, keys.start), min(s.stop, keys.stop)) for s in self.segments]
        lists = [np.arange(low, high, dtype=np.uint64) for low, high in parts if low < high]
        return np.concatenate(lists) if lists else np.empty(0, np.uint64)

    def check(self, keys: Keys | KeyRange, values: Values) -> str | None:
        """Why this push cannot be taken, or None; nothing is changed."""
        return self.check_keys(keys) or self.check_values(keys, values)

    def check_keys(self, keys: Keys | KeyRange) -> str | None:
        """Why these keys cannot be used, or None. A range means the part held here."""
        if isinstance(keys, KeyRange):
            return None
        if keys.dtype != np.uint64 or keys.ndim != 1:
            return f"keys are {keys.dtype} of shape {keys.shape}: a list of uint64 is needed"
        cached = self.row_cache.find(keys)
        if cached is not None and cached.checked:
            return None
        aligned = _aligned(keys)
        wrong = self._wrong(aligned, *self.storage.kernels.check_keys(aligned, self.storage.starts, self.storage.stops))
        if wrong is None and cached is not None:
            cached.checked = True
        return wrong

    def check_values(self, keys: Keys | KeyRange, values: Values) -> str | None:
        """Why these values cannot be pushed under valid keys, or None."""
        if isinstance(keys, KeyRange) and isinstance(self.storage, SparseRows):
            return "a range was pushed to a sparse table, which has no row for every key in it: list the keys"
        if (reason := self._misshapen(keys, values)) is not None:
            return reason
        bad = self.storage.kernels.first_not_finite(_aligned(values).reshape(-1).view(np.uint32))
        return None if bad < 0 else f"values of row {bad // self.push_width} are not finite (NaN or infinite)"

    def push(self, keys: Keys | KeyRange, values: Values) -> None:
        """Run the update on every row, creating new ones. The caller has called ``check``."""
        # Check again what could write outside the slab.
        if isinstance(keys, KeyRange) and isinstance(self.storage, SparseRows):
            raise BadKeys("a range cannot be pushed to a sparse table: list the keys")
        if (reason := self._misshapen(keys, values)) is not None:
            raise BadValues(reason)
        gradients = _aligned(values).reshape(-1, self.push_width)
        if isinstance(keys, KeyRange):
            self.storage.push_range(keys, gradients)
        elif (rows := self.row_cache.rows(keys)) is not None:
            storage = self.storage
            storage.updates.push_rows(storage.slab, storage.first_weight, rows, gradients, storage.settings)
        elif (wrong := self.storage.push(_aligned(keys), gradients)) is not None:
            raise BadKeys(self._wrong(keys, *wrong))

    def pull(self, keys: Keys | KeyRange) -> Values:
        """The weights of these keys, in a new array; of a range, the part held here."""
        if isinstance(keys, KeyRange):
            return self.storage.pull_range(keys)
        out = np.empty((len(keys), self.width), np.float32)
        if (rows := self.row_cache.rows(keys)) is not None:
            self.storage.kernels.gather_rows(self.storage.slab, rows, self.storage.first_weight, out)
        elif (wrong := self.storage.pull(_aligned(keys), out)) is not None:
            raise BadKeys(self._wrong(keys, *wrong))
        return out

    def pull_live(self, keys: KeyRange, most_rows: int) -> tuple[Keys, Values, int | None]:
        """Live keys of a range in order, at most so many, their weights, and the first left out."""
        if isinstance(self.storage, DenseRows):
            raise BadKeys("all rows of a dense table are alive: pull the range")
        return self.storage.pull_live(keys, max(1, most_rows))

    def evict(self, segments: npt.NDArray[np.bool_]) -> int:
        assert isinstance(self.storage, SparseRows)
        return self.storage.evict(segments)

    def image(self, segment: int, copy: bool = True) -> tuple[Values, Keys | None]:
        """The rows of the n-th segment, weights and state; and their keys, unless all are there."""
        return self.storage.image(self.segments[segment], copy)

    def load(self, segment: int, rows: Values, names: Keys | None) -> None:
        """Take such rows into a segment that has none."""
        self.storage.place(self.segments[segment], 0, rows, names)

    def _misshapen(self, keys: Keys | KeyRange, values: Values) -> str | None:
        low, high = self.storage.interval(keys) if isinstance(keys, KeyRange) else (0, len(keys))
        rows, width = high - low, self.push_width
        if values.dtype != np.float32:
            return f"values are {values.dtype}: float32 is needed"
        if values.size != rows * width or (values.ndim != 1 and values.shape != (rows, width)):
            return f"values have shape {values.shape}: {rows} rows of width {width} are needed"
        return None

    def _wrong(self, keys: Keys, code: int, position: int) -> str | None:
        match code:
            case self.storage.kernels.FINE:
                return None
            case self.storage.kernels.DISORDER:
                return f"key {keys[position]} follows {keys[position - 1]}: keys are sorted, each once"
        if keys[position] >= self.spec.span:
            return f"key {keys[position]} is past the limit: keys of this table are below {self.spec.span}"
        return f"key {keys[position]} is not held here: refresh the placement and send it to its server"


def _checked(spec: tables.Table, segments: Sequence[KeyRange]) -> tuple[KeyRange, ...]:
    for before, after in pairwise(segments):
        if after.start < before.stop:
            raise BadKeys(f"segments {before} and {after}: they are sorted and have no key in common")
    if segments and segments[-1].stop > spec.span:
        raise BadKeys(f"segment {segments[-1]} is past the limit: keys of this table are below {spec.span}")
    return tuple(segments)


def _aligned(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """The array as kernels take it: what came off the wire may be unaligned."""
    flags = array.flags
    return array if flags.aligned and flags.c_contiguous else np.array(array, order="C")


def row_views(
    table: ServerTable, keys: KeyRange, elements: int, named: bool = True
) -> Iterator[tuple[Keys | None, Values]]:
    """The rows in a key range, in pieces of at most so many elements: read-only views.

    Valid while the caller has the table to itself. Dense rows come in key order, sparse ones in
    the order of their creation. Without ``named``, keys are None.
    """
    storage = table.storage
    how = (keys, max(1, elements // table.width), named)
    pieces = _dense(table, storage, *how) if isinstance(storage, DenseRows) else _sparse(table, storage, *how)
    for names, weights in pieces:
        for view in (names, weights):
            if view is not None:
                view.flags.writeable = False
        yield names, weights


def _dense(
    table: ServerTable, storage: DenseRows, keys: KeyRange, most: int, named: bool
) -> Iterator[tuple[Keys | None, Values]]:
    for segment in table.segments:
        start, stop = max(segment.start, keys.start), min(segment.stop, keys.stop)
        if start >= stop:
            continue
        for at in range(start, stop, most):
            upto = min(at + most, stop)
            names = np.arange(at, upto, dtype=np.uint64) if named else None
            yield names, storage.slab[at:upto, : table.width]  # the row of a key is its number


def _sparse(
    table: ServerTable, storage: SparseRows, keys: KeyRange, most: int, named: bool
) -> Iterator[tuple[Keys | None, Values]]:
    word, all_of_them = storage.kernels.KEY_WORDS, keys == KeyRange(0, table.spec.span)
    for at in range(0, storage.rows, most):
        rows = slice(at, min(at + most, storage.rows))
        names, weights = storage.slots[rows, 0], storage.slab[rows, word : word + table.width]
        if not all_of_them or storage.compaction.ranges:
            inside = (names >= np.uint64(keys.start)) & (names < np.uint64(keys.stop))
            inside &= ~storage.compaction.hidden(names)
            if not inside.any():
                continue
            names, weights = names[inside], weights[inside]
        yield (unmixed(names) if table.spec.hashed else names) if named else None, weights

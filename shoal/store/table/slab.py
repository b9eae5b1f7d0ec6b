"""How rows lie in memory: one slab, and for a sparse table one index from key to row.

    dense row     weights | state                     numbered by key; absent segments are gaps
    sparse row    key (two words) | weights | state   in any order, padded to whole 8 bytes

Weights and optimizer state of a row are adjacent, so an update touches one place in memory.
``hold`` says which segments are here from now on; ``place`` takes in rows of a new one, piece by
piece. Nothing here checks arguments (``table`` does) or locks (one thread at a time).

Rows of dropped segments lie among others in a sparse slab, and finding all of them would block the
server. ``Compaction`` does it in pieces, while pushes and pulls go on: it overwrites dropped rows
by the last ones, builds a new index, and gives the pages behind the last row back. Reads of a range
leave out what must go. If a segment comes back before its rows are gone, the rest is done at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from types import ModuleType

import numpy as np
import numpy.typing as npt

from shoal import tables
from shoal.errors import BadKeys, Invalid
from shoal.keys import KeyRange, Keys, Values, joined, without
from shoal.limits import CLEAR_BYTES, CLEAR_ROWS, MB, ROWS_PER_TABLE
from shoal.store.table import arena
from shoal.store.table.arena import DenseArena

_ENTERING = 4  # rows that can be looked at in the time of one insert


class Compaction:
    """The rows in one slab that belong to dropped segments."""

    def __init__(self) -> None:
        self.set_ranges([])
        self.stale = 0  # places of the index whose rows went
        self.used = 0  # rows the slab once had: pages behind the last are unused
        self._work: Iterator[None] = iter(())

    def begin(self, storage: SparseRows, ranges: Iterable[KeyRange]) -> None:
        """These ranges have to go, too."""
        self.set_ranges(joined(sorted([*self.ranges, *ranges], key=lambda keys: keys.start)))
        self.used = max(self.used, storage.rows)
        self._work = self._pieces(storage)

    def set_ranges(self, ranges: list[KeyRange]) -> None:
        self.ranges = ranges  # whose rows have to go
        self.starts: Keys = np.array([keys.start for keys in ranges], np.uint64)
        self.stops: Keys = np.array([keys.stop for keys in ranges], np.uint64)

    def overlaps(self, ranges: Iterable[KeyRange]) -> bool:
        """Whether some of these keys have rows that have to go."""
        return bool(self.ranges) and without(self.ranges, ranges) != self.ranges

    def hidden(self, names: Keys) -> npt.NDArray[np.bool_]:
        """Which of these keys, in any order, have rows that have to go."""
        if not self.ranges:
            return np.zeros(len(names), np.bool_)
        at = np.searchsorted(self.starts, names, side="right") - 1
        found: npt.NDArray[np.bool_] = (at >= 0) & (names < self.stops[at])
        return found

    def advance(self, storage: SparseRows) -> bool:
        """Do one piece, as long as looking at CLEAR_ROWS rows. False if that was all."""
        next(self._work, None)
        return bool(self.ranges or self.stale or self.used > storage.rows)

    def _pieces(self, storage: SparseRows) -> Iterator[None]:
        """The work, in pieces; between them rows come, and others may do some of it at once."""
        row = storage.rows  # from here on all have been looked at
        while self.ranges:
            before = storage.rows
            row, storage.rows = storage.kernels.drop_some(
                storage.index, storage.slots, row, before, CLEAR_ROWS, self.starts, self.stops
            )
            storage.layout += storage.rows < before
            self.stale += before - storage.rows
            if not row:
                self.set_ranges([])
            yield
        fresh: Keys | None = None  # the index that there will be
        touched = entered = 0  # slots that are zeroed, rows that are in it
        while self.stale:
            if fresh is None or storage.rows > arena.most(fresh):
                try:
                    places = min(arena.places_for(storage.rows + storage.rows // 2), len(storage.index))
                    fresh, touched, entered = arena.new_index(places), 0, 0
                except MemoryError:  # at once, then, and where it is
                    storage.index[:] = 0
                    storage.index_all()
                    break
            if touched < len(fresh):
                # Touch the pages piece by piece: the first rows would fault in all of them at once.
                upto = touched + CLEAR_BYTES // fresh.itemsize
                fresh[touched:upto] = 0
                touched = upto
            else:
                upto = min(storage.rows, entered + max(1, CLEAR_ROWS // _ENTERING))
                storage.kernels.enter(fresh, storage.slots, entered, upto)
                entered = upto
                if upto == storage.rows:
                    storage.index, self.stale = fresh, 0
            yield
        while self.used > storage.rows:  # pages behind the last row
            first = max(storage.rows, self.used - max(1, CLEAR_BYTES // storage.slab.strides[0]))
            arena.release_pages(storage.slab, first, self.used)
            self.used = first
            yield


Rows = npt.NDArray[np.int64]

FEWEST_ROWS = 16  # capacity of a sparse slab at first, if its rows are very wide


class RowSlab:
    """What both kinds of rows share: the kernels, initial values, the slab."""

    slab: Values
    starts: Keys
    stops: Keys

    def __init__(self, spec: tables.Table, sparse: bool) -> None:
        # Late, because numba is slow to import, and `import shoal` must not be.
        from shoal.store.table import codegen, kernels, update

        rule = update.rule_named(spec.update.name)
        update.check_pushed(spec)
        self.kernels: ModuleType = kernels
        self.updates = codegen.rule_kernels(rule, codegen.ROWS + (codegen.KEYS if sparse else codegen.RANGE))
        self.settings = np.array(rule.settings(spec.update.settings), np.float64)
        self.initial = _initial(kernels, spec.initial)
        self.width, self.words = spec.width, spec.width * (1 + rule.state)
        self.image_words = self.words  # of a row that are copied: weights and state
        self.rows = self.layout = 0
        self.first_weight = 0  # where weights begin in a row
        self.segments: tuple[KeyRange, ...] = ()
        self._set_bounds()

    def _set_bounds(self) -> None:
        self.starts = np.array([segment.start for segment in self.segments], np.uint64)
        self.stops = np.array([segment.stop for segment in self.segments], np.uint64)

    def _check_held(self, keys: KeyRange) -> None:
        if keys not in self.segments:  # an old table: fail rather than read another's rows
            raise AssertionError(f"segment {keys} is not stored here any more")


class DenseRows(RowSlab):
    """Rows that exist from the start."""

    def __init__(
        self, spec: tables.Table, segments: tuple[KeyRange, ...] = (), beside: DenseRows | None = None
    ) -> None:
        """``beside`` others of the same table, segments pass from one to the other in place."""
        super().__init__(spec, sparse=False)
        self._reserve: DenseArena = DenseArena(spec.span, self.words) if beside is None else beside._reserve
        self._me = self._reserve.new_holder()
        self.slab = self._reserve.slab
        self._runs: list[KeyRange] = []  # segments side by side are one
        self._before: list[int] = []  # rows before each of them
        self.set_segments(segments)
        if bytes(4) == np.float32(self.initial[1]).tobytes() and self.initial[0] == self.kernels.CONSTANT:
            return  # zero, as all of them are
        for run in self._runs:
            self.kernels.fill(self.slab, run.start, len(run), np.uint64(run.start), 0, self.width, *self.initial)

    def set_segments(self, segments: tuple[KeyRange, ...]) -> None:
        """Hold these segments. Rows of new ones are to be placed; those of dropped ones go."""
        for gone in without(self.segments, segments):
            self.release(gone)
        self.segments, self._runs = segments, joined(segments)
        self._reserve.claim(self._me, self._runs)
        self._before = [0, *accumulate(len(run) for run in self._runs)]
        self.rows = self._before[-1]
        for run in self._runs:
            self._reserve.advise_huge_pages(run.start, run.stop)
        self._set_bounds()

    def release(self, keys: KeyRange) -> None:
        self._reserve.release(self._me, keys)

    def compact_some(self) -> bool:
        return False  # what goes is gone at once

    @property
    def memory(self) -> int:
        return self.rows * self.words * 4

    def interval(self, keys: KeyRange) -> tuple[int, int]:
        """How many of the rows held come before these keys, and before their end."""
        return self._held_before(keys.start), self._held_before(keys.stop)

    def _held_before(self, key: int) -> int:
        at = bisect_right(self._runs, key, key=lambda run: run.start) - 1
        if at < 0:
            return 0
        return self._before[at] + min(key, self._runs[at].stop) - self._runs[at].start

    def _parts(self, keys: KeyRange) -> Iterator[tuple[int, int, int]]:
        """Per run that some of these keys are in: first row, last row, and keys before it."""
        first = max(0, bisect_right(self._runs, keys.start, key=lambda run: run.start) - 1)
        done = 0
        for run in self._runs[first:]:
            low, high = max(run.start, keys.start), min(run.stop, keys.stop)
            if run.start >= keys.stop:
                return
            if low < high:
                yield low, high, done
                done += high - low

    def push_range(self, keys: KeyRange, gradients: Values) -> None:
        for low, high, done in self._parts(keys):
            self.updates.push_range(self.slab, 0, low, gradients[done : done + high - low], self.settings)

    def push(self, keys: Keys, gradients: Values) -> tuple[int, int] | None:
        wrong = self._wrong(keys)
        if wrong is None:
            self.updates.push_rows(self.slab, 0, keys.view(np.int64), gradients, self.settings)
        return wrong

    def pull_range(self, keys: KeyRange) -> Values:
        low, high = self.interval(keys)
        out = np.empty((high - low, self.width), np.float32)
        for first, last, done in self._parts(keys):
            # Without state: one piece of memory.
            out[done : done + last - first] = self.slab[first:last, : self.width]
        return out

    def pull(self, keys: Keys, out: Values) -> tuple[int, int] | None:
        wrong = self._wrong(keys)
        if wrong is None:
            self.kernels.gather_rows(self.slab, keys.view(np.int64), 0, out)
        return wrong

    def image(self, keys: KeyRange, copy: bool) -> tuple[Values, Keys | None]:
        """One segment's rows, weights and state, and its keys (None: all, in order)."""
        self._check_held(keys)
        rows = self.slab[keys.start : keys.stop]
        return rows.copy() if copy else rows, None

    def place(self, keys: KeyRange, row: int, rows: Values, names: Keys | None) -> None:
        """Take rows of a segment's image, from its ``row``-th on; or find them in place."""
        self._reserve.claim(self._me, [keys])
        there = self.slab[keys.start + row : keys.start + row + len(rows)]
        if there.ctypes.data != rows.ctypes.data:
            there[:] = rows

    def _wrong(self, keys: Keys) -> tuple[int, int] | None:
        code, position = self.kernels.check_keys(keys, self.starts, self.stops)
        return (code, position) if code else None


class SparseRows(RowSlab):
    """Rows that are created at their first push, and the index that finds them."""

    def __init__(self, spec: tables.Table, segments: tuple[KeyRange, ...] = ()) -> None:
        super().__init__(spec, sparse=True)
        self.first_weight = self.kernels.KEY_WORDS
        self.words += self.kernels.KEY_WORDS
        self.words += self.words % 2  # keys stay aligned
        self._first = min(arena.FIRST_ROWS, max(FEWEST_ROWS, MB // (4 * self.words)))
        self.slab = arena.new_slab(self._first, self.words)
        self.slots: npt.NDArray[np.uint64] = self.slab.view(np.uint64)
        self.index = arena.new_index(arena.places_for(0))
        self.compaction = Compaction()
        self.set_segments(segments)

    def set_segments(self, segments: tuple[KeyRange, ...]) -> None:
        """Hold these segments. Rows of dropped ones go, at once if they are few."""
        if self.compaction.overlaps(without(segments, self.segments)):
            self._compact_now()
        self._drop(without(self.segments, segments))
        self.segments = segments
        self._set_bounds()

    def release(self, keys: KeyRange) -> None:
        self._drop([keys])

    @property
    def memory(self) -> int:
        return self.rows * self.words * 4 + self.index.nbytes

    def interval(self, keys: KeyRange) -> tuple[int, int]:
        return 0, self.rows  # a range reads the key of every row

    def push_range(self, keys: KeyRange, gradients: Values) -> None:
        raise BadKeys("a range cannot be pushed to a sparse table: list the keys")

    def push(self, keys: Keys, gradients: Values) -> None:
        self._make_room(keys)
        self.rows = self.updates.push_keys(
            self.index, self.slots, self.slab, self.rows, keys, gradients, self.settings, *self.initial
        )

    def find(self, keys: Keys) -> Rows | None:
        rows: Rows = np.empty(len(keys), np.int64)
        missing = self.kernels.find_rows(self.index, self.slots, self.rows, keys, rows)
        return None if missing else rows

    def pull_range(self, keys: KeyRange) -> Values:
        raise BadKeys("a range of a sparse table is read by its live keys")

    def pull(self, keys: Keys, out: Values) -> None:
        self.kernels.gather_keys(self.index, self.slots, self.slab, self.rows, keys, out, *self.initial)

    def pull_live(self, keys: KeyRange, most: int) -> tuple[Keys, Values, int | None]:
        room = max(1, min(self.rows, 4 * (most + 1)))
        names, places = np.empty(room, np.uint64), np.empty(room, np.int64)
        row, found, high = 0, 0, keys.stop
        while True:
            row, found = self.kernels.collect(
                self.slots, row, self.rows, np.uint64(keys.start), np.uint64(high), names, places, found
            )
            if self.compaction.ranges:
                found = self._left_out(names, places, found)
            if row == self.rows:
                break
            if found <= most:
                continue
            # Full: only the smallest keys can be part of the answer.
            best = np.argpartition(names[:found], most)[: most + 1]
            found = most + 1
            names[:found], places[:found] = names[best], places[best]
            high = int(names[:found].max())
        order = np.argsort(names[:found])
        resume = int(names[order[most]]) if found > most else None
        order = order[:most]
        out = np.empty((len(order), self.width), np.float32)
        self.kernels.gather_rows(self.slab, places[order], self.kernels.KEY_WORDS, out)
        return names[order], out, resume

    def _left_out(self, names: Keys, places: Rows, found: int) -> int:
        """Remove from the found rows those that have to go; how many are left."""
        stay = ~self.compaction.hidden(names[:found])
        left = int(stay.sum())
        names[:left], places[:left] = names[:found][stay], places[:found][stay]
        return left

    def image(self, keys: KeyRange, copy: bool) -> tuple[Values, Keys | None]:
        """A copy of one segment's live rows, weights and state, in key order, and their keys."""
        self._check_held(keys)
        names, places = np.empty(self.rows, np.uint64), np.empty(self.rows, np.int64)
        low, high = np.uint64(keys.start), np.uint64(keys.stop)
        _, found = self.kernels.collect(self.slots, 0, self.rows, low, high, names, places, 0)
        order = np.argsort(names[:found])
        words = slice(self.kernels.KEY_WORDS, self.kernels.KEY_WORDS + self.image_words)
        return self.slab[places[:found][order], words], names[:found][order]

    def place(self, keys: KeyRange, row: int, rows: Values, names: Keys | None) -> None:
        """Take rows of a segment's image: none of these keys is here yet."""
        assert names is not None
        if self.compaction.overlaps([keys]):
            self._compact_now()
        count, first = len(names), self.rows
        if count == 0:
            return
        self._grow(first + count)
        self.slots[first : first + count, 0] = names
        self.slab[first : first + count, self.kernels.KEY_WORDS : self.kernels.KEY_WORDS + self.image_words] = rows
        self.rows = first + count
        self.kernels.enter(self.index, self.slots, first, self.rows)

    def evict(self, segments: npt.NDArray[np.bool_]) -> int:
        """Drop rows of these segments whose weights are all 0; how many went."""
        if self.compaction.ranges:
            self._compact_now()
        starts, stops = self.starts[segments], self.stops[segments]
        before = self.rows
        self.rows = self.kernels.drop_zeros(self.slots, self.slab, before, self.width, starts, stops)
        return self._shrink(before)

    def _drop(self, ranges: Sequence[KeyRange]) -> None:
        if ranges and self.rows:
            self.compaction.begin(self, ranges)
            if self.rows <= CLEAR_ROWS:
                self._compact_now()

    def _compact_now(self) -> None:
        before, compaction = self.rows, self.compaction
        _, self.rows = self.kernels.drop_some(
            self.index, self.slots, before, before, 1 << 62, compaction.starts, compaction.stops
        )
        compaction.set_ranges([])
        self._shrink(before)

    def compact_some(self) -> bool:
        """Do one more piece of compaction; False if that was all."""
        return self.compaction.advance(self)

    def _shrink(self, before: int) -> int:
        """Rows went and others moved: shrink slab and index if they are far too large."""
        if self.rows == before:
            return 0
        self.layout += 1
        wanted = self.rows + self.rows // 2
        capacity, places = arena.fitting(self._first, wanted), arena.places_for(wanted)
        try:
            if 2 * capacity <= len(self.slab):
                self._move(arena.new_slab(capacity, self.words))
            if places < len(self.index):
                self.index = arena.new_index(places)
        except MemoryError:
            pass  # it stays as large as it is
        self.index[:] = 0
        self.index_all()
        return before - self.rows

    def _move(self, slab: Values) -> None:
        slab[: self.rows] = self.slab[: self.rows]
        self.slab, self.slots = slab, slab.view(np.uint64)
        self.compaction.used = 0  # behind its last row the new slab was never written

    def index_all(self) -> None:
        self.kernels.enter(self.index, self.slots, 0, self.rows)
        self.compaction.stale = 0

    def _make_room(self, keys: Keys) -> None:
        free = min(len(self.slab), arena.most(self.index) - self.compaction.stale) - self.rows
        if len(keys) > free:
            missing = self.kernels.find_rows(self.index, self.slots, self.rows, keys, np.empty(len(keys), np.int64))
            if missing > free:
                self._grow(self.rows + missing)

    def _grow(self, rows: int) -> None:
        if rows > ROWS_PER_TABLE:
            raise MemoryError(f"{rows} rows: one server holds at most {ROWS_PER_TABLE} of a table; add servers")
        # Both arrays are taken before anything is changed. Fresh ones cost no memory until they are
        # written to, so the old index is gone before the new one is filled.
        capacity, places = arena.fitting(self._first, rows), max(arena.places_for(rows), len(self.index))
        slab = arena.new_slab(capacity, self.words) if capacity > len(self.slab) else None
        stale = self.compaction.stale  # index entries that may point behind the last row
        full = rows + stale > arena.most(self.index) or (stale > 0 and slab is not None)
        index = arena.new_index(places) if full else None
        if slab is not None:
            self._move(slab)
            self.layout += 1
        if index is not None:
            self.index = index
            self.index_all()


def _initial(kernels: ModuleType, initial: tables.Initial) -> tuple[int, float, float, np.uint64]:
    """Kind, two parameters and seed, as kernels take them."""
    match initial:
        case tables.Given():  # read and loaded afterwards
            made = kernels.CONSTANT, 0.0, 0.0, 0
        case tables.Constant(value):
            made = kernels.CONSTANT, value, 0.0, 0
        case tables.Uniform(low, high, seed):
            made = kernels.UNIFORM, low, high, seed
        case tables.Normal(deviation, seed):
            made = kernels.NORMAL, deviation, 0.0, seed
    kind, first, second, seed = made
    with np.errstate(over="ignore"):
        if not np.isfinite(np.array([first, second], np.float32)).all():
            raise Invalid(f"{initial}: initial values are finite float32 numbers")
    return kind, float(first), float(second), np.uint64(seed % (1 << 64))

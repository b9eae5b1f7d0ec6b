"""Some segments of one table on one server: rows, versions, ledger and clocks.

A primary and its backups run this code in the same order, so replicas agree bit by bit. Everything
is kept as small arrays with one entry per segment. A segment leaves and enters as a
``SegmentImage``. When the set of segments changes, a new object takes over the same rows; only the
books are copied.

``RequestCheck`` checks requests against the segments: which of them a message covers, its keys and
values. A bad request is refused as a whole, as ``BadKeys``, ``BadValues`` or ``Invalid``, before
anything changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.limits import CLOCKS_TOLD
from shoal.store.client.filtering import checked_chain
from shoal.store.server.clock import Clocks
from shoal.store.server.ledger import Ledger, Mask, Numbers
from shoal.store.server.vector_clock import GONE, RangeClocks, VectorClock
from shoal.store.table.table import RowStorage, SegmentImage, ServerTable
from shoal.tables import Sparse, Step, Wire
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.half_precision import restored, shortened
from shoal.wire.messages.base import Events

_IN_A_ROW = 8  # contiguous elements that cost as much as one random access


class RequestCheck:
    """The segments of one table that one server holds, in key order, and their rows."""

    def __init__(self, spec: Spec, segments: Sequence[tuple[int, KeyRange]], storage: RowStorage | None = None) -> None:
        self.spec = spec
        self.numbers = [segment for segment, _ in segments]
        self.position = {segment: at for at, segment in enumerate(self.numbers)}
        self.ids: Numbers = np.array(self.numbers, np.int64)
        self.ranges = [keys for _, keys in segments]
        self.table = ServerTable(spec, self.ranges, storage)
        self.chain = checked_chain(spec, warm=True)
        self.all_mask: Mask = np.ones(len(segments), np.bool_)
        self._starts: Keys = np.array([keys.start for keys in self.ranges], np.uint64)
        self._stops: Keys = np.array([keys.stop for keys in self.ranges], np.uint64)
        self._ends = int(self._starts[0]), int(self._stops[-1])

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self, segments: Iterable[int]) -> Mask:
        """The segments of these that are here."""
        found = np.zeros(len(self.ids), np.bool_)
        for segment in segments:
            if (at := self.position.get(segment)) is not None:
                found[at] = True
        return self.all_mask if found.all() else found

    def touched(self, keys: Keys) -> Mask:
        found: Mask = np.searchsorted(keys, self._starts) < np.searchsorted(keys, self._stops)
        return found

    def numbers_in(self, mask: Mask) -> list[int]:
        """The numbers of these segments; empty if they are all."""
        return [] if mask is self.all_mask or mask.all() else self.ids[mask].tolist()

    def covered(self, first: int, last: int) -> Mask:
        if first <= 0 and last >= m.EVERYWHERE:
            return self.all_mask
        covered: Mask = (self.ids >= first) & (self.ids < last)
        if not covered.any():
            raise BadKeys("no key of the segments that this message covers is held here: refresh the placement")
        return covered

    def key_values(self, push: m.Push, arrays: m.Arrays, covered: Mask) -> KeyValues | None:
        """The keys and values of a push; None if it has none."""
        if push.count == 0 and push.start < 0 and (push.ahead > 0 or not any(len(array) for array in arrays)):
            return None
        if not arrays or (push.start < 0) != (len(arrays) == 2 + (push.ahead > 0)):
            raise BadValues(f"a push with {len(arrays)} arrays: keys and values, or a range and values, are needed")
        width = self.spec.push_width
        if len(arrays[-1]) != push.count * width:
            raise BadValues(f"{len(arrays[-1])} values came, {push.count} rows of width {width} were announced")
        keys = self.keys(push, arrays[-2] if push.start < 0 else None, covered)
        self._check_size(push.count, width)  # before memory is allocated
        values = restored(arrays[-1], push.form).reshape(push.count, width)
        if (reason := self.table.check_values(keys, values)) is not None:
            raise BadValues(reason)
        return KeyValues(keys, values)

    def unfiltered(self, message: m.Push | m.Pull, arrays: m.Arrays) -> m.Arrays:
        """A request's arrays as they were before filters; ``BadValues`` if they make no sense."""
        if not message.filtered:
            return arrays
        width = self.spec.push_width if isinstance(message, m.Push) else None
        self._check_size(message.count, width)
        self._check_size(message.ahead if isinstance(message, m.Push) else 0)
        if self.chain is None:
            raise Invalid("this message went through filters, and the table has none: refresh the view")
        if isinstance(message, m.Pull):
            return self.chain.opened_pull(arrays, message.count)
        return self.chain.opened_push(arrays, message.count, message.ahead, self.spec.push_width, message.form)

    def keys_ahead(self, push: m.Push, arrays: m.Arrays, covered: Mask) -> Keys:
        """The other keys whose rows a push asks for."""
        if push.ahead == 0:
            return np.empty(0, np.uint64)
        if len(arrays) != 3 or not push.pull or len(arrays[0]) != push.ahead:
            raise BadKeys(f"{push.ahead} more keys were announced to be pulled, and did not come")
        return self._checked_list(arrays[0], covered)

    def keys(self, message: m.Push | m.Pull, listed: m.Array | None, covered: Mask) -> Keys | KeyRange:
        """The keys of a message, inside the segments it covers; of a range, the part that is."""
        if message.start >= 0:
            low, high = self._bounds(covered)
            keys = KeyRange(message.start, message.stop)
            if keys.start < low or keys.stop > high:
                keys = KeyRange(min(max(keys.start, low), high), max(low, min(keys.stop, high)))
            if not isinstance(self.spec, Sparse):  # a sparse range is answered in pieces
                self._check_size(self.table.cost(keys) // self.spec.width)
            return keys
        found: Keys = np.empty(0, np.uint64) if listed is None else listed
        if len(found) != message.count:
            raise BadKeys(f"{len(found)} keys came, the header says {message.count}")
        return self._checked_list(found, covered)

    def _bounds(self, covered: Mask) -> tuple[int, int]:
        if covered is self.all_mask:
            return self._ends
        return int(self._starts[covered][0]), int(self._stops[covered][-1])

    def _checked_list(self, found: Keys, covered: Mask) -> Keys:
        low, high = self._bounds(covered)
        self._check_size(len(found))
        reason = self.table.check_keys(found)
        if reason is None and len(found) and not (low <= int(found[0]) and int(found[-1]) < high):
            reason = "a key is outside the segments that this message covers"
        if reason is not None:
            raise BadKeys(reason)
        return found

    def slot(self, push: m.Push) -> tuple[int, int] | None:
        """For a step table: the step, and the slot's place in it."""
        apply = self.spec.apply
        if push.stream < 0 and push.stream != -push.incarnation:
            raise Invalid("a push in another client's stream")
        if not isinstance(apply, Step):
            return None
        if push.stream < 0:
            raise Invalid("values for this table are pushed as slots of a step: name the slot (epoch, number)")
        if push.step > 0:
            raise Invalid("the steps of this table follow from its slots: a push names no other")
        return apply.step_of((push.stream, push.number)), push.number % apply.slots

    def restrict(self, rows: KeyValues | None, wanted: Mask, covered: Mask) -> KeyValues | None:
        """The rows of ``given`` that fall into the wanted segments."""
        if rows is None or wanted is covered or wanted[covered].all():
            return rows
        keys = self.table.keys_held(rows.keys) if isinstance(rows.keys, KeyRange) else rows.keys
        inside = wanted[np.searchsorted(self._starts, keys, side="right") - 1]
        return KeyValues(keys[inside], np.ascontiguousarray(rows.values[inside])) if inside.any() else None

    def work(self, keys: Keys | KeyRange) -> int:
        """The cost of a push or pull of these keys, in random accesses."""
        cost = self.table.cost(keys)
        return cost // _IN_A_ROW if isinstance(keys, KeyRange) and not isinstance(self.spec, Sparse) else cost

    def read(self, keys: Keys | KeyRange, form: Wire = "float32") -> tuple[list[m.Array], int, Wire]:
        """The arrays that answer a pull, where the rest starts (-1: none), and their form."""
        arrays: list[m.Array] = []
        rest: int | None = None
        if isinstance(keys, KeyRange) and isinstance(self.spec, Sparse):
            live, values, rest = self.table.pull_live(keys, _most_rows(self.spec.width))
            arrays.append(live)
        else:
            values = self.table.pull(keys)
        sent = shortened(values.reshape(-1), form)
        if sent is None:
            sent, form = values.reshape(-1), "float32"
        return [*arrays, sent], -1 if rest is None else rest, form

    def _check_size(self, rows: int, width: int | None = None) -> None:
        width = self.spec.width if width is None else width
        if rows > (most := _most_rows(width)):
            raise BadKeys(f"{rows} rows in one message, at most {most} of width {width} are allowed")


def _most_rows(width: int) -> int:
    return max(1, limits.FRAME_BYTES // max(8, 4 * width))


def is_sweep_version(apply: Step, version: Numbers) -> Mask:
    """The segments that evict rows at these versions: ends of passes, and powers of two."""
    due: Mask = (version & (version - 1)) == 0
    per_pass = apply.steps_per_pass()
    return due if per_pass is None else due | (version % per_pass == 0)


def segments_to_sweep(spec: Spec, kind: str, version: Numbers, segments: Mask) -> Mask | None:
    """The segments in which this change evicts zero rows; ``version`` is the one before it.

    This depends on the change alone, so all replicas do the same. A step table sweeps with the
    last step of a pass and with steps 1, 2, 4, 8, ...: its model is the same for any number of
    servers.
    """
    if not isinstance(spec, Sparse) or not spec.evict:
        return None
    if kind == "evict":
        return segments
    if kind != "step" or not isinstance(spec.apply, Step):
        return None
    due: Mask = segments & is_sweep_version(spec.apply, version + 1)
    return due if due.any() else None


STEPS = GONE  # a step is no single worker's push


class SegmentState:
    """Segments that have the same primary, on that server or on a backup."""

    def __init__(
        self, number: int, spec: Spec, segments: Sequence[tuple[int, KeyRange]], storage: RowStorage | None = None
    ) -> None:
        self.number, self.spec = number, spec
        self.check = RequestCheck(spec, segments, storage)
        self.table = self.check.table
        self.version: Numbers = np.zeros(len(segments), np.int64)
        self.ledger = Ledger(len(segments))
        self.clocks = Clocks(len(segments), spec.max_delay)
        self.evicted = 0  # rows evicted since the last report
        self.vector_clocks = RangeClocks(spec.span)  # vector clocks: shown, they decide nothing

    def load(self, images: Sequence[SegmentImage]) -> None:
        """Load these images, one for each segment, in order; for a new object."""
        self.load_rows(images)
        self.load_books([image.books for image in images])

    def load_rows(self, images: Sequence[SegmentImage]) -> None:
        """Load the rows of some segments, which have none here."""
        for image in images:
            self.table.load(self.check.position[image.segment], image.rows, image.names)

    def load_books(self, books: Sequence[m.SegmentBooks]) -> None:
        """Load the books of the segments, in order; for a new object."""
        self.version[:] = [one.version for one in books]
        self.ledger = Ledger.of([one.ledger for one in books])
        self.clocks = Clocks.of([one.clocks for one in books], self.spec.max_delay)
        for one in books:
            for start, stop, counts in one.events:
                self.vector_clocks.write(KeyRange(start, stop), VectorClock(dict(counts)))

    @property
    def storage(self) -> RowStorage:
        return self.table.storage

    @property
    def segments(self) -> list[int]:
        return self.check.numbers

    def books(self, segment: int) -> m.SegmentBooks:
        at = self.check.position[segment]
        events = self.encoded_clocks(self.check.ranges[at])
        return m.SegmentBooks(int(self.version[at]), self.ledger.counted(at), self.clocks.encoded(at), events)

    def encoded_clocks(self, keys: KeyRange) -> Events:
        """The vector clocks of these keys as messages carry them: bounded, to fit one header."""
        most = max(1, CLOCKS_TOLD // (len(self.check) * (1 + len(self.vector_clocks.nodes()))))
        return [(part.start, part.stop, dict(clock.counts)) for part, clock in self.vector_clocks.read(keys, most)]

    def image(self, segment: int, copy: bool = True) -> SegmentImage:
        """One segment as it is now: copied, or, if it is read before anything changes, in place."""
        at = self.check.position[segment]
        rows, names = self.table.image(at, copy)
        return SegmentImage(segment, self.check.ranges[at], self.books(segment), rows, names)

    def digest(self, segment: int) -> str:
        """A hash of a segment: equal on all replicas once no change is in flight."""
        image = self.image(segment, copy=False)
        seen = hashlib.blake2b(digest_size=8)
        seen.update(image.rows.tobytes())
        if image.names is not None:
            seen.update(image.names.tobytes())
        books = image.books
        ledger = {stream: counted for stream, counted in sorted(books.ledger.items()) if counted != m.Counts(0)}
        clocks = {who: (one.spell, one.parked, one.counted) for who, one in sorted(books.clocks.items())}
        seen.update(repr((books.version, ledger, clocks)).encode())
        return seen.hexdigest()

    def drop_departed(self, workers: dict[int, str], clients: dict[int, str]) -> bool:
        """Drop what belongs to nodes that left, by a new view. True if a worker left."""
        for stream in self.ledger.streams():
            if stream < 0 and -stream not in clients:
                self.ledger.drop(stream)
        for node in self.vector_clocks.nodes():
            if node not in clients:
                self.vector_clocks.retire(node)
        return self.clocks.drop_departed(workers)

    def work(self, change: m.ReplicatedChange, rows: KeyValues | None, segments: Mask) -> int:
        """The cost of a change, in elements; 0: it writes and evicts no rows."""
        pushed = 0 if rows is None or not len(rows.values) else max(1, self.check.work(rows.keys))
        return pushed if self._segments_to_sweep(change, segments) is None else pushed + self.table.rows

    def write(self, change: m.ReplicatedChange, rows: KeyValues | None, segments: Mask) -> None:
        """Apply the rows of a change; its books follow with ``record``."""
        if rows is not None and len(rows.values):
            self.table.push(rows.keys, rows.values)
        if (swept := self._segments_to_sweep(change, segments)) is not None:
            self.evicted += self.table.evict(swept)

    def _segments_to_sweep(self, change: m.ReplicatedChange, segments: Mask) -> Mask | None:
        return segments_to_sweep(self.spec, change.kind, self.version, segments)

    def record(
        self, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, rows: KeyValues | None = None
    ) -> None:
        """Record a change, whose rows are written, in the books of these segments.

        ``everywhere``: they are all. The floor of a stream is raised in these alone, too: replicas
        hold different other segments.
        """
        match change.kind:
            case "push":
                self._tick_vector_clocks(change.incarnation, segments, everywhere, rows)
                stream = self.ledger.stream(change.stream)
                if change.stream < 0:
                    stream.raise_to(change.floor if everywhere else np.where(segments, change.floor, 0))
                stream.add(change.number, segments, everywhere)
                self._tick(change, segments, everywhere)
                self._raise_version(segments, everywhere)
            case "step":
                self._tick_vector_clocks(STEPS, segments, everywhere, rows)
                self._raise_version(segments, everywhere)
            case "tick":
                self._tick(change, segments, everywhere)
            case "enter":
                self.clocks.enter(change.incarnation, change.name, change.spell, change.entered)
            case "park":
                self.clocks.park(change.incarnation, change.spell)

    def _tick_vector_clocks(self, node: int, segments: Mask, everywhere: bool, rows: KeyValues | None) -> None:
        """Tick the vector clocks: of a range, its keys; of a list, the segments it falls into."""
        if rows is None or not len(rows.values):
            return
        if isinstance(rows.keys, KeyRange):
            if everywhere:
                self.vector_clocks.tick(node, rows.keys)
                return
            low, high, touched = rows.keys.start, rows.keys.stop, segments
        else:
            low, high, touched = 0, self.spec.span, segments & self.check.touched(rows.keys)
            if everywhere and touched.all():
                self.vector_clocks.tick(node)
                return
        for at in np.flatnonzero(touched).tolist():  # others had it before
            keys = self.check.ranges[at]
            start, stop = max(keys.start, low), min(keys.stop, high)
            if start < stop:
                self.vector_clocks.tick(node, KeyRange(start, stop))

    def _tick(self, change: m.ReplicatedChange, segments: Mask, everywhere: bool) -> None:
        self.clocks.raise_floor(change.incarnation, change.spell, change.entered)
        self.clocks.tick(change.incarnation, change.step, segments, everywhere)

    def _raise_version(self, segments: Mask, everywhere: bool) -> None:
        if everywhere:
            self.version += 1
        else:
            self.version[segments] += 1

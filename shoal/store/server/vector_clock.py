"""Vector clocks: what happened before what, with one clock for each range of keys.

A ``VectorClock`` counts the events of each node: +1 on its own entry for a local event, a send and
a receive; a receive also takes the larger of both in every entry.

    a before b          a <= b in every entry, and less in at least one
    concurrent          neither before the other, and not the same

One clock per key would need n * m numbers for n keys and m nodes. ``RangeClocks`` keeps one for
all neighbouring keys with the same history. A task on a range splits at most two ranges, so k
distinct ranges make at most 2k + 1 clocks. Clocks are returned by pulls and shown. They decide
nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.limits import CLOCK_RANGES

Node = int
GONE: Node = 0  # the events of all retired nodes: no incarnation has this number


class VectorClock:
    """How many events of each node are known. Immutable: every rule makes a new one."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[Node, int] | None = None) -> None:
        self._counts = {node: count for node, count in (counts or {}).items() if count}
        if any(count < 0 for count in self._counts.values()):
            raise Invalid(f"a clock of {self._counts}: events are counted from 0")

    def __getitem__(self, node: Node) -> int:
        return self._counts.get(node, 0)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorClock) and self._counts == other._counts

    def __repr__(self) -> str:
        return f"VectorClock({self._counts})"

    @property
    def counts(self) -> dict[Node, int]:
        return dict(self._counts)

    def local(self, node: Node) -> VectorClock:
        """The clock after an event on this node."""
        return VectorClock({**self._counts, node: self[node] + 1})

    def send(self, node: Node) -> VectorClock:
        """The clock after this node sends a message, which carries it."""
        return self.local(node)

    def receive(self, node: Node, message: VectorClock) -> VectorClock:
        """The clock after this node got a message with that clock."""
        return self.local(node).joined(message)

    def joined(self, other: VectorClock) -> VectorClock:
        """All that either knows."""
        return VectorClock({node: max(self[node], other[node]) for node in {**self._counts, **other._counts}})

    def __le__(self, other: VectorClock) -> bool:
        return all(count <= other[node] for node, count in self._counts.items())

    def __lt__(self, other: VectorClock) -> bool:
        return self.before(other)

    def before(self, other: VectorClock) -> bool:
        """Whether this happened before that."""
        return self <= other and self != other

    def concurrent(self, other: VectorClock) -> bool:
        """Whether neither can have known of the other."""
        return not self <= other and not other <= self


class RangeClocks:
    """A vector clock for every key below ``span``, kept once for equal neighbours.

    At most ``most`` are kept. Beyond that no range is split: a task on part of a range counts for
    all of it, so a clock may say more than happened to a key, and never less.
    """

    def __init__(self, span: int, most: int = CLOCK_RANGES) -> None:
        if span < 1 or most < 1:
            raise Invalid(f"clocks for {span} keys in at most {most} ranges: needs at least one of each")
        self.span, self.most = span, most
        self.widened = 0  # tasks that were counted for more keys than they named
        self._starts = array("q", [0])  # each range ends where the next one starts
        self._nodes: dict[Node, int] = {}  # which column is whose
        # [range, node], with spare capacity.
        self._counts: npt.NDArray[np.int64] = np.zeros((1, 1), np.int64)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def memory(self) -> int:
        return self._starts.itemsize * len(self._starts) + self._counts.nbytes

    def tick(self, node: Node, keys: KeyRange | None = None) -> None:
        """This node pushed to these keys; None: to all."""
        column = self._column(node)
        if keys is None or (keys.start == 0 and keys.stop >= self.span):
            self._counts[: len(self._starts), column] += 1
            return
        self._check(keys)
        if keys.start == keys.stop:
            return
        first, beyond = self._cut(keys)
        self._counts[first:beyond, column] += 1
        # Only at the two edges can neighbours have become equal.
        self._join(beyond)
        self._join(first)

    def read(self, keys: KeyRange | None = None, most: int | None = None) -> list[tuple[KeyRange, VectorClock]]:
        """The clocks of these keys, in order. More than ``most`` are joined to one."""
        start, stop = (0, self.span) if keys is None else (keys.start, min(keys.stop, self.span))
        if start >= stop:
            return []
        first, beyond = bisect_right(self._starts, start) - 1, bisect_left(self._starts, stop)
        edges = [start, *self._starts[first + 1 : beyond], stop]
        part = self._counts[first:beyond, : len(self._nodes)]
        if most is not None and len(part) > most:
            part, edges = part.max(axis=0, keepdims=True), [start, stop]
        found = part.tolist()
        return [
            (KeyRange(edges[i], edges[i + 1]), VectorClock(dict(zip(self._nodes, counts, strict=True))))
            for i, counts in enumerate(found)
        ]

    def write(self, keys: KeyRange, clock: VectorClock) -> None:
        """Give these keys that clock: a segment came from elsewhere, with its own."""
        self._check(keys)
        if keys.start == keys.stop:
            return
        columns, widened = [self._column(node) for node in clock], self.widened
        first, beyond = self._cut(keys)
        row = np.zeros(self._counts.shape[1], np.int64)
        row[columns] = list(clock.counts.values())
        part = self._counts[first:beyond]
        # If widened, never less than what happened to the keys next to them.
        part[:] = row if widened == self.widened else np.maximum(part, row)
        self._join_all()

    def nodes(self) -> list[int]:
        """The nodes that have pushed here and are not retired."""
        return [node for node in self._nodes if node != GONE]

    def retire(self, node: Node) -> None:
        """This node has left: its events are kept, no longer under its name."""
        if node == GONE or node not in self._nodes:
            return
        gone, column, last = self._column(GONE), self._nodes[node], len(self._nodes) - 1
        self._counts[:, gone] += self._counts[:, column]
        moved = next(name for name, at in self._nodes.items() if at == last)
        self._counts[:, column] = self._counts[:, last]
        self._counts[:, last] = 0
        self._nodes[moved] = column
        del self._nodes[node]
        self._nodes = dict(sorted(self._nodes.items(), key=lambda one: one[1]))
        self._join_all()

    def _check(self, keys: KeyRange) -> None:
        if keys.stop > self.span:
            raise Invalid(f"keys {keys}, where they end at {self.span}: name keys that there are")

    def _column(self, node: Node) -> int:
        column = self._nodes.get(node)
        if column is None:
            column = self._nodes[node] = len(self._nodes)
            if column == self._counts.shape[1]:
                self._counts = np.hstack([self._counts, np.zeros_like(self._counts)])
        return column

    def _cut(self, keys: KeyRange) -> tuple[int, int]:
        """The ranges that make up these keys, as indexes from the first to before the second."""
        first, beyond = bisect_left(self._starts, keys.start), bisect_left(self._starts, min(keys.stop, self.span))
        before = first == len(self._starts) or self._starts[first] > keys.start
        after = keys.stop < self.span and (beyond == len(self._starts) or self._starts[beyond] > keys.stop)
        if len(self._starts) + before + after > self.most:
            self.widened += 1
            return first - before, beyond
        if after:
            self._split(beyond, keys.stop)
        if before:
            self._split(first, keys.start)
        return first, beyond + before

    def _split(self, place: int, start: int) -> None:
        """Start a new range at ``start``, with the clock of the one it was part of."""
        used = len(self._starts)
        if used == len(self._counts):
            self._counts = np.vstack([self._counts, np.zeros_like(self._counts)])
        self._counts[place + 1 : used + 1] = self._counts[place:used]
        self._counts[place] = self._counts[place - 1]
        self._starts.insert(place, start)

    def _join(self, place: int) -> None:
        """Join this range and the one before it, if their clocks are equal."""
        used = len(self._starts)
        if 0 < place < used and (self._counts[place] == self._counts[place - 1]).all():
            self._counts[place : used - 1] = self._counts[place + 1 : used]
            self._counts[used - 1] = 0
            del self._starts[place]

    def _join_all(self) -> None:
        used = len(self._starts)
        kept = np.ones(used, bool)
        kept[1:] = (self._counts[1:used] != self._counts[: used - 1]).any(axis=1)
        if not kept.all():
            left = self._counts[:used][kept]
            self._counts[: len(left)], self._counts[len(left) :] = left, 0
            self._starts = array("q", np.frombuffer(self._starts, np.int64)[kept].tolist())

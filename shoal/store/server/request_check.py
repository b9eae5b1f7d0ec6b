"""What a message means here: which of the held segments it covers, its keys and values, all checked before anything changes.

A message covers the held segments of a range of numbers, and its keys must lie inside them. What cannot be is refused whole, as
``BadKeys``, ``BadValues`` or ``Invalid``; whatever comes through can be applied without a further look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.store.client.filtering import checked_chain, opened_request
from shoal.store.server.ledger import Mask, Numbers
from shoal.store.table.table import Ground, ServerTable
from shoal.tables import Sparse, Step, Wire
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.half_precision import restored, shortened

_IN_A_ROW = 8  # elements of a dense range lie in a row: so many take as long as one that has to be looked up


class RequestCheck:
    """The segments of one table that one server holds, in key order, and their rows."""

    def __init__(self, spec: Spec, held: Sequence[tuple[int, KeyRange]], ground: Ground | None = None) -> None:
        self.spec = spec
        self.numbers = [segment for segment, _ in held]
        self.place = {segment: at for at, segment in enumerate(self.numbers)}
        self.ids: Numbers = np.array(self.numbers, np.int64)
        self.ranges = [keys for _, keys in held]
        self.table = ServerTable(spec, self.ranges, ground)
        self.chain = checked_chain(spec, warm=True)
        self.whole: Mask = np.ones(len(held), np.bool_)
        self._starts: Keys = np.array([keys.start for keys in self.ranges], np.uint64)
        self._stops: Keys = np.array([keys.stop for keys in self.ranges], np.uint64)
        self._ends = int(self._starts[0]), int(self._stops[-1])

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self, segments: Iterable[int]) -> Mask:
        """Those of these segments that are here."""
        found = np.zeros(len(self.ids), np.bool_)
        for segment in segments:
            if (at := self.place.get(segment)) is not None:
                found[at] = True
        return self.whole if found.all() else found

    def touched(self, keys: Keys) -> Mask:
        """The segments that these keys, which are sorted, fall into."""
        found: Mask = np.searchsorted(keys, self._starts) < np.searchsorted(keys, self._stops)
        return found

    def named(self, mask: Mask) -> list[int]:
        """The numbers of some segments; none if they are all."""
        return [] if mask is self.whole or mask.all() else self.ids[mask].tolist()

    def covered(self, first: int, last: int) -> Mask:
        """The segments that a message is for."""
        if first <= 0 and last >= m.EVERYWHERE:
            return self.whole
        covered: Mask = (self.ids >= first) & (self.ids < last)
        if not covered.any():
            raise BadKeys("no key of the segments that this message covers is held here: refresh the placement")
        return covered

    def given(self, push: m.Push, arrays: m.Arrays, covered: Mask) -> KeyValues | None:
        """What a push brings; None if it brings nothing."""
        if push.count == 0 and push.start < 0 and (push.ahead > 0 or not any(len(array) for array in arrays)):
            return None
        if not arrays or (push.start < 0) != (len(arrays) == 2 + (push.ahead > 0)):
            raise BadValues(f"a push with {len(arrays)} arrays: keys and values, or a range and values, are needed")
        width = self.spec.push_width
        if len(arrays[-1]) != push.count * width:
            raise BadValues(f"{len(arrays[-1])} values came, {push.count} rows of width {width} were announced")
        keys = self.keys(push, arrays[-2] if push.start < 0 else None, covered)
        self._check_size(push.count, width)  # before memory is taken for what came shortened
        values = restored(arrays[-1], push.form).reshape(push.count, width)
        if (reason := self.table.check_values(keys, values)) is not None:
            raise BadValues(reason)
        return KeyValues(keys, values)

    def opened(self, ask: m.Push | m.Pull, arrays: m.Arrays) -> m.Arrays:
        """What a message brought, before filters had it."""
        if ask.filtered:
            self._check_size(ask.count, self.spec.push_width if isinstance(ask, m.Push) else None)
            self._check_size(ask.ahead if isinstance(ask, m.Push) else 0)
        return opened_request(self.chain, ask, arrays, self.spec.push_width)

    def ahead(self, push: m.Push, arrays: m.Arrays, covered: Mask) -> Keys:
        """The other keys whose rows a push asks for."""
        if push.ahead == 0:
            return np.empty(0, np.uint64)
        if len(arrays) != 3 or not push.pull or len(arrays[0]) != push.ahead:
            raise BadKeys(f"{push.ahead} more keys were announced to be pulled, and did not come")
        return self._listed(arrays[0], covered)

    def keys(self, ask: m.Push | m.Pull, listed: m.Array | None, covered: Mask) -> Keys | KeyRange:
        """The keys a message is about, inside the segments it covers. Of a range, the part that is."""
        if ask.start >= 0:
            low, high = self._bounds(covered)
            keys = KeyRange(ask.start, ask.stop)
            if keys.start < low or keys.stop > high:
                keys = KeyRange(min(max(keys.start, low), high), max(low, min(keys.stop, high)))
            if not isinstance(self.spec, Sparse):  # a range of a sparse table is answered in pieces
                self._check_size(self.table.cost(keys) // self.spec.width)
            return keys
        found: Keys = np.empty(0, np.uint64) if listed is None else listed
        if len(found) != ask.count:
            raise BadKeys(f"{len(found)} keys came, the header says {ask.count}")
        return self._listed(found, covered)

    def _bounds(self, covered: Mask) -> tuple[int, int]:
        if covered is self.whole:
            return self._ends
        return int(self._starts[covered][0]), int(self._stops[covered][-1])

    def _listed(self, found: Keys, covered: Mask) -> Keys:
        low, high = self._bounds(covered)
        self._check_size(len(found))
        reason = self.table.check_keys(found)
        if reason is None and len(found) and not (low <= int(found[0]) and int(found[-1]) < high):
            reason = "a key is outside the segments that this message covers"
        if reason is not None:
            raise BadKeys(reason)
        return found

    def slot(self, push: m.Push) -> tuple[int, int] | None:
        """For a step table: the step and the place in it that this push fills."""
        apply = self.spec.apply
        if push.stream < 0 and push.stream != -push.incarnation:
            raise Invalid("a push in another client's stream")
        if not isinstance(apply, Step):
            return None
        if push.stream < 0:
            raise Invalid("values for this table are pushed as slots of a step: name the slot (pass, number)")
        if push.step > 0:
            raise Invalid("the steps of this table follow from its slots: a push names no other")
        return apply.step_of((push.stream, push.number)), push.number % apply.slots

    def only(self, given: KeyValues | None, wanted: Mask, covered: Mask) -> KeyValues | None:
        """The part of ``given`` that falls into these segments."""
        if given is None or wanted is covered or wanted[covered].all():
            return given
        keys = self.table.held(given.keys) if isinstance(given.keys, KeyRange) else given.keys
        inside = wanted[np.searchsorted(self._starts, keys, side="right") - 1]
        return KeyValues(keys[inside], np.ascontiguousarray(given.values[inside])) if inside.any() else None

    def work(self, keys: Keys | KeyRange) -> int:
        """How long a push or pull of these keys keeps a thread busy, in elements that are looked up one by one."""
        cost = self.table.cost(keys)
        return cost // _IN_A_ROW if isinstance(keys, KeyRange) and not isinstance(self.spec, Sparse) else cost

    def read(self, keys: Keys | KeyRange, form: Wire = "float32") -> tuple[list[m.Array], int, Wire]:
        """The arrays that answer a pull, where the rest of a long range starts (-1: there is none), and the form of values.

        That is the one asked for, unless some value is too large for it: a weight is never refused.
        """
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
    """In one message."""
    return max(1, limits.FRAME_BYTES // max(8, 4 * width))

"""Filters at a client, and error feedback: what they lose of a push is added to a later one.

A push is filtered once, in the loop, before it is split over servers: resends and other splits
carry the same values. Pulls name filters, too: their keys and answers are compressed, and values
come quantized unless the pull is exact.

Before a push is filtered, the residual of its keys is taken out and added to it. What the filters
leave out becomes the new residual once it is known that the push was counted:

    counted by this push                 the new residual is stored
    counted before, own number           it was this client's: the new residual is stored
    counted before, slot sent once       another worker's push was: the old residual goes back
    counted before, slot sent twice      unknown whose: neither; the norm is added to ``lost``
    failed for good                      the old residual goes back

Sums are float32, so this holds up to rounding. A network that duplicates messages and reorders the
answers could break the third rule; TCP and Unix sockets do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import BadFilter, BadValues, Invalid
from shoal.filters import are_known, described
from shoal.filters.base import Bytes, nonzero, taken
from shoal.filters.base import taken as taken_rows
from shoal.filters.chain import IN, OUT, Chain, Flow
from shoal.keys import KeyRange, Keys, KeyValues, Values
from shoal.limits import FRAME_BYTES
from shoal.store.client.split import Layout, ServerShare
from shoal.store.table.table import ServerTable
from shoal.store.table.update import known_rule
from shoal.tables import Dense, Sparse, Table, Update, Wire
from shoal.tables import Table as Spec
from shoal.wire import messages as m


class ErrorFeedback:
    """The residual of one table's pushes, at one client."""

    def __init__(self, spec: Spec) -> None:
        width = spec.push_width
        own: Spec = (
            Dense(rows=spec.rows, width=width, update=Update("sum"))
            if isinstance(spec, Dense)
            else Sparse(keys=spec.keys, hashed=spec.hashed, width=width, update=Update("sum"))
        )
        self._spec, self._span = own, KeyRange(0, own.span)
        self.forget()

    def forget(self) -> None:
        """Drop the residual: this incarnation is over, and the run may have rolled back."""
        self._clear()
        # The sum of the norms of residuals that were dropped: a bound on the loss.
        self.lost = 0.0

    def _clear(self) -> None:
        self._table, self._squares = ServerTable(self._spec, [self._span]), 0.0

    @property
    def norm(self) -> float:
        return math.sqrt(max(0.0, self._squares))

    def take(self, keys: Keys | KeyRange) -> Values:
        """Take out the residual of these keys."""
        found = self._table.pull(keys)
        self._add(keys, -found, found)
        return found

    def put(self, keys: Keys | KeyRange, values: Values) -> None:
        self._add(keys, values, self._table.pull(keys))

    def give_up(self, values: Values) -> None:
        self.lost += math.sqrt(_squares(values))

    def take_all(self) -> KeyValues:
        if isinstance(self._spec, Dense):
            keys, values = key_list(self._span), self._table.pull(self._span)
        else:
            keys, values, _ = self._table.pull_live(self._span, 1 << 62)
        some = nonzero(values)
        self._clear()
        return KeyValues(keys[some], taken(values, some))

    def _add(self, keys: Keys | KeyRange, values: Values, before: Values) -> None:
        some = nonzero(values)
        if not some.any():
            return
        if not some.all():
            keys, values, before = key_list(keys)[some], taken(values, some), taken(before, some)
        self._table.push(keys, values)
        self._squares += _squares(before.astype(np.float64) + values) - _squares(before)


class UnconfirmedPush:
    """A push in flight: its old and new residual, until it is known which one is stored."""

    def __init__(self, feedback: ErrorFeedback, keys: Keys | KeyRange, taken: Values, left: Values, slot: bool) -> None:
        self._feedback, self._keys, self._slot = feedback, keys, slot
        self._old, self._new = taken, left
        self._open = np.ones(len(taken), np.bool_)
        self._rows: dict[int, list[tuple[int, int]]] = {}  # by request
        self.resent = False  # was split and sent before

    def sent(self, request: int, layout: Layout, share: ServerShare) -> None:
        """This request covers all rows of a share's segments, also those that filters left out."""
        self._rows[request] = layout.rows_of(share, self._keys)

    def counted(self, request: int, again: bool, new: bool, part: bool) -> None:
        """A server has answered for its share."""
        mask = np.zeros(len(self._open), np.bool_)
        for start, stop in self._rows.pop(request, ()):
            mask[start:stop] = True
        mask &= self._open
        self._open &= ~mask
        if not self._slot or (new and not part):
            self._put(mask, self._new)
        elif not new and not (again or self.resent):
            self._put(mask, self._old)
        else:
            self._feedback.give_up(max(taken(self._old, mask), taken(self._new, mask), key=_squares))

    def end(self, failed: bool) -> None:
        mask, self._open = self._open, np.zeros(len(self._open), np.bool_)
        self._put(mask, self._old if failed else self._new)

    def _put(self, mask: Any, values: Values) -> None:
        if mask.all():
            self._feedback.put(self._keys, values)
        elif mask.any():
            self._feedback.put(key_list(self._keys)[mask], taken(values, mask))


def _squares(values: Any) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def key_list(keys: Keys | KeyRange) -> Keys:
    return np.arange(keys.start, keys.stop, dtype=np.uint64) if isinstance(keys, KeyRange) else keys


_LARGEST = float(np.finfo(np.float32).max)


def checked_chain(spec: Table, flow: Flow | None = None, warm: bool = False) -> Chain | None:
    """A table's filters, or None. Invalid if they do not exist or do not suit the table's rule."""
    if not spec.filters:
        return None
    chain = Chain(spec.filters, spec.wire, flow, warm)
    rule = known_rule(spec.update.name)
    if rule is not None and not rule.additive and (name := chain.needs_sums):
        raise Invalid(
            f"filter {name!r} sends a part of a push later, and update {rule.name!r} does not add up what is pushed: leave it "
            f"out (float16, bfloat16, delta, lz4 and zstd are fine there)"
        )
    return chain


def check_named(named: Sequence[str | Mapping[str, Any]], update: Update, wire: Wire, modules: bool) -> None:
    """Refuse a job's filters that cannot be; with ``modules`` servers check unknown ones."""
    filters = described(named)
    if are_known(filters) or not modules:
        checked_chain(Dense(rows=1, update=update, wire=wire, filters=filters))


class ClientFilters:
    def __init__(self, spec: Table, flow: Flow) -> None:
        chain = checked_chain(spec, flow, warm=True)
        assert chain is not None
        rule = known_rule(spec.update.name)
        adds = bool(chain.needs_sums) or (rule is not None and rule.additive)
        self.spec, self.chain, self.flow = spec, chain, flow
        self.feedback = ErrorFeedback(spec) if chain.loses and adds else None

    def facts(self) -> dict[str, Any]:
        """Bytes into and out of each filter, and the norms of the residual and of the loss."""
        left = (0.0, 0.0) if self.feedback is None else (self.feedback.norm, self.feedback.lost)
        return {**self.flow.by, "left": left[0], "lost": left[1]}

    def check(self, values: Values) -> None:
        """Refuse values that do not fit; with feedback, the rest of them comes later."""
        if self.feedback is None and self.chain.pushes is not None:
            name, by = self.chain.pushes
            cut = by.held(values) != values
            if cut.any():
                raise BadValues(
                    f"value {values[cut][0]:g} is more than filter {name!r} holds: nothing was sent; scale it down, or leave that filter out"
                )

    def prepare_rest(self, given: KeyValues) -> tuple[KeyValues, UnconfirmedPush | None]:
        """All that is held back, to be pushed unfiltered."""
        unconfirmed = None
        if self.feedback is not None:
            given = self.feedback.take_all()
            nothing = np.zeros_like(given.values)
            unconfirmed = UnconfirmedPush(self.feedback, given.keys, given.values, nothing, slot=False)
        self._count_push(given)
        return given, unconfirmed

    def prepare(
        self, given: KeyValues, name: tuple[int, int, int], slot: bool, may_choose: bool
    ) -> tuple[KeyValues, Bytes | None, UnconfirmedPush | None]:
        """Sparsify and quantize a push, once: what is sent, the head of its values, the residual.

        ``name`` is unique to the push. ``may_choose``: keys may be left out.
        """
        keys, width = given.keys, self.spec.push_width
        plain = self._count_push(given)
        if not len(given) or not self.chain.loses:
            return given, None, None
        taken = np.zeros((len(given), width), np.float32) if self.feedback is None else self.feedback.take(keys)
        with np.errstate(over="ignore"):
            total = np.clip(given.values.astype(np.float32) + taken, -_LARGEST, _LARGEST)
        seed = _seed(*name)
        try:
            mask = self.chain.chosen(total, seed, not isinstance(keys, KeyRange)) if may_choose else None
            going = total if mask is None else taken_rows(total, mask)
            if self.feedback is not None and self.chain.pushes is not None:
                going = self.chain.pushes[1].held(going)
            codes, head = self.chain.shortened(going, seed)
            arrives = self.chain.arrives(codes, head, width)
        except Exception:
            self.flow.add("all", OUT, -plain, 0)  # nothing was sent
            if self.feedback is not None:
                self.feedback.put(keys, taken)
            raise
        unconfirmed = None
        if self.feedback is not None:
            left = total
            if mask is None:
                left = total - arrives
            else:
                left[np.flatnonzero(mask)] -= arrives
            unconfirmed = UnconfirmedPush(self.feedback, keys, taken, left, slot)
        return KeyValues(keys if mask is None else key_list(keys)[mask], codes), head, unconfirmed

    def _count_push(self, given: KeyValues) -> int:
        plain = len(given) * (8 * (not isinstance(given.keys, KeyRange)) + 4 * self.spec.push_width)
        self.flow.add("all", OUT, plain, 0)
        return plain

    def pushed(self, head: Bytes | None, arrays: list[m.Array], ahead: int) -> list[m.Array]:
        found = self.chain.pushed(arrays, head, self.spec.push_width) if arrays else arrays
        self.flow.add("all", OUT, 8 * max(0, ahead), sum(array.nbytes for array in found))
        return found

    def asked(self, rows: int, arrays: list[m.Array]) -> list[m.Array]:
        """The keys of a pull, unless they are known by a number; it names ``rows`` keys."""
        found = self.chain.asked(arrays)
        self.flow.add("all", OUT, 8 * rows, sum(array.nbytes for array in found))
        return found

    def opened(self, answer: m.Message, arrays: m.Arrays) -> m.Arrays | None:
        """The arrays of an answer, or None if they make no sense."""
        if not isinstance(answer, m.Values) or not arrays:
            return arrays
        width = self.spec.width
        sent = sum(array.nbytes for array in arrays)
        if not answer.filtered:
            self.flow.add("all", IN, sent, sent)
            return arrays
        if answer.count > FRAME_BYTES // max(8, 4 * width):
            return None
        try:
            found = self.chain.opened_answer(arrays, answer.count, width, answer.form)
        except BadFilter:
            raise
        except BadValues:
            return None
        self.flow.add("all", IN, answer.count * (4 * width + 8 * (len(arrays) - 1)), sent)
        return found


def _seed(first: int, second: int, table: int) -> int:
    mixed = (first + 1) * 0x9E3779B97F4A7C15 + (second + 1) * 0xBF58476D1CE4E5B9 + (table + 1) * 0x94D049BB133111EB
    return mixed & 0xFFFFFFFFFFFFFFFF

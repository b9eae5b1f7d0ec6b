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
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadFilter, BadValues, Invalid
from shoal.filters import are_known, described
from shoal.filters.base import nonzero, taken
from shoal.filters.base import taken as taken_rows
from shoal.filters.chain import Chain, Flow
from shoal.keys import KeyList, KeyRange, Keys, KeyValues, Values
from shoal.limits import FRAME_BYTES
from shoal.store.client.split import Layout, ServerShare
from shoal.store.table.table import ServerTable
from shoal.store.table.update import known_rule
from shoal.tables import Dense, Sparse, Table, Update, Wire
from shoal.tables import Table as Spec
from shoal.wire import messages as m

if TYPE_CHECKING:
    from shoal.store.client.operation import PushOperation


class ErrorFeedback:
    """The residual of one table's pushes, at one client."""

    def __init__(self, spec: Spec) -> None:
        width = spec.push_width
        own: Spec = (
            Dense(rows=spec.rows, width=width, update=Update("sum"))
            if isinstance(spec, Dense)
            else Sparse(keys=spec.keys, hashed=spec.hashed, width=width, update=Update("sum"))
        )
        self._spec = own
        self._table = ServerTable(own, [KeyRange(0, own.span)])
        self._squares = 0.0
        self._lost = 0.0

    @property
    def norm(self) -> float:
        """The norm of the residual."""
        return math.sqrt(max(0.0, self._squares))

    @property
    def lost(self) -> float:
        """The norms of residuals that were counted for nobody, added up: a bound on the loss."""
        return self._lost

    def take(self, keys: Keys | KeyRange) -> Values:
        """Take out the residual of these keys."""
        found = self._table.pull(keys)
        self._add(keys, -found, found)
        return found

    def put(self, keys: Keys | KeyRange, values: Values) -> None:
        self._add(keys, values, self._table.pull(keys))

    def give_up(self, values: Values) -> None:
        self._lost += math.sqrt(_squares(values))

    def take_all(self) -> KeyValues:
        """Take out the whole residual."""
        span = KeyRange(0, self._spec.span)
        if isinstance(self._spec, Dense):
            values = self._table.pull(span)
            some = np.flatnonzero(nonzero(values)).astype(np.uint64)
            found = KeyValues(some, values[some.astype(np.intp)])
        else:
            keys, values, _ = self._table.pull_live(span, 1 << 62)
            alive = nonzero(values)
            found = KeyValues(keys[alive], taken(values, alive))
        self._table = ServerTable(self._spec, [span])
        self._squares = 0.0
        return found

    def forget(self) -> None:
        """This incarnation is over, and the run may have rolled back: drop the residual."""
        self._table = ServerTable(self._spec, [KeyRange(0, self._spec.span)])
        self._squares = self._lost = 0.0  # the coordinator has counted it

    def _add(self, keys: Keys | KeyRange, values: Values, before: Values) -> None:
        some = nonzero(values)
        if not some.any():
            return
        if not some.all():
            listed = np.arange(keys.start, keys.stop, dtype=np.uint64) if isinstance(keys, KeyRange) else keys
            keys, values, before = listed[some], taken(values, some), taken(before, some)
        self._table.push(keys, values)
        self._squares += _squares(before.astype(np.float64) + values) - _squares(before)


class UnconfirmedPush:
    """A push under way: its old and new residual, until it is known which one holds."""

    def __init__(self, feedback: ErrorFeedback, keys: Keys | KeyRange, taken: Values, left: Values, slot: bool) -> None:
        self._feedback, self._keys, self._slot = feedback, keys, slot
        self._taken, self._left = taken, left
        self._open = np.ones(len(taken), np.bool_)
        self._rows: dict[int, list[tuple[int, int]]] = {}  # by request
        self.resent = False  # was split and sent before

    def sent(self, request: int, layout: Layout, share: ServerShare) -> None:
        """This request speaks for all rows of a share's segments, also for those left out of it."""
        self._rows[request] = layout.rows_of(share, self._keys)

    def counted(self, request: int, again: bool, new: bool, part: bool) -> None:
        """A server has answered for its share."""
        mask = np.zeros(len(self._open), np.bool_)
        for start, stop in self._rows.pop(request, ()):
            mask[start:stop] = True
        mask &= self._open
        self._open &= ~mask
        if not self._slot or (new and not part):
            self._put(mask, self._left)
        elif not new and not (again or self.resent):
            self._put(mask, self._taken)
        else:
            self._feedback.give_up(max(taken(self._taken, mask), taken(self._left, mask), key=_squares))

    def end(self, failed: bool) -> None:
        """No more answers will come."""
        mask, self._open = self._open, np.zeros(len(self._open), np.bool_)
        self._put(mask, self._taken if failed else self._left)

    def _put(self, mask: Any, values: Values) -> None:
        if mask.all():
            self._feedback.put(self._keys, values)
        elif mask.any():
            keys = self._keys
            listed = np.arange(keys.start, keys.stop, dtype=np.uint64) if isinstance(keys, KeyRange) else keys
            self._feedback.put(listed[mask], taken(values, mask))


def _squares(values: Any) -> float:
    return float(np.square(values, dtype=np.float64).sum())


_TO, _FROM = 0, 2
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
    """Refuse a job's filters that cannot be; with ``modules`` servers judge unknown ones."""
    filters = described(named)
    if are_known(filters) or not modules:
        checked_chain(Dense(rows=1, update=update, wire=wire, filters=filters))


class ClientFilters:
    """One table's filters at one client."""

    def __init__(self, spec: Table, flow: Flow) -> None:
        chain = checked_chain(spec, flow, warm=True)
        assert chain is not None
        rule = known_rule(spec.update.name)
        adds = bool(chain.needs_sums) or (rule is not None and rule.additive)
        self.spec, self.chain, self.flow = spec, chain, flow
        self.feedback = ErrorFeedback(spec) if chain.loses and adds else None

    def facts(self) -> dict[str, Any]:
        """Bytes into and out of each filter, and the norms of what is held back and lost."""
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

    # ------------------------------------------------------------ pushes

    def prepare(self, incarnation: int, op: PushOperation) -> None:
        """Sparsify and quantize a push, once."""
        if op.exact and self.feedback is not None:
            op.given = self.feedback.take_all()
            op.unconfirmed = UnconfirmedPush(
                self.feedback, op.given.keys, op.given.values, np.zeros_like(op.given.values), slot=False
            )
        keys, values = op.given.keys, op.given.values
        listed = not isinstance(keys, KeyRange)
        rows, width = len(values), self.spec.push_width
        plain = rows * (8 * listed + 4 * width)
        self.flow.went(_TO, plain, 0)
        if op.exact or not rows or not self.chain.loses:
            return
        taken = np.zeros((rows, width), np.float32) if self.feedback is None else self.feedback.take(keys)
        with np.errstate(over="ignore"):
            total = np.clip(values.astype(np.float32) + taken, -_LARGEST, _LARGEST)
        seed = _seed(op.slot or (incarnation, op.number or 0), op.table)
        try:
            mask = self.chain.chosen(total, seed, listed) if self._may_choose(op, rows) else None
            going = total if mask is None else taken_rows(total, mask)
            if self.feedback is not None and self.chain.pushes is not None:
                going = self.chain.pushes[1].held(going)
            codes, op.head = self.chain.shortened(going, seed)
            arrives = self.chain.arrives(codes, op.head, width)
        except Exception:
            self.flow.went(_TO, -plain, 0)  # nothing was sent
            if self.feedback is not None:
                self.feedback.put(keys, taken)
            raise
        if self.feedback is not None:
            left = total
            if mask is None:
                left = total - arrives
            else:
                left[np.flatnonzero(mask)] -= arrives
            op.unconfirmed = UnconfirmedPush(self.feedback, keys, taken, left, slot=op.slot is not None)
        if mask is not None:
            whole = np.arange(keys.start, keys.stop, dtype=np.uint64) if isinstance(keys, KeyRange) else keys
            if op.pull and op.ahead is None:
                op.look_ahead(op.listed or KeyList(whole))  # the rows of all keys are wanted
            keys = whole[mask]
        op.given = KeyValues(keys, codes)

    def _may_choose(self, op: PushOperation, rows: int) -> bool:
        """Whether keys may be left out: if rows come back, one message holds both lists."""
        return not op.pull or op.ahead is not None or rows <= FRAME_BYTES // (16 * op.row_bytes)

    def pushed(self, op: PushOperation, arrays: list[m.Array], ahead: int) -> list[m.Array]:
        found = self.chain.pushed(arrays, op.head, self.spec.push_width) if arrays else arrays
        self.flow.went(_TO, 8 * max(0, ahead), sum(array.nbytes for array in found))
        return found

    # ------------------------------------------------------------ pulls and answers

    def asked(self, rows: int, arrays: list[m.Array]) -> list[m.Array]:
        """The keys of a pull, unless they are known by a number; it names ``rows`` keys."""
        found = self.chain.asked(arrays)
        self.flow.went(_TO, 8 * rows, sum(array.nbytes for array in found))
        return found

    def opened(self, answer: m.Message, arrays: m.Arrays) -> m.Arrays | None:
        """The arrays of an answer, or None if they make no sense."""
        if not isinstance(answer, m.Values) or not arrays:
            return arrays
        width = self.spec.width
        sent = sum(array.nbytes for array in arrays)
        if not answer.filtered:
            self.flow.went(_FROM, sent, sent)
            return arrays
        if answer.count > FRAME_BYTES // max(8, 4 * width):
            return None
        try:
            found = self.chain.opened_answer(arrays, answer.count, width, answer.form)
        except BadFilter:
            raise
        except BadValues:
            return None
        self.flow.went(_FROM, answer.count * (4 * width + 8 * (len(arrays) - 1)), sent)
        return found


def opened_request(chain: Chain | None, ask: m.Push | m.Pull, arrays: m.Arrays, width: int) -> m.Arrays:
    """The arrays of a request, at a server; ``BadValues`` if they make no sense."""
    if not ask.filtered:
        return arrays
    if chain is None:
        raise Invalid("this message went through filters, and the table has none: refresh the view")
    if isinstance(ask, m.Pull):
        return chain.opened_pull(arrays, ask.count)
    return chain.opened_push(arrays, ask.count, ask.ahead, width, ask.form)


def _seed(name: tuple[int, int], table: int) -> int:
    """A seed from a push's name: the same wherever it is computed."""
    first, second = name
    mixed = (first + 1) * 0x9E3779B97F4A7C15 + (second + 1) * 0xBF58476D1CE4E5B9 + (table + 1) * 0x94D049BB133111EB
    return mixed & 0xFFFFFFFFFFFFFFFF

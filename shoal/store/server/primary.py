"""The segments of one table that one server is primary of, from push to pull.

Each segment has a version, a ledger and the workers' clocks, kept as small arrays with one entry
per segment: one message is one question to each, however many segments it covers. A push is
counted once in every segment it covers, or not at all there. A pull is answered when the table's
rule allows it; until then the client hears, once a second, what it waits for.

    apply = each    counted on arrival; pulls wait for the slowest worker's clock
    apply = step    held until all slots of the step are here; pulls wait for the segment's version

One step at a time is on its way to the backups. A snapshot at a step is taken when every segment
has reached it, before any goes on.

A sparse table admits a key after enough pushes, and evicts rows that are zero again. The primary
decides both. Admission comes before a change, so backups never see the rest. Eviction is a change
of its log, kind ``evict``, which says when and not which: replicas have the same zeros. A sweep is
due when rows have doubled since the last one, or four times as many keys were pushed as there are
rows.

Nothing here knows who is a member: ``nodes.server`` has checked that. Long computations are handed
out (``LongComputation``), and everything else waits until they are back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.limits import EVICT_ROWS
from shoal.store.server.aggregate import OpenStep, SlotPiece
from shoal.store.server.key_lists import KeyLists
from shoal.store.server.ledger import Mask, Numbers
from shoal.store.server.load import SegmentLoad
from shoal.store.server.outcome import HandlerResult, Later, LongComputation, Requester
from shoal.store.server.replicate import LogEntry, ReplicationLog
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.admission import Admission
from shoal.store.table.slab import SparseRows
from shoal.store.table.table import Ground
from shoal.tables import Each, Sparse, Step, Wire
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send
from shoal.wire.messages.base import Events

Then = Callable[[int, KeyValues | None], HandlerResult]
_Found = tuple[list[m.Array], int, Wire, int]  # arrays, start of the rest, form of values, rows


class Primary(SegmentState):
    """The segments of one table that one server is primary of."""

    def __init__(
        self,
        number: int,
        spec: Spec,
        held: Sequence[tuple[int, KeyRange]],
        inline: int,
        log: ReplicationLog | None = None,
        ground: Ground | None = None,
    ) -> None:
        super().__init__(number, spec, held, ground)
        self.inline, self.log = inline, log or ReplicationLog(number, 0)
        self.staleness: Numbers = np.zeros(limits.STALENESS_BUCKETS, np.int64)
        self.counts: Counter[str] = Counter()
        self.handles = KeyLists(0)  # the server sets its own
        self.asked = SegmentLoad(spec, held)
        self._open: dict[int, OpenStep] = {}  # by step
        # Pushes: step, slot, requester.
        self._held: dict[tuple[str, int], tuple[int, int, Requester]] = {}
        self._waiting: dict[tuple[str, int], Requester] = {}  # pulls
        self._promised: dict[tuple[str, int], Requester] = {}  # waits until it is on all replicas
        self._writing = False  # a change is being written off the loop
        # Workers, all members: by the last view.
        self.present: tuple[dict[int, str], dict[int, str]] | None = None
        self._cut: tuple[int, Later] | None = None  # a snapshot is wanted at this version
        # A step is on its way to the backups.
        self._closing = any(entry.change.kind == "step" for entry in self.log.entries)
        rows = self.table.part
        counts = isinstance(spec, Sparse) and spec.admit > 1 and isinstance(rows, SparseRows)
        self._admission = Admission(rows, spec.admit, spec.span) if counts else None  # type: ignore[arg-type, union-attr]
        self._by_rows = isinstance(spec, Sparse) and spec.evict and isinstance(spec.apply, Each)
        self._after_sweep: int | None = None  # rows after the last sweep
        self._since = 0  # keys pushed since the last sweep

    def succeed(self, before: Primary, same: Mapping[int, int]) -> None:
        """Take over from ``before``; ``same`` segments: number now -> number then."""
        self.staleness, self.counts = before.staleness, before.counts
        self.asked.follow(before.asked, same)
        self._admission, self._since = before._admission, before._since
        if self._admission is not None:
            self._admission.hold()

    # ------------------------------------------------------------ the view

    def take_members(self, workers: dict[int, str], clients: dict[int, str]) -> HandlerResult:
        """Take the live incarnations from a new view: nobody waits for the departed."""
        self.present = workers, clients
        departed = self.live(workers, clients)
        for asked in (self._waiting, self._promised):
            for key in [key for key, asker in asked.items() if asker.ask.incarnation not in clients]:
                del asked[key]
        for key in [key for key, (_, _, asker) in self._held.items() if asker.ask.incarnation not in clients]:
            # Its slot stays: it may still be counted.
            del self._held[key]
        return self._release() if departed else HandlerResult()

    def set_delay(self, spec: Spec) -> HandlerResult:
        """Change the table's ``max_delay``."""
        self.spec = spec
        self.clocks.max_delay = spec.max_delay
        return self._release()

    def refuse_waiting(self, view: int) -> list[Effect]:
        """The segments change: all who wait must ask again, by this view."""
        asked = {**self._waiting, **self._promised, **{key: asker for key, (_, _, asker) in self._held.items()}}
        return [Send(asker.name, m.SegmentsMoved(asker.ask.request, view)) for asker in asked.values()]

    # ------------------------------------------------------------ push

    def push(self, now: int, sender: str, push: m.Push, sent: m.Arrays) -> HandlerResult:
        """Count a push in the segments that it covers, once; or hold the slot of a step."""
        try:
            covered = self.extent.covered(push.first, push.last)
            if (arrays := self.handles.whole(push, self.extent.opened(push, sent), self.table)) is None:
                return HandlerResult([Send(sender, m.Forgot(push.request))])
            given = self.extent.given(push, arrays, covered)
            asked = self.extent.ahead(push, arrays, covered) if push.ahead >= 0 else _asked(given)
            slot = self.extent.slot(push)
        except Invalid as error:
            return self._refuse(sender, push.request, error)
        self.counts["bytes in"] += sum(array.nbytes for array in sent)
        if given is not None:
            self.asked.note(given.keys)
        if push.pull:
            self.asked.note(asked)
        asker = Requester(sender, push, asked, now, covered)
        if self._promised and asker.id in self._promised:
            return self._notify_promised(now, asker)
        if slot is not None:
            return self._push_slot(now, asker, slot, given)
        if self.log.is_full:
            self.counts["copies behind"] += 1
            return self._busy(asker, self.log.waits_for())
        return self._push_each(now, asker, given)

    def _push_each(self, now: int, asker: Requester, given: KeyValues | None) -> HandlerResult:
        """Count a push now, in the segments that have not counted it."""
        push = asker.ask
        assert isinstance(push, m.Push)
        stream = self.ledger.stream(push.stream)
        floor = push.floor if push.stream < 0 else 0
        if not stream.fits(push.number, floor) or not self.clocks.fits(push.incarnation, push.step):
            reason = (
                f"number {push.number}, step {push.step}: more than {limits.LEDGER_WINDOW:,} ahead of the first missing"
            )
            return self._refuse(asker.name, push.request, Invalid(reason))
        fresh = stream.fresh(push.number, asker.covered)
        if fresh is not None and (waits := self.log.pending(push.stream, push.number)) is not None:
            fresh = fresh & ~waits if (fresh & ~waits).any() else None
        if fresh is None:
            return self._counted_before(now, asker)
        asker.part = fresh is not asker.covered and not (fresh == asker.covered).all()
        counts = self._damped(self.extent.only(given, fresh, asker.covered), push.read, fresh)

        def make(now: int, counts: KeyValues | None) -> HandlerResult:
            outcome = self._make(now, self._change(push, "push", fresh), counts, asker, fresh)
            if asker.part:
                outcome += self._make(now, self._change(push, "tick", asker.covered), None, None, asker.covered)
            return outcome

        return self.admitted(now, counts, make)

    def _counted_before(self, now: int, asker: Requester) -> HandlerResult:
        """The push was counted already, perhaps for another worker; the clock ticks anyway."""
        push = asker.ask
        assert isinstance(push, m.Push)
        self.counts["repeated"] += 1
        return self._make(now, self._change(push, "tick", asker.covered), None, asker, asker.covered)

    def _change(self, push: m.Push, kind: str, segments: Mask) -> m.ReplicatedChange:
        return m.ReplicatedChange(
            0,
            kind,
            only=[] if segments is self.extent.whole else self.extent.named(segments),
            stream=push.stream,
            number=push.number,
            floor=push.floor,
            incarnation=push.incarnation,
            step=push.step,
            spell=push.spell,
            entered=push.entered,
        )

    def _answer_push(self, now: int, asker: Requester, new: bool) -> HandlerResult:
        push = asker.ask
        assert isinstance(push, m.Push)
        asker.new = new
        if push.pull:
            return self._pull(now, asker)
        return HandlerResult([Send(asker.name, m.Counted(push.request, new, new and asker.part))])

    def _refuse(self, sender: str, request: int, error: Invalid) -> HandlerResult:
        self.counts["refused"] += 1
        kind = "keys" if isinstance(error, BadKeys) else "values" if isinstance(error, BadValues) else "setting"
        return HandlerResult([Send(sender, m.Refusal(request, kind, str(error)))])

    def _busy(self, asker: Requester, why: str) -> HandlerResult:
        self.counts["busy"] += 1
        return HandlerResult([Send(asker.name, m.Busy(asker.ask.request, limits.BUSY_RETRY, why))])

    def _full(self, asker: Requester, given: KeyValues) -> HandlerResult:
        reason = f"no memory for {len(given)} more rows: add servers, or push fewer new keys"
        return HandlerResult([Send(asker.name, m.Refusal(asker.ask.request, "full", reason))])

    # ------------------------------------------------------------ slots of a step

    def _push_slot(self, now: int, asker: Requester, slot: tuple[int, int], given: KeyValues | None) -> HandlerResult:
        """Hold a slot of a step, and close the step if it was the last."""
        step, place = slot
        push = asker.ask
        assert isinstance(push, m.Push) and isinstance(self.spec.apply, Step)
        if (self.version[asker.covered] > step).all():
            self.counts["repeated"] += 1
            return self._answer_push(now, asker, new=False)
        oldest = int(self.version.min())
        if step - oldest >= limits.STEPS_AHEAD or (step > oldest and self._held_bytes() > limits.HELD_BYTES):
            return self._busy(asker, f"step {step} is too far ahead of {self._missing(oldest, '')}")
        opened = self._open.get(step)
        if opened is None:
            opened = self._open[step] = OpenStep.of(step, self.spec.apply.slots_in(step), len(self.extent))
        fresh = asker.covered & (self.version <= step) & ~opened.have[:, place]
        if fresh.any():
            opened.add(place, SlotPiece(fresh, self.extent.only(given, fresh, asker.covered), push.void))
            if push.read:
                self._record_staleness(step, push.read, fresh)
            if push.void:
                self.counts["void"] += 1
        else:
            self.counts["held again"] += 1
            asker.new = self._is_its_own(asker, step, place)
        self._held[asker.id] = (step, place, asker)
        outcome = self._close_steps(now)
        if asker.id in self._held:
            outcome.effects.append(self._notify_held(now, step, asker))
        return outcome

    def _is_its_own(self, asker: Requester, step: int, place: int) -> bool:
        """Whether the slot held already came from this very worker, perhaps by another view."""
        held = (one for at, where, one in self._held.values() if (at, where) == (step, place))
        return any(one.new and one.ask.incarnation == asker.ask.incarnation for one in held)

    def _close_steps(self, now: int) -> HandlerResult:
        """Take the next step if all its slots are here; one at a time."""
        apply = self.spec.apply
        assert isinstance(apply, Step)
        step = int(self.version.min())
        opened = self._open.get(step)
        if opened is None or self._closing:
            return HandlerResult()
        if self._cut is not None and step >= self._cut[0]:
            outcome = self._cut_now(now)
            outcome.works.append(LongComputation(lambda: None, self._close_steps, None))
            return outcome
        ready = opened.complete() & (self.version == step)
        if not ready.any():
            return HandlerResult()
        total = opened.total(apply.combine == "mean", self.table.held)
        if total is not None and not ready.all():
            total = self.extent.only(total, ready, self.extent.whole)
        ready = self.extent.whole if ready.all() else ready
        self._closing = True
        change = m.ReplicatedChange(0, "step", only=self.extent.named(ready))
        return self.admitted(now, total, lambda now, total: self._make(now, change, total, None, ready))

    def _closed(self, now: int, entry: LogEntry) -> HandlerResult:
        """A step is taken: answer its pushes, and go on with the next."""
        self._closing = False
        if not entry.segments.any():  # all have another primary by now
            return self._close_steps(now)
        self.counts["steps"] += 1
        step = int(self.version[entry.segments].max()) - 1
        if (self.version > step).all():
            self._open.pop(step, None)
        outcome = HandlerResult()
        for asker in self._taken(step):
            outcome += self._answer_push(now, asker, new=asker.new)
        outcome += self._release()
        if self._cut is not None and int(self.version.min()) >= self._cut[0]:
            outcome += self._cut_now(now)
        if not outcome.works:
            return outcome + self._close_steps(now)
        # Long pulls read this version: the next step must not be taken before they have.
        outcome.works.append(LongComputation(lambda: None, self._close_steps, None))
        return outcome

    def _taken(self, step: int) -> list[Requester]:
        """Those whose slot of this step is now counted in all segments they named."""
        counted = [
            key for key, (of, _, one) in self._held.items() if of == step and (self.version[one.covered] > step).all()
        ]
        return [self._held.pop(key)[2] for key in counted]

    def _held_bytes(self) -> int:
        return sum(opened.size for opened in self._open.values())

    # ------------------------------------------------------------ changes

    def _make(
        self,
        now: int,
        change: m.ReplicatedChange,
        given: KeyValues | None,
        asker: Requester | None,
        segments: Mask,
        later: Later | None = None,
    ) -> HandlerResult:
        """Replicate a change, then apply it; at once if there is nothing to wait for."""
        entry = LogEntry(change, given, segments, asker, later)
        log = self.log
        if not log.links and not log.entries and not self._writing:
            log.seq += 1
            entry.change = change
            return self._write(now, entry, log.seq)
        if asker is not None:
            self._promised[asker.id] = asker
        outcome = HandlerResult(list(log.append(now, entry, self.extent.ranges, self.extent.numbers)))
        return outcome + self.advance(now)

    def repeat(self, now: int, change: m.ReplicatedChange) -> HandlerResult:
        """Make a change that may be known: where it is, it changes nothing."""
        return self._make(now, change, None, None, self.extent.whole)

    def advance(self, now: int, at_once: bool = False) -> HandlerResult:
        """Apply, in order, the changes that all replicas have; one at a time."""
        inline = self.inline
        if at_once:
            self.inline = 1 << 62
        outcome = HandlerResult()
        while not self._writing and (entry := self.log.ready()) is not None:
            outcome += self._write(now, entry, entry.change.seq)
            if outcome.works:
                # A long pull reads first: the next change follows when it is done.
                if not self._writing:
                    outcome += self._next()
                break
        self.inline = inline
        return outcome

    def _write(self, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        """Apply the rows of a change: here if it is short, else off the loop."""
        change, given, asker, alone = entry.change, entry.given, entry.asker, not entry.change.seq
        work = self.work(change, given, entry.segments)
        if not work:
            return self._written(now, entry, seq)
        if work > self.inline:
            self._writing = True
            full = (lambda: self._was_full(asker, given)) if alone and asker is not None and given is not None else None
            write = lambda: self.write(change, given, entry.segments)  # noqa: E731
            return HandlerResult(works=[LongComputation(write, lambda now: self._was_written(now, entry, seq), full)])
        try:
            self.write(change, given, entry.segments)
        except MemoryError:
            # It is promised to the replicas: this server cannot go on.
            if not alone or asker is None or given is None:
                raise
            return self._full(asker, given)
        return self._written(now, entry, seq)

    def _was_written(self, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        self._writing = False
        outcome = self._written(now, entry, seq)
        return outcome + self._next() if self.log.entries else outcome

    def _was_full(self, asker: Requester, given: KeyValues) -> HandlerResult:
        self._writing = False
        outcome = self._full(asker, given)
        return outcome + self._next() if self.log.entries else outcome

    def _next(self) -> HandlerResult:
        """Go on with the log when all computations before this one are done."""
        return HandlerResult(works=[LongComputation(lambda: None, self.advance, None)])

    def _written(self, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        """The rows of a change are written: enter it into the books, and answer."""
        change, segments, asker = entry.change, entry.segments, entry.asker
        everywhere = segments is self.extent.whole
        if change.kind == "push":
            if change.step > 0 and self.clocks.is_ahead(change.incarnation, change.step):
                self.counts["out of order"] += 1
            if asker is not None and isinstance(asker.ask, m.Push) and asker.ask.read:
                known = self.version if everywhere else self.version[segments]
                self._record_staleness(known, asker.ask.read, segments)
            self.counts["counted"] += 1
        self.note(change, segments, everywhere, entry.given)
        self.swept()
        if change.incarnation and self.present is not None and change.incarnation not in self.present[1]:
            # It left while this was on its way to the backups: nobody may wait for it.
            self.live(*self.present)
        if change.seq:
            self.log.made(entry)
        else:
            self.log.applied = seq
        outcome = HandlerResult()
        if asker is not None:
            if change.seq:
                self._promised.pop(asker.id, None)
            if isinstance(asker.ask, m.Push):
                outcome += self._answer_push(now, asker, new=change.kind == "push")
            else:
                outcome += self._pull(now, asker)
        if entry.later is not None:
            outcome += entry.later(now)
        if change.kind == "step":
            return outcome + self._closed(now, entry)
        if change.kind == "push" and self.sweep_due(entry.given):
            outcome += self._make(now, m.ReplicatedChange(0, "evict"), None, None, self.extent.whole)
        return outcome + self._release()

    # ------------------------------------------------------------ pull

    def pull(self, now: int, sender: str, pull: m.Pull, sent: m.Arrays) -> HandlerResult:
        """Answer a pull as soon as the table's rule allows it."""
        try:
            if pull.enter and isinstance(self.spec.apply, Step):
                raise Invalid("a table that is updated in steps has no clocks to enter")
            covered = self.extent.covered(pull.first, pull.last)
            if (arrays := self.handles.whole(pull, self.extent.opened(pull, sent), self.table)) is None:
                return HandlerResult([Send(sender, m.Forgot(pull.request))])
            keys = self.extent.keys(pull, arrays[0] if arrays else None, covered)
        except Invalid as error:
            return self._refuse(sender, pull.request, error)
        self.asked.note(keys)
        asker = Requester(sender, pull, keys, now, covered)
        if self._promised and asker.id in self._promised:
            return self._notify_promised(now, asker)
        who, spell, at = pull.incarnation, pull.spell, pull.entered
        if pull.enter and not self.clocks.has_entered(who, spell):
            if (entry := self.log.coming("enter", who, spell)) is not None:
                # Of several requests of the worker the last one is answered.
                if entry.asker is not None:
                    self._promised.pop(entry.asker.id, None)
                entry.asker = self._promised[asker.id] = asker
                return HandlerResult()
            self.counts["returned from parking"] += self.clocks.is_parked(who, spell)
            level = self.clocks.level(who, at)
            change = m.ReplicatedChange(0, "enter", incarnation=who, spell=spell, entered=level, name=sender)
            return self._make(now, change, None, asker, self.extent.whole)
        if self.clocks.would_raise(who, spell, at):
            change = m.ReplicatedChange(0, "tick", incarnation=who, spell=spell, entered=at)
            return self._make(now, change, None, asker, self.extent.whole)
        return self._pull(now, asker)

    def _pull(self, now: int, asker: Requester) -> HandlerResult:
        if self._may_pull(asker):
            return self._read(asker)
        self.counts["waited"] += asker.id not in self._waiting
        self._waiting[asker.id] = asker
        asker.told = now
        return HandlerResult([Send(asker.name, m.PushHeld(asker.ask.request, self._waits_for(asker)))])

    def _may_pull(self, asker: Requester) -> bool:
        ask = asker.ask
        if ask.clock < 0 or (isinstance(ask, m.Pull) and ask.enter):
            return True
        if isinstance(self.spec.apply, Step):
            delay = self.spec.max_delay
            return delay is None or bool((self.version[asker.covered] >= ask.clock - delay).all())
        return self.clocks.may_pull(ask.clock, asker.covered)

    def _read(self, asker: Requester) -> HandlerResult:
        """Answer a pull: now if it is short, else off the loop, before the rows change."""
        if self.extent.work(asker.keys) <= self.inline:
            return HandlerResult([self._values(asker, *self._found(asker))])
        found: list[_Found] = []
        return HandlerResult(
            works=[
                LongComputation(
                    lambda: found.append(self._found(asker)),
                    lambda now: HandlerResult([self._values(asker, *found[0])]),
                    lambda: HandlerResult(
                        [Send(asker.name, m.Refusal(asker.ask.request, "full", "no memory for so many rows"))]
                    ),
                )
            ]
        )

    def _found(self, asker: Requester) -> _Found:
        """The rows of a pull, through the table's filters if it takes them."""
        arrays, resume, form = self.extent.read(asker.keys, asker.ask.form)
        count = len(arrays[-1]) // self.spec.width
        if asker.ask.filtered and self.extent.chain is not None:
            arrays = self.extent.chain.answer(arrays, self.spec.width)
        return arrays, resume, form, count

    def _values(self, asker: Requester, arrays: list[m.Array], resume: int, form: Wire, count: int) -> Effect:
        ask = asker.ask
        entered = m.NO_CLOCK
        if isinstance(ask, m.Pull) and ask.enter:
            entered = self.clocks.entered(ask.incarnation)
        versions: list[int] = self.version.tolist()
        if versions.count(versions[0]) == len(versions):
            del versions[1:]
        clocks = self._clocks(asker) if isinstance(ask, m.Pull) and ask.clocks else []
        self.counts["bytes out"] += sum(array.nbytes for array in arrays)
        if form != ask.form:
            self.counts["not shortened"] += 1
        values = m.Values(
            ask.request,
            count,
            versions,
            entered,
            resume,
            clocks,
            form,
            ask.filtered and self.extent.chain is not None,
            asker.new,
            asker.new and asker.part,
        )
        return Send(asker.name, values, arrays)

    def _clocks(self, asker: Requester) -> Events:
        """The vector clocks of the keys of a pull: of a list, those of its segments."""
        covered = [keys for keys, on in zip(self.extent.ranges, asker.covered, strict=True) if on]
        if isinstance(asker.keys, KeyRange):
            low, high = asker.keys.start, asker.keys.stop
            covered = [
                KeyRange(max(k.start, low), min(k.stop, high)) for k in covered if k.start < high and k.stop > low
            ]
        return [found for keys in covered for found in self.happened(keys)]

    def _release(self) -> HandlerResult:
        """Answer the pulls that may be answered now."""
        outcome = HandlerResult()
        for key in [key for key, asker in self._waiting.items() if self._may_pull(asker)]:
            outcome += self._read(self._waiting.pop(key))
        return outcome

    # ------------------------------------------------------------ workers that park

    def park(self, now: int, incarnation: int, spell: int, then: Later) -> HandlerResult:
        """End this spell of a worker; ``then`` answers once all replicas know."""
        # First, since it may be known here through a segment that came, and not to all replicas.
        if (entry := self.log.coming("park", incarnation, spell)) is not None:
            # Of several requests the last one is answered.
            entry.later = then
            return HandlerResult()
        never_came = not self.clocks.knows(incarnation) and not self.log.has_enter_of(incarnation)
        if never_came or self.clocks.has_parked(incarnation, spell):
            return then(now)
        change = m.ReplicatedChange(0, "park", incarnation=incarnation, spell=spell)
        return self._make(now, change, None, None, self.extent.whole, then)

    # ------------------------------------------------------------ which rows there are

    def admitted(self, now: int, given: KeyValues | None, then: Then) -> HandlerResult:
        """Call ``then`` with the rows of a push that are admitted."""
        if self._admission is None or given is None:
            return then(now, given)
        if self.extent.work(given.keys) <= self.inline:
            return then(now, self._admit(given))
        found: list[KeyValues | None] = []
        return HandlerResult(
            works=[LongComputation(lambda: found.append(self._admit(given)), lambda now: then(now, found[0]), None)]
        )

    def _admit(self, given: KeyValues) -> KeyValues | None:
        assert self._admission is not None
        found = self._admission.admit(given)
        self.counts["not admitted"] += len(given) - (0 if found is None else len(found))
        return found

    def sweep_due(self, given: KeyValues | None) -> bool:
        """Whether it is time to evict rows, after this push."""
        if not self._by_rows or given is None:
            return False
        rows = self.table.rows
        if self._after_sweep is None:  # the first rows may be just swept
            self._after_sweep = max(0, rows - len(given))
        self._since += len(given)
        if rows < EVICT_ROWS or (rows < 2 * self._after_sweep and self._since < 4 * rows):
            return False
        self._after_sweep, self._since = rows, 0
        return True

    def swept(self) -> None:
        """Count the rows that a change has evicted."""
        if self.evicted:
            self.counts["evicted"] += self.evicted
            self.evicted, self._after_sweep = 0, self.table.rows

    # ------------------------------------------------------------ staleness

    def _record_staleness(self, version: Numbers | int, read: list[int], fresh: Mask) -> None:
        age = self._age(version, read, fresh)
        if age >= 0:
            self.staleness[min(age, len(self.staleness) - 1)] += 1

    def _age(self, version: Numbers | int, read: list[int], fresh: Mask) -> int:
        """How many updates came between the read and now; -1: unknown."""
        if len(read) == 1 and fresh is self.extent.whole:
            return max(0, int(version) - read[0] if isinstance(version, int) else int(version.max()) - read[0])
        known = np.asarray(read, np.int64)
        if len(known) not in (1, len(fresh)):
            return -1  # read by another placement
        return max(0, int((np.asarray(version) - (known if len(known) == 1 else known[fresh])).max()))

    def _damped(self, given: KeyValues | None, read: list[int], fresh: Mask) -> KeyValues | None:
        """Scale a stale gradient down, if the table says so."""
        above = self.spec.apply.damp_above if isinstance(self.spec.apply, Each) else None
        if above is None or given is None or not read:
            return given
        version = self.version if fresh is self.extent.whole else self.version[fresh]
        if (age := self._age(version, read, fresh)) <= above:
            return given
        self.counts["damped"] += 1
        return KeyValues(given.keys, given.values * np.float32(above / age))

    # ------------------------------------------------------------ snapshots

    def cut(self, now: int, clock: int, then: Later) -> HandlerResult | None:
        """Call ``then`` when every segment is at version ``clock``. None: that is past."""
        if clock >= 0:
            if int(self.version.max()) > clock:
                return None
            if int(self.version.min()) < clock:
                self._cut = (clock, then)
                return HandlerResult()
        return then(now)

    def _cut_now(self, now: int) -> HandlerResult:
        assert self._cut is not None
        (_, then), self._cut = self._cut, None
        return then(now)

    # ------------------------------------------------------------ notices and facts

    def notices(self, now: int) -> list[Effect]:
        """Tell those who wait, now and then, for what."""
        effects: list[Effect] = []
        for asker in self._waiting.values():
            if now - asker.told >= self.log.timing.notice:
                asker.told = now
                effects.append(Send(asker.name, m.PushHeld(asker.ask.request, self._waits_for(asker))))
        for asker in self._promised.values():
            if now - asker.told >= self.log.timing.notice:
                effects += self._notify_promised(now, asker).effects
        for step, _, asker in self._held.values():
            if now - asker.told >= self.log.timing.notice:
                effects.append(self._notify_held(now, step, asker))
        return effects

    def facts(self) -> tuple[dict[str, int], list[int]]:
        facts = {
            "rows": self.table.rows,
            "bytes": self.table.memory,
            "layout": self.table.layout,
            "segments": len(self.extent),
            "version": int(self.version.min()),
            "waiting": len(self._waiting),
            "held": len(self._held) + len(self._promised),
            **self.counts,
        }
        if self.extent.chain is not None and self.extent.chain.failed:
            facts["filters failed"] = self.extent.chain.failed
        return facts, np.trim_zeros(self.staleness, "b").tolist()

    def _waits_for(self, asker: Requester) -> str:
        ask = asker.ask
        if isinstance(self.spec.apply, Step):
            wanted = ask.clock - (self.spec.max_delay or 0)
            return self._missing(int(self.version[asker.covered].min()), f"version {wanted}: ")
        return ", ".join(self.clocks.laggards(ask.clock)) or "its turn"

    def _notify_promised(self, now: int, asker: Requester) -> HandlerResult:
        asker.told = now
        return HandlerResult([Send(asker.name, m.PushHeld(asker.ask.request, self.log.waits_for()))])

    def _notify_held(self, now: int, step: int, asker: Requester) -> Effect:
        asker.told = now
        oldest = int(self.version.min())
        return Send(asker.name, m.PushHeld(asker.ask.request, self._missing(min(step, oldest), "")))

    def _missing(self, step: int, lead: str) -> str:
        opened = self._open.get(step)
        if opened is None:
            return f"{lead}step {step}, of which no slot is here"
        assert isinstance(self.spec.apply, Step)
        start = self.spec.apply.first_slot(step)
        missing = [start + place for place in opened.missing()]
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return f"{lead}slots {names} of step {step}" if missing else f"{lead}step {step}"


def _asked(given: KeyValues | None) -> Keys | KeyRange:
    return np.empty(0, np.uint64) if given is None else given.keys

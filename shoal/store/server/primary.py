"""The segments of one table on one server, from push to pull.

Each segment has a version, a ledger and the workers' clocks; all of them are kept as small arrays with one entry per
segment, so that one message is one question to each, however many segments it covers. A push is counted once in every
segment it covers, or not at all there; a pull is answered when the rule of the table allows it, and is told whom it
waits for until then.

    apply = each    counted on arrival; pulls wait for the slowest worker's clock
    apply = step    held until all slots of the step are here; pulls wait for the segment's version

Nothing here knows who is a member: ``nodes.server`` has checked that before. Long computations are handed out (see
``LongComputation``) and everything else waits until they are back.
"""

from __future__ import annotations

import numpy as np

from shoal import limits
from shoal.errors import Invalid
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.store.server.ledger import Mask
from shoal.store.server.outcome import (
    HandlerResult,
    Later,
    LongComputation,
    Requester,
)
from shoal.store.server.replicate import LogEntry
from shoal.store.server.sync_steps import Stepping
from shoal.tables import Step
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Send


class Segments(Stepping):
    """The segments of one table that one server is primary of."""

    def _begin(self) -> None:
        super()._begin()
        self._writing = False  # a change is being written off the loop
        self.present: tuple[dict[int, str], dict[int, str]] | None = None  # workers, everybody: by the last view

    # ------------------------------------------------------------ what the view says

    def heard_of(self, workers: dict[int, str], clients: dict[int, str]) -> HandlerResult:
        """Take the live incarnations from a new view: nobody waits for the departed."""
        self.present = workers, clients
        departed = self.live(workers, clients)
        for asked in (self._waiting, self._promised):
            for key in [key for key, asker in asked.items() if asker.ask.incarnation not in clients]:
                del asked[key]
        for key in [key for key, (_, _, asker) in self._held.items() if asker.ask.incarnation not in clients]:
            del self._held[key]  # its slot stays: it may be counted, only the answer has nobody to go to
        return self._release() if departed else HandlerResult()

    def set_delay(self, spec: Spec) -> HandlerResult:
        self.spec = spec
        self.clocks.max_delay = spec.max_delay
        return self._release()

    # ------------------------------------------------------------ push

    def push(self, now: int, sender: str, push: m.Push, sent: m.Arrays) -> HandlerResult:
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
            return self._told_promised(now, asker)
        if slot is not None:
            return self._push_slot(now, asker, slot, given)
        if self.log.is_full:
            self.counts["copies behind"] += 1
            return self._busy(asker, self.log.waits_for())
        return self._push_each(now, asker, given)

    def _push_each(self, now: int, asker: Requester, given: KeyValues | None) -> HandlerResult:
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
        """Counted for another worker, perhaps: this one has done the step all the same, and nobody may wait for it."""
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

    # ------------------------------------------------------------ changes, on all copies before they are made here

    def _make(
        self,
        now: int,
        change: m.ReplicatedChange,
        given: KeyValues | None,
        asker: Requester | None,
        segments: Mask,
        later: Later | None = None,
    ) -> HandlerResult:
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
        """Make the changes that all copies have, in order: while one is being written, the next ones wait."""
        inline = self.inline
        if at_once:
            self.inline = 1 << 62
        outcome = HandlerResult()
        while not self._writing and (entry := self.log.ready()) is not None:
            outcome += self._write(now, entry, entry.change.seq)
            if outcome.works:
                if not self._writing:  # somebody reads what is there now: the next one follows when it is read
                    outcome += self._next()
                break
        self.inline = inline
        return outcome

    def _write(self, now: int, entry: LogEntry, seq: int) -> HandlerResult:
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
            if not alone or asker is None or given is None:  # it is promised: this server cannot go on
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
        """What came meanwhile, when all that is to be done before it is done."""
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
            self.live(*self.present)  # it left while this was on its way to the copies: nobody may wait for it
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

    def _full(self, asker: Requester, given: KeyValues) -> HandlerResult:
        reason = f"no memory for {len(given)} more rows: add servers, or push fewer new keys"
        return HandlerResult([Send(asker.name, m.Refusal(asker.ask.request, "full", reason))])

    # ------------------------------------------------------------ answers

    def _answer_push(self, now: int, asker: Requester, new: bool) -> HandlerResult:
        push = asker.ask
        assert isinstance(push, m.Push)
        asker.new = new
        if push.pull:
            return self._pull(now, asker)
        return HandlerResult([Send(asker.name, m.Counted(push.request, new, new and asker.part))])

    # ------------------------------------------------------------ pull

    def pull(self, now: int, sender: str, pull: m.Pull, sent: m.Arrays) -> HandlerResult:
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
            return self._told_promised(now, asker)
        who, spell, at = pull.incarnation, pull.spell, pull.entered
        if pull.enter and not self.clocks.has_entered(who, spell):
            if (entry := self.log.coming("enter", who, spell)) is not None:
                if entry.asker is not None:  # another request of the same worker; who asks last is answered first
                    self._promised.pop(entry.asker.id, None)
                entry.asker = self._promised[asker.id] = asker
                return HandlerResult()
            self.counts["returned from parking"] += self.clocks.is_parked(who, spell)
            level = self.clocks.level(who, at)
            change = m.ReplicatedChange(0, "enter", incarnation=who, spell=spell, entered=level, name=sender)
            return self._make(now, change, None, asker, self.extent.whole)
        if self.clocks.would_hear(who, spell, at):
            change = m.ReplicatedChange(0, "tick", incarnation=who, spell=spell, entered=at)
            return self._make(now, change, None, asker, self.extent.whole)
        return self._pull(now, asker)

    # ------------------------------------------------------------ parking, notices, facts

    def park(self, now: int, incarnation: int, spell: int, then: Later) -> HandlerResult:
        """This spell of a worker is over. It asks until it is told that all copies know: they hear of it once."""
        # First: it may be known here since a segment came that knew it, and not to all copies.
        if (entry := self.log.coming("park", incarnation, spell)) is not None:
            entry.later = then  # who asks last is told: whoever asked before is the same, or has given up
            return HandlerResult()
        never_came = not self.clocks.knows(incarnation) and not self.log.has_enter_of(incarnation)
        if never_came or self.clocks.has_parked(incarnation, spell):
            return then(now)
        change = m.ReplicatedChange(0, "park", incarnation=incarnation, spell=spell)
        return self._make(now, change, None, None, self.extent.whole, then)


def _asked(given: KeyValues | None) -> Keys | KeyRange:
    return np.empty(0, np.uint64) if given is None else given.keys

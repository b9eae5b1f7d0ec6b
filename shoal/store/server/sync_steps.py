"""Steps: slots are held until all of a step are here, then it is taken at once, in all segments that have them.

One step at a time is on its way to the copies. A snapshot that is wanted at a step is cut when every segment has taken it, and before any
goes on. How a change is made, and who is answered how, is the matter of ``Segments``.
"""

from __future__ import annotations

from shoal import limits
from shoal.keys import KeyValues
from shoal.store.server.aggregate import OpenStep, SlotPiece
from shoal.store.server.ledger import Mask
from shoal.store.server.outcome import (
    HandlerResult,
    Later,
    LongComputation,
    Requester,
)
from shoal.store.server.replicate import LogEntry
from shoal.store.server.row_lifecycle import Tending
from shoal.tables import Step
from shoal.wire import messages as m


class Stepping(Tending):
    """The steps of the segments that a server is primary of."""

    def _begin(self) -> None:
        super()._begin()
        self._cut: tuple[int, Later] | None = None  # at this version somebody wants a snapshot
        # A step is on its way to the copies.
        self._closing = any(entry.change.kind == "step" for entry in self.log.entries)

    def _make(
        self,
        now: int,
        change: m.ReplicatedChange,
        given: KeyValues | None,
        asker: Requester | None,
        segments: Mask,
        later: Later | None = None,
    ) -> HandlerResult:
        raise AssertionError  # ``Segments`` does

    def _answer_push(self, now: int, asker: Requester, new: bool) -> HandlerResult:
        raise AssertionError

    # ------------------------------------------------------------ slots

    def _push_slot(self, now: int, asker: Requester, slot: tuple[int, int], given: KeyValues | None) -> HandlerResult:
        """A slot of a step: hold it, and close the step if it was the last."""
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
            outcome.effects.append(self._told_held(now, step, asker))
        return outcome

    def _is_its_own(self, asker: Requester, step: int, place: int) -> bool:
        """Whether the slot that is held already came from this very worker, perhaps by another view."""
        held = (one for at, where, one in self._held.values() if (at, where) == (step, place))
        return any(one.new and one.ask.incarnation == asker.ask.incarnation for one in held)

    def _close_steps(self, now: int) -> HandlerResult:
        """Take every step whose slots are all here, in order: one at a time."""
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
        """A step is taken: answer those whose slots were in it, and go on with the next."""
        self._closing = False
        if not entry.segments.any():  # all of them have another primary by now
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

    # ------------------------------------------------------------ snapshots

    def cut(self, now: int, clock: int, then: Later) -> HandlerResult | None:
        """Call this when every segment is as it is after so many steps, before any goes on. None: that is past."""
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

    def _taken(self, step: int) -> list[Requester]:
        """Those whose slot of this step is counted now in all the segments they named."""
        counted = [
            key for key, (of, _, one) in self._held.items() if of == step and (self.version[one.covered] > step).all()
        ]
        return [self._held.pop(key)[2] for key in counted]

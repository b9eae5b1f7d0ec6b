"""The segments of one table on one server, from push to pull.

Each segment has a version, a ledger and the workers' clocks; all of them are kept as small arrays with one entry per
segment, so that one message is one question to each, however many segments it covers. A push is counted once in every
segment it covers, or not at all there; a pull is answered when the rule of the table allows it, and is told whom it
waits for until then.

    apply = each    counted on arrival; pulls wait for the slowest worker's clock
    apply = step    held until all slots of the step are here; pulls wait for the segment's version

Nothing here knows who is a member: ``nodes.server`` has checked that before. Long computations are handed out (see
``Work``) and everything else waits until they are back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.store.aggregate import OpenStep, Piece
from shoal.store.clock import Clocks
from shoal.store.extent import Extent
from shoal.store.ledger import Marks, Mask, Numbers
from shoal.store.outcome import Asker, Outcome, Work
from shoal.tables import Step
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send


class Segments:
    """What one server holds of one table."""

    def __init__(self, number: int, spec: Spec, held: Sequence[tuple[int, KeyRange]], inline: int) -> None:
        self.number, self.spec, self.inline = number, spec, inline
        self.extent = Extent(spec, held)
        self.table = self.extent.table
        self.version: Numbers = np.zeros(len(held), np.int64)
        self.ledger = Marks(len(held))
        self.clocks = Clocks(len(held), spec.max_delay)
        self.staleness: Numbers = np.zeros(limits.STALENESS_BUCKETS, np.int64)
        self.counts: Counter[str] = Counter()
        self._open: dict[int, OpenStep] = {}  # by step
        self._held: dict[tuple[str, int], tuple[int, int, Asker]] = {}  # pushes: (step, slot, who asked)
        self._waiting: dict[tuple[str, int], Asker] = {}  # pulls

    # ------------------------------------------------------------ what the view says

    def live(self, workers: dict[int, str], clients: dict[int, str]) -> Outcome:
        """Take the live incarnations from a new view: nobody waits for the departed, and their streams are over."""
        for stream in self.ledger.streams():
            if stream < 0 and -stream not in clients:
                self.ledger.drop(stream)
        gone = [key for key, asker in self._waiting.items() if asker.ask.incarnation not in clients]
        for key in gone:
            del self._waiting[key]
        for key in [key for key, (_, _, asker) in self._held.items() if asker.ask.incarnation not in clients]:
            del self._held[key]  # its slot stays: it may be counted, only the answer has nobody to go to
        return self._release() if self.clocks.live(workers) else Outcome()

    def set_delay(self, spec: Spec) -> Outcome:
        self.spec = spec
        self.clocks.max_delay = spec.max_delay
        return self._release()

    # ------------------------------------------------------------ push

    def push(self, now: int, sender: str, push: m.Push, arrays: m.Arrays) -> Outcome:
        try:
            covered = self.extent.covered(push.first, push.last)
            given = self.extent.given(push, arrays, covered)
            asked = self.extent.ahead(push, arrays, covered) if push.ahead >= 0 else _asked(given)
            slot = self.extent.slot(push)
        except Invalid as error:
            return self._refuse(sender, push.request, error)
        asker = Asker(sender, push, asked, now, covered)
        self.clocks.heard(push.incarnation, push.spell, push.entered)
        if slot is not None:
            return self._push_slot(now, asker, slot, given)
        return self._push_each(now, asker, given)

    def _push_each(self, now: int, asker: Asker, given: KeyValues | None) -> Outcome:
        push = asker.ask
        assert isinstance(push, m.Push)
        stream = self.ledger.stream(push.stream)
        if push.stream < 0:
            stream.raise_to(push.floor)
        if not stream.fits(push.number) or not self.clocks.fits(push.incarnation, push.step):
            reason = (
                f"number {push.number}, step {push.step}: more than {limits.LEDGER_WINDOW:,} ahead of the first missing"
            )
            return self._refuse(asker.name, push.request, Invalid(reason))
        fresh = stream.fresh(push.number, asker.covered)
        if fresh is None:
            return self._counted_before(now, asker)
        given = self.extent.only(given, fresh, asker.covered)

        def counted(now: int) -> Outcome:
            if push.step > 0 and self.clocks.is_ahead(push.incarnation, push.step):
                self.counts["out of order"] += 1
            everywhere = fresh is self.extent.whole
            stream.add(push.number, fresh, everywhere)
            self.clocks.tick(push.incarnation, push.step, asker.covered, everywhere)
            if push.read:
                self._record_staleness(self.version if everywhere else self.version[fresh], push.read, fresh)
            if everywhere:
                self.version += 1
            else:
                self.version[fresh] += 1
            self.counts["counted"] += 1
            return self._answer_push(now, asker, new=True) + self._release()

        def full() -> Outcome:
            reason = f"no memory for {len(given or ())} more rows: add servers, or push fewer new keys"
            return Outcome([Send(asker.name, m.No(push.request, "full", reason))])

        return self._apply(now, given, counted, full)

    def _counted_before(self, now: int, asker: Asker) -> Outcome:
        push = asker.ask
        assert isinstance(push, m.Push)
        self.counts["repeated"] += 1
        # Counted for another worker, perhaps: this one has done the step all the same, and nobody may wait for it.
        self.clocks.tick(push.incarnation, push.step, asker.covered)
        return self._answer_push(now, asker, new=False) + self._release()

    def _push_slot(self, now: int, asker: Asker, slot: tuple[int, int], given: KeyValues | None) -> Outcome:
        """A slot of a step: hold it, and close the step if it was the last."""
        step, place = slot
        push = asker.ask
        assert isinstance(push, m.Push) and isinstance(self.spec.apply, Step)
        if (self.version[asker.covered] > step).all():
            return self._counted_before(now, asker)
        oldest = int(self.version.min())
        if step - oldest >= limits.STEPS_AHEAD or (step > oldest and self._held_bytes() > limits.HELD_BYTES):
            return self._busy(asker, f"step {step} is too far ahead of {self._missing(oldest, '')}")
        opened = self._open.get(step)
        if opened is None:
            opened = self._open[step] = OpenStep.of(step, self.spec.apply.slots_in(step), len(self.extent))
        fresh = asker.covered & (self.version <= step) & ~opened.have[:, place]
        if fresh.any():
            opened.add(place, Piece(fresh, self.extent.only(given, fresh, asker.covered), push.void))
            if push.read:
                self._record_staleness(step, push.read, fresh)
            if push.void:
                self.counts["void"] += 1
        else:
            self.counts["held again"] += 1
        self._held[asker.id] = (step, place, asker)
        outcome = self._close_steps(now)
        if asker.id in self._held:
            outcome.effects.append(self._told_held(now, step, asker))
        return outcome

    def _close_steps(self, now: int) -> Outcome:
        """Take every step whose slots are all here, in order."""
        apply = self.spec.apply
        assert isinstance(apply, Step)
        step = int(self.version.min())
        opened = self._open.get(step)
        if opened is None:
            return Outcome()
        ready = opened.complete() & (self.version == step)
        if not ready.any():
            return Outcome()
        total = opened.total(apply.combine == "mean", self.table.held)
        if total is not None and not ready.all():
            total = self.extent.only(total, ready, self.extent.whole)

        def closed(now: int) -> Outcome:
            self.version[ready] += 1
            self.counts["steps"] += 1
            if (self.version > step).all():
                del self._open[step]
            outcome = Outcome()
            for asker in self._taken(step):
                outcome += self._answer_push(now, asker, new=True)
            outcome += self._release()
            if not outcome.works:
                return outcome + self._close_steps(now)
            # Long pulls read this version: the next step must not be taken before they have.
            outcome.works.append(Work(lambda: None, self._close_steps, None))
            return outcome

        return self._apply(now, total, closed)

    def _taken(self, step: int) -> list[Asker]:
        """Those whose slot of this step is counted now in all the segments they named."""
        counted = [
            key for key, (of, _, one) in self._held.items() if of == step and (self.version[one.covered] > step).all()
        ]
        return [self._held.pop(key)[2] for key in counted]

    def _apply(
        self,
        now: int,
        given: KeyValues | None,
        then: Callable[[int], Outcome],
        full: Callable[[], Outcome]
        | None = None,  # a step that cannot be taken ends the server: its slots are promised
    ) -> Outcome:
        if given is None or not len(given.values):
            return then(now)
        table, keys, values = self.table, given.keys, given.values
        if self.extent.work(keys) > self.inline:
            return Outcome(works=[Work(lambda: table.push(keys, values), then, full)])
        try:
            table.push(keys, values)
        except MemoryError:
            if full is None:
                raise
            return full()
        return then(now)

    def _answer_push(self, now: int, asker: Asker, new: bool) -> Outcome:
        push = asker.ask
        assert isinstance(push, m.Push)
        if push.pull:
            return self._pull(now, asker)
        return Outcome([Send(asker.name, m.Counted(push.request, new))])

    # ------------------------------------------------------------ pull

    def pull(self, now: int, sender: str, pull: m.Pull, arrays: m.Arrays) -> Outcome:
        try:
            if pull.enter and isinstance(self.spec.apply, Step):
                raise Invalid("a table that is updated in steps has no clocks to enter")
            covered = self.extent.covered(pull.first, pull.last)
            keys = self.extent.keys(pull, arrays[0] if arrays else None, covered)
        except Invalid as error:
            return self._refuse(sender, pull.request, error)
        asker = Asker(sender, pull, keys, now, covered)
        if pull.enter:
            self.counts["returned from parking"] += self.clocks.is_parked(pull.incarnation, pull.spell)
            self.clocks.enter(pull.incarnation, sender, pull.spell, pull.entered)
        self.clocks.heard(pull.incarnation, pull.spell, pull.entered)
        return self._pull(now, asker) + (self._release() if pull.enter else Outcome())

    def _pull(self, now: int, asker: Asker) -> Outcome:
        if self._may_pull(asker):
            return self._read(asker)
        self.counts["waited"] += asker.id not in self._waiting
        self._waiting[asker.id] = asker
        asker.told = now
        return Outcome([Send(asker.name, m.Held(asker.ask.request, self._waits_for(asker)))])

    def _may_pull(self, asker: Asker) -> bool:
        ask = asker.ask
        if ask.clock < 0 or (isinstance(ask, m.Pull) and ask.enter):
            return True
        if isinstance(self.spec.apply, Step):
            delay = self.spec.max_delay
            return delay is None or bool((self.version[asker.covered] >= ask.clock - delay).all())
        return self.clocks.may_pull(ask.clock, asker.covered)

    def _read(self, asker: Asker) -> Outcome:
        """Answer a pull: now if it is short, else as work of its own, before anything else touches the table."""
        if self.extent.work(asker.keys) <= self.inline:
            return Outcome([self._values(asker, *self.extent.read(asker.keys))])
        found: list[tuple[list[m.Array], int]] = []
        return Outcome(
            works=[
                Work(
                    lambda: found.append(self.extent.read(asker.keys)),
                    lambda now: Outcome([self._values(asker, *found[0])]),
                    lambda: Outcome([Send(asker.name, m.No(asker.ask.request, "full", "no memory for so many rows"))]),
                )
            ]
        )

    def _values(self, asker: Asker, arrays: list[m.Array], resume: int) -> Effect:
        ask = asker.ask
        entered = m.NO_CLOCK
        if isinstance(ask, m.Pull) and ask.enter:
            entered = self.clocks.enter(ask.incarnation, asker.name, ask.spell, ask.entered)
        versions: list[int] = self.version.tolist()
        if versions.count(versions[0]) == len(versions):
            del versions[1:]
        count = len(arrays[-1]) // self.spec.width
        return Send(asker.name, m.Values(ask.request, count, versions, entered, resume), arrays)

    def _release(self) -> Outcome:
        """Answer the pulls that may be answered now."""
        outcome = Outcome()
        for key in [key for key, asker in self._waiting.items() if self._may_pull(asker)]:
            outcome += self._read(self._waiting.pop(key))
        return outcome

    # ------------------------------------------------------------ parking, notices, facts

    def park(self, incarnation: int, spell: int) -> Outcome:
        self.clocks.park(incarnation, spell)
        return self._release()

    def notices(self, now: int) -> list[Effect]:
        """Once a second, who waits is told for what."""
        effects: list[Effect] = []
        for asker in self._waiting.values():
            if now - asker.told >= limits.NOTICE:
                asker.told = now
                effects.append(Send(asker.name, m.Held(asker.ask.request, self._waits_for(asker))))
        for step, _, asker in self._held.values():
            if now - asker.told >= limits.NOTICE:
                effects.append(self._told_held(now, step, asker))
        return effects

    def facts(self) -> tuple[dict[str, int], list[int]]:
        facts = {
            "rows": self.table.rows,
            "bytes": self.table.memory,
            "layout": self.table.layout,
            "segments": len(self.extent),
            "version": int(self.version.min()),
            "waiting": len(self._waiting),
            "held": len(self._held),
            **self.counts,
        }
        return facts, np.trim_zeros(self.staleness, "b").tolist()

    def _waits_for(self, asker: Asker) -> str:
        ask = asker.ask
        if isinstance(self.spec.apply, Step):
            wanted = ask.clock - (self.spec.max_delay or 0)
            return self._missing(int(self.version[asker.covered].min()), f"version {wanted}: ")
        return ", ".join(self.clocks.laggards(ask.clock)) or "its turn"

    def _told_held(self, now: int, step: int, asker: Asker) -> Effect:
        asker.told = now
        oldest = int(self.version.min())
        return Send(asker.name, m.Held(asker.ask.request, self._missing(min(step, oldest), "")))

    def _missing(self, step: int, lead: str) -> str:
        opened = self._open.get(step)
        if opened is None:
            return f"{lead}step {step}, of which no slot is here"
        assert isinstance(self.spec.apply, Step)
        start = self.spec.apply.first_slot(step)
        missing = [start + place for place in opened.missing()]
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return f"{lead}slots {names} of step {step}" if missing else f"{lead}step {step}"

    def _refuse(self, sender: str, request: int, error: Invalid) -> Outcome:
        self.counts["refused"] += 1
        kind = "keys" if isinstance(error, BadKeys) else "values" if isinstance(error, BadValues) else "setting"
        return Outcome([Send(sender, m.No(request, kind, str(error)))])

    def _busy(self, asker: Asker, why: str) -> Outcome:
        self.counts["busy"] += 1
        return Outcome([Send(asker.name, m.Busy(asker.ask.request, limits.BUSY_RETRY, why))])

    def _held_bytes(self) -> int:
        return sum(opened.size for opened in self._open.values())

    def _record_staleness(self, version: Numbers | int, read: list[int], fresh: Mask) -> None:
        if len(read) == 1 and fresh is self.extent.whole:
            age = int(version) - read[0] if isinstance(version, int) else int(version.max()) - read[0]
            self.staleness[min(max(age, 0), len(self.staleness) - 1)] += 1
            return
        known = np.asarray(read, np.int64)
        if len(known) not in (1, len(fresh)):
            return  # read by another placement
        age = int((np.asarray(version) - (known if len(known) == 1 else known[fresh])).max())
        self.staleness[min(max(age, 0), len(self.staleness) - 1)] += 1


def _asked(given: KeyValues | None) -> Keys | KeyRange:
    return np.empty(0, np.uint64) if given is None else given.keys

"""Who waits at a server, for what, and what they are told: pulls, slots of open steps, pushes that are not on all copies yet.

A pull is answered when the rule of the table allows it; until then, once a second, whoever waits is told for whom. Reading is here,
too, since a pull that waited is read the moment it may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyRange, KeyValues
from shoal.store.server.aggregate import OpenStep
from shoal.store.server.key_lists import KeyLists
from shoal.store.server.ledger import Mask, Numbers
from shoal.store.server.load import SegmentLoad
from shoal.store.server.outcome import HandlerResult, LongComputation, Requester
from shoal.store.server.replicate import ReplicationLog
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.table import Ground
from shoal.tables import Each, Step, Wire
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send
from shoal.wire.messages.base import Events

_Found = tuple[list[m.Array], int, Wire, int]  # arrays, where the rest starts, the form of values, rows


class Waiting(SegmentState):
    """The askers of the segments that a server is primary of."""

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
        self.handles = KeyLists(0)  # the server's own, by which it knows lists of keys
        self.asked = SegmentLoad(spec, held)
        self._open: dict[int, OpenStep] = {}  # by step
        self._held: dict[tuple[str, int], tuple[int, int, Requester]] = {}  # pushes: (step, slot, who asked)
        self._waiting: dict[tuple[str, int], Requester] = {}  # pulls
        self._promised: dict[tuple[str, int], Requester] = {}  # what waits until it is on all copies
        self._begin()

    def _begin(self) -> None:
        """What those who build on this begin with: all of them are made as this is."""

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
        """Answer a pull: now if it is short, else as work of its own, before anything else touches the table."""
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
        """The rows that were asked for, through the table's filters if they may."""
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
        """The vector clocks of the keys that were asked for: of a range its own, of a list those of the segments covered."""
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

    def forgotten(self, view: int) -> list[Effect]:
        """Other segments are held here from now on: all who wait are to ask again, by this view."""
        asked = {**self._waiting, **self._promised, **{key: asker for key, (_, _, asker) in self._held.items()}}
        return [Send(asker.name, m.SegmentsMoved(asker.ask.request, view)) for asker in asked.values()]

    # ------------------------------------------------------------ what they are told

    def notices(self, now: int) -> list[Effect]:
        """Now and then, who waits is told for what."""
        effects: list[Effect] = []
        for asker in self._waiting.values():
            if now - asker.told >= self.log.timing.notice:
                asker.told = now
                effects.append(Send(asker.name, m.PushHeld(asker.ask.request, self._waits_for(asker))))
        for asker in self._promised.values():
            if now - asker.told >= self.log.timing.notice:
                effects += self._told_promised(now, asker).effects
        for step, _, asker in self._held.values():
            if now - asker.told >= self.log.timing.notice:
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

    def _told_promised(self, now: int, asker: Requester) -> HandlerResult:
        asker.told = now
        return HandlerResult([Send(asker.name, m.PushHeld(asker.ask.request, self.log.waits_for()))])

    def _told_held(self, now: int, step: int, asker: Requester) -> Effect:
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

    def _refuse(self, sender: str, request: int, error: Invalid) -> HandlerResult:
        self.counts["refused"] += 1
        kind = "keys" if isinstance(error, BadKeys) else "values" if isinstance(error, BadValues) else "setting"
        return HandlerResult([Send(sender, m.Refusal(request, kind, str(error)))])

    def _busy(self, asker: Requester, why: str) -> HandlerResult:
        self.counts["busy"] += 1
        return HandlerResult([Send(asker.name, m.Busy(asker.ask.request, limits.BUSY_RETRY, why))])

    def _held_bytes(self) -> int:
        return sum(opened.size for opened in self._open.values())

    def _record_staleness(self, version: Numbers | int, read: list[int], fresh: Mask) -> None:
        age = self._age(version, read, fresh)
        if age >= 0:
            self.staleness[min(age, len(self.staleness) - 1)] += 1

    def _age(self, version: Numbers | int, read: list[int], fresh: Mask) -> int:
        """How many updates came between what was read and now; -1: that is not known."""
        if len(read) == 1 and fresh is self.extent.whole:
            return max(0, int(version) - read[0] if isinstance(version, int) else int(version.max()) - read[0])
        known = np.asarray(read, np.int64)
        if len(known) not in (1, len(fresh)):
            return -1  # read by another placement
        return max(0, int((np.asarray(version) - (known if len(known) == 1 else known[fresh])).max()))

    def _damped(self, given: KeyValues | None, read: list[int], fresh: Mask) -> KeyValues | None:
        """A gradient that is too stale counts less, where the table is so."""
        above = self.spec.apply.damp_above if isinstance(self.spec.apply, Each) else None
        if above is None or given is None or not read:
            return given
        version = self.version if fresh is self.extent.whole else self.version[fresh]
        if (age := self._age(version, read, fresh)) <= above:
            return given
        self.counts["damped"] += 1
        return KeyValues(given.keys, given.values * np.float32(above / age))

"""How far each worker is, and the one rule about waiting.

A worker's clock at a segment is the highest c such that all its steps up to c are counted there. A
pull at clock c is answered once every live worker that is not parked has reached c - max_delay:

    max_delay = 0       nobody runs ahead
    max_delay = k       at most k steps ahead of the slowest (bounded delay)
    max_delay = None    never wait (asynchronous)

A worker that enters, or returns from parking, starts level with the slowest: it neither stalls the
others nor runs ahead. Each return is a new *spell*; late messages of an earlier spell are ignored.
Nothing here sends, sleeps or reads the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.store.server.ledger import Ledger, Mask, Numbers, PushStream
from shoal.wire.messages import ClockedWorker, Counts, ReplicatedChange


@dataclass(slots=True)
class WorkerClock:
    name: str
    spell: int = -1
    parked: bool = True
    entered: int = 0  # its clock when this spell began


class Clocks:
    """The clocks of all workers at the segments that a server holds of one table."""

    def __init__(self, segments: int, max_delay: int | None) -> None:
        self.max_delay = max_delay
        self._segments = segments
        self._marks = Ledger(segments)
        self._workers: dict[int, WorkerClock] = {}
        self._slowest: Numbers | None = None  # cached until something moves

    def drop_departed(self, workers: dict[int, str]) -> bool:
        """Drop workers that left, by a new view. True if there were any."""
        departed = [incarnation for incarnation in self._workers if incarnation not in workers]
        for incarnation in departed:
            del self._workers[incarnation]
            self._marks.drop(incarnation)
        self._slowest = None
        return bool(departed)

    def entry_clock(self, incarnation: int, at: int = 0) -> int:
        """The clock at which a worker would enter now; ``at`` if it has one already."""
        return at if at > 0 else int(np.maximum(self._clock(incarnation).mark, self._entry_clocks()).max())

    def enter(self, incarnation: int, name: str, spell: int, level: int | None = None) -> int:
        """Start a spell of a worker; its first clock. The same spell gets the same answer."""
        worker = self._workers.setdefault(incarnation, WorkerClock(name))
        if spell > worker.spell:
            stream = self._clock(incarnation)
            stream.raise_to(self.entry_clock(incarnation) if level is None else level)
            worker.spell, worker.parked = spell, False
            worker.entered = int(stream.mark.max())
            self._slowest = None
        return worker.entered

    def knows(self, incarnation: int) -> bool:
        """Whether it has entered here, in any spell."""
        return incarnation in self._workers

    def has_parked(self, incarnation: int, spell: int) -> bool:
        """Whether this spell is over."""
        worker = self._workers.get(incarnation)
        return worker is not None and (worker.spell > spell or (worker.spell == spell and worker.parked))

    def has_entered(self, incarnation: int, spell: int) -> bool:
        worker = self._workers.get(incarnation)
        return worker is not None and spell <= worker.spell

    def entered(self, incarnation: int) -> int:
        """The clock that a worker's present spell started at."""
        worker = self._workers.get(incarnation)
        return 0 if worker is None else worker.entered

    def would_raise(self, incarnation: int, spell: int, entered: int) -> bool:
        """Whether ``raise_floor`` would change anything."""
        worker = self._workers.get(incarnation)
        return worker is not None and spell == worker.spell and self._clock(incarnation).lowest < entered

    def raise_floor(self, incarnation: int, spell: int, entered: int) -> None:
        """A worker has no steps up to ``entered``, the highest clock that any server gave it."""
        worker = self._workers.get(incarnation)
        if worker is not None and spell == worker.spell and self._clock(incarnation).raise_to(entered):
            self._slowest = None

    def park(self, incarnation: int, spell: int) -> None:
        worker = self._workers.get(incarnation)
        if worker is not None and spell >= worker.spell:
            worker.spell, worker.parked = spell, True
            self._slowest = None

    def tick(self, incarnation: int, step: int, segments: Mask, everywhere: bool = False) -> None:
        """Count a step, from 1 on, once; ``everywhere``: these are all segments."""
        if incarnation in self._workers and step > 0 and self.fits(incarnation, step):
            stream = self._clock(incarnation)
            fresh = stream.fresh(step - 1, segments)
            if fresh is not None:
                stream.add(step - 1, fresh, everywhere and fresh is segments)
                self._slowest = None

    def is_parked(self, incarnation: int, spell: int) -> bool:
        """Whether this spell would be its return from parking."""
        worker = self._workers.get(incarnation)
        return worker is not None and worker.parked and spell > worker.spell

    def is_ahead(self, incarnation: int, step: int) -> bool:
        """Whether a step before this one is missing in some segment."""
        return incarnation in self._workers and self._clock(incarnation).lowest < step - 1

    def fits(self, incarnation: int, step: int) -> bool:
        return step <= 0 or incarnation not in self._workers or self._clock(incarnation).fits(step - 1)

    def may_pull(self, clock: int, segments: Mask) -> bool:
        if self.max_delay is None or clock <= self.max_delay:
            return True
        return bool((self.slowest()[segments] >= clock - self.max_delay).all())

    def laggards(self, clock: int) -> list[str]:
        """The workers that a pull at this clock waits for."""
        if self.max_delay is None:
            return []
        return [
            f"{worker.name} at step {self._clock(incarnation).lowest}"
            for incarnation, worker in self._workers.items()
            if not worker.parked and (self._clock(incarnation).mark < clock - self.max_delay).any()
        ]

    def slowest(self) -> Numbers:
        """Per segment, the clock of the slowest worker that counts; the maximum if none does."""
        if self._slowest is None:
            self._slowest = np.full(self._segments, np.iinfo(np.int64).max, np.int64)
            for incarnation, worker in self._workers.items():
                if not worker.parked:
                    np.minimum(self._slowest, self._clock(incarnation).mark, out=self._slowest)
        return self._slowest

    def _entry_clocks(self) -> Numbers:
        """Where a newcomer enters: with the slowest; if all are parked, with the furthest ever."""
        if any(not worker.parked for worker in self._workers.values()):
            return self.slowest()
        level = np.zeros(self._segments, np.int64)
        for incarnation in self._workers:
            np.maximum(level, self._clock(incarnation).mark, out=level)
        return level

    def as_changes(self) -> list[ReplicatedChange]:
        """The enters and parks of all workers, as changes; known ones change nothing."""
        found: list[ReplicatedChange] = []
        for incarnation, worker in self._workers.items():
            if worker.spell < 0:
                continue
            spell, entered = worker.spell, worker.entered
            enter = ReplicatedChange(
                0, "enter", incarnation=incarnation, spell=spell, entered=entered, name=worker.name
            )
            park = ReplicatedChange(0, "park", incarnation=incarnation, spell=spell)
            found += [enter, park] if worker.parked else [enter]
        return found

    def status(self) -> dict[str, int]:
        """Each worker's lowest clock by name; negative if it is parked."""
        return {
            worker.name: -1 - self._clock(incarnation).lowest if worker.parked else self._clock(incarnation).lowest
            for incarnation, worker in self._workers.items()
        }

    def encoded(self, segment: int) -> dict[int, ClockedWorker]:
        """The workers' clocks at one segment, as messages carry them."""
        return {
            incarnation: ClockedWorker(
                worker.name, worker.spell, worker.parked, worker.entered, self._clock(incarnation).counted(segment)
            )
            for incarnation, worker in self._workers.items()
        }

    @classmethod
    def of(cls, known: Sequence[Mapping[int, ClockedWorker]], max_delay: int | None) -> Clocks:
        """From what each segment knows. A worker unknown to a segment has no steps there yet."""
        clocks = cls(len(known), max_delay)
        for incarnation in dict.fromkeys(incarnation for one in known for incarnation in one):
            some = [one[incarnation] for one in known if incarnation in one]
            last = max(some, key=lambda one: (one.spell, one.parked))
            entered = max(one.entered for one in some)
            clocks._workers[incarnation] = WorkerClock(last.name, last.spell, last.parked, entered)
            unknown = Counts(entered)
            clocks._marks.put(
                incarnation,
                PushStream.of([one[incarnation].counted if incarnation in one else unknown for one in known]),
            )
        return clocks

    def _clock(self, incarnation: int) -> PushStream:
        return self._marks.stream(incarnation)

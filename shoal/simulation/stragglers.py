"""Workers that are slow, and what is done about them: the real remedies, on the simulated workload.

A straggler is alive and its heartbeats go on; only its computing takes longer. Slots of one are lent by the real
``SecondCopies``, which sees the ``Dealer`` as its workload; the delay is found by the real ``AutoDelay``, from how long
servers kept answers back. What they decide is held against a promise of their own (P11); all others hold as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from random import Random
from typing import cast
from unittest import mock

from shoal.cluster import delay
from shoal.cluster.delay import AutoDelay
from shoal.cluster.membership import Roster
from shoal.cluster.second_copies import KNOWN, SecondCopies
from shoal.cluster.workload import Workload
from shoal.limits import MILLISECOND
from shoal.simulation.checker import Violation, steps_of
from shoal.simulation.faults import Fault, Plan
from shoal.simulation.workload import TABLE, Dealer, Scribe

LONGEST_BREAK = 1_000  # milliseconds


def quick() -> AbstractContextManager[object]:
    """Runs are short here: the delay is looked at more often, and decided upon fewer steps."""
    stack = ExitStack()
    window, settling = 100 * MILLISECOND, 30 * MILLISECOND
    stack.enter_context(mock.patch.multiple(delay, FEWEST=1, WINDOW=window, SETTLING=settling))
    return stack


class Stragglers:
    """How long the computing of each worker takes, and where its time went."""

    def __init__(self, plan: Plan, now: Callable[[], int]) -> None:
        self._random, self._now = Random(f"{plan.seed}/breaks"), now
        self._faults: dict[str, list[tuple[Fault, int]]] = {}
        self.waited = self.steps = 0  # since somebody looked
        self.counts: Counter[str] = Counter()

    def straggle(self, fault: Fault, until: int) -> None:
        self._faults.setdefault(fault.who, []).append((fault, until))

    def hurry(self) -> None:
        self._faults.clear()

    def takes(self, worker: str, nanoseconds: int) -> int:
        """A computation of this worker that would take so long takes this long."""
        now, whole = self._now(), nanoseconds
        for fault, until in self._faults.get(worker, ()):
            if until <= now:
                continue
            match fault.kind:
                case "slower":
                    whole = int(whole * fault.rate)
                case "halting" if self._random.random() < fault.rate:
                    whole += self._random.randrange(LONGEST_BREAK) * MILLISECOND
                case "stall":
                    whole += until - now
        self.counts["slots that took longer"] += whole > nanoseconds
        return whole

    def did_wait(self, nanoseconds: int) -> None:
        """A worker has pulled for its next step, and waited so long for slower ones."""
        self.waited += nanoseconds
        self.steps += 1


class Lending:
    """Second copies; to ``SecondCopies`` this is a workload."""

    def __init__(self, plan: Plan, dealer: Dealer) -> None:
        self._dealer, self._copies = dealer, SecondCopies()
        self._numbers = {name: number for number, name in enumerate(plan.worker_names)}
        self._names = plan.worker_names
        self._steps = steps_of(plan)
        self._step = {slot: number for number, slots in enumerate(self._steps) for slot in slots}
        self._on = "lend" in plan.habits

    @property
    def lent(self) -> int:
        return self._copies.lent

    def took(self, worker: str, nanoseconds: int) -> None:
        self._copies.take(self._numbers[worker], KNOWN * nanoseconds // 1_000, KNOWN)  # one tells: runs are short

    def gone(self, worker: str) -> None:
        self._copies.gone(self._numbers[worker])

    def forget(self) -> None:
        """The run went back: slots come again."""
        self._copies = SecondCopies()

    def choose(self, now: int, worker: str) -> list[int]:
        """Slots of others that this worker computes, too."""
        return self._copies.choose(now, self._numbers[worker], cast(Workload, self)) if self._on else []

    # ------------------------------------------------------------ as a workload

    def held(self, worker: int) -> list[int]:
        return self._dealer.held(self._names[worker])

    def step_of(self, slot: int) -> int:
        return self._step[slot]

    @property
    def steps(self) -> int:
        """Whole steps that are counted, from the first on."""
        done = self._dealer.done
        return next((n for n, slots in enumerate(self._steps) if not done.issuperset(slots)), len(self._steps))

    @property
    def next(self) -> int:
        return self._dealer.reached

    @property
    def lowest(self) -> int:
        return next((slot for slot in self._step if slot not in self._dealer.done), len(self._step))

    def lend(self, worker: int, slots: list[int]) -> None:
        for slot in slots:
            self._dealer.lend(slot, self._names[worker])


class Auto:
    """The delay of the table, found while it runs: in the dealing's place, as the coordinator asks for it."""

    def __init__(self, plan: Plan, stragglers: Stragglers, scribe: Scribe) -> None:
        self._workers, self._stragglers, self._scribe = plan.workers, stragglers, scribe
        self._on = "auto delay" in plan.habits and plan.kind == "each"
        self._auto = AutoDelay(plan.max_delay or 0)
        self._since = 0
        self.pending: int | None = None  # asked for, and not known to every server yet
        self.changes = 0
        self.violations: list[Violation] = []

    def tick(self, now: int) -> None:
        if not self._on or self.pending is not None:
            return
        seen, before, since = self._stragglers, self._auto.delay, self._since or now
        self._auto.take(seen.waited, max(0, now - since) * self._workers, seen.steps)
        self._since, seen.waited, seen.steps = now, 0, 0
        if self._auto.look(now, self._workers):
            self._check(before)

    def set_delay(self, roster: Roster) -> None:
        placed, wanted = roster.tables.get(TABLE), self._auto.delay
        if not self._on or placed is None or placed.spec.max_delay == wanted:
            return
        if self.pending != wanted:  # else it was asked for, and forgotten with a coordinator
            self.pending = wanted
            self._scribe.note("delay asked", value=wanted)
        roster.delay(TABLE, wanted)

    def seen(self, delays: set[int | None]) -> None:
        """These are in force, somewhere."""
        if delays == {self.pending}:
            self._scribe.note("delay set", value=self.pending)
            self.pending = None
            self.changes += 1

    def _check(self, before: int) -> None:
        """P11: it grows where they wait too much, and shrinks where they hardly do."""
        share, after = self._auto.share, self._auto.delay
        if (share > delay.MOST_WAITING) != (after > before):
            what = f"from {before} to {after}, with {share:.0%} of the time waited"
            self.violations.append(Violation("P11 delay", what))

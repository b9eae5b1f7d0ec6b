"""What the scheduler knows of a run: its records in the journal and in checkpoints.

    RunSummary       time, examples, evaluations, stop rules; small, and in every line
    JournalMark      a line of the journal: the slots counted since the last line, and the summary
    JournalSnapshot  a line of the journal: everything; lines before it no longer hold
    ScheduleState    everything, as a checkpoint keeps it

Counted slots are journalled four times a second; which worker holds which slot is not. What others
act on at once is journalled before they hear of it: an evaluation that is asked for, read or
evaluated, a void slot, a stop rule; in step mode also how far slots are dealt, and a slot that read
newer weights. In each mode the segments of a checkpoint were cut at different moments: a slot
counts as done if all of them have it (``counted_everywhere``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from shoal import limits
from shoal.decoding import resolve_types
from shoal.events import Evaluated, RolledBack, Started, Stopped, Voided
from shoal.schedule.intervals import Intervals, Runs, runs
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stop_rules import Patience
from shoal.timing import TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Persist, Send, Tell

JOURNAL_TOKEN = -1  # of the Persist of a line: there is one at a time
_RETRY = limits.SECOND  # a journal that cannot be written is tried again


@dataclass(slots=True)
class LossTally:
    """Examples and losses since the last report."""

    examples: int = 0
    loss: float = 0.0

    def mean(self) -> float | None:
        return self.loss / self.examples if self.examples else None

    def add(self, examples: int, loss: float) -> None:
        self.examples += examples
        self.loss += loss


@dataclass(slots=True)
class TrafficTotals:
    """Bytes of all workers there ever were, by incarnation."""

    traffic: dict[int, tuple[int, int]] = field(default_factory=dict)  # 0: earlier ones
    filtered: dict[int, dict[str, list[int]]] = field(default_factory=dict)  # in and out of each
    left: dict[int, tuple[float, float]] = field(default_factory=dict)  # for later, and lost of it

    @classmethod
    def of(cls, account: RunSummary) -> TrafficTotals:
        return cls(dict(account.traffic), dict(account.filtered), dict(account.left))

    def take(self, want: m.Want) -> None:
        self.traffic[want.incarnation] = (want.sent, want.received)
        if want.filtered:
            self.filtered[want.incarnation] = want.filtered
            self.left[want.incarnation] = want.left

    def gone(self, who: int) -> float:
        """A worker died, and what filters had left for later died with it: the size of that."""
        left, lost = self.left.get(who, (0.0, 0.0))
        if left:
            self.left[who] = (0.0, left + lost)
        return left

    def through(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for one in self.filtered.values():
            for name, counts in one.items():
                found[name] = [a + b for a, b in zip(counts, found.get(name, [0] * len(counts)), strict=True)]
        return found

    def remainder(self) -> tuple[float, float]:
        return sum(left for left, _ in self.left.values()), sum(lost for _, lost in self.left.values())

    def totals(self) -> tuple[int, int]:
        return sum(sent for sent, _ in self.traffic.values()), sum(received for _, received in self.traffic.values())


DurableEvent = Started | Evaluated | Voided | RolledBack | Stopped  # events that must not be missed


class EvaluationState(msgspec.Struct, frozen=True):
    """Evaluations asked for, read and evaluated; slots, examples and workers of the open ones."""

    asked: int = -1
    held: int = -1
    found: int = -1
    at: dict[int, tuple[int, int, int]] = {}
    last_loss: float | None = None  # in training, before the last of them
    since: tuple[int, float | None] = (0, 0.0)  # examples and their loss, since then


class RunSummary(msgspec.Struct, frozen=True):
    """The progress of a run, without its counted slots."""

    generation: int = 0
    begun: bool = False
    seconds: float = 0.0
    computing: float | None = None  # seconds when the last slot was counted
    examples: int = 0
    dealt: int = 0  # step mode: up to here at most, until another line says more
    limit: int | None = None  # where the run is to end, once that is decided
    over: str = ""
    finished: bool = False
    judgements: EvaluationState = EvaluationState()
    patience: Patience = Patience()
    traffic: dict[int, tuple[int, int]] = {}  # bytes sent and received, by incarnation
    filtered: dict[int, dict[str, list[int]]] = {}
    left: dict[int, tuple[float, float]] = {}
    counts: dict[str, int] = {}
    said: list[DurableEvent] = []  # sent once this is on disk, unless the process ended before


class ScheduleState(msgspec.Struct, frozen=True):
    """All that the coordinator knows of a run."""

    counted: Runs = []
    voids: dict[int, str] = {}
    refusals: dict[int, int] = {}
    deaths: dict[int, int] = {}
    account: RunSummary = RunSummary()


class JournalMark(msgspec.Struct, frozen=True, array_like=True, tag="marked"):
    """One line of the journal: slots counted since the last line, and the run summary."""

    counted: Runs
    voids: dict[int, str] = {}
    account: RunSummary | None = None


class JournalSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="whole"):
    """One line of the journal: the whole state. It replaces all lines before it."""

    state: ScheduleState


Line = JournalMark | JournalSnapshot


def replayed(lines: Iterable[Line]) -> ScheduleState:
    state, account = ScheduleState(), RunSummary()
    counted: Runs = []
    voids: dict[int, str] = {}
    for line in lines:
        if isinstance(line, JournalSnapshot):
            state = line.state
            counted, voids, account = list(state.counted), dict(state.voids), state.account
            continue
        counted += line.counted
        voids |= line.voids
        account = line.account or account
    return ScheduleState(Intervals(counted).runs, voids, state.refusals, state.deaths, account)


def counted_everywhere(books: Iterable[m.SegmentBooks], per_pass: int) -> Runs:
    """The slots that every one of these segments has counted, over all passes."""
    every = list(books)
    passes = sorted({stream for one in every for stream in one.ledger if stream >= 0})
    out: Runs = []
    for number in passes:
        if any(number not in one.ledger for one in every):
            continue
        counted = np.ones(per_pass, np.bool_)
        for one in every:
            counts = one.ledger[number]
            here = np.zeros(per_pass, np.bool_)
            here[: counts.mark] = True
            here[counts.ahead[counts.ahead < per_pass]] = True
            counted &= here
        out += runs((number * per_pass + np.flatnonzero(counted)).tolist())
    return Intervals(out).runs


def to_begin_with(state: ScheduleState, counted: Runs | None = None, seconds: float = 0.0) -> ScheduleState:
    """The state of a new run that continues a checkpoint: no member, no open evaluation.

    ``counted``, if the model knows better what it contains; time is never taken back.
    """
    account, judgements = state.account, state.account.judgements
    found, traffic = judgements.found, TrafficTotals.of(account)
    at = {number: where for number, where in judgements.at.items() if number == found}
    account = msgspec.structs.replace(
        account,
        begun=False,
        finished=False,
        seconds=max(seconds, account.seconds),
        dealt=0,
        judgements=msgspec.structs.replace(judgements, asked=found, held=found, at=at),
        traffic={0: traffic.totals()},  # of workers that are gone
        filtered={0: traffic.through()},
        left={0: (0.0, sum(traffic.remainder()))},
        said=[],
    )
    return msgspec.structs.replace(state, counted=state.counted if counted is None else counted, account=account)


def durable_events(effects: list[Effect]) -> list[DurableEvent]:
    """The events among these effects that must not be lost."""
    return [one.event for one in effects if isinstance(one, Tell) and isinstance(one.event, DurableEvent)]


def _merged(held: list[Effect], effects: list[Effect]) -> list[Effect]:
    """All of them, but only the last answer to each node."""
    again = {one.to for one in effects if isinstance(one, Send)}
    return [*(one for one in held if not (isinstance(one, Send) and one.to in again)), *effects]


class JournaledState(Protocol):
    """The scheduler, as its journal knows it."""

    workload: SlotQueue
    timing: TimingSettings

    @property
    def milestone(self) -> tuple[object, ...]: ...
    def state(self) -> ScheduleState: ...
    def summary(self, said: list[DurableEvent]) -> RunSummary: ...
    def warn(self, what: str) -> list[Effect]: ...


class ScheduleJournal:
    """Journals a scheduler's state, and holds effects until their line is durable.

    One line is written at a time. Effects that follow from it wait for it; effects of a later
    change wait for the next line. If the disk refuses a line, the next try a second later is a
    snapshot, so that nothing is missing. A disk that refuses for long does not stop the run: its
    effects are then only as durable as the process.

    A process may end after a line is durable and before its events are sent. So a line contains its
    events: the next process sends those of the last line again, and writes a line that says so.
    """

    def __init__(self, scheduler: JournaledState) -> None:
        self._scheduler = scheduler
        self.writing = False  # a line is on its way
        self._needs_snapshot = False  # the journal is wrong: the next line is a snapshot
        self._writing_snapshot = False  # the line that is on its way is a snapshot
        self._waiting: list[Effect] | None = None  # wait for the line being written; None: none do
        self._waiting_next: list[Effect] | None = None  # wait for the next line; None: none do
        self._retry = self._refused_since = 0
        self._sent_unrecorded = False  # the last line's events were sent; no line says so
        self.promised = 0  # step mode: by the journal no slot past this was dealt
        self.promising = 0  # the same, by the line that is being written
        self.counted: list[int] = []  # slots that no line has yet
        self.voided: dict[int, str] = {}
        self._journaled = scheduler.milestone  # as the journal has it
        self._unsent: list[DurableEvent] = []  # events that an earlier process may not have sent
        self._recently_dealt, self._last_next = 0, 0  # step mode: slots dealt since the last mark

    def restart(self) -> None:
        """The scheduler has another queue of slots: nothing of the old one is to be written."""
        self.promised, self._recently_dealt, self._last_next = 0, 0, self._scheduler.workload.next
        self.promised = self.promising = self._dealt_bound()
        self.counted, self.voided = [], {}

    def resume(self, untold: list[DurableEvent]) -> None:
        """The journal has the whole state; these events may not have been sent."""
        self._unsent, self._journaled = untold, self._scheduler.milestone

    @property
    def is_empty(self) -> bool:
        """Whether no effect is held."""
        return self._waiting is None and self._waiting_next is None

    def is_behind(self, now: int) -> bool:
        """Whether the journal is outdated, and the snapshot that corrects it is not durable yet."""
        return (self._needs_snapshot or self._writing_snapshot) and not self._has_given_up(now)

    def after_held(self, effects: list[Effect]) -> list[Effect]:
        """These effects after all that are held; at once, if none are."""
        if self._waiting_next is not None:
            self._waiting_next = _merged(self._waiting_next, effects)
        elif self._waiting is not None:
            self._waiting = _merged(self._waiting, effects)
        else:
            return effects
        return []

    def when_durable(self, now: int, effects: list[Effect]) -> list[Effect]:
        """Returns effects to carry out now; holds those whose cause is not in the journal yet."""
        if self._unsent:
            effects, self._unsent = [*(Tell(event) for event in self._unsent), *effects], []
            self._sent_unrecorded = True
        milestone = self._scheduler.milestone
        if self._has_given_up(now):
            self._journaled, self.voided = milestone, {}  # the next line has everything
            waited, self._waiting_next = self._waiting_next or [], None
            return [*waited, *effects, *self._write(now)]
        if milestone == self._journaled and not self.voided and not self._deals_past(self.promising):
            if self.is_empty and self._deals_past(self.promised):
                self._waiting = []  # these effects wait for the line that is being written
            return [*self.after_held(effects), *self._write(now)]
        self._journaled = milestone
        self._waiting_next = _merged(self._waiting_next or [], effects)
        return self._write(now)

    def rewrite(self, now: int, effects: list[Effect]) -> list[Effect]:
        """The journal is outdated: hold these effects until the next snapshot is durable."""
        self._needs_snapshot = True
        self._waiting_next = _merged(self._waiting_next or [], effects)
        return self._write(now)

    def mark(self, now: int) -> list[Effect]:
        """A line that nothing waits for: the slots that were counted, if any were."""
        slots = self._scheduler.workload.next
        self._recently_dealt, self._last_next = slots - self._last_next, slots
        return self._line() if self.counted and self._may_write(now) else []

    def durable(self, now: int, error: str) -> list[Effect]:
        """A line is durable or was refused: returns the effects it held, and the next line."""
        if not self.writing:
            return []
        self.writing = self._writing_snapshot = False
        waited, self._waiting = self._waiting, None
        if error:
            if waited is not None:
                self._waiting_next = [*waited, *(self._waiting_next or [])]
            self._needs_snapshot, self.promising = True, self.promised
            self._retry, self._refused_since = now + _RETRY, self._refused_since or now
            return self._scheduler.warn(f"the journal cannot be written: {error}")
        self.promised, self._refused_since = self.promising, 0
        self._sent_unrecorded = bool(durable_events(waited or []))
        return [*(waited or []), *self._write(now)]

    def _has_given_up(self, now: int) -> bool:
        return bool(self._refused_since) and now - self._refused_since > self._scheduler.timing.journal

    def _may_write(self, now: int) -> bool:
        return not self.writing and now >= self._retry

    def _write(self, now: int) -> list[Effect]:
        """The next line, if effects wait for it and none is being written."""
        due = self._needs_snapshot or self._sent_unrecorded or self._waiting_next is not None
        return self._line() if due and self._may_write(now) else []

    def _line(self) -> list[Effect]:
        self.writing, self._writing_snapshot, self._needs_snapshot = True, self._needs_snapshot, False
        self._waiting, self._waiting_next = self._waiting_next, None
        self._sent_unrecorded = False
        self.promising = self._dealt_bound()
        summary = self._scheduler.summary(durable_events(self._waiting or []))
        line: Line = JournalMark(runs(sorted(self.counted)), self.voided, summary)
        if self._writing_snapshot:
            line = JournalSnapshot(msgspec.structs.replace(self._scheduler.state(), account=summary))
        self.counted, self.voided, self._journaled = [], {}, self._scheduler.milestone
        return [Persist(JOURNAL_TOKEN, msgspec.msgpack.encode(line))]

    def _deals_past(self, promise: int) -> bool:
        """Step mode: more was dealt than this line of the journal allows.

        A worker may die with its slots, and what it pushed is in the model. So a restarted
        scheduler that has to end the run must know how far that may be, even if no worker is left
        to say it.
        """
        return self._scheduler.workload.step is not None and self._scheduler.workload.next > promise

    def _dealt_bound(self) -> int:
        """Step mode: a line says that nothing past this is dealt before another line.

        That is further than was dealt by as much as in a quarter of a second: so few deals wait.
        """
        work = self._scheduler.workload
        if work.step is None:
            return 0
        end = work.limit if work.barrier is None else min(work.limit, work.barrier)
        return max(work.next, self.promised, min(end, work.next + self._recently_dealt))


resolve_types(ScheduleState)

"""What is known of a run besides its model: written to the journal line by line, kept whole in a checkpoint, taken up again.

    Account    how it stands: time, examples, evaluations, stop rules; small, and whole in every line
    Marked     a line of the journal: what was counted since the last one, and the account
    Whole      a line of the journal: everything; what stood before it no longer holds
    State      everything, as a checkpoint keeps it

In step mode what a model contains follows from its step. In each mode the segments of a checkpoint were cut at moments of
their own: a slot counts as done if every one of them has it (``counted_everywhere``), and is dealt again otherwise.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from shoal.decoding import look_up
from shoal.events import Evaluated, RolledBack, Started, Stopped, Voided
from shoal.schedule.runs import Runs, runs
from shoal.schedule.stop_rules import Patience
from shoal.wire import messages as m


@dataclass(slots=True)
class LossTally:
    """Examples and losses since somebody last looked."""

    examples: int = 0
    loss: float = 0.0

    def mean(self) -> float | None:
        return self.loss / self.examples if self.examples else None

    def add(self, examples: int, loss: float) -> None:
        self.examples += examples
        self.loss += loss


@dataclass(slots=True)
class TrafficTotals:
    """Bytes of all workers there ever were."""

    by: dict[int, tuple[int, int]] = field(default_factory=dict)  # incarnations; 0: all of them that are over
    filtered: dict[int, dict[str, list[int]]] = field(default_factory=dict)  # bytes into and out of each filter
    left: dict[int, tuple[float, float]] = field(default_factory=dict)  # by filters, for later; and what of it was lost

    def take(self, want: m.Want) -> None:
        self.by[want.incarnation] = (want.sent, want.received)
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
        """Bytes into and out of each filter, in all."""
        found: dict[str, list[int]] = {}
        for one in self.filtered.values():
            for name, counts in one.items():
                found[name] = [a + b for a, b in zip(counts, found.get(name, [0] * len(counts)), strict=True)]
        return found

    def remainder(self) -> tuple[float, float]:
        """The sizes of what filters left for later, and of what was lost, added up."""
        return sum(left for left, _ in self.left.values()), sum(lost for _, lost in self.left.values())

    def over(self) -> TrafficTotals:
        """All of those whose counts these are are no more."""
        left, lost = self.remainder()
        return TrafficTotals({0: self.totals()}, {0: self.through()}, {0: (0.0, left + lost)})

    def totals(self) -> tuple[int, int]:
        return sum(sent for sent, _ in self.by.values()), sum(received for _, received in self.by.values())


Said = Started | Evaluated | Voided | RolledBack | Stopped  # whoever misses one of these misses what the run has become


class Judgements(msgspec.Struct, frozen=True):
    """Evaluations: asked for, read, judged; and where the open ones are: slots, examples, workers."""

    asked: int = -1
    held: int = -1
    found: int = -1
    at: dict[int, tuple[int, int, int]] = {}
    last_loss: float | None = None  # in training, before the last of them
    since: tuple[int, float | None] = (0, 0.0)  # examples and their loss, since then


class RunSummary(msgspec.Struct, frozen=True):
    """How a run stands, but for what is counted."""

    generation: int = 0
    begun: bool = False
    seconds: float = 0.0
    computing: float | None = None  # seconds when the last slot was counted, if it is
    examples: int = 0
    dealt: int = 0  # step mode: up to here at most, until another line says more
    limit: int | None = None  # where it is to end, once that is decided; that it ends may be known before
    over: str = ""
    finished: bool = False
    judgements: Judgements = Judgements()
    patience: Patience = Patience()
    traffic: dict[int, tuple[int, int]] = {}  # bytes sent and received, by incarnation
    filtered: dict[int, dict[str, list[int]]] = {}
    left: dict[int, tuple[float, float]] = {}
    counts: dict[str, int] = {}
    said: list[Said] = []  # once this is on disk: perhaps it was not, for the process ended then


class ScheduleState(msgspec.Struct, frozen=True):
    """All that the coordinator knows of a run."""

    counted: Runs = []
    voids: dict[int, str] = {}
    refusals: dict[int, int] = {}
    deaths: dict[int, int] = {}
    account: RunSummary = RunSummary()


class JournalMark(msgspec.Struct, frozen=True, array_like=True, tag="marked"):
    """One line of the journal: what was counted since the last, and how it stands now."""

    counted: Runs
    voids: dict[int, str] = {}
    account: RunSummary | None = None


class JournalSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="whole"):
    """One line of the journal: from here on this is what holds, whatever was said before."""

    state: ScheduleState


Line = JournalMark | JournalSnapshot


def folded(lines: Iterable[Line]) -> ScheduleState:
    """What a journal says in the end."""
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
    return ScheduleState(joined(counted), voids, state.refusals, state.deaths, account)


def about_dealing(records: Iterable[bytes]) -> list[Line]:
    """The lines about dealing among the records of a journal."""
    lines: list[Line] = []
    for record in records:
        with contextlib.suppress(msgspec.MsgspecError):  # it is about something else
            lines.append(msgspec.msgpack.decode(record, type=Line))
    return lines


def joined(found: Iterable[tuple[int, int]]) -> Runs:
    """Runs in order, and no two that touch."""
    out: Runs = []
    for first, stop in sorted(found):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        elif first < stop:
            out.append((first, stop))
    return out


def without(found: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> Runs:
    """The slots of these runs that are not in those; both as ``joined`` makes them."""
    out: Runs = []
    at = 0
    for first, stop in found:
        while at < len(taken) and taken[at][1] <= first:
            at += 1
        i = at
        while first < stop:
            if i == len(taken) or taken[i][0] >= stop:
                out.append((first, stop))
                break
            if first < taken[i][0]:
                out.append((first, taken[i][0]))
            first = taken[i][1]
            i += 1
    return out


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
    return joined(out)


def to_begin_with(state: ScheduleState, counted: Runs | None = None, seconds: float = 0.0) -> ScheduleState:
    """What a new run has that goes on from a checkpoint: nobody is here, and what was not judged was never asked for.

    ``counted``, if the model says better than the state what it contains. Time is never taken back: at least so many
    ``seconds`` have passed.
    """
    account = state.account
    found = account.judgements.found
    judgements = msgspec.structs.replace(
        account.judgements, asked=found, held=found, at={n: at for n, at in account.judgements.at.items() if n == found}
    )
    traffic = TrafficTotals(dict(account.traffic), dict(account.filtered), dict(account.left)).over()
    account = msgspec.structs.replace(
        account,
        begun=False,
        finished=False,
        seconds=max(seconds, account.seconds),
        dealt=0,
        judgements=judgements,
        traffic=traffic.by,
        filtered=traffic.filtered,
        left=traffic.left,
        said=[],
    )
    return msgspec.structs.replace(state, counted=state.counted if counted is None else counted, account=account)


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


look_up(ScheduleState)

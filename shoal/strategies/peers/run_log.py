"""The state of a run as all peers know it: slots, evaluations, and the end.

Every peer keeps a ``RunLog`` and applies all words that it hears, its own included. Words of one
peer are heard in order, those of several peers in any order: a slot may be counted before the word
that assigned it is heard. When all have heard all words, all logs are equal: a new leader continues
from its own log.

    counted     each slot once, however often it is reported; with ``send = "owned"``, once its
                change is in every part of the weights
    out         assigned and not counted; free once the life it was assigned to is closed
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from shoal import limits
from shoal.errors import BadCheckpoint
from shoal.models.linear import Floats
from shoal.schedule.intervals import Intervals, count, runs
from shoal.schedule.stop_rules import Patience
from shoal.training.local_checkpoint import LocalCheckpoint, LocalProgress, Snapshot
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays, tag_of

MOST_EVALUATIONS = 200  # in one status, and in what a newcomer is given
# Names of counts.
TWICE, AGAIN, PARTLY = "slots learned twice", "slots dealt again", "slots learned in part"
_MOST = 1 << 50  # of anything that is added up: bytes, microseconds, contributions, versions


class RunLog(msgspec.Struct):
    """One peer's; packed, it is what a newcomer starts with."""

    counted: Intervals = msgspec.field(default_factory=Intervals)
    rows: int = 0
    loss: tuple[float, int] = (0.0, 0)  # sum and rows
    seconds: float = 0.0  # of the run when it was packed
    judged: list[p.EvaluationDone] = []
    out: dict[str, Intervals] = {}
    next: int = 0
    spent: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0])
    moved: dict[str, tuple[int, int]] = {}
    rates: dict[str, tuple[int, int]] = {}  # by life: slots learned, and microseconds for them
    staleness: list[int] = []
    counts: dict[str, int] = msgspec.field(default_factory=lambda: {TWICE: 0, AGAIN: 0})
    halt: p.Halt | None = None
    rested: list[str] = []
    ended: p.PeersEnded | None = None
    owners: p.OwnersChanged | None = None
    since: dict[str, int] = {}  # by life: the first version of the owners that names it
    yielded: dict[str, int] = {}
    included: list[dict[str, int]] = []  # by part: of each peer, up to which contribution
    told: dict[str, int] = {}  # of each peer, the last contribution that it announced
    open: dict[str, list[p.Learned]] = {}  # contributions that are not in every part yet
    returned: int = 0  # times that slots were given back
    mark: tuple[float, int] = (0.0, 0)  # the loss at the last evaluation

    def pack(self, seconds: float | None = None) -> bytes:
        out = {life: slots for life, slots in self.out.items() if slots}
        state = msgspec.structs.replace(self, judged=self.judged[-MOST_EVALUATIONS:], out=out)
        state.seconds = self.seconds if seconds is None else seconds
        return msgspec.msgpack.encode(state, enc_hook=lambda slots: slots.runs)

    @classmethod
    def unpack(cls, state: bytes) -> RunLog:
        return msgspec.msgpack.decode(state, type=cls, dec_hook=lambda kind, runs: kind(runs))

    @property
    def done(self) -> int:
        return self.counted.size

    @property
    def last(self) -> p.EvaluationDone | None:
        return self.judged[-1] if self.judged else None

    @property
    def all_owners(self) -> list[str]:
        """All lives that the last word about owners names."""
        return [] if self.owners is None else [*self.owners.lives, *self.owners.others]

    def left(self, life: str) -> int:
        """Slots that this life was assigned and has not learned from, as far as is known."""
        waiting = sum(count(one.slots) for one in self.open.get(life, ()))
        return max(0, self.out.get(life, Intervals()).size - waiting)

    def free(self, is_closed: Callable[[str], bool]) -> Intervals:
        """Slots that were assigned to a life that is closed, or were given back."""
        found = self.counted.missing(self.next)
        for life, slots in self.out.items():
            if slots and not is_closed(life):
                found.remove(slots)
        return found

    def apply(self, life: str, word: p.Word) -> None:
        match word:
            case p.Learned():
                self._learned(life, word)
            case p.SlotsDealt(slots, again):
                self.counts[AGAIN] += again
                for to, found in slots:
                    fresh = Intervals(found)
                    self.next = max(self.next, fresh.end)
                    fresh.remove(self.counted)
                    self.out.setdefault(to, Intervals()).add(fresh)
            case p.EvaluationDone():
                if self.last is None or word.number > self.last.number:
                    self.judged.append(word)
                    self.mark = self.loss
            case p.PeerLeaving():
                self.returned += bool(self.out.get(life, Intervals()).remove(word.back))
            case p.Halt():
                self.halt = self.halt or word
            case p.Rested():
                self.rested += [life] if life not in self.rested else []
            case p.PeersEnded():
                self.ended = self.ended or word
            case p.OwnersChanged():
                for one in (*word.lives, *word.others):
                    self.since[one] = min(word.version, self.since.get(one, word.version))
                if self.owners is None or word.version > self.owners.version:
                    self.owners = word
            case p.Yielded():
                self.yielded[life] = max(word.version, self.yielded.get(life, 0))
            case p.Owned():
                self._owned(word)

    def _learned(self, life: str, word: p.Learned) -> None:
        self.moved[life] = word.moved
        if word.part:
            self.told[life] = max(word.part, self.told.get(life, 0))
        self.spent = [a + b for a, b in zip(self.spent, [*word.spent, 0, 0, 0], strict=False)]
        slots = count(word.slots)
        if not slots:
            return
        done, took = self.rates.get(life, (0, 0))
        self.rates[life] = (done + slots, took + (word.spent[0] if word.spent else 0))
        stale = min(word.stale, limits.STALENESS_BUCKETS - 1)
        self.staleness += [0] * (stale + 1 - len(self.staleness))
        self.staleness[stale] += slots
        if word.part > self._in_all_parts(life):
            self.open.setdefault(life, []).append(word)
        else:
            self._count(life, word)

    def _count(self, life: str, one: p.Learned) -> None:
        slots, new = count(one.slots), self.counted.add(one.slots)
        self.out.get(life, Intervals()).remove(one.slots)
        self.next = max(self.next, *(stop for _, stop in one.slots))
        self.counts[TWICE] += slots - new
        rows = one.rows * new // slots
        self.rows += rows
        self.loss = (self.loss[0] + one.loss * (new / slots), self.loss[1] + rows)

    def _in_all_parts(self, life: str) -> int:
        """Up to this number the contributions of this life are in every part."""
        return min((part.get(life, 0) for part in self.included), default=0)

    def _owned(self, word: p.Owned) -> None:
        for part, upto in word.parts:
            here = self.included[part] if part < len(self.included) else {}
            for life, number in upto.items():
                here[life] = max(number, here.get(life, 0))
        for life in dict.fromkeys(life for _, upto in word.parts for life in upto):
            last = self._in_all_parts(life)
            while (found := self.open.get(life)) and found[0].part <= last:
                self._count(life, found.pop(0))

    def partly(self, is_closed: Callable[[str], bool]) -> int:
        """Slots of closed lives whose change is in some parts only; they are learned again."""
        return sum(
            count(one.slots)
            for life, found in self.open.items()
            if is_closed(life)
            for one in found
            if any(part.get(life, 0) >= one.part for part in self.included)
        )


def patience_of(last: p.EvaluationDone) -> Patience:
    best, mark, without, objective = last.patience or [None] * 4
    return Patience(best, mark, round(without or 0), objective)


@dataclass(frozen=True, slots=True)
class MessageCheck:
    """Validates words on receipt: one that cannot be applied would end the whole run.

    It depends on the word and on facts of the run, not on what was heard before: all peers agree.
    """

    keys: int  # weights; 0: not known
    slots: int  # at most
    batch: int
    parts: int  # of the weights, where they have owners

    def error_in(self, word: p.Word, arrays: Arrays) -> str:
        match word:
            case p.Learned():
                if not self._are_slots(word.slots) or word.rows > count(word.slots) * self.batch:
                    return "slots that do not exist"
                fits = math.isfinite(word.loss) and max(*word.spent, *word.moved, word.part) <= _MOST
                return self.error_in_change(arrays) if fits else "impossible figures"
            case p.Owned(parts):
                wrong = any(part >= self.parts or max(upto.values(), default=0) > _MOST for part, upto in parts)
                return "parts that do not exist" if wrong else self.error_in_change(arrays)
        if arrays:
            return f"{tag_of(type(word))} with arrays, which it cannot have"
        match word:
            case p.SlotsDealt(slots, again):
                fits = all(self._are_slots(runs) for _, runs in slots) and again <= self.slots
            case p.EvaluationDone():
                fits = word.done <= self.slots and word.rows <= self.slots * self.batch and word.number <= _MOST
                fits = fits and all(map(math.isfinite, (word.seconds, word.now))) and len(word.patience) in (0, 4)
            case p.PeerLeaving():
                fits = self._are_slots(word.back)
            case p.OwnersChanged(version, lives, others):
                fits = len(lives) == self.parts and len(others) <= limits.PEERS and version <= _MOST
            case p.Yielded(version):
                fits = version <= _MOST
            case _:
                return ""
        return "" if fits else f"{tag_of(type(word))} with impossible numbers"

    def error_in_change(self, arrays: Arrays) -> str:
        """The error in a change of weights; no arrays are an empty change."""
        if not arrays:
            return ""
        if len(arrays) != 2 or len(arrays[0]) != len(arrays[1]):
            return f"{' and '.join(str(len(one)) for one in arrays)} numbers: one value for each key is needed"
        keys, values = arrays
        if self.keys and len(keys) and int(keys.max()) >= self.keys:
            return f"key {keys.max()}: this model has {self.keys:,} weights"
        with np.errstate(invalid="ignore"):  # finite float32 values never overflow a float64 sum
            finite = math.isfinite(float(values.sum(dtype=np.float64)))
        return "" if finite else "values that are not finite"

    def _are_slots(self, runs: Sequence[p.Run]) -> bool:
        return all(first < stop <= self.slots for first, stop in runs)


def snapshot_of(state: bytes, flat: Floats, per_pass: int, keys: int, counts: dict[str, int]) -> Snapshot | None:
    """The contents of a checkpoint, from the log and the model that a peer gave.

    It has all slots that are not counted, up to the end of the last epoch that was begun, and not
    who had which slot: any number of peers can continue from it.
    """
    log = RunLog.unpack(state)
    if not log.done:
        return None
    sent, received = (sum(one[i] for one in log.moved.values()) for i in (0, 1))
    evaluations, patience = (0, Patience()) if log.last is None else (log.last.number + 1, patience_of(log.last))
    progress = LocalProgress(log.done, log.rows, evaluations, log.seconds, patience, counts, sent, received)
    of_pass = max(0, log.counted.end - 1) // per_pass
    missing = log.counted.missing((of_pass + 1) * per_pass)
    left = [slot for first, stop in missing for slot in range(first, stop)]
    return flat.reshape(keys, -1), of_pass, np.array(left, np.int64), progress, log.done


def begin_of(checkpoint: LocalCheckpoint, per_pass: int) -> RunLog:
    check_left(checkpoint, per_pass)
    was, (of_pass, left) = checkpoint.facts.standing, checkpoint.position
    log = RunLog(
        counted=Intervals(runs(left.tolist())).missing((of_pass + 1) * per_pass),
        rows=was.examples,
        seconds=was.seconds,
        moved={"": (was.sent, was.received)},
    )
    log.next = log.counted.end
    log.counts |= {name: number for name, number in was.counts.items() if name != "workers lost"}
    if was.evaluations:
        number, patience = was.evaluations - 1, list(msgspec.structs.astuple(was.patience))
        at, loss = was.seconds, was.patience.best
        log.judged = [p.EvaluationDone(number, at, at, was.done, was.examples, loss, {}, None, 0, False, patience)]
    return log


def check_left(checkpoint: LocalCheckpoint, per_pass: int) -> None:
    """Its slots belong to the epochs up to its own, each once; all others are counted."""
    of_pass, left = checkpoint.position
    end = (of_pass + 1) * per_pass
    if of_pass < 0 or (np.diff(left) < 1).any() or (len(left) and not 0 <= left[0] <= left[-1] < end):
        raise BadCheckpoint(str(checkpoint.path), f"has slots that the epochs up to {of_pass} do not have")
    if end - len(left) != checkpoint.facts.standing.done:
        done = checkpoint.facts.standing.done
        raise BadCheckpoint(str(checkpoint.path), f"has {len(left)} slots left, and {done} done, of {end}")

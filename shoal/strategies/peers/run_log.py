"""What everybody knows of a run from what was said: what is dealt, what is counted, how good it was, whether it is over.

Every peer keeps one, and writes down what it hears, its own words included. What one peer says is heard in order, what several say in
any order: so a slot may be counted before it is heard that it was dealt, and when all have heard all, all books are the same.

    counted     each slot once, whoever says so how often; where weights are owned, when its change is in every part
    out         dealt, not counted; of somebody who is gone they are free when nobody can have heard more of it than we have

Whoever leads deals from it, and whoever leads next goes on from it. Pure bookkeeping: no messages, no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from shoal import limits
from shoal.schedule.intervals import Intervals, count
from shoal.wire.messages import peers as p

TOLD = 200  # evaluations at most in one account, and in what a newcomer is given
TWICE, AGAIN, PARTLY = "slots learned twice", "slots dealt again", "slots learned in part"  # of these counts


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """What somebody learned that is on its way into the parts of the weights."""

    number: int
    slots: list[p.Run]
    rows: int
    loss: float


class RunLogState(msgspec.Struct, frozen=True):
    """A book at one moment: for a newcomer, or for a run that is taken up again."""

    counted: list[p.Run] = []
    rows: int = 0
    loss: tuple[float, int] = (0.0, 0)
    seconds: float = 0.0
    judged: list[p.EvaluationDone] = []  # the last ones
    out: dict[str, list[p.Run]] = {}
    next: int = 0
    spent: list[int] = []
    moved: dict[str, tuple[int, int]] = {}
    rates: dict[str, tuple[int, int]] = {}
    staleness: list[int] = []
    counts: dict[str, int] = {}
    halt: p.Halt | None = None
    rested: list[str] = []
    ended: p.PeersEnded | None = None
    owners: p.OwnersChanged | None = None
    since: dict[str, int] = {}  # by life: the version of the owners of which it was the first time
    yielded: dict[str, int] = {}
    included: list[dict[str, int]] = []  # by part: of each peer, up to which contribution
    told: dict[str, int] = {}  # of each peer, the last contribution that it told of
    open: dict[str, list[Contribution]] = {}

    def anew(self) -> RunLogState:
        """For a run that is taken up again by others: what was learned, and nothing of who was here."""
        return RunLogState(
            self.counted,
            self.rows,
            self.loss,
            self.seconds,
            self.judged,
            spent=self.spent,
            moved=self.moved,
            staleness=self.staleness,
            counts=self.counts,
        )


class RunLog:
    """One peer's."""

    def __init__(self, state: RunLogState | None = None, parts: int = 0) -> None:
        """``parts`` of the weights are owned; 0: everybody tells all."""
        state = state or RunLogState()
        self.counted = Intervals(state.counted)
        self.rows, self.loss = state.rows, state.loss
        self.judged = list(state.judged)
        self.out = {life: Intervals(runs) for life, runs in state.out.items()}
        self.next = max(state.next, self.counted.end)
        self.spent = list(state.spent) or [0, 0, 0]
        self.moved = dict(state.moved)
        self.rates = dict(state.rates)  # by life: slots learned, and microseconds computed for them
        self.staleness: Counter[int] = Counter(dict(enumerate(state.staleness)))
        self.counts: Counter[str] = Counter(state.counts)
        self.halt, self.rested, self.ended = state.halt, dict.fromkeys(state.rested), state.ended
        self.owners = state.owners
        self.since, self.yielded = dict(state.since), dict(state.yielded)
        self.included = [dict(part) for part in state.included] or [{} for _ in range(parts)]
        self.told = dict(state.told)
        self.open = {life: list(found) for life, found in state.open.items()}
        self.returned = 0  # times that something was given back
        self.mark = self.loss  # where the last evaluation was

    def state(self, seconds: float) -> RunLogState:
        return RunLogState(
            self.counted.runs,
            self.rows,
            self.loss,
            seconds,
            self.judged[-TOLD:],
            {life: spans.runs for life, spans in self.out.items() if spans},
            self.next,
            list(self.spent),
            dict(self.moved),
            dict(self.rates),
            self.histogram(),
            dict(self.counts),
            self.halt,
            list(self.rested),
            self.ended,
            self.owners,
            dict(self.since),
            dict(self.yielded),
            [dict(part) for part in self.included],
            dict(self.told),
            {life: list(found) for life, found in self.open.items() if found},
        )

    # ------------------------------------------------------------ what is known

    @property
    def done(self) -> int:
        """Slots that are counted."""
        return self.counted.size

    @property
    def last(self) -> p.EvaluationDone | None:
        """The last evaluation."""
        return self.judged[-1] if self.judged else None

    def left(self, life: str) -> int:
        """Slots that it was dealt and has not learned from, as far as is known."""
        spans = self.out.get(life)
        waiting = sum(count(one.slots) for one in self.open.get(life, ()))
        return max(0, (spans.size if spans is not None else 0) - waiting)

    def free(self, is_closed: Callable[[str], bool]) -> Intervals:
        """Slots that were dealt and that nobody has any more."""
        found = self.counted.missing(self.next)
        for life, spans in self.out.items():
            if spans and not is_closed(life):
                found.remove(spans)
        return found

    def histogram(self) -> list[int]:
        return [self.staleness[gap] for gap in range(max(self.staleness, default=-1) + 1)]

    # ------------------------------------------------------------ what is heard

    def take(self, life: str, word: p.Word) -> None:
        match word:
            case p.Learned():
                self._learned(life, word)
            case p.SlotsDealt():
                self._dealt(word)
            case p.EvaluationDone():
                self._judged(word)
            case p.PeerLeaving():
                if (spans := self.out.get(life)) is not None and spans.remove(word.back):
                    self.returned += 1
            case p.Halt():
                self.halt = self.halt or word
            case p.Rested():
                self.rested[life] = None
            case p.PeersEnded():
                self.ended = self.ended or word
            case p.OwnersChanged():
                self._owners(word)
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
        self.staleness[min(word.stale, limits.STALENESS_BUCKETS - 1)] += slots
        one = Contribution(word.part, word.slots, word.rows, word.loss)
        if word.part > self.everywhere(life):
            self.open.setdefault(life, []).append(one)
        else:
            self._count(life, one)

    def _count(self, life: str, one: Contribution) -> None:
        """Its change is in the weights."""
        told, new = count(one.slots), self.counted.add(one.slots)
        if (spans := self.out.get(life)) is not None:
            spans.remove(one.slots)
        self.next = max(self.next, max(stop for _, stop in one.slots))
        self.counts[TWICE] += told - new
        rows = one.rows if new == told else one.rows * new // told
        loss = one.loss if new == told else one.loss * new / told
        self.rows += rows
        self.loss = (self.loss[0] + loss, self.loss[1] + rows)

    def _dealt(self, word: p.SlotsDealt) -> None:
        for life, runs in word.slots:
            fresh = Intervals(runs)
            self.next = max(self.next, fresh.end)
            fresh.remove(self.counted)
            self.out.setdefault(life, Intervals()).add(fresh)
        self.counts[AGAIN] += word.again

    def _judged(self, word: p.EvaluationDone) -> None:
        if self.last is None or word.number > self.last.number:
            self.judged.append(word)
            self.mark = self.loss

    # ------------------------------------------------------------ weights that are owned

    def everywhere(self, life: str) -> int:
        """Up to this one its contributions are in every part."""
        return min((part.get(life, 0) for part in self.included), default=0)

    def _owners(self, word: p.OwnersChanged) -> None:
        for one in (*word.lives, *word.others):
            self.since[one] = min(word.version, self.since.get(one, word.version))
        if self.owners is None or word.version > self.owners.version:
            self.owners = word

    def _owned(self, word: p.Owned) -> None:
        lives: dict[str, None] = {}
        for part, upto in word.parts:
            if part < len(self.included):
                here = self.included[part]
                for life, number in upto.items():
                    here[life] = max(number, here.get(life, 0))
                    lives[life] = None
        for life in lives:
            self._move_up(life)

    def _move_up(self, life: str) -> None:
        found = self.open.get(life)
        if found:
            upto = self.everywhere(life)
            for one in found:
                if one.number <= upto:
                    self._count(life, one)
            self.open[life] = [one for one in found if one.number > upto]

    def partly(self, is_closed: Callable[[str], bool]) -> int:
        """Slots of those who are gone that are in some parts of the weights and not in others: they are done again."""
        return sum(
            count(one.slots)
            for life, found in self.open.items()
            if is_closed(life)
            for one in found
            if any(part.get(life, 0) >= one.number for part in self.included)
        )

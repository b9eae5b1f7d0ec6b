"""The run's clock, whose turn it is to lead, and the judging: what lies between a peer and what a lead decides (``lead``).

Whoever comes first among those who live leads, once it has heard all that anybody has of those who are gone: one of them may have
decided something. So may those who are here: one that comes before them and gets its model after them waits until they know of it, or two
would lead at once. The clock begins when all founders are here, and their first weights are judged: who starts late is not
waited for on the clock (S4-23). Every peer keeps it, by what it hears; it never goes back, whoever leads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from shoal import limits
from shoal.strategies.peers.leader import Leader, LeaderView, PeerFacts
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.ownership import Ownership
from shoal.strategies.peers.queries import PeerQueries
from shoal.strategies.peers.replica import Floats
from shoal.strategies.peers.run_log import RunLog
from shoal.wire.effects import Effect, Store
from shoal.wire.messages import peers as p

Judge = Callable[[Floats], tuple[float, Mapping[str, float | None]]]


class Leadership:
    """One peer's."""

    def __init__(
        self, mesh: Mesh, facts: PeerFacts, judge: Judge, answers: PeerQueries, owning: Ownership | None, before: float
    ) -> None:
        """``before``: seconds of the run, where it is taken up again."""
        self._mesh, self._facts, self._judge, self._answers, self._owning = mesh, facts, judge, answers, owning
        self.lead: Leader | None = None
        self.stop = ""  # somebody wants it to end, and why
        self._before = round(before * limits.SECOND)
        self._clock: int | None = None  # when the run began, by our own clock
        self._first: int | None = None  # when we did
        self._judging = 0  # token of what is judged

    # ------------------------------------------------------------ the clock

    def begin(self, now: int) -> None:
        """With the first event."""
        self._first = now if self._first is None else self._first

    def seconds(self, now: int) -> float:
        return (now - self._clock if self._clock is not None else self._before) / limits.SECOND

    def set_clock(self, now: int, seconds: float) -> None:
        """It is so late at least."""
        at = now - round(seconds * limits.SECOND)
        self._clock = at if self._clock is None else min(self._clock, at)

    def _has_begun(self, now: int) -> bool:
        """All are here, or it begins without those who were not heard of by now."""
        if self._clock is not None or self._mesh.is_met:
            return True
        return self._first is not None and now - self._first > self._mesh.timing.join_within

    # ------------------------------------------------------------ deciding

    def view(self, book: RunLog) -> LeaderView:
        mesh, owning = self._mesh, self._owning
        living = [one.life for one in mesh.living]
        if owning is None:
            return LeaderView(living, list(mesh.gone), mesh.is_closed, living)
        known = () if book.owners is None else (*book.owners.lives, *book.owners.others)

        def is_closed(life: str) -> bool:
            return mesh.is_closed(life) and owning.is_closed(life, book, living)

        return LeaderView(living, list(mesh.gone), is_closed, [life for life in living if life in known])

    def decide(self, now: int, book: RunLog, may_lead: bool) -> list[p.Word]:
        """What there is to be said, if it is us who decide; when that is heard there may be more."""
        mesh = self._mesh
        if not may_lead or mesh.leads != mesh.me.life:
            self.lead = None
            return []
        if self.lead is None:
            if not mesh.may_begin_to_lead:
                return []  # somebody may have decided what we have not heard, or may still decide
            self.lead = Leader(mesh.me.life, self._facts, book)
        if self.stop:
            self.lead.end(self.stop, now=True)
        if not self._has_begun(now):
            return []
        if self._clock is None and book.last is not None:
            self._clock = now - self._before  # a run that is taken up again
        view = self.view(book)
        if self._owning is not None and book.ended is None:
            owners = self._owning.choose(book, view.living)
            if owners is not None:
                return [owners]
        return self.lead.look(self.seconds(now), view)

    # ------------------------------------------------------------ judging

    def is_to_weigh(self, now: int, book: RunLog) -> bool:
        """Weights are to be cut, to be judged."""
        if self.lead is None or not self._has_begun(now):
            return False
        return self.lead.due or self.lead.is_last_due(self.view(book))

    def weighed(self, now: int, weights: Floats, done: int, rows: int, loss: tuple[float, int]) -> list[Effect]:
        """They were cut: they are judged beside the learning."""
        lead = self.lead
        if lead is None:
            return []
        lead.cut(self.seconds(now), done, rows, loss, len(self._mesh.living))
        assert lead.open is not None
        self._answers.keep(lead.open.number, weights)
        self._judging += 1
        return [Store(self._judging, partial(_judged, self._judge, weights))]

    def judged(self, now: int, token: int, result: Any, error: BaseException | None) -> list[p.Word]:
        lead = self.lead
        if token != self._judging or lead is None or lead.open is None:
            return []  # of a time when it led before
        if error is not None:
            lead.unjudged(str(error) or type(error).__name__)
            return []
        word = lead.judged(self.seconds(now), *result)
        self._answers.judged(word.number, word.best)
        if self._clock is None:
            self._clock = now - self._before  # the first weights are judged: from here on slots are dealt
        return [word]


def _judged(judge: Judge, weights: Floats) -> tuple[float, Mapping[str, float | None]]:
    with np.errstate(over="ignore", invalid="ignore"):
        fine = math.isfinite(float(weights.sum(dtype=np.float64)))
    return judge(weights) if fine else (math.inf, {})

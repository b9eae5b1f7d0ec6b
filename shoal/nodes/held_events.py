"""What a run has to say, held back until what it follows from is in the journal.

One line is on its way at a time. What follows from it waits for it; what follows from a later change waits for the line after
it, which is written next. A line that the disk refused is lacking: the one that is tried a second later says everything
anew, so that none is ever missed. A disk that takes nothing for long does not hold a run up for good: it goes on, as it
must not lose hours of work to its journal, and what it says then is only as good as the process.

A process may end when a line is in the journal and what follows from it is not said yet. So a line has the events that follow
from it, and the next life tells those of the last line again, as they were; another line, behind them, says that they are told.
"""

from __future__ import annotations

from shoal import limits
from shoal.nodes.scheduler_state import Said
from shoal.wire.effects import Effect, Send, Tell

_RETRY = limits.SECOND  # a journal that cannot be written is tried again


class HeldEvents:
    """Effects in their order, behind the lines that they wait for."""

    def __init__(self) -> None:
        self.writing = False  # a line is on its way
        self.lacks = False  # the journal lacks something that is not only new: the next line says everything
        self._whole = False  # the line that is on its way says everything
        self._behind: list[Effect] | None = None  # the line that is on its way; None: nothing waits for it
        self._next: list[Effect] | None = None  # the line after it; None: none is due
        self._retry = 0
        self._refused_since = 0
        self.is_told_only_here = False  # events of the last line were told, and the journal does not say so

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        return self._behind is None and self._next is None

    @property
    def is_behind(self) -> bool:
        """The journal says what does not hold any more, and will until the next line that says everything is in it."""
        return self.lacks or self._whole

    def has_given_up(self, now: int, patience: int) -> bool:
        return bool(self._refused_since) and now - self._refused_since > patience

    def may_write(self, now: int) -> bool:
        return not self.writing and now >= self._retry

    def is_due(self, now: int) -> bool:
        """Time for a line: something waits for it, or it was refused before."""
        return self.may_write(now) and (self.lacks or self.is_told_only_here or self._next is not None)

    def begin(self) -> tuple[bool, list[Said]]:
        """A line is written, and what waited for one waits for this one; whether it says everything, and what is told then."""
        self.writing, self._whole, self.lacks = True, self.lacks, False
        self._behind, self._next = self._next, None
        self.is_told_only_here = False
        return self._whole, said(self._behind or [])

    def wait(self, effects: list[Effect]) -> None:
        """These follow from what is in no line yet."""
        self._next = _added(self._next or [], effects)

    def after(self, effects: list[Effect]) -> list[Effect]:
        """These are said after all that waits: at once, if nothing does."""
        if self._next is not None:
            self._next = _added(self._next, effects)
        elif self._behind is not None:
            self._behind = _added(self._behind, effects)
        else:
            return effects
        return []

    def behind(self, effects: list[Effect]) -> list[Effect]:
        """These follow from what is in the line that is on its way: nothing of them is said now."""
        if self._next is None and self._behind is None:
            self._behind = []
        return self.after(effects)

    def written(self) -> list[Effect]:
        """The line is in the journal: what waited for it."""
        released, self._behind = self._behind or [], None
        self.is_told_only_here = bool(said(released))
        self.writing = self._whole = False
        self._refused_since = 0
        return released

    def refused(self, now: int) -> None:
        """The disk did not take the line."""
        if self._behind is not None:
            self._next = [*self._behind, *(self._next or [])]
        self._behind, self.writing, self._whole, self.lacks = None, False, False, True
        self._retry, self._refused_since = now + _RETRY, self._refused_since or now

    def give_up(self) -> list[Effect]:
        """All that waits for a line that is not written."""
        waited, self._next = self._next or [], None
        return waited


def said(effects: list[Effect]) -> list[Said]:
    """The events among them that nobody may miss."""
    return [one.event for one in effects if isinstance(one, Tell) and isinstance(one.event, Said)]


def _added(held: list[Effect], effects: list[Effect]) -> list[Effect]:
    """All of them, but of the answers to one node the last: whoever asked again waits for that one alone."""
    again = {one.to for one in effects if isinstance(one, Send)}
    return [*(one for one in held if not (isinstance(one, Send) and one.to in again)), *effects]

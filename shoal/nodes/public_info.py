"""What the coordinator says to those who are no members yet, or never will be: what the run is about, and what happened lately.

Nothing changes by being asked, but for one thing: who cannot take part may say why, and that is told to whoever looks at the run; so
many times, and no more, since anyone may say it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.events import Evaluated, Progress, RunEvent, Shared, Spans
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Tell

if TYPE_CHECKING:
    from shoal.nodes.scheduling import Scheduler

Asked = m.Describe | m.Feed | m.Unfit


class PublicInfo:
    """One coordinator's."""

    def __init__(self, about: m.Described | None = None) -> None:
        self.about = about or m.Described(0)
        self._events: deque[RunEvent] = deque(maxlen=limits.FEED)
        self._number = 0  # of the last event
        self._unfit = 0

    def take(self, sender: str, asked: Asked, dealing: Scheduler | None) -> list[Effect]:
        match asked:
            case m.Describe(request):
                ended = dealing is not None and dealing.ended
                return [Send(sender, msgspec.structs.replace(self.about, request=request, ended=ended))]
            case m.Feed(request, after):
                return [Send(sender, m.Fed(request, self._number, self._since(after)))]
            case m.Unfit(name, why):
                return self._cannot(name, why, dealing)

    def heard(self, effects: Iterable[Effect]) -> None:
        """What is told now is remembered, but for what is told all the time, or is seen by looking."""
        for effect in effects:
            if isinstance(effect, Tell) and not isinstance(effect.event, Progress | Shared | Spans):
                self._number += 1
                self._events.append(_short(effect.event))

    def _since(self, after: int) -> list[RunEvent]:
        new = max(0, self._number - after) if after <= self._number else self._number  # else it asks a former life
        return list(self._events)[-new:] if new else []

    def _cannot(self, name: str, why: str, dealing: Scheduler | None) -> list[Effect]:
        self._unfit += 1
        if dealing is None or self._unfit > limits.UNFIT:
            return []
        return dealing.warn(f"{name[: limits.NAME_CHARS]} cannot take part: {why[: limits.UNFIT_CHARS]}")


def _short(event: RunEvent) -> RunEvent:
    """An evaluation has a line for each worker: who looks on needs none of them."""
    return msgspec.structs.replace(event, each={}) if isinstance(event, Evaluated) else event

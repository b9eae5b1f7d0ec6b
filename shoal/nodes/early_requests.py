"""Requests that came too soon: by a view that their server does not have yet, or for segments that it is just about to open.

Both are a matter of milliseconds, and they meet all who use the table. If they were sent back (``Busy``), each would come again as often as it
takes, while the server has enough to do with opening. So they wait here, in the order in which they came, and are looked at again
when things have changed. A request waits so for a short time only: after that, or if it comes a second time, or finds no room,
whoever sent it is told why and when to ask again, as long as it takes.

What waits here has not been looked at: it may as well be on its way still. So nothing is promised, and nothing is lost with it.
"""

from __future__ import annotations

from shoal import limits
from shoal.timing import TimingSettings
from shoal.wire.effects import Received

_Key = tuple[str, int]


def longest(timing: TimingSettings) -> int:
    """How long a request waits here: it is answered before it comes again."""
    return timing.resend_first * 3 // 5


class EarlyRequests:
    """One server's."""

    def __init__(self) -> None:
        self._kept: dict[_Key, tuple[int, Received]] = {}  # since when
        self._then: object = None  # how things were when they were last looked at

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, now: int, event: Received, how: object) -> bool:
        """As things are (``how``) it is too soon. False if it does not wait here."""
        key = event.sender, getattr(event.message, "request", 0)
        if self._kept.pop(key, None) is not None or len(self._kept) >= limits.BACKLOG:
            return False
        self._kept[key] = now, event
        self._then = how
        return True

    def changed(self, how: object) -> list[Received]:
        """All of them, if things are not as they were."""
        return self._taken(list(self._kept)) if how != self._then else []

    def late(self, now: int, timing: TimingSettings) -> list[Received]:
        """Those that have waited as long as they may."""
        return self._taken([key for key, (since, _) in self._kept.items() if now - since >= longest(timing)])

    def clear(self) -> None:
        self._kept.clear()

    def _taken(self, keys: list[_Key]) -> list[Received]:
        return [self._kept.pop(key)[1] for key in keys]

"""How fast a server sends segments that change hands: slow enough that pushes and pulls hardly feel it.

So many bytes a second, for all tables of the server together. Whoever sends may overdraw once, so that a piece of any size gets through, and
then waits until that is paid. Time is handed in. A copy that takes the place of a lost one does not wait: nobody may be without
for longer than it must.
"""

from __future__ import annotations

from shoal import limits


class RateLimit:
    """What may still be sent."""

    def __init__(self, rate: int = limits.MOVE_RATE) -> None:
        self.rate = rate  # bytes a second
        self._left = 0.0
        self._at: int | None = None  # when this was reckoned

    def allows(self, now: int) -> bool:
        """Whether something may be sent now."""
        most = max(limits.FILL_BYTES, self.rate * limits.PACE_AHEAD // limits.SECOND)
        earned = most if self._at is None else self.rate * max(0, now - self._at) / limits.SECOND
        self._left, self._at = min(most, self._left + earned), now
        return self._left > 0

    def sent(self, size: int) -> None:
        self._left -= size

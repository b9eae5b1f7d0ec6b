"""What a node from elsewhere says while it hears nothing: whom it waits for, for how long yet, and that it is back.

A coordinator may be started again, so such a node waits for it (``--patience``). Whoever looks at its terminal meanwhile sees that it does.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal import limits
from shoal.nodes.drainable import DrainableServer

FIRST = 3 * limits.SECOND  # of silence at least, until it is told: beats come twice a second, as a rule
AGAIN = 10 * limits.SECOND


class Silence:
    """Look at it whenever the loop has turned."""

    def __init__(self, guest: DrainableServer, address: str, say: Callable[[str], None]) -> None:
        self._guest, self._say, self._address = guest, say, address
        self._told = 0  # nanoseconds of silence when it was last told

    def look(self) -> None:
        silence, left = self._guest.silence, self._guest.waits
        first = max(FIRST, self._guest.member.timing.suspect)
        if self._told and silence < first:
            self._told = 0
            self._say(f"{self._guest.name} hears the coordinator again, and goes on")
        elif left is not None and not self._guest.end and silence >= (self._told + AGAIN if self._told else first):
            self._told = silence
            self._say(
                f"{self._guest.name} has heard nothing from the coordinator at {self._address} for {silence // limits.SECOND} s: it waits "
                f"{left / limits.SECOND:.0f} s more in case it is started again, then ends (--patience; Ctrl-C twice: now)"
            )

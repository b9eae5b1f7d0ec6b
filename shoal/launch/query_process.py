"""Where a server has users' questions asked: in a fork of it, so that whatever they do costs their own answer and nothing else.

The fork sees the rows as they are at that moment; the server goes on meanwhile, and pays for the pages that it changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal import limits
from shoal.errors import Invalid
from shoal.store.query import Found, packed, unpacked
from shoal.user_code import ForkedCall

_MOST = (
    8 * (limits.CALL_NUMBERS + limits.CALL_KEYS) + 4 * limits.CALL_VALUES + 65_536
)  # bytes of an answer, and of what goes around it


class RunningQuery:
    """One question that is being asked."""

    def __init__(self) -> None:
        self.done = False
        self._found: Found | Invalid = Found()

    def end(self, found: Found | Invalid) -> None:
        self._found, self.done = found, True

    def found(self) -> Found:
        """Raises Invalid if there is none."""
        if isinstance(self._found, Invalid):
            raise self._found
        return self._found


class QueryProcess:
    """Asks, and pokes the loop when there is an answer."""

    def __init__(self, poke: Callable[[], None]) -> None:
        self._poke = poke

    def __call__(self, ask: Callable[[], Found], nanoseconds: int) -> RunningQuery:
        """To be called by whoever has the table to itself: it is this moment that is seen."""
        asked = RunningQuery()
        try:
            child = ForkedCall(lambda: packed(ask()), nanoseconds / limits.SECOND, limits.CALL_MEMORY, _MOST)
        except OSError as error:
            asked.end(Invalid(f"there was no room for a process to ask it ({error.strerror})"))
            return asked
        threading.Thread(target=self._wait, args=(child, asked), name="shoal-question", daemon=True).start()
        return asked

    def _wait(self, child: ForkedCall, asked: RunningQuery) -> None:
        try:
            asked.end(unpacked(child.wait()))
        except Invalid as error:
            asked.end(error)
        except BaseException as error:
            asked.end(Invalid(str(error)))
        self._poke()

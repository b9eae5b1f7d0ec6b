"""Restarts processes that ended, with exponential backoff and a limit.

Without a limit, restarts would hide a fault. Each restart has its own thread, since the thread that
reports an end must not block. The first two are made at once (or after ``delay``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from shoal.errors import ShoalError

MOST = 10  # restarts of one name
WITHIN = 60.0  # seconds
_SOON = 0.05  # seconds before the third restart, doubled for each further one
_LATEST = 5.0  # seconds at most


class Supervisor:
    """Restarts processes, until one ends too often."""

    def __init__(self, again: Callable[[str], None], give_up: Callable[[str], None], most: int = 0) -> None:
        self.delay = 0.0  # seconds before any restart
        self.restarts: dict[str, int] = {}
        self._again, self._give_up, self._most = again, give_up, most
        self._times: dict[str, deque[float]] = {}
        self._closed = threading.Event()

    def ended(self, name: str, why: str) -> None:
        """Restart it, or give up. Returns at once."""
        if self._closed.is_set():
            return
        now = time.monotonic()
        times = self._times.setdefault(name, deque())
        while times and now - times[0] > WITHIN:
            times.popleft()
        if len(times) >= (most := self._most or MOST):
            self._give_up(
                f"{name} was restarted {most} times in {WITHIN:g} s, and ended each time (the last time: {why})"
            )
            return
        wait = self.delay + (min(_LATEST, _SOON * 2.0 ** (len(times) - 2)) if len(times) >= 2 else 0.0)
        times.append(now)
        threading.Thread(target=self._restart, args=(name, wait), name=f"shoal-restart-{name}", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _restart(self, name: str, wait: float) -> None:
        if self._closed.wait(wait):
            return
        try:
            self._again(name)
            self.restarts[name] = self.restarts.get(name, 0) + 1
        except ShoalError as error:
            self.ended(name, str(error))

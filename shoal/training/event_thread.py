"""Hands events on to whoever looks at a run, on a thread of its own: one who is slow to listen holds up nobody."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

from shoal import limits
from shoal.events import RunEvent

Listener = Callable[[RunEvent], None]


class EventThread:
    """Events in, from any thread; out to one listener, in order."""

    def __init__(self, listener: Listener, label: str) -> None:
        self._listener = listener
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._tell, name=f"shoal-{label}-events", daemon=True)
        self._thread.start()

    def __call__(self, event: RunEvent) -> None:
        self._events.put(event)

    def close(self) -> None:
        """What was put in before is told, unless the listener takes too long for that."""
        self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(limits.DRAIN / limits.SECOND)

    def _tell(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._listener(event)
            except Exception as error:  # of the listener's making: what happens next must be told all the same
                print(f"shoal: {type(error).__name__}: {error} when told what happened", file=sys.stderr)

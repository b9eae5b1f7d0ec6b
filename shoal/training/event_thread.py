"""Hands events to a listener on a thread of its own: a slow one does not hold up the run."""

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
        """Hand on what was put in before, unless the listener takes too long."""
        self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(limits.DRAIN / limits.SECOND)

    def _tell(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._listener(event)
            except Exception as error:  # the listener's own: later events still come
                print(f"shoal: {type(error).__name__}: {error} when told what happened", file=sys.stderr)

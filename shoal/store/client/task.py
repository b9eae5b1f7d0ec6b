"""One push, pull or call in flight.

``await task`` in a coroutine yields it to the loop and resumes when it is done; ``task.result()``
does the same for a thread. A task may follow other tasks (``after=``): it is sent once all of them
are done, so any DAG of calls can be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import Invalid


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """The future result of a call."""

    what: str
    after: tuple[Task, ...] = ()
    done: bool = False
    was_read: bool = False  # the caller has read the outcome
    value: Any = None
    error: Exception | None = None
    versions: dict[str, list[int]] = field(default_factory=dict)  # of a pull, by server
    steps: set[int] = field(default_factory=set)  # of a pull: all versions that it saw
    clocks: list[Any] = field(default_factory=list)  # of a pull with clocks: (range, vector clock)
    held: int = 0  # when a server first held it; 0: never
    waits_for: str = ""  # what it waits for, by the last notice
    _then: list[Callable[[Task], None]] = field(default_factory=list)
    _waiter: Callable[[Task, float | None], None] | None = None  # makes a thread wait for the task

    def __await__(self) -> Generator[Task, None, Any]:
        while not self.done:
            yield self
        return self._outcome()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the value or the error. TimedOut after ``timeout`` seconds: the task goes on."""
        if not self.done:
            if self._waiter is None:
                raise Invalid(f"{self.what}: this task belongs to a coroutine; await it")
            self._waiter(self, timeout)
        return self._outcome()

    def then(self, call: Callable[[Task], None]) -> None:
        """Call this when the task is done, or now if it is."""
        if self.done:
            call(self)
        else:
            self._then.append(call)

    def finish(self, value: Any = None, error: Exception | None = None) -> None:
        if self.done:
            return
        self.value, self.error = value, error
        self.done = True
        calls, self._then = self._then, []
        for call in calls:
            call(self)

    def _outcome(self) -> Any:
        self.was_read = True
        if self.error is not None:
            raise self.error
        return self.value

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else f"waits for {self.waits_for or 'an answer'}"
        return f"<{self.what}: {state}>"

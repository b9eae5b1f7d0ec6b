"""One push, pull or call under way.

``await task`` in a coroutine yields it to the loop and resumes when it is done; ``task.result()``
does the same for a thread. A task may follow other tasks (``after=``): it is sent once all of them
are done, so any DAG of calls can be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from shoal.errors import Invalid


class Waiter(Protocol):
    """Makes a thread wait for a task."""

    def __call__(self, task: Task, seconds: float | None) -> None: ...


class Task:
    """The future result of a call."""

    __slots__ = (
        "_then",
        "_waiter",
        "after",
        "asked",
        "clocks",
        "done",
        "error",
        "held",
        "steps",
        "value",
        "versions",
        "waits_for",
        "what",
    )

    def __init__(self, what: str, after: tuple[Task, ...] = ()) -> None:
        self.what = what
        self.after = after
        self.done = False
        self.asked = False  # somebody read the outcome
        self.value: Any = None
        self.error: Exception | None = None
        self.versions: dict[str, list[int]] = {}  # of a pull: what each server's segments were at
        self.steps: set[int] = set()  # of a pull: all versions that it saw
        self.clocks: list[Any] = []  # of a pull with clocks: (range, vector clock)
        self.held = 0  # when a server first held it; 0: never
        self.waits_for = ""  # what it waits for, by the last notice
        self._then: list[Callable[[Task], None]] = []
        self._waiter: Waiter | None = None

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
        self.asked = True
        if self.error is not None:
            raise self.error
        return self.value

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else f"waits for {self.waits_for or 'an answer'}"
        return f"<{self.what}: {state}>"

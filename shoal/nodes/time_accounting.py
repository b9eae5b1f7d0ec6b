"""Where a node's time goes: every moment counts as exactly one of these kinds.

    compute      a gradient, and the rows for it
    communicate  messages are made and read, or are on their way
    wait         a server holds the answer: for slower workers, or for other slots of a step
    idle         there is no slot to do
    evaluate     the model is evaluated (an evaluator, not a worker)

While anything is computed, whatever else is waited for is not counted. Totals are of everything;
spans only of the first so many in a second, and later of one second in ten, then in sixty. Seconds
are those of the machine's clock, so that workers of one machine show the same ones.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal import limits

KINDS = ("compute", "communicate", "wait", "idle", "evaluate")
COMPUTE, COMMUNICATE, WAIT, IDLE, EVALUATE = range(len(KINDS))

TimeSpan = tuple[int, int, int]  # kind, microseconds ago, microseconds long

_DENSE = 60 * limits.SECOND  # so long every second is looked at
_SPARSE = 600 * limits.SECOND  # so long every tenth


class TimeAccounting:
    def __init__(self, clock: Callable[[], int], most: int) -> None:
        self._clock, self._most = clock, most
        self._began = self._mark = clock()  # up to the mark all is accounted for
        self._computing = 0
        self._totals = [0] * len(KINDS)
        self._spans: list[list[int]] = []  # kind, start, stop
        self._second, self._room = -1, 0

    def computing(self) -> None:
        """A computation begins: since the last wait its rows were made ready."""
        if not self._computing:
            self.record(COMPUTE)
        self._computing += 1

    def computed(self) -> None:
        self.record(COMPUTE)
        self._computing -= 1

    def waited(self, held: int = 0, kind: int = COMMUNICATE) -> None:
        """An awaited answer came; a server held it since ``held`` (0: it did not)."""
        if self._computing:
            return
        now = self._clock()
        if held and now > (since := max(held, self._mark)):
            self.record(kind, since)
            kind = WAIT
        self.record(kind, now)

    def skip(self) -> None:
        self._mark = max(self._mark, self._clock())

    def take(self) -> tuple[list[int], list[TimeSpan]]:
        """Microseconds by kind since the last time this was asked, and spans."""
        now = max(self._clock(), self._mark)  # another core's clock may be behind ours
        totals, self._totals = [total // 1_000 for total in self._totals], [0] * len(KINDS)
        spans, self._spans = self._spans, []
        return totals, [(kind, (now - start) // 1_000, (stop - start) // 1_000) for kind, start, stop in spans]

    def record(self, kind: int, now: int = 0) -> None:
        """Everything since the last call was this."""
        now = now or self._clock()
        start = self._mark
        if now <= start:
            return
        self._mark = now
        self._totals[kind] += now - start
        if self._spans and self._spans[-1][0] == kind and self._spans[-1][2] == start:
            self._spans[-1][2] = now
        elif self._is_shown(start):
            self._spans.append([kind, start, now])

    def _is_shown(self, now: int) -> bool:
        second = now // limits.SECOND
        if second != self._second:
            age = now - self._began
            every = 1 if age < _DENSE else 10 if age < _SPARSE else 60
            self._second, self._room = second, self._most if second % every == 0 else 0
        self._room -= 1
        return self._room >= 0

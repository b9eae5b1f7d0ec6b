"""Emulates slow computation, late workers and preemption.

For studies of stragglers, of more workers than cores, and of resource managers.

Results are marked as emulated wherever they are shown: waiting, delay and staleness are real, in
real processes over real sockets; the computation is not. A gradient that is slower than its
emulated time takes its own time.

Nothing here sleeps or reads a clock: ``Slowdown`` returns how long its worker must pause.
"""

from __future__ import annotations

import math
import random

import msgspec

from shoal.errors import Invalid


class Emulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which workers are slowed or preempted, and how."""

    per_example: float = 0.0  # seconds per row, for every worker
    slow: list[int] = msgspec.field(default_factory=lambda: [0])  # workers by number
    factor: float = 1.0  # their computation takes so many times as long
    pause: float = 0.0  # mean seconds of their random pauses (exponential)
    pause_every: float = 1.0  # mean seconds of computing between two pauses
    stall: float = 0.0  # seconds of one long pause ...
    stall_at: float = 0.0  # ... after so many seconds of computing
    link: float = 0.0  # seconds that each message between peers is delayed
    arrive: float = 0.0  # seconds between the starts of two workers; 0: all start together
    preempt: float = 0.0  # seconds between preemptions, one worker after another; 0: none
    away: float = 1.0  # seconds until a preempted worker is back
    sticky: bool = False  # it is paused and resumed; else it is killed and replaced
    task: int = 0  # slots until a worker leaves and is replaced; 0: it stays

    def __post_init__(self) -> None:
        for name in ("per_example", "pause", "stall", "stall_at", "link", "arrive", "preempt", "away"):
            if not 0 <= getattr(self, name) <= 3600:
                raise Invalid(f"emulate.{name}={getattr(self, name)!r}: needs 0 to 3600 seconds")
        if not 0 < self.pause_every < math.inf:
            raise Invalid(f"emulate.pause_every={self.pause_every!r}: needs a number of seconds above 0")
        if not 1 <= self.factor <= 1e6:
            raise Invalid(f"emulate.factor={self.factor!r}: needs 1 or more: nobody is made faster")
        if not 0 <= self.task <= 1 << 20:
            raise Invalid(f"emulate.task={self.task!r}: needs a number of slots, 1 or more, or 0")
        if any(number < 0 for number in self.slow):
            raise Invalid(f"emulate.slow={self.slow}: needs numbers of workers, 0 or more")

    def check(self, workers: int, on_servers: bool, processes: bool) -> None:
        """Refuse workers that do not exist, and preemption where no slot is dealt again."""
        if self.comes_and_goes and not on_servers:
            raise Invalid("emulate.arrive, preempt and task are for workers of servers: choose sync, bounded or async")
        if self.preempt and not processes:
            raise Invalid("emulate.preempt takes processes away: leave launch.how=threads out")
        if missing := [number for number in self.slow if number >= workers]:
            raise Invalid(
                f"emulate.slow={self.slow}: there is no worker {missing[0]}, only "
                f"{'worker 0' if workers == 1 else f'0 to {workers - 1}'}: name those, or take more workers"
            )

    @property
    def slows(self) -> bool:
        return bool(self.slow) and (self.factor > 1 or self.pause > 0 or self.stall > 0)

    @property
    def comes_and_goes(self) -> bool:
        return self.arrive > 0 or self.preempt > 0 or self.task > 0

    def words(self) -> str:
        said = [f"emulated compute ({_short(self.per_example)} per example)"] if self.per_example else []
        if self.slows:
            how = [f"{self.factor:g}x slower"] if self.factor > 1 else []
            if self.pause:
                how.append(f"pausing {_short(self.pause)} every {_short(self.pause_every)} on average")
            if self.stall:
                how.append(f"stalled once for {_short(self.stall)} after {_short(self.stall_at)}")
            said.append(f"{_names(self.slow)} {' and '.join(how)}{'' if said else ' (emulated)'}")
        if self.link:
            said.append(f"emulated links ({_short(self.link)} for a message)")
        if self.arrive:
            said.append(f"workers arrive {_short(self.arrive)} apart")
        if self.preempt:
            taken = "stands still for" if self.sticky else "is killed, and replaced after"
            said.append(f"every {_short(self.preempt)} a worker {taken} {_short(self.away)}")
        if self.task:
            said.append(f"a new worker for every {'slot' if self.task == 1 else f'{self.task} slots'}")
        return ", ".join(said)

    def pace(self, worker: int, seed: int) -> Slowdown | None:
        chosen = self.slows and worker in self.slow
        return Slowdown(self, chosen, random.Random(f"{seed} {worker}")) if chosen or self.per_example else None


class Slowdown:
    def __init__(self, settings: Emulation, chosen: bool, draw: random.Random) -> None:
        self._settings, self._chosen, self._draw = settings, chosen, draw
        self._computed = 0.0
        self._pause_at = draw.expovariate(1 / settings.pause_every) if settings.pause else math.inf
        self._stall_at = settings.stall_at if settings.stall else math.inf

    def extra(self, rows: int, took: float) -> float:
        """Seconds to pause after a computation of this time over so many rows."""
        settings = self._settings
        whole = max(took, settings.per_example * rows)
        if self._chosen:
            whole *= settings.factor
        self._computed += whole
        held = whole - took
        if self._chosen and self._computed >= self._pause_at:
            held += self._draw.expovariate(1 / settings.pause)
            self._pause_at = self._computed + self._draw.expovariate(1 / settings.pause_every)
        if self._chosen and self._computed >= self._stall_at:
            held += settings.stall
            self._stall_at = math.inf
        return held


def _names(workers: list[int]) -> str:
    first, last = min(workers), max(workers)
    if 2 < len(set(workers)) == last - first + 1:
        return f"worker-{first} to worker-{last}"
    return ", ".join(f"worker-{number}" for number in workers)


def _short(seconds: float) -> str:
    unit, size = next((one for one in (("s", 1.0), ("ms", 1e-3)) if seconds >= one[1]), ("us", 1e-6))
    return f"{seconds / size:.3g} {unit}"

"""What there is to see of a drill while it goes on, and who looks on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shoal.job import Job


@dataclass(slots=True)
class ChaosState:
    """What there is to see while it goes on."""

    job: Job
    seed: int | None  # None: the clean run
    seconds: float = 0.0
    share: float = 0.0  # of the work that is done
    members: dict[str, str] = field(default_factory=dict)  # how each of them is
    faults: int = 0
    recoveries: int = 0
    acknowledged: int = 0
    loss: float | None = None
    clean_loss: float | None = None
    throughput: list[tuple[float, float]] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    log: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=64))  # seconds, style, words


class ChaosListener:
    """Who looks on: nobody."""

    def board(self, board: ChaosState) -> None:
        """It has changed."""

    def said(self, seconds: float, style: str, text: str) -> None:
        """This happened: style is fault, heal, news or bad."""

    def note(self, text: str) -> None:
        """This is being done, before or after."""

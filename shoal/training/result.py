"""What a run leaves when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.nodes.evaluator import Judgement


@dataclass(frozen=True, slots=True)
class RunResult:
    """The model that is kept, and the figures."""

    judged: Judgement | None  # the model that is kept
    why: str  # it stopped
    failed: bool
    seconds: float  # from the first slot to the end
    computing: float  # to the last slot
    steps: int
    examples: int
    sent: int
    received: int
    staleness: list[int]  # how many pushes were counted that stale
    counts: dict[str, int]
    filtered: dict[str, list[int]] = field(default_factory=dict)  # bytes into and out of each filter
    left: tuple[float, float] = (0.0, 0.0)  # by filters, for later; and what of it was lost

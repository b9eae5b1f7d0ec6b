"""Sweeps whose runs never ran: a study, and the made-up results of its runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.events import Evaluated, Progress, RunEvent
from shoal.sweep.disk import PointResult, Sweep
from shoal.sweep.study import PlannedRun, Study


@dataclass
class Told:
    """A made-up run: its loss falls from 0.7 to ``floor``.

    The distance to ``floor`` halves every ``half`` seconds; it is evaluated every ``every``
    seconds.
    """

    half: float = 1.0
    floor: float = 0.4
    every: float = 0.5
    end: float = 10.0
    rate: float = 1_000.0
    wait: float = 0.1
    stale: float = 1.0
    state: str = "finished"
    emulated: str = ""
    accuracy: float | None = None
    cpu: float | None = None
    workers: tuple[int, ...] = (2,)  # active at each evaluation; the last number stays
    # The first distance of all models from their mean; it halves at each evaluation.
    distance: float | None = None

    def loss(self, seconds: float) -> float:
        return self.floor + (0.7 - self.floor) * 0.5 ** (seconds / self.half)

    def result(self, run: PlannedRun) -> PointResult:
        if self.state not in ("finished", "diverged"):
            return PointResult(run, self.state, Path("runs") / run.name, "broken" if self.state == "failed" else "")  # type: ignore[arg-type]
        events: list[RunEvent] = []
        for number in range(int(self.end / self.every) + 1):
            at = number * self.every
            rows, loss = int(at * self.rate), self.loss(at)
            events.append(Progress(seconds=at, passes=at, steps=rows, examples=rows, train_loss=loss - 0.02, workers=2))
            events.append(
                Evaluated(
                    seconds=at + 0.1, read=at, number=number, passes=at, steps=rows, examples=rows, train_loss=None,
                    test_loss=loss, metrics={} if self.accuracy is None else {"accuracy": self.accuracy}, best=True,
                    workers=self.workers[min(number, len(self.workers) - 1)],
                    spread={} if self.distance is None else {"distance": self.distance * 0.5**number, "worst": 2 * loss},
                )
            )  # fmt: skip
        if self.state == "diverged":
            last = events[-1]
            assert isinstance(last, Evaluated)
            events[-1] = Evaluated(
                seconds=last.seconds, read=last.read, number=last.number, passes=last.passes, steps=last.steps, examples=0,
                train_loss=None, test_loss=math.nan, metrics={}, workers=2, best=False,
            )  # fmt: skip
        summary: dict[str, Any] = {
            "seconds": self.end,
            "computing_seconds": self.end,
            "cpu_seconds": self.cpu,
            "examples_per_second": self.rate,
            "train_loss": self.loss(self.end),
        }
        summary |= {"spent": {"compute": 1 - self.wait, "wait": self.wait}, "cores": 2, "emulated": self.emulated}
        summary |= {"staleness": {"mean": self.stale, "p95": 2 * self.stale, "max": 3 * self.stale, "counts": [1]}}
        summary |= {"bytes_sent": 5_000_000, "bytes_received": 5_000_000, "test_loss": self.loss(self.end)}
        return PointResult(run, self.state, Path("runs") / run.name, "", summary, events)  # type: ignore[arg-type]


def make(tree: dict[str, Any], tells: Callable[[PlannedRun], Told], name: str = "made") -> Sweep:
    study = Study.of({"job": {"data": "clicks"}, **tree}, name)
    return Sweep(study, [tells(run).result(run) for run in study.runs], Path("nowhere"))


@pytest.fixture
def made() -> Callable[..., Sweep]:
    return make


@pytest.fixture
def told() -> type[Told]:
    return Told

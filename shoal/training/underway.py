"""A run under way, whatever its strategy: what it begins with, and what whoever started it may ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from shoal.data.datasets import Dataset
from shoal.events import RunEvent
from shoal.job import Job
from shoal.models.learner import Learner
from shoal.training.result import RunResult
from shoal.wire.messages import RunProgress


@dataclass(frozen=True, slots=True)
class RunStart:
    """What a run begins with. With ``resume``, a checkpoint of it, it goes on from there."""

    job: Job
    dataset: Dataset
    listener: Callable[[RunEvent], None]
    folder: Path | None = None
    resume: Any = None  # of a run on servers a path and its manifest, of any other a local checkpoint
    launcher: Any = None  # where its nodes are, if not as the job says


class RunHandle(Protocol):
    """Use as a context: leaving it ends everything that was started."""

    @property
    def learner(self) -> Learner: ...

    def __enter__(self) -> RunHandle: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    @property
    def pids(self) -> dict[str, int]:
        """The processes that were started, by name: worker-0 and so on."""

    @property
    def workers(self) -> list[str]:
        """Those at work."""

    @property
    def course(self) -> RunProgress:
        """How far it is; any thread may ask."""

    def wait(self, seconds: float | None = None) -> RunResult | None:
        """Until it is over; None if ``seconds`` have passed first, where a run can tell."""

    def interrupted(self) -> RunResult:
        """It is to end now: what was learned is judged."""

    def outcome(self) -> RunResult:
        """As far as it came."""

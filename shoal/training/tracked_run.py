"""A run from its first round to its end, whatever its strategy.

    with open_run(start, begin) as run:
        result = run.wait()             begin, then rounds until a stop rule ends it
        result = run.interrupted()      or: evaluate and keep the current model

``TrackedRun`` is the base of every run that has no scheduler: the process that was called tracks
it, evaluates the model and writes the checkpoints. A strategy adds the rounds.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.events import RunEvent
from shoal.job import Job
from shoal.models.learner import Learner
from shoal.models.linear import Floats
from shoal.training.local_checkpoint import LocalCheckpoint, LocalCheckpoints, Snapshot
from shoal.training.preflight import check
from shoal.training.tracker import RunResult, Tracker
from shoal.wire.messages import RunProgress


@dataclass(frozen=True, slots=True)
class RunStart:
    """The inputs of a run; with ``resume`` it continues from that checkpoint."""

    job: Job
    dataset: Dataset
    listener: Callable[[RunEvent], None]
    folder: Path | None = None
    resume: Any = None  # on servers a path and its manifest, otherwise a LocalCheckpoint
    launcher: Any = None  # where its nodes are, if not as the job says


class RunHandle(Protocol):
    """An open run. Use it as a context: leaving it ends all its processes."""

    @property
    def learner(self) -> Learner: ...
    @property
    def pids(self) -> dict[str, int]: ...  # of the processes that were started: worker-0 and so on
    @property
    def workers(self) -> list[str]: ...  # that take part now
    @property
    def course(self) -> RunProgress: ...  # thread-safe
    def __enter__(self) -> RunHandle: ...
    def __exit__(self, *exception: object) -> None: ...
    def wait(self, seconds: float | None = None) -> RunResult | None: ...  # None: they passed first
    def interrupted(self) -> RunResult: ...  # end now, and evaluate the current model
    def outcome(self) -> RunResult: ...  # as it is now


class RunDeadline(Exception):
    """The deadline of ``wait`` has passed."""


class TrackedRun(ABC):
    """Base of a run that the calling process tracks. A strategy adds these:

    _begin          start, and evaluate the initial model; called again after a deadline
    _round          compute until the next evaluation; evaluate; write a checkpoint if one is due
    _weights        the model to evaluate; None if there is none yet
    _snapshot       the contents of a checkpoint; None if there are none
    _settle         after an interruption: let the workers finish their slots
    """

    resumable: ClassVar[bool] = True
    out_of_memory: ClassVar[str] = ""  # the failure if memory is short; "": the error itself

    def __init__(self, start: RunStart, slots_per_step: int = 1) -> None:
        self.job, self.dataset, self.folder = start.job, start.dataset, start.folder
        self.listener = start.listener
        self.learner = check(start.job, start.dataset)
        self.tracker = Tracker(start.job, start.dataset, self.learner, start.listener, start.folder, slots_per_step)
        initial = self.learner.start()
        self.module = "" if initial is None else initial[1]  # the same in every process
        folder = start.folder if self.resumable else None
        self.checkpoints = LocalCheckpoints(folder, start.job, self.module, start.listener)
        self.resume: LocalCheckpoint | None = start.resume
        if self.resume is not None:
            self.tracker.restore(self.resume.facts.standing)
        self._deadline: float | None = None

    @classmethod
    def open(cls, start: RunStart, begin: Callable[[], None]) -> Self:
        """The run, not yet begun; ``begin`` is called when nothing refuses it any more."""
        run = cls(start)
        begin()
        return run

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.learner.release()

    @property
    def pids(self) -> dict[str, int]:
        return {}

    @property
    def workers(self) -> list[str]:
        return []

    @property
    def course(self) -> RunProgress:
        return self.tracker.course()

    def outcome(self) -> RunResult:
        return self.tracker.outcome()

    def wait(self, seconds: float | None = None) -> RunResult | None:
        """Run to the end; None if ``seconds`` pass first: then it may be called again."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        try:
            self._begin()
            while not self.tracker.why:
                self._round()
        except RunDeadline:
            return None
        except MemoryError:
            if not self.out_of_memory:
                raise
            self.tracker.fail(self.out_of_memory)
        self._finish()
        return self.tracker.end()

    def interrupted(self) -> RunResult:
        """Give workers a few seconds to finish; then keep and evaluate the model."""
        tracker = self.tracker
        tracker.why = tracker.why or "interrupted"
        self._deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        with contextlib.suppress(RunDeadline):
            self._settle()
        self._keep()
        if tracker.unevaluated and tracker.done and (weights := self._weights()) is not None:
            tracker.evaluate(weights)
        return tracker.outcome()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _round(self) -> None: ...

    @abstractmethod
    def _weights(self) -> Floats | None: ...

    def _snapshot(self) -> Snapshot | None:
        return None

    def _settle(self) -> None:  # noqa: B027
        """Do nothing: there are no workers."""

    def _finish(self) -> None:
        """The run is over: the last evaluation, and the last checkpoint if there are any."""
        tracker = self.tracker
        if tracker.unevaluated and tracker.done and not tracker.failed:
            self._evaluate()
        if self.checkpoints.has_some and not tracker.failed:
            self._keep()

    def _evaluate(self) -> None:
        weights = self._weights()
        assert weights is not None
        self.tracker.evaluate(weights)

    def _keep(self) -> None:
        if (snapshot := self._snapshot()) is not None:
            self.checkpoints.keep(*snapshot)

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise RunDeadline

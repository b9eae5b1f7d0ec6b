"""A run under way, whatever its strategy: what whoever started it may ask of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from shoal.data.datasets import Dataset
from shoal.errors import Invalid
from shoal.events import RunEvent
from shoal.job import Job
from shoal.models.learner import Learner
from shoal.store.checkpoint.manifest import Manifest
from shoal.strategies.averaging.mpi_ranks import check_alone, check_mpi, rank
from shoal.strategies.averaging.settings import AllReduce, Averaging
from shoal.strategies.gossip.settings import Gossip
from shoal.strategies.hogwild.settings import Hogwild
from shoal.strategies.parameter_server.algorithm import OnServers
from shoal.strategies.parameter_server.run import Launcher, Training
from shoal.strategies.peers.settings import PeerToPeer
from shoal.training.local_checkpoint import Kept
from shoal.training.result import Outcome
from shoal.wire.messages import Course


class Underway(Protocol):
    """Use as a context: leaving it ends everything that was started."""

    @property
    def learner(self) -> Learner: ...

    def __enter__(self) -> Underway: ...

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
    def course(self) -> Course:
        """How far it is; any thread may ask."""

    def wait(self, seconds: float | None = None) -> Outcome | None:
        """Until it is over; None if ``seconds`` have passed first, where a run can tell."""

    def interrupted(self) -> Outcome:
        """It is to end now: what was learned is judged."""

    def outcome(self) -> Outcome:
        """As far as it came."""


def underway(
    job: Job,
    dataset: Dataset,
    listener: Callable[[RunEvent], None],
    folder: Path | None = None,
    resume: tuple[Path, Manifest] | Kept | None = None,
    launcher: Launcher | None = None,
    begin: Callable[[], None] | None = None,
) -> Underway:
    """The run of this job, not yet begun. With ``resume``, a checkpoint of it, it goes on from there.

    ``begin`` is called when nothing refuses it any more, and before anything is written.
    """
    check_alone()
    if job.launch.how == "mpi":
        check_mpi(job)
    begin = begin or (lambda: None)
    if isinstance(job.strategy, OnServers):
        assert not isinstance(resume, Kept)
        begin()
        return Training(job, dataset, listener, folder, resume, launcher)
    found = _without_coordinator(job, dataset, listener, folder, resume if isinstance(resume, Kept) else None)
    begin()
    return found


def _without_coordinator(
    job: Job, dataset: Dataset, listener: Callable[[RunEvent], None], folder: Path | None, kept: Kept | None
) -> Underway:
    if isinstance(job.strategy, Averaging | AllReduce):
        if job.over == "mpi" and job.launch.how == "threads":
            raise Invalid("over MPI every rank is a process: leave --on threads away, or strategy.over=mpi")
        if job.over == "mpi" and rank() is None:
            from shoal.strategies.averaging.mpirun import UnderMpirun

            return UnderMpirun(job, dataset, listener, folder, kept)
        from shoal.strategies.averaging.run import Averaged

        return Averaged(job, dataset, listener, folder, kept)
    if isinstance(job.strategy, Hogwild):
        from shoal.strategies.hogwild.run import HogwildRun

        return HogwildRun(job, dataset, listener, folder, kept)
    if isinstance(job.strategy, Gossip):
        from shoal.strategies.gossip.run import GossipRun

        return GossipRun(job, dataset, listener, folder, kept)
    if isinstance(job.strategy, PeerToPeer):
        from shoal.strategies.peers.run import PeerRun

        return PeerRun(job, dataset, listener, folder, kept)
    from shoal.strategies.serial.run import Alone

    return Alone(job, dataset, listener, folder)

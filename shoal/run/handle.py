"""Begins the run of a job, by whatever its strategy says."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from shoal.strategies.averaging.mpi import check_alone, check_mpi
from shoal.training.run import RunHandle, RunStart


def underway(start: RunStart, begin: Callable[[], None] = lambda: None) -> RunHandle:
    """The run, not yet begun. ``begin`` is called when nothing refuses it any more, and before anything is written."""
    check_alone()
    if start.job.launch.how == "mpi":
        check_mpi(start.job)
    run: RunHandle = importlib.import_module(start.job.strategy.runs).open_run(start, begin)
    return run

"""Begins the run of a job, by whatever its strategy says."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from shoal.strategies.averaging.mpi_ranks import check_alone, check_mpi
from shoal.training.underway import Start, Underway


def underway(start: Start, begin: Callable[[], None] = lambda: None) -> Underway:
    """The run, not yet begun. ``begin`` is called when nothing refuses it any more, and before anything is written."""
    check_alone()
    if start.job.launch.how == "mpi":
        check_mpi(start.job)
    run: Underway = importlib.import_module(start.job.strategy.runs).open_run(start, begin)
    return run

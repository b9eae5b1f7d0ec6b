"""Opens the run of a job through its strategy."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from shoal.strategies.averaging.mpi import check_alone, check_mpi
from shoal.training.run import RunHandle, RunStart


def underway(start: RunStart, begin: Callable[[], None] = lambda: None) -> RunHandle:
    """The run, not started; ``begin`` is called after all checks, before any write."""
    check_alone()
    if start.job.launch.how == "mpi":
        check_mpi(start.job)
    run: RunHandle = importlib.import_module(start.job.strategy.runs).open_run(start, begin)
    return run

"""Wall clocks jump an hour forward and back, differently in each process (F27).

Nothing changes but dates. A module that every process imports when it starts replaces the clock in
Python. (libfaketime, which replaces that of the C library, breaks ``time.sleep`` of Python 3.11: it
takes the end of the sleep for a time of the wall clock.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.run.finished import Run
from tests.support import PATIENCE
from tests.support.sandbox import Den

SETTINGS: dict[str, Any] = {
    "data.rows": 2_000,
    "data.features": 1_000,
    "data.batch": 20,
    "stop.epochs": 2,
    "strategy.name": "sync",
    "checkpoint.every": 0.2,
}
JUMPING = '''
"""Imported by every Python that finds it: its wall clock jumps an hour forth or back, every tenth of a second."""
import os, time
now, now_ns, steady = time.time, time.time_ns, time.monotonic
def hours():
    return (int(steady() * 10) + os.getpid()) % 3 - 1
time.time = lambda: now() + 3_600 * hours()
time.time_ns = lambda: now_ns() + 3_600_000_000_000 * hours()
def tell():
    open(os.path.join(FOLDER, str(os.getpid())), "w").close()
os.register_at_fork(after_in_child=tell)
tell()
'''


@contextmanager
def jumping(den: Den) -> Iterator[dict[str, str]]:
    """Yields an environment in which Python imports that module when it starts."""
    folder, met = den.folder / "site", den.folder / "met"
    folder.mkdir()
    met.mkdir()
    (folder / "sitecustomize.py").write_text(JUMPING.replace("FOLDER", repr(str(met))))
    yield {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
    assert len(list(met.iterdir())) >= 6, "the top process, the forkserver, a coordinator, two servers, a worker"


@pytest.mark.slow
def test_a_run_whose_wall_clocks_jump_is_the_same_bit_for_bit(den: Den, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    with jumping(den) as env:
        process = den.start(
            *("-m", "shoal", "train", "rcv1-like", "--servers", "2", "--workers", "1"),
            *flags,
            "--out",
            str(run),
            env=env,
        )
        _, errors = process.communicate(timeout=2 * PATIENCE)
        assert process.returncode == 0, errors
    clean = shoal.train("rcv1-like", servers=2, workers=1, settings={**SETTINGS, "launch.how": "threads"})
    again = Run.load(run)
    assert again.summary["steps"] == clean.summary["steps"]
    assert again.model is not None and clean.model is not None
    np.testing.assert_array_equal(again.model.weights, clean.model.weights)

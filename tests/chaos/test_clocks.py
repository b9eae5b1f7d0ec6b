"""Wall clocks that jump by an hour, forth and back, another one in each process (F27): nothing changes but dates.

The clock of Python is replaced in every process; where libfaketime is installed, that of the C library, too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.run import Run
from shoal.testing.den import Den
from shoal.testing.watch import PATIENCE

pytestmark = pytest.mark.usefixtures("cache")

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
    """By a module that Python imports when it starts."""
    folder, met = den.folder / "site", den.folder / "met"
    folder.mkdir()
    met.mkdir()
    (folder / "sitecustomize.py").write_text(JUMPING.replace("FOLDER", repr(str(met))))
    yield {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
    assert len(list(met.iterdir())) >= 6, "the top process, the nursery, a coordinator, two servers, a worker"


@contextmanager
def faked(den: Den) -> Iterator[dict[str, str]]:
    """By the C library: an offset in a file, which is read again every second."""
    found = [os.environ.get("LIBFAKETIME", ""), *map(str, Path("/usr/lib").glob("**/libfaketimeMT.so.1"))]
    library = next((one for one in found if one and Path(one).exists()), "")
    if not library:
        pytest.skip("libfaketime (Debian: faketime) is not installed: the clock of the C library is not shown to jump")
    offset, over = den.folder / "offset", threading.Event()

    def jump() -> None:
        for turn in range(1_000):
            aside = offset.with_suffix(".new")
            aside.write_text(("+1h", "-1h", "+0")[turn % 3])
            aside.replace(offset)
            if over.wait(1.0):
                return

    thread = threading.Thread(target=jump, daemon=True)
    offset.write_text("+1h")
    thread.start()
    yield {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    over.set()
    thread.join()


@pytest.mark.parametrize("how", [jumping, pytest.param(faked, marks=pytest.mark.soak)])
def test_a_run_whose_wall_clocks_jump_is_the_same_bit_for_bit(how: Any, den: Den, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    with how(den) as env:
        seen = den.start("-c", "import time; print(time.time())", env=env)
        print(f"{sys.executable} has it {float(seen.communicate(timeout=PATIENCE)[0]):.0f}")
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

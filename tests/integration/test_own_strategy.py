"""A strategy in one file of the user, unknown to shoal, trains like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import shoal
from shoal.events import Evaluated, Gone, RunEvent

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = {"launch.modules": ["own_strategy"], "data.rows": 4_000, "data.features": 2_000, "data.batch": 50}


@pytest.fixture
def own_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def worker_pid(name: str) -> int:
    """Return the pid of this run's process with this title."""
    return next(child.pid for child in psutil.Process().children(recursive=True) if child.name() == name)


@pytest.mark.usefixtures("own_strategy")
def test_a_run_of_it_ends_well_though_a_worker_is_killed() -> None:
    killed: list[int] = []

    def kill(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.steps and not killed:
            killed.append(worker_pid("shoal worker-1"))
            os.kill(killed[0], signal.SIGKILL)

    run = shoal.train(
        "rcv1-like",
        strategy="one-by-one",
        workers=3,
        servers=2,
        epochs=6,
        settings=SETTINGS | {"emulate.per_example": 1e-4},
        on_event=kill,
    )
    assert killed and any(event.name == "worker-1" for event in run.events if isinstance(event, Gone))
    assert run.summary["examples"] == 6 * 4_000 and run.summary["strategy"] == "one-by-one"
    one_core = shoal.train("rcv1-like", strategy="serial", epochs=6, settings=SETTINGS)
    assert run.summary["test_loss"] == pytest.approx(one_core.summary["test_loss"], rel=0.05)


def test_the_command_finds_it_by_the_modules_of_the_job(tmp_path: Path) -> None:
    words = ["train", "rcv1-like", "--strategy", "one-by-one", "--workers", "2", "--epochs", "1"]
    for name, value in SETTINGS.items():
        words += ["--set", f"{name}={value}".replace("'", '"')]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "test loss" in done.stdout

"""Code that only observes a run cannot hold it up.

These are callbacks that sleep or raise, pipes that nobody reads, and a log that hangs. The tests
use real processes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.events import Evaluated, Stopped, read_run
from shoal.run.finished import Run

SMALL: dict[str, Any] = {"data.rows": 600, "data.features": 1_000, "data.batch": 20, "launch.how": "threads"}
BEGIN = f"""
import os, sys, time
import shoal, shoal.run.folder
shoal.run.folder._WITHIN = 2.0
def go(on_event=None, **more):
    settings = {{**{SMALL!r}, "emulate.per_example": 0.005}}  # so long that there is something to interrupt
    return shoal.train("rcv1-like", epochs=2, out=sys.argv[1], settings=settings, on_event=on_event, **more)
"""


def python(code: str, out: Path, **streams: Any) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([sys.executable, "-c", f"{BEGIN}\n{code}", str(out)], text=True, timeout=120, **streams)


def is_whole(out: Path) -> list[Any]:
    """Check that the run ended well and left all its files, and return its events."""
    back, events = Run.load(out), read_run(out / "events.jsonl")
    assert back.model is not None and not back.summary["failed"] and back.summary["examples"] == 2 * 600
    assert isinstance(events[-1], Stopped) and sum(isinstance(event, Evaluated) for event in events) >= 2
    return events


@contextlib.contextmanager
def unread() -> Iterator[int]:
    """Yield the write end of a full pipe that nobody reads."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, b"x" * 4_096)
    os.set_blocking(writes, True)
    try:
        yield writes
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["async", "gossip"])
def test_an_on_event_that_sleeps_for_minutes_holds_up_nothing(strategy: str, tmp_path: Path, cache: Path) -> None:
    ran = python(
        f"run = go(lambda event: time.sleep(600), strategy={strategy!r}); print(len(run.events))", tmp_path / "run"
    )
    assert ran.returncode == 0, ran.stderr
    events = is_whole(tmp_path / "run")
    assert int(ran.stdout) == len(events)
    assert f"on_event missed {len(events)} of {len(events)} calls: it is too slow" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ValueError('mine')", "SystemExit", "GeneratorExit"])
def test_an_on_event_that_raises_is_called_no_more_or_ends_the_run(what: str, tmp_path: Path, cache: Path) -> None:
    code = f"""
calls = []
def hear(event):
    if type(event).__name__ == "Evaluated":
        calls.append(event)
        raise {what}
try:
    run = go(hear)
    print(len(calls))
except KeyboardInterrupt as error:
    print("interrupted", error.run.folder)
"""
    ran = python(code, tmp_path / "run")
    assert ran.returncode == 0, ran.stderr
    if "ValueError" in what:
        is_whole(tmp_path / "run")
        assert ran.stdout == "1\n" and "ValueError: mine in on_event, which is not called any more" in ran.stderr
    else:
        # An exception that is not an error asks for the end of the run.
        assert ran.stdout.split()[0] == "interrupted" and Run.load(tmp_path / "run").summary["failed"]


@pytest.mark.slow
def test_a_progress_that_sleeps_or_raises_holds_up_nothing(tmp_path: Path, cache: Path) -> None:
    for number, call in enumerate(("lambda text: time.sleep(600)", "lambda text: 1 / 0")):
        ran = python(f"go(progress={call})", tmp_path / f"run-{number}")
        assert ran.returncode == 0 and "progress" in ran.stderr, ran.stderr
        is_whole(tmp_path / f"run-{number}")


def command(out: Path, *more: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    words = ["train", "rcv1-like", "--epochs", "2", *settings, "--out", str(out), *more]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([sys.executable, "-m", "shoal", *words], text=True, timeout=120, **streams)


@pytest.mark.slow
def test_a_pipe_of_errors_that_nobody_reads_holds_up_nothing(tmp_path: Path, cache: Path) -> None:
    with unread() as full:
        ran = command(tmp_path / "run", "--verbosity", "3", stderr=full)
    assert ran.returncode == 0 and "test loss" in ran.stdout
    is_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_pipe_of_figures_that_nobody_reads_is_given_up_and_said(tmp_path: Path, cache: Path) -> None:
    with unread() as full:
        ran = command(tmp_path / "run", stdout=full)
    assert ran.returncode == 1 and "cannot print the figures (nobody reads it): they are in" in ran.stderr
    is_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_reader_that_has_read_enough_costs_neither_run_nor_traceback(tmp_path: Path, cache: Path) -> None:
    settings = " ".join(f"--set {name}={value}" for name, value in SMALL.items())
    line = f"{sys.executable} -m shoal train rcv1-like --epochs 2 --verbosity 3 {settings} --out {tmp_path / 'run'}"
    shell = f"set -o pipefail; {line} 2>&1 | head -1"
    ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120)
    assert len(ran.stdout.splitlines()) == 1 and ran.stderr == "" and ran.returncode in (0, 1)
    is_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_log_whose_disk_hangs_holds_up_nothing(tmp_path: Path, cache: Path) -> None:
    code = """
def hear(event):
    if type(event).__name__ == "Started":  # from now on whoever opens it waits for a reader that never comes
        path = os.path.join(sys.argv[1], "log.txt")
        os.mkfifo(path + ".new")
        os.replace(path + ".new", path)
go(hear)
"""
    ran = python(code, tmp_path / "run")
    assert ran.returncode == 0, ran.stderr
    is_whole(tmp_path / "run")
    assert "were not written: its disk accepted no write for 2 s" in ran.stderr

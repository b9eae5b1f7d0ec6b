"""``shoal launch``, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from shoal.launch.script import ScriptLauncher
from tests.support.sandbox import is_gone, soon

_LOOP = """
import os, signal, sys
import torch
import shoal.torch

model = torch.nn.Linear(3, 1)
optimizer = shoal.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), sync=True)
for number in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
    print("step", number, flush=True)
    if number == 1 and optimizer.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
optimizer.finish()
print("finished with", os.environ["OMP_NUM_THREADS"], "thread", *sys.argv[1:])
"""
_WAITS_FOR_A_FILE = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
_SLEEPER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("here", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def command(script: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "shoal", "launch", *words, str(script)]


@contextmanager
def sleepers(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Yield a launcher, and the pids of its two workers and of their children."""
    script = tmp_path / "sleep.py"
    script.write_text(_SLEEPER)
    with subprocess.Popen(
        command(script, "--workers", "2"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        told: list[int] = []
        try:
            assert launcher.stdout is not None
            lines = [launcher.stdout.readline() for _ in range(2)]
            family = [child.pid for child in psutil.Process(launcher.pid).children(recursive=True)]
            told += [int(word) for line in lines for word in line.split()[-2:]]
            assert set(told) <= set(family)
            yield launcher, family
        finally:
            launcher.kill()
            for pid in told:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def wait_until_gone(pids: list[int]) -> None:
    assert soon(lambda: all(map(is_gone, pids)), 60), "still there"


@pytest.mark.slow
def test_a_worker_that_is_killed_does_not_stop_the_others(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(_LOOP)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    run = subprocess.run(
        [*command(script, "--workers", "2", "--servers", "2"), "an argument"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert run.stdout.count("worker-0 | step") == 4
    assert run.stdout.count("worker-1 | step") == 2
    assert "worker-0 | finished with 1 thread an argument" in run.stdout
    assert "no worker called" not in run.stderr
    assert "shoal: worker-1 (killed by signal 9) has ended; the others go on" in run.stderr
    assert run.stderr.endswith("shoal: 1 of 2 workers failed: worker-1 (killed by signal 9)\n")


@pytest.mark.soak
def test_a_server_that_is_killed_stops_nobody_where_there_are_copies(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(_LOOP.replace("range(4)", "range(2_000)").replace("signal.SIGKILL", "0"))
    words = ("--workers", "2", "--servers", "3", "--copies", "2")
    with subprocess.Popen(command(script, *words), stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()  # it trains by now
        for child in psutil.Process(launcher.pid).children(recursive=True):
            if child.name() == "shoal server-1":
                child.kill()
                break
        else:
            raise AssertionError("no server-1")
        out = launcher.stdout.read()
        assert launcher.wait(60) == 0
    assert out.count("finished") == 2


def test_a_server_and_a_coordinator_that_are_killed_are_told_gone_and_back(tmp_path: Path) -> None:
    enough, shown = tmp_path / "enough", list[str]()

    def show(text: str, is_error: bool) -> None:
        shown.append(text)
        if {"shoal: server-1 was restarted\n", "shoal: coordinator was restarted\n"} <= set(shown):
            enough.touch()

    with ScriptLauncher(1, 2, 2, show) as launching:
        launching.start(["-c", _WAITS_FOR_A_FILE, str(enough)])
        for name in ("server-1", "coordinator"):
            os.kill(launching.pids[name], signal.SIGKILL)
        assert [end.code for end in launching.wait()] == [0]
    for name in ("server-1", "coordinator"):
        gone = f"shoal: {name} has ended: its process ended (killed by signal 9); it is restarted\n"
        assert shown.index(gone) < shown.index(f"shoal: {name} was restarted\n")


def test_a_script_that_shares_nothing_is_told_so() -> None:
    shown: list[str] = []
    with ScriptLauncher(2, 1, 1, lambda text, is_error: shown.append(text)) as launching:
        launching.start(["-c", "print(open('/proc/self/comm').read())"])
        launching.wait()
    assert "no worker called shoal.torch.distribute, so each trained its own model" in shown[-1]
    # The names that `ps` and `top` show.
    assert {"worker-0 | shoal worker-0\n", "worker-1 | shoal worker-1\n"} <= set(shown)


@pytest.mark.parametrize(("codes", "is_told"), [((1, 1), False), ((1, 0), True)], ids=["all fail", "one fails"])
def test_that_others_go_on_is_said_only_where_some_do(codes: tuple[int, int], is_told: bool) -> None:
    shown: list[str] = []
    with ScriptLauncher(2, 1, 1, lambda text, is_error: shown.append(text)) as launching:
        launching.start(["-c", f"import os, sys; sys.exit({codes}[int(os.environ['SHOAL_RANK'])])"])
        # Both have ended, so nothing depends on how long that took.
        assert soon(lambda: launching._reports.qsize() == 2)
        # Which of the two ended first is random; here the failure comes first.
        news = sorted((launching._reports.get() for _ in range(2)), key=lambda end: -end.code)  # type: ignore[union-attr]
        for end in news:
            launching._reports.put(end)
        assert [end.code for end in launching.wait()] == list(codes)
    assert any("go on" in text for text in shown) == is_told


@pytest.mark.slow
def test_an_error_that_all_workers_have_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import shoal.torch\n\nshoal.torch.Place('nowhere', 7, 2)\n")
    run = subprocess.run(command(script, "--workers", "2"), capture_output=True, text=True)
    assert run.returncode == 1
    (said,) = (line for line in run.stderr.splitlines() if "rank" in line)
    assert said.endswith("| shoal: train.py, line 3: rank=7 of 2 workers: ranks are 0 to 1")
    assert "Traceback" not in run.stderr
    assert "shoal: 2 of 2 workers failed: worker-0 (exit code 1" in run.stderr
    assert run.stderr.count("(exit code 1, as worker-") == 1


def test_ctrl_c_ends_everything_and_leaves_nothing(tmp_path: Path) -> None:
    with sleepers(tmp_path) as (launcher, family):
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 130
        wait_until_gone(family)


def test_workers_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with sleepers(tmp_path) as (launcher, family):
        workers = [psutil.Process(pid) for pid in family if psutil.Process(pid).ppid() == launcher.pid]
        assert len(workers) >= 2
        launcher.kill()
        wait_until_gone([worker.pid for worker in workers])

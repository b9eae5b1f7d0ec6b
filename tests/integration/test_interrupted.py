"""Ctrl-C leaves no traceback at any moment, and a run keeps what it has learned.

This includes a command that was typed just before.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import shoal.run.run
from shoal.events import Evaluated, RunEvent
from shoal.run.finished import Run
from shoal.run.run import train
from tests.support.sandbox import Den

# SIGINT may be ignored where the tests were started.
HEARS = ("env", "--default-signal=INT")
# Python handles Ctrl-C itself until these are imported.
FIRST = ("__init__.py", "__main__.py", "starting.py")
SMALL: dict[str, Any] = {"data.rows": 600, "data.features": 1_000, "data.batch": 20, "launch.how": "threads"}


@pytest.mark.variants(slow=["command1"])
@pytest.mark.parametrize("command", [("data", "list"), ("train", "clicks", "--set", "data.rows=100000")])
def test_ctrl_c_while_a_command_starts_leaves_no_traceback(command: tuple[str, ...], den: Den, cache: Path) -> None:
    heard = 0
    for moment in range(0, 500, 50):
        child = den.start("-m", "shoal", *command, within=HEARS, env={"PWD": str(den.folder)})
        time.sleep(moment / 1_000)
        os.killpg(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=60)
        if child.returncode in (130, -signal.SIGINT):
            heard += 1
        # Output from before our first line is the interpreter's own.
        places = re.findall(r'File "([^"]*)"', errors)
        assert all(Path(place).name in FIRST for place in places if "/shoal/" in place), errors
        if not places:
            said = [line for line in errors.splitlines() if not line.startswith("packing")]
            assert len(said) <= 1 or child.returncode not in (130, -signal.SIGINT), errors
    assert heard > 0  # or nothing was tested


def test_ctrl_c_while_modules_are_imported_for_a_command_waits_until_they_are(den: Den) -> None:
    code = """
import os, signal, sys, time
from shoal.interrupts import exit_on_interrupt, raise_on_interrupt

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "shoal.events":
            os.kill(os.getpid(), signal.SIGINT)

exit_on_interrupt()
raise_on_interrupt()
sys.meta_path.insert(0, Interrupts())
try:
    import shoal.job
    for _ in range(3_000):
        time.sleep(0.01)  # not in one: a signal that another thread took does not end a wait that has begun
except KeyboardInterrupt:
    print("shoal.events" in sys.modules, "shoal.job" in sys.modules)
"""
    child = den.start("-c", code, within=HEARS)
    assert child.communicate(timeout=60) == ("True True\n", "") and child.returncode == 0


def test_who_is_not_to_hear_ctrl_c_does_not(den: Den) -> None:
    code = """
import signal
from shoal.interrupts import exit_on_interrupt, raise_on_interrupt
exit_on_interrupt(); raise_on_interrupt()
signal.raise_signal(signal.SIGINT)
print("went on")
"""
    child = den.start("-c", code, within=("env", "--ignore-signal=INT"))
    assert child.communicate(timeout=60) == ("went on\n", "") and child.returncode == 0


@pytest.mark.variants(slow=["hogwild", "gossip"])
@pytest.mark.parametrize("strategy", ["async", "hogwild", "gossip"])
def test_ctrl_c_without_a_folder_keeps_what_was_learned(
    strategy: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def interrupt(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            train("rcv1-like", strategy=strategy, settings=SMALL, seconds=60, on_event=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    error = caught.value
    run = vars(error)["run"]
    assert run.model is not None and run.summary["examples"] > 0
    assert run.summary["stopped_because"] == "interrupted"
    assert str(run.folder) in str(error) and run.folder.parent == tmp_path
    back = Run.load(run.folder)
    assert back.model is not None and back.summary == run.summary


def test_a_second_ctrl_c_while_a_run_is_put_aside_loses_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    aside = shoal.run.run.save_elsewhere

    def impatient(run: Run, prefix: str) -> Path:
        signal.raise_signal(signal.SIGINT)
        return aside(run, prefix)

    def interrupt(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("shoal.run.run.save_elsewhere", impatient)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            train("rcv1-like", settings=SMALL, seconds=60, on_event=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    run = vars(caught.value)["run"]
    assert str(run.folder) in str(caught.value)
    assert Run.load(run.folder).model is not None


@pytest.mark.slow
def test_a_program_that_does_not_expect_ctrl_c_is_told_where_its_run_is(den: Den, cache: Path) -> None:
    code = f"""
import os, signal, shoal
def interrupt(event):
    if getattr(event, "number", 0) == 2:
        os.kill(os.getpid(), signal.SIGINT)
shoal.train("rcv1-like", settings={SMALL!r}, seconds=60, on_event=interrupt)
"""
    child = den.start("-c", code, within=HEARS)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGINT, errors
    folder = errors.splitlines()[-1].rpartition(", and in ")[2]
    assert Run.load(folder).model is not None

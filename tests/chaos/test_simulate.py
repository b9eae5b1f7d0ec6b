"""`shoal simulate` leaves no process behind, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.sandbox import is_gone, soon


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_its_processes_end_with_it(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "shoal", "simulate", "--of", "gossip", "--seeds", "100000", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        parent = psutil.Process(process.pid)
        try:
            # Two that simulate, and Python's resource tracker.
            assert soon(lambda: len(parent.children()) == 3)
            below = parent.children()
        finally:
            process.send_signal(number)
        said = process.stderr.read()
    assert soon(lambda: all(is_gone(one.pid) for one in below))
    # A child that is still starting when its parent is killed prints an error of its own.
    if number != signal.SIGKILL:
        assert "Traceback" not in said

"""Starts several nodes on this host, each in a process, by the command for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from shoal.launch.process_pool import environment
from shoal.launch.server_process import heard

# options that are passed on unchanged
_SAME = ("listen", "advertise", "data", "patience", "within", "keys")


def several(where: str, role: str, options: Mapping[str, Any], say: Callable[[str], None]) -> int:
    """Start them, forward signals, and wait for all; returns the worst exit code."""
    command = [sys.executable, "-m", "shoal", "launch", role, "--at", where, *_words(options)]
    hosted = [sys.executable, "-m", "shoal.launch.script_worker", str(os.getpid()), "/", *command[1:]]
    processes: list[subprocess.Popen[bytes]] = []
    told, heard_by = list[int](), [0]

    def hand_on(number: int) -> None:
        told.append(number)
        heard_by[0] = len(processes)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    with heard((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), hand_on):
        for _ in range(options["count"]):
            if told:
                break
            processes.append(subprocess.Popen(hosted, env=environment(), start_new_session=True))
            if told and heard_by[0] < len(processes):  # it arrived during this start
                processes[-1].send_signal(told[-1])
        codes = [process.wait() for process in processes]
    if failed := [code for code in codes if code]:
        say(f"{len(failed)} of {len(codes)} ended with an error")
    return max((code if code >= 0 else 128 - code for code in codes), default=0)


def _words(options: Mapping[str, Any]) -> list[str]:
    words = [word for name in _SAME if options.get(name) for word in (f"--{name}", str(options[name]))]
    words += [word for one in options["modules"] for word in ("--modules", one)]
    words += ["--share", str(options["count"])]  # share of this host's memory
    return words + [f"--{name}" for name in ("quiet", "insecure") if options[name]]

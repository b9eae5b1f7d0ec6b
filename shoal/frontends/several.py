"""Several nodes on this host at once: a process each, by the same command that starts one.

A signal that comes while they are being started ends the starting, and reaches each of those that are there once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.launch.children import _environment
from shoal.launch.serving import heard

_SAME = ("listen", "advertise", "data", "patience", "within", "keys")  # options that are handed on as they are


@dataclass(slots=True)
class _One:
    """A node, from before it is started."""

    process: subprocess.Popen[bytes] | None = None
    owed: deque[int] = field(default_factory=deque)  # signals that it has not been sent

    def pay(self) -> None:
        """Each once, wherever a signal interrupts this."""
        with contextlib.suppress(IndexError):
            while self.process is not None:
                number = self.owed.popleft()
                if self.process.poll() is None:
                    self.process.send_signal(number)


def several(where: str, role: str, options: Mapping[str, Any], say: Callable[[str], None]) -> int:
    """Start them, hand signals on, and wait for all; the exit code of the worst."""
    command = [sys.executable, "-m", "shoal", "launch", role, "--at", where, *_words(options)]
    hosted = [sys.executable, "-m", "shoal.frontends.hosted", str(os.getpid()), "/", *command[1:]]
    nodes: list[_One] = []
    told: list[int] = []

    def hand_on(number: int) -> None:
        told.append(number)
        for one in nodes:
            one.owed.append(number)
            one.pay()

    with heard((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), hand_on):
        for _ in range(options["count"]):
            if told:
                break
            one = _One()
            nodes.append(one)
            one.process = subprocess.Popen(hosted, env=_environment(), start_new_session=True)
            one.pay()
        codes = [one.process.wait() for one in nodes if one.process is not None]
    if failed := [code for code in codes if code]:
        say(f"{len(failed)} of {len(codes)} ended with an error")
    return max((code if code >= 0 else 128 - code for code in codes), default=0)


def _words(options: Mapping[str, Any]) -> list[str]:
    words = [word for name in _SAME if options[name] for word in (f"--{name}", str(options[name]))]
    words += [word for one in options["modules"] for word in ("--modules", one)]
    return words + [f"--{name}" for name in ("quiet", "insecure") if options[name]]

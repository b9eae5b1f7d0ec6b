"""Explains how a process ended, by its exit code and the kernel's out-of-memory count.

A process that the kernel killed for lack of memory looks like any other killed process. But the
kernel counts such kills (``oom_kill`` in /proc/vmstat, for the whole machine): if the count has
risen, the message says that the kernel has killed *a* process.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import NoReturn

_COUNTS = Path("/proc/vmstat")
_COUNT = "oom_kill "
REFUSED = 2  # click's exit code for wrong usage


def refuse(why: str) -> NoReturn:
    """End a rank that cannot take part, as click ends a command with wrong usage."""
    print(f"Error: {why}", file=sys.stderr)
    sys.exit(REFUSED)


class ExitReasons:
    """Reads the kernel's count when created and at each kill."""

    def __init__(self, counts: Path = _COUNTS) -> None:
        self._counts = counts
        self._before = self._starved()

    def how(self, code: int) -> str:
        """In words, for an exit code as Python has it: negative for a signal."""
        if code >= 0:
            return f"exit code {code}"
        words = f"killed by signal {-code}"
        if -code != signal.SIGKILL:
            return words
        before, self._before = self._before, self._starved()
        if self._before <= before:
            return words
        return f"{words}; the kernel killed a process for lack of memory: add memory, or use more servers"

    def _starved(self) -> int:
        try:
            lines = self._counts.read_text().splitlines()
        except OSError:  # another kernel
            return 0
        return next((int(line.removeprefix(_COUNT)) for line in lines if line.startswith(_COUNT)), 0)

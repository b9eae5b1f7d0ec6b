"""How a process ended, in words: by its exit code, and by what the kernel counts.

A process that is killed because memory ran out looks like any other that was killed. But the kernel counts those kills
(``oom_kill`` in /proc/vmstat); where the count has risen since the last look, that is said. It is of the whole machine,
so it is said as what it is.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import NoReturn

_COUNTS = Path("/proc/vmstat")
_COUNT = "oom_kill "
REFUSED = 2  # the exit code of a command that cannot be what was asked for, as click has it


def refuse(why: str) -> NoReturn:
    """End a rank that cannot take part, as a command ends that is given something wrong."""
    print(f"Error: {why}", file=sys.stderr)
    sys.exit(REFUSED)


class ExitReasons:
    """Looks at the kernel's count when it is made, and at each kill."""

    def __init__(self, counts: Path = _COUNTS) -> None:
        self._counts = counts
        self._before = self._starved()

    def how(self, code: int) -> str:
        """An exit code as Python has it: negative for a signal."""
        if code >= 0:
            return f"exit code {code}"
        words = f"killed by signal {-code}"
        if -code != signal.SIGKILL:
            return words
        before, self._before = self._before, self._starved()
        if self._before <= before:
            return words
        return f"{words}; the kernel has killed a process because memory ran out: give it more, or spread it over more servers"

    def _starved(self) -> int:
        try:
            lines = self._counts.read_text().splitlines()
        except OSError:  # another kernel
            return 0
        return next((int(line.removeprefix(_COUNT)) for line in lines if line.startswith(_COUNT)), 0)

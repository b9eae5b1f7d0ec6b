"""The first thing a worker's process does: see to it that it ends with its launcher. Then it becomes the script.

What `ps` and `top` call a process is the name of the file that it runs: so that is a link to Python with the worker's name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # kept over exec


def main() -> None:
    launcher, link, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):  # it went before we could ask
        sys.exit(1)
    with contextlib.suppress(OSError):  # no link, no name
        os.symlink(sys.executable, link)
        os.execv(link, [sys.executable, *command])  # Python looks at the second to find its modules
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()

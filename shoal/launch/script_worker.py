"""Makes a script's process end with its launcher, then becomes the script.

`ps` and `top` show the name of the executed file, so that file is a link to Python with the
worker's name.
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
    if os.getppid() != int(launcher):  # it ended before prctl
        sys.exit(1)
    with contextlib.suppress(OSError):  # without a link there is no name
        os.symlink(sys.executable, link)
        os.execv(link, [sys.executable, *command])  # Python finds its modules by the second
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()

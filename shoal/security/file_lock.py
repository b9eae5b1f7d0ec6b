"""An exclusive lock on a folder while its files are changed.

The lock ends with its process. A process that waits longer than ``limits.ALONE_WITHIN`` (a stopped
one would hold it for ever) gets an error that names the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from shoal import limits
from shoal.errors import Invalid

# seconds: the system has no waiting for a lock that ends by itself, so it is tried again
_AGAIN = 0.02
_LOCKS = Path("/proc/locks")  # where the system says who has which


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of this folder within the context."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Invalid(f"cannot read {folder}: {error.strerror}: shoal key new makes it") from None
    try:
        _hold(handle, folder)
        yield
    finally:
        os.close(handle)


def _hold(handle: int, folder: Path) -> None:
    within = limits.ALONE_WITHIN / limits.SECOND
    deadline = time.monotonic() + within
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_AGAIN)
                continue
        who, move = _holder(handle)
        raise Invalid(
            f"{who} has held {folder} for more than {within:g} s, so nothing was changed: {move}, then try again"
        )


def _holder(handle: int) -> tuple[str, str]:
    """The holder, if the system tells, and the next move."""
    inode = str(os.fstat(handle).st_ino)
    with contextlib.suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():
            words = line.split()  # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131072 0 EOF
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                return f"process {words[4]}", f"see what it does (ps -fp {words[4]}), and let it go on (fg) or end it"
    return "another process", "look for a shoal key that was stopped (jobs), and let it go on (fg) or end it"

"""Runs programs under test: a folder for their files, and a mark that their processes carry.

A program may be interrupted, terminated or killed. Its processes are found even if they have
another parent by then, because all of them have the mark in their environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.support import PATIENCE, with_root

GONE_WITHIN = 10.0  # seconds: what FAULTS.md promises (F43)
_MARK = "SHOAL_TEST_MARK"


class Den:
    """Runs programs. Use as a context: leaving it ends all processes in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="den-"))  # a short name: Unix sockets are in it
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Den:
        return self

    def __exit__(self, *exception: object) -> None:
        # Kill all of them first: one that has outlived its parent may hold the pipe that is read
        # below.
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self._children:
            child.kill()
            child.communicate(timeout=PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(
        self, *arguments: str, within: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Runs Python with these arguments; ``within`` is a prefix of the command."""
        child = subprocess.Popen(
            [*within, sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**with_root(os.environ), "TMPDIR": str(self.folder), _MARK: self._mark, **(env or {})},
            start_new_session=True,  # Ctrl-C in this terminal must not reach them
        )
        self._children.append(child)
        return child

    def alive(self) -> list[int]:
        """The processes with our mark."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"{_MARK}={self._mark}".encode() in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(entry.name))
        return found

    def node(self, name: str) -> int:
        """The one process with this node's name; waits until it is there."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [pid for pid in self.alive() if _called(pid) == f"shoal {name}"[:15]]
            return len(found) == 1

        assert soon(is_there), f"{len(found)} processes are called {name}"
        return found[0]

    def left(self) -> list[str]:
        """All that is still there: processes, folders, sockets, shared memory."""
        pids = {str(child.pid) for child in self._children}
        # Other programs may have files there, too: ours have one of our process ids as a whole
        # number.
        shared = [name for name in os.listdir("/dev/shm") if not pids.isdisjoint(re.findall(r"\d+", name))]
        return [*map(str, self.alive()), *os.listdir(self.folder), *shared]

    def is_empty(self) -> bool:
        """Whether everything is gone, now or soon."""
        return soon(lambda: not self.left(), GONE_WITHIN)


def _called(pid: int) -> str:
    """The name of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def soon(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether the condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not (true := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.005)
    return true  # the last value: the condition may change again

"""Forkservers that have their imports already: each is forked from one process that waits.

A forkserver spends about a second of a core on imports before it forks, and every cluster of a
test has one. Here one process imports what servers and workers need, once, and forks a forkserver
on each request: with the environment, the folder and the standard error of that moment, and as a
child of the requesting process (CLONE_PARENT), which waits for it and kills it like a Popen.
Forkservers share no state. The waiting process never has a thread, and ends when the test process
does.

Tests of the start itself start a new process.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO

import msgspec

from shoal.launch import forkserver, process_pool
from tests.support import with_root

_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())  # number of the system call
_CLONE_PARENT = 0x8000
_ASKED = 1 << 20  # bytes: an environment
_LOOK = 0.005  # seconds between two checks whether it has ended


class Asked(msgspec.Struct, frozen=True):
    """A request for a forkserver; its standard files and folder are sent with it."""

    environment: dict[str, str]


class Warmed:
    """A forkserver, used as a Popen is."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        """A ``pid`` of 0 or less means that it ended at once: never wait for or kill -1."""
        self.pid, self._code = pid, None if pid > 0 else 1
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._waiting = threading.Lock()  # it can be waited for only once

    def poll(self) -> int | None:
        with self._waiting:
            if self._code is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if ended else None
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a forkserver", timeout or 0.0)
            time.sleep(_LOOK)
        return code

    def kill(self) -> None:
        with self._waiting:
            if self._code is None:
                os.kill(self.pid, signal.SIGKILL)


class Warm:
    """The process that waits. Use as a context; ``start`` starts a forkserver."""

    can = _CLONE is not None  # on other machines each forkserver is a new process

    def __init__(self) -> None:
        self._asking = threading.Lock()

    def __enter__(self) -> Warm:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.warm_forkserver", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=with_root(process_pool.environment()),
        )
        theirs.close()
        _waiting.add(self._process.pid)
        return self

    def __exit__(self, *exception: object) -> None:
        self._link.close()
        self._process.kill()  # forkservers are not its children
        self._process.wait()
        _waiting.discard(self._process.pid)

    def start(self) -> process_pool.ProcessFactory:
        # A process will appear that no system call of ours started.
        sys.audit("tests.support.start")
        orders, ours = os.pipe()
        reports, theirs = os.pipe()
        here = os.open(".", os.O_PATH)  # the folder may have been removed
        try:
            asked = msgspec.json.encode(Asked(process_pool.environment()))
            with self._asking:
                socket.send_fds(self._link, [asked], [orders, theirs, 2, here])
                pid = int(self._link.recv(64) or b"0")
        finally:
            for descriptor in (orders, theirs, here):
                os.close(descriptor)
        return Warmed(pid, os.fdopen(ours, "wb", 0), os.fdopen(reports, "rb", 0))


_waiting: set[int] = set()


def offspring() -> list[int]:
    """All descendants of this process, without those that wait to become forkservers."""
    import psutil

    return [one.pid for one in psutil.Process().children(recursive=True) if one.pid not in _waiting]


def wait(link: socket.socket) -> None:
    """Runs the waiting process."""
    for module in (*forkserver.SERVERS_NEED, *forkserver.WORKERS_NEED, "shoal.store.table.kernels"):
        importlib.import_module(module)
    while True:
        said, descriptors, _, _ = socket.recv_fds(link, _ASKED, 4)
        if not said:
            return
        pid = _clone()
        if pid == 0:
            link.close()
            _become(msgspec.json.decode(said, type=Asked), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(str(pid).encode())


def _clone() -> int:
    """Forks a child whose parent is our parent."""
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    pid = ctypes.PyDLL(None).syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        api.PyOS_AfterFork_Child()
    else:
        api.PyOS_AfterFork_Parent()
    return int(pid)


def _become(asked: Asked, descriptors: list[int]) -> None:
    """Turns this child into a forkserver; it never returns."""
    try:
        os.setsid()
        os.environ.clear()
        os.environ.update(asked.environment)
        os.fchdir(here := descriptors.pop())
        os.close(here)
        for ours, theirs in enumerate(descriptors):
            os.dup2(theirs, ours)
            os.close(theirs)
        forkserver.main()
    finally:
        os._exit(1)


if __name__ == "__main__":
    wait(socket.socket(fileno=int(sys.argv[1])))

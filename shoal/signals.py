"""Handlers of SIGTERM and other signals that respect what the process was started to ignore.

``nohup`` starts a program with SIGHUP ignored, and a shell without job control starts its
background jobs with SIGINT ignored. A handler would undo that: a run under ``nohup`` would end
with its terminal. SIGTERM is always handled: schedulers end a run by it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def handle(numbers: Iterable[int], handler: Handler) -> dict[int, Any]:
    """Install a handler, except over ignored SIGINT and SIGHUP; returns the previous one."""
    heard = (n for n in numbers if n not in _MAY_BE_IGNORED or signal.getsignal(n) is not signal.SIG_IGN)
    return {number: signal.signal(number, handler) for number in heard}


def end_when_told() -> None:
    """Treat SIGTERM and SIGHUP as Ctrl-C, with the exit code of the signal."""
    handle((signal.SIGTERM, signal.SIGHUP), _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends; kept over exec."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


@contextlib.contextmanager
def handled(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Install a handler as ``handle`` does, and restore the previous ones at the end."""
    before = handle(numbers, handler)
    try:
        yield
    finally:
        for number, what in before.items():
            signal.signal(number, what)


@contextlib.contextmanager
def deferred(numbers: Iterable[int] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) -> Iterator[None]:
    """Defer the first of these signals to the end of the block; handle a second one at once.

    For work that must not be interrupted, such as saving a model. Does nothing outside the main
    thread, because signals interrupt only that one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    first: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if first:
            before[number](number, frame)
        first.append(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if first:
        before[first[0]](first[0], None)

"""Runs users' code safely: a query or filter may raise anything, and its caller goes on.

Errors can be caught (unless ``ends_us``), but not an exit of the process, an endless loop or a lack
of memory. So a ``ForkedCall`` runs in a fork of this process: it sees a snapshot of everything,
shares only a pipe, and is killed with all its children when its time is up.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from shoal.errors import Invalid
from shoal.limits import MB
from shoal.signals import end_with_parent

_LONGEST = 2_000  # characters of an error's message
_SHORT = 400  # with its type and place


def ends_us(error: BaseException) -> bool:
    """Whether this error ends our process: raised by a signal handler in the main thread."""
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(type(error))
    if number is None or threading.current_thread() is not threading.main_thread():
        return False
    return callable(signal.getsignal(number))


def told(error: BaseException) -> str:
    """An error in one line, with its place in the user's file."""
    text = said(error)[:_SHORT]
    return readable(f"{type(error).__name__}{': ' if text else ''}{text}{_where(error)}")


def said(error: BaseException) -> str:
    """The message of an error in one line."""
    try:
        return readable(" ".join(str(error).split())[:_LONGEST])
    except BaseException as another:  # users' code, too: __str__ may do anything
        if ends_us(another):
            raise
        return "it cannot be printed"


def readable(text: str) -> str:
    """The text with what UTF-8 cannot encode escaped (file names may have such bytes)."""
    return text.encode("utf-8", "replace").decode()


def _where(error: BaseException) -> str:
    place = error.__traceback__
    if place is None:
        return ""
    while place.tb_next is not None:
        place = place.tb_next
    return f" ({Path(place.tb_frame.f_code.co_filename).name}, line {place.tb_lineno})"


class ForkedCall:
    """Runs a function in a fork; ``wait`` returns its bytes, or raises Invalid."""

    def __init__(self, function: Callable[[], bytes], seconds: float, memory: int, most: int) -> None:
        """``memory``: bytes that it may allocate in addition; ``most``: bytes of an answer."""
        self._seconds, self._memory, self._most = seconds, memory, most
        self._deadline = time.monotonic() + seconds
        self._pipe, ours = os.pipe()
        with warnings.catch_warnings():
            # about threads: a lock that one holds only costs the child its time
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.pid = os.fork()
            except OSError:
                os.close(self._pipe)
                os.close(ours)
                raise
        if not self.pid:
            _be_child(function, ours, seconds, memory)
        os.close(ours)

    def wait(self) -> bytes:
        try:
            data = self._read()
        finally:
            os.close(self._pipe)
            end_all(self.pid)  # it has answered, or its time is up
            _, status = os.waitpid(self.pid, 0)
        if data is None:
            raise Invalid(f"it took more than {self._seconds:g} s, and was ended")
        if not data or data[:1] not in (_FOUND, _FAILED):
            raise Invalid(f"it ended its process ({self._how(status)})")
        if data[:1] == _FAILED:
            raise Invalid(data[1:].decode("utf-8", "replace"))
        return data[1:]

    def _read(self) -> bytes | None:
        """Its answer, perhaps incomplete; None at the deadline.

        Does not wait for the end of the pipe: a grandchild may hold it open.
        """
        found, size = bytearray(), _HEAD
        while len(found) < min(size, self._most):
            if not is_ready(self._pipe, select.POLLIN, self._deadline):
                return None
            piece = os.read(self._pipe, 1 << 16)
            if not piece:
                break
            found += piece
            if len(found) >= _HEAD:
                size = _HEAD + int.from_bytes(found[:_HEAD], "little")
        return bytes(found[_HEAD:size])

    def _how(self, status: int) -> str:
        if not os.WIFSIGNALED(status):
            return f"exit code {os.waitstatus_to_exitcode(status)}"
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return f"killed: it said nothing, or needed more than {self._memory // MB:,} MB"
        return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def end_all(pid: int) -> None:
    for end in (os.killpg, os.kill):  # the second call: it may not have called setsid yet
        with contextlib.suppress(ProcessLookupError):
            end(pid, signal.SIGKILL)


def is_ready(handle: int, what: int, deadline: float) -> bool:
    """Wait for a descriptor (``select.POLLIN``, ``POLLOUT``); False at the deadline.

    ``select.select`` takes no descriptors above 1,023.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    poll = select.poll()
    poll.register(handle, what)
    return bool(poll.poll(math.ceil(left * 1_000)))


_FOUND, _FAILED = b"\x01", b"\x00"
_HEAD = 8  # bytes of the length field of a child's answer


def _be_child(function: Callable[[], bytes], pipe: int, seconds: float, memory: int) -> NoReturn:
    """Close all descriptors but the pipe: a child must not hold the server's sockets open."""
    said = b""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent(os.getppid())
        for one in map(int, os.listdir("/proc/self/fd")):
            if one > 2 and one != pipe:
                with contextlib.suppress(OSError):
                    os.close(one)
        with open("/proc/self/statm") as file:
            there = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # in case its parent dies
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 2, int(seconds) + 3))
        resource.setrlimit(resource.RLIMIT_AS, (there + memory, there + memory))
        said = _FOUND + function()
    except MemoryError:
        said = _FAILED + f"it needed more than {memory // MB:,} MB".encode()
    except Invalid as error:
        said = _FAILED + str(error).encode("utf-8", "replace")
    except BaseException as error:
        said = _FAILED + told(error).encode("utf-8", "replace")
    finally:
        with contextlib.suppress(BaseException):
            said = len(said).to_bytes(_HEAD, "little") + said
            while said:
                said = said[os.write(pipe, said) :]
        os._exit(0)


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules that the operator named.

    They are searched on the path of Python, and then in the current folder.
    """
    with contextlib.suppress(FileNotFoundError):  # it may have been removed
        if modules and (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # last, so that a file there shadows no other module
            importlib.invalidate_caches()
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise Invalid(
                f"cannot import {module!r}, which launch.modules (modules=) names: {error}; go to the folder it is in, or name that: "
                f"export PYTHONPATH=folder"
            ) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may raise anything, even SystemExit
            traceback.print_exc()
            raise Invalid(
                f"{type(error).__name__} while importing {module!r}, which launch.modules (modules=) names: {error}; see its traceback"
            ) from None

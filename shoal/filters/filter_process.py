"""Runs a user's filter in a process beside the server, so that a failure costs one message.

    python -m shoal.filters.filter_process     the child: reads calls, and writes their results

The process is new, not a fork, which would keep copies of all server pages that change. It starts
with its table. After a crash, a timeout or an invalid answer it is restarted for the next message;
after three timeouts in a row it is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import queue
import resource
import select
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import msgspec
import numpy as np

from shoal import limits
from shoal.filters import known
from shoal.filters.base import Base
from shoal.limits import MB, SECOND
from shoal.user_code import end_all, ends_us, is_ready, told

_HEAD = 8  # bytes of the length prefix
_STRIKES = 3


class FilterMisbehaved(Exception):
    """The failure of a filter."""


class FilterProcess:
    """A filter in another process; ``call`` calls one of its methods there."""

    def __init__(self, name: str, one: Base) -> None:
        fields: dict[str, float] = getattr(one.settings, "_asdict", dict)()
        self._orders = msgspec.json.encode([sys.path, type(one).__module__, name, fields]).decode()
        self._lock = threading.Lock()
        self._late = 0  # timeouts in a row
        self._bad: tuple[bytes, str] | None = None  # the last call that failed, and why
        self._anew: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        # now, so that the first message does not wait for it
        self._child: subprocess.Popen[bytes] | None = self._start()

    def call(self, method: str, *given: Any) -> Any:
        data = _packed([method, *given])
        with self._lock:
            # re-sent meanwhile: it would fail again
            if self._bad is not None and self._bad[0] == _digest(data):
                raise FilterMisbehaved(self._bad[1])
            if self._late >= _STRIKES:
                raise FilterMisbehaved(f"it took too long {_STRIKES} times in a row, and is not used any more")
            child = self._child or self._next()
            try:
                fine, found = _unpacked(self._exchange(child, data))
            except TimeoutError:
                self._late += 1
                self._end()
                raise self._strayed(
                    data, f"it took more than {limits.FILTER_WITHIN / SECOND:g} s, and was ended"
                ) from None
            except (EOFError, OSError):
                code = self._end()
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
                raise self._strayed(data, f"it ended its process ({how})") from None
            except Exception:
                self._end()
                raise self._strayed(data, "it wrote what is no answer") from None
            self._late = 0
        if not fine:
            raise FilterMisbehaved(str(found))
        return found

    def _strayed(self, data: bytes, why: str) -> FilterMisbehaved:
        self._bad = _digest(data), why
        return FilterMisbehaved(why)

    def _next(self) -> subprocess.Popen[bytes]:
        """The replacement process; waits only briefly, since it blocks the server's loop."""
        try:
            child = self._anew.get(timeout=limits.FILTER_WITHIN / SECOND)
        except queue.Empty:
            raise FilterMisbehaved("its process is still being started again: send it once more") from None
        if child is None:
            self._replace()
            raise FilterMisbehaved("its process does not come up again")
        self._child = child
        return child

    def _replace(self) -> None:
        def start() -> None:
            try:
                self._anew.put(self._start())
            except Exception:
                self._anew.put(None)

        threading.Thread(target=start, name="shoal-filter", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, self._orders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
        )
        weakref.finalize(self, _close, child)
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)
        try:
            self._receive(child, time.monotonic() + limits.FILTER_STARTS / SECOND)
        except (TimeoutError, EOFError, OSError):
            _close(child)
            raise FilterMisbehaved(f"its process did not come up (exit code {child.returncode})") from None
        return child

    def _exchange(self, child: subprocess.Popen[bytes], data: bytes) -> bytes:
        assert child.stdin is not None
        deadline, handle = time.monotonic() + limits.FILTER_WITHIN / SECOND, child.stdin.fileno()
        left = memoryview(len(data).to_bytes(_HEAD, "little") + data)
        while left:
            if not is_ready(handle, select.POLLOUT, deadline):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(handle, left) :]
        return self._receive(child, deadline)

    def _receive(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        size = int.from_bytes(self._take(child, _HEAD, deadline), "little")
        if size > limits.FILTER_MEMORY:
            raise EOFError
        return self._take(child, size, deadline)

    def _take(self, child: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
        assert child.stdout is not None
        found, handle = bytearray(), child.stdout.fileno()
        while len(found) < size:
            if not is_ready(handle, select.POLLIN, deadline):
                raise TimeoutError
            piece = os.read(handle, min(size - len(found), 1 << 20))
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)

    def _end(self) -> int:
        child, self._child = self._child, None
        assert child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)  # it may have exited by itself: its code tells
        _close(child)
        self._replace()
        return child.returncode or 0


def _close(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if child.poll() is None:
        end_all(child.pid)
        child.wait()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _packed(what: Any) -> bytes:
    return msgspec.msgpack.encode(what, enc_hook=_array)


def _array(one: Any) -> Any:
    if isinstance(one, np.generic):
        return one.item()
    if not isinstance(one, np.ndarray) or one.dtype.hasobject:
        raise TypeError(f"a {type(one).__name__} cannot be an answer")
    return {"kind": one.dtype.str, "shape": one.shape, "bytes": np.ascontiguousarray(one).tobytes()}


def _unpacked(data: bytes) -> Any:
    return _restored(msgspec.msgpack.decode(data))


def _restored(one: Any) -> Any:
    """Read-only arrays, as filters get them; lists become tuples again."""
    if isinstance(one, dict):
        return np.frombuffer(one["bytes"], np.dtype(one["kind"])).reshape(one["shape"])
    return tuple(map(_restored, one)) if isinstance(one, list) else one


# ---------------------------------------------------------------- the child process


def main() -> None:
    path, module, name, settings = msgspec.json.decode(sys.argv[1])
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # its prints must not mix with answers
    sys.path[:] = path
    importlib.import_module(module)
    one = known(name).made(settings)
    with open("/proc/self/statm") as file:
        there = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (there + limits.FILTER_MEMORY, there + limits.FILTER_MEMORY))
    with contextlib.suppress(BrokenPipeError), os.fdopen(source, "rb") as orders, os.fdopen(sink, "wb", 0) as answers:
        _say(answers, _packed([True, None]))
        while head := orders.read(_HEAD):
            _say(answers, _answer(one, orders.read(int.from_bytes(head, "little"))))


def _answer(one: Base, data: bytes) -> bytes:
    try:
        method, *given = _unpacked(data)
        return _packed([True, getattr(one, method)(*given)])
    except MemoryError:
        return _packed([False, f"it needed more than {limits.FILTER_MEMORY // MB:,} MB"])
    except BaseException as error:
        if ends_us(error):
            raise
        return _packed([False, told(error)])


def _say(sink: Any, data: bytes) -> None:
    left = memoryview(len(data).to_bytes(_HEAD, "little") + data)
    while left:
        left = left[sink.write(left) :]


if __name__ == "__main__":
    main()

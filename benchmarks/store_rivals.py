"""The rivals of the store, each in a process of its own that ends when its parent does.

    plain store     push and pull over ZeroMQ without checks, members, clocks or exactly-once
    echo            answers a message with one of the same size: what the sockets alone cost
    memory copy     moves the same bytes within one thread: what the memory alone costs

The plain store is the mark to beat: one open-addressing index with room to spare, weights apart
from squares, AdaGrad with fast maths, one socket, one request in flight. It trusts every byte, so
it listens on this machine only.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kind = Literal["store", "echo"]

PLACES = 1 << 25  # of the index; the slabs have half as many rows
MOST_KEYS = 1 << 21  # in one message
DENSE_ROWS = 1 << 24
STEP, EPSILON = np.float32(0.1), np.float32(1e-8)
SMALL = 1_000  # keys: below this, a copy costs less than keeping the array alive until it is sent
ANSWER_WITHIN = 30_000  # milliseconds
START_WITHIN = 120.0  # seconds: it compiles its kernels

PUSH, PULL, PUSH_RANGE, PULL_RANGE, ECHO = range(5)
SHIFT, FACTOR, ONE = np.uint64(33), np.uint64(0xFF51AFD7ED558CCD), np.uint64(1)


class Header(msgspec.Struct, array_like=True):
    """The header: what to do, from which row, and how many rows (of an echo: bytes) to answer."""

    task: int
    start: int = 0
    count: int = 0


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Header).decode


# ------------------------------------------------------------ the parent's side


class Rival:
    """A rival that runs, and the one client it has."""

    def __init__(self, kind: Kind, transport: Literal["ipc", "tcp"]) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, ANSWER_WITHIN)
        # An abstract name: there is no file that could be left behind.
        address = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://@shoal-bench-{secrets.token_hex(8)}"
        from benchmarks.harness import program  # not in the rival's own process

        command, environment = program("benchmarks.store_rivals", kind, address)
        self._child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,  # the child ends when this closes, however we went
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to answer
        )

    def wait(self) -> None:
        """Until it listens. Apart from the start, so that several can start at once."""
        assert self._child.stdout is not None
        patience = threading.Timer(START_WITHIN, self._child.kill)
        patience.start()
        try:
            address = self._child.stdout.readline().decode().strip()
        finally:
            patience.cancel()
        if not address:
            raise RuntimeError(f"the rival did not start (exit code {self._child.wait()}): what it printed is above")
        self._socket.connect(address)

    def push(self, keys: Array, gradients: Array) -> None:
        self._ask(Header(PUSH), keys, gradients)

    def pull(self, keys: Array) -> Array:
        return np.frombuffer(self._ask(Header(PULL), keys)[1].buffer, np.float32)

    def push_range(self, start: int, values: Array) -> None:
        self._ask(Header(PUSH_RANGE, start, len(values)), values)

    def pull_range(self, start: int, count: int) -> Array:
        return np.frombuffer(self._ask(Header(PULL_RANGE, start, count))[1].buffer, np.float32)

    def echo(self, arrays: tuple[Array, ...], answer: int) -> None:
        """Send these arrays, and be sent so many bytes."""
        self._ask(Header(ECHO, 0, answer), *arrays)

    def close(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Rival:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, header: Header, *arrays: Array) -> list[Any]:
        small = not arrays or len(arrays[0]) < SMALL
        frames: list[Any] = [encode(header), *arrays]
        self._socket.send_multipart(frames, copy=small)
        return self._socket.recv_multipart(copy=False)


def copier(size: int) -> Callable[[], None]:
    """A call that copies so many bytes from one array to another, both of them warm."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    return lambda: np.copyto(target, source)


# ------------------------------------------------------------ kernels, compiled in the child


def find(index_keys: Any, index_rows: Any, keys: Any, rows: Any, used: Any) -> Any:
    """rows[i] = the row of keys[i], a free one if the key is new. Returns the rows in use."""
    mask = np.uint64(len(index_keys) - 1)
    for i in range(len(keys)):
        key = keys[i]
        mixed = (key ^ (key >> SHIFT)) * FACTOR
        place = (mixed ^ (mixed >> SHIFT)) & mask
        while True:
            row = index_rows[place]
            if row < 0:
                index_keys[place], index_rows[place], rows[i] = key, used, used
                used += 1
                break
            if index_keys[place] == key:
                rows[i] = row
                break
            place = (place + ONE) & mask
    return used


def adagrad(weights: Any, squares: Any, rows: Any, gradients: Any, step: Any, epsilon: Any) -> None:
    """squares += g^2; weights -= step * g / (sqrt(squares) + epsilon)."""
    for i in range(len(rows)):
        row, gradient = rows[i], gradients[i]
        squares[row] += gradient * gradient
        weights[row] -= step * gradient / (np.sqrt(squares[row]) + epsilon)


def gather(weights: Any, rows: Any, out: Any) -> None:
    """out[i] = weights[rows[i]]."""
    for i in range(len(rows)):
        out[i] = weights[rows[i]]


# ------------------------------------------------------------ the child's side


class PlainStore:
    """The tables of the plain store, and what it does with a message."""

    def __init__(self) -> None:
        from numba import njit

        self._find = njit(nogil=True)(find)
        self._adagrad = njit(nogil=True, fastmath=True)(adagrad)
        self._gather = njit(nogil=True)(gather)
        self._index_keys, self._index_rows = np.zeros(PLACES, np.uint64), np.full(PLACES, -1, np.int32)
        self._weights, self._squares = np.zeros(PLACES // 2, np.float32), np.zeros(PLACES // 2, np.float32)
        self._dense = np.zeros(DENSE_ROWS, np.float32)
        self._rows, self._used = np.empty(MOST_KEYS, np.int32), 0
        one = np.ones(1, np.float32)
        self._push(np.ones(1, np.uint64), one)  # compiles
        self._pull(np.ones(1, np.uint64))

    def answer(self, header: Header, arrays: list[Any]) -> tuple[Array, ...]:
        """The arrays that go back behind the same header."""
        start, stop = header.start, header.start + header.count
        if header.task == PUSH:
            self._push(np.frombuffer(arrays[0].buffer, np.uint64), np.frombuffer(arrays[1].buffer, np.float32))
            return ()
        if header.task == PULL:
            return (self._pull(np.frombuffer(arrays[0].buffer, np.uint64)),)
        if header.task == PUSH_RANGE:
            self._dense[start:stop] += np.frombuffer(arrays[0].buffer, np.float32)
            return ()
        return (self._dense[start:stop].copy(),)  # the next push may come before this is sent

    def _push(self, keys: Array, gradients: Array) -> None:
        rows = self._rows[: len(keys)]
        self._used = self._find(self._index_keys, self._index_rows, keys, rows, self._used)
        self._adagrad(self._weights, self._squares, rows, gradients, STEP, EPSILON)

    def _pull(self, keys: Array) -> Array:
        rows = self._rows[: len(keys)]
        self._used = self._find(self._index_keys, self._index_rows, keys, rows, self._used)
        out = np.empty(len(keys), np.float32)
        self._gather(self._weights, rows, out)
        return out


class Echo:
    """The answer of every size is made once: it is what travels that is measured."""

    def __init__(self) -> None:
        self._answers: dict[int, Array] = {}

    def answer(self, header: Header, arrays: list[Any]) -> tuple[Array, ...]:
        if header.count == 0:
            return ()
        if header.count not in self._answers:
            self._answers[header.count] = np.zeros(header.count, np.uint8)
        return (self._answers[header.count],)


def serve(kind: str, address: str) -> None:
    import zmq

    node = PlainStore() if kind == "store" else Echo()
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    socket.set_hwm(0)
    socket.bind(address)
    print(socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        who, head, *arrays = socket.recv_multipart(copy=False)
        frames: list[Any] = [who, head, *node.answer(decode(head.buffer), arrays)]
        socket.send_multipart(frames, copy=False)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve(sys.argv[1], sys.argv[2])

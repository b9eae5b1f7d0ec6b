"""A server process: reads its orders from standard input, serves, and ends when standard input does.

Standard input is a pipe whose other end only the parent has. When it closes, or the parent is another process than it
was, the parent is gone: however that came about, this process removes the cluster's folder and ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.errors import Invalid, ShoalError


class Orders(msgspec.Struct, forbid_unknown_fields=True):
    """What a parent tells a server process."""

    name: str
    token: str
    bind: str
    coordinator: str
    folder: str  # of sockets; empty if there is none
    modules: list[str]
    path: list[str]  # where the parent finds modules


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """What it answers, once, on standard output."""

    address: str = ""
    error: str = ""


def prepare(modules: Sequence[str]) -> None:
    """Import what the servers of this process need: the kernels, and the modules that the operator named."""
    importlib.import_module("shoal.store.kernels")
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise Invalid(f"cannot import {module!r}, which was named in modules=: {error}") from None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, and the parent ends us
    parent = os.getppid()
    orders = msgspec.json.decode(_line(sys.stdin.fileno()), type=Orders)
    sys.path[:] = orders.path
    if orders.folder:  # made by us, not by the parent: whoever makes it must be there to remove it
        Path(orders.folder).mkdir(mode=0o700, exist_ok=True)
    watch = threading.Thread(target=_end_with_parent, args=(parent, orders.folder), daemon=True)
    watch.start()
    try:
        _serve(orders)
    except ShoalError as error:
        _say(Report(error=str(error)))
        sys.exit(1)


def _serve(orders: Orders) -> None:
    from shoal.nodes.loop import Loop
    from shoal.nodes.server import Server
    from shoal.wire.zmq import ZmqTransport

    prepare(orders.modules)
    transport = ZmqTransport(orders.name, orders.bind)
    transport.connect("coordinator", orders.coordinator)
    loop = Loop(Server(orders.name, orders.token, transport.address), transport)
    _say(Report(address=transport.address))
    loop.run()


def _say(report: Report) -> None:
    with contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(report) + b"\n")


def _line(source: int) -> bytes:
    """One line, and not a byte more: what follows is for the watch."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(source, 1)
        if not byte:
            os._exit(0)  # the parent died before it could say anything
        line += byte
    return line


def _end_with_parent(parent: int, folder: str) -> None:
    while True:
        readable, _, _ = select.select([0], [], [], 1.0)
        if (readable and not os.read(0, 1)) or os.getppid() != parent:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)


if __name__ == "__main__":
    main()

"""Ranks under mpirun exchange messages."""

from __future__ import annotations

import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

pytest.importorskip("mpi4py")

from shoal.strategies.averaging.mpirun import MpirunRun


def test_ctrl_c_waits_until_a_message_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Pipe()
    there.send_bytes(b"head")
    there.send_bytes(b"weights")
    run = object.__new__(MpirunRun)
    run._ranks, run._outcome = {0: (0, here)}, None
    received: list[bytes] = []

    def receive(connection: Connection) -> None:
        received.append(connection.recv_bytes())
        signal.raise_signal(signal.SIGINT)
        received.append(connection.recv_bytes())

    monkeypatch.setattr(run, "_receive", receive)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert received == [b"head", b"weights"]

"""A node survives when it disconnects from a peer that ends in the middle of a message.

libzmq aborts the whole process in this case if the socket is closed without a linger, so the test
uses a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, random, signal, sys, time
import numpy as np
from shoal.wire import messages as m
from shoal.wire.zmq import ZmqTransport

draw = random.Random(0)
parts = [np.ones(15_000, np.float32)] * 12
caller = ZmqTransport("caller")
for round in range(int(sys.argv[1])):
    address = f"ipc://{sys.argv[2]}/{round}"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        peer = ZmqTransport("peer", address)
        os.write(writer, b"!")
        while True:
            peer.receive(0.1)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    caller.connect("peer", address)
    for number in range(300):
        caller.send("peer", m.Push(number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), parts)
    time.sleep(draw.uniform(0.002, 0.02))  # some of it is on its way by then
    os.kill(pid, signal.SIGKILL)
    time.sleep(draw.choice([0, 0, 1e-5, 5e-5, 1e-4, 3e-4]))  # it ends, and we hear of it, at about the same time
    caller.disconnect("peer")
    os.waitpid(pid, 0)
caller.close()
print("alive")
"""


@pytest.mark.slow
def test_who_stops_calling_a_peer_that_ends_with_half_of_a_message_on_its_way_lives_on(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "60", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr

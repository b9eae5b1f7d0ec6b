"""The wire between hosts can be cut both ways or one way, lossy, late or narrow.

It leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import PATIENCE
from tests.support.hosts import Hosts, missing, sweep
from tests.support.packet_link import Air
from tests.support.sandbox import Den, soon

ECHO = """
import socket, sys
socket_ = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket_.bind((sys.argv[1], 9_000))
print("ready", flush=True)
while True:
    said, sender = socket_.recvfrom(2_000)
    print(said.decode(), flush=True)
    socket_.sendto(said, sender)
"""


class Echo:
    """Runs a host that sends every packet back."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._process = hosts.start(0, "-c", ECHO, hosts.address(0))
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((hosts.address(Hosts.US), 0))

    def say(self, count: int, size: int = 4, within: float = 0.5) -> list[int]:
        """Sends so many packets at once, and returns the numbers of those that came back.

        They are in the order in which they came. It stops when none came for ``within`` seconds,
        which is long where all should come back.
        """
        for number in range(count):
            self._socket.sendto(f"{number:0{size}d}".encode(), (self.hosts.address(0), 9_000))
        back: list[int] = []
        self._socket.settimeout(within)
        while len(back) < count:
            try:
                back.append(int(self._socket.recv(2_000)))
            except TimeoutError:
                break
        return back

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def echo(hosts: Hosts) -> Iterator[Echo]:
    one = Echo(hosts)
    yield one
    one.close()


@pytest.fixture(autouse=True)
def _healed(hosts: Hosts) -> Iterator[None]:
    yield
    hosts.heal()


def test_hosts_hear_each_other_in_order_until_they_are_cut_and_again_when_healed(echo: Echo) -> None:
    assert echo.say(50, within=30) == list(range(50))
    echo.hosts.cut(0, Hosts.US)
    assert echo.say(3) == []
    echo.hosts.heal()
    assert echo.say(3, within=30) == list(range(3))


def test_a_way_that_is_cut_is_open_the_other_way(echo: Echo) -> None:
    before = echo.hosts.ether.counts["cut off"]
    echo.hosts.cut(0, Hosts.US, both=False)  # it hears us, and we do not hear it
    assert echo.say(5) == []
    assert echo.hosts.ether.counts["cut off"] == before + 5


def test_a_host_that_is_alone_hears_nobody(echo: Echo) -> None:
    echo.hosts.alone(0)
    assert echo.say(3) == []
    echo.hosts.mend(0, Hosts.US)
    assert echo.say(3, within=30) == list(range(3))


def test_packets_are_lost_by_chance_and_late_ones_keep_their_order(echo: Echo) -> None:
    names = [echo.hosts._name(one) for one in (0, Hosts.US)]
    air = Air(loss=0.3, delay=0.02, jitter=0.02)
    echo.hosts.ether.weather = lambda sender, to: air if [sender, to] == names[::-1] else Air()
    back = echo.say(200)
    assert back == sorted(back)
    assert 80 < len(back) < 190


def test_where_there_is_little_room_packets_wait_and_then_are_lost(echo: Echo) -> None:
    air = Air(rate=800_000.0)  # a packet of a thousand bytes in a hundredth of a second
    echo.hosts.ether.weather = lambda sender, to: air
    # Packets for a quarter of a second wait; of the others only the late ones find room.
    back = echo.say(400, size=972)
    assert back == sorted(back) and back[:20] == list(range(20))
    assert len(back) < 400


def test_what_a_killed_process_left_is_removed_by_the_next_and_nobody_elses(hosts: Hosts, den: Den) -> None:
    program = "import time; from tests.support.hosts import Hosts; Hosts(2).__enter__(); print('up', flush=True); time.sleep(60)"
    child = den.start("-c", program)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    theirs = list(Path("/run/netns").glob(f"shoal-{child.pid}-*"))
    assert len(theirs) == 2
    sweep()
    assert all(one.exists() for one in theirs)  # the process that made them lives
    sleeper = subprocess.Popen(["ip", "netns", "exec", theirs[0].name, "sleep", "60"])
    child.send_signal(signal.SIGKILL)
    child.communicate()
    sweep()
    assert not any(one.exists() for one in theirs)
    assert sleeper.wait(PATIENCE) == -signal.SIGKILL
    devices = f"sh{child.pid}-"
    assert soon(lambda: not any(one.startswith(devices) for one in os.listdir("/sys/class/net")))
    assert list(Path("/run/netns").glob(f"shoal-{os.getpid()}-*"))  # ours


def test_what_is_missing_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert "root" in missing()

"""Hosts on this machine: network namespaces with an address each, and links that can be cut.

    with Hosts(3) as hosts:                      needs root; ``missing()`` says what is missing
        hosts.start(0, "-m", "shoal", ...)       runs Python on the first host
        hosts.cut(0, 1)                          no packets between 0 and 1
        hosts.cut(0, 1, both=False)              no packets from 0 to 1
        hosts.alone(2)                           cut off from all, from the test too
        hosts.heal()

The test is on the same network (``Hosts.US``), so that it can observe the hosts. The name of a
namespace contains the process that made it: the next user removes those of a dead process.
Nothing here touches a network that it did not make.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import signal
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import psutil

from tests.support.packet_link import CLEAR, CUT, Air, Ether
from tests.support.sandbox import Den

_NET = ipaddress.IPv4Network("198.18.0.0/15")  # reserved for network tests (RFC 2544)
_NAMES, _TUN = Path("/run/netns"), "/dev/net/tun"
_PREFIX = "shoal"
_WITHIN = 20.0  # seconds for one command
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def missing() -> str:
    """What this machine lacks to make hosts; empty if nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.path.exists(_TUN):
        return f"no {_TUN}"
    try:
        _ip("netns", "add", probe := f"{_PREFIX}-{os.getpid()}-probe")
        _ip("netns", "del", probe)
        os.close(_tun(f"{_PREFIX[:2]}{os.getpid()}-p"))
    except FileNotFoundError:
        return "the command ip (package iproute2) is not installed"
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces or tun devices cannot be made here: {error}"
    return ""


class Hosts:
    """Use as a context: leaving it ends all processes on the hosts, and removes the hosts."""

    US = -1  # this process's own host

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self.ether = Ether(seed)
        self._den = Den()
        self._names = [f"{_PREFIX}-{os.getpid()}-{i}" for i in range(count)]
        self._air: dict[tuple[str, str], Air] = {}

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._den)
            undo.callback(sweep)
            undo.enter_context(self.ether)
            self._net = _free_net()
            for i in range(self.count):
                undo.callback(_remove, self._names[i])
                _ip("netns", "add", self._names[i])
                self._settle(i)
            self._settle(self.US)
            self.heal()  # returns when all are connected
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    @property
    def den(self) -> Den:
        return self._den

    def address(self, host: int) -> str:
        """The address of a host, as text."""
        return str(self._net[100 if host == self.US else host + 1])

    def within(self, host: int) -> list[str]:
        """The prefix of a command that runs on this host."""
        return [] if host == self.US else ["ip", "netns", "exec", self._names[host]]

    def start(self, host: int, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Runs Python on this host with these arguments."""
        return self._den.start(*arguments, within=self.within(host), **settings)

    # ------------------------------------------------------------ network faults

    def cut(self, one: int, other: int, both: bool = True) -> None:
        """Drops all packets from ``one`` to ``other``, and those back if ``both``."""
        self._set([(one, other), (other, one)] if both else [(one, other)], CUT)

    def alone(self, host: int) -> None:
        """Cuts a host off from all others, as if its cable were pulled."""
        others = [one for one in (*range(self.count), self.US) if one != host]
        self._set([(host, one) for one in others] + [(one, host) for one in others], CUT)

    def all(self, air: Air) -> None:
        """Sets the air between all hosts, both ways; the test's own links stay as they are."""
        self._set([(one, other) for one in range(self.count) for other in range(self.count) if one != other], air)

    def heal(self) -> None:
        self._air = {}
        self._set([], CLEAR)

    def swizzle(self, seed: int) -> list[tuple[int, int]]:
        """All links in a random order, for a test that cuts and heals them one by one."""
        links = [(one, other) for one in range(self.count) for other in range(one)]
        Random(seed).shuffle(links)
        return links

    def mend(self, one: int, other: int) -> None:
        """Heals one link, both ways."""
        self._set([(one, other), (other, one)], CLEAR)

    def _set(self, ways: Sequence[tuple[int, int]], air: Air) -> None:
        self._air |= {(self._name(one), self._name(other)): air for one, other in ways}
        now = dict(self._air)
        self.ether.weather = lambda sender, to: now.get((sender, to), CLEAR)

    # ------------------------------------------------------------ making them

    def _name(self, host: int) -> str:
        return "us" if host == self.US else self._names[host]

    def _settle(self, host: int) -> None:
        """Makes a device with an address, whose other end the ether reads and writes."""
        device = f"{_PREFIX[:2]}{os.getpid()}-{'us' if host == self.US else host}"
        end = _tun(device)
        self.ether.plug(self._name(host), end, ipaddress.ip_address(self.address(host)).packed)
        there: tuple[str, ...] = ()
        if host != self.US:
            _ip("link", "set", device, "netns", self._names[host])
            there = ("-n", self._names[host])
            _ip(*there, "link", "set", "lo", "up")
        _ip(*there, "addr", "add", f"{self.address(host)}/{self._net.prefixlen}", "dev", device)
        _ip(*there, "link", "set", device, "up")


def sweep() -> None:
    """Removes the namespaces of dead processes: a killed test could not do it."""
    for path in _NAMES.glob(f"{_PREFIX}-*-*") if _NAMES.exists() else ():
        maker = path.name.split("-")[1]
        if maker.isdigit() and not psutil.pid_exists(int(maker)):
            _remove(path.name)


def _remove(name: str) -> None:
    """Removes a namespace and kills all processes in it."""
    if not (_NAMES / name).exists():
        return
    with contextlib.suppress(subprocess.SubprocessError):
        for pid in _ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "del", name)


def _free_net() -> ipaddress.IPv4Network:
    """A /24 that no device of this machine uses."""
    taken = _ip("-o", "-4", "addr")
    nets = list(_NET.subnets(new_prefix=24))
    for i in range(len(nets)):
        net = nets[(os.getpid() + i) % len(nets)]
        if f" {str(net[0]).removesuffix('.0')}." not in taken:
            return net
    raise OSError(f"all of {_NET} is taken: are there devices of tests that were killed? see `ip addr`")


def _tun(name: str) -> int:
    """Makes a new device, which exists until this file is closed."""
    end = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(end)
        raise
    return end


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=_WITHIN, check=False)
    if done.returncode != 0:
        raise subprocess.SubprocessError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout

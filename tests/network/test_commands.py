"""Commands that a person would type start a run over several hosts, with keys.

The run survives a host that is cut off for a while. Strangers, forgotten keys and revoked keys are
reported on both sides.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.events import Gone, Joined, read_run
from shoal.inspect.status import StatusClient, look_at
from shoal.security.safety import Safety
from tests.support import PATIENCE
from tests.support.hosts import Hosts
from tests.support.sandbox import soon

# The coordinator, two servers, two workers, and a guest.
HOME, FIRST, SECOND, ONE, OTHER, GUEST = range(6)
PORT = 7_000
RUN = ("--servers", "2", "--workers", "2", "--set", "data.batch=8", "--set", "evaluate.every=5")


class Office:
    """Types commands at each host, with a folder of keys there."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.listen = f"tcp://{hosts.address(HOME)}:{PORT}"
        self.address = self.listen
        self.started: list[subprocess.Popen[str]] = []

    def command(self, host: int, *words: str | Path) -> subprocess.Popen[str]:
        """Starts a command at that host."""
        keys = {"SHOAL_KEYS": str(self.keys(host))}
        process = self.hosts.start(host, "-m", "shoal", *map(str, words), env=keys)
        self.started.append(process)
        return process

    def keys(self, host: int) -> Path:
        return self.folder / f"keys-{host}"

    def done(self, host: int, *words: str | Path) -> str:
        """Runs a command at that host to a good end, and returns its output."""
        return ended(self.command(host, *words))[0]

    def new_key(self, host: int, name: str, known: bool = True) -> None:
        """Makes a key at that host, and adds it at the coordinator's."""
        line = re.search(rf"\S+:{name}:\S+", self.done(host, "key", "new", name))
        assert line is not None
        if known:
            self.done(HOME, "key", "add", line[0])

    def open(self) -> None:
        """Makes keys for all members."""
        self.done(HOME, "key", "new", "coordinator")
        public = (self.keys(HOME) / "coordinator.public").read_text().strip().split(":")[-1]
        self.address = self.listen.replace("://", f"://{public}@")
        for host, name in ((FIRST, "server-a"), (SECOND, "server-b"), (ONE, "worker-a"), (OTHER, "worker-b")):
            self.new_key(host, name)
        self.new_key(Hosts.US, "client-us")

    def looking(self) -> StatusClient:
        return look_at(self.address, Safety.with_keys(self.keys(Hosts.US)))

    def steps(self) -> int:
        looking = self.looking()
        try:
            course = looking.look(1.0).course
            return 0 if course is None else course.steps
        except ShoalError:
            return 0
        finally:
            looking.close()

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == code, (out, err)
    return out, err


def refused(process: subprocess.Popen[str], *words: str) -> None:
    """Checks that the process ends with an error that contains these words."""
    began = time.monotonic()
    out, err = process.communicate(timeout=PATIENCE)
    print(f"after {time.monotonic() - began:.1f} s: {err}")
    assert process.returncode not in (0, None), (out, err)
    assert all(word in err for word in words), (out, err)


@pytest.fixture
def office(hosts: Hosts, tmp_path: Path) -> Iterator[Office]:
    office = Office(hosts, tmp_path)
    try:
        yield office
    finally:
        hosts.heal()
        office.close()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, path = np.random.default_rng(0), tmp_path_factory.mktemp("rows") / "rows.svm"
    lines = []
    for row in range(600):
        columns = sorted(draw.choice(50, 6, replace=False) + 1)
        sign = (-1, 1)[row] if row < 2 else 1 if columns[0] < 6 else -1
        lines.append(f"{sign} " + " ".join(f"{column}:1" for column in columns))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.soak
def test_a_run_over_hosts_with_keys_bears_one_that_is_cut_off_and_ends_for_all(office: Office, rows: Path) -> None:
    """Its worker is removed, its slots are dealt to the other, and it joins again later."""
    office.open()
    run = office.folder / "run"
    main = office.command(
        HOME, "launch", "coordinator", rows, "--listen", office.listen, *RUN, "--epochs", "1e6", "--out", run
    )
    servers = [
        office.command(host, "launch", "server", "--at", office.address, "--name", name)
        for host, name in ((FIRST, "server-a"), (SECOND, "server-b"))
    ]
    workers = [
        office.command(host, "launch", "worker", "--at", office.address, "--name", name)
        for host, name in ((ONE, "worker-a"), (OTHER, "worker-b"))
    ]
    assert soon(lambda: office.steps() > 20 or main.poll() is not None), [one.poll() for one in office.started]
    office.hosts.alone(ONE)
    assert soon(lambda: any(isinstance(one, Gone) and one.name == "worker-a" for one in read_run(run / "events.jsonl")))
    before = office.steps()
    assert soon(lambda: office.steps() > before + 20)  # the other goes on
    office.hosts.heal()

    def joined() -> int:
        return sum(isinstance(one, Joined) and one.name == "worker-a" for one in read_run(run / "events.jsonl"))

    assert soon(lambda: joined() == 2)
    main.send_signal(signal.SIGINT)
    ended(main, 130)
    for process in (*servers, *workers):
        ended(process)


@pytest.mark.soak
def test_strangers_and_those_without_a_key_are_told_so_on_both_sides(office: Office, rows: Path) -> None:
    """P14: a worker whose key was revoked is removed at once."""
    bare = office.command(HOME, "launch", "coordinator", rows, "--listen", office.listen, *RUN)
    # Off loopback nothing starts without one or the other.
    refused(bare, "shoal key new", "--insecure")
    office.open()
    main = office.command(
        HOME,
        "launch",
        "coordinator",
        rows,
        "--listen",
        office.listen,
        *RUN,
        "--epochs",
        "1e6",
        "--out",
        office.folder / "run",
    )
    office.command(FIRST, "launch", "server", "--at", office.address, "--name", "server-a")
    office.command(SECOND, "launch", "server", "--at", office.address, "--name", "server-b")
    member = office.command(ONE, "launch", "worker", "--at", office.address, "--name", "worker-a")
    assert soon(lambda: office.steps() > 10 or main.poll() is not None)

    join = ("launch", "worker", "--at", office.address, "--name", "worker-c")
    refused(office.command(GUEST, *join), "shoal key new")
    office.new_key(GUEST, "worker-c", known=False)
    refused(office.command(GUEST, *join), "key")
    office.done(HOME, "key", "revoke", "worker-a")
    refused(member, "revoked")
    main.send_signal(signal.SIGINT)
    _, err = ended(main, 130)
    assert "worker-c" in err or "not on the list" in err, err

"""Runs a cluster over several hosts in the counting model, and checks it.

    host 0              the coordinator
    hosts 1 to 3        a server each, two copies of every segment: one server may be lost
    hosts 4 to 6        a worker or client each
    us                  the test, which has no network faults

Each host has a folder of keys, and the coordinator's list has all of them; ``keys=False``: no
encryption. The nodes are plain processes (``node_process``): no supervisor restarts them.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from shoal.client import KV
from shoal.errors import Unanswered
from shoal.inspect.status import StatusClient
from shoal.nodes.worker import Worker
from shoal.security import keyring
from shoal.security.address import with_key
from shoal.security.safety import Safety
from shoal.simulation.store_workload import TABLE
from shoal.wire import Transport
from shoal.wire import messages as m
from shoal.wire.zmq import ZmqTransport
from tests.support import PATIENCE
from tests.support.counting import Crowd, create, plan_of
from tests.support.hosts import Hosts
from tests.support.node_process import Post
from tests.support.sandbox import soon

SERVERS, WORKERS, COPIES = 3, 3, 2
COORDINATOR, FIRST_SERVER, FIRST_WORKER = 0, 1, 1 + SERVERS
_PORT = 7_000
_OFTEN = 0.05  # seconds


class Record(list[tuple[int, m.View]]):
    """Views, each with the time at which it was first seen."""

    def add(self, now: int, view: m.View) -> None:
        if not self or self[-1][1].number != view.number:
            self.append((now, view))

    def losses(self) -> int:
        """How often one segment lost a member of its replica set; the maximum over all segments."""
        sets = [[set(place.servers) for place in places] for _, view in self if (places := _places(view))]
        lost = [[bool(before - after) for before, after in zip(*pair, strict=True)] for pair in pairwise(sets)]
        return max(map(sum, zip(*lost, strict=True)), default=0)

    def returns(self, name: str) -> int:
        """How many times a node joined again."""
        return len({one.incarnation for _, view in self for one in view.members if one.name == name}) - 1

    def first(self, which: Callable[[m.View], bool]) -> int:
        """The time of the first view for which ``which`` is true; 0 if there is none."""
        return next((at for at, view in self if which(view)), 0)


def _places(view: m.View) -> list[m.Replicas]:
    return next((table.places for table in view.tables if table.name == TABLE), [])


class Site:
    """A cluster over several hosts. Use as a context."""

    def __init__(
        self, hosts: Hosts, servers: int = SERVERS, copies: int = COPIES, keys: bool = True, port: int = _PORT
    ) -> None:
        """``port`` must differ between sites on the same hosts."""
        self.hosts, self.copies, self.keys = hosts, copies, keys
        self.servers = [f"server-{i}" for i in range(servers)]
        self.address = self._listens = f"tcp://{hosts.address(COORDINATOR)}:{port}"
        self._folder = hosts.den.folder / f"site-{port}"
        self._folder.mkdir()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.looking = StatusClient(self._transport)

    def __enter__(self) -> Site:
        try:
            if self.keys:
                self._make_keys()
            self.post("coordinator")
            for name in self.servers:
                self.post(name)
            self.wait_for_servers()
            token = secrets.token_hex(8)
            self.kv = KV(Worker("operator", "client", token), self._transport("operator"), lambda: "")
            self.kv.joined(PATIENCE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.hosts.heal()
        if hasattr(self, "kv"):
            self.kv.close()
        self.looking.close()
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def host(self, name: str) -> int:
        """The host of a node."""
        kind, _, number = name.partition("-")
        return (
            COORDINATOR if kind == "coordinator" else int(number) + (FIRST_SERVER if kind == "server" else FIRST_WORKER)
        )

    def post(self, name: str, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Starts or restarts a node; ``within`` is a prefix of its command."""
        here = self.hosts.address(self.host(name))
        journal = self._folder / "coordinator.journal"
        post = (
            Post("coordinator", name, self._listens, "", str(journal), self.copies, self.safety(name).plain)
            if name == "coordinator"
            else Post("server", name, f"tcp://{here}:*", self.address, safety=self.safety(name).plain)
        )
        orders = msgspec.json.encode(post).decode()
        within = [*self.hosts.within(self.host(name)), *within]
        process = self.hosts.den.start("-m", "tests.support.node_process", orders, within=within)
        self.processes[name] = process
        return process

    def gather(self, kind: str, slots: int = 60, **settings: Any) -> Crowd:
        """Starts the workers; returns when each has three pushes acknowledged."""
        count = slots if kind != "clients" else slots // WORKERS
        plan = plan_of(kind, WORKERS, count, servers=len(self.servers), copies=self.copies, **{"think": 30, **settings})
        create(self.kv, plan)
        crowd = Crowd(
            plan,
            self.address,
            self.hosts.den,
            within=lambda column: self.hosts.within(column + FIRST_WORKER),
            safety=lambda column: self.safety(f"worker-{column}"),
        )
        for column in range(WORKERS):
            crowd.start(column, range(column, slots, WORKERS))
        for column in range(WORKERS):
            crowd.until(column, 3)
        return crowd

    # ------------------------------------------------------------ status

    def members(self, role: str = "server") -> dict[str, int]:
        """The incarnations of all members with this role, by name."""
        return {one.name: one.incarnation for one in self.looking.look(PATIENCE).members if one.role == role}

    def wait_for_servers(self) -> None:
        assert soon(lambda: len(self.members("server")) == len(self.servers)), self.words()

    def view(self) -> m.View:
        return self.looking.view(PATIENCE)

    def places(self) -> list[m.Replicas]:
        return _places(self.view())

    def told(self) -> dict[str, m.TableStatusReply]:
        """Each server's status of the table, with a hash of every segment that it has."""
        view = self.view()
        number = next(table.number for table in view.tables if table.name == TABLE)

        def ask(request: int) -> m.TableStatusRequest:
            return m.TableStatusRequest(request, number, 0, digests=True)

        answers = {
            one.name: self.looking._ask("ask for digests", one.name, ask, m.Message, PATIENCE, one.address)
            for one in view.members
            if one.role == "server"
        }
        return {name: answer for name, answer in answers.items() if isinstance(answer, m.TableStatusReply)}

    def is_whole(self) -> bool:
        """Every segment has all its copies again, and they are equal (I8)."""
        places, told = self.places(), self.told()
        return all(
            len(place.servers) == self.copies
            and not place.filling
            and all(server in told and segment in told[server].digests for server in place.servers)
            and len({told[server].digests[segment] for server in place.servers}) == 1
            for segment, place in enumerate(places)
        )

    def check(self, crowd: Crowd) -> None:
        """All work is counted once, in all copies; every segment has one owner (I1-I8)."""
        crowd.finish()
        violations = crowd.violations(self.kv)
        assert violations == [], violations
        assert soon(self.is_whole), (self.places(), self.told())
        own = [segment for one in self.told().values() for segment in one.own]
        assert sorted(own) == list(range(len(self.places())))  # I7
        self.kv.drop(TABLE)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Record]:
        """Records the coordinator's views meanwhile; none that lasts a second is missed."""
        record, looking = Record(), StatusClient(self._transport)
        over = threading.Event()

        def look() -> None:
            while not over.wait(_OFTEN):
                with contextlib.suppress(Unanswered):
                    record.add(time.monotonic_ns(), looking.view())

        record.add(time.monotonic_ns(), self.view())
        thread = threading.Thread(target=look, name="shoal-record", daemon=True)
        thread.start()
        try:
            yield record
        finally:
            over.set()
            thread.join()
            looking.close()

    def words(self) -> str:
        """The error output of nodes that have ended."""
        return "; ".join(
            f"{name}: {process.communicate()[1]}"
            for name, process in self.processes.items()
            if process.poll() is not None
        )

    # ------------------------------------------------------------ keys

    def key_folder(self, name: str) -> Path:
        """The folder of keys of a node's host."""
        return self._folder / f"keys-{name}"

    def safety(self, name: str) -> Safety:
        return Safety.with_keys(self.key_folder(name)) if self.keys else Safety.insecure()

    def _make_keys(self) -> None:
        chief = keyring.make(self.key_folder("coordinator"), "coordinator", "coordinator")
        workers = [f"worker-{i}" for i in range(WORKERS)]
        for name in (*self.servers, *workers, "operator"):
            role = "client" if name == "operator" else name.partition("-")[0]
            keyring.allow(self.key_folder("coordinator"), keyring.make(self.key_folder(name), name, role))
        self.address = with_key(self._listens, chief.public)

    def _transport(self, name: str) -> Transport:
        safety = self.safety("operator")
        transport = ZmqTransport(safety.named(name), safety=safety)
        transport.connect("coordinator", self.address)
        return transport

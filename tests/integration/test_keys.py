"""Keys on real sockets: who joins, is refused, is cut off (T1-T3, T6, T8, T12, T13, T15).

Both sides report every refusal. Timeouts here only guard against hanging: ``shoal bench curve``
prints how long a refusal takes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import zmq
from click.testing import CliRunner

import shoal
from shoal import limits
from shoal.cli.main import main
from shoal.errors import Invalid, Refused
from shoal.inspect.status import look_at
from shoal.launch.processes import ProcessCluster
from shoal.security import keyring
from shoal.security.address import parsed, with_key
from shoal.security.keyring import OwnKey
from shoal.security.safety import Safety
from shoal.wire import messages as m
from shoal.wire.coding import decode, encode
from shoal.wire.zmq import ZmqTransport
from tests.support import PATIENCE

HERE = "tcp://127.0.0.1:*"


class Hosts:
    """Key folders, one per possible machine, and transports that are closed at the end."""

    def __init__(self, place: Path) -> None:
        self.place, self.open = place, list[ZmqTransport]()
        self.home = self.key("coordinator", "coordinator")

    def key(self, name: str, role: str, known: bool = False) -> OwnKey:
        made = keyring.make(self.place / name, name, role)
        if known:
            keyring.allow(self.folder("coordinator"), made)
        return made

    def folder(self, name: str) -> Path:
        return self.place / name

    def safety(self, name: str) -> Safety:
        return Safety.with_keys(self.folder(name))

    def node(self, name: str, key: str = "", bind: str | None = None) -> ZmqTransport:
        made = ZmqTransport(name, bind, self.safety(key or name))
        self.open.append(made)
        return made

    def plain(self, name: str, bind: str | None = None, safety: Safety | None = None) -> ZmqTransport:
        made = ZmqTransport(name, bind, safety)
        self.open.append(made)
        return made

    def until(self, done: Callable[[list[tuple[str, str, m.Message]]], bool]) -> list[tuple[str, str, m.Message]]:
        """Let all nodes receive until this is true, and return who received what from whom."""
        heard = list[tuple[str, str, m.Message]]()
        for _ in range(int(PATIENCE * 100)):
            for node in self.open:
                heard += [(node._name.decode(), event.sender, event.message) for event in node.receive(0.01)]
            if done(heard):
                return heard
        raise AssertionError(heard)

    def for_a_while(self) -> list[tuple[str, str, m.Message]]:
        """Return what is received within the time of a round trip."""
        end = time.monotonic() + 0.5
        return self.until(lambda heard: time.monotonic() > end)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setenv("SHOAL_KEYS", str(tmp_path / "none"))
    made = Hosts(tmp_path)
    yield made
    for node in made.open:
        node.close()


def no(heard: list[tuple[str, str, m.Message]], who: str) -> m.Refusal | None:
    return next((said for to, _, said in heard if to == who and isinstance(said, m.Refusal)), None)


def knock(
    hosts: Hosts, caller: ZmqTransport, home: ZmqTransport, name: str
) -> tuple[list[tuple[str, str, m.Message]], m.Refusal | None]:
    """Return all messages until the caller was refused, and the refusal."""
    caller.connect("coordinator", home.address)
    caller.send("coordinator", m.StatusRequest(1), ())
    heard = hosts.until(lambda heard: no(heard, name) is not None)
    return heard, no(heard, name)


# ---------------------------------------------------------------- admission


def test_a_worker_with_a_known_key_comes_in_and_is_called_by_its_name(hosts: Hosts) -> None:
    hosts.key("hostb", "worker", known=True)
    home, worker = hosts.node("coordinator", bind=HERE), hosts.node("hostb.1", "hostb")
    worker.connect("coordinator", home.address)
    worker.send("coordinator", m.StatusRequest(7), ())
    heard = hosts.until(lambda heard: len(heard) == 1)
    assert heard == [("coordinator", "hostb.1", m.StatusRequest(7))]
    home.send("hostb.1", m.Done(7), ())
    assert hosts.until(lambda heard: len(heard) == 1) == [("hostb.1", "coordinator", m.Done(7))]


def test_a_key_that_is_not_on_the_list_is_refused_and_both_sides_say_so(
    hosts: Hosts, capfd: pytest.CaptureFixture[str]
) -> None:
    stranger = hosts.key("stranger", "worker")
    home, caller = hosts.node("coordinator", bind=HERE), hosts.node("stranger")
    heard, said = knock(hosts, caller, home, "stranger")
    assert said is not None and said.kind == "key" and "not on the list" in said.reason
    assert [to for to, _, _ in heard] == ["stranger"]  # the coordinator got no message of it
    assert home.counters()["strange key"] >= 1
    assert f"its key {stranger.public} is not on the list" in capfd.readouterr().err


def test_a_key_that_is_added_later_comes_in_without_a_restart_of_anybody(hosts: Hosts) -> None:
    late = hosts.key("late", "worker")
    home, caller = hosts.node("coordinator", bind=HERE), hosts.node("late")
    caller.connect("coordinator", home.address)
    caller.send("coordinator", m.StatusRequest(1), ())
    hosts.until(lambda heard: no(heard, "late") is not None)
    keyring.allow(hosts.folder("coordinator"), late)

    def asks_again(heard: list[tuple[str, str, m.Message]]) -> bool:
        caller.send("coordinator", m.StatusRequest(2), ())
        return ("coordinator", "late", m.StatusRequest(2)) in heard

    hosts.until(asks_again)


def test_a_caller_without_a_key_is_told_that_it_needs_one(hosts: Hosts, capfd: pytest.CaptureFixture[str]) -> None:
    home, caller = hosts.node("coordinator", bind=HERE), hosts.plain("plain")
    caller.connect("coordinator", parsed(home.address).plain)
    caller.send("coordinator", m.StatusRequest(1), ())
    heard = hosts.until(lambda heard: no(heard, "plain") is not None and home.counters().get("no key", 0) > 0)
    said = no(heard, "plain")
    assert said is not None and "runs with keys and was called without" in said.reason
    assert "a caller was refused" in capfd.readouterr().err
    assert not [one for one in heard if one[0] == "coordinator"]


def test_a_caller_with_a_key_is_told_that_the_other_side_has_none(hosts: Hosts) -> None:
    hosts.key("hostb", "worker")
    home, caller = hosts.plain("coordinator", HERE), hosts.node("hostb")
    caller.connect("coordinator", with_key(home.address, hosts.home.public))
    caller.send("coordinator", m.StatusRequest(1), ())
    heard = hosts.until(lambda heard: no(heard, "hostb") is not None)
    said = no(heard, "hostb")
    assert said is not None and "runs without keys" in said.reason


def test_an_insecure_caller_is_told_that_the_other_side_has_keys(hosts: Hosts) -> None:
    home, caller = hosts.node("coordinator", bind=HERE), hosts.plain("plain", safety=Safety.insecure())
    caller.connect("coordinator", parsed(home.address).plain)
    caller.send("coordinator", m.StatusRequest(1), ())
    hosts.until(lambda heard: no(heard, "plain") is not None)


def test_whoever_answers_with_another_key_than_the_address_says_hears_nothing(hosts: Hosts) -> None:
    """T2: an impostor at the coordinator's address has its own key and admits everybody."""
    hosts.key("hostb", "worker")
    other = keyring.make(hosts.folder("impostor"), "coordinator", "coordinator")
    keyring.allow(hosts.folder("impostor"), keyring.own_keys(hosts.folder("hostb"))[0])
    impostor, caller = hosts.node("coordinator", "impostor", HERE), hosts.node("hostb")
    assert other.public in impostor.address
    caller.connect("coordinator", with_key(parsed(impostor.address).plain, hosts.home.public))
    caller.send("coordinator", m.StatusRequest(1), ())
    heard = hosts.until(lambda heard: no(heard, "hostb") is not None)
    said = no(heard, "hostb")
    assert said is not None and "another key than the address says" in said.reason
    assert not [one for one in heard if one[0] == "coordinator"]


def test_a_node_that_is_away_is_no_refusal(hosts: Hosts) -> None:
    """Nobody listens there: the caller keeps trying, and a node that returns is reached."""
    hosts.key("hostb", "worker", known=True)
    with sockets.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    caller = hosts.node("hostb")
    caller.connect("coordinator", f"tcp://{hosts.home.public}@127.0.0.1:{port}")
    caller.send("coordinator", m.StatusRequest(1), ())
    assert hosts.for_a_while() == []
    hosts.node("coordinator", bind=f"tcp://127.0.0.1:{port}")
    assert hosts.until(lambda heard: len(heard) > 0) == [("coordinator", "hostb", m.StatusRequest(1))]


# ---------------------------------------------------------------- names and roles


@contextlib.contextmanager
def raw_caller(hosts: Hosts, made: keyring.OwnKey, address: str, identity: bytes = b"") -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket with that key that sends any name."""
    context = zmq.Context()
    with contextlib.closing(context.socket(zmq.DEALER)) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        if identity:
            raw.setsockopt(zmq.IDENTITY, identity)
        raw.setsockopt(zmq.CURVE_SECRETKEY, made.secret)
        raw.setsockopt(zmq.CURVE_PUBLICKEY, keyring.bytes_of(made.public))
        raw.setsockopt(zmq.CURVE_SERVERKEY, keyring.bytes_of(hosts.home.public))
        raw.connect(parsed(address).plain)
        yield raw
    context.term()


def test_a_key_speaks_for_its_own_name_alone(hosts: Hosts) -> None:
    """Not even a known key may speak for another name."""
    made = hosts.key("hostb", "worker", known=True)
    hosts.key("victim", "worker", known=True)
    home = hosts.node("coordinator", bind=HERE)
    with raw_caller(hosts, made, home.address) as raw:
        raw.send_multipart([b"victim", encode(m.StatusRequest(1))])
        hosts.until(lambda heard: home.counters().get("impostor", 0) == 1)
        answer, _ = decode(raw.recv())
        assert isinstance(answer, m.Refusal) and answer.kind == "key" and "the key is hostb's" in answer.reason
        assert hosts.for_a_while() == []


def test_whoever_takes_a_name_for_its_connection_neither_silences_its_owner_nor_hears_what_is_meant_for_it(
    hosts: Hosts,
) -> None:
    made = hosts.key("hostb", "worker", known=True)
    hosts.key("victim", "worker", known=True)
    home, victim = hosts.node("coordinator", bind=HERE), hosts.node("victim")
    victim.connect("coordinator", home.address)
    victim.send("coordinator", m.StatusRequest(1), ())
    assert hosts.until(lambda heard: len(heard) > 0) == [("coordinator", "victim", m.StatusRequest(1))]
    with raw_caller(hosts, made, home.address, identity=b"victim") as raw:
        raw.send_multipart([b"hostb", encode(m.StatusRequest(2))])
        hosts.until(lambda heard: len(heard) > 0)  # it is admitted, by its own name
        raw.send_multipart([b"victim", encode(m.StatusRequest(3))])
        hosts.until(lambda heard: home.counters().get("impostor", 0) == 1)
        home.send("victim", m.Done(7), ())
        assert hosts.until(lambda heard: len(heard) > 0) == [("victim", "coordinator", m.Done(7))]
        victim.send("coordinator", m.StatusRequest(4), ())
        assert hosts.until(lambda heard: len(heard) > 0) == [("coordinator", "victim", m.StatusRequest(4))]
        answers = []
        while raw.poll(200):
            answers.append(decode(raw.recv())[0])
        assert [type(one) for one in answers] == [m.Refusal]


def test_a_name_that_is_too_long_is_no_message(hosts: Hosts) -> None:
    made = hosts.key("hostb", "worker", known=True)
    home = hosts.node("coordinator", bind=HERE)
    with raw_caller(hosts, made, home.address) as raw:
        raw.send_multipart([b"hostb." + b"x" * 1_000, encode(m.StatusRequest(1))])
        raw.send(b"hostb")
        hosts.until(lambda heard: home.counters().get("not a message", 0) == 2)


def test_a_worker_that_wants_what_its_role_is_not_for_is_answered_no_and_nobody_sees_it(hosts: Hosts) -> None:
    hosts.key("hostb", "worker", known=True)
    home, worker = hosts.node("coordinator", bind=HERE), hosts.node("hostb")
    worker.connect("coordinator", home.address)
    for message in (m.Drop(3, "weights"), m.Drain(3, "server-0"), m.Save(3)):
        worker.send("coordinator", message, ())
        (heard,) = hosts.until(lambda heard: len(heard) == 1)
        assert heard[0] == "hostb" and isinstance(heard[2], m.Refusal)
        assert (heard[2].request, heard[2].kind) == (3, "key")
    assert home.counters()["not theirs to say"] == 3


def test_a_server_learns_from_the_coordinator_who_may_call_it(hosts: Hosts) -> None:
    """A server trusts the coordinator, whose key is in the address.

    The server's own machine knows no key but its own.
    """
    hosts.key("rack", "server", known=True)
    hosts.key("hostb", "worker", known=True)
    hosts.key("stranger", "worker")
    home, server = hosts.node("coordinator", bind=HERE), hosts.node("rack", bind=HERE)
    server.connect("coordinator", home.address)
    server.send("coordinator", m.Hello("rack", "server", "t", server.address), ())
    worker, stranger = hosts.node("hostb"), hosts.node("stranger")
    # They call while the server joins, and it waits for the coordinator's answer.
    for caller in (worker, stranger):
        caller.connect("rack", server.address)
        caller.send("rack", m.TableStatusRequest(1, 1, 0), ())
    heard = hosts.until(
        lambda heard: ("rack", "hostb", m.TableStatusRequest(1, 1, 0)) in heard and no(heard, "stranger") is not None
    )
    assert ("rack", "stranger", m.TableStatusRequest(1, 1, 0)) not in heard
    keyring.revoke(hosts.folder("coordinator"), "hostb")
    heard = hosts.until(lambda heard: no(heard, "hostb") is not None)
    worker.send("rack", m.TableStatusRequest(2, 1, 0), ())
    server.send("hostb", m.Done(9), ())
    assert not [one for one in hosts.for_a_while() if isinstance(one[2], m.TableStatusRequest | m.Done)]


def test_only_the_coordinator_says_who_may_come_in(hosts: Hosts) -> None:
    hosts.key("rack", "server", known=True)
    hosts.key("bad", "server", known=True)
    hosts.key("friend", "worker")
    home, server, bad = (
        hosts.node("coordinator", bind=HERE),
        hosts.node("rack", bind=HERE),
        hosts.node("bad", bind=HERE),
    )
    for one in (server, bad):
        one.connect("coordinator", home.address)
        one.send("coordinator", m.StatusRequest(1), ())
    bad.connect("rack", server.address)
    hosts.until(lambda heard: len(heard) == 2)
    friend = keyring.own_keys(hosts.folder("friend"))[0]
    bad.send("rack", m.Allowed([("coordinator", "friend", friend.public, "", 0)]), ())
    heard = hosts.until(lambda heard: no(heard, "bad") is not None)
    caller = hosts.node("friend")
    caller.connect("rack", server.address)
    caller.send("rack", m.TableStatusRequest(1, 1, 0), ())
    heard = hosts.until(lambda heard: no(heard, "friend") is not None)
    assert not [one for one in heard if one[0] == "rack"]


def test_a_key_that_has_expired_is_refused_at_the_door_and_both_sides_say_so(
    hosts: Hosts, capfd: pytest.CaptureFixture[str]
) -> None:
    made = hosts.key("hostb", "worker")
    keyring.allow(hosts.folder("coordinator"), made, until=1)
    home, caller = hosts.node("coordinator", bind=HERE), hosts.node("hostb")
    _, said = knock(hosts, caller, home, "hostb")
    assert said is not None and said.kind == "key" and "has expired there" in said.reason
    assert home.counters()["expired key"] >= 1
    assert f"its key {made.public} is hostb's, and was good until 1970-" in capfd.readouterr().err


def test_a_key_that_expires_while_it_is_at_work_is_cut_off_by_everybody_and_told(hosts: Hosts) -> None:
    hosts.key("rack", "server", known=True)
    made = hosts.key("hostb", "worker", known=True)
    home, server, worker = hosts.node("coordinator", bind=HERE), hosts.node("rack", bind=HERE), hosts.node("hostb")
    server.connect("coordinator", home.address)
    server.send("coordinator", m.StatusRequest(1), ())
    worker.connect("coordinator", home.address)
    worker.connect("rack", server.address)
    worker.send("coordinator", m.StatusRequest(1), ())
    worker.send("rack", m.TableStatusRequest(1, 1, 0), ())
    hosts.until(lambda heard: len([one for one in heard if one[0] != "hostb"]) == 3)
    keyring.allow(hosts.folder("coordinator"), made, until=1)  # it has expired

    def told(heard: list[tuple[str, str, m.Message]]) -> bool:
        return {by for to, by, said in heard if to == "hostb" and isinstance(said, m.Refusal)} == {
            "coordinator",
            "rack",
        }

    heard = hosts.until(told)
    reasons = [said.reason for to, _, said in heard if to == "hostb" and isinstance(said, m.Refusal)]
    assert all("was good until 1970-" in reason for reason in reasons)
    assert ("coordinator", "hostb", m.Refusal(0, "key", "its key has expired")) in heard
    worker.send("rack", m.TableStatusRequest(2, 1, 0), ())
    assert not [one for one in hosts.for_a_while() if isinstance(one[2], m.TableStatusRequest)]


def test_a_key_that_is_bound_to_another_group_is_cut_off_and_hears_nothing_more(hosts: Hosts) -> None:
    made = hosts.key("hostb", "worker")
    keyring.allow(hosts.folder("coordinator"), made, "b")
    home, worker = hosts.node("coordinator", bind=HERE), hosts.node("b/hostb.x", "hostb")
    worker.connect("coordinator", home.address)
    worker.send("coordinator", m.StatusRequest(1), ())
    hosts.until(lambda heard: len(heard) == 1)
    keyring.allow(hosts.folder("coordinator"), made, "z")
    heard = hosts.until(lambda heard: len(heard) == 2)
    (said,) = [said for to, _, said in heard if to == "b/hostb.x"]
    assert isinstance(said, m.Refusal) and "confined to group 'z'" in said.reason
    assert ("coordinator", "b/hostb.x", m.Refusal(0, "key", "its key is for z/hostb.SOMETHING now")) in heard
    home.send("b/hostb.x", m.Done(7), ())
    assert hosts.for_a_while() == []


def test_a_server_holds_a_key_to_the_group_that_the_coordinator_says(hosts: Hosts) -> None:
    hosts.key("rack", "server", known=True)
    keyring.allow(hosts.folder("coordinator"), hosts.key("hostb", "worker"), "b")
    home, server = hosts.node("coordinator", bind=HERE), hosts.node("rack", bind=HERE)
    server.connect("coordinator", home.address)
    server.send("coordinator", m.StatusRequest(1), ())
    hosts.until(lambda heard: len(heard) == 1)
    call = m.Call(1, 1, 1, 0, "top", {}, 0, 8)
    for name, why in (
        ("hostb.x", "confined to group 'b'"),
        ("c/hostb.x", "called b/hostb.SOMETHING"),
        ("b/hostb.x", ""),
    ):
        caller = hosts.node(name, "hostb")
        caller.connect("rack", server.address)
        caller.send("rack", call, ())
        (heard,) = hosts.until(lambda heard: len(heard) == 1)
        if why:
            assert heard[0] == name and isinstance(heard[2], m.Refusal) and why in heard[2].reason
        else:
            assert heard == ("rack", name, call)


# ---------------------------------------------------------------- a whole cluster


@pytest.fixture
def cluster(hosts: Hosts) -> Iterator[ProcessCluster]:
    with shoal.local(servers=2, processes=True, transport="tcp", keys=hosts.folder("coordinator")) as made:
        assert isinstance(made, ProcessCluster)
        yield made


def test_a_client_of_another_machine_works_until_its_key_is_revoked(hosts: Hosts, cluster: ProcessCluster) -> None:
    hosts.key("laptop", "client", known=True)
    kv = shoal.connect(cluster.address, keys=hosts.folder("laptop"))
    assert kv.name.startswith("laptop.client-")
    kv.create("weights", shoal.Dense(rows=1_000))
    kv.push("weights", slice(0, 1_000), np.ones(1_000, np.float32)).result(PATIENCE)
    assert kv.pull("weights", slice(0, 1_000)).result(PATIENCE).sum() == 1_000
    assert cluster.status().silent == []
    with contextlib.closing(look_at(cluster.address, hosts.safety("laptop"))) as looking:
        assert "laptop" in " ".join(member.name for member in looking.status().view.members)
    with cluster.client() as ours:  # a client on the coordinator's machine
        keyring.revoke(hosts.folder("coordinator"), "laptop")
        with pytest.raises(Refused, match="revoked"):
            for _ in range(100_000):  # requests in flight may still be answered
                kv.push("weights", slice(0, 1_000), np.ones(1_000, np.float32)).result(PATIENCE)
        with pytest.raises(Refused, match="revoked"):
            kv.pull("weights", slice(0, 1_000)).result(PATIENCE)
        with pytest.raises(Refused):
            shoal.connect(cluster.address, keys=hosts.folder("laptop"))
        assert ours.pull("weights", slice(0, 1_000)).result(PATIENCE).min() >= 1.0
    kv.close()


def test_strangers_and_those_without_keys_are_told_at_once(hosts: Hosts, cluster: ProcessCluster) -> None:
    hosts.key("stranger", "client")
    with pytest.raises(Refused, match="not on the list"):
        shoal.connect(cluster.address, keys=hosts.folder("stranger"))
    with pytest.raises(Invalid, match="shoal key new"):
        shoal.connect(cluster.address)
    with pytest.raises(Refused, match="runs with keys"):
        shoal.connect(parsed(cluster.address).plain)
    with pytest.raises(Refused, match="another key than the address says"):
        stranger = keyring.own_keys(hosts.folder("stranger"))[0]
        shoal.connect(with_key(parsed(cluster.address).plain, stranger.public), keys=hosts.folder("stranger"))
    counts = cluster.look().counts
    assert counts["strange key"] >= 1 and counts["no key"] >= 2


def test_a_worker_may_push_and_pull_and_makes_no_table(hosts: Hosts, cluster: ProcessCluster) -> None:
    hosts.key("hostb", "worker", known=True)
    with cluster.client() as ours:
        ours.create("weights", shoal.Dense(rows=10))
    with shoal.connect(cluster.address, "worker", keys=hosts.folder("hostb")) as kv:
        kv.push("weights", slice(0, 10), np.ones(10, np.float32)).result(PATIENCE)
        with pytest.raises(Refused, match="needs one of a client or coordinator"):
            kv.create("mine", shoal.Dense(rows=10))
        with pytest.raises(Refused, match="needs one of a client or coordinator"):
            kv.drop("weights")
        assert kv.pull("weights", slice(0, 10)).result(PATIENCE).sum() == 10


def test_nothing_that_travels_can_be_read_and_no_secret_is_seen_anywhere(
    hosts: Hosts, cluster: ProcessCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """T1, T15: neither the wire, nor command lines, nor any output shows a secret."""
    hosts.key("laptop", "client", known=True)
    with Tap(parsed(cluster.address).plain) as tap:
        with shoal.connect(with_key(tap.address, hosts.home.public), keys=hosts.folder("laptop")) as kv:
            kv.create("a-canary-in-a-mine", shoal.Dense(rows=10))
        assert len(tap.seen) > 1_000
        assert b"canary" not in tap.seen and b"laptop" not in tap.seen
    secrets = [path.read_text().strip().split(":")[2] for path in hosts.place.glob("*/*.secret")]
    assert len(secrets) == 2
    shown = capfd.readouterr()
    words = [shown.out, shown.err]
    for process in [psutil.Process(pid) for pid in cluster.pids.values()]:
        words += [*process.cmdline(), *process.environ().values()]
    assert not [word for word, secret in itertools.product(words, secrets) if secret in word]


class Tap:
    """A wire between a caller and a node that keeps all bytes."""

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))
        self._door = sockets.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self.seen = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = sockets.create_connection(self._to)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: sockets.socket, other: sockets.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                self.seen += data
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(sockets.SHUT_RDWR)


# ---------------------------------------------------------------- the command


def shoal_key(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.slow
def test_one_command_on_each_side_is_enough(tmp_path: Path) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    assert "shoal key new NAME" in shoal_key("key", "new", "coordinator", "--keys", here).stdout
    made = shoal_key("key", "new", "hostb", "--role", "worker", "--keys", there)
    line = made.stdout.strip().splitlines()[-1].split()
    assert line[:3] == ["shoal", "key", "add"]
    added = shoal_key(*line[1:], "--keys", here)
    assert added.returncode == 0 and "hostb may come in as a worker" in added.stdout
    assert "worker:hostb:" in shoal_key("key", "list", "--keys", here).stdout
    assert "was revoked" in shoal_key("key", "revoke", "hostb", "--keys", here).stdout
    may, _, gone = shoal_key("key", "list", "--keys", here).stdout.partition("revoked, and never let in again:")
    assert "hostb:" in gone and "hostb:" not in may
    again = shoal_key(*line[1:], "--keys", here)
    assert again.returncode == 2 and "was revoked here" in again.stderr
    secret = (tmp_path / "there" / "hostb.secret").read_text().strip().split(":")[2]
    assert secret not in made.stdout + made.stderr


def test_a_key_is_bound_where_it_is_let_in_and_the_list_says_so(tmp_path: Path) -> None:
    here = tmp_path / "here"
    made = keyring.make(tmp_path / "there", "hostb", "worker")

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["key", *words, "--keys", str(here)])
        return done.output if done.exit_code == 0 else f"exit {done.exit_code}: {done.output}"

    assert "as a worker of group b alone until 2099-01-01T00:00:00Z" in run(
        "add", made.line, "--group", "b", "--until", "2098-12-31"
    )
    assert "of group b alone until 2099" in run("add", made.line)  # unchanged
    assert f"{made.line} group=b until=2099-01-01T00:00:00Z\n" in run("list")
    (fact,) = json.loads(run("list", "--json"))["allowed"]
    assert (fact["group"], fact["until"], fact["expired"]) == ("b", "2099-01-01T00:00:00Z", False)
    for words, why in (
        (("--until", "1999-01-01"), "is over: shoal key revoke hostb"),
        (("--until", "soon"), "is no expiry"),
        (("--group", "a/b"), "needs 1 to 32"),
        (("--group", ""), "name a group, or cluster for none"),
    ):
        assert run("add", made.line, *words).startswith("exit 2") and why in run("add", made.line, *words)
    assert run("add", keyring.make(tmp_path / "rack", "rack", "server").line, "--group", "b").startswith("exit 2")
    os.mkfifo(tmp_path / "pipe")
    assert run("add", str(tmp_path / "pipe")).startswith("exit 2")  # it does not wait for a writer
    assert json.loads(run("list", "--json"))["allowed"] == [fact]
    keyring.allow(here, made, until=1)
    assert "(expired: it is refused)" in run("list")
    assert "may come in as a worker (" in run("add", made.line, "--group", "cluster", "--until", "never")
    ann = keyring.make(tmp_path / "ann", "ann", "client")
    assert "next, there: shoal status ADDRESS," in run("add", ann.line)


def test_an_address_of_another_machine_is_refused_without_keys_and_both_next_moves_are_named() -> None:
    for address in ("tcp://0.0.0.0:7000", "tcp://10.0.0.1:7000"):
        asked = subprocess.run(
            [sys.executable, "-m", "shoal", "status", address],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, "SHOAL_KEYS": "/nonexistent"},
        )
        assert asked.returncode == 2
        assert "shoal key new" in asked.stderr and "--insecure" in asked.stderr
    with pytest.raises(Invalid, match="--insecure"):
        ZmqTransport("coordinator", "tcp://0.0.0.0:*")
    assert limits.HELLO_WITHIN == 5 * limits.SECOND


# ---------------------------------------------------------------- a run over several machines


class Command:
    """A shoal command as another machine would run it; its output is kept."""

    def __init__(self, file: Path, *words: str) -> None:
        self.file = file
        with open(file, "wb") as out:
            self.process = subprocess.Popen([sys.executable, "-m", "shoal", *words], stdout=out, stderr=out)

    def said(self) -> str:
        return self.file.read_text(errors="replace")

    def until(self, pattern: str) -> str:
        """Wait until it prints this pattern, and return the match; it must keep running."""
        for _ in range(int(4 * PATIENCE * 10)):
            if (found := re.search(pattern, self.said())) is not None:
                return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)  # nothing signals that the file of another process grows
        raise AssertionError(f"no {pattern!r} in:\n{self.said()}")

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.mark.slow
def test_a_run_over_machines_with_keys_cuts_off_who_is_revoked_and_both_sides_say_so(hosts: Hosts) -> None:
    """127.0.0.2 and 127.0.0.3 stand for the machines; each has its own folder of keys."""
    hosts.key("rack", "server", known=True)
    hosts.key("hostb", "worker", known=True)

    def keys(name: str) -> tuple[str, str]:
        return "--keys", str(hosts.folder(name))

    run = ("clicks", "--servers", "1", "--workers", "1", "--epochs", "1000", "--set", "data.rows=20000")
    listen = ("--listen", "tcp://127.0.0.2", "--out", str(hosts.place / "run"))
    with Command(hosts.place / "home.log", "launch", "coordinator", *run, *listen, *keys("coordinator")) as home:
        address = home.until(r"tcp://[a-z2-7]{52}@127\.0\.0\.2:\d+")
        at = ("--at", address)
        with (
            Command(
                hosts.place / "rack.log", "launch", "server", *at, "--listen", "tcp://127.0.0.3", *keys("rack")
            ) as rack,
            Command(hosts.place / "hostb.log", "launch", "worker", *at, *keys("hostb")) as worker,
        ):
            home.until(r"test loss")
            keyring.revoke(hosts.folder("coordinator"), "hostb")
            assert worker.end() == 1
            assert "coordinator refused: the key" in worker.said() and "was revoked" in worker.said()
            home.until(r"what 'hostb\..*' says is not taken: the key .* was revoked")
            keyring.revoke(hosts.folder("coordinator"), "rack")
            assert rack.end() == 1
            assert "was revoked" in rack.said()
        home.process.send_signal(signal.SIGINT)
        assert home.end() in (1, 130)

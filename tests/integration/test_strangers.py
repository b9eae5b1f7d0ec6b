"""Storms of callers, and callers of another version (F34, F38, T13).

Members keep working, whoever calls. A storm is evaluated at its end: the members have counted all
that they pushed, and nobody was declared dead.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import zmq

import shoal
from shoal import limits
from shoal.errors import Refused
from shoal.inspect.status import look_at
from shoal.launch.processes import ProcessCluster
from shoal.security import keyring
from shoal.security.address import parsed
from shoal.security.connections import room
from shoal.wire import coding
from shoal.wire import messages as m
from tests.support import PATIENCE

STORM = 500
FEW = 256  # descriptors


def connections(address: str, count: int, words: bytes = b"") -> list[socket.socket]:
    """Open up to this many connections, and do not wait for those that fail."""
    host, _, port = parsed(address).plain.removeprefix("tcp://").rpartition(":")
    made = list[socket.socket]()
    for _ in range(count):
        with contextlib.suppress(OSError):
            one = socket.create_connection((host, int(port)), timeout=1)
            made.append(one)
            if words:
                one.sendall(words)
    return made


def servers_of(cluster: ProcessCluster) -> list[str]:
    return [member.address for member in cluster._looking.view(PATIENCE).members if member.role == "server"]


def push_and_pull(kv: shoal.KV, times: int) -> float:
    for _ in range(times):
        kv.push("weights", slice(0, 100), np.ones(100, np.float32)).result(PATIENCE)
    return float(kv.pull("weights", slice(0, 1)).result(PATIENCE)[0])


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Restore the limit on descriptors, which processes inherit when they start."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.variants(slow=["half a greeting, keys", "another language, keys"])
@pytest.mark.parametrize(
    ("greeting", "with_keys"),
    [(b"", False), (b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f", True), (b"GET / HTTP/1.1\r\n\r\n", True)],
    ids=["silent", "half a greeting, keys", "another language, keys"],
)
def test_a_storm_of_callers_harms_nobody_who_is_in(tmp_path: Path, greeting: bytes, with_keys: bool) -> None:
    keys = None
    if with_keys:
        keyring.make(keys := tmp_path / "keys", "coordinator", "coordinator")
    with shoal.local(servers=1, processes=True, transport="tcp", keys=keys) as cluster, cluster.client() as kv:
        assert isinstance(cluster, ProcessCluster)
        kv.create("weights", shoal.Dense(rows=100))
        before = [(member.name, member.incarnation) for member in cluster._looking.view(PATIENCE).members]
        assert push_and_pull(kv, 5) == 5
        storm = connections(cluster.address, STORM // 2, greeting)
        storm += connections(servers_of(cluster)[0], STORM // 2, greeting)
        try:
            # The kernel may drop some, because its queue of waiting connections is bounded.
            assert len(storm) > STORM // 2
            assert push_and_pull(kv, 20) == 25
        finally:
            for one in storm:
                one.close()
        assert push_and_pull(kv, 5) == 30
        view = cluster._looking.view(PATIENCE)
        # Nobody was declared dead.
        assert [(member.name, member.incarnation) for member in view.members] == before
        assert cluster.look().counts.get("removed", 0) == 0
        with cluster.client() as other:  # and a new client can join
            assert push_and_pull(other, 1) == 31


_FEW_DESCRIPTORS = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, {FEW}))
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.integration.test_strangers import storm_with_few_descriptors
storm_with_few_descriptors()
"""


def storm_with_few_descriptors() -> None:
    """Run in a process of its own, whose children inherit its limit on descriptors."""
    import os

    with shoal.local(servers=1, processes=True, transport="tcp") as cluster, cluster.client() as kv:
        assert isinstance(cluster, ProcessCluster)
        kv.create("weights", shoal.Dense(rows=100))
        assert push_and_pull(kv, 5) == 5
        server = servers_of(cluster)[0]
        process = psutil.Process(cluster.pids["server-0"])
        storm = subprocess.Popen(  # a separate process: these are not our descriptors
            [sys.executable, "-c", _STORM, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert storm.stdout is not None and storm.stdin is not None
        taken = int(storm.stdout.readline())
        used = process.num_fds()
        print(f"{taken} of {STORM} callers were taken, {used} of {FEW} descriptors are in use", flush=True)
        assert used < FEW
        assert push_and_pull(kv, 20) == 25
        storm.stdin.close()
        storm.wait(PATIENCE)
        assert push_and_pull(kv, 5) == 30
        with cluster.client() as other:  # there is room again
            assert push_and_pull(other, 1) == 31
        assert cluster.look().counts.get("removed", 0) == 0
    os._exit(0)


_STORM = f"""
import socket, sys, contextlib
host, _, port = sys.argv[1].removeprefix("tcp://").rpartition(":")
made = []
for _ in range({STORM}):
    with contextlib.suppress(OSError):
        made.append(socket.create_connection((host, int(port)), timeout=0.02))
print(len(made), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_server_that_may_open_few_descriptors_takes_as_many_callers_as_it_has_room_for() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FEW_DESCRIPTORS], capture_output=True, text=True, timeout=4 * PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no more callers at" in ended.stderr, ended.stderr
    print(ended.stdout)


def test_room_is_kept_for_files_and_calls_of_ones_own(few_descriptors: None) -> None:
    used = psutil.Process().num_fds()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + limits.DESCRIPTORS_KEPT + 100, hard))
    assert 90 <= room() <= 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, hard))
    assert room() == limits.CONNECTIONS_LEAST


# ---------------------------------------------------------------- another version


class OtherCoordinator:
    """A coordinator of the next or the previous protocol version, which answers anything."""

    def __init__(self, version: int) -> None:
        self._over = threading.Event()
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address, self.version, self.heard = f"tcp://127.0.0.1:{port}", version, 0

    def answer(self) -> None:
        """Answer as a coordinator of that version would.

        It does not understand the message, and says so in its own words.
        """
        sender, header = self._socket.recv_multipart()[:2]
        assert header[1] == limits.PROTOCOL
        self.heard += 1
        body = msgspec.msgpack.encode(
            m.Refusal(0, "version", f"they speak {header[1]}, this side speaks {self.version}")
        )
        words = bytearray(coding.sealed(body))
        words[1] = self.version
        self._socket.send_multipart([sender, bytes(words)])

    def __enter__(self) -> OtherCoordinator:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._over.is_set():
            if self._socket.poll(20):
                self.answer()
        self._socket.close()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        self._context.term()


@pytest.mark.parametrize("version", [limits.PROTOCOL - 1, limits.PROTOCOL + 1])
def test_a_coordinator_of_another_version_is_left_with_both_versions_in_words(version: int) -> None:
    with OtherCoordinator(version) as other:
        with pytest.raises(Refused, match=f"they speak protocol {version}, this side speaks {limits.PROTOCOL}"):
            shoal.connect(other.address)
        with (
            pytest.raises(Refused, match="install the same shoal"),
            contextlib.closing(look_at(other.address)) as looking,
        ):
            looking.look()
        assert other.heard


@pytest.mark.parametrize("version", [limits.PROTOCOL - 1, limits.PROTOCOL + 1])
def test_a_server_that_is_told_of_another_version_ends_and_says_why(version: int) -> None:
    from shoal.launch.server_process import ServerProcess
    from shoal.wire.zmq import ZmqTransport

    with OtherCoordinator(version) as other:
        transport = ZmqTransport("server-0", "tcp://127.0.0.1:*")
        transport.connect("coordinator", other.address)
        with pytest.raises(Refused, match=f"they speak protocol {version}"):
            ServerProcess("server-0", "token", transport).run()


@pytest.mark.parametrize("version", [limits.PROTOCOL - 1, limits.PROTOCOL + 1])
def test_a_caller_of_another_version_is_told_and_named_and_changes_nothing(
    version: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with shoal.local(servers=1, processes=True, transport="tcp") as cluster:
        assert isinstance(cluster, ProcessCluster)
        before = cluster._looking.view(PATIENCE).number
        context = zmq.Context()
        with contextlib.closing(context.socket(zmq.DEALER)) as caller:
            caller.setsockopt(zmq.IDENTITY, b"an-old-worker")
            caller.connect(cluster.address)
            hello = bytearray(coding.encode(m.Hello("an-old-worker", "worker", "t")))
            hello[1] = version
            caller.send(bytes(hello))
            assert caller.poll(PATIENCE * 1_000)
            answer, _ = coding.decode(caller.recv())
        context.term()
        assert isinstance(answer, m.Refusal) and answer.kind == "version"
        assert f"they speak protocol {version}" in answer.reason
        assert cluster.look().counts["other version"] == 1
        assert cluster._looking.view(PATIENCE).number == before
    assert f"'an-old-worker' was refused: they speak protocol {version}" in capfd.readouterr().err

"""Messages are repeated, late, out of order, lost, damaged or endless (F21-F25).

They travel between real processes. In the counting model each client adds one to keys of its own,
and each slot has keys of its own; the checker of the simulator reads the histories of all clients.
The counts of the proxy show that the faults did fire.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil  # type: ignore[import-untyped]
import pytest

import shoal
from shoal import limits
from shoal.launch.processes import ProcessCluster
from shoal.wire import coding
from shoal.wire import messages as m
from tests.support import PATIENCE
from tests.support import byte_proxy as zmtp
from tests.support.counting import (
    TABLE,
    Crowd,
    create,
    plan_of,
)
from tests.support.faulty_proxy import FaultyProxy, LinkFaults, Where
from tests.support.sandbox import Den, soon

KINDS = [pytest.param("clients", marks=pytest.mark.soak), "each", "step"]
WORKERS, SLOTS = 3, 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with shoal.local(servers=2, processes=True, transport="tcp") as cluster:
        assert isinstance(cluster, ProcessCluster)
        yield cluster


@pytest.fixture
def kv(cluster: ProcessCluster) -> Iterator[shoal.KV]:
    """Yields a client without faults, and checks that no process was replaced."""
    pids = cluster.pids
    with cluster.client() as kv:
        yield kv
        for table in kv.tables():
            kv.drop(table)
    assert cluster.pids == pids


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[FaultyProxy]:
    with FaultyProxy(seed=sum(map(ord, request.node.name))) as proxy:
        yield proxy


def counted_under(
    weather: LinkFaults, kind: str, cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy, den: Den
) -> tuple[Crowd, dict[str, int]]:
    """Does the work with these faults, the second half by new processes of the same names.

    The new processes receive what is late.
    """
    plan = plan_of(kind, WORKERS, SLOTS if kind != "clients" else SLOTS // WORKERS)
    create(kv, plan)
    crowd = Crowd(plan, proxy.through(cluster.address), den)
    proxy.weather = weather
    for half in (range(SLOTS // 2), range(SLOTS // 2, SLOTS)):
        for column in range(WORKERS):
            crowd.start(column, [slot for slot in half if slot % WORKERS == column])
        crowd.finish()
    proxy.weather = LinkFaults()
    assert proxy.error is None
    assert crowd.violations(kv) == []
    return crowd, kv.stats(TABLE)


# ---------------------------------------------------------------- repeated, late, reordered, lost


@pytest.mark.variants(slow=["each"])
@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_come_twice_some_much_later_are_counted_once(
    kind: str, cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy, den: Den
) -> None:
    """F21."""
    _, stats = counted_under(LinkFaults(repeat=0.2, late=0.4, later=2.0), kind, cluster, kv, proxy, den)
    assert proxy.counts["repeated"] > 20
    assert proxy.counts["repeated late"] > 20
    assert stats["repeated"] + stats.get("held again", 0) > 0


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.soak) for kind in ("clients", "each")), "step"]
)
def test_messages_that_overtake_each_other_across_connections_are_counted_once(
    kind: str, cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy, den: Den
) -> None:
    """F22."""
    counted_under(LinkFaults(cut=0.02, later=0.8, most=12), kind, cluster, kv, proxy, den)
    assert proxy.counts["cut"] > 3


def test_lost_and_delayed_messages_are_sent_again_and_nobody_is_taken_for_dead(
    cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy, den: Den
) -> None:
    """F23, as far as it can be shown without network namespaces."""
    crowd, _ = counted_under(LinkFaults(drop=0.05, delay=0.02, most=12), "each", cluster, kv, proxy, den)
    assert proxy.counts["dropped"] > 5
    assert not any("Fenced" in line for line in crowd.ended)


def test_pushes_that_were_all_lost_at_once_come_again_and_nobody_who_lives_is_called_silent(
    cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy
) -> None:
    """F23, I14: two hundred pushes in flight are lost, as when a connection ends.

    Before this was fixed, all but some thirty ended as unanswered.
    """
    kv.create("w", shoal.Dense(rows=100))
    with shoal.connect(proxy.through(cluster.address), name="ann") as ann:
        ann.push("w", [0], [1.0]).result(PATIENCE)
        proxy.weather = LinkFaults(drop=1.0, most=200, only=lambda one: one.kind == "push")
        pushes = [ann.push("w", [0], [1.0]) for _ in range(200)]
        for push in pushes:
            push.result(PATIENCE)
        assert proxy.counts["dropped"] == 200
    assert list(kv.pull("w", [0]).result(PATIENCE)) == [201.0]


# ---------------------------------------------------------------- damaged


@pytest.mark.variants(slow=["framing", "prefix", "length", "array"])
@pytest.mark.parametrize("where", ["prefix", "header", "length", "array", "framing"])
def test_damaged_messages_are_dropped_and_told_and_what_they_said_is_counted_once(
    where: Where, cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy, den: Den
) -> None:
    """F24: the damage may be in any part of the message."""
    weather = LinkFaults(flip=0.05, where=(where,), most=10)
    # A wrong length swallows what follows until silence ends the wait. Here only one direction is
    # damaged; for the other see below.
    if where == "framing":
        weather = replace(weather, most=2, only=lambda one: one.sender.startswith("worker"))
    crowd, stats = counted_under(weather, "clients", cluster, kv, proxy, den)
    assert proxy.counts[f"flipped in {where}"] == weather.most
    told = [(sender, to) for (sender, to, kind) in proxy.seen if kind == "no" and sender.startswith("server")]
    if where == "framing":  # libzmq ends the connection, or what follows is not our protocol
        return
    assert told
    assert crowd.ended == []  # sent again, and no client noticed
    assert stats.get("refused", 0) == 0


def test_a_damaged_push_is_answered_to_its_sender(cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy) -> None:
    """F24 for a single message: it is dropped, refused, sent again, and counted once.

    Nothing of it is in the model before that.
    """
    kv.create("w", shoal.Dense(rows=100))
    with shoal.connect(proxy.through(cluster.address), name="ann") as ann:
        ann.pull("w", [0]).result(PATIENCE)
        hit: list[str] = []

        def once(passing: object) -> bool:
            first = getattr(passing, "kind", "") == "push" and not hit
            hit.extend(["hit"] * first)
            return first

        with proxy.hold("no", to="ann") as held:
            proxy.weather = LinkFaults(flip=1.0, where=("header",), only=once)
            push = ann.push("w", [0], [1.0])
            answer = held.wait(1)[0]
        assert isinstance(answer.message, m.Refusal)
        assert answer.message.kind == "wire"
        push.result(PATIENCE)
    assert list(kv.pull("w", [0]).result(PATIENCE)) == [1.0]


def test_a_caller_that_was_sent_a_length_that_cannot_be_connects_again(
    cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy
) -> None:
    """F24, F25 in a response: libzmq gives up such a connection for good.

    The client connects again, and sends its request again.
    """
    kv.create("w", shoal.Dense(rows=100))
    too_long = zmtp.head(limits.FRAME_BYTES * 2, False)
    with shoal.connect(proxy.through(cluster.address), name="ann") as ann:
        ann.pull("w", [0]).result(PATIENCE)
        held = proxy.hold("values", to="ann")
        pull = ann.pull("w", [0])
        held.wait(1)
        held.replace(too_long)
        assert list(pull.result(PATIENCE)) == [0.0]
        ann.push("w", [0], [1.0]).result(PATIENCE)
        assert ann._loop.transport.counters()["dialled again"] == 1
    assert list(kv.pull("w", [0]).result(PATIENCE)) == [1.0]


# ---------------------------------------------------------------- without an end


class Raw:
    """Opens a connection on which a test sends any bytes it likes."""

    def __init__(self, cluster: ProcessCluster, name: str = "") -> None:
        members = cluster.status().view.members
        address = next(member.address for member in members if member.name == "server-0")
        host, port = address.removeprefix("tcp://").split(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        if name:
            self.socket.sendall(zmtp.handshake(name))
            stream = zmtp.ZmtpStream()
            while not stream.ready:
                stream.feed(self.socket.recv(4_096))

    def ends_while_dripping(self, data: bytes, pause: float, seconds: float) -> bool:
        """Sends a byte after each pause, and returns whether the other side closes in time."""
        deadline, at = time.monotonic() + seconds, 0
        self.socket.settimeout(pause)
        while time.monotonic() < deadline:
            try:
                self.socket.sendall(data[at : at + 1] or b"\0")
                at += 1
                while self.socket.recv(4_096):  # pings
                    pass
                return True
            except TimeoutError:
                continue
            except OSError:
                return True
        return False


def server_of(cluster: ProcessCluster) -> psutil.Process:
    return psutil.Process(cluster.pids["server-0"])


def test_a_greeting_that_drips_is_ended_in_time_and_others_are_served(cluster: ProcessCluster, kv: shoal.KV) -> None:
    """F25: it never pauses for long, but must still be over within HELLO_WITHIN."""
    kv.create("w", shoal.Dense(rows=1))
    before = server_of(cluster).num_fds()
    slow = 2 * limits.HELLO_WITHIN / limits.SECOND
    drip = Raw(cluster)
    assert drip.ends_while_dripping(zmtp.handshake("drip"), slow / len(zmtp.handshake("drip")), slow)
    kv.push("w", [0], [1.0]).result(PATIENCE)
    drip.socket.close()
    assert soon(lambda: server_of(cluster).num_fds() <= before + 2)


def test_frames_that_are_announced_and_never_sent_take_no_memory(cluster: ProcessCluster, kv: shoal.KV) -> None:
    """F25: a hundred frames of the largest size are announced; ten bytes of each arrive."""
    kv.create("w", shoal.Dense(rows=1))
    server = server_of(cluster)
    before, fds = server.memory_info().rss, server.num_fds()
    with contextlib.ExitStack() as left:
        for number in range(100):
            raw = Raw(cluster, f"announces-{number}")
            left.enter_context(raw.socket)
            raw.socket.sendall(zmtp.head(limits.FRAME_BYTES, False) + bytes(10))
        for _ in range(20):
            kv.push("w", [0], [1.0]).result(PATIENCE)
        assert server.memory_info().rss - before < limits.FRAME_BYTES
    assert soon(lambda: server.num_fds() <= fds + 5)


@pytest.mark.slow
def test_who_takes_a_name_twice_brings_nobody_down(cluster: ProcessCluster, kv: shoal.KV) -> None:
    """F25, F37: the older of two connections of one name sends something, then ends.

    libzmq aborts if it sends such a connection a heartbeat.
    """
    kv.create("w", shoal.Dense(rows=1))
    pids = cluster.pids
    older, newer = Raw(cluster, "twin"), Raw(cluster, "twin")
    newer.socket.sendall(zmtp.written([b"ping"]))
    assert newer.socket.recv(4_096)  # the server answers, so the name is the newer one's
    older.socket.sendall(zmtp.written([b"junk"]))
    older.socket.close()
    newer.socket.settimeout(6.0)  # longer than the abort would take
    with contextlib.suppress(TimeoutError):
        assert newer.socket.recv(4_096), "the server is gone"
    newer.socket.close()
    kv.push("w", [0], [1.0]).result(PATIENCE)
    assert cluster.pids == pids


def test_a_frame_larger_than_any_may_be_ends_its_connection_at_once(cluster: ProcessCluster, kv: shoal.KV) -> None:
    """F25."""
    kv.create("w", shoal.Dense(rows=1))
    server = server_of(cluster)
    before = server.memory_info().rss
    for size in (limits.FRAME_BYTES + limits.HEADER_BYTES + 1, 1 << 40, (1 << 63) - 1):
        raw = Raw(cluster, f"large-{size}")
        raw.socket.sendall(zmtp.head(size, False) + bytes(1_000))
        with contextlib.suppress(ConnectionError):
            while raw.socket.recv(4_096):
                pass
        raw.socket.close()
    kv.push("w", [0], [1.0]).result(PATIENCE)
    assert server.memory_info().rss - before < limits.FRAME_BYTES


def test_more_frames_than_a_message_has_are_refused(cluster: ProcessCluster, kv: shoal.KV) -> None:
    """F25: a message has a million frames, and its sender gets an error.

    No other client waits so long that it gives up.
    """
    kv.create("w", shoal.Dense(rows=1))
    raw = Raw(cluster, "many")
    raw.socket.settimeout(PATIENCE)
    hello = zmtp.head(len(HELLO), True) + HELLO
    raw.socket.sendall(hello + (zmtp.head(1, True) + b"x") * 1_000_000 + zmtp.head(1, False) + b"x")
    kv.push("w", [0], [1.0]).result(PATIENCE)
    stream, answers = zmtp.ZmtpStream(), list[m.Message]()
    stream._greeting = 0  # the greeting was read before
    while not answers:
        pieces = stream.feed(raw.socket.recv(4_096))
        answers += [coding.decode(piece[0], piece[1:])[0] for piece in pieces if isinstance(piece, list)]
    assert isinstance(answers[0], m.Refusal)
    assert "more than 4 arrays" in answers[0].reason
    raw.socket.close()
    kv.push("w", [0], [1.0]).result(PATIENCE)


HELLO = coding.encode(m.TableStatusRequest(1, 1, 0))

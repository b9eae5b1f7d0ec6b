"""In fine weather nobody notices the proxy, and else it applies the faults that are set.

Fine weather means no faults.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

import shoal
from shoal.launch.processes import ProcessCluster
from shoal.wire import coding
from shoal.wire import messages as m
from tests.support import PATIENCE
from tests.support import byte_proxy as zmtp
from tests.support.faulty_proxy import FaultyProxy, LinkFaults
from tests.support.sandbox import soon


@pytest.fixture(scope="module", params=["tcp", "ipc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    with shoal.local(servers=2, processes=True, transport=request.param) as cluster:
        assert isinstance(cluster, ProcessCluster)
        with cluster.client() as kv:
            kv.create("w", shoal.Dense(rows=100))
        yield cluster


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    with FaultyProxy() as proxy:
        yield proxy


@pytest.fixture
def ann(cluster: ProcessCluster, proxy: FaultyProxy) -> Iterator[shoal.KV]:
    with shoal.connect(proxy.through(cluster.address), name="ann") as ann:
        yield ann


ALL = slice(0, 100)
ONES = np.ones(100, np.float32)


# ---------------------------------------------------------------- frames


def test_messages_are_found_however_the_bytes_are_cut() -> None:
    said = [[b"header"], [b"header", bytes(300), b""], [bytes(70_000)]]
    ping = bytes((zmtp.COMMAND, 5)) + b"\x04PING"
    data = zmtp.handshake("ann") + zmtp.written(said[0]) + ping + b"".join(map(zmtp.written, said[1:]))
    for size in (1, 7, 1_000, len(data)):
        stream, heard, passed = zmtp.ZmtpStream(), list[list[bytes]](), b""
        for at in range(0, len(data), size):
            for piece in stream.feed(data[at : at + size]):
                if isinstance(piece, bytes):
                    passed += piece
                else:
                    heard.append(piece)
        assert heard == said
        assert passed == zmtp.handshake("ann") + ping
        assert (stream.ready, stream.name) == (True, "ann")


# ---------------------------------------------------------------- fine weather


def test_everybody_is_met_through_it_and_nobody_notices(
    cluster: ProcessCluster, proxy: FaultyProxy, ann: shoal.KV
) -> None:
    before = ann.pull("w", ALL).result(PATIENCE)
    for _ in range(10):
        ann.push("w", ALL, ONES).result(PATIENCE)
    assert (ann.pull("w", ALL).result(PATIENCE) == before + 10).all()
    assert {("ann", "server-0", "push"), ("ann", "server-1", "push"), ("coordinator", "ann", "welcome")} <= set(
        proxy.seen
    )
    addresses = [member.address for member in ann._client.session.view.members if member.role == "server"]
    # These are the proxy's addresses, not those of the servers.
    assert all(address.startswith("tcp://127.0.0.1:") for address in addresses)


def test_megabytes_pass_whole(cluster: ProcessCluster, ann: shoal.KV) -> None:
    ann.create("large", shoal.Dense(rows=1 << 20))
    values = np.arange(1 << 20, dtype=np.float32)
    assert (ann.push_pull("large", slice(0, 1 << 20), values).result(PATIENCE) == values).all()
    ann.drop("large")


def test_without_rewriting_only_the_coordinator_is_met_through_it(cluster: ProcessCluster) -> None:
    with (
        FaultyProxy(rewrite=False) as proxy,
        shoal.connect(proxy.through(cluster.address), name="bob") as bob,
    ):
        bob.push("w", ALL, ONES).result(PATIENCE)
        assert not any("server" in sender for sender, _, _ in proxy.seen)


# ---------------------------------------------------------------- faults


def test_what_is_held_back_comes_when_it_is_let_go(proxy: FaultyProxy, ann: shoal.KV) -> None:
    before = ann.pull("w", [0]).result(PATIENCE)
    with proxy.hold("counted", sender="server-0", to="ann") as held:
        push = ann.push("w", ALL, ONES)
        (answer,) = {(one.sender, one.to, one.kind) for one in held.wait(1)}
        assert answer == ("server-0", "ann", "counted")
        assert not push.done
    push.result(PATIENCE)
    assert ann.pull("w", [0]).result(PATIENCE) == before + 1


def test_what_is_thrown_away_is_sent_again(proxy: FaultyProxy, ann: shoal.KV) -> None:
    before = ann.pull("w", ALL).result(PATIENCE)
    held = proxy.hold("push", sender="ann")
    push = ann.push("w", ALL, ONES)
    held.wait(2)
    held.discard()
    push.result(PATIENCE)
    assert (ann.pull("w", ALL).result(PATIENCE) == before + 1).all()


def test_a_connection_that_is_cut_is_made_again(proxy: FaultyProxy, ann: shoal.KV) -> None:
    before = ann.pull("w", ALL).result(PATIENCE)
    for name in ("server-0", "server-1", "coordinator"):
        proxy.cut("ann", name)
        ann.push("w", ALL, ONES).result(PATIENCE)
    assert proxy.counts["cut"] == 3
    assert (ann.pull("w", ALL).result(PATIENCE) == before + 3).all()


def test_a_late_repeat_comes_after_what_was_said_later(
    cluster: ProcessCluster, proxy: FaultyProxy, ann: shoal.KV
) -> None:
    """The repeat may arrive after another process has joined by the same name.

    That process has another connection and another incarnation.
    """

    def fenced() -> bool:
        return bool(proxy.seen["server-0", "ann", "fence"] and proxy.seen["server-1", "ann", "fence"])

    before, pushes = ann.pull("w", ALL).result(PATIENCE), 0
    # The other process may be slow to join; then the repeat is not late enough.
    for later in (1.0, 4.0, 16.0):
        proxy.weather = LinkFaults(repeat=1.0, late=1.0, later=later, only=lambda one: one.kind == "push")
        ann.push("w", ALL, ONES).result(PATIENCE)
        proxy.weather = LinkFaults()
        ann.close()
        ann = shoal.connect(proxy.through(cluster.address), name="ann")
        ann.push("w", ALL, ONES).result(PATIENCE)
        pushes += 2
        if soon(fenced, later + 2):
            break
    assert fenced() and proxy.counts["repeated late"] == pushes
    assert (ann.pull("w", ALL).result(PATIENCE) == before + pushes).all()
    ann.close()


@pytest.mark.parametrize("where", ["prefix", "header", "length", "framing"])
def test_a_flipped_bit_is_one_that_can_be_noticed(where: str, proxy: FaultyProxy) -> None:
    header = coding.encode(m.Values(7, 10, [1]))
    frames, draw = [header, bytes(80), bytes(40)], Random(where)
    for _ in range(200):
        flipped = proxy._flipped(frames, where, draw)  # type: ignore[arg-type]
        assert flipped != zmtp.written(frames)
        stream = zmtp.ZmtpStream()
        stream._greeting = 0
        pieces = stream.feed(flipped)
        if where in ("prefix", "header"):
            assert isinstance(pieces[0], list)
            with pytest.raises(shoal.errors.WireError):
                coding.decode(pieces[0][0], pieces[0][1:])
        elif where == "length":
            assert isinstance(pieces[0], list)
            assert [len(frame) for frame in pieces[0][1:]] != [80, 40]


def test_the_same_seed_draws_the_same_for_the_same_messages() -> None:
    drawn = []
    for seed in (5, 5, 6):
        with FaultyProxy(seed) as proxy:
            proxy.weather = LinkFaults(repeat=0.2, drop=0.1, flip=0.1)
            struck, done = list[dict[str, int]](), threading.Event()

            def pass_some(
                proxy: FaultyProxy = proxy, struck: list[dict[str, int]] = struck, done: threading.Event = done
            ) -> None:
                link = proxy.link("ann", "tcp://127.0.0.1:1")
                for number in range(100):
                    proxy.pass_on(link, number % 3 > 0, [coding.encode(m.Values(number, 1, [])), bytes(8), bytes(4)])
                    struck.append(dict(proxy.counts))
                done.set()

            proxy.call(pass_some)
            assert done.wait(PATIENCE)
            drawn.append(struck)
    assert drawn[0] == drawn[1] != drawn[2]


def test_it_leaves_nothing_behind(cluster: ProcessCluster) -> None:
    process = psutil.Process()
    with FaultyProxy() as first:
        pass
    before = process.num_fds()
    with FaultyProxy() as proxy, shoal.connect(proxy.through(cluster.address)) as kv:
        kv.push("w", ALL, ONES).result(PATIENCE)
    assert first.error is None and proxy.error is None
    assert soon(lambda: process.num_fds() <= before)
    assert "shoal-proxy" not in {thread.name for thread in threading.enumerate()}

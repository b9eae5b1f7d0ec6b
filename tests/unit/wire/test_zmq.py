"""The sockets of one node refuse large messages, reconnect, and keep every route.

A message that is too large is refused before it is sent, and a connection that libzmq gives up is
dialled again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from shoal import limits
from shoal.security.safety import Safety
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Received
from shoal.wire.zmq import ROUTE_BYTES, Routes, ZmqTransport, route_of
from tests.support import PATIENCE

PULL = m.Pull(7, 1, 1, 0, 1, -1, 0, 0, 0, m.EVERYWHERE, 1)


@pytest.fixture(params=["tcp", "ipc"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ZmqTransport]:
    where = "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/server"
    transport = ZmqTransport("server", where)
    yield transport
    transport.close()


@pytest.fixture
def caller(server: ZmqTransport) -> Iterator[ZmqTransport]:
    transport = ZmqTransport("ann")
    transport.connect("server", server.address)
    yield transport
    transport.close()


def heard(transport: ZmqTransport, count: int = 1) -> list[Received]:
    deadline, found = time.monotonic() + PATIENCE, list[Received]()
    while len(found) < count and time.monotonic() < deadline:
        found += transport.receive(0.05)
    assert len(found) >= count, f"{len(found)} of {count} messages"
    return found


def test_an_array_past_the_limit_is_not_sent_and_who_asks_is_told_the_limit(
    server: ZmqTransport, caller: ZmqTransport
) -> None:
    caller.send("server", PULL, [np.zeros(limits.FRAME_BYTES // 8 + 1, np.uint64)])
    (told,) = heard(caller)
    assert told.sender == "server"
    assert isinstance(told.message, m.Refusal)
    assert (told.message.request, told.message.kind) == (7, "wire")
    assert (
        f"an array of {limits.FRAME_BYTES + 8:,} bytes, at most {limits.FRAME_BYTES:,} are allowed"
        in told.message.reason
    )
    assert caller.counters()["too large"] == 1
    caller.send("server", PULL, [np.zeros(1, np.uint64)])
    # Over the same connection, and nothing came before it.
    assert [one.message for one in heard(server)] == [PULL]


def test_an_answer_past_the_limit_is_not_sent_and_who_asked_is_told_the_limit(
    server: ZmqTransport, caller: ZmqTransport
) -> None:
    caller.send("server", PULL, [np.zeros(1, np.uint64)])
    heard(server)
    server.send("ann", m.TableStatusReply(7, {"x" * limits.HEADER_BYTES: 1}, [], {}, {}, {}, {}, {}), ())
    (told,) = heard(caller)
    assert isinstance(told.message, m.Refusal)
    assert told.message.request == 7
    assert f"at most {limits.HEADER_BYTES:,} are allowed" in told.message.reason
    assert server.counters()["too large"] == 1


def test_a_connection_that_libzmq_gave_up_is_dialled_again(tmp_path: Path) -> None:
    """A response with a frame past the limit is dropped; the next request is answered."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as hostile:
        hostile.setsockopt(zmq.LINGER, 0)
        hostile.setsockopt(zmq.ROUTER_HANDOVER, 1)
        port = hostile.bind_to_random_port("tcp://127.0.0.1")
        caller = ZmqTransport("ann")
        caller.connect("server", f"tcp://127.0.0.1:{port}")
        try:
            caller.send("server", PULL, [np.zeros(1, np.uint64)])
            assert hostile.poll(PATIENCE * 1_000)
            route, *_ = hostile.recv_multipart()
            hostile.send_multipart([route, bytes(limits.FRAME_BYTES + limits.HEADER_BYTES + 1)])
            deadline, found = time.monotonic() + PATIENCE, list[Received]()
            while not found and time.monotonic() < deadline:
                caller.send("server", PULL, [np.zeros(1, np.uint64)])
                found = caller.receive(0.05)
                # Requests may have come over the connection that ended: their responses are lost.
                while hostile.poll(0):
                    route, *_ = hostile.recv_multipart()
                    hostile.send_multipart([route, coding.encode(m.Busy(7, 1))])
            assert found and found[0].message == m.Busy(7, 1)
            assert caller.counters()["dialled again"] >= 1
        finally:
            caller.close()


def test_a_connection_that_only_broke_is_left_to_libzmq(server: ZmqTransport, caller: ZmqTransport) -> None:
    """libzmq connects again by itself and keeps waiting messages: nothing is dialled."""
    caller.send("server", PULL, [np.zeros(1, np.uint64)])
    heard(server)
    address = server.address
    server.close()
    deadline = time.monotonic() + 2 * limits.REDIAL / limits.SECOND
    while time.monotonic() < deadline:
        caller.receive(0.05)
        caller.send("server", PULL, [np.zeros(1, np.uint64)])
    assert "dialled again" not in caller.counters()
    if address.startswith("tcp"):  # the path of a closed socket is removed
        again = ZmqTransport("server", address)
        try:
            assert heard(again)[0].message == PULL
        finally:
            again.close()


def test_two_sockets_of_one_name_are_both_heard_and_answered_when_they_speak(server: ZmqTransport) -> None:
    first, second = ZmqTransport("twin"), ZmqTransport("twin")
    try:
        for one in (first, second):
            one.connect("server", server.address)
        for number in range(1, 7):
            speaker, other = (first, second) if number % 2 else (second, first)
            speaker.send("server", m.Refresh(number), ())
            (came,) = heard(server)
            assert (came.sender, came.message) == ("twin", m.Refresh(number))
            server.send("twin", m.Done(number), ())
            assert [one.message for one in heard(speaker)] == [m.Done(number)]
            assert other.receive(0.0) == []
    finally:
        first.close()
        second.close()


def test_a_caller_that_gives_a_bare_name_is_heard(server: ZmqTransport) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.setsockopt(zmq.IDENTITY, b"plain")
        plain.connect(server.address)
        plain.send(coding.encode(m.Refresh(1)))
        assert heard(server)[0].sender == "plain"
        server.send("plain", m.Done(1), ())
        assert plain.poll(PATIENCE * 1_000)
        assert coding.decode_header(plain.recv()) == m.Done(1)


def test_routes_are_bounded_and_those_who_speak_are_kept() -> None:
    routes = Routes()
    ann = route_of(b"ann")
    assert routes.sender(ann) == "ann"
    for number in range(3 * limits.MEMBERS):
        routes.sender(route_of(f"name-{number}".encode()))
        if number % limits.MEMBERS == 0:
            assert routes.sender(ann) == "ann"
    assert routes.to("ann") == ann
    assert routes.to("name-0") == b"name-0"  # it was dropped
    assert len(routes._last) == 2 * limits.MEMBERS


def test_a_route_has_room_for_any_name_and_no_two_are_the_same() -> None:
    assert len(route_of(b"x" * 500)) == ROUTE_BYTES
    assert route_of(b"x") != route_of(b"x")


class Tapped(ZmqTransport):
    """Decodes as usual, and keeps the frames as they came."""

    def _take(self, socket: Any, frames: list[zmq.Frame], found: list[Received]) -> None:
        self.came = [frame.bytes for frame in frames]
        super()._take(socket, frames, found)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_bit_that_is_flipped_in_an_array_is_noticed_unless_checksums_are_off(checksums: bool, tmp_path: Path) -> None:
    where = f"ipc://{tmp_path}/server"
    server = ZmqTransport("server", where)
    caller = ZmqTransport("ann", safety=Safety.local().checking(checksums))
    tapped = Tapped("tap", f"ipc://{tmp_path}/tap")
    try:
        caller.connect("server", tapped.address)
        caller.send("server", PULL, [np.arange(100, dtype=np.uint64)])
        heard(tapped)
        _, header, keys = tapped.came
        with zmq.Context() as context, context.socket(zmq.DEALER) as wire:
            wire.setsockopt(zmq.LINGER, 0)
            wire.setsockopt(zmq.IDENTITY, b"ann")
            wire.connect(where)
            wire.send_multipart([header, bytes([keys[0] ^ 1]) + keys[1:]])
            if checksums:
                deadline = time.monotonic() + PATIENCE
                while not wire.poll(0) and time.monotonic() < deadline:
                    assert server.receive(0.05) == []
                answer = coding.decode_header(wire.recv())
                assert isinstance(answer, m.Refusal)
                assert (answer.kind, answer.reason) == (
                    "wire",
                    "arrays whose checksum is wrong: they were damaged on their way",
                )
                assert server.counters() == {"damaged": 1}
            wire.send_multipart([header, keys if checksums else bytes([keys[0] ^ 1]) + keys[1:]])
            assert int(heard(server)[0].arrays[0][0]) == (0 if checksums else 1)
    finally:
        for one in (server, caller, tapped):
            one.close()

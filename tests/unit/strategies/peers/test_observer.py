"""An observer watches a run of peers: it passes over silent peers, and never waits for ever.

Large data arrives in pieces.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from shoal.errors import Invalid, Unanswered
from shoal.strategies.peers.observer import PeerObserver
from shoal.wire.effects import Received
from shoal.wire.memory import Hub
from shoal.wire.messages import Arrays, Message, Refusal
from shoal.wire.messages.peers import (
    ModelPiece,
    Peer,
    PeerStatus,
    Watch,
    Weigh,
)
from shoal.wire.zmq import ZmqTransport

PEERS = [Peer(f"worker-{number}.aa", f"worker-{number}", number, "memory:") for number in range(3)]
Answer = Callable[[Message], tuple[Message, Arrays] | None]


@contextmanager
def answering(hub: Hub, life: str, answer: Answer) -> Iterator[None]:
    transport, over = hub.open(life), threading.Event()

    def run() -> None:
        while not over.is_set():
            for event in transport.receive(0.01):
                assert isinstance(event, Received)
                if (found := answer(event.message)) is not None:
                    transport.send(event.sender, *found)
                    transport.flush()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def account(message: Message) -> tuple[Message, Arrays] | None:
    if not isinstance(message, Watch):
        return None
    lead = PEERS[1].life
    return PeerStatus(message.request, lead, PEERS, {}, 1, 2, 3, 4, (0.0, 0), 0.0, [], (0, 0), [], [], {}), ()


def watching(hub: Hub) -> PeerObserver:
    observer = PeerObserver(hub.open("home"))
    observer.meet(PEERS)
    return observer


def test_one_that_is_silent_is_passed_over_and_the_one_that_leads_is_asked_first_from_then_on() -> None:
    hub = Hub()
    asked: list[str] = []

    def heard(message: Message) -> tuple[Message, Arrays] | None:
        asked.append(type(message).__name__)
        return account(message)

    observer = watching(hub)
    with answering(hub, PEERS[0].life, lambda message: None), answering(hub, PEERS[1].life, heard):
        assert observer.status(0, 10.0).lead == observer.lead == PEERS[1].life
        assert observer.status(0, 10.0).done == 1
    assert asked == ["Watch", "Watch"]
    observer.close()


def test_those_that_were_silent_or_are_held_for_gone_are_asked_last_and_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub()
    transport = hub.open("home")
    observer = PeerObserver(transport)
    observer.meet(PEERS)
    observer.doubt(PEERS[0].life)
    order = [PEERS[1].life, PEERS[2].life, PEERS[0].life]
    assert [peer.life for peer in observer.known] == order
    asked: list[str] = []
    monkeypatch.setattr(transport, "send", lambda life, *_: asked.append(life))
    with pytest.raises(Unanswered):
        observer.status(0, 2.0)
    monkeypatch.undo()
    assert asked[:2] == order[:2]
    for silent in asked[:-1]:  # a busy machine asks fewer than 8 in this time
        order.append(order.pop(order.index(silent)))
    assert [peer.life for peer in observer.known] == order
    with answering(hub, PEERS[0].life, account):
        assert observer.status(0, 10.0).done == 1
    observer.close()


def test_one_that_lives_elsewhere_is_not_met() -> None:
    with contextlib.closing(PeerObserver(ZmqTransport("home"))) as observer:
        observer.meet([Peer("x", "x", 9, "http://10.0.0.1:80"), Peer("y", "y", 9, "tcp://127.0.0.1:1")])
        assert [peer.life for peer in observer.known] == ["y"]


def test_nobody_is_waited_for_without_end() -> None:
    observer = watching(Hub())
    with pytest.raises(Unanswered, match=r"worker-0\.aa and 2 others"):
        observer.status(0, 0.05)
    for peer in PEERS:
        observer.forget(peer.life)
    with pytest.raises(Unanswered, match="anybody"):
        observer.status(0, 10.0)
    with pytest.raises(Unanswered):
        observer.evaluated(PEERS[0].life, 1)
    observer.close()


def test_a_model_comes_in_pieces_of_one_request() -> None:
    whole = np.arange(10, dtype=np.float32)
    requests: set[int] = set()

    def give(message: Message) -> tuple[Message, Arrays] | None:
        assert isinstance(message, Weigh)
        requests.add(message.request)
        if message.number == 7:
            return ModelPiece(message.request, 0, 1), ()  # it does not have these weights
        part = whole[4 * message.piece : 4 * message.piece + 4]
        return ModelPiece(message.request, message.piece, 3, {}, b"" if message.piece else b"state"), (part,)

    hub = Hub()
    observer = watching(hub)
    with answering(hub, PEERS[2].life, give):
        state, found = observer.snapshot(PEERS[2].life)
        assert state == b"state" and found is not None and np.array_equal(found, whole)
        assert len(requests) == 1
        assert observer.evaluated(PEERS[2].life, 7) is None
    observer.close()


def test_weights_of_one_that_has_ended_are_not_waited_for() -> None:
    observer, asked = watching(Hub()), list[bool]()

    def ended() -> bool:
        asked.append(True)
        return len(asked) > 1

    with pytest.raises(Unanswered):
        observer.evaluated(PEERS[2].life, 7, ended)
    assert len(asked) == 2
    observer.close()


def test_another_version_of_shoal_is_named() -> None:
    hub = Hub()
    observer = watching(hub)
    with (
        answering(hub, PEERS[0].life, lambda message: (Refusal(0, "version", "they speak protocol 1"), ())),
        pytest.raises(Invalid, match="another version of shoal: they speak protocol 1"),
    ):
        observer.status(0, 10.0)
    observer.close()

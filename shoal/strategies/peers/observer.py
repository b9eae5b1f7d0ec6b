"""Looks at a run of peers from outside: it asks, and is no peer itself. So whoever was called may look, and so may anybody else.

Any peer says how it stands, who is here and who leads. One that does not answer is passed over for the next, and asked last from then on;
so is one that the others hold for gone: it may wake, and they may be the ones that give way. What is large comes in pieces, each asked
for again until it is there. Every question has a deadline.

    watching = Watching(transport)
    watching.meet(peers)                      whom it may ask
    account = watching.account(judged)        how it stands; Unanswered if nobody says
    watching.whole(life)                      that one's model, and what it knows
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from shoal.errors import Invalid, Unanswered
from shoal.models.linear import Floats
from shoal.wire import Transport
from shoal.wire import messages as m
from shoal.wire.messages.peers import (
    Greet,
    ModelPiece,
    Peer,
    PeerGreeting,
    PeerStatus,
    StopPeers,
    Watch,
    Weigh,
)

_AGAIN = 0.25  # seconds until a question is asked again, as a rule of another one
_PIECE_WITHIN = 5.0  # seconds for one piece of a model

Answer = TypeVar("Answer", bound=m.Message)


class PeerObserver:
    """One pair of eyes. Any thread may use it, one at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}  # by life, in the order in which they are asked
        self._request = 0
        self._closed = False
        self.lead = ""  # life of the one that was said to lead last

    def meet(self, peers: Iterable[Peer]) -> None:
        """These may be asked from now on."""
        with self._lock:
            for peer in peers:
                if peer.life not in self._peers:
                    with contextlib.suppress(Invalid):  # it lives nowhere where we could ask it
                        self._transport.connect(peer.life, peer.address)
                        self._peers[peer.life] = peer

    def doubt(self, life: str) -> None:
        """It is said to be gone, and may be there: it is asked when nobody else answers."""
        with self._lock:
            self._put_last(life)

    def _put_last(self, life: str) -> None:
        if (peer := self._peers.pop(life, None)) is not None:
            self._peers[life] = peer

    def forget(self, life: str) -> None:
        """It is no more."""
        with self._lock:
            if self._peers.pop(life, None) is not None:
                self._transport.disconnect(life)

    @property
    def known(self) -> list[Peer]:
        return list(self._peers.values())

    def greet(self, life: str, seconds: float, comes: str = "") -> PeerGreeting:
        """Who is here, and what it is about, by the word of this one; ``comes``: for somebody who wants to take part."""
        return self._ask("greet it", [life], lambda number: Greet(number, comes), PeerGreeting, seconds)[1]

    def account(self, judged: int, seconds: float) -> PeerStatus:
        """How it stands, by the word of the one that leads if it speaks; raises Unanswered."""
        first = [life for life in self._peers if life == self.lead]
        others = [life for life in self._peers if life != self.lead]
        _, account = self._ask(
            "say how the run stands", first + others, lambda number: Watch(number, judged), PeerStatus, seconds
        )
        self.lead = account.lead
        return account

    def judged(self, life: str, number: int, ended: Callable[[], bool] = lambda: False) -> Floats | None:
        """The weights of an evaluation, from the one that made it, until it has ``ended``; None if it has them no more. Flat."""
        return self._pieces(life, lambda request, piece: Weigh(request, number, piece), ended)[1]

    def whole(self, life: str) -> tuple[bytes, Floats | None]:
        """What one knows, and its model with what the update rule keeps; all of the same moment."""
        return self._pieces(life, lambda request, piece: Weigh(request, 0, piece, whole=True))

    def stop(self, life: str, why: str, *, leave: bool = False, ended: str = "") -> None:
        """Tell one to end the run, or to leave; or that another's process has ended. It may be lost: ask how it stands."""
        with self._lock:
            if not self._closed and life in self._peers:
                self._request += 1
                self._transport.send(life, StopPeers(self._request, why, leave, ended), ())
                self._transport.flush()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._transport.close()

    # ------------------------------------------------------------ inside

    def _pieces(
        self, life: str, make: Callable[[int, int], Weigh], ended: Callable[[], bool] = lambda: False
    ) -> tuple[bytes, Floats | None]:
        """All of them; the request's number stands for one and the same model."""
        if life not in self._peers:
            raise Unanswered("give its model", life, 0.0)
        with self._lock:
            self._request += 1
            request = self._request
        found, state, piece, pieces = [], b"", 0, 1
        while piece < pieces:
            message = make(request, piece)
            _, part, arrays = self._exchange("give its model", [life], message, ModelPiece, _PIECE_WITHIN, piece, ended)
            pieces = part.pieces
            state = state or part.state
            found += [np.array(array, np.float32) for array in arrays]
            piece += 1
        return state, np.concatenate(found) if found else None

    def _ask(
        self, what: str, to: list[str], make: Callable[[int], m.Message], kind: type[Answer], seconds: float
    ) -> tuple[str, Answer]:
        with self._lock:
            self._request += 1
            question = make(self._request)
        life, answer, _ = self._exchange(what, to, question, kind, seconds)
        return life, answer

    def _exchange(
        self,
        what: str,
        to: list[str],
        question: m.Message,
        kind: type[Answer],
        seconds: float,
        piece: int | None = None,
        ended: Callable[[], bool] = lambda: False,
    ) -> tuple[str, Answer, m.Arrays]:
        """Ask one after the other until somebody answers."""
        with self._lock:
            if self._closed or not to:
                raise Unanswered(what, " or ".join(to) or "anybody", 0.0)
            now = time.monotonic()
            deadline, again, asked = now + seconds, 0.0, 0
            while now < deadline and not ended():
                if now >= again:
                    self._transport.send(to[asked % len(to)], question, ())
                    self._transport.flush()
                    if asked:
                        self._put_last(to[(asked - 1) % len(to)])
                    again, asked = now + _AGAIN, asked + 1
                for event in self._transport.receive(max(0.0, min(again, deadline) - now)):
                    answer = event.message
                    if isinstance(answer, m.Refusal) and answer.kind == "version":
                        raise Invalid(f"{event.sender} speaks another version of shoal: {answer.reason}")
                    same = getattr(answer, "request", None) == getattr(question, "request", 0)
                    if same and isinstance(answer, kind) and piece in (None, getattr(answer, "piece", None)):
                        return event.sender, answer, event.arrays
                now = time.monotonic()
        raise Unanswered(what, to[0] if len(to) == 1 else f"{to[0]} and {len(to) - 1} others", seconds)

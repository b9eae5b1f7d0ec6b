"""Watches a run of peers from outside, without taking part.

``PeerObserver`` asks: any peer answers for the run. A peer that does not answer is passed over for
the next, and is asked last from then on; so is one that the others hold for gone, since it may wake
up. Models come in pieces, each asked for again until it arrives. Every question has a deadline.

``PeerEvents`` turns answers into events of the run, each once, however often it is answered.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
import numpy as np

from shoal.errors import Invalid, Unanswered
from shoal.events import Elected, Evaluated, RunEvent
from shoal.models.linear import Floats
from shoal.security.safety import Safety
from shoal.strategies.peers.mesh import is_over
from shoal.training.tracker import Tracker
from shoal.wire import Transport
from shoal.wire import messages as m
from shoal.wire.messages import peers as p

LEFT = "it left"
SPENT = ("compute", "communicate", "idle")  # what ``PeerStatus.spent`` counts, in its order
_AGAIN = 0.25  # seconds until a question is repeated, usually to another peer
_PIECE_WITHIN = 5.0  # seconds for one piece of a model

Answer = TypeVar("Answer", bound=m.Message)


class PeerObserver:
    """Asks peers. Any thread may use it, one at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.RLock()
        self._peers: dict[str, p.Peer] = {}  # by life, in the order in which they are asked
        self._numbers = itertools.count(1)  # of requests
        self._closed = False
        self.lead = ""  # the life that leads, by the last answer

    def meet(self, peers: Iterable[p.Peer]) -> None:
        with self._lock:
            for peer in peers:
                if peer.life not in self._peers:
                    with contextlib.suppress(Invalid):  # an address that we cannot reach
                        self._transport.connect(peer.life, peer.address)
                        self._peers[peer.life] = peer

    def doubt(self, life: str) -> None:
        """Mark a peer that others removed: ask it only if no other answers."""
        with self._lock:
            if (peer := self._peers.pop(life, None)) is not None:
                self._peers[life] = peer

    def forget(self, life: str) -> None:
        with self._lock:
            if self._peers.pop(life, None) is not None:
                self._transport.disconnect(life)

    @property
    def known(self) -> list[p.Peer]:
        return list(self._peers.values())

    def greet(self, life: str, seconds: float, newcomer: str = "") -> p.PeerGreeting:
        """Who is here, and what the run is about; ``newcomer``: the token of one that joins."""
        return self._ask("greet it", [life], p.Greet(next(self._numbers), newcomer), p.PeerGreeting, seconds)[0]

    def status(self, evaluations: int, seconds: float) -> p.PeerStatus:
        """The state of the run, from the leader if it answers; raises Unanswered."""
        lives = sorted(self._peers, key=lambda life: life != self.lead)
        question = p.Watch(next(self._numbers), evaluations)
        status, _ = self._ask("say how the run stands", lives, question, p.PeerStatus, seconds)
        self.lead = status.lead
        return status

    def evaluated(self, life: str, number: int, ended: Callable[[], bool] = lambda: False) -> Floats | None:
        return self._model(life, p.Weigh(next(self._numbers), number), ended)[1]

    def snapshot(self, life: str) -> tuple[bytes, Floats | None]:
        """A peer's log, and its model with the state of the update rule, of the same moment."""
        return self._model(life, p.Weigh(next(self._numbers), 0, whole=True))

    def stop(self, life: str, why: str, *, leave: bool = False, ended: str = "") -> None:
        """Tell a peer to end the run, to leave, or that a life has ended. It may be lost."""
        with self._lock:
            if not self._closed and life in self._peers:
                self._transport.send(life, p.StopPeers(next(self._numbers), why, leave, ended), ())
                self._transport.flush()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._transport.close()

    def _model(
        self, life: str, question: p.Weigh, ended: Callable[[], bool] = lambda: False
    ) -> tuple[bytes, Floats | None]:
        """All pieces of one model: they have the same request number."""
        if life not in self._peers:
            raise Unanswered("give its model", life, 0.0)
        found, state, pieces = list[Floats](), b"", 1
        while question.piece < pieces:
            part, arrays = self._ask("give its model", [life], question, p.ModelPiece, _PIECE_WITHIN, ended)
            pieces, state = part.pieces, state or part.state
            found += [np.array(array, np.float32) for array in arrays]
            question = msgspec.structs.replace(question, piece=question.piece + 1)
        return state, np.concatenate(found) if found else None

    def _ask(
        self,
        what: str,
        to: list[str],
        question: m.Message,
        kind: type[Answer],
        seconds: float,
        ended: Callable[[], bool] = lambda: False,
    ) -> tuple[Answer, m.Arrays]:
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
                        self.doubt(to[(asked - 1) % len(to)])
                    again, asked = now + _AGAIN, asked + 1
                for event in self._transport.receive(max(0.0, min(again, deadline) - now)):
                    answer = event.message
                    if isinstance(answer, m.Refusal) and answer.kind == "version":
                        raise Invalid(f"{event.sender} speaks another version of shoal: {answer.reason}")
                    # Answers repeat the request number, and the piece of a model.
                    same = all(getattr(answer, one, 0) == getattr(question, one, 0) for one in ("request", "piece"))
                    if isinstance(answer, kind) and same:
                        return answer, event.arrays
                now = time.monotonic()
        raise Unanswered(what, to[0] if len(to) == 1 else f"{to[0]} and {len(to) - 1} others", seconds)


class PeerEvents:
    """The events of one run. One peer may know less than another: progress only grows."""

    def __init__(self, tracker: Tracker, listener: Callable[[RunEvent], None]) -> None:
        self._tracker, self._listener = tracker, listener
        self.names: dict[str, str] = {}  # of all that were ever here, by life
        self.why: dict[str, str] = {}  # by life: why its process ended
        self.gone: dict[str, str] = {}  # by life, and why: those for which Gone was sent
        self._said_by: dict[str, str] = {}  # by life: the last peer that answered that it is gone
        self.lead = ""  # its life
        self.evaluations = 0  # how many are known: ask for those that follow
        self._furthest: p.PeerStatus | None = None

    @property
    def living(self) -> list[str]:
        return [name for life, name in self.names.items() if life not in self.gone]

    def update(self, status: p.PeerStatus) -> list[p.EvaluationDone]:
        """Send events for what is new in this answer; returns its new evaluations."""
        tracker, furthest = self._tracker, self._furthest
        tracker.seconds = max(tracker.seconds, status.seconds)
        for peer in status.peers:
            back = peer.life not in status.gone and peer.life in self.gone and not is_over(self.gone[peer.life])
            # Its half did not give way if it holds the peer that said so for gone. A peer that
            # slept lists all as before: it will hear who is gone.
            if back := back and self._said_by.get(peer.life) in status.gone:
                del self.gone[peer.life]
            if back or peer.life not in self.names:
                self.names[peer.life] = peer.name
                tracker.joined(peer.name)
        if not status.ended:  # then they all go
            for life, why in status.gone.items():
                self.mark_gone(life, why)
            for answerer in status.peers[:1]:  # it lists itself first
                self._said_by.update(dict.fromkeys(status.gone, answerer.life))
        if status.lead != self.lead and status.lead in self.names and status.lead not in self.gone:
            before, self.lead = self.lead, status.lead
            why = f"{self.names[before]} is gone: {self.gone[before] or LEFT}" if before in self.gone else ""
            self._listener(Elected(seconds=tracker.seconds, name=self.names[status.lead], why=why))
        if furthest is None or (status.done, status.ended) >= (furthest.done, furthest.ended):
            self._count(status)
        fresh = sorted((one for one in status.judged if one.number >= self.evaluations), key=lambda one: one.number)
        for one in fresh:
            self._evaluated(one)
        return fresh

    def mark_gone(self, life: str, why: str) -> None:
        """Once. How its process ended says more than what the others say about its silence."""
        if life in self.gone:
            return
        self.gone[life] = why = self.why.get(life) or why
        if life in self.names:  # otherwise its join was never reported
            self._tracker.gone(self.names[life], why or LEFT, lost=why not in ("", LEFT))

    def _count(self, status: p.PeerStatus) -> None:
        tracker, before, self._furthest = self._tracker, self._furthest, status
        spent = zip(SPENT, before.spent if before else [0] * len(SPENT), status.spent, strict=False)
        tracker.workers, tracker.staleness = len(self.living), list(status.staleness)
        tracker.sent, tracker.received = status.moved
        tracker.counts.update({name: number - tracker.counts[name] for name, number in status.counts.items()})
        loss = status.loss[0] - (before.loss[0] if before else 0.0)
        seconds = {kind: max(0, now - then) / 1e6 for kind, then, now in spent}
        tracker.add(status.done - tracker.done, status.rows - tracker.examples, loss, 0.0, seconds, timed=False)

    def _evaluated(self, one: p.EvaluationDone) -> None:
        self.evaluations = one.number + 1
        self._tracker.seconds = max(self._tracker.seconds, one.now)
        self._listener(
            Evaluated(
                seconds=one.now,
                number=one.number,
                passes=one.done / self._tracker.slots.per_pass,
                steps=one.done,
                examples=one.rows,
                train_loss=one.train,
                test_loss=math.inf if one.loss is None else one.loss,
                metrics=one.metrics,
                workers=one.workers,
                best=one.best,
                read=one.seconds,
                by=self.names.get(one.by, one.by),
            )
        )


def answers(address: str, safety: Safety, seconds: float) -> bool:
    from shoal.wire.zmq import ZmqTransport

    transport = ZmqTransport(safety.named(f"look-{secrets.token_hex(4)}"), safety=safety)
    with contextlib.closing(PeerObserver(transport)) as observer, contextlib.suppress(Unanswered):
        observer.meet([p.Peer("door", "door", 0, address)])
        observer.greet("door", seconds)
        return True
    return False

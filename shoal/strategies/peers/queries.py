"""What a peer answers to whoever looks on: how the run stands, the weights that were judged, and a copy of everything.

Kept are the weights of the last evaluation and of the best one. A copy is cut for each request that asks for one anew, and stays until
the next: whoever fetches it piece by piece gets pieces of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal import limits
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.replica import Floats
from shoal.strategies.peers.run_log import PARTLY, TOLD, RunLog
from shoal.wire.effects import Effect, Send
from shoal.wire.messages import peers as p

_FLOATS = limits.PIECE_BYTES // 4
_WHO = 8  # that are served at the same time


class PeerQueries:
    """One peer's."""

    def __init__(self) -> None:
        self._weights: dict[int, Floats] = {}  # by evaluation
        self._last, self._best = -1, -1
        self._wanted: dict[str, p.Weigh] = {}  # by who asks: a copy
        self._copies: dict[str, tuple[int, bytes, Floats, p.Heard]] = {}  # the last of each: of which request

    # ------------------------------------------------------------ what is kept

    def keep(self, number: int, weights: Floats) -> None:
        """These are judged now."""
        self._weights[number] = np.ascontiguousarray(weights, np.float32).reshape(-1)

    def judged(self, number: int, best: bool) -> None:
        self._last, self._best = number, number if best else self._best
        self._weights = {one: kept for one, kept in self._weights.items() if one in (self._last, self._best)}

    # ------------------------------------------------------------ what is asked for

    @property
    def wants_copy(self) -> bool:
        return bool(self._wanted)

    def weigh(self, sender: str, asked: p.Weigh) -> list[Effect]:
        if not asked.whole:
            weights = self._weights.get(asked.number)
            return [
                _piece(sender, asked, weights)
                if weights is not None
                else Send(sender, p.ModelPiece(asked.request, 0, 0))
            ]
        found = self._copies.get(sender)
        if found is not None and found[0] == asked.request:
            _, state, slab, version = found
            return [_piece(sender, asked, slab, state, version)]
        if asked.piece == 0 and (sender in self._wanted or len(self._wanted) < _WHO):
            self._wanted[sender] = asked
        return []

    def copied(self, state: bytes, slab: Floats, version: p.Heard) -> list[Effect]:
        """A copy was cut: for all that wait for one."""
        wanted, self._wanted = self._wanted, {}
        for sender, asked in wanted.items():
            self._copies.pop(sender, None)
            self._copies[sender] = (asked.request, state, slab, version)
        for old in list(self._copies)[:-_WHO]:
            del self._copies[old]
        return [_piece(sender, asked, slab, state, version) for sender, asked in wanted.items()]


def _piece(to: str, asked: p.Weigh, found: Floats, state: bytes = b"", version: p.Heard | None = None) -> Send:
    pieces = max(1, -(-found.size // _FLOATS))
    part = found[asked.piece * _FLOATS : (asked.piece + 1) * _FLOATS]
    first = asked.piece == 0
    piece = p.ModelPiece(asked.request, asked.piece, pieces, (version or {}) if first else {}, state if first else b"")
    return Send(to, piece, (part,))


def account(
    book: RunLog,
    mesh: Mesh,
    watch: p.Watch,
    limit: int,
    per_pass: int,
    seconds: float,
    moved: tuple[int, int],
    is_closed: Callable[[str], bool],
) -> p.PeerStatus:
    """How it stands, as far as one peer has heard."""
    bytes_moved = {**book.moved, mesh.me.life: moved}
    counts = {name: number for name, number in book.counts.items() if number}
    if partly := book.partly(is_closed):
        counts[PARTLY] = partly
    over = book.ended.why if book.ended is not None else book.halt.why if book.halt is not None else ""
    return p.PeerStatus(
        watch.request,
        mesh.leads,
        [mesh.me, *(one.peer for one in mesh.members.values())],
        dict(mesh.gone),
        book.done,
        limit,
        per_pass,
        book.rows,
        book.loss,
        book.ended.seconds if book.ended is not None else seconds,
        list(book.spent),
        (sum(sent for sent, _ in bytes_moved.values()), sum(received for _, received in bytes_moved.values())),
        _after(book.judged, watch.judged),
        book.histogram(),
        counts,
        over,
        book.ended.failed if book.ended is not None else False,
        book.ended is not None,
    )


def _after(judged: Sequence[p.EvaluationDone], known: int) -> list[p.EvaluationDone]:
    """Those from this number on, as many as one message holds."""
    return [one for one in judged if one.number >= known][:TOLD]

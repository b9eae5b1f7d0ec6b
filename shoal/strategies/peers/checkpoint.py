"""A run of peers on disk: one peer's model and book, in the file that any run without servers has; and a book to go on with.

Slots are learned out of order, and the last of one pass beside the first of the next. So ``left`` has all slots that are not counted, from
the first pass on to the end of the pass that was begun last; everything else of that is in the model. Who had which slot is not kept:
any number of peers goes on from it.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np

from shoal.errors import BadCheckpoint
from shoal.models.linear import Floats
from shoal.schedule.stop_rules import Patience
from shoal.strategies.peers.run_log import RunLogState
from shoal.training.local_checkpoint import LocalCheckpoint, LocalCheckpoints, LocalProgress
from shoal.wire.messages.peers import EvaluationDone, Run


def keep(
    keeper: LocalCheckpoints, state: bytes, flat: Floats, per_pass: int, keys: int, counts: dict[str, int]
) -> None:
    """What one peer gave when it was asked for all."""
    book = msgspec.msgpack.decode(state, type=RunLogState)
    done = sum(beyond - first for first, beyond in book.counted)
    if not done:
        return
    last = book.judged[-1] if book.judged else None
    sent, received = (sum(one[i] for one in book.moved.values()) for i in (0, 1))
    standing = LocalProgress(
        done,
        book.rows,
        0 if last is None else last.number + 1,
        book.seconds,
        Patience() if last is None else _patience(last.patience),
        counts,
        sent,
        received,
    )
    of_pass, left = left_of(book.counted, per_pass)
    keeper.keep(flat.reshape(keys, -1), of_pass, np.array(left, np.int64), standing, done)


def begin_of(kept: LocalCheckpoint, per_pass: int) -> RunLogState:
    """The book that everybody begins with when the run is taken up again."""
    check_left(kept, per_pass)
    was, (of_pass, left) = kept.facts.standing, kept.position
    counted = counted_of(of_pass, left.tolist(), per_pass)
    patience = was.patience
    last = EvaluationDone(
        number=max(0, was.evaluations - 1),
        seconds=was.seconds,
        now=was.seconds,
        done=was.done,
        rows=was.examples,
        loss=patience.best,
        metrics={},
        train=None,
        workers=0,
        best=False,
        patience=[patience.best, patience.mark, patience.without, patience.objective],
        by="",
    )
    return RunLogState(
        counted=counted,
        rows=was.examples,
        seconds=was.seconds,
        judged=[last] if was.evaluations else [],
        next=max((beyond for _, beyond in counted), default=0),
        moved={"": (was.sent, was.received)},
        counts={name: count for name, count in was.counts.items() if name != "workers lost"},
    )


def check_left(kept: LocalCheckpoint, per_pass: int) -> None:
    """Its slots are of no later pass than it says, each there once; all others are counted."""
    of_pass, left = kept.position
    end = (of_pass + 1) * per_pass
    if of_pass < 0 or (np.diff(left) < 1).any() or (len(left) and not 0 <= left[0] <= left[-1] < end):
        raise BadCheckpoint(str(kept.path), f"has slots that the passes up to {of_pass} have not")
    if end - len(left) != kept.facts.standing.done:
        raise BadCheckpoint(
            str(kept.path), f"has {len(left)} slots left, and {kept.facts.standing.done} done, of {end}"
        )


def left_of(counted: list[Run], per_pass: int) -> tuple[int, list[int]]:
    """The pass that the furthest counted slot is of, and all slots up to its end that are not counted."""
    end = max((beyond for _, beyond in counted), default=0)
    of_pass = max(0, end - 1) // per_pass
    bounds = [(0, 0), *sorted(counted), ((of_pass + 1) * per_pass, 0)]
    return of_pass, [slot for (_, first), (beyond, _) in pairwise(bounds) for slot in range(first, beyond)]


def counted_of(of_pass: int, left: list[int], per_pass: int) -> list[Run]:
    """The other way round: runs of slots that are counted."""
    bounds = [-1, *left, (of_pass + 1) * per_pass]
    return [(a + 1, b) for a, b in pairwise(bounds) if b > a + 1]


def _patience(said: list[float | None]) -> Patience:
    best, mark, without, objective = [*said, *[None] * 4][:4]
    return Patience(best, mark, int(without or 0), objective)

"""A run of peers on disk: the model and the log of one peer, as a local checkpoint.

Slots are learned out of order, and the last ones of an epoch beside the first ones of the next. So
``left`` has all slots that are not counted, from the first epoch to the end of the last one that
was begun. It does not say who had which slot: any number of peers can continue from it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.errors import BadCheckpoint
from shoal.models.linear import Floats
from shoal.schedule.intervals import Intervals, count, runs
from shoal.schedule.stop_rules import Patience
from shoal.strategies.peers.run_log import RunLogState
from shoal.training.local_checkpoint import LocalCheckpoint, LocalCheckpoints, LocalProgress
from shoal.wire.messages.peers import EvaluationDone, Run


def keep(
    checkpoints: LocalCheckpoints, state: bytes, flat: Floats, per_pass: int, keys: int, counts: dict[str, int]
) -> None:
    """Write a checkpoint from the snapshot that a peer gave."""
    log = msgspec.msgpack.decode(state, type=RunLogState)
    done = count(log.counted)
    if not done:
        return
    last = log.judged[-1] if log.judged else None
    sent, received = (sum(one[i] for one in log.moved.values()) for i in (0, 1))
    progress = LocalProgress(
        done,
        log.rows,
        0 if last is None else last.number + 1,
        log.seconds,
        Patience() if last is None else _patience(last.patience),
        counts,
        sent,
        received,
    )
    of_pass, left = left_of(log.counted, per_pass)
    checkpoints.keep(flat.reshape(keys, -1), of_pass, np.array(left, np.int64), progress, done)


def begin_of(kept: LocalCheckpoint, per_pass: int) -> RunLogState:
    """The log with which every peer starts when the run is resumed."""
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
        next=max((stop for _, stop in counted), default=0),
        moved={"": (was.sent, was.received)},
        counts={name: number for name, number in was.counts.items() if name != "workers lost"},
    )


def check_left(kept: LocalCheckpoint, per_pass: int) -> None:
    """Its slots belong to the epochs up to its own, each once; all others are counted."""
    of_pass, left = kept.position
    end = (of_pass + 1) * per_pass
    if of_pass < 0 or (np.diff(left) < 1).any() or (len(left) and not 0 <= left[0] <= left[-1] < end):
        raise BadCheckpoint(str(kept.path), f"has slots that the epochs up to {of_pass} do not have")
    if end - len(left) != kept.facts.standing.done:
        done = kept.facts.standing.done
        raise BadCheckpoint(str(kept.path), f"has {len(left)} slots left, and {done} done, of {end}")


def left_of(counted: list[Run], per_pass: int) -> tuple[int, list[int]]:
    """The epoch of the last counted slot, and all slots up to its end that are not counted."""
    slots = Intervals(counted)
    of_pass = max(0, slots.end - 1) // per_pass
    return of_pass, [slot for first, stop in slots.missing((of_pass + 1) * per_pass) for slot in range(first, stop)]


def counted_of(of_pass: int, left: list[int], per_pass: int) -> list[Run]:
    """The inverse: the slots that are counted."""
    return Intervals(runs(left)).missing((of_pass + 1) * per_pass).runs


def _patience(values: list[float | None]) -> Patience:
    best, mark, without, objective = [*values, *[None] * 4][:4]
    return Patience(best, mark, int(without or 0), objective)

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
from shoal.schedule.intervals import Intervals, runs
from shoal.schedule.stop_rules import Patience
from shoal.strategies.peers.run_log import RunLog, patience_of
from shoal.training.local_checkpoint import LocalCheckpoint, LocalProgress, Snapshot
from shoal.wire.messages.peers import EvaluationDone


def snapshot_of(state: bytes, flat: Floats, per_pass: int, keys: int, counts: dict[str, int]) -> Snapshot | None:
    """The contents of a checkpoint, from the log and the model that a peer gave."""
    log = RunLog.unpack(state)
    if not log.done:
        return None
    sent, received = (sum(one[i] for one in log.moved.values()) for i in (0, 1))
    evaluations, patience = (0, Patience()) if log.last is None else (log.last.number + 1, patience_of(log.last))
    progress = LocalProgress(log.done, log.rows, evaluations, log.seconds, patience, counts, sent, received)
    of_pass, left = left_of(log.counted, per_pass)
    return flat.reshape(keys, -1), of_pass, np.array(left, np.int64), progress, log.done


def begin_of(kept: LocalCheckpoint, per_pass: int) -> RunLog:
    check_left(kept, per_pass)
    was, (of_pass, left) = kept.facts.standing, kept.position
    log = RunLog(
        counted=counted_of(of_pass, left.tolist(), per_pass),
        rows=was.examples,
        seconds=was.seconds,
        moved={"": (was.sent, was.received)},
    )
    log.next = log.counted.end
    log.counts |= {name: number for name, number in was.counts.items() if name != "workers lost"}
    if was.evaluations:
        number, patience = was.evaluations - 1, list(msgspec.structs.astuple(was.patience))
        at, loss = was.seconds, was.patience.best
        log.judged = [EvaluationDone(number, at, at, was.done, was.examples, loss, {}, None, 0, False, patience)]
    return log


def check_left(kept: LocalCheckpoint, per_pass: int) -> None:
    """Its slots belong to the epochs up to its own, each once; all others are counted."""
    of_pass, left = kept.position
    end = (of_pass + 1) * per_pass
    if of_pass < 0 or (np.diff(left) < 1).any() or (len(left) and not 0 <= left[0] <= left[-1] < end):
        raise BadCheckpoint(str(kept.path), f"has slots that the epochs up to {of_pass} do not have")
    if end - len(left) != kept.facts.standing.done:
        done = kept.facts.standing.done
        raise BadCheckpoint(str(kept.path), f"has {len(left)} slots left, and {done} done, of {end}")


def left_of(counted: Intervals, per_pass: int) -> tuple[int, list[int]]:
    """The epoch of the last counted slot, and all slots up to its end that are not counted."""
    of_pass = max(0, counted.end - 1) // per_pass
    return of_pass, [slot for first, stop in counted.missing((of_pass + 1) * per_pass) for slot in range(first, stop)]


def counted_of(of_pass: int, left: list[int], per_pass: int) -> Intervals:
    """The inverse: the slots that are counted."""
    return Intervals(runs(left)).missing((of_pass + 1) * per_pass)

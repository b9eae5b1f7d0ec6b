"""A checkpoint of a peer run has all slots that are not counted, of any pass.

It also has the log with which the run continues.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.data.datasets import load
from shoal.data.slots import Slots
from shoal.errors import BadCheckpoint
from shoal.events import RunEvent, Saved
from shoal.job import Job
from shoal.schedule.intervals import Intervals
from shoal.strategies.peers.run import PeerRun
from shoal.strategies.peers.run_log import RunLog, begin_of, check_left, snapshot_of
from shoal.training.local_checkpoint import LocalCheckpoints, newest
from shoal.training.tracked_run import RunStart
from shoal.wire.messages.peers import EvaluationDone

PER_PASS = 10
COUNTED = [(0, 7), (9, 13), (15, 16)]  # of two passes


@pytest.mark.parametrize(
    ("counted", "of_pass", "left"), [(COUNTED, 1, [7, 8, 13, 14, 16, 17, 18, 19]), ([(0, 10)], 0, [])]
)
def test_what_is_left_is_all_that_is_not_counted(counted: list[tuple[int, int]], of_pass: int, left: list[int]) -> None:
    found = snapshot_of(RunLog(counted=Intervals(counted)).pack(), np.zeros(2, np.float32), PER_PASS, 2, {})
    assert found is not None and (found[1], found[2].tolist()) == (of_pass, left)


def test_a_run_of_peers_is_taken_up_with_its_slots_its_clock_and_its_patience(tmp_path: Path) -> None:
    job = Job.of({"data": "clicks", "strategy": "peer-to-peer"})
    events: list[RunEvent] = []
    last = EvaluationDone(3, 1.0, 1.5, 11, 110, 0.4, {}, None, 2, True, [0.4, 0.41, 2.0, None], "worker-0.aa")
    state = RunLog(counted=Intervals(COUNTED), rows=120, seconds=2.5, judged=[last], moved={"a": (10, 20), "b": (1, 2)})
    slab = np.arange(6, dtype=np.float32)
    found = snapshot_of(state.pack(), slab, PER_PASS, 3, {"workers lost": 1})
    assert found is not None
    LocalCheckpoints(tmp_path, job, "", events.append).keep(*found)
    assert [event.steps for event in events if isinstance(event, Saved)] == [12]
    kept, refused = newest(tmp_path / "checkpoints", job.identity)
    assert kept is not None and not refused
    assert np.array_equal(kept.slab, slab.reshape(3, 2))
    book = begin_of(kept, PER_PASS)
    assert (book.counted.runs, book.done, book.rows, book.next) == (COUNTED, 12, 120, 16)
    assert book.last is not None
    assert (book.last.number, book.last.patience) == (3, [0.4, 0.41, 2, None])
    assert (kept.facts.standing.seconds, kept.facts.standing.sent) == (2.5, 11)
    with pytest.raises(BadCheckpoint, match="slots"):
        check_left(kept, PER_PASS - 1)


def test_workers_that_were_lost_before_a_run_was_taken_up_are_counted(tmp_path: Path) -> None:
    data = {"source": "rcv1-like", "rows": 200, "features": 1_000, "batch": 20}
    job = Job.of({"data": data, "strategy": "peer-to-peer", "launch": {"how": "threads"}})
    dataset = load(job.data, job.seed)
    slots = Slots(dataset.train.rows, job.data.batch, job.seed).per_pass
    log = RunLog(counted=Intervals([(0, slots)]))
    found = snapshot_of(log.pack(), np.zeros(1_000, np.float32), slots, 1_000, {"workers lost": 1})
    assert found is not None
    LocalCheckpoints(tmp_path, job, "", lambda event: None).keep(*found)
    kept, _ = newest(tmp_path / "checkpoints", job.identity)
    run = PeerRun(RunStart(job, dataset, lambda event: None, None, kept))
    assert run.tracker.counts["workers lost"] == 1
    run.learner.release()


def test_nothing_is_kept_of_a_run_that_has_learned_nothing() -> None:
    assert snapshot_of(RunLog().pack(), np.zeros(2, np.float32), PER_PASS, 2, {}) is None

"""A run ends with aligned figures and one piece of advice, chosen by rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.events import Saved
from shoal.job import Job
from shoal.views import ending
from shoal.views.ending import advise
from shoal.views.run_record import RunRecord, tell

SUMMARY: dict[str, Any] = {
    "strategy": "async", "test_loss": 0.4357, "metrics": {"accuracy": 0.8169, "auc": None}, "stopped_because": "4 epochs done",
    "examples": 800_000, "computing_seconds": 5.1, "seconds": 5.2, "examples_per_second": 156_912.0, "steps": 3_128,
    "cpu_seconds": 6.4, "bytes_sent": 100_000_000, "bytes_received": 35_000_000, "handles": {"bytes_saved": 148_000_000},
    "staleness": {"mean": 4.977, "max": 113, "p95": 9, "counts": [1]},
}  # fmt: skip


def judged(
    story: Any, losses: list[float], spent: dict[str, float] | None = None, strategy: str = "async"
) -> RunRecord:
    """A run with these test losses, one per epoch, and this use of the workers' time."""
    events: list[Any] = [replace(story.started(3, 2), strategy=strategy)]
    for at, loss in enumerate(losses):
        events.append(story.evaluated(at, float(at), float(at), loss, best=loss == min(losses[: at + 1])))
    if spent is not None:
        events.append(replace(story.progress(9.0, 4.0), spent=spent))
    events.append(list(story.run())[-1])
    record = tell("one", events, SUMMARY, Job.of({"strategy": strategy}))
    record.folder = Path("runs/one")
    return record


BUSY = {"compute": 8.0, "communicate": 2.0}


def test_workers_that_hardly_compute_are_told_to_move_less(story: Any) -> None:
    found = advise(judged(story, [0.7, 0.5, 0.49], {"compute": 0.02, "communicate": 0.88, "wait": 0.1}))
    assert found == (
        "of their time workers computed 2.0%, communicated 88% and waited 10%: "
        "try a larger batch (--set data.batch=512), fewer servers (--servers 1), or --strategy serial"
    )


def test_a_test_loss_that_rose_is_told_where_to_stop(story: Any) -> None:
    found = advise(judged(story, [0.7, 0.4, 0.45], BUSY))
    assert found.startswith("the test loss rose since epoch 1: --set stop.patience=3 ends a run soon after its best")
    # A worse model matters more than a slow run.
    assert found == advise(judged(story, [0.7, 0.4, 0.45], {"compute": 0.02, "communicate": 0.98}))


def test_a_straggler_is_named_and_a_strategy_that_does_not_wait(story: Any) -> None:
    record = judged(story, [0.7, 0.5, 0.499], {"compute": 5.0, "wait": 5.0}, "sync")
    each = {f"worker-{at}": {"slots": 10.0, "compute": 5.0 if at == 2 else 1.0} for at in range(3)}
    events = [replace(event, each=each) if event.number == 1 else event for event in record.run.evaluations]
    told = tell("one", [record.run.started, *events, *record.run.progress], SUMMARY)  # type: ignore[list-item]
    assert (advise(told)).startswith(
        "worker-2 takes 5.0 times as long as the others, who wait for it: --strategy async"
    )
    assert (advise(record)).startswith("workers waited for each other 50% of their time: --strategy bounded")


def test_a_loss_that_still_falls_goes_on_and_where_nothing_is_wrong_a_report_is_made(story: Any) -> None:
    falling, done = judged(story, [0.7, 0.5, 0.4], BUSY), judged(story, [0.7, 0.5, 0.4999], BUSY)
    assert (advise(falling)) == ("the test loss was still falling: give it more epochs (--epochs 10)")
    falling.run.happened.append(Saved(seconds=1.0, number=1, steps=10, bytes=8, took=0.1))
    assert (advise(falling)) == ("the test loss was still falling: shoal train --resume runs/one --epochs 10")
    assert (advise(done)) == "shoal report runs/one"
    assert "no longer finite" in (advise(judged(story, [0.7, float("nan")], BUSY)))


@pytest.mark.parametrize("width", [None, 60, 80, 120])
def test_the_ending_is_aligned_and_no_word_is_broken(story: Any, width: int | None, tmp_path: Path) -> None:
    record = judged(story, [0.7, 0.4, 0.4357], BUSY)
    record.folder = tmp_path
    (tmp_path / "best.safetensors").write_bytes(b"")
    lines = ending.lines(record, width)
    assert [line[:11].strip() for line in lines if line[:11].strip()] == [
        "result", "best", "speed", "cost", "staleness", "next", "look at",
    ]  # fmt: skip
    assert all(line[10] == " " != line[11] for line in lines)
    whole = " ".join(line[11:] for line in lines)
    assert f"test loss 0.4000 at epoch 1: {tmp_path / 'best.safetensors'} (the result is of the last weights)" in whole
    assert "800,000 rows in 5.1 s, 156,912 rows/s, 3,128 steps" in whole
    assert "6.4 CPU seconds, 135.0 MB moved (148.0 MB of keys not sent: servers know those lists)" in whole
    if width is not None:
        assert all(len(line) <= width for line in lines if str(tmp_path) not in line)


def test_the_cpu_seconds_of_a_resumed_run_are_said_to_be_of_its_last_span(story: Any) -> None:
    record = judged(story, [0.7, 0.4], BUSY)
    record.summary = SUMMARY | {"resumed": 1}
    assert any(
        "6.4 CPU seconds since it was last resumed, 135.0 MB moved" in line for line in ending.lines(record, None)
    )

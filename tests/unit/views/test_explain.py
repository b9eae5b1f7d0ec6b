"""Statements about a run follow from its figures; without a figure there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.events import Delayed, Gone, Joined, Resumed, RolledBack, RunEvent, Saved, Stopped
from shoal.limits import STALENESS_BUCKETS
from shoal.views import format
from shoal.views.explain import of_one
from shoal.views.run_record import tell


def words_of(events: list[RunEvent], summary: dict[str, Any] | None = None) -> str:
    return " ".join(of_one(tell("one", events, summary)))


def judged(story: Any, *losses: float, every: float = 1.0) -> list[RunEvent]:
    return [story.evaluated(at, at * every, float(at), one, train_loss=0.9 - at / 10) for at, one in enumerate(losses)]


def each(story: Any, **of: dict[str, float]) -> RunEvent:
    return replace(story.evaluated(9, 9.0, 9.0, 0.5), each={name.replace("_", "-"): one for name, one in of.items()})


def spent(story: Any, **seconds: float) -> RunEvent:
    return replace(story.progress(10.0, 1.0), spent=seconds)


# ---------------------------------------------------------------- one run


def test_shares_are_told_of_all_workers(story: Any) -> None:
    said = words_of([spent(story, compute=3.0, communicate=0.03, wait=6.0, idle=0.97)])
    assert "Of their time workers computed 30%, communicated 0.3%, waited 60% and had nothing to do for 9.7%." in said


def test_the_slowest_worker_is_named_with_its_factor(story: Any) -> None:
    fast = {"slots": 100, "compute": 10.0, "wait": 30.0}
    slow = {"slots": 100, "compute": 50.0, "wait": 0.0}
    told = each(story, worker_0=slow, worker_1=fast, worker_2=fast)
    said = words_of([story.started(), spent(story, compute=7.0, wait=6.0), told])
    assert (
        "They wait for the slowest: worker-0 computes 5.0 times as long for a slot as the median of the others; it waited 0% of "
        "its time, the others 75% of theirs (median)."
    ) in said
    assert "Work was even: 100 to 100 slots each." in said


def test_a_slow_worker_is_no_reason_for_more_waiting_than_its_computing_takes(story: Any) -> None:
    fast = {"slots": 100, "compute": 1.0, "wait": 60.0}
    told = each(story, worker_0={"slots": 100, "compute": 4.0, "wait": 50.0}, worker_1=fast, worker_2=fast)
    said = words_of([story.started(), spent(story, compute=6.0, wait=170.0), told])
    assert "The slowest worker is not the reason: worker-0 computes 4.0 times as long for a slot" in said
    assert "and that is 5.0% of what the others waited." in said


def test_where_nobody_is_slower_they_wait_for_each_other(story: Any) -> None:
    same = {"slots": 100, "compute": 10.0, "wait": 5.0}
    said = words_of([story.started(), spent(story, compute=2.0, wait=1.0), each(story, worker_0=same, worker_1=same)])
    assert "No worker is much slower than the others" in said and "they wait for each other" in said


def test_a_bounded_run_that_hardly_waits_says_so(story: Any) -> None:
    assert "Workers hardly waited for each other." in words_of([story.started(), spent(story, compute=99.0, wait=1.0)])


def test_who_did_least_is_named_if_that_was_much_less(story: Any) -> None:
    said = words_of([each(story, worker_0={"slots": 10}, worker_1={"slots": 90})])
    assert "worker-0 did the fewest slots, 10 (10%), worker-1 most, 90." in said


def test_idle_time_at_the_end_is_told_as_that(story: Any) -> None:
    early, late = story.progress(1.0, 0.5), story.progress(2.0, 1.0)
    said = words_of([replace(early, spent={"compute": 5.0}), replace(late, spent={"compute": 4.0, "idle": 1.0})])
    assert "Of the 10% without a slot, 100% came in the last tenth of the work." in said


def test_staleness_is_told_and_its_last_bucket_is_open(story: Any) -> None:
    most = STALENESS_BUCKETS - 1
    stale = {"staleness": {"mean": 2.5, "p95": 7, "max": most, "counts": [5, 5]}}
    said = words_of([story.started()], stale)
    assert "2.5 other pushes were counted on average, 7 at the 95th percentile, 1,023 or more at most." in said
    fresh = {"staleness": {"mean": 0.0, "p95": 0, "max": 0, "counts": [5]}}
    assert "staleness is 0" in words_of([story.started()], fresh)
    assert "pushes" not in words_of([story.started()], {"staleness": {"mean": None, "counts": []}})


def test_what_a_rank_did_not_know_of_is_told_by_steps(story: Any) -> None:
    first, *rest = story.run()
    stale = {"staleness": {"mean": 7.5, "p95": 14, "max": 15, "counts": [1] * 16}}
    said = words_of([replace(first, strategy="averaging"), *rest], stale)
    assert "A step did not know of 7.5 steps of other ranks since the last mean" in said and "pushing" not in said


def test_updates_that_hogwild_lost_are_told_with_their_share(story: Any) -> None:
    def said(**counts: int) -> str:
        return " ".join(of_one(tell("one", list(story.run()), {"lost_updates": counts})))

    assert "Of 1,000 updates of one weight that all workers write to, 12 (1.20%) were lost" in said(
        counted=1000, lost=12
    )
    assert "Of 1,000 updates of one weight that all workers write to, none was lost" in said(counted=1000, lost=0)
    assert "lost" not in said(counted=0, lost=0).replace("worker-3 was lost", "")


def test_a_delay_that_was_chosen_is_told_with_where_it_came_to() -> None:
    changes: list[RunEvent] = [
        Delayed(seconds=at, max_delay=delay, waiting=0.11) for at, delay in ((1.0, 2), (4.0, 8), (6.0, 7), (7.0, 8))
    ]
    said = words_of([*changes, Stopped(seconds=10.0, why="done")])
    assert (
        "chosen during the run, and changed 4 times. In the second half it was 8 steps most of the time, 7 to 8 in all."
        in said
    )
    assert "Before the last change they had waited 11%." in said
    assert "most of the time." in words_of([changes[0], Stopped(seconds=10.0, why="done")])
    assert "In the second half" not in words_of(changes[:1])


def test_a_loss_that_still_falls_and_one_that_does_not(story: Any) -> None:
    assert "still fell at the end (by 10% since" in words_of(judged(story, 0.7, 0.5, 0.45))
    assert "hardly changed at the end (by 0.1% since" in words_of(judged(story, 0.7, 0.5, 0.4995))


def test_a_run_whose_test_loss_rises_while_the_train_loss_falls_overfits(story: Any) -> None:
    said = words_of(judged(story, 0.7, 0.4, 0.5))
    assert "The best, 0.4000, was at epoch 1; it rose since." in said
    assert "fell further, from 0.8000 to 0.7000: it overfits." in said
    rising = [replace(one, train_loss=float(at)) for at, one in enumerate(judged(story, 0.7, 0.4, 0.5))]
    assert "overfits" not in words_of(rising)  # its train loss rose, too
    solving = [replace(one, metrics={"objective": 9.0}) for one in judged(story, 0.7, 0.4, 0.5)]
    assert "overfits" not in words_of(solving) and "it rose since" not in words_of(solving)


def test_a_loss_that_ran_away_is_told(story: Any) -> None:
    said = words_of(judged(story, 0.7, 0.6, math.nan))
    assert "At epoch 2 the test loss was no longer finite." in said
    assert words_of(judged(story, math.nan)).startswith("At epoch 0 the test loss was no longer finite.")


def test_without_an_evaluation_nothing_is_said_of_the_loss(story: Any) -> None:
    assert "The model was never evaluated" in words_of([story.started(), story.progress(1.0, 0.1)])


def test_one_evaluation_is_no_curve(story: Any) -> None:
    assert "The model was evaluated once: test loss 0.7000." in words_of(judged(story, 0.7))


def test_an_objective_is_told_with_how_far_it_is_solved(story: Any) -> None:
    found = (
        {"objective": 9_000.0, "violation": 50.0},
        {"objective": 4_954.2294, "violation": 0.0312, "nonzero": 685.0},
    )
    events = [replace(one, metrics=told) for one, told in zip(judged(story, 0.7, 0.2), found, strict=True)]
    said = words_of(events)
    assert (
        "The objective fell from 9,000.000 to 4,954.229, and the worst key is 0.0312 of l1 from the conditions" in said
    )
    assert "; 685 weights are not 0." in said
    more = replace(events[-1], metrics={**found[1], "skipped": 0.971})
    assert "and 97.1% of the keys were left out at last." in words_of([events[0], more])


def test_a_run_without_an_end_says_so(story: Any) -> None:
    assert "No end is recorded" in words_of([story.started()])
    stopped = Stopped(seconds=1.0, why="the disk\nis full")
    assert "It failed: the disk is full." in words_of([stopped], {"failed": True})


def test_a_run_that_somebody_ended_did_not_fail_and_who_left_then_did_not_leave_it(story: Any) -> None:
    left = Gone(seconds=9.1, name="worker-1", role="worker", why="it left", slots=3)
    said = words_of([*story.run(), left, Stopped(seconds=9.0, why="interrupted")], {"failed": True})
    assert "It was interrupted." in said and "failed" not in said and "left in order" not in said


def test_cpu_seconds_of_other_hosts_and_former_lives_are_not_claimed(story: Any) -> None:
    there = Joined(seconds=1.0, name="worker-vm-2e5f", role="worker")
    again = Resumed(seconds=2.0, checkpoint=1, steps=5)
    summary = {"cpu_seconds": 6.3}
    assert "6.3 CPU seconds in all." in words_of(list(story.run()), summary)
    assert "6.3 CPU seconds on the coordinator's machine." in words_of([*story.run(), there], summary)
    assert "6.3 CPU seconds in all since it was last resumed." in words_of([*story.run(), again], summary)


def test_what_is_emulated_is_said_before_any_share(story: Any) -> None:
    started = replace(story.started(), emulated="emulated compute (40 us per example)")
    said = words_of([started, spent(story, compute=1.0)])
    assert said.index("Emulated compute (40 us per example). Waiting") < said.index("Of their time")


def test_evaluations_with_fewer_workers_are_counted(story: Any) -> None:
    told = judged(story, 0.7, 0.6, 0.5)
    assert "All 4 workers were at work at every evaluation." in words_of([story.started(), *told])
    fewer = replace(story.evaluated(3, 3.0, 3.0, 0.4), workers=2)
    said = words_of([story.started(), *told, fewer])
    assert "At 1 of 4 evaluations fewer than 4 workers were at work, 2 at the fewest (evaluation 3)" in said


def test_one_worker_is_compared_with_nobody(story: Any) -> None:
    told = each(story, worker_0={"slots": 10, "compute": 5.0, "wait": 5.0})
    said = words_of([story.started(workers=1), spent(story, compute=5.0, wait=5.0), told])
    assert "slowest" not in said and "fewest" not in said and "evaluation" not in said


def test_faults_are_counted_and_it_is_told_when_they_were_over(story: Any) -> None:
    events = list(story.run())
    happened: list[RunEvent] = [
        Gone(seconds=20.0, name="server-0", role="server", why="killed"),
        RolledBack(seconds=20.5, checkpoint=1, steps_before=90, steps_after=40, slots=[], why="lost"),
        Resumed(seconds=30.0, checkpoint=2, steps=50),
        Saved(seconds=40.0, number=3, steps=60, bytes=1, took=0.1),
    ]
    said = words_of([*events[:-1], *happened, events[-1]])
    assert "2 nodes (worker-3, server-0) were lost. Their slots that were assigned again: 12." in said
    assert "assigned again: 12. worker-4 joined while it ran." in said  # worker-3 was lost before
    assert "back to a checkpoint once, 50 steps in all. It was resumed once." in said
    assert "Rows/s were at 90% or more" in said and "1 checkpoint went to disk." in said


def test_nothing_is_said_of_nothing() -> None:
    assert of_one(tell("one", [])) == [
        "The model was never evaluated: its loss is not known. No end is recorded: the run goes on, or was cut short."
    ]


@pytest.mark.parametrize(("share", "said"), [(0, "0%"), (0.0004, "less than 0.1%"), (0.02, "2.0%"), (0.5, "50%")])
def test_a_share_is_never_rounded_to_nothing(share: float, said: str) -> None:
    assert format.share(share) == said


def test_factors_are_as_exact_as_they_read_well() -> None:
    assert [format.times(one) for one in (0.031, 0.31, 1.618, 4.62, 1234.0)] == [
        "0.031",
        "0.31",
        "1.62",
        "4.6",
        "1,234",
    ]

"""The suite that every strategy must pass, wherever its nodes run.

    for check in suite(candidate):      each has a sentence for a name
        check(candidate)                raises AssertionError, or returns

A candidate says what is known of a strategy: how near it comes to the serial run, and whether it
survives the loss of a worker. Runs that several checks look at are made once. Rows are few and
made up, so that a check takes a second or two, and nothing is asserted about time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np

from shoal.events import Evaluated, Gone, Stopped
from shoal.job import Job
from shoal.settings_tree import changed
from shoal.simulation.reference import serial
from shoal.testing.watch import Watched, kill, watch

SUMMARY = (
    "data", "model", "strategy", "workers", "servers", "seed", "seconds", "steps", "examples", "examples_per_second",
    "train_loss", "test_loss", "metrics", "bytes_sent", "bytes_received", "staleness", "stopped_because",
)  # fmt: skip
METRICS = {"accuracy", "auc"}
STALENESS = {"mean", "p95", "max", "counts"}

ROWS, BATCH, PASSES = 3_000, 32, 3
JOB: Mapping[str, Any] = {
    "data": {"source": "rcv1-like", "rows": ROWS, "features": 2_000, "batch": BATCH},
    "stop": {"epochs": PASSES},
    "workers": 3,
    "servers": 2,
}


@dataclass(frozen=True)
class Candidate:
    """A strategy, where it is to run, and what is expected of it."""

    strategy: str  # its name
    how: Literal["threads", "processes"] = "threads"
    settings: tuple[tuple[str, Any], ...] = field(default=())  # such as ("strategy.max_delay", 2)
    exact: bool = False  # the very weights of the serial run
    tolerance: float = 0.02  # of the test loss, around that of the serial run
    survives: bool = True  # the loss of a worker; otherwise it ends, and says so
    sends: bool = True  # bytes, from one process to another

    def __str__(self) -> str:
        return "-".join([self.strategy, *(f"{name.split('.')[-1]}={value}" for name, value in self.settings), self.how])

    @property
    def victim(self) -> str:
        """The worker to kill: the last one, as the first may be the calling process."""
        return f"worker-{self.job().workers - 1}"

    def job(self, **changes: Any) -> Job:
        """The job of the suite with this strategy. In names, two underscores stand for a dot."""
        dotted = {name.replace("__", "."): value for name, value in changes.items()}
        given = {"strategy": self.strategy, "launch.how": self.how, **dict(self.settings), **dotted}
        return Job.of(changed(JOB, given))


Check = Callable[[Candidate], None]


def suite(candidate: Candidate) -> list[Check]:
    checks: list[Check] = [
        it_starts_from_the_weights_that_all_start_from,
        it_learns_what_the_serial_run_learns,
        it_counts_every_slot_once,
        its_summary_has_the_figures_that_all_have,
        it_stops_after_its_epochs,
        it_stops_after_its_steps,
        it_stops_after_its_seconds,
        it_stops_at_its_target_loss,
        it_stops_when_patience_runs_out_and_keeps_the_best_weights,
    ]
    if candidate.how == "processes":  # a thread cannot be killed
        checks.append(it_survives_a_killed_worker if candidate.survives else it_ends_well_when_a_worker_is_killed)
    return checks


@cache
def plain(candidate: Candidate) -> Watched:
    return watch(candidate.job())


def it_starts_from_the_weights_that_all_start_from(candidate: Candidate) -> None:
    """Evaluation 0 is that of the first weights: before any push, for any number of workers."""
    for run in (plain(candidate), watch(candidate.job(workers=1, stop__steps=1))):
        first = run.all(Evaluated)[0]
        nothing = np.zeros(run.job.linear.keys(run.dataset.features), np.float32)
        assert (first.number, first.steps, first.examples, first.train_loss) == (0, 0, 0, None)
        assert first.test_loss == run.loss_of(nothing), f"{run.job.workers} workers begin with {first.test_loss}"


def it_learns_what_the_serial_run_learns(candidate: Candidate) -> None:
    run = plain(candidate)
    expected = serial(run.job, run.dataset)
    aim, start = run.loss_of(expected), run.losses[0]
    assert aim < start - 3 * candidate.tolerance, "the serial run learns too little to tell"
    assert abs(run.loss - aim) <= candidate.tolerance, f"test loss {run.loss:.4f}, serial {aim:.4f}"
    if candidate.exact:
        differ = int((run.weights != expected).sum())
        assert not differ, f"{differ} of {len(expected)} weights are not those of the serial run"


def it_counts_every_slot_once(candidate: Candidate) -> None:
    run = plain(candidate)
    run.check_counted_once()
    assert run.outcome.examples == PASSES * ROWS
    assert not run.all(Gone), "somebody was lost in a run that nobody disturbed"
    assert run.summary["workers_lost"] == run.summary["slots_dealt_again"] == 0


def its_summary_has_the_figures_that_all_have(candidate: Candidate) -> None:
    summary = plain(candidate).summary
    missing = [name for name in SUMMARY if name not in summary]
    assert not missing, f"the summary lacks {missing}"
    assert set(summary["metrics"]) >= METRICS and set(summary["staleness"]) == STALENESS
    empty = [name for name in SUMMARY if summary[name] is None]
    empty += [name for part in ("metrics", "staleness") for name, value in summary[part].items() if value is None]
    assert not empty, f"the summary says nothing of {empty}"
    assert summary["strategy"] == candidate.strategy
    job = candidate.job()
    assert (summary["workers"], summary["servers"]) == (job.workers, job.servers if job.has_servers else 0)
    assert (summary["bytes_sent"] > 0, summary["bytes_received"] > 0) == (candidate.sends, candidate.sends)
    assert summary["examples_per_second"] > 0 < summary["seconds"]


def it_stops_after_its_epochs(candidate: Candidate) -> None:
    run = plain(candidate)
    assert run.outcome.why == f"{PASSES} epochs done"
    assert run.all(Evaluated)[-1].passes == PASSES
    assert run.losses[-1] == run.loss == run.summary["test_loss"]


def it_stops_after_its_steps(candidate: Candidate) -> None:
    run = watch(candidate.job(stop__steps=7, stop__epochs=None))
    assert run.outcome.why == "7 steps done"
    assert run.outcome.steps == run.all(Evaluated)[-1].steps == 7
    run.check_counted_once()


def it_stops_after_its_seconds(candidate: Candidate) -> None:
    run = watch(candidate.job(stop__seconds=0.4, stop__epochs=None))
    assert run.outcome.why == "0.4 seconds are over"
    assert run.outcome.seconds >= 0.4
    assert run.outcome.steps > 0
    # the last event is of the last evaluation
    assert run.all(Evaluated)[-1].steps == run.outcome.steps
    run.check_counted_once()


def it_stops_at_its_target_loss(candidate: Candidate) -> None:
    whole = plain(candidate)
    target = (whole.losses[0] + whole.losses[-1]) / 2
    run = watch(candidate.job(stop__target_loss=target, stop__epochs=20 * PASSES, evaluate__every=0.2))
    assert run.outcome.why == f"target loss {target:g} reached"
    reached = [loss <= target for loss in run.losses]
    assert not reached[0] and any(reached)
    assert run.workload.done < 20 * PASSES * run.workload.per_pass
    run.check_counted_once()


def it_stops_when_patience_runs_out_and_keeps_the_best_weights(candidate: Candidate) -> None:
    """So few rows that the model soon fits them only, and gets worse at all others."""
    few = {"data__rows": 500, "data__batch": 8, "update__step": 0.5}
    run = watch(candidate.job(stop__patience=4, stop__epochs=100, **few))
    assert run.outcome.why == "no improvement in 4 evaluations"
    best = min(run.losses)
    assert best < run.losses[-1], "the last weights are the best: nothing is shown"
    assert run.loss == run.summary["test_loss"] == best  # exactly: those very weights
    assert run.weights.any()
    assert [event.test_loss for event in run.all(Evaluated) if event.best][-1] == best
    run.check_counted_once()


def a_moment(candidate: Candidate, seed: int = 0) -> float:
    """A share of the work, early enough that there is more to do."""
    moment = random.Random(f"{candidate} {seed}").uniform(0.05, 0.6)
    print(f"{candidate}, seed {seed}: killed when {moment:.1%} is counted")
    return moment


def it_survives_a_killed_worker(candidate: Candidate) -> None:
    at = a_moment(candidate)
    run = watch(candidate.job(stop__epochs=4 * PASSES), lambda training: kill(training, "worker-1", at))
    assert not run.outcome.failed, run.outcome.why
    assert [(event.name, event.role) for event in run.all(Gone)] == [("worker-1", "worker")]
    assert run.all(Gone)[0].why == "its process ended (killed by signal 9)"
    assert run.summary["workers_lost"] == 1
    run.check_counted_once()


def it_ends_well_when_a_worker_is_killed(candidate: Candidate) -> None:
    """Where a strategy cannot go on: it ends, says why, and what was evaluated last is there."""
    at = a_moment(candidate)
    run = watch(candidate.job(stop__epochs=4 * PASSES), lambda training: kill(training, candidate.victim, at))
    assert run.outcome.failed
    assert "worker" in run.outcome.why
    assert [event.why for event in run.all(Stopped)] == [run.outcome.why]
    assert run.outcome.judged is not None
    assert run.loss in run.losses

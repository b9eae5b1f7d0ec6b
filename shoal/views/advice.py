"""Suggests one next move for a finished run, by rules, at its end and in its report."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.views import format
from shoal.views.run_record import RunRecord

BUSY = 0.1  # share of computing in workers' time: below it, communication costs too much
WAITING = 0.2  # of their time: another strategy may help
SLOW = 1.5  # times as long for a slot as the others: a straggler
ROSE = 1e-4  # of the test loss
FELL = 0.01  # of the test loss, with the last evaluation: it is not done


@dataclass(frozen=True, slots=True)
class Advice:
    """An observation and a suggestion."""

    finding: str  # empty: no problem
    move: str  # an option, or a command

    def __str__(self) -> str:
        return f"{self.finding}: {self.move}" if self.finding else self.move


def advise(record: RunRecord) -> Advice:
    """The first rule that applies."""
    for rule in (_diverged, _too_little_work, _overfits, _straggler, _unfinished):
        if (found := rule(record)) is not None:
            return found
    return Advice("", f"shoal report {_folder(record)}")


def _diverged(record: RunRecord) -> Advice | None:
    judged = record.run.evaluations
    if not judged or math.isfinite(judged[-1].test_loss):
        return None
    return Advice("the test loss is no number any more", "take smaller steps (--set update.step=...)")


def _too_little_work(record: RunRecord) -> Advice | None:
    """Workers that hardly compute: communication dominates."""
    run, started = record.run, record.run.started
    share = run.shares.get("compute")
    if share is None or share >= BUSY or started is None or not started.servers or run.shares.get("idle", 0.0) > 0.5:
        return None
    moves = [f"a larger batch (--set data.batch={4 * started.batch})"]
    moves += ["fewer servers (--servers 1)"] if started.servers > 1 else []
    finding = f"workers computed {format.share(share)} of their time, the rest is communication"
    return Advice(finding, f"try {', '.join(moves)}, or --strategy serial")


def _overfits(record: RunRecord) -> Advice | None:
    run = record.run
    solves = run.evaluations and run.evaluations[-1].metrics.get("objective") is not None
    if run.best is None or solves or (record.job is not None and record.job.stop.keeps_best):
        return None
    if run.finite[-1].test_loss <= run.best.test_loss + ROSE:
        return None
    finding = f"the test loss rose since epoch {format.epochs(run.best.passes)}"
    return Advice(finding, "--set stop.patience=3 stops there and keeps the best weights")


def _straggler(record: RunRecord) -> Advice | None:
    run, waited = record.run, record.run.shares.get("wait", 0.0)
    slowest = run.slowest
    if waited < WAITING or record.strategy not in ("sync", "bounded", "averaging", "allreduce"):
        return None
    if slowest is not None and slowest[1] >= SLOW:
        name = format.clean(slowest[0].name)
        finding = f"{name} takes {format.times(slowest[1])} times as long as the others, who wait for it"
        return Advice(finding, "--strategy async does not wait, --strategy bounded waits less")
    if record.strategy != "sync":
        return None
    finding = f"workers waited for each other {format.share(waited)} of their time"
    return Advice(finding, "--strategy bounded or async waits less")


def _unfinished(record: RunRecord) -> Advice | None:
    finite, stopped = record.run.finite, record.run.stopped
    if len(finite) < 3 or finite[-1] is not record.run.best or stopped is None or record.job is None:
        return None
    before = finite[-2].test_loss
    if not before or (before - finite[-1].test_loss) / abs(before) < FELL:
        return None
    more = f"shoal train --resume {_folder(record)} --epochs {format.epochs(2 * record.job.stop.passes)}"
    return Advice("the test loss was still falling", more) if math.isfinite(record.job.stop.passes) else None


def _folder(record: RunRecord) -> str:
    return "RUN" if record.folder is None else str(record.folder)

"""The last output of a run: result, best model, speed, cost, and one next move, by rules."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from shoal.events import Saved
from shoal.views import format, summary_figures
from shoal.views.run_record import NEVER_LATE, RunRecord

LABEL = 11  # columns
NO_ADVICE = "shoal report"  # the next move if no rule applies

BUSY = 0.1  # share of computing in workers' time: below it, communication costs too much
WAITING = 0.2  # of their time: another strategy may help
SLOW = 1.5  # times as long for a slot as the others: a straggler
ROSE = 1e-4  # of the test loss
FELL = 0.01  # of the test loss, with the last evaluation: it is not done


def lines(record: RunRecord, width: int | None = None) -> list[str]:
    """The lines; values are wrapped at words if there is a width."""
    found = []
    for label, value in _values(record):
        room = 10**9 if width is None else max(20, width - LABEL)
        rows = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
        found += [f"{label if at == 0 else '':<{LABEL}}{row}" for at, row in enumerate(rows or [""])]
    return found


def _values(record: RunRecord) -> Iterator[tuple[str, str]]:
    facts = record.summary
    known = [(name, value) for name, value in facts["metrics"].items() if value is not None]
    metrics = "".join(f", {name} {format.metric(name, value)}" for name, value in known)
    yield "result", f"test loss {format.loss(facts['test_loss'])}{metrics} ({facts['stopped_because']})"
    yield from _best(record)
    rows, seconds = f"{facts['examples']:,} rows", format.duration(facts["computing_seconds"])
    judged = facts["seconds"]
    later = "" if judged < 1.1 * facts["computing_seconds"] else f", evaluated after {format.duration(judged)}"
    yield "speed", f"{rows} in {seconds}{later}, {format.rate(facts['examples_per_second'])}, {facts['steps']:,} steps"
    since = " since it was last resumed" if facts.get("resumed") else ""
    cost = [] if (cpu := format.number(facts.get("cpu_seconds"))) is None else [f"{cpu:,.1f} CPU seconds{since}"]
    if moved := facts["bytes_sent"] + facts["bytes_received"]:
        saved = (facts.get("handles") or {}).get("bytes_saved", 0)
        spared = f" ({format.size(saved)} of keys not sent: servers know those lists)" if saved >= 1e6 else ""
        cost.append(f"{format.size(moved)} moved{spared}")
    stale = facts["staleness"]
    is_stale = stale["mean"] is not None and facts["strategy"] not in NEVER_LATE
    late = f"{stale['mean']:.3g} on average, max {format.most_stale(stale['max'])}" if is_stale else ""
    for label, value in (
        ("cost", ", ".join(cost)),
        ("staleness", late),
        ("filters", summary_figures.line(facts)),
        ("lost", summary_figures.lost(facts.get("lost_updates"))),
        ("emulated", facts.get("emulated")),
        ("models", summary_figures.models(facts.get("spread"))),
        ("next", advise(record)),
    ):
        if value:
            yield label, value
    if record.folder is not None:
        picture = record.folder / "loss.png"
        yield "look at", str(picture if picture.exists() else record.folder)


def _best(record: RunRecord) -> Iterator[tuple[str, str]]:
    best, kept, job = record.run.best, record.summary["test_loss"], record.job
    if best is None or kept is None:
        return
    if record.summary["metrics"].get("objective") is not None:  # it solves an objective
        if job is not None and job.stop.is_solved_by_rule and record.summary["stopped_because"].endswith("done"):
            yield "not solved", "by stop.objective and stop.violation: more epochs go on with it (--resume, --epochs)"
        return
    at = f"test loss {format.loss(best.test_loss)} at epoch {format.epochs(best.passes)}"
    if best.test_loss >= kept - 1e-6:  # the same evaluation, or rounded
        yield "best", f"{at}: these weights"
        return
    file = None if record.folder is None else record.folder / "best.safetensors"
    where = f": {file}" if file is not None and file.exists() else ""
    yield "best", f"{at}{where} (the result is of the last weights)"


def advise(record: RunRecord) -> str:
    """A finding and what to do, by the first rule that applies; or to look at a report."""
    return next(_advice(record), f"{NO_ADVICE} {_folder(record)}")


def _advice(record: RunRecord) -> Iterator[str]:
    run, job, started = record.run, record.job, record.run.started
    if run.evaluations and not math.isfinite(run.evaluations[-1].test_loss):
        yield "the test loss is no longer finite: take smaller steps (--set update.step=...)"
    solves = run.evaluations and run.evaluations[-1].metrics.get("objective") is not None
    keeps_best = job is not None and job.stop.keeps_best
    if run.best is not None and not solves and not keeps_best and run.finite[-1].test_loss > run.best.test_loss + ROSE:
        finding = f"the test loss rose since epoch {format.epochs(run.best.passes)}"
        yield f"{finding}: --set stop.patience=3 ends a run soon after its best evaluation, and keeps those weights"
    shares = run.shares or {"compute": 1.0, "idle": 0.0}
    if shares["compute"] < BUSY and shares["idle"] <= 0.5 and started is not None and started.servers:
        fewer = ", fewer servers (--servers 1)" if started.servers > 1 else ""
        spent = [format.share(shares[kind]) for kind in ("compute", "communicate", "wait")]
        finding = "of their time workers computed {}, communicated {} and waited {}".format(*spent)
        yield f"{finding}: try a larger batch (--set data.batch={4 * started.batch}){fewer}, or --strategy serial"
    slowest, waited = run.slowest, run.shares.get("wait", 0.0)
    if waited >= WAITING and record.strategy in ("sync", "bounded", "averaging", "allreduce"):
        if slowest is not None and slowest[1] >= SLOW:
            longer = f"{format.clean(slowest[0].name)} takes {format.times(slowest[1])} times as long as the others"
            yield f"{longer}, who wait for it: --strategy async does not wait, --strategy bounded waits less"
        elif record.strategy == "sync":
            finding = f"workers waited for each other {format.share(waited)} of their time"
            yield f"{finding}: --strategy bounded or async waits less"
    if len(run.finite) > 2 and run.finite[-1] is run.best and run.stopped is not None and job is not None:
        before = run.finite[-2].test_loss
        fell = (before - run.best.test_loss) / abs(before) if before else 0.0
        if fell >= FELL and math.isfinite(job.stop.passes):
            more = f"--epochs {format.epochs(2 * job.stop.passes)}"
            saved = any(isinstance(event, Saved) for event in run.happened)
            again = f"shoal train --resume {_folder(record)} {more}" if saved else f"give it more epochs ({more})"
            yield f"the test loss was still falling: {again}"


def _folder(record: RunRecord) -> str:
    return "RUN" if record.folder is None else str(record.folder)

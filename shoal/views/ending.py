"""The last output of a run: result, best model, speed, cost and the next move."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from shoal.views import figures, format
from shoal.views.advice import advise
from shoal.views.run_record import NEVER_LATE, RunRecord

LABEL = 11  # columns


def lines(record: RunRecord, width: int | None = None) -> list[str]:
    """The lines; values are wrapped at words if there is a width."""
    found = []
    for label, value in _values(record):
        room = None if width is None else max(20, width - LABEL)
        rows = [value] if room is None else textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
        found += [f"{label if at == 0 else '':<{LABEL}}{row}" for at, row in enumerate(rows or [""])]
    return found


def _values(record: RunRecord) -> Iterator[tuple[str, str]]:
    facts = record.summary
    metrics = "".join(
        f", {name} {format.metric(name, value)}" for name, value in facts["metrics"].items() if value is not None
    )
    yield "result", f"test loss {format.loss(facts['test_loss'])}{metrics} ({facts['stopped_because']})"
    yield from _best(record)
    rows, seconds = f"{facts['examples']:,} rows", format.duration(facts["computing_seconds"])
    judged = facts["seconds"]
    later = "" if judged < 1.1 * facts["computing_seconds"] else f", judged after {format.duration(judged)}"
    yield "speed", f"{rows} in {seconds}{later}, {format.rate(facts['examples_per_second'])}, {facts['steps']:,} steps"
    if cost := _cost(record):
        yield "cost", cost
    stale = facts["staleness"]
    if stale["mean"] is not None and facts["strategy"] not in NEVER_LATE:
        yield "staleness", f"{stale['mean']:.3g} on average, max {format.most_stale(stale['max'])}"
    if filtered := figures.line(facts):
        yield "filters", filtered.removeprefix("filters: ")
    if lost := figures.lost(facts.get("lost_updates")):
        yield "lost", lost
    if facts.get("emulated"):
        yield "emulated", facts["emulated"]
    if models := figures.models(facts.get("spread")):
        yield "models", models
    yield "next", str(advise(record))
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
    if best.test_loss >= kept - 1e-4:
        yield "best", f"{at}: these weights"
        return
    file = None if record.folder is None else record.folder / "best.safetensors"
    where = f": {file}" if file is not None and file.exists() else ""
    yield "best", f"{at}{where} (the result is of the last weights)"


def _cost(record: RunRecord) -> str:
    facts = record.summary
    parts = []
    if (cpu := format.number(facts.get("cpu_seconds"))) is not None:
        parts.append(f"{cpu:,.1f} CPU seconds")
    if moved := facts["bytes_sent"] + facts["bytes_received"]:
        known = facts.get("handles") or {}
        saved = known.get("bytes_saved", 0)
        spared = f" ({format.size(saved)} of known keys were not sent again)" if saved >= 1e6 else ""
        parts.append(f"{format.size(moved)} moved{spared}")
    return ", ".join(parts)

"""Who was at work at each loss (S4-23, S4-24): a speedup is one of so many workers only if all of them were there.

Where pods start one by one, the first losses are those of a few; a table of them says so before anybody believes the curve.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.events import Evaluated
from shoal.sweep.figures import (
    PointFigures,
    RunFigures,
    StudyFigures,
    first_at_or_below,
)
from shoal.views.sections import TableSection

FIRST = 4  # losses that are told one by one, as in the table of S4
NAMED = 6


def active_table(of: StudyFigures) -> TableSection | None:
    """For each point the workers at work at its first losses, at the target and over all; None if all worked alone."""
    points = [one for one in of.points if one.done and any(_asked(run) > 1 for run in one.runs)]
    if not points:
        return None
    heads = [axis.short for axis in of.sweep.study.axes]
    heads += ["before", *(f"loss {number}" for number in range(1, FIRST + 1))]
    heads += ["at the target"] * of.has_target + ["last", "with all of them"]
    rows = []
    for one in points:
        judged = [_judged(run) for run in one.runs if run.result.is_done]
        cells = [
            _span([events[number].workers for events in judged if len(events) > number]) for number in range(FIRST + 1)
        ]
        if of.has_target:
            met = [first_at_or_below(run.result.events, run.target) for run in one.runs]
            cells.append(_span([event.workers for event in met if event is not None]))
        cells.append(_span([events[-1].workers for events in judged if events]))
        full, total = _full(one)
        labels = [choice.label for choice in one.point.choices.values()]
        rows.append([*labels, *cells, f"{full:,} of {total:,}"])
    caption = "Workers at work when the weights were read that were judged: before training, at the first losses, and in how many of all evaluations all of them were."
    return TableSection(heads, rows, caption)


def active(of: StudyFigures) -> str:
    """The same in a sentence."""
    counts = {one.point.title: _full(one) for one in of.points if any(_asked(run) > 1 for run in one.runs)}
    known = {title: (full, total) for title, (full, total) in counts.items() if total}
    if not known:
        return ""
    short = [f"{title} ({full:,} of {total:,})" for title, (full, total) in known.items() if full < total]
    if not short:
        return "All workers of a run were at work at each of its evaluations."
    more = f"; and {len(short) - NAMED} more" if len(short) > NAMED else ""
    return f"Not all workers were at work at every evaluation. All were, at: {'; '.join(short[:NAMED])}{more}."


def all_at_work(of: StudyFigures) -> bool:
    """At every evaluation of every run."""
    return all(full == total for full, total in map(_full, of.points))


def _full(one: PointFigures) -> tuple[int, int]:
    """Evaluations with all workers at work, of all; the one before training aside, and the last, when they may be gone."""
    found = [(event.workers, _asked(run)) for run in one.runs for event in _judged(run)[1:-1]]
    return sum(there >= asked for there, asked in found), len(found)


def _judged(run: RunFigures) -> list[Evaluated]:
    return [event for event in run.result.events if isinstance(event, Evaluated)]


def _asked(run: RunFigures) -> int:
    job = run.result.run.job
    return job.workers if job.has_workers else 1


def _span(values: Sequence[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} .. {high}"

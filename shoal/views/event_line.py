"""Any event of a run in one line: for who wants to see them all (``verbosity = 3``), and for a log that is kept.

Plain functions of one event; as ``words``, they never raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shoal.events import Delayed, Evaluated, Progress, RunEvent, Saved, Shared, Spans, Started, Stopped
from shoal.views import format

DOING = {"compute": "computing", "communicate": "communicating", "wait": "waiting", "idle": "idle"}


def line(event: RunEvent) -> str:
    """When it was, and what."""
    return f"{clock(event.seconds)}  {said(event)}"


def clock(seconds: float) -> str:
    return f"{format.seconds(seconds):>6} s"


def said(event: RunEvent) -> str:
    match event:
        case Started():
            return started(event)
        case Progress():
            return _progress(event)
        case Evaluated():
            return f"pass {format.passes(event.passes)}  {format.evaluation(event)}  {format.many(event.workers, 'worker')}"
        case Saved():
            size = f"{event.bytes / 1e6:,.1f} MB"
            return f"checkpoint {event.number:,} saved at step {event.steps:,}: {size} in {format.duration(event.took)}"
        case Delayed():
            return f"workers may be {format.many(event.max_delay, 'step')} apart: they waited {event.waiting:.0%} of their time"
        case Spans():
            return f"{format.clean(event.name)}: {_spans(event)}"
        case Shared():
            held = ", ".join(
                f"{format.clean(name)} {number:,}{f' and copies of {copies:,}' if (copies := event.copies.get(name)) else ''}"
                for name, number in event.serves.items()
            )
            return f"parts: {held}"
        case Stopped():
            return f"stopped: {format.clean(event.why)}"
    return format.news(event)


def started(event: Started) -> str:
    what = ", ".join(format.what(event))
    rows = f"{event.rows:,} rows (and {event.test_rows:,} to test) of {event.features:,} features"
    emulated = f"; {format.clean(event.emulated)}" if event.emulated else ""
    return f"{what}: {rows}, {format.crew(event)}{format.on_cores(event)}{emulated}"


def shares(spent: Mapping[str, float]) -> str:
    """Where the workers' time went; nothing if that is not known."""
    whole = sum(spent.values())
    if not whole > 0:
        return ""
    told = [(DOING.get(kind, format.clean(kind)), seconds / whole) for kind, seconds in spent.items()]
    return ", ".join(f"{share:.0%} {doing}" for doing, share in told if share >= 0.005)


def _progress(event: Progress) -> str:
    where = shares(event.spent)
    return (
        f"pass {format.passes(event.passes)}  {format.many(event.steps, 'step')}  {format.many(event.examples, 'example')}  "
        f"train loss {format.loss(event.train_loss)}  {format.many(event.workers, 'worker')}{'  ' + where if where else ''}"
    )


def _spans(event: Spans) -> str:
    total: Counter[str] = Counter()
    for kind, _, seconds in event.spans:
        total[kind] += seconds  # type: ignore[assignment]
    each = ", ".join(f"{format.clean(kind)} {seconds:.3f} s" for kind, seconds in total.items())
    return f"{format.many(len(event.spans), 'span')} ({each})"

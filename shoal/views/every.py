"""Any event of a run in one line: for who wants to see them all (``verbosity = 3``), and for a log that is kept.

Plain functions of one event; as ``words``, they never raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shoal.events import Delayed, Evaluated, Progress, RunEvent, Saved, Shared, Spans, Started, Stopped
from shoal.views import words

DOING = {"compute": "computing", "communicate": "communicating", "wait": "waiting", "idle": "idle"}


def line(event: RunEvent) -> str:
    """When it was, and what."""
    return f"{clock(event.seconds)}  {said(event)}"


def clock(seconds: float) -> str:
    return f"{words.seconds(seconds):>6} s"


def said(event: RunEvent) -> str:
    match event:
        case Started():
            return started(event)
        case Progress():
            return _progress(event)
        case Evaluated():
            return (
                f"pass {words.passes(event.passes)}  {words.evaluation(event)}  {words.many(event.workers, 'worker')}"
            )
        case Saved():
            size = f"{event.bytes / 1e6:,.1f} MB"
            return f"checkpoint {event.number:,} saved at step {event.steps:,}: {size} in {words.duration(event.took)}"
        case Delayed():
            return f"workers may be {words.many(event.max_delay, 'step')} apart: they waited {event.waiting:.0%} of their time"
        case Spans():
            return f"{words.clean(event.name)}: {_spans(event)}"
        case Shared():
            held = ", ".join(
                f"{words.clean(name)} {number:,}{f' and copies of {copies:,}' if (copies := event.copies.get(name)) else ''}"
                for name, number in event.serves.items()
            )
            return f"parts: {held}"
        case Stopped():
            return f"stopped: {words.clean(event.why)}"
    return words.news(event)


def started(event: Started) -> str:
    what = ", ".join(words.what(event))
    rows = f"{event.rows:,} rows (and {event.test_rows:,} to test) of {event.features:,} features"
    emulated = f"; {words.clean(event.emulated)}" if event.emulated else ""
    return f"{what}: {rows}, {words.crew(event)}{words.on_cores(event)}{emulated}"


def shares(spent: Mapping[str, float]) -> str:
    """Where the workers' time went; nothing if that is not known."""
    whole = sum(spent.values())
    if not whole > 0:
        return ""
    told = [(DOING.get(kind, words.clean(kind)), seconds / whole) for kind, seconds in spent.items()]
    return ", ".join(f"{share:.0%} {doing}" for doing, share in told if share >= 0.005)


def _progress(event: Progress) -> str:
    where = shares(event.spent)
    return (
        f"pass {words.passes(event.passes)}  {words.many(event.steps, 'step')}  {words.many(event.examples, 'example')}  "
        f"train loss {words.loss(event.train_loss)}  {words.many(event.workers, 'worker')}{'  ' + where if where else ''}"
    )


def _spans(event: Spans) -> str:
    total: Counter[str] = Counter()
    for kind, _, seconds in event.spans:
        total[kind] += seconds  # type: ignore[assignment]
    each = ", ".join(f"{words.clean(kind)} {seconds:.3f} s" for kind, seconds in total.items())
    return f"{words.many(len(event.spans), 'span')} ({each})"

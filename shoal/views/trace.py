"""A run as a trace for chrome://tracing and ui.perfetto.dev.

    {"traceEvents": [{"ph": "X", "name": "compute", "pid": 1, "tid": 2, "ts": 10, "dur": 41}, ...]}

Nodes are threads, spans are slices. ``ph`` is M for names, X for spans (``ts`` and ``dur`` in
microseconds), i for moments, C for counters. Events are sorted by time, names first. Several runs
become several processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.events import RunEvent, Saved
from shoal.files import replace_file
from shoal.views import event_line, format
from shoal.views.run_record import Happened, RunMetrics, account

RUN = 0  # the thread of global events


def trace(runs: Sequence[tuple[str, Iterable[RunEvent]]], path: Path | None = None) -> dict[str, Any]:
    """The trace of some runs, each with a title; written to ``path`` if one is given."""
    whole = traced([(title, account(events)) for title, events in runs])
    if path is not None:
        write(whole, path)
    return whole


def traced(runs: Sequence[tuple[str, RunMetrics]]) -> dict[str, Any]:
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for number, (title, run) in enumerate(runs, 1):
        threads = {name: tid for tid, name in enumerate(run.nodes, RUN + 1)}
        names += _named(number, title, threads)
        events += [
            {"pid": number, **event} for event in (*_spans(run, threads), *_moments(run, threads), *_counts(run))
        ]
    events.sort(key=lambda event: event["ts"])
    emulated = [run.started.emulated for _, run in runs if run.started and run.started.emulated]
    notes = {"recorded": "some spans only (see trace.spans of the job)", "emulated": "; ".join(emulated) or "nothing"}
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": notes}


def write(whole: dict[str, Any], path: Path) -> None:
    replace_file(path, msgspec.json.encode(whole) + b"\n")


def _named(pid: int, title: str, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", pid, RUN, format.clean(title))
    for name, tid in {"run": RUN, **threads}.items():
        yield _name("thread_name", pid, tid, format.clean(name))
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "ts": 0, "args": {"sort_index": tid}}


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _spans(run: RunMetrics, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    for node in run.nodes.values():
        for kind, start, stop in node.spans:
            begin = _micro(start)
            yield {
                "ph": "X",
                "name": kind,
                "cat": "span",
                "tid": threads[node.name],
                "ts": begin,
                "dur": max(0, _micro(stop) - begin),
            }


def _moments(run: RunMetrics, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    for event in run.happened:
        tid = threads.get(getattr(event, "name", ""), RUN)
        scope = "t" if tid != RUN else "p"  # scope: one row, or all of this run
        said = _said(event)
        yield {"ph": "i", "name": said, "cat": "run", "tid": tid, "ts": _micro(event.seconds), "s": scope}


def _said(event: Happened) -> str:
    if isinstance(event, Saved):
        return f"checkpoint {event.number:,}"
    return event_line.news(event)


def _counts(run: RunMetrics) -> Iterator[dict[str, Any]]:
    for event in run.progress:
        yield {
            "ph": "C",
            "name": "workers",
            "tid": RUN,
            "ts": _micro(event.seconds),
            "args": {"workers": event.workers},
        }
        if event.train_loss is not None and math.isfinite(event.train_loss):
            yield _loss("train loss", event.seconds, event.train_loss)
    for judged in run.finite:
        yield _loss("test loss", judged.seconds, judged.test_loss)


def _loss(name: str, seconds: float, value: float) -> dict[str, Any]:
    return {"ph": "C", "name": name, "tid": RUN, "ts": _micro(seconds), "args": {"loss": value}}


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)

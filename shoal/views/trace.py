"""A run as a trace for chrome://tracing and ui.perfetto.dev.

    {"traceEvents": [{"ph": "X", "name": "compute", "pid": 1, "tid": 2, "ts": 10, "dur": 41}, ...]}

Nodes are threads, spans are slices. ``ph`` is M for names, X for spans (``ts`` and ``dur`` in
microseconds), i for moments, C for counters. Events are sorted by time, names first. Several runs
become several processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.events import Saved
from shoal.files import replace_file
from shoal.views import event_line, format
from shoal.views.run_record import RunMetrics

RUN = 0  # the thread of global events


def traced(runs: Sequence[tuple[str, RunMetrics]]) -> dict[str, Any]:
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for pid, (title, run) in enumerate(runs, 1):
        threads = {"run": RUN, **{name: tid for tid, name in enumerate(run.nodes, RUN + 1)}}
        names.append(_event("M", "process_name", pid, RUN, 0, args={"name": format.clean(title)}))
        for name, tid in threads.items():
            names.append(_event("M", "thread_name", pid, tid, 0, args={"name": format.clean(name)}))
            names.append(_event("M", "thread_sort_index", pid, tid, 0, args={"sort_index": tid}))
        events += _of_run(run, pid, threads)
    events.sort(key=lambda event: event["ts"])
    emulated = [run.started.emulated for _, run in runs if run.started and run.started.emulated]
    notes = {"recorded": "some spans only (see trace.spans of the job)", "emulated": "; ".join(emulated) or "nothing"}
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": notes}


def write(whole: dict[str, Any], path: Path) -> None:
    replace_file(path, msgspec.json.encode(whole) + b"\n")


def _event(ph: str, name: str, pid: int, tid: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "name": name, "pid": pid, "tid": tid, "ts": round(seconds * 1e6), **more}


def _of_run(run: RunMetrics, pid: int, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    for node in run.nodes.values():
        for kind, start, stop in node.spans:
            length = max(0, round(stop * 1e6) - round(start * 1e6))
            yield _event("X", kind, pid, threads[node.name], start, cat="span", dur=length)
    for event in run.happened:
        tid = threads.get(getattr(event, "name", ""), RUN)
        said = f"checkpoint {event.number:,}" if isinstance(event, Saved) else event_line.news(event)
        # scope: one row, or all of this run
        yield _event("i", said, pid, tid, event.seconds, cat="run", s="t" if tid != RUN else "p")
    for told in run.progress:
        yield _event("C", "workers", pid, RUN, told.seconds, args={"workers": told.workers})
        if told.train_loss is not None and math.isfinite(told.train_loss):
            yield _event("C", "train loss", pid, RUN, told.seconds, args={"loss": told.train_loss})
    for judged in run.finite:
        yield _event("C", "test loss", pid, RUN, judged.seconds, args={"loss": judged.test_loss})

"""A trace follows the rules of the format, and shows the same as the events."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.events import RunEvent, Saved, Spans
from shoal.views.run_record import account
from shoal.views.trace import traced, write

SPANS = [("compute", 0.5, 0.25), ("wait", 0.75, 0.125), ("idle", 1.0, 0.5)]


@pytest.fixture
def events(story: Any) -> list[Any]:
    told = [Spans(seconds=2.0, name=name, spans=SPANS) for name in ("worker-1", "evaluator", "worker-0")]
    saved = Saved(seconds=30.0, number=2, steps=100, bytes=8, took=0.1)
    away = story.evaluated(11, 61.0, 10.0, math.nan)
    return [*story.run(), *told, saved, away]


def trace(runs: list[tuple[str, list[RunEvent]]]) -> dict[str, Any]:
    return traced([(title, account(events)) for title, events in runs])


def check(whole: dict[str, Any]) -> None:
    """Checks the rules: numbers are numbers, threads have names, times never go back."""
    named = {(one["pid"], one["tid"]) for one in whole["traceEvents"] if one["name"] == "thread_name"}
    processes = {one["pid"] for one in whole["traceEvents"] if one["name"] == "process_name"}
    last = 0
    for one in whole["traceEvents"]:
        assert one["ph"] in "MXiC" and isinstance(one["name"], str)
        assert isinstance(one["ts"], int) and one["ts"] >= last
        last = one["ts"]
        assert (one["pid"], one["tid"]) in named and one["pid"] in processes
        match one["ph"]:
            case "X":
                assert isinstance(one["dur"], int) and one["dur"] >= 0
            case "i":
                assert one["s"] in ("t", "p", "g")
            case "C":
                assert all(isinstance(value, int | float) and math.isfinite(value) for value in one["args"].values())


def test_a_trace_keeps_the_rules_of_the_format(events: list[Any], tmp_path: Path) -> None:
    write(trace([("one", events), ("<other>\n", events)]), tmp_path / "trace.json")
    whole = json.loads((tmp_path / "trace.json").read_bytes())
    check(whole)
    assert whole["displayTimeUnit"] == "ms"
    assert {one["args"]["name"] for one in whole["traceEvents"] if one["name"] == "process_name"} == {"one", "<other>"}


def test_spans_come_back_as_they_were(events: list[Any]) -> None:
    whole = trace([("one", events)])
    tids = {one["tid"]: one["args"]["name"] for one in whole["traceEvents"] if one["name"] == "thread_name"}
    assert list(tids.values()) == ["run", "worker-0", "worker-1", "evaluator"]
    found = [one for one in whole["traceEvents"] if one["ph"] == "X"]
    for name in ("worker-0", "worker-1", "evaluator"):
        mine = [(one["name"], one["ts"] / 1e6, one["dur"] / 1e6) for one in found if tids[one["tid"]] == name]
        assert mine == SPANS


def test_who_came_and_went_and_what_was_saved_are_moments(events: list[Any]) -> None:
    moments = {one["name"]: one["ts"] for one in trace([("one", events)])["traceEvents"] if one["ph"] == "i"}
    assert moments["checkpoint 2"] == 30_000_000
    assert moments["worker-4 joined"] == 30_000_000
    assert any(name.startswith("worker-3 gone: its process ended") for name in moments)


def test_losses_and_workers_are_counters(events: list[Any]) -> None:
    counted = [one for one in trace([("one", events)])["traceEvents"] if one["ph"] == "C"]
    assert {one["name"] for one in counted} == {"workers", "train loss", "test loss"}
    assert {one["args"]["workers"] for one in counted if one["name"] == "workers"} == {3, 4}
    # The loss that is NaN is left out.
    assert len([one for one in counted if one["name"] == "test loss"]) == 11


def test_what_is_emulated_is_said(story: Any) -> None:
    started = replace(story.started(), emulated="emulated compute (40 us per example)")
    assert trace([("one", [started])])["otherData"]["emulated"] == "emulated compute (40 us per example)"
    assert trace([("one", [])])["traceEvents"][0]["args"] == {"name": "one"}

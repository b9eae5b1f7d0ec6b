"""The board of a sweep fits the terminal and shows all progress without colour."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.sweep.disk import PointResult, Sweep
from shoal.sweep.report import printed
from shoal.sweep.results import figures
from shoal.sweep.schedule import estimate
from shoal.sweep.show import (
    SweepProgress,
    audience,
    frame,
    how_far,
)
from shoal.sweep.study import Study

Make = Callable[..., Sweep]
STUDY = Study.of({"job": {"data": "clicks"}, "seeds": 2, "grid": {"workers": [1, 2]}}, "made")


def so_far() -> SweepProgress:
    results = [PointResult(run, "to do", Path("nowhere")) for run in STUDY.runs]
    known = SweepProgress(STUDY, results)
    known.running = [("workers 2, seed 1", 8.1, "epoch 2.3   test loss 0.4421")]
    known.ended(PointResult(STUDY.runs[0], "finished", Path("nowhere"), "", {"test_loss": 0.4398}), 12.0)
    known.ended(PointResult(STUDY.runs[1], "failed", Path("nowhere"), "given up after 600 s"), 600.0)
    return known


def test_the_board_says_what_runs_what_ended_and_what_is_left() -> None:
    seen = "\n".join(line.plain for line in frame(so_far(), 100, 24))
    for part in ("made · 4 runs", "1 of 4, 1 failed", "● workers 2, seed 1", "test loss 0.4421", "left"):
        assert part in seen
    assert (
        "✔ workers 1, seed 0: test loss 0.4398" in seen and "✘ workers 2, seed 0: failed: given up after 600 s" in seen
    )


@pytest.mark.variants(
    slow=["80-24-False", "80-24-True", "40-12-False", "40-12-True", "20-4-False", "20-4-True", "1-1-False", "1-1-True"]
)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (40, 12), (20, 4), (1, 1)])
def test_nothing_is_longer_than_the_terminal_is_wide(width: int, height: int, plain: bool) -> None:
    lines = frame(so_far(), width, height, plain)
    assert len(lines) <= max(1, height - 1)
    assert all(line.cell_len < max(2, width) for line in lines)
    if plain:
        assert "".join(line.plain for line in lines).isascii()


def test_where_there_is_no_terminal_every_run_is_a_line() -> None:
    stream = io.StringIO()
    results = [PointResult(run, "to do", Path("nowhere")) for run in STUDY.runs]
    with audience(STUDY, results, stream) as seats:
        seats.goes_on([])
        seats.ended(PointResult(STUDY.runs[0], "finished", Path("nowhere"), "", {"test_loss": 0.4398}), 12.0)
    assert stream.getvalue() == "   1 of 4  workers 1, seed 0: test loss 0.4398, 12 s; about 36 s left\n"


def test_how_far_a_run_is_is_read_off_the_end_of_its_events(tmp_path: Path) -> None:
    assert how_far(tmp_path) == ""
    lines = [
        '{"event":"evaluated","seconds":1.0,"passes":1.0,"test_loss":0.5}',
        '{"event":"progress","seconds":2.0,"passes":2.25}',
        '{"event":"spans","seconds":2.0,"name":"worker-0","spans":[]}',
        '{"event":"progress","seco',
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert how_far(tmp_path) == "epoch 2.2   test loss 0.5000"


def test_what_is_left_is_estimated_from_what_is_done_and_not_from_nothing() -> None:
    assert estimate([], 3, 1) is None
    assert estimate([10.0, 20.0], 0, 1) == 0.0
    assert estimate([10.0, 20.0], 3, 2) == 30.0


@pytest.mark.parametrize("width", [200, 120, 80, 60])
def test_a_narrow_terminal_gets_fewer_columns_and_none_that_are_cut(made: Make, told: Any, width: int) -> None:
    tree = {"grid": {"workers": [1, 2], "strategy": ["sync", "async"]}, "seeds": 2, "target": 0.45, "serial": {}}
    of = figures(made(tree, lambda run: told(half=1.0 + run.seed)))
    stream = io.StringIO()
    Console(file=stream, width=width).print(printed(of, width))
    seen = stream.getvalue()
    assert "…" not in seen
    assert "speedup" in seen
    assert ("(p95)" in seen) == (width > 120)

"""Seconds, CPU seconds and accuracies are compared for the same number of rows.

The runs are made up.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.sweep.disk import Sweep
from shoal.sweep.findings import paragraphs
from shoal.sweep.plots import write_pictures
from shoal.sweep.report import points_table, write_tables
from shoal.sweep.results import figures
from shoal.sweep.study import PlannedRun

Make = Callable[..., Sweep]
METHODS = {"psgd": {"strategy": "averaging"}, "hogwild": {"strategy": "hogwild"}}
TREE = {"grid": {"workers": [1, 2, 4], "method": METHODS}, "seeds": 2, "serial": {}}


def even(told: Any, rows: float = 60_000.0) -> Callable[[PlannedRun], Any]:
    """P workers take 10 / P seconds for all rows.

    Each takes a tenth more CPU seconds; psgd is less accurate with more workers.
    """

    def tells(run: PlannedRun) -> Any:
        workers = 1 if run.point.serial else run.job.workers
        lost = 0.02 * (workers - 1) if run.job.strategy.name == "averaging" else 0.0
        seconds = 10.0 / workers
        return told(end=seconds, every=seconds / 4, rate=rows / seconds, cpu=10.0 + workers, accuracy=0.99 - lost)

    return tells


def test_where_all_learned_from_as_many_rows_they_are_held_against_the_serial_run(made: Make, told: Any) -> None:
    of = figures(made(TREE, even(told)))
    assert of.same_work
    found = {(one.point.choices["workers"].label, one.point.choices["method"].label): one for one in of.points}
    assert [found[n, "hogwild"].spread("speedup_same_rows").median for n in "124"] == pytest.approx([1.0, 2.0, 4.0])  # type: ignore[union-attr]
    assert [found[n, "hogwild"].spread("cpu_seconds").median for n in "124"] == [11.0, 12.0, 14.0]  # type: ignore[union-attr]
    said = " ".join(paragraphs(of))
    assert "hogwild 1.00 at 1, 2.00 at 2, 4.00 at 4" in said and "Each run had 2 cores" in said
    assert "Times the CPU seconds: psgd 1.00 at 1" in said


def test_runs_of_other_lengths_are_not_held_against_each_other(made: Make, told: Any, tmp_path: Path) -> None:
    def tells(run: PlannedRun) -> Any:
        return told(end=10.0, rate=100.0 * run.job.workers, accuracy=0.9)

    of = figures(made(TREE, tells))
    assert not of.same_work and "equally many rows" not in " ".join(paragraphs(of))
    assert "seconds" not in points_table(of).heads
    assert "work" not in {path.stem for path in write_pictures(of, tmp_path)}


def test_what_is_more_than_a_point_below_the_serial_run_is_named(made: Make, told: Any) -> None:
    said = " ".join(paragraphs(figures(made(TREE, even(told)))))
    assert "the best serial run 0.9900" in said
    assert "More than a point below that: workers 2, psgd (-2.0); workers 4, psgd (-6.0)." in said
    same = " ".join(paragraphs(figures(made(TREE, lambda run: told(accuracy=0.985)))))
    assert "All are within a point of that, or above." in same


def test_time_cost_and_accuracy_are_drawn_and_written(made: Make, told: Any, tmp_path: Path) -> None:
    of = figures(made(TREE, even(told)))
    assert {"work", "accuracy"} <= {path.stem for path in write_pictures(of, tmp_path)}
    assert {"accuracy", "seconds", "CPU seconds", "x serial, same rows"} <= set(points_table(of).heads)
    write_tables(of, tmp_path)
    with open(tmp_path / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["cpu_seconds"] for row in rows if row["workers"] == "4"} == {"14.0"}
    assert {row["speedup_same_rows"] for row in rows if row["workers"] == "4"} == {"4.0"}
    # No worker pushes.
    assert not any(row["staleness_mean"] for row in rows if row["method"] == "hogwild")

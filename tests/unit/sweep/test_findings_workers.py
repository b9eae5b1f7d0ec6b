"""A sweep shows the active workers at each loss, and the distance between models.

The runs are made up.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.sweep.disk import Sweep
from shoal.sweep.findings import active_table, paragraphs
from shoal.sweep.plots import write_pictures
from shoal.sweep.report import points_table, printed, sections, write_tables
from shoal.sweep.results import figures
from shoal.sweep.study import PlannedRun

Make = Callable[..., Sweep]
TREE = {"grid": {"workers": [1, 2, 8]}, "seeds": 2, "target": 0.45}


def one_by_one(told: Any) -> Callable[[PlannedRun], Any]:
    """Of eight workers three are there at first, then six; the second seed has one more."""

    def tells(run: PlannedRun) -> Any:
        late = (3 + run.seed, 6 + run.seed, 8)
        return told(workers=late if run.job.workers == 8 else (run.job.workers,))

    return tells


def test_workers_that_come_one_by_one_are_seen_in_the_table_and_said(made: Make, told: Any) -> None:
    of = figures(made(TREE, one_by_one(told)))
    table = active_table(of)
    assert table is not None and table.heads[:4] == ["workers", "before", "loss 1", "loss 2"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["8"][:3] == ["3 .. 4", "6 .. 7", "8"] and rows["8"][-3:] == ["8", "8", "36 of 38"]
    assert rows["2"][-1] == "38 of 38"
    said = " ".join(paragraphs(of))
    assert "Not all workers were at work at every evaluation. All were, at: workers 8 (36 of 38)." in said
    assert any(table in part.tables for part in sections(of.sweep))


def test_on_a_terminal_the_table_is_shown_only_if_somebody_was_missing(made: Make, told: Any) -> None:
    def shown(sweep: Sweep) -> str:
        console = Console(file=io.StringIO(), width=140)
        console.print(printed(figures(sweep), 140))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "workers present at each loss" in shown(made(TREE, one_by_one(told)))
    whole = shown(made(TREE, lambda run: told(workers=(run.job.workers,))))
    assert "workers present at each loss" not in whole
    assert "All workers of a run were at work at each of its evaluations." in whole


def test_of_runs_that_work_alone_nothing_is_said(made: Make, told: Any) -> None:
    of = figures(made({"serial": {"update.step": [0.1, 0.2]}, "seeds": 1}, lambda run: told(workers=(1,))))
    assert active_table(of) is None and "at work" not in " ".join(paragraphs(of))


def test_the_distance_of_everybodys_models_is_in_tables_words_and_a_picture(
    made: Make, told: Any, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    topologies = {one: {"strategy": {"name": "gossip", "topology": one}} for one in ("ring", "complete")}
    tree = {"grid": {"graph": topologies}, "seeds": 2, "picture": {"log": True}}
    of = figures(made(tree, lambda run: told(distance=1.0 if "ring" in run.name else 0.001)))
    table = points_table(of)
    assert [row[table.heads.index("distance")] for row in table.rows] == ["9.5e-07", "9.5e-10"]
    assert "nobody's model" in " ".join(paragraphs(of)) and "9.5e-07 at ring" in " ".join(paragraphs(of))
    assert "consensus" in {path.stem for path in write_pictures(of, tmp_path)}
    write_tables(of, tmp_path)
    with open(tmp_path / "table.csv") as file:
        assert all(float(row["distance"]) < 1e-6 and float(row["worst_loss"]) > 0.7 for row in csv.DictReader(file))


def test_where_nobody_has_a_model_of_its_own_no_distance_is_shown(made: Make, told: Any, tmp_path: Path) -> None:
    of = figures(made(TREE, lambda run: told()))
    assert "distance" not in points_table(of).heads and "Distance" not in " ".join(paragraphs(of))
    assert "consensus" not in {path.stem for path in write_pictures(of, tmp_path)}

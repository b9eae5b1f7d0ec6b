"""The findings of a sweep say which point is best, and what is missing.

Tables and pictures work for unusual sweeps, too.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.sweep.disk import Sweep
from shoal.sweep.findings import paragraphs
from shoal.sweep.grid import axes_of
from shoal.sweep.plots import _time, pictures, write_pictures
from shoal.sweep.report import points_table, sections, write_tables
from shoal.sweep.results import AxisScale, figures
from shoal.sweep.study import PlannedRun

Make = Callable[..., Sweep]
DELAYS = {"job": {"data": "clicks", "strategy": "bounded"}, "grid": {"strategy.max_delay": [0, 1, 2, 4, 8, "auto"]}}


def u_shaped(told: Any) -> Callable[[PlannedRun], Any]:
    def tells(run: PlannedRun) -> Any:
        delay = run.job.strategy.max_delay  # type: ignore[union-attr]
        far = abs((3 if delay == "auto" else delay) - 2)
        known = 0 if delay == "auto" else delay
        return told(half=1.0 + 0.5 * far + 0.01 * run.seed, wait=0.5 / (1 + known), stale=float(known), end=20.0)

    return tells


def test_a_best_inside_is_said_with_what_both_ends_cost(made: Make, told: Any) -> None:
    said = " ".join(paragraphs(figures(made({**DELAYS, "seeds": 3, "target": 0.45}, u_shaped(told)))))
    assert "Soonest at the target (test loss 0.4500): max_delay 2, 3 s." in said
    assert (
        "lowest at 2: 3 s, inside; 0 takes 5.5 s" in said and "8 takes 10.5 s" in said and "3.50 times as long" in said
    )
    assert "auto takes 4 s" in said
    assert "Workers wait 50% of their time at 0, 5.6% at 8" in said
    assert "an edge" not in said


def test_a_difference_that_not_every_seed_shows_is_said_so(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        times = {1: (1.0, 2.0, 3.0), 2: (2.0, 3.0, 1.0)}
        return told(half=times[run.job.workers][run.seed], end=30.0, every=0.1)

    said = " ".join(paragraphs(figures(made({"grid": {"workers": [1, 2]}, "seeds": 3, "target": 0.55}, tells))))
    assert "2 takes 2 s (1 to 3), as long (tied; worse in 2 of 3 seeds)" in said


def test_points_whose_seeds_overlap_are_tied(made: Make, told: Any) -> None:
    losses = {1: (0.4354, 0.4372), 2: (0.4351, 0.4376), 4: (0.46, 0.47)}
    tree = {"grid": {"workers": [1, 2, 4]}, "seeds": 2}
    of = figures(made(tree, lambda run: told(floor=losses[run.job.workers][run.seed], end=40.0)))
    said = " ".join(paragraphs(of))
    assert "Lowest median last test loss: workers 1, 0.4363" in said
    assert "; tied with workers 2: ranges over seeds overlap." in said
    assert "2 has 0.4363 (0.4351 to 0.4376)" not in said and "4 has 0.4650" in said
    assert [row[-1] for row in points_table(of).rows] == ["best", "tied", ""]
    apart = figures(made({**tree, "seeds": 1}, lambda run: told(floor=losses[run.job.workers][run.seed])))
    assert "tied" not in " ".join(paragraphs(apart))  # one seed has no range


def test_where_nobody_reached_the_target_the_best_loss_is_drawn_and_said(made: Make, told: Any) -> None:
    tree = {"grid": {"workers": [1, 2, 4]}, "seeds": 2, "target": 0.2}
    of = figures(made(tree, lambda run: told(floor=0.4 + run.job.workers / 100 + run.seed / 1_000)))
    said = " ".join(paragraphs(of))
    assert "No point reached the target (test loss 0.2000) with all its seeds. Lowest median best test loss: " in said
    figure, caption = _time(of) or pytest.fail("nothing is drawn")
    (axes,) = figure.axes
    assert axes.get_ylabel() == "best test loss" and caption.startswith("Best test loss over workers")
    assert [text.get_text() for text in axes.texts] == ["target 0.2000"]
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert drawn and all(y > 0.4 for line in drawn for y in line.get_ydata())
    assert figure.get_suptitle().replace("\n", " ").startswith("No point reached the target")


def test_what_is_left_is_drawn_and_the_runs_that_are_missing_are_named(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        gone = run.job.workers == 4 or (run.job.workers, run.seed) == (2, 1)
        return told(state="to do" if gone else "finished", half=run.job.workers / 2)

    of = figures(made({"grid": {"workers": [1, 2, 4]}, "seeds": 2, "target": 0.45}, tells))
    missing = "Missing (not run yet, or deleted): workers 2 (1 of 2); workers 4 (2 of 2)."
    assert missing in " ".join(paragraphs(of))
    figure, _ = _time(of) or pytest.fail("nothing is drawn")
    assert missing in figure.get_supxlabel().replace("\n", " ")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["1 of 2 finished", "0 of 2 finished"]


def test_without_its_serial_run_a_target_is_not_known_and_not_said_to_be_missed(made: Make, told: Any) -> None:
    tree = {"grid": {"workers": [1, 2]}, "seeds": 2, "target": "serial + 10%", "serial": {}}
    of = figures(made(tree, lambda run: told(state="to do" if run.point.serial else "finished")))
    said = " ".join(paragraphs(of))
    assert "The target (test loss of the best serial run + 10%) is not known. Lowest" in said
    assert "Missing (not run yet, or deleted): serial (2 of 2)." in said


def test_a_best_at_the_end_says_that_there_may_be_a_better_one(made: Make, told: Any) -> None:
    tree = {"grid": {"update.step": [0.1, 0.2, 0.4]}, "seeds": 1}
    said = " ".join(paragraphs(figures(made(tree, lambda run: told(floor=0.5 - run.job.update.step / 10)))))
    assert "step 0.4 is the highest that was tried" in said and "may lie beyond" in said


def test_what_was_not_reached_failed_or_diverged_is_named(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        states = {1: "failed", 2: "diverged"}
        return told(state=states.get(run.job.workers, "finished"), floor=0.5 if run.job.workers == 3 else 0.4)

    said = " ".join(paragraphs(figures(made({"grid": {"workers": [1, 2, 3, 4]}, "seeds": 2, "target": 0.45}, tells))))
    assert "8 runs, 2 failed, 2 diverged" in said
    assert "workers 3 (0 of 2)" in said and "these points have no time" in said
    assert "Failed: workers 1 (2 of 2: broken)" in said and "Diverged: workers 2 (2 of 2)" in said


def test_emulated_computing_is_said_wherever_speed_is(made: Make, told: Any) -> None:
    tree = {"grid": {"workers": [1, 2]}, "seeds": 1, "target": 0.45, "serial": {}}
    sweep = made(tree, lambda run: told(emulated="emulated compute (50 us per example)"))
    assert "The computing is emulated (emulated compute (50 us per example))" in " ".join(paragraphs(figures(sweep)))
    assert any("Emulated" in text for text in sections(sweep)[0].words)


def test_points_that_were_not_reached_have_a_dash_in_the_table(made: Make, told: Any) -> None:
    of = figures(made({"grid": {"workers": [1, 2]}, "seeds": 2, "target": 0.45}, lambda run: told(floor=0.4 if run.job.workers == 2 or run.seed else 0.5)))  # fmt: skip
    table = points_table(of)
    row = dict(zip(table.heads, table.rows[0], strict=True))
    assert (row["reached"], row["seconds to target"]) == ("1 of 2", "-")


def test_tables_are_written_with_every_run(made: Make, told: Any, tmp_path: Path) -> None:
    states = {0: "finished", 1: "diverged", 2: "failed"}
    of = figures(
        made({"grid": {"workers": [1, 2]}, "seeds": 3, "target": 0.45}, lambda run: told(state=states[run.seed]))
    )
    write_tables(of, tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["finished", "diverged", "failed"] * 2
    assert rows[0]["time_to_target"] == "3.0" and rows[1]["time_to_target"] == rows[2]["last_loss"] == ""
    facts = json.loads((tmp_path / "table.json").read_text())
    assert len(facts["runs"]) == 6 and facts["points"][0]["time"] is None


@pytest.mark.variants(slow=["tree3", "tree4", "tree5", "tree6", "tree7"])
@pytest.mark.parametrize(
    "tree",
    [
        {"grid": {"workers": [1]}},
        {"grid": {"workers": [1, 2, 4, 8], "strategy": ["sync", "async"]}, "serial": {"update.step": [0.1]}},
        {"grid": {"update.step": [0.1, 0.2, 0.4], "update.l2": [0.0, 1e-5, 1e-4]}},
        {"grid": {"strategy": ["sync", "async"]}},
        {"grid": {"workers": [1, 2], "servers": [1, 2], "data.batch": [64, 128], "$x^$": {"a_b": {"copies": 1}}}},
        {"serial": {"update.step": [0.1, 0.2]}},
        {"serial": {}},
        DELAYS,
    ],
)
def test_whatever_is_compared_it_can_be_shown(made: Make, told: Any, tmp_path: Path, tree: dict[str, Any]) -> None:
    states = ["finished", "finished", "finished", "diverged", "to do"]
    numbers = iter(range(10_000))
    tree = {**tree, "seeds": 2, "target": 0.45}
    shown = sections(made(tree, lambda run: told(state=states[next(numbers) % len(states)], end=5.0)))
    assert [section.title for section in shown] == ["made", "Findings", "Every run"]
    assert all(picture.svg.startswith(b"<?xml") for section in shown for picture in section.pictures)


@pytest.mark.parametrize("state", ["finished", "to do", "failed", "diverged"])
def test_however_runs_ended_it_can_be_shown(made: Make, told: Any, tmp_path: Path, state: str) -> None:
    of = figures(made({"grid": {"workers": [1, 2]}, "seeds": 1}, lambda run: told(state=state, end=5.0)))
    write_tables(of, tmp_path)
    written = write_pictures(of, tmp_path)
    assert all(path.stat().st_size > 1_000 for path in written)
    assert {path.stem for path in written} == (
        {"time", "waiting", "curves"} | ({"work"} if state == "finished" else set())
        if state in ("finished", "diverged")
        else set()
    )


def test_the_same_figures_make_the_same_picture(made: Make, told: Any) -> None:
    tree = {**DELAYS, "seeds": 2, "target": 0.45}
    first, second = (pictures(figures(made(tree, u_shaped(told)))) for _ in range(2))
    assert [one.svg for one in first] == [one.svg for one in second]
    assert [one.name for one in first] == ["time", "waiting", "curves"]


def test_values_that_grow_by_factors_are_spread_evenly_and_words_come_last() -> None:
    (axis,) = axes_of({"strategy.max_delay": [0, 1, 2, 4, 8, "auto"]}, "grid")
    scale = AxisScale.of(axis)
    assert [scale.places[choice.label] for choice in axis.choices] == pytest.approx([0, 1, 2, 3, 4, 5])
    (axis,) = axes_of({"workers": [1, 2, 3, 4]}, "grid")
    assert list(AxisScale.of(axis).places.values()) == [1, 2, 3, 4]
    assert AxisScale.of(axis).place(2.5) == 2.5 and AxisScale.of(axis).place(9.0) is None

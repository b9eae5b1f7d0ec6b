"""The Hogwild study fixes its loss before it times, and compares with one thread.

It compares with the best case of one thread. Speed is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import hogwild
from benchmarks.harness import load
from benchmarks.hogwild import (
    Case,
    Curve,
    Goal,
    Point,
    Results,
    Settings,
    Shape,
    Variant,
    picture,
    table,
    variants,
    verdicts,
)
from shoal.cli.main import main

pytestmark = pytest.mark.slow  # other tests cover the measured code

TINY = Settings(
    rows=2_000,
    clicks=10_000,
    threads=(1, 2),
    batches=(64,),
    splits=((100, 64),),
    passes=1,
    points=2,
    repeat=1,
    test_rows=500,
    grid=2,
    rules=("adagrad",),
)


def test_the_command_prints_and_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hogwild, "QUICK", TINY)
    path = tmp_path / "all.json"
    told = CliRunner().invoke(main, ["bench", "hogwild", "--quick", "--json", str(path)])
    assert told.exit_code == 0, told.output
    results = load(path, Results)
    assert {goal.shape.name for goal in results.goals} == {"rcv1-like", "click-like"}
    for goal in results.goals:
        cases = [case for case in results.cases if case.shape == goal.shape.name]
        alone = [case.seconds for case in cases if case.threads == 1 and case.variant.way != "sklearn" and case.seconds]
        assert goal.seconds == min(alone)  # the rival is the best case of one thread
        for way in ("example", "locked", "batched", "hot_cold"):
            assert [case.threads for case in cases if case.variant.way == way] == [1, 2]
        assert all(case.rows_per_second > 0 for case in cases)
        assert not any(case.lost for case in cases if case.variant.way == "locked" or case.threads == 1)


def test_what_was_measured_elsewhere_is_shown_and_drawn_here(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, drawn = tmp_path / "there.json", tmp_path / "lines.svg"
    path.write_bytes(msgspec.json.encode(_made_up()))
    told = CliRunner().invoke(main, ["bench", "hogwild", "--from", str(path), "--picture", str(drawn)])
    assert told.exit_code == 0, told.output
    assert "4.0 times as soon (hot/cold, sgd)" in told.output
    assert picture(_made_up()).axes and drawn.stat().st_size
    path.write_text("{}")
    wrong = CliRunner().invoke(main, ["bench", "hogwild", "--from", str(path)])
    assert wrong.exit_code != 0 and "measure again" in wrong.output


def test_a_case_that_never_reaches_the_loss_is_shown_as_such() -> None:
    results = _made_up()
    never = results.cases[-1]
    assert results.speedup(never) is None and table(results).row_count == len(results.cases)
    assert verdicts(results) == [
        "rcv1-like: one thread is at 0.3000 after 2.000 s (example, sgd); 8 threads 4.0 times as soon (hot/cold, sgd)"
    ]


def test_the_loss_is_reached_between_two_points_on_the_straight_line() -> None:
    one = Curve(0.1, [Point(0.0, 0, 0.75), Point(1.0, 100, 0.5), Point(3.0, 300, 0.25)])
    assert one.reached(0.375) == Point(2.0, 200, 0.375) and one.reached(0.2) is None
    assert one.reached(0.5) == Point(1.0, 100, 0.5)


def test_ways_that_take_the_steps_of_another_come_after_it() -> None:
    ways = [variant.way for variant in variants(Settings())]
    assert ways.index("locked") > ways.index("example") and ways.index("serial") > ways.index("batched")


def test_threads_that_are_no_numbers_are_refused() -> None:
    told = CliRunner().invoke(main, ["bench", "hogwild", "--threads", "two"])
    assert told.exit_code == 2 and "such as 1,2,4" in told.output


def _made_up() -> Results:
    shape = Shape("rcv1-like", "rcv1-like", 1_000, 2_000, 0.05)
    example, split, batched = Variant("example", "sgd"), Variant("hot_cold", "sgd"), Variant("batched", "sgd", 256)
    cases = [
        Case(shape.name, example, 1, 0.5, 1e6, 2.0, 2_000_000, 0.29, 0.0),
        Case(shape.name, example, 8, 0.5, 1e6, 2.5, 2_500_000, 0.29, 0.2),
        Case(shape.name, split, 1, 0.5, 9e5, 2.2, 2_000_000, 0.29, 0.0),
        Case(shape.name, split, 8, 0.5, 5e6, 0.5, 2_500_000, 0.29, 0.01),
        Case(shape.name, batched, 1, 5.0, 2e6, None, None, 0.35, 0.0),
        Case(shape.name, batched, 8, 5.0, 8e6, None, None, 0.36, 0.0),
    ]
    return Results(TINY, "some processor", 8, 1.0, [Goal(shape, 0.3, 76.0, "example, sgd", 2.0)], cases)

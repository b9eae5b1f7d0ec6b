"""Gantt pictures show the reported spans, and time without a report is hatched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.errors import Invalid
from shoal.events import Gone, Joined, RolledBack, RunEvent, Saved, Spans
from shoal.views.axes import save
from shoal.views.run_record import account
from shoal.views.timeline import ROWS, STEPS, computations, default_windows, drawn, one_step, rows, step

pytest.importorskip("matplotlib")


def timeline(runs: list[tuple[str, list[RunEvent]]], window: tuple[float, float] | None = None) -> Any:
    return drawn([(title, account(events)) for title, events in runs], window)


def course(slow: float = 1.0, workers: int = 2, seconds: float = 20.0) -> list[RunEvent]:
    """Workers that compute 0.1 s and wait 0.05 s in turn; the first is ``slow`` times as slow."""
    told: list[RunEvent] = []
    for number in range(workers):
        pace, at = (slow if number == 0 else 1.0), 0.0
        spans = []
        while at < seconds:
            spans += [("compute", at, 0.1 * pace), ("wait", at + 0.1 * pace, 0.05 * pace)]
            at += 0.15 * pace
        told.append(Spans(seconds=seconds, name=f"worker-{number}", spans=spans))
    return told


def bars(panel: Any, color: str) -> int:
    from matplotlib.colors import to_hex

    return sum(len(one.get_paths()) for one in panel.collections if [to_hex(c) for c in one.get_facecolor()] == [color])


def said(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


def test_some_steps_of_the_slowest_worker_are_shown_by_default() -> None:
    run = account(course(slow=3.0))
    ((start, stop),) = default_windows([run])
    assert stop - start == pytest.approx(STEPS * 0.45, rel=0.01)
    assert start > 0 and stop < 20


def test_runs_are_shown_over_the_same_length_of_time() -> None:
    figure = timeline([("sync", course(slow=3.0)), ("async", course())])
    first, second = figure.axes
    lengths = [panel.get_xlim()[1] - panel.get_xlim()[0] for panel in (first, second)]
    assert lengths[0] == pytest.approx(lengths[1])
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["sync", "async"]


def test_every_span_in_the_window_is_drawn_in_its_colour() -> None:
    (panel,) = timeline([("one", course(workers=1))], window=(3.0, 6.0)).axes
    assert bars(panel, "#0072b2") == bars(panel, "#d55e00") == 20
    assert [label.get_text() for label in panel.get_yticklabels()] == ["worker-0"]


def test_shares_at_the_end_of_a_row_are_those_of_the_whole_run() -> None:
    late = Spans(seconds=40.0, name="worker-0", spans=[("idle", 20.1, 20.1)])
    (panel,) = timeline([("one", [*course(workers=1), late])], window=(1.0, 2.0)).axes
    assert {"33%", "17%", "50%"} <= set(said(panel))


def test_what_was_not_recorded_is_hatched_while_the_node_was_there() -> None:
    gone = Gone(seconds=15.0, name="worker-0", role="worker", why="killed")
    joined = Joined(seconds=0.0, name="worker-0", role="worker")
    (panel,) = timeline([("one", [joined, *course(workers=1, seconds=5.0), gone])], window=(0.0, 30.0)).axes
    (hatched,) = [one for one in panel.collections if one.get_hatch()]
    (path,) = hatched.get_paths()
    assert path.get_extents().x1 == pytest.approx(15.0)


def test_emulated_computing_is_called_so(story: Any) -> None:
    started = replace(story.started(), emulated="emulated compute (40 us per example)")
    (panel,) = timeline([("one", [started, *course()])]).axes
    assert panel.get_title(loc="left") == "one (emulated compute)"


def test_checkpoints_joins_losses_and_going_back_are_marked() -> None:
    happened: list[RunEvent] = [
        Saved(seconds=1.0, number=3, steps=9, bytes=1, took=0.1),
        Joined(seconds=2.0, name="worker-4", role="worker"),
        Gone(seconds=3.0, name="worker-1", role="worker", why="killed"),
        RolledBack(seconds=4.0, checkpoint=3, steps_before=9, steps_after=3, slots=[], why="all copies lost"),
        Saved(seconds=9.0, number=4, steps=9, bytes=1, took=0.1),  # outside of the window
    ]
    (panel,) = timeline([("one", [*course(), *happened])], window=(0.5, 5.0)).axes
    marked = [text.strip() for text in said(panel)]
    assert [one for one in marked if len(one) > 4] == [
        "checkpoint 3",
        "worker-4 joined",
        "worker-1 gone",
        "rolled back",
    ]


def test_of_many_nodes_the_slowest_and_the_evaluator_are_shown(story: Any) -> None:
    each = {f"worker-{n}": {"slots": 10, "compute": 9.0 if n == 29 else 1.0} for n in range(30)}
    judged = Spans(seconds=1.0, name="evaluator", spans=[("evaluate", 0.5, 0.1)])
    run = account([*course(workers=30), judged, replace(story.evaluated(0, 1.0, 1.0, 0.5), each=each)])
    names = [node.name for node in rows(run)]
    assert len(names) == ROWS and names[-2:] == ["worker-29", "evaluator"]
    assert drawn([("many", run)]).axes[0].get_title(loc="left") == "many, 14 more nodes not shown"


def test_a_run_without_spans_has_a_picture_that_says_so() -> None:
    (panel,) = timeline([("one", [])]).axes
    assert "nothing was recorded" in said(panel)


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    events = [Spans(seconds=1.0, name="worker-$x_{$", spans=[("compute", 0.1, 0.5)])]
    save(timeline([("$x_{$", events)]), tmp_path / "one.svg")
    assert "worker-$x_{$" in (tmp_path / "one.svg").read_text()


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="names no kind of picture"):
        save(timeline([("one", course())]), tmp_path / "one.txt")


def test_rows_that_are_made_ready_are_no_computation_of_their_own() -> None:
    assert computations([("compute", 0.0, 1.0), ("compute", 1.1, 1.101), ("compute", 2.0, 3.0)]) == [(0, 1), (2, 3)]


def test_one_step_goes_from_a_computation_to_the_next() -> None:
    run = account(course(workers=1))
    found = one_step(run)
    assert found is not None
    assert [kind for kind, _, _ in found[1]] == ["compute", "wait"]
    figure = step(run)
    assert figure is not None
    assert [text.partition("\n")[0] for text in said(figure.axes[0])] == [
        "1 compute",
        "2 push … 4 pull",
        "3 update, on the servers, some time in here",
    ]


def test_without_a_step_there_is_no_picture_of_one() -> None:
    assert step(account([])) is None
    assert step(account([Spans(seconds=1.0, name="worker-0", spans=[("compute", 0.0, 1.0)])])) is None

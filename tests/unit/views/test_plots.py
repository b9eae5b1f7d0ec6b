"""Pictures are drawn from events alone; the tests check what is on the figure.

Any events will do.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from shoal.errors import Invalid
from shoal.events import Evaluated, Stopped, Warned, read_run
from shoal.views import loss
from shoal.views.plots import POINTS, epoch_ticks, thinned

matplotlib = pytest.importorskip("matplotlib")


def curves(panel: Any) -> dict[str, list[tuple[float, float]]]:
    """The points of every curve with a label, by label."""
    return {
        str(line.get_label()): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in panel.lines
        if not str(line.get_label()).startswith("_")
    }


def caption(figure: Any) -> str:
    return " ".join(figure.get_supxlabel().split())


def labels(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


def test_losses_metrics_and_who_came_and_went_are_on_one_picture(story: Any) -> None:
    figure = loss(story.run())
    upper, lower, strip = figure.axes
    drawn = curves(upper)
    assert list(drawn) == ["train", "test", "best test loss 0.1303 at epoch 7"]
    assert len(drawn["train"]) == 240
    assert [x for x, _ in drawn["test"]] == pytest.approx([6 * at for at in range(11)])
    ((at, height),) = drawn["best test loss 0.1303 at epoch 7"]
    assert (at, round(height, 4)) == (42, 0.1303)
    assert set(curves(lower)) == {"accuracy", "auc"}
    assert len(curves(lower)["auc"]) == 10  # it is not defined before training
    assert labels(strip) == ["worker-3", "worker-4"]
    assert [text.get_text() for text in strip.get_legend().get_texts()] == ["joined", "lost"]
    assert figure.get_suptitle() == "rcv1 · logistic · bounded"
    assert strip.get_xlabel() == "seconds since training began"


def test_a_loss_and_its_metrics_stand_where_the_weights_were_read(story: Any) -> None:
    events = [replace(one, read=one.seconds - 2) if isinstance(one, Evaluated) else one for one in story.run()]
    upper, lower, _ = loss(events).axes
    test = [x for x, _ in curves(upper)["test"]]
    assert test == pytest.approx([6 * at - 2 for at in range(11)])
    assert [x for x, _ in curves(lower)["accuracy"]] == pytest.approx(test)


def test_the_caption_says_what_ran_and_why_it_stopped(story: Any) -> None:
    assert caption(loss(story.run())) == (
        "rcv1: 20,242 rows to train on, 5,000 to test, 47,236 features. logistic, bounded, 3 to 4 workers x 2 servers on 2 cores, "
        "batches of 128, seed 1. Stopped after 60 s (10 epochs, 202,420 rows): 10 passes are done. 1 slot void."
    )
    emulated = replace(story.started(), emulated="emulated compute (1 ms per example)")
    assert "seed 1. Emulated compute (1 ms per example). No end" in caption(loss([emulated]))
    assert "No end is recorded after 12 s (1 epoch," in caption(loss([story.started(), story.progress(12, 1)]))
    assert "Warning: 5 workers on 2 cores." in caption(loss([Warned(seconds=0.0, what="5 workers on 2 cores")]))


def test_a_picture_is_written_whole_or_not_at_all(story: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "loss.png"
    loss(story.run(), path)
    written = path.read_bytes()
    assert written.startswith(b"\x89PNG")
    assert int.from_bytes(written[16:20], "big") == 900  # pixels wide
    from matplotlib.figure import Figure

    def torn(self: Figure, aside: Path, **settings: Any) -> None:
        Path(aside).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", torn)
    with pytest.raises(OSError, match="no space"):
        loss(story.run(), path)
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "opening"), [("a.svg", b"<?xml"), ("a.PDF", b"%PDF"), ("a b.png", b"\x89PNG")])
def test_the_name_says_the_kind_of_picture(story: Any, tmp_path: Path, name: str, opening: bytes) -> None:
    loss(story.run(records=10), str(tmp_path / name))
    assert (tmp_path / name).read_bytes().startswith(opening)


def test_a_place_that_cannot_be_is_refused_before_the_work(story: Any, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"names no kind of picture: end it in \.png"):
        loss(story.run(), tmp_path / "loss.txt")
    with pytest.raises(Invalid, match="names no kind"):
        loss(story.run(), tmp_path / "loss")
    with pytest.raises(Invalid, match=r"there is no folder .*: make it first"):
        loss(story.run(), tmp_path / "nowhere" / "loss.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_next_move_is_said(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Invalid, match=r"pip install 'shoal\[view\]'"):
        loss(story.run(), "loss.png")


def test_what_is_not_finite_is_left_out_and_counted(story: Any, tmp_path: Path) -> None:
    events = [
        story.started(),
        story.progress(1, 1, math.nan),
        story.progress(2, 2, 0.5),
        story.progress(3, 3, math.inf),
        story.progress(4, 4, 0.4),
        story.evaluated(0, 4, 4, -math.inf, metrics={"accuracy": math.nan}),
    ]
    figure = loss(events, tmp_path / "odd.png")
    (panel,) = figure.axes
    assert curves(panel) == {"train": [(2, 0.5), (4, 0.4)]}
    assert caption(figure).endswith("Left out, not being finite: 3 losses.")


def test_no_events_one_evaluation_and_only_evaluations_make_pictures_too(story: Any, tmp_path: Path) -> None:
    path = tmp_path / "few.png"
    assert labels(loss([], path).axes[0]) == ["no loss is recorded yet"]
    assert labels(loss([story.started()], path).axes[0]) == ["no loss is recorded yet"]
    one = loss([story.started(), story.evaluated(0, 0.0, 0.0, 0.6931)], path)
    assert curves(one.axes[0])["test"] == [(0, 0.6931)]
    told = [story.evaluated(at, at, at, 0.5, train_loss=0.4 if at else None) for at in range(4)]
    assert curves(loss(told, path).axes[0])["train"] == [(1, 0.4), (2, 0.4), (3, 0.4)]


def test_thousands_of_records_are_thinned_to_their_mean_by_rows(story: Any, tmp_path: Path) -> None:
    events = list(story.run(records=20_000, evaluations=5_001))
    figure = loss(events, tmp_path / "many.png")
    drawn = curves(figure.axes[0])
    assert len(drawn["train"]) == len(drawn["test"]) == POINTS


def test_a_mean_counts_each_record_by_its_rows() -> None:
    # One row of loss 0, then three of loss 1.
    x, y = thinned([(float(at), float(at % 2), 1.0 + 2 * (at % 2)) for at in range(4 * POINTS)])
    assert len(x) == POINTS and y == [0.75] * POINTS


@pytest.mark.parametrize(
    ("seconds", "unit", "end"),
    [
        (0.02, "milliseconds", 20),
        (60, "seconds", 60),
        (3_600, "minutes", 60),
        (36_000, "hours", 10),
        (864_000, "days", 10),
    ],
)
def test_the_unit_of_time_follows_the_length_of_the_run(story: Any, seconds: float, unit: str, end: float) -> None:
    figure = loss(story.run(seconds))
    assert figure.axes[-1].get_xlabel() == f"{unit} since training began"
    assert curves(figure.axes[0])["train"][-1][0] == pytest.approx(end)


def test_passes_stand_where_the_run_reached_them() -> None:
    ticks = epoch_ticks([(0.0, 0.0), (10.0, 1.0), (40.0, 2.0)])
    assert [passes for _, passes in ticks] == pytest.approx([at / 5 for at in range(11)])
    assert [seconds for seconds, _ in ticks] == pytest.approx([0, 2, 4, 6, 8, 10, 16, 22, 28, 34, 40])
    crowded = epoch_ticks([(9.0, 2.0), (9.1, 3.0), (9.9, 4.0), (10.0, 5.0)])
    # More ticks would overlap.
    assert [epochs for _, epochs in crowded] == pytest.approx([0, 0.5, 1, 1.5, 2, 3.5, 5])
    assert epoch_ticks([]) == epoch_ticks([(5.0, 0.0)]) == []
    for most, step in ((10, 1), (10.1, 2), (20, 2), (99, 10), (1e-9, 1e-10), (12_345, 2_000), (1e15, 1e14)):
        assert epoch_ticks([(60.0, most)])[1][1] == pytest.approx(step)
    again = epoch_ticks([(10.0, 2.0), (20.0, 1.0), (30.0, 2.0), (40.0, 4.0)])  # the run rolled back
    assert {epochs: seconds for seconds, epochs in again}[2.0] == pytest.approx(10.0)


def test_many_comings_and_goings_are_marks_with_as_many_names_as_there_is_room_for(story: Any, tmp_path: Path) -> None:
    moves = [story.gone(at, f"worker-{at}") for at in range(1, 40)]
    figure = loss([story.started(), story.progress(1, 1), story.progress(60, 2), *moves], tmp_path / "churn.png")
    upper, strip = figure.axes
    # Vertical lines would hide the losses.
    assert not any(line.get_label().startswith("_") for line in upper.lines)
    assert sum(len(line.get_xdata()) for line in strip.lines) == 39 and len(labels(strip)) < 20
    none = loss([story.joined(0.0, "worker-0"), story.progress(1, 1), story.progress(2, 2)])
    assert not any(line.get_label().startswith("_") for line in none.axes[0].lines)


def test_losses_over_many_magnitudes_get_a_logarithmic_scale(story: Any, tmp_path: Path) -> None:
    steep = [story.progress(at, at, 10.0 ** (4 - at)) for at in range(1, 6)]
    assert loss(steep, tmp_path / "steep.png").axes[0].get_yscale() == "log"
    assert loss([*steep, story.progress(7, 7, -1.0)]).axes[0].get_yscale() == "linear"
    assert loss(story.run()).axes[0].get_yscale() == "linear"


def test_names_with_dollars_and_escapes_are_drawn_as_they_are(story: Any, tmp_path: Path) -> None:
    events = [
        replace(story.started(), data="$\\frac{a$", model="a_{b\x1b"),
        story.gone(1.0, "$x^"),
        story.progress(2, 1),
        story.evaluated(0, 2, 1, 0.5, metrics={"$\\acc{$": 0.5}),
        Stopped(seconds=2.0, why="$why\n?"),
    ]
    figure = loss(events, tmp_path / "odd.png")
    assert figure.get_suptitle().startswith("$\\frac{a$ · a_{b")
    assert "$why ?" in caption(figure)


def test_metrics_outside_nought_and_one_are_not_squeezed_into_the_panel(story: Any) -> None:
    figure = loss([story.evaluated(at, at, at, 0.5, metrics={"rmse": 3.0, "auc": 0.9}) for at in range(3)])
    assert list(curves(figure.axes[1])) == ["auc"]


@pytest.mark.slow
def test_the_users_pyplot_is_left_alone_and_threads_may_draw_at_once(story: Any, tmp_path: Path) -> None:
    code = """
import sys
from shoal.events import Progress
from shoal.views import loss
loss([Progress(seconds=1, passes=1, steps=1, examples=1, train_loss=0.5, workers=1)] * 2, sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "alone.png")], check=True)
    loss(story.run(), tmp_path / "one.png")
    paths = [tmp_path / f"thread-{at}.png" for at in range(3)]
    threads = [threading.Thread(target=loss, args=(list(story.run()), path)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.read_bytes() == (tmp_path / "one.png").read_bytes() for path in paths} == {True}


def test_a_run_is_drawn_from_its_file(story: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in story.run()) + b'{"event":"prog')
    assert curves(loss(read_run(path)).axes[0]) == curves(loss(story.run()).axes[0])


def test_an_objective_has_a_panel_of_its_own(story: Any) -> None:
    found = [{"objective": 9.0, "violation": 5.0, "auc": 0.5}, {"objective": 4.0, "violation": 0.1, "auc": 0.9}]
    events = [
        replace(story.evaluated(at, at * 1.0, float(at), 0.5), metrics=metrics) for at, metrics in enumerate(found)
    ]
    panels = loss(events).axes
    labels = [text.get_text() for panel in panels if (legend := panel.get_legend()) for text in legend.get_texts()]
    assert "objective above its lowest, of that" in labels and "violation, in units of l1" in labels
    assert [panel.get_yscale() for panel in panels].count("log") == 1

"""The live view fits its terminal, whatever happens in the run."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.events import Gone, Handed, Joined, Shared, Stopped, Voided, Warned
from shoal.inspect.status import ClusterStatus
from shoal.views.board import Stroke, chart
from shoal.views.frame import frame
from shoal.views.live_state import LiveState, ServerFigures
from shoal.wire import messages as m


def seen(events: Any) -> LiveState:
    so_far = LiveState()
    for event in events:
        so_far.take(event)
    return so_far


def text(so_far: LiveState, width: int = 80, height: int = 24, **settings: Any) -> str:
    return "\n".join(line.plain for line in frame(so_far, width, height, **settings))


def test_the_whole_run_is_on_one_screen(story: Any) -> None:
    shown = text(seen(list(story.run())[:200]), epochs=10)
    assert shown.splitlines()[0] == "rcv1 · logistic · bounded · 4 workers x 2 servers · 2 cores"
    for part in ("epoch 7.8 of 10   47 s   about 13 s left", "━╌", "3,374 rows/s", "train loss 0.1", "4 workers"):
        assert part in shown
    assert "epoch seconds test loss accuracy    auc" in shown
    assert "    7      42  ★ 0.1303   0.9499 0.9880" in shown
    assert shown.count("★") == 1
    for part in ("worker-3 gone: its process ended", "12 slots reassigned", "worker-4 joined", "slot 17 of epoch 6"):
        assert part in shown
    assert any("\u2801" <= char <= "\u28ff" for char in shown)


def test_the_last_picture_says_why_it_ended_and_what_was_best(story: Any) -> None:
    shown = text(seen(story.run()), epochs=10, now=99.0)
    assert "epoch 10 of 10   60 s" in shown  # the time has stopped
    assert shown.endswith("stopped: 10 passes are done\nbest test loss 0.1303 at epoch 7")
    assert "no event" not in shown
    assert "4 workers   " not in shown


@pytest.mark.parametrize("width", [1, 2, 9, 20, 40, 41, 79, 80, 133, 400])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 8, 12, 24, 50])
@pytest.mark.parametrize("plain", [False, True])
def test_no_line_is_too_long_and_no_picture_too_high(story: Any, width: int, height: int, plain: bool) -> None:
    events = list(story.run())
    for upto in (0, 1, 3, 100, len(events)):
        lines = frame(seen(events[:upto]), width, height, epochs=10, note="writing the model", plain=plain)
        assert 1 <= len(lines) <= max(1, height - 1)
        assert all(line.cell_len <= max(1, width - 1) for line in lines)
        assert not plain or all(line.plain.isascii() for line in lines)


def test_forty_columns_still_have_all_figures(story: Any) -> None:
    shown = text(seen(list(story.run())[:200]), width=40, epochs=10)
    for part in (
        "4 workers x 2 servers",
        "epoch 7.8 of 10   47 s",
        "3,374 rows/s",
        "★ 0.1303   0.9499 0.9880",
        "worker-4 joined",
    ):
        assert part in shown


def test_a_missing_worker_and_a_long_silence_are_said(story: Any) -> None:
    so_far = seen([story.started(), story.progress(4, 1, workers=3)])
    assert "3 of 4 workers" in text(so_far)
    assert "no event" not in text(so_far, now=8.0)
    assert "no event for 8.0 s" in text(so_far, now=12.0)


@pytest.mark.parametrize("height", [10, 24, 40])
def test_the_best_evaluation_stays_in_sight(story: Any, height: int) -> None:
    worse = [story.evaluated(at, at, at, 0.5, best=False) for at in range(1, 90)]
    shown = text(seen([story.started(), story.evaluated(0, 0, 0, 0.25), *worse]), height=height)
    assert "★ 0.2500" in shown and "   89      89    0.5000" in shown


def test_without_a_number_of_passes_there_is_no_bar(story: Any) -> None:
    so_far = seen([story.started(), story.progress(12, 3.2)])
    for epochs in (None, 0.0, math.nan, math.inf):
        shown = text(so_far, epochs=epochs)
        assert "epoch 3.2   12 s" in shown.splitlines()
    # More epochs are done than asked for: the bar is full, not longer.
    assert "━" * 10 in text(so_far, epochs=2)


def test_before_the_start_there_is_only_the_note() -> None:
    assert text(LiveState(), note="packing rcv1 ...\n12,000 rows") == "packing rcv1 ... 12,000 rows"
    assert text(LiveState()) == ""


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300, 0.0])
def test_figures_that_are_none_never_break_the_picture(story: Any, odd: float) -> None:
    events: list[Any] = [story.started()]
    for at in range(40):
        events += [story.progress(at, at / 4, odd if at % 3 else 0.5)]
        events += [
            story.evaluated(at, at, at / 4, odd if at % 2 else 0.5, metrics={"accuracy": odd, "auc": None, "x": 1.0})
        ]
    for width in (20, 40, 80):
        assert text(seen(events), width=width, epochs=10)
    when = {"seconds": odd, "passes": odd}
    told = [replace(story.progress(1, 1, odd), **when), replace(story.evaluated(0, 1, 1, odd), **when)]
    assert text(seen([*told, *told, Stopped(seconds=odd, why="odd")]), epochs=10)


def test_texts_from_elsewhere_cannot_move_the_cursor(story: Any) -> None:
    events = [
        story.started(),
        story.gone(1.0, "evil\x1b[2J", "first\nsecond\r\x07"),
        Voided(seconds=2.0, slot=(1, 2), why="[bold]no markup[/bold]"),
        Warned(seconds=3.0, what="数据" * 100),
    ]
    shown = text(seen(events), note="\x1b[H")
    assert "\x1b" not in shown
    assert "first second" in shown
    assert "[bold]no markup[/bold]" in shown


def test_a_chart_falls_from_its_upper_left_to_its_lower_right() -> None:
    drawn = chart([Stroke([(0.0, 8.0), (1.0, 4.0), (2.0, 2.0), (3.0, 1.0)], "")], 12, 4, 3.0)
    assert drawn is not None
    assert drawn[1:] == (8.0, 1.0)
    shape = [[char != " " for piece, _ in row for char in piece] for row in drawn[0]]
    assert shape[0][0] and shape[3][11]
    assert not shape[0][11] and not shape[3][0]
    assert all(any(row[column] for row in shape) for column in range(12))  # no gaps


def test_where_curves_meet_the_later_one_is_drawn_alone() -> None:
    flat, higher = [(0.0, 1.0), (1.0, 1.0)], [(0.0, 1.1), (1.0, 2.0)]
    alone = chart([Stroke([], "cyan"), Stroke(higher, "magenta"), Stroke([(0.0, 1.0)], "")], 6, 1, 1.0)
    both = chart([Stroke(flat, "cyan"), Stroke(higher, "magenta"), Stroke([(0.0, 1.0)], "")], 6, 1, 1.0)
    assert alone is not None and both is not None
    assert [piece for piece in both[0][0] if piece[1] == "magenta"] == [
        piece for piece in alone[0][0] if piece[1] == "magenta"
    ]


def test_one_point_is_no_curve() -> None:
    assert chart([Stroke([(0.0, 1.0)], "")], 20, 4, 1.0) is None
    assert chart([], 20, 4, 1.0) is None
    assert chart([Stroke([(0.0, 1.0), (1.0, 1.0)], "")], 2, 4, 1.0) is None


def test_many_moves_are_one_of_the_last_happenings(story: Any) -> None:
    state = LiveState()
    state.take(story.started())
    state.take(story.joined(1.0, "server-2", "server"))
    for segment in range(8):
        state.take(
            Handed(
                seconds=2.0 + segment / 10, table="weights", segments=[segment], source="server-0", target="server-2", why="count",
                took=0.1, stall=0.01,
            )
        )  # fmt: skip
    lines = [line.plain for line in frame(state, 100, 30)]
    at = lines.index("   1.0 s  server-2 joined")
    assert lines[at + 1 :] == [  # wrapped between words, not cut off
        "   2.0 s  8 segments of weights moved (to even out their number): from server-0 to server-2; 10 ms",
        "          without an answer at most",
    ]


def looked_at(state: LiveState) -> LiveState:
    """A cluster of three servers, one of which gets far more requests than the others."""
    state.servers = [
        ServerFigures("server-0", 1_000.0, 8, 7),
        ServerFigures("server-1", 1_200.0, 8, 5, "suspected"),
        ServerFigures("server-10", 9_000.0, 8, 12),
    ]
    state.bytes_per_second, state.staleness = 7_100_000.0, (3.14159, 9)
    state.spent = {f"worker-{at}": {"compute": 0.02, "communicate": 0.95, "wait": 0.03} for at in range(12)}
    return state


def test_every_server_and_worker_has_a_row_and_the_hot_one_a_mark(story: Any) -> None:
    shown = text(looked_at(seen([story.started(), story.progress(4, 1)])), width=120, height=40)
    assert "7.1 MB/s   staleness 3.14, max 9" in shown
    assert " server-0         1,000 keys/s        8 segments     7 copies\n" in shown
    assert " server-1         1,200 keys/s        8 segments     5 copies  suspected\n" in shown
    assert " server-10        9,000 keys/s  HOT   8 segments    12 copies\n" in shown
    assert " worker-11  compute   2%  communicate  95%  wait   3%" in shown


def cluster(load: float) -> ClusterStatus:
    members = [m.MemberStatus("server-0", "server", 1, 1, 0, False, load=load)]
    return ClusterStatus(m.StatusReply(1, 1, 1, 0, 1, members, {}, None, "", {}), m.View(1, 1, 0, [], []))


def test_a_servers_load_is_not_shown_before_it_is_known(story: Any) -> None:
    state = seen([story.started(), story.progress(4, 1)])
    state.look(1.0, cluster(0.0))
    shown = text(state, width=120, height=40)
    assert " server-0 " in shown and "keys/s" not in shown
    state.look(2.0, cluster(900.0))
    assert "900 keys/s" in text(state, width=120, height=40)
    state.look(3.0, cluster(0.0))  # now it is known to be idle
    assert " 0 keys/s" in text(state, width=120, height=40)


def test_nodes_that_do_not_fit_are_counted(story: Any) -> None:
    lines = text(looked_at(seen(list(story.run())[:200])), height=24, epochs=10).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(" ... "))
    assert int(lines[at].split()[1]) == 15 - sum(line.startswith((" server-", " worker-")) for line in lines)
    assert len(lines) <= 23 and any("★" in line for line in lines)


def test_the_picture_fills_the_window(story: Any) -> None:
    state = seen(list(story.run())[:200])
    small, large = (text(state, width, height, epochs=10).splitlines() for width, height in ((80, 24), (160, 50)))
    assert len(large) > len(small) and max(map(len, large)) > 150
    assert large[-1 - [line.strip()[:1] for line in reversed(large)].index("0")].split() == ["0", "24", "s", "47", "s"]


def test_rows_a_second_do_not_flicker(story: Any) -> None:
    state = seen([story.started(), story.progress(4, 2)])
    state.take(story.evaluated(1, 4.1, 1.9, 0.5))  # its weights are older than the progress
    assert "10,121 rows/s" in text(state)
    state.take(story.progress(5, 1))  # a rollback
    assert "10,121 rows/s" in text(state)


def lost_server() -> list[Any]:
    before = Shared(
        seconds=0.0,
        serves={"server-0": 8, "server-1": 8, "server-2": 8},
        copies={"server-0": 7, "server-1": 5, "server-2": 12},
    )
    gone = Gone(seconds=3.5, name="server-1", role="server", why="its process ended (killed by signal 9)")
    after = Shared(seconds=3.5, serves={"server-0": 10, "server-2": 14}, copies={"server-0": 5, "server-2": 6})
    joined = Joined(seconds=3.6, name="server-1", role="server")
    whole = Shared(
        seconds=3.8, serves={"server-0": 10, "server-2": 14, "server-1": 0}, copies={"server-0": 14, "server-2": 10}
    )
    return [before, gone, after, joined, whole]  # fmt: skip


def test_the_outcome_of_a_kill_is_said(story: Any) -> None:
    state = seen([story.started(), *lost_server()])
    said = " ".join(text(state, width=200).split())
    assert said.endswith(
        "3.5 s server-1 killed; server-0 and server-2 took over its 8 segments, nothing lost; restarted, copies back after 300 ms"
    )
    early = " ".join(text(seen([story.started(), *lost_server()[:3]]), width=200).split())
    assert early.endswith("server-1 killed; server-0 and server-2 took over its 8 segments, nothing lost")

"""The board of a chaos drill fits the terminal and shows everything without colour."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from shoal.chaos.audit import PushAudit
from shoal.chaos.plan import ChaosFault
from shoal.chaos.recovery import Recovery
from shoal.chaos.report import ChaosReport, ChaosState, judged, shown
from shoal.chaos.show import audience, frame
from shoal.job import Job


def board() -> ChaosState:
    made = ChaosState(Job(servers=3, workers=4, copies=2), seed=7, clean_loss=0.4398, loss=0.4412)
    made.seconds, made.share, made.acknowledged, made.faults, made.recoveries = 21.0, 0.64, 81_204, 3, 2
    made.members = {"coordinator": "up", "server-0": "up", "server-1": "down", "server-2": "filling"}
    made.members |= {"worker-0": "up", "worker-1": "paused", "worker-10": "suspected"}
    made.throughput = [(float(i), 100_000.0 + 5_000 * (i % 7)) for i in range(21)]
    made.log.append((12.1, "fault", "kill -9 server-1, which owns 8 segments of the tally"))
    made.log.append((12.4, "heal", "server-1 is removed from the view after 0.3 s"))
    return made


def text(made: ChaosState, width: int = 100, height: int = 30, plain: bool = False) -> str:
    return "\n".join(line.plain for line in frame(made, width, height, plain=plain))


def test_the_board_says_who_is_how_and_what_happened() -> None:
    seen = text(board())
    for part in ("seed 7", "2 copies", "64%", "✖ server-1 down", "◐ server-2 filling", "‖ worker-1 paused", "kill -9"):
        assert part in seen
    assert "3 faults, 2 healed" in seen and "81,204 pushes" in seen and "0.4412 (clean 0.4398)" in seen
    assert "▲" in seen  # below the curve, at the fault


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (40, 12), (20, 6), (1, 1)])
def test_nothing_is_longer_than_the_terminal_is_wide(width: int, height: int, plain: bool) -> None:
    lines = frame(board(), width, height, "a note", plain)
    assert len(lines) <= max(1, height - 1)
    assert all(line.cell_len < max(2, width) for line in lines)
    if plain:
        assert "".join(line.plain for line in lines).isascii()


def test_before_anything_runs_there_is_a_note() -> None:
    assert [line.plain for line in frame(None, 80, 24, "packing clicks")] == ["packing clicks"]


def test_where_there_is_no_terminal_happenings_are_lines() -> None:
    stream = io.StringIO()
    with audience(stream) as seats:
        seats.note("starting 3 servers and 4 workers")
        seats.board(board())
        seats.said(12.1, "fault", "kill -9 server-1")
        seats.said(12.4, "heal", "server-1 is a member again")
    assert stream.getvalue().splitlines() == [
        "starting 3 servers and 4 workers",
        "  12.1 s  x kill -9 server-1",
        "  12.4 s  + server-1 is a member again",
    ]


def report(**changes: object) -> ChaosReport:
    facts: dict[str, object] = dict.fromkeys(("sent", "acknowledged", "counted"), 1_000)
    facts |= {"lost": 0, "doubled": 0, "faults": 1, "recoveries": 1, "loss": 0.44, "clean_loss": 0.43, "seconds": 30.0}
    facts |= {"clean_seconds": 20.0, "ok": True, "why": "500 steps done", "wrong": [], "seed": 7, "data": "clicks"}
    facts |= {"strategy": "async", "workers": 4, "servers": 3, "copies": 2, "steps": 500, "rollbacks": 0}
    healed = Recovery(
        fault=ChaosFault("kill", "server-1"), at=3.0, detected=0.3, promoted=0.6, full=2.0, back=1.5, well=2.0
    )
    facts |= {"healed": [healed], "throughput": [(1.0, 5.0), (2.0, 6.0)], "losses": [(1.0, 0.5)]}
    return ChaosReport(**(facts | changes))  # type: ignore[arg-type]


def printed(made: ChaosReport) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=120).print(shown(made))
    return stream.getvalue()


def test_the_report_ends_with_a_verdict() -> None:
    seen = printed(report())
    assert "kill server" in seen and "0.6  0.6" in seen and "1.50 times as long" in seen
    assert seen.rstrip().endswith("0 lost, 0 doubled: all 1,000 acknowledged pushes were counted once, through 1 fault")
    bad = printed(report(lost=2, doubled=1, ok=False, wrong=["slot 7 is acknowledged and not counted"]))
    assert "✘ 2 lost, 1 doubled of 1,000 acknowledged pushes" in bad and "slot 7 is" in bad


def test_a_drill_in_which_nothing_was_broken_is_not_called_good() -> None:
    seen = " ".join(printed(report(faults=0, changes=1)).split())
    assert "! no fault was injected, give it longer (--seconds): 0 lost" in seen and "✔" not in seen
    assert seen.endswith("through 0 faults, and servers joined or were asked to leave 1 time")
    assert report(changes=3).verdict.endswith("asked to leave 3 times")


def test_a_rollback_is_wrong_unless_it_was_asked_for() -> None:
    assert judged(PushAudit(), "", 1, beyond=False)
    assert judged(PushAudit(), "", 1, beyond=True) == []
    assert judged(PushAudit(), "no worker is left", 0, beyond=True) == ["the run failed: no worker is left"]


def test_a_drill_beyond_that_never_went_there_is_not_called_good() -> None:
    seen = printed(report(beyond=True))
    assert "! no fault exceeded what 2 copies can tolerate; 0 lost" in " ".join(seen.split()) and "✔" not in seen
    assert "✔" in printed(report(beyond=True, rollbacks=1)) and "✘" in printed(report(beyond=True, ok=False))


def test_the_picture_is_drawn_with_a_legend_and_neutral_marks_for_what_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from shoal.chaos.report import timeline
    from shoal.views import axes

    figures: list[Any] = []
    save = axes.save
    monkeypatch.setattr(axes, "save", lambda figure, path: (figures.append(figure), save(figure, path)))
    joined = Recovery(fault=ChaosFault("join", "server-3"), at=5.0, full=1.0, back=1.0, well=1.0)
    path = timeline(report(healed=[*report().healed, joined]), tmp_path / "timeline.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    bottom = figures[0].axes[1]
    said = {text.get_text(): handle for text, handle in zip(bottom.get_legend().get_texts(), bottom.get_legend().legend_handles, strict=True)}  # fmt: skip
    assert list(said) == ["kill -9", "join, planned", "until healed", "pushes count again"]
    assert said["join, planned"].get_color() == axes.INK and said["kill -9"].get_color() == axes.LOST
    timeline(report(healed=[]), tmp_path / "calm.png")
    assert [text.get_text() for text in figures[1].axes[1].texts] == ["nothing was broken"]

"""Reports list faults apart from planned joins and leaves."""

from __future__ import annotations

from typing import Any

from shoal.events import Gone, Handed, Joined, Leaving, RunEvent, Saved, Split
from shoal.views.report_sections import incidents
from shoal.views.run_record import tell


def tables(events: list[RunEvent]) -> dict[str, list[list[str]]]:
    return {one.title: one.tables[0].rows for one in incidents(tell("one", events), "")}


def test_a_server_that_leaves_in_order_is_no_fault_and_its_parts_are_one_line(story: Any) -> None:
    events: list[RunEvent] = [
        story.started(),
        story.progress(0.5, 0.1),
        Joined(seconds=1.0, name="server-2", role="server"),
        Leaving(seconds=5.0, name="server-2", role="server", why="operator-5335ec64 asked for it"),
        *(
            Handed(
                seconds=5.0 + number / 10, table="weights", segments=[number], source="server-2", target="server-0", why="leaving",
                took=0.1, stall=0.01,
            )
            for number in range(8)
        ),
        Gone(seconds=6.0, name="server-2", role="server", why="it left: others have what it had"),
    ]  # fmt: skip
    found = tables(events)
    assert list(found) == ["Membership changes"]
    assert found["Membership changes"] == [
        ["1", "joined", "server-2 joined"],
        ["5", "leaving", "server-2 is leaving: an operator asked for it (shoal leave)"],
        ["5 to 5.7", "moved", "8 segments of weights moved (it leaves): from server-2 to server-0; 10 ms without an answer at most"],
        ["6", "left", "server-2 left: others have what it had"],
    ]  # fmt: skip


def test_one_that_was_lost_and_came_back_is_told_with_the_faults(story: Any) -> None:
    events: list[RunEvent] = [
        story.started(),
        Gone(seconds=2.0, name="server-1", role="server", why="its process ended"),
        Joined(seconds=3.0, name="server-1", role="server"),
        Joined(seconds=4.0, name="server-2", role="server"),
        Split(seconds=5.0, table="weights", segment=3, at=40, why="hot"),
        Saved(seconds=7.0, number=1, steps=9, bytes=8_000_000, took=0.1),
    ]
    found = tables(events)
    assert [row[:3] for row in found["Faults and recoveries"]] == [
        ["2", "lost", "server-1 gone: its process ended"],
        ["3", "joined", "server-1 joined"],
    ]
    assert [row[1] for row in found["Membership changes"]] == ["joined", "split"]
    assert found["Checkpoints"] == [["7", "1", "9", "8.0 MB", "100 ms"]]


def test_how_long_a_silent_one_was_missed_counts_from_when_it_fell_silent(story: Any) -> None:
    events: list[RunEvent] = [story.started()]
    far = 0.0
    # No progress from 10 to 15 s: the coordinator gives the server up at 15 s.
    for second in range(1, 31):
        far += 0.0 if 10 < second <= 15 else 0.1
        events.append(story.progress(float(second), far))
        if second == 15:
            events.append(Gone(seconds=15.0, name="server-1", role="server", why="silent for 5 s"))
    ((_, _, _, back),) = tables(events)["Faults and recoveries"]
    assert back == "5 s"

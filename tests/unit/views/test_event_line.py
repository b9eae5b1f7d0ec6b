"""Many moves are one line, with the number from each server to each other."""

from __future__ import annotations

from shoal.events import Handed, Joined
from shoal.views.event_line import MoveSummary, news, together


def handed(at: float, source: str, target: str, why: str = "leaving", parts: int = 1, stall: float = 0.012) -> Handed:
    return Handed(
        seconds=at, table="weights", segments=list(range(parts)), source=source, target=target, why=why, took=0.1, stall=stall
    )  # fmt: skip


def test_moves_of_one_reason_that_follow_each_other_are_one_line() -> None:
    joined = Joined(seconds=1.05, name="worker-2", role="worker")
    events = [handed(1.0, "c", "a", parts=2), joined, handed(1.1, "c", "b"), handed(1.2, "c", "a", stall=0.3)]
    first, second = together(events)
    assert isinstance(first, MoveSummary) and second is joined
    assert (first.seconds, first.until) == (1.0, 1.2)
    assert news(first) == (
        "4 segments of weights moved (it leaves): 3 from c to a, 1 from c to b; 300 ms without an answer at most"
    )


def test_other_reasons_and_later_moves_are_lines_of_their_own() -> None:
    events = [handed(1.0, "a", "b", "load"), handed(1.1, "b", "a", "count"), handed(60.0, "a", "b", "load")]
    groups = together(events)
    assert [len(one.handed) for one in groups if isinstance(one, MoveSummary)] == [1, 1, 1]
    assert news(groups[0]) == (  # type: ignore[arg-type]
        "1 segment of weights went from a to b (to even out the load), 12 ms without an answer"
    )


def test_one_way_is_said_once_and_of_many_ways_some() -> None:
    (one,) = together([handed(1.0, "a", "b"), handed(1.0, "a", "b")])
    assert isinstance(one, MoveSummary) and "2 segments of weights moved (it leaves): from a to b; 12 ms" in news(one)
    (many,) = together([handed(1.0, "a", f"server-{number}") for number in range(9)])
    assert isinstance(many, MoveSummary) and "and 5 more ways; 12 ms" in news(many)


def test_a_reason_that_is_not_known_is_said_as_it_is() -> None:
    (one,) = together([handed(1.0, "a", "b", "a hot key")])
    assert isinstance(one, MoveSummary) and "(a hot key)" in news(one)

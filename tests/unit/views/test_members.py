"""Joins, leaves and losses show which nodes took part when, and how many there were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from shoal.events import Gone, Joined, Resumed, RunEvent, Stopped
from shoal.views.members import MembershipHistory, moves_of
from shoal.views.run_record import account


def taken(events: Sequence[RunEvent]) -> MembershipHistory:
    found = MembershipHistory()
    for event in events:
        found.take(event)
    return found


def joined(at: float, name: str) -> Joined:
    return Joined(seconds=at, name=name, role=name.partition("-")[0])


def gone(at: float, name: str, why: str = "killed") -> Gone:
    return Gone(seconds=at, name=name, role=name.partition("-")[0], why=why)


def test_a_headline_names_the_fewest_and_the_most_that_were_there(story: Any) -> None:
    first = [joined(0.0, name) for name in ("server-0", "server-1", "worker-0", "worker-1")]
    later = [
        joined(5.0, "server-2"),
        joined(6.0, "worker-2"),
        joined(6.0, "worker-3"),
        gone(9.0, "server-2", "it left"),
    ]
    assert taken([*first, story.started(2, 2)]).crew() == "2 workers x 2 servers"
    assert taken([*first, story.started(2, 2), *later]).crew() == "2 to 4 workers x 2 to 3 servers"


def test_of_who_does_not_tell_who_joins_as_many_were_there_as_the_run_says(story: Any) -> None:
    alone = taken([story.started(4, 0), gone(3.0, "worker-2"), gone(4.0, "worker-3")])
    assert alone.crew() == "2 to 4 workers"
    assert [(stay.name, stay.since, stay.until, stay.how) for stay in alone.stays] == [
        ("worker-2", 0.0, 3.0, "lost"),
        ("worker-3", 0.0, 4.0, "lost"),
    ]


def test_who_is_named_after_the_run_has_begun_is_counted_once(story: Any) -> None:
    named = [joined(0.0, f"worker-{number}") for number in range(4)]
    assert taken([story.started(4, 0), *named]).crew() == "4 workers"
    assert taken([story.started(4, 0), *named, joined(3.0, "worker-4")]).crew() == "4 to 5 workers"


def test_who_is_named_late_but_before_training_was_there_from_the_start(story: Any) -> None:
    named = [joined(0.003, f"worker-{number}") for number in range(8)]
    begun = [story.started(8, 0), *named, story.evaluated(0, 0.1, 0.0, 0.69), story.progress(1.0, 0.5)]
    found = taken(begun)
    assert found.crew() == "8 workers" and {stay.since for stay in found.stays} == {0.0}
    assert not moves_of(account(begun).happened)
    assert taken([*begun, joined(3.0, "worker-8")]).crew() == "8 to 9 workers"
    again = [Resumed(seconds=5.0, checkpoint=1, steps=9), replace(story.started(8, 0), seconds=5.0)]
    again += [joined(5.2, f"worker-{number}") for number in range(8)]
    assert taken([*begun, *again, story.progress(6.0, 0.9)]).crew() == "8 workers"


def test_who_comes_one_by_one_is_counted_once(story: Any) -> None:
    events = [joined(0.0, "worker-0"), story.started(3, 0), joined(2.0, "worker-1"), joined(4.0, "worker-2")]
    assert taken(events).crew() == "1 to 3 workers"


def test_a_run_that_is_taken_up_again_has_others_and_nobody_is_counted_in_between(story: Any) -> None:
    before = [*(joined(0.0, f"worker-{n}") for n in range(3)), story.started(3, 0), story.progress(5.0, 1.0)]
    after = [Resumed(seconds=5.0, checkpoint=1, steps=9), joined(5.0, "worker-0"), joined(5.1, "worker-1")]
    found = taken([*before, *after, story.progress(6.0, 2.0)])
    assert found.crew() == "2 to 3 workers"
    assert [stay.until for stay in found.stays] == [5.0, 5.0, 5.0, math.inf, math.inf]


def test_a_stay_says_how_it_ended_and_one_may_come_back() -> None:
    events = [
        joined(1.0, "server-2"),
        gone(2.0, "server-2", "it left: others have what it had"),
        joined(3.0, "server-2"),
    ]
    stays = taken([*events, gone(4.0, "server-2", "silent for 5 s")]).stays
    assert [(stay.since, stay.until, stay.how) for stay in stays] == [(1.0, 2.0, "left"), (3.0, 4.0, "lost")]


def test_who_goes_because_the_run_is_over_was_there_to_the_end(story: Any) -> None:
    first = [joined(0.0, "server-0"), joined(0.0, "server-1"), joined(0.0, "worker-0"), story.started(1, 2)]
    last = [gone(9.0, "server-1", "it left"), gone(20.1, "server-0", "it left"), gone(20.2, "worker-0", "it left")]
    over = taken([*first, *last, Stopped(seconds=20.0, why="interrupted")])
    assert over.crew() == "1 worker x 1 to 2 servers"
    assert [(stay.name, stay.how) for stay in over.stays] == [("server-0", ""), ("server-1", "left"), ("worker-0", "")]
    # No event says that the run is over.
    assert taken([*first, *last]).crew() == "0 to 1 worker x 0 to 2 servers"


def test_a_newcomer_before_the_first_progress_is_not_taken_for_one_of_the_first(story: Any) -> None:
    named = [joined(0.003, f"worker-{number}") for number in range(3)]  # one of four is late
    found = taken([story.started(4, 0), *named, joined(0.5, "worker-4"), joined(0.6, "worker-3")])
    assert {stay.name: stay.since for stay in found.stays}["worker-4"] == 0.5
    assert {stay.name: stay.since for stay in found.stays}["worker-3"] == 0.0
    assert found.crew() == "4 to 5 workers"

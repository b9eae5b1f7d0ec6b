"""Figures and events have the same format everywhere, for any value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.events import Gone, Joined, Leaving, Shared, Voided, Warned, counted
from shoal.views import event_line, format


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.13123, "0.1312"),
        (0.0, "0.0000"),
        (-2.5, "-2.5000"),
        (12_345.6, "12345.6000"),
        (1e30, "1.00e+30"),
        (0.00001, "1.00e-05"),
        (None, "-"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_a_loss_has_four_decimals_as_long_as_they_say_something(value: float | None, said: str) -> None:
    assert format.loss(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (0.042, "0.042"), (3.24, "3.2"), (4.0, "4"), (1_200, "1,200"), (math.nan, "-")]
)
def test_passes_are_short(value: float, said: str) -> None:
    assert format.epochs(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.24, "0.2 s"),
        (59.6, "60 s"),
        (719.9, "11 min 59 s"),
        (3_600, "1 h 0 min"),
        (259_260, "72 h 1 min"),
        (math.inf, "- s"),
    ],
)
def test_a_duration_is_told_in_the_units_it_has(value: float, said: str) -> None:
    assert format.duration(value) == said


def test_a_text_with_escape_codes_and_line_ends_becomes_one_harmless_line() -> None:
    assert format.clean("a\x1b[2J\nb\r\tc\x07 d") == "a [2J b c d"
    assert format.clean("Grüße 数据") == "Grüße 数据"


def test_a_headline_names_no_cores_where_nodes_are_on_hosts_of_their_own(story: Any) -> None:
    here, far = story.started(2, 1), replace(story.started(2, 1), cores=0)
    assert (
        event_line.title(here)[-2:] == ["2 workers x 1 server", "2 cores"]
        and event_line.on_cores(here) == " on 2 cores"
    )
    assert event_line.title(far, "1 to 2 workers x 1 server")[-1] == "1 to 2 workers x 1 server"
    assert event_line.on_cores(far) == ""


def test_who_asked_for_a_leave_is_said_in_words() -> None:
    def said(why: str) -> str:
        return event_line.news(Leaving(seconds=1.0, name="server-2", role="server", why=why))

    assert said("operator-5335ec64 asked for it") == "server-2 is leaving: an operator asked for it (shoal leave)"
    assert said("launcher asked for it") == "server-2 is leaving: the program that began the run asked for it"
    assert said("ann asked for it") == "server-2 is leaving: ann asked for it"
    assert said("it asked to go") == "server-2 is leaving: it asked to go"


def test_how_parts_are_shared_out_is_a_line_for_who_wants_every_event() -> None:
    event = Shared(seconds=2.0, serves={"server-0": 9, "server-1": 8}, copies={"server-0": 0, "server-1": 3})
    assert event_line.line(event) == "   2.0 s  segments: server-0 9, server-1 8 and copies of 3"


def test_a_nodes_role_is_said_once() -> None:
    assert event_line.who(Joined(seconds=1, name="worker-3", role="worker")) == "worker-3"
    assert event_line.who(Joined(seconds=1, name="ann", role="worker")) == "worker ann"


def test_each_happening_is_a_sentence() -> None:
    assert event_line.news(Joined(seconds=1, name="server-1", role="server")) == "server-1 joined"
    lost = Gone(seconds=1, name="worker-3", role="worker", why="signal 9", slots=12)
    assert event_line.news(lost) == "worker-3 gone: signal 9; 12 slots reassigned"
    left = Gone(seconds=1, name="worker-3", role="worker", why="asked to leave")
    assert event_line.news(left) == "worker-3 gone: asked to leave"
    assert (
        event_line.news(Voided(seconds=1, slot=(6, 1_017), why="not finite"))
        == "slot 1,017 of epoch 6 counts as empty: not finite"
    )
    assert event_line.news(Warned(seconds=1, what="5 workers on 2 cores")) == "warning: 5 workers on 2 cores"


def test_many_happenings_make_one_line_with_a_few_names() -> None:
    events: list[event_line.News] = [Joined(seconds=1, name=f"worker-{at}", role="worker") for at in range(5)]
    events += [Gone(seconds=1, name="worker-9", role="worker", why="killed", slots=at) for at in (1, 3)]
    events += [
        Voided(seconds=1, slot=(0, 1), why="not finite"),
        *(Warned(seconds=1, what=f"odd {at}") for at in range(2)),
    ]
    assert event_line.summary(events) == (
        "2 workers (worker-9, worker-9) gone; 4 slots reassigned; "
        "5 workers (worker-0, worker-1, worker-2 and 2 more) joined; 1 slot counts as empty; 2 warnings, the last: odd 1"
    )


def test_who_is_there_from_the_start_is_no_news_but_a_warning_is() -> None:
    assert not event_line.is_news(Joined(seconds=0.0, name="worker-0", role="worker"))
    assert event_line.is_news(Joined(seconds=0.1, name="worker-0", role="worker"))
    assert event_line.is_news(Warned(seconds=0.0, what="5 workers on 2 cores"))


def test_a_metric_has_the_digits_that_say_something() -> None:
    figures = {"objective": 12_345.678, "nonzero": 1_685.0, "skipped": 0.9712, "violation": 0.031, "auc": 0.97931}
    said = [format.metric(name, value) for name, value in figures.items()]
    assert said == ["12,345.68", "1,685", "97.1%", "0.0310", "0.9793"]
    assert [format.metric("objective", value) for value in (0.5, 4_954.27, 3e8)] == [
        "0.500000",
        "4,954.270",
        "300,000,000",
    ]
    assert (format.metric("nonzero", None), format.metric("objective", float("inf"))) == ("-", "inf")


def test_a_count_has_separators_and_no_exponent() -> None:
    assert [counted(number, "row") for number in (1, 1_000_000, 2e6, 1_234_567.5, 0.5)] == [
        "1 row", "1,000,000 rows", "2,000,000 rows", "1,234,567.5 rows", "0.5 rows",
    ]  # fmt: skip

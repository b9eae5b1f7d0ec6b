"""What happened to a run, one line each: who came and went, what changed hands, what went wrong, and how long that was felt."""

from __future__ import annotations

import math

from shoal.events import (
    Elected,
    Gone,
    Handed,
    Joined,
    Leaving,
    Linked,
    Resumed,
    RolledBack,
    Saved,
    Split,
    Voided,
    Warned,
)
from shoal.views import words
from shoal.views.account import Happened
from shoal.views.drawing import clock
from shoal.views.sections import Section, Table
from shoal.views.told import Told

HAPPENINGS = 60  # rows of a table: of more, the last are left out


def section(one: Told, of: str) -> Section | None:
    """``of``: whose they are, where there are several runs."""
    happened = [event for event in one.run.happened if not (isinstance(event, Joined | Linked) and event.seconds <= 0)]
    if not happened:
        return None
    shown = happened[:HAPPENINGS]
    rows = [[seconds(event.seconds), *_told(event), _felt(one, event)] for event in shown]
    more = f" {len(happened) - len(shown):,} more are left out." if len(happened) > len(shown) else ""
    caption = f"Back: how long until rows/s were at 90% of what they were before, for a second.{more}"
    return Section(f"Faults and recoveries{of}", [], [], [Table(["seconds", "", "what", "back"], rows, caption)])


_CALLED = {
    Joined: "joined", Gone: "gone", Leaving: "leaving", Handed: "moved", Split: "split", RolledBack: "went back",
    Resumed: "taken up", Voided: "void", Warned: "warning", Linked: "graph", Elected: "chosen",
}  # fmt: skip


def _told(event: Happened) -> tuple[str, str]:
    if isinstance(event, Saved):
        return (
            "saved",
            f"checkpoint {event.number:,}, {mega(event.bytes)} in {clock(event.took)}, at step {event.steps:,}",
        )
    return _CALLED[type(event)], words.news(event).removeprefix("warning: ")


def _felt(one: Told, event: Happened) -> str:
    if not isinstance(event, Gone | RolledBack):
        return ""
    after = one.run.back_after(event.seconds)
    if after is None:
        return "-"
    return "not felt" if after == 0 else "not while it ran" if math.isinf(after) else clock(after)


def mega(number: float) -> str:
    return f"{number / 1e6:,.1f} MB"


def seconds(value: float) -> str:
    """To the hundredth, and finer where that would be nothing."""
    return f"{value:.3g}" if 0 < value < 0.1 else f"{value:,.2f}" if value < 100 else f"{value:,.1f}"

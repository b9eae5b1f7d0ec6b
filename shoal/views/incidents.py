"""What happened to a run, one line each: what went wrong and how long that was felt; apart from it, who came and went, and what was saved.

A node that leaves in order, and parts that change hands, are no faults. One that was lost and came back is told with the faults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from shoal.views import event_line, format
from shoal.views.event_line import MoveSummary
from shoal.views.page import Section, TableSection
from shoal.views.run_record import Happened, RunRecord, began

HAPPENINGS = 60  # rows of a table: of more, the last are left out


def sections(one: RunRecord, of: str) -> list[Section]:
    """``of``: whose they are, where there are several runs. What did not happen has none."""
    told = [event for event in one.run.happened if not (isinstance(event, Joined | Linked) and event.seconds <= 0)]
    wrong, came, saved = _sorted(told)
    found = []
    if wrong:
        rows = [[format.exact_seconds(event.seconds), *_told(event), _felt(one, event)] for event in wrong[:HAPPENINGS]]
        caption = (
            "Back: how long until rows/s were at 90% of what they were before, for a second, since it was first to be felt."
            f"{_more(wrong)}"
        )
        table = TableSection(["seconds", "", "what", "back"], rows, caption)
        found.append(Section(f"Faults and recoveries{of}", [], [], [table]))
    if came:
        groups = event_line.together(came)
        rows = [[_when(group), *_told(group)] for group in groups[:HAPPENINGS]]
        table = TableSection(
            ["seconds", "", "what"],
            rows,
            f"Who came and went in order, and what changed hands meanwhile.{_more(groups)}",
        )
        found.append(Section(f"Membership changes{of}", [], [], [table]))
    if saved:
        rows = [
            [
                format.exact_seconds(one.seconds),
                f"{one.number:,}",
                f"{one.steps:,}",
                format.size(one.bytes),
                format.latency(one.took),
            ]
            for one in saved[-HAPPENINGS:]
        ]
        table = TableSection(["seconds", "checkpoint", "steps", "size", "took"], rows, "The run went on meanwhile.")
        found.append(Section(f"Checkpoints{of}", [], [], [table]))
    return found


def _sorted(told: Sequence[Happened]) -> tuple[list[Happened], list[Happened], list[Saved]]:
    """Faults with what mended them, comings and goings, checkpoints."""
    wrong, came, saved = list[Happened](), list[Happened](), list[Saved]()
    lost: dict[str, bool] = {}  # by name: how it went last
    for event in told:
        match event:
            case Saved():
                saved.append(event)
            case Gone():
                lost[event.name] = not event_line.left_in_order(event)
                (wrong if lost[event.name] else came).append(event)
            case Joined():
                (wrong if lost.pop(event.name, False) else came).append(event)
            case Leaving() | Handed() | Split():
                came.append(event)
            case _:
                wrong.append(event)
    return wrong, came, saved


_CALLED: dict[type, str] = {
    Joined: "joined", Gone: "gone", Leaving: "leaving", Handed: "moved", MoveSummary: "moved", Split: "split", RolledBack: "went back",
    Resumed: "taken up", Voided: "void", Warned: "warning", Linked: "graph", Elected: "chosen",
}  # fmt: skip


def _told(event: Happened | MoveSummary) -> tuple[str, str]:
    match event:
        case MoveSummary():
            return _CALLED[MoveSummary], event_line.news(event)
        case Saved(number=number):  # in a section of their own
            return "saved", f"checkpoint {number:,}"
        case Gone() if event_line.left_in_order(event):
            return "left", event_line.news(event)
        case Gone():
            return "lost", event_line.news(event)
        case _:
            return _CALLED[type(event)], event_line.news(event).removeprefix("warning: ")


def _when(event: Happened | MoveSummary) -> str:
    first = format.exact_seconds(event.seconds)
    last = format.exact_seconds(event.until) if isinstance(event, MoveSummary) else first
    return first if first == last else f"{first} to {last}"


def _more(events: Sequence[object]) -> str:
    return f" {len(events) - HAPPENINGS:,} more are left out." if len(events) > HAPPENINGS else ""


def _felt(one: RunRecord, event: Happened) -> str:
    if not isinstance(event, Gone | RolledBack):
        return ""
    after = one.run.back_after(began(event))
    if after is None:
        return "-"
    return "not felt" if after == 0 else "not while it ran" if math.isinf(after) else format.latency(after)

"""Follows a fault until it has healed.

    detected    the incarnation that was hurt is no longer in the view (short pauses never are)
    promoted    a push sent right after the fault is acknowledged by all segments of the server
    full        every segment has all its copies again, and none is being filled
    back        the process, or the worker in its place, is a member again; the coordinator
                answers; a server that joins holds its share; one that was drained is gone

A node is well when all that applies to it has happened. Times are seconds since the fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from shoal.chaos.plan import COORDINATOR, PLANNED, ChaosFault
from shoal.wire import messages as m


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    fault: ChaosFault
    at: float  # seconds since training began
    detected: float | None = None
    promoted: float | None = None
    full: float | None = None
    back: float | None = None
    well: float | None = None  # None: the run was over before


@dataclass(slots=True)
class FaultyNode:
    fault: ChaosFault
    at: float
    incarnation: int = 0  # that was hurt
    owned: int = 0  # segments
    until: float | None = None  # when a pause ends
    replace: float | None = None  # when another worker is to be started in its place
    successor: str = ""  # the worker in its place
    probe: bool | None = None  # None: nothing was sent; False: not acknowledged yet
    times: dict[str, float] = field(default_factory=dict)

    def saw(self, stage: str, now: float) -> str:
        """Record a stage; returns its time, or nothing if it was known."""
        if stage in self.times:
            return ""
        self.times[stage] = now - self.at
        return f"{self.times[stage]:.1f} s"

    @property
    def planned(self) -> bool:
        return self.fault.kind in PLANNED

    @property
    def dead(self) -> bool:
        """Whether that incarnation cannot come back."""
        return self.fault.kind == "kill" or "detected" in self.times

    @property
    def is_well(self) -> bool:
        if "back" not in self.times or self.probe is False:
            return False
        return self.fault.role != "server" or "full" in self.times

    def healed(self) -> Recovery:
        times = {name: round(value, 3) for name, value in self.times.items()}
        return Recovery(fault=self.fault, at=round(self.at, 3), **times)


def look(node: FaultyNode, now: float, view: m.View, copies: int, asked: float) -> list[str]:
    """The news about a node in this view, requested at ``asked``; in words."""
    fault, news = node.fault, []
    members = {one.name: one.incarnation for one in view.members}
    if asked <= node.at:
        return []  # older than the fault
    if node.planned:
        is_join = fault.kind == "join"
        holds = any(fault.name in place.servers for one in view.tables for place in one.places)
        there = holds if is_join else members.get(fault.name) != node.incarnation
        if there and is_full(view, copies) and node.saw("full", now):
            news.append(f"{fault.name} {'holds its share' if is_join else 'is gone'} after {node.saw('back', now)}")
        return news
    if fault.role == COORDINATOR:
        if node.until is None and (after := node.saw("back", now)):
            news.append(f"the coordinator answers again after {after}")
    else:
        if members.get(fault.name) != node.incarnation and (after := node.saw("detected", now)):
            news.append(f"{fault.name} is removed from the view after {after}")
        name = node.successor or fault.name
        here = members.get(name, 0) > node.incarnation if node.dead else members.get(name) == node.incarnation
        if node.until is None and here and (after := node.saw("back", now)):
            news.append(f"{name} is a member {'again ' if name == fault.name else ''}after {after}")
    if fault.role == "server" and node.probe is not False:
        settled = not node.dead or "detected" in node.times
        if settled and node.until is None and is_full(view, copies) and (after := node.saw("full", now)):
            news.append(f"all segments have their copies again {after} after {fault}")
    return news


def is_full(view: m.View, copies: int) -> bool:
    return all(len(place.servers) >= copies and not place.filling for one in view.tables for place in one.places)


def states(view: m.View, standing: m.StatusReply, hurt: Mapping[str, FaultyNode]) -> dict[str, str]:
    """The state of every member: up, suspected, paused, down, filling."""
    suspected = {one.name for one in standing.members if one.suspected}
    filling = {place.filling for one in view.tables for place in one.places}
    found = {COORDINATOR: "up"} | {
        one.name: "suspected" if one.name in suspected else "filling" if one.name in filling else "up"
        for one in view.members
        if one.role in ("server", "worker")
    }
    for name, node in hurt.items():
        if node.until is not None:
            found[name] = "paused"
        elif "back" not in node.times and not (node.successor and "detected" in node.times):
            found[name] = "down"
    return found

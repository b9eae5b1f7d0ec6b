"""Run events in words: a line per event, a sentence for news, a summary of many.

Plain functions of events that never raise. Moves of segments for one reason belong together as
long as each follows the one before within a few seconds: ``together`` makes a ``MoveSummary``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard, TypeVar

from shoal import events as e
from shoal.views import format
from shoal.views.format import clean, many

DOING = {"compute": "computing", "communicate": "communicating", "wait": "waiting", "idle": "idle"}
NAMED = 3  # names in a summary before it says how many more
GAP = 3.0  # seconds between two moves of one line
WAYS = 4  # pairs of servers before it says how many more

_REASONS = {
    "count": "to even out their number",
    "load": "to even out the load",
    "leaving": "it leaves",
    "joined": "to a newcomer",
    "lost": "it was lost on the way",
}
_ASKED = {  # without names of clients
    "operator asked for it": "an operator asked for it (shoal leave)",
    "launcher asked for it": "the program that began the run asked for it",
}

News = (
    e.Joined
    | e.Gone
    | e.Leaving
    | e.Handed
    | e.Split
    | e.Voided
    | e.Warned
    | e.Resumed
    | e.RolledBack
    | e.Linked
    | e.Elected
)
Event = TypeVar("Event")


@dataclass(slots=True)
class MoveSummary:
    """Moves of one table for one reason, in quick succession."""

    handed: list[e.Handed] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.handed[0].seconds

    @property
    def until(self) -> float:
        return self.handed[-1].seconds


def together(events: Iterable[Event]) -> list[Event | MoveSummary]:
    """The events in order, with each group of moves at its first one."""
    found: list[Event | MoveSummary] = []
    latest: dict[tuple[str, str], MoveSummary] = {}
    for event in events:
        if not isinstance(event, e.Handed):
            found.append(event)
            continue
        key = event.table, event.why
        if (group := latest.get(key)) is None or event.seconds - group.until > GAP:
            group = latest[key] = MoveSummary()
            found.append(group)
        group.handed.append(event)
    return found


def line(event: e.RunEvent) -> str:
    return f"{clock(event.seconds)}  {sentence(event)}"


def clock(seconds: float) -> str:
    return f"{format.seconds(seconds):>6} s"


def sentence(event: e.RunEvent) -> str:
    match event:
        case e.Started():
            return started(event)
        case e.Progress():
            epoch, done = f"epoch {format.epochs(event.passes)}", many(event.examples, "example")
            loss, workers = f"train loss {format.loss(event.train_loss)}", many(event.workers, "worker")
            parts = [epoch, many(event.steps, "step"), done, loss, workers, shares(event.spent)]
            return "  ".join(part for part in parts if part)
        case e.Evaluated():
            return f"epoch {format.epochs(event.passes)}  {evaluation(event)}  {many(event.workers, 'worker')}"
        case e.Saved():
            size, took = format.size(event.bytes), format.duration(event.took)
            return f"checkpoint {event.number:,} saved at step {event.steps:,}: {size} in {took}"
        case e.Delayed():
            apart = f"workers may be {many(event.max_delay, 'step')} apart"
            return f"{apart}: they waited {event.waiting:.0%} of their time"
        case e.Spans():
            total: dict[str, float] = {}
            for kind, _, seconds in event.spans:
                total[kind] = total.get(kind, 0.0) + seconds
            each = ", ".join(f"{clean(kind)} {seconds:.3f} s" for kind, seconds in total.items())
            return f"{clean(event.name)}: {many(len(event.spans), 'span')} ({each})"
        case e.Shared():
            held = ", ".join(
                f"{clean(name)} {number:,}{f' and copies of {copies:,}' if (copies := event.copies.get(name)) else ''}"
                for name, number in event.serves.items()
            )
            return f"segments: {held}"
        case e.Stopped():
            return f"stopped: {clean(event.why)}"
    return news(event)


def started(event: e.Started) -> str:
    rows = f"{event.rows:,} rows (and {event.test_rows:,} to test) of {event.features:,} features"
    emulated = f"; {clean(event.emulated)}" if event.emulated else ""
    return f"{', '.join(what(event))}: {rows}, {_crew(event)}{on_cores(event)}{emulated}"


def shares(spent: Mapping[str, float]) -> str:
    """The shares of the workers' time; empty if unknown."""
    whole = sum(spent.values())
    if not whole > 0:
        return ""
    found = [(DOING.get(kind, clean(kind)), seconds / whole) for kind, seconds in spent.items()]
    return ", ".join(f"{share:.0%} {doing}" for doing, share in found if share >= 0.005)


def title(started: e.Started, crew: str = "") -> list[str]:
    """The title of a run, in pieces for wrapping; ``crew``: its members, if known better."""
    return [*what(started), crew or _crew(started), *([many(started.cores, "core")] if started.cores else [])]


def on_cores(started: e.Started) -> str:
    return f" on {many(started.cores, 'core')}" if started.cores else ""


def what(started: e.Started) -> list[str]:
    return [part for one in (started.data, started.model, started.strategy) if (part := clean(one))]


def _crew(started: e.Started) -> str:
    servers = f" x {many(started.servers, 'server')}" if started.servers else ""
    return many(started.workers, "worker") + servers


def evaluation(event: e.Evaluated) -> str:
    figures = "".join(f"  {clean(name)} {format.metric(name, value)}" for name, value in event.metrics.items())
    spread = event.spread
    if {"best", "worst"} <= spread.keys():  # each worker has its own model
        figures += f"  each {format.loss(spread['best'])} to {format.loss(spread['worst'])}"
        figures += f", {format.distance(spread['distance'])} from the mean" if "distance" in spread else ""
    return f"test loss {format.loss(event.test_loss)}{figures}{'  best' if event.best else ''}"


def best(event: e.Evaluated) -> str:
    return f"best test loss {format.loss(event.test_loss)} at epoch {format.epochs(event.passes)}"


def is_news(event: e.RunEvent) -> TypeGuard[News]:
    """Whether an event is news; initial members are not."""
    return isinstance(event, News) and not (isinstance(event, e.Joined) and event.seconds <= 0)


def left_in_order(event: e.Gone) -> bool:
    return clean(event.why).startswith(e.LEFT)


def news(event: News | MoveSummary) -> str:
    """One event, or moves that belong together, as a sentence."""
    match event:
        case e.Joined():
            return f"{who(event)} joined"
        case e.Gone(why=why, slots=slots):
            if left_in_order(event):
                rest = clean(why).removeprefix(e.LEFT).removeprefix(": ")
                return f"{who(event)} left{f': {rest}' if rest else ''}{_reassigned(slots)}"
            left = f", and {event.left:.3g} that its filters had left for later" if event.left else ""
            return f"{who(event)} gone: {clean(why) or 'no reason given'}{_reassigned(slots)}{left}"
        case e.Leaving(why=why):
            asked = _ASKED.get(re.sub(r"^operator.* asked", "operator asked", clean(why)), clean(why))
            return f"{who(event)} is leaving{f': {asked}' if why else ''}"
        case MoveSummary(handed=[one]):
            return news(one)
        case MoveSummary(handed=handed):
            first = handed[0]
            number = many(sum(len(one.segments) for one in handed), "segment")
            what = f"{number} of {clean(first.table)} moved ({reason(first.why)})"
            gain = next((f"; at first {clean(one.gain)}" for one in handed if one.gain), "")
            return f"{what}: {_ways(handed)}; {_paused(max(one.stall for one in handed))} at most{gain}"
        case e.Handed(table=table, segments=segments, source=source, target=target, why=why):
            moved = f"{many(len(segments), 'segment')} of {clean(table)}"
            gain = f": {clean(event.gain)}" if event.gain else ""
            return f"{moved} went from {clean(source)} to {clean(target)} ({reason(why)}{gain}), {_paused(event.stall)}"
        case e.Split(table=table, segment=segment, why=why):
            return f"segment {segment:,} of {clean(table)} was split in two: {clean(why)}"
        case e.Voided(slot=(epoch, number), why=why):
            return f"slot {number:,} of epoch {epoch:,} counts as empty: {clean(why)}"
        case e.Warned(what=what):
            return f"warning: {clean(what)}"
        case e.Linked():
            return linked(event)
        case e.Elected(name=name, why=why):
            return f"{clean(name)} evaluates the model and deals the slots{f': {clean(why)}' if why else ''}"
        case e.Resumed(checkpoint=None):
            return "there is no checkpoint: it begins from the start"
        case e.Resumed(checkpoint=checkpoint, steps=steps):
            return f"resumes from checkpoint {checkpoint:,} ({many(steps, 'step')}){_done_again(event.slots)}"
        case e.RolledBack(steps_before=before, steps_after=after, why=why):
            to = "the beginning" if event.checkpoint is None else f"checkpoint {event.checkpoint:,}"
            return f"rolled back to {to}, from step {before:,} to {after:,}{_done_again(event.slots)}: {clean(why)}"


def linked(event: e.Linked) -> str:
    ways = "one-way link" if event.directed else "link"
    pieces = f", in {many(len(event.parts), 'piece')}" if len(event.parts) > 1 else ""
    if event.rounds is None:
        left = "and they never agree"
    elif event.pairs:
        left = "two meet at a time"
    else:
        left = f"a hundredth of the distance is left after {format.rounds(event.rounds)}"
    living = sum(len(part) for part in event.parts) or len(event.nodes)
    why = f" ({clean(event.why)})" if event.why else ""
    rows = f"; {clean(event.rows)}" if event.rows else ""
    links = f"{many(len(event.links), ways)}{pieces}"
    return f"{clean(event.topology)} of {many(living, 'worker')} with {links}: spectral gap {event.gap:.3g}, {left}{why}{rows}"


def who(event: e.Joined | e.Gone | e.Leaving) -> str:
    """A node's name, with its role unless the name says it."""
    name, role = clean(event.name), clean(event.role)
    return name if name.startswith(role) else f"{role} {name}"


def reason(why: str) -> str:
    """Why segments move; an unknown word stands for itself."""
    return _REASONS.get(why, clean(why))


def _paused(stall: float) -> str:
    return f"{format.elapsed(stall)} without an answer"


def _reassigned(slots: int) -> str:
    return f"; {many(slots, 'slot')} reassigned" if slots else ""


def _done_again(slots: Iterable[tuple[int, int]]) -> str:
    number = sum(stop - first for first, stop in slots)
    return f"; {many(number, 'slot')} done again" if number else ""


def _ways(handed: Sequence[e.Handed]) -> str:
    """The numbers of segments by source and target, largest first."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in handed:
        counts[event.source, event.target] += len(event.segments)
    if len(counts) == 1:
        ((source, target),) = counts
        return f"from {clean(source)} to {clean(target)}"
    each = [f"{number:,} from {clean(a)} to {clean(b)}" for (a, b), number in counts.most_common(WAYS)]
    more = f" and {len(counts) - WAYS:,} more ways" if len(counts) > WAYS else ""
    return ", ".join(each) + more


def summary(events: Sequence[News]) -> str:
    """A summary: losses, joins, moves, void slots, warnings, in that order."""
    if len(events) == 1:
        return news(events[0])
    joined = [event for event in events if isinstance(event, e.Joined)]
    ends = [event for event in events if isinstance(event, e.Gone)]
    left = [one for one in ends if left_in_order(one)]
    gone = [one for one in ends if one not in left]
    leaving = [
        event for event in events if isinstance(event, e.Leaving) and event.name not in {one.name for one in left}
    ]
    back = [one for one in joined if any(end.name == one.name and end.seconds <= one.seconds for end in ends)]
    handed = [event for event in events if isinstance(event, e.Handed)]
    split, voided = (sum(isinstance(event, kind) for event in events) for kind in (e.Split, e.Voided))
    warned = [event for event in events if isinstance(event, e.Warned)]
    parts = [f"{nodes(gone)} gone{_reassigned(sum(one.slots for one in gone))}"] if gone else []
    parts += [f"{nodes(leaving)} {'is' if len(leaving) == 1 else 'are'} leaving"] if leaving else []
    parts += [f"{nodes(left)} left{_reassigned(sum(one.slots for one in left))}"] if left else []
    parts += [f"{nodes(back)} came back"] if back else []
    new = [one for one in joined if one not in back]
    parts += [f"{nodes(new)} joined"] if new else []
    if handed:
        moved = many(sum(len(event.segments) for event in handed), "segment")
        ways = names(dict.fromkeys(f"{event.source} to {event.target}" for event in handed))
        parts.append(f"{moved} went from {ways}, {_paused(max(event.stall for event in handed))} at most")
    parts += [f"{many(split, 'segment')} {'was' if split == 1 else 'were'} split in two"] if split else []
    parts += [f"{many(voided, 'slot')} {'counts' if voided == 1 else 'count'} as empty"] if voided else []
    parts += [news(event) for event in events if isinstance(event, e.Resumed | e.RolledBack)]
    for kind in (e.Linked, e.Elected):  # only the latest is valid
        parts += [news(event) for event in events if isinstance(event, kind)][-1:]
    if warned:
        more = f"{len(warned):,} warnings, the last: " if len(warned) > 1 else "warning: "
        parts.append(more + clean(warned[-1].what))
    return "; ".join(parts)


def nodes(events: Sequence[e.Joined | e.Gone | e.Leaving]) -> str:
    if len(events) == 1:
        return who(events[0])
    roles = {clean(event.role) for event in events}
    return f"{many(len(events), roles.pop() if len(roles) == 1 else 'node')} ({names(event.name for event in events)})"


def names(some: Iterable[str]) -> str:
    every = [clean(name) for name in some]
    more = f" and {len(every) - NAMED:,} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more

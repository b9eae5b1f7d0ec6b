"""How figures and happenings are said, in every view the same: plain functions, nothing that could fail on odd input.

What comes from events may hold anything: a text with line ends, a name with escape codes, a loss that is not a number.
``clean`` makes one printable line of a text; the others never raise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from shoal.events import (
    LEFT,
    Elected,
    Evaluated,
    Gone,
    Handed,
    Joined,
    Leaving,
    Linked,
    Resumed,
    RolledBack,
    RunEvent,
    Split,
    Started,
    Voided,
    Warned,
)

NAMED = 3  # names in a summary before it says how many more

_REASONS = {
    "count": "to even out their number",
    "load": "to even out the load",
    "leaving": "it leaves",
    "joined": "to a newcomer",
    "lost": "it was lost on the way",
}


News = Joined | Gone | Leaving | Handed | Split | Voided | Warned | Resumed | RolledBack | Linked | Elected


def clean(text: str) -> str:
    """One line without control characters: a name must not move the cursor."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def loss(value: float | None) -> str:
    """Four decimals, as long as these say something."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2e}" if abs(value) >= 100_000 or 0 < abs(value) < 0.00005 else f"{value:.4f}"


def passes(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.2g}" if 0 < value < 0.1 else f"{value:,.1f}".removesuffix(".0")


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def duration(value: float) -> str:
    if not math.isfinite(value) or value < 600:
        return f"{seconds(value)} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def rate(value: float | None) -> str:
    return f"{value:,.0f} rows/s" if value is not None and math.isfinite(value) else "- rows/s"


def metric(name: str, value: float | None) -> str:
    """A figure of an evaluation, in as many digits as say something."""
    if value is None or not math.isfinite(value):
        return loss(value)
    match name:
        case "objective":
            digits = 6 - int(math.log10(max(abs(value), 1.0)))  # seven in all: it is the last that still change
            return f"{value:,.{max(0, digits)}f}"
        case "nonzero":
            return f"{value:,.0f}"
        case "skipped":
            return f"{value:.1%}"
    return loss(value)


def many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def from_to(least: int, most: int, what: str) -> str:
    """2 workers, 2 to 4 workers."""
    return many(most, what) if least == most else f"{least:,} to {many(most, what)}"


def crew(started: Started) -> str:
    """As it begins."""
    servers = f" x {many(started.servers, 'server')}" if started.servers else ""
    return many(started.workers, "worker") + servers


def on_cores(started: Started) -> str:
    """Where they share a host: elsewhere its cores say nothing."""
    return f" on {many(started.cores, 'core')}" if started.cores else ""


def what(started: Started) -> list[str]:
    """Data, model and strategy."""
    return [part for one in (started.data, started.model, started.strategy) if (part := clean(one))]


def title(started: Started, who: str = "") -> list[str]:
    """What runs, in parts that are still readable when a line is broken between them; ``who`` was there, if that is known better."""
    return [*what(started), who or crew(started), *([many(started.cores, "core")] if started.cores else [])]


def evaluation(event: Evaluated) -> str:
    figures = "".join(f"  {clean(name)} {metric(name, value)}" for name, value in event.metrics.items())
    return f"test loss {loss(event.test_loss)}{figures}{_apart(event.spread)}{'  best' if event.best else ''}"


def _apart(spread: Mapping[str, float]) -> str:
    """How unlike the models are, where everybody has one."""
    said = f"  each {loss(spread['best'])} to {loss(spread['worst'])}" if {"best", "worst"} <= spread.keys() else ""
    return said + (f", {distance(spread['distance'])} from the mean" if said and "distance" in spread else "")


def distance(value: float) -> str:
    """Of models from their mean: it may be anything between nothing and much."""
    return f"{value:.3g}" if math.isfinite(value) else str(value)


def dealt_again(slots: int) -> str:
    return f"; {many(slots, 'slot')} dealt again" if slots else ""


def done_again(slots: Iterable[tuple[int, int]]) -> str:
    number = sum(stop - first for first, stop in slots)
    return f"; {many(number, 'slot')} done again" if number else ""


def who(event: Joined | Gone | Leaving) -> str:
    """A node's name, with its role unless the name says it."""
    name, role = clean(event.name), clean(event.role)
    return name if name.startswith(role) else f"{role} {name}"


def reason(why: str) -> str:
    """Why parts change hands; a word that is not known says it itself."""
    return _REASONS.get(why, clean(why))


def paused(stall: float) -> str:
    """How long nobody answered for a part that changed hands."""
    return f"{duration(stall) if stall >= 1 else f'{1e3 * stall:.0f} ms'} without an answer"


def _asked(why: str) -> str:
    """Who it was, for those who know no names of clients."""
    name, asked, rest = clean(why).partition(" asked for it")
    if not asked or rest:
        return clean(why)
    if name.startswith("operator"):
        return "an operator asked for it (shoal leave)"
    return "whoever began the run asked for it" if name == "launcher" else clean(why)


def left_in_order(event: Gone) -> bool:
    """Nothing went wrong: it said that it goes, or was let go."""
    return clean(event.why).startswith(LEFT)


def lost(told: object) -> str:
    """What Hogwild's canary says; nothing if there was none."""
    found = told if isinstance(told, dict) else {}
    counted, gone = found.get("counted"), found.get("lost")
    if not isinstance(counted, int) or not isinstance(gone, int) or counted < 1:
        return ""
    share = f"{gone / counted:.2%}" if gone / counted < 0.1 else f"{gone / counted:.0%}"
    how_many = f"{gone:,} ({share})" if gone else "none"
    return (
        f"of {counted:,} updates of one cell that everybody writes to, {how_many} {'was' if gone < 2 else 'were'} lost"
    )


def models(told: object) -> str:
    """What a run's summary says of models that are everybody's own; nothing if there are none."""
    found = told if isinstance(told, dict) else {}
    best, worst, apart = (found.get(name) for name in ("best", "worst", "distance"))
    if not (number(best) and number(worst) and number(apart)):
        return ""
    after = f" after {rounds(found['rounds'])}" if number(found.get("rounds")) else ""
    if not apart:
        return f"every worker has this model{after}"
    pieces = found.get("pieces")
    apart_for_good = f"; they are in {pieces:,.0f} pieces, and never agree" if number(pieces) else ""
    return (
        f"this is the mean of all models, which no worker has: their own have test losses of {loss(best)} to {loss(worst)}, and are "
        f"{distance(float(apart))} from it{after}{apart_for_good}"
    )


def number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float)


def is_news(event: RunEvent) -> TypeGuard[News]:
    """Worth telling; who is there from the start is not."""
    return isinstance(event, News) and not (isinstance(event, Joined) and event.seconds <= 0)


def news(event: News) -> str:
    """One happening, as a sentence."""
    match event:
        case Joined():
            return f"{who(event)} joined"
        case Gone(why=why, slots=slots):
            if left_in_order(event):
                rest = clean(why).removeprefix(LEFT).removeprefix(": ")
                return f"{who(event)} left{f': {rest}' if rest else ''}{dealt_again(slots)}"
            left = f", and {event.left:.3g} that its filters had left for later" if event.left else ""
            return f"{who(event)} gone: {clean(why) or 'no reason given'}{dealt_again(slots)}{left}"
        case Leaving(why=why):
            return f"{who(event)} is leaving{f': {_asked(why)}' if why else ''}"
        case Handed(table=table, segments=segments, source=source, target=target, why=why):
            parts = f"{many(len(segments), 'part')} of {clean(table)}"
            gain = f": {clean(event.gain)}" if event.gain else ""
            return f"{parts} went from {clean(source)} to {clean(target)} ({reason(why)}{gain}), {paused(event.stall)}"
        case Split(table=table, segment=segment, why=why):
            return f"part {segment:,} of {clean(table)} is two now: {clean(why)}"
        case Voided(slot=(number_of_pass, number), why=why):
            return f"slot {number:,} of pass {number_of_pass:,} counts as empty: {clean(why)}"
        case Warned(what=what):
            return f"warning: {clean(what)}"
        case Linked():
            return linked(event)
        case Elected(name=name, why=why):
            return f"{clean(name)} judges the model and deals the slots{f': {clean(why)}' if why else ''}"
        case Resumed(checkpoint=None):
            return "there is no checkpoint: it begins anew"
        case Resumed(checkpoint=checkpoint, steps=steps):
            return f"goes on from checkpoint {checkpoint:,} ({many(steps, 'step')}){done_again(event.slots)}"
        case RolledBack(steps_before=before, steps_after=after, why=why):
            to = "the beginning" if event.checkpoint is None else f"checkpoint {event.checkpoint:,}"
            return f"back to {to}, from step {before:,} to {after:,}{done_again(event.slots)}: {clean(why)}"


def linked(event: Linked) -> str:
    """A graph, in one line."""
    ways = "one-way link" if event.directed else "link"
    pieces = f", in {many(len(event.parts), 'piece')}" if len(event.parts) > 1 else ""
    if event.rounds is None:
        left = "and they never agree"
    elif event.pairs:
        left = "two meet at a time"
    else:
        left = f"a hundredth of the distance is left after {rounds(event.rounds)}"
    living = sum(len(part) for part in event.parts) or len(event.nodes)
    return (
        f"{clean(event.topology)} of {many(living, 'worker')} with {many(len(event.links), ways)}{pieces}: spectral gap "
        f"{event.gap:.3g}, {left}{f' ({clean(event.why)})' if event.why else ''}{f'; {clean(event.rows)}' if event.rows else ''}"
    )


def rounds(value: float) -> str:
    if not math.isfinite(value):
        return "- rounds"
    said = (f"{value:.1f}" if 1 < value < 9.95 else f"{value:,.0f}").removesuffix(".0")
    return f"{said} round{'' if said == '1' else 's'}"


def summary(events: Sequence[News]) -> str:
    """Several happenings in one line: who joined, who is gone, what is void, what is not as it should be."""
    if len(events) == 1:
        return news(events[0])
    joined = [event for event in events if isinstance(event, Joined)]
    ends = [event for event in events if isinstance(event, Gone)]
    gone, left = [one for one in ends if not left_in_order(one)], [one for one in ends if left_in_order(one)]
    leaving = [event for event in events if isinstance(event, Leaving) and event.name not in {one.name for one in left}]
    back = [one for one in joined if any(end.name == one.name and end.seconds <= one.seconds for end in ends)]
    joined = [one for one in joined if one not in back]
    voided = sum(isinstance(event, Voided) for event in events)
    said = []
    if joined:
        said.append(f"{nodes(joined)} joined")
    if gone:
        said.append(f"{nodes(gone)} gone{dealt_again(sum(event.slots for event in gone))}")
    if leaving:
        said.append(f"{nodes(leaving)} {'is' if len(leaving) == 1 else 'are'} leaving")
    if left:
        said.append(f"{nodes(left)} left{dealt_again(sum(event.slots for event in left))}")
    if back:
        said.append(f"{nodes(back)} came back")
    said += _moved(events)
    if voided:
        said.append(f"{many(voided, 'slot')} {'counts' if voided == 1 else 'count'} as empty")
    said += [news(event) for event in events if isinstance(event, Resumed | RolledBack)]
    for kind in (Linked, Elected):  # as it is by now
        said += [news(event) for event in events if isinstance(event, kind)][-1:]
    warned = [event for event in events if isinstance(event, Warned)]
    if warned:
        more = f"{len(warned):,} warnings, the last: " if len(warned) > 1 else "warning: "
        said.append(more + clean(warned[-1].what))
    return "; ".join(said)


def _moved(events: Sequence[News]) -> list[str]:
    """Parts that changed hands, and those that were split."""
    handed, said = [event for event in events if isinstance(event, Handed)], list[str]()
    if handed:
        parts = sum(len(event.segments) for event in handed)
        ways = names(dict.fromkeys(f"{event.source} to {event.target}" for event in handed))
        worst = paused(max(event.stall for event in handed))
        said.append(f"{many(parts, 'part')} went from {ways}, {worst} at most")
    if split := sum(isinstance(event, Split) for event in events):
        said.append(f"{many(split, 'part')} {'is' if split == 1 else 'are'} two now")
    return said


def nodes(events: Sequence[Joined | Gone | Leaving]) -> str:
    if len(events) == 1:
        return who(events[0])
    roles = {clean(event.role) for event in events}
    return f"{many(len(events), roles.pop() if len(roles) == 1 else 'node')} ({names(event.name for event in events)})"


def names(all_of_them: Iterable[str]) -> str:
    every = [clean(name) for name in all_of_them]
    more = f" and {len(every) - NAMED:,} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more

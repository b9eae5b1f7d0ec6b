"""The sections of a report on one run, or on several beside each other.

There is no section for what a run does not record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

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
from shoal.views import charts, consensus, event_line, explain, figures, format, member_plots, plots, timeline
from shoal.views.advice import advise
from shoal.views.axes import pictures
from shoal.views.event_line import MoveSummary
from shoal.views.explain import VERBS
from shoal.views.members import moves_of
from shoal.views.page import PictureSection, Section, TableSection, compact
from shoal.views.run_record import OF_WORKERS, Happened, RunRecord, began, emulation, seconds_of, unlike

COLUMNS = 4  # runs beside each other
EVALUATIONS = 40  # rows of a table; of more, a sample is shown
HAPPENINGS = 60  # rows of a table; of more, the first are shown
NAMED = 6  # runs in a title


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """The sections on one run, or on several side by side."""
    findings, *of_each = _findings(runs)
    made = [findings, _figures(runs) if len(runs) > 1 else None, _losses(runs), _time(runs), _timeline(runs), *of_each]
    made += [_staleness(runs), _bytes(runs), figures.section(runs), _cost(runs)]
    made += [consensus.section(one, _of(one, runs)) for one in runs]
    made += [_servers(one, _of(one, runs)) for one in runs]
    made += [_members(one, runs) for one in runs]
    made += [section for one in runs for section in incidents(one, _of(one, runs))]
    made += [_delay(one, runs) for one in runs]
    made += [_trained(runs), _machine(runs)]
    return [one for one in made if one is not None]


def title(runs: Sequence[RunRecord]) -> str:
    if len(runs) > 1:
        names = [format.clean(one.name) for one in runs]
        more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
        return f"{len(runs)} runs: {', '.join([*names[:NAMED], *more])}"
    started = runs[0].run.started
    crew = runs[0].run.attendance.crew()
    return f"{runs[0].name}: {' · '.join(event_line.title(started, crew)) if started else 'a run'}"


def _of(one: RunRecord, runs: Sequence[RunRecord]) -> str:
    return f" of {format.clean(one.name)}" if len(runs) > 1 else ""


def _beside(heads: list[str], rows: list[list[str]], runs: Sequence[RunRecord], caption: str = "") -> TableSection:
    """A table with a row per run, without empty columns; a single run has no name."""
    kept = [at for at in range(len(heads)) if any(row[at] != "-" for row in rows) and (at or len(runs) > 1)]
    return TableSection([heads[at] for at in kept], [[row[at] for at in kept] for row in rows], caption)


# ---------------------------------------------------------------- words, figures, settings


def _findings(runs: Sequence[RunRecord]) -> list[Section]:
    if len(runs) == 1:
        return [Section("Findings", [*explain.of_one(runs[0]), *runs[0].problems, *_next(runs[0])])]
    each = [f"{format.clean(one.name)}: {' '.join([*explain.of_one(one, among=True), *one.problems])}" for one in runs]
    return [Section("Findings", explain.of_several(list(runs))), Section("Findings of each run", each)]


def _next(one: RunRecord) -> list[str]:
    """The next move, if the run has ended and it is not this report."""
    found = advise(one) if one.summary else None
    return [f"Next: {found}."] if found is not None and found.finding else []


def _figures(runs: Sequence[RunRecord]) -> Section:
    """A table of the runs: as columns while they are few."""
    judged = [one for one in runs if one.run.best is not None]
    common = explain.common_loss(judged) if judged and explain.other_task(judged) is None else None
    names = list(dict.fromkeys(name for one in runs for name in _metrics(one)))
    heads = ["run", "workers", "seconds", "CPU seconds", "rows/s", "best test loss", "last test loss"]
    heads += [f"last {name}" for name in names]
    heads += [] if common is None else [f"seconds to {format.loss(common)}", f"rows to {format.loss(common)}"]
    heads += [*(VERBS[kind] for kind in OF_WORKERS), "staleness, mean"]
    rows = [
        [f"{one.name} ({one.strategy})" if one.strategy not in one.name else one.name, *_row(one, common, names)]
        for one in runs
    ]
    table = _beside(heads, rows, runs)
    if len(runs) <= COLUMNS:
        turned = [list(row) for row in zip(table.heads, *table.rows, strict=True)]
        table = TableSection(["", *turned[0][1:]], turned[1:])
    return Section("Figures", [], [], [table])


def _metrics(one: RunRecord) -> dict[str, float]:
    """The metrics of the last evaluation."""
    found = one.run.finite[-1].metrics if one.run.finite else {}
    return {name: value for name, value in found.items() if value is not None}


def _row(one: RunRecord, common: float | None, names: Sequence[str]) -> list[str]:
    run, stale = one.run, one.staleness
    least, most = run.attendance.between("worker")
    workers = "-" if run.started is None else f"{most:,}" if least == most else f"{least:,} to {most:,}"
    row = [workers, format.exact_seconds(run.seconds)]
    row += ["-" if one.cpu is None else explain.cpu(one.cpu), f"{one.speed:,.0f}" if one.speed else "-"]
    row += [format.loss(run.best.test_loss if run.best else None)]
    row += [format.loss(run.finite[-1].test_loss if run.finite else None)]
    found = _metrics(one)
    row += [format.metric(name, found.get(name)) for name in names]
    if common is not None:
        there = run.reached(common)
        row += [format.exact_seconds(seconds_of(there)), f"{there.examples:,}"] if there else ["-", "-"]
    return [*row, *(_share(run.shares, kind) for kind in OF_WORKERS), f"{stale[1]:.3g}" if stale else "-"]


def _trained(runs: Sequence[RunRecord]) -> Section | None:
    known = [(one, unlike(one.job)) for one in runs if one.job is not None]
    if not known:
        return None
    names = list(dict.fromkeys(name for _, settings in known for name in settings))
    rows = [[name, *(_setting(settings, name) for _, settings in known)] for name in names]
    heads = ["setting", *(one.name for one, _ in known)] if len(runs) > 1 else ["setting", "value"]
    words = [
        f"{format.clean(s.data)}: {s.rows:,} rows to train on, {s.test_rows:,} to test, {s.features:,} features, "
        f"{s.slots:,} slots of {s.batch:,} rows in an epoch."
        for one in runs
        if len(runs) == 1 and (s := one.run.started) is not None
    ]
    return Section("What was trained", words, [], [TableSection(heads, rows, "Settings that are not the defaults.")])


def _setting(settings: dict[str, Any], name: str) -> str:
    if name not in settings:
        return "(default)"
    value = settings[name]
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def _machine(runs: Sequence[RunRecord]) -> Section:
    heads = ["run", "cores", "processor", "memory", "platform", "python", "numpy", "load at the end"]
    rows = []
    for one in runs:
        found = one.summary.get("machine")
        machine: dict[str, Any] = found if isinstance(found, dict) else {}
        memory = format.number(machine.get("memory"))
        row = [one.name, _cores(one, machine), str(machine.get("processor") or "-")]
        row += ["-" if memory is None else f"{memory / 2**30:.1f} GB"]
        rows.append([*row, *(str(machine.get(what, "-")) for what in ("platform", "python", "numpy", "load"))])
    return Section("The machine", [], [], [_beside(heads, rows, runs)])


def _cores(one: RunRecord, machine: dict[str, Any]) -> str:
    used = (one.run.started.cores if one.run.started else 0) or "-"
    return f"{used} of {machine['cores']}" if machine.get("cores") not in (None, used) else f"{used}"


# ---------------------------------------------------------------- pictures with their tables


def _losses(runs: Sequence[RunRecord]) -> Section:
    caption = "Test loss of every evaluation, at the moment its weights were read."
    if len(runs) == 1:
        caption += " Train loss of the rows since the record before, each before its own update."
        if moves_of(runs[0].run.happened):
            caption += " Below: membership changes, with a name where there is room."
        caption += _emulated(runs)
    caption += consensus.CAPTION if any(event.spread for one in runs for event in one.run.evaluations) else ""
    drawn = pictures("losses", lambda: plots.losses(runs), caption)
    return Section("Losses", [], drawn, [_evaluations(runs[0])] if len(runs) == 1 and runs[0].run.evaluations else [])


def _evaluations(one: RunRecord) -> TableSection:
    run, events = one.run, one.run.evaluations
    every, best = -(-len(events) // EVALUATIONS), run.best
    shown = [one for at, one in enumerate(events) if at % every == 0 or one is best or one is events[-1]]
    metrics = list(dict.fromkeys(name for event in events for name in event.metrics))
    apart = consensus.columns(events)
    heads = ["evaluation", "seconds", "epoch", "rows", "train loss", "test loss", *metrics, *apart, "workers"]
    rows = [
        [
            f"{event.number:,}",
            format.exact_seconds(seconds_of(event)),
            f"{event.passes:.3g}",
            f"{event.examples:,}",
            format.loss(event.train_loss),
            format.loss(event.test_loss),
            *(format.metric(name, event.metrics.get(name)) for name in metrics),
            *(text(event) for text in apart.values()),
            str(event.workers),
        ]
        for event in shown
    ]
    caption = "Workers: how many took part when the weights were read."
    caption += f" {len(events) - len(shown):,} more are left out." if len(events) > len(shown) else ""
    if any(isinstance(event, RolledBack) for event in run.happened):
        caption += " The run went back to a checkpoint: some numbers come twice."
    return compact(TableSection(heads, rows, caption))


def _time(runs: Sequence[RunRecord]) -> Section | None:
    if len(runs) > 1:
        bars = [(one.name, one.run.shares) for one in runs if one.run.shares]
    else:
        bars = [(node.name, node.shares) for node in runs[0].run.workers if node.shares]
        bars = [*bars, ("all workers", runs[0].run.shares)] if runs[0].run.shares and len(bars) != 1 else bars
    if not bars:
        return None
    caption = " ".join(dict.fromkeys(_WAITS.get(one.strategy, _WAITED) for one in runs))
    caption += f" Idle: there was no slot to do.{_emulated(runs)}"
    tables = [_workers(runs[0])] if len(runs) == 1 and runs[0].run.workers else []
    return Section("Where the time went", [], pictures("shares", lambda: charts.shares(bars), caption), tables)


_WAITED = "Wait: a server kept the answer back, for slower workers or the other slots of a step."
_WAITS = {
    "serial": "A serial run computes, and nothing else is counted.",
    "hogwild": "Workers of hogwild wait for nobody, unless there is a lock.",
    "averaging": "Ranks wait for the slowest of them before a mean is taken.",
    "allreduce": "Ranks wait for the slowest of them in every step.",
    "gossip": "Workers wait for their neighbours' weights; the time of the links is separate only where it is emulated.",
    "peer-to-peer": "Peers wait for nobody.",
}


def _workers(one: RunRecord) -> TableSection:
    rows = []
    for node in one.run.workers:
        pace = node.per_slot
        row = [node.name, f"{node.slots:,}" if node.exact else "-", "-" if pace is None else format.latency(pace)]
        rows.append([*row, *(_share(node.shares, kind) for kind in OF_WORKERS)])
    partly = "" if all(node.exact for node in one.run.workers) else " Shares are of the time that was recorded."
    heads = ["worker", "slots", "computing per slot", *OF_WORKERS]
    return compact(TableSection(heads, rows, f"Up to the last evaluation.{partly}"))


def _timeline(runs: Sequence[RunRecord]) -> Section | None:
    """Timelines of the whole run, of some steps, and of one step."""
    shown = [one for one in runs if one.run.nodes and any(node.spans for node in one.run.nodes.values())]
    if not shown:
        return None
    pairs = [(one.name, one.run) for one in shown]
    windows = timeline.default_windows([one.run for one in shown])
    found = pictures(
        "whole",
        lambda: timeline.whole(pairs, windows),
        f"The whole run: how all workers together spent their time. The frame is shown below.{_emulated(runs)}",
    )
    caption = f"{_stretches(shown, windows)}, one row for each node; percentages are of the whole run. "
    caption += f"Hatched: nothing was recorded.{_emulated(runs)}"
    found += pictures("timeline", lambda: timeline.drawn(pairs), caption)
    where = f" ({format.clean(shown[0].name)})" if len(runs) > 1 else ""
    found += pictures(
        "step",
        lambda: timeline.step(shown[0].run),
        f"The four steps of one iteration on a real worker's row{where}: it computes a gradient, pushes it, the servers "
        f"update the model, and it pulls the next weights. Push and pull are measured together, and pulls for the next "
        f"step may go on while it computes.",
    )
    return Section("Timeline", [], found) if found else None


def _stretches(runs: Sequence[RunRecord], windows: Sequence[timeline.Window]) -> str:
    """Which stretches of a run are shown, in words."""
    (since, until), whole = windows[0], runs[0].run.seconds
    if len(runs) > 1:
        return f"{format.latency(until - since)} of each run, after it warmed up"
    if until - since >= 0.99 * whole:
        return "The whole run"
    return f"{format.latency(until - since)} of the {format.latency(whole)} that it ran, {since:,.1f} s after the beginning"


def _emulated(runs: Sequence[RunRecord]) -> str:
    found = list(dict.fromkeys(one.emulated for one in runs if one.emulated))
    return f" {' '.join(map(emulation, found))}" if found else ""


def _staleness(runs: Sequence[RunRecord]) -> Section | None:
    known = [(one, stale) for one in runs if (stale := one.staleness) is not None]
    if not known:
        return None
    rows = [[one.name, f"{mean:.3g}", f"{p95:,}", format.most_stale(most)] for one, (_, mean, p95, most) in known]
    caption = "How many other pushes were counted between reading the weights and pushing their gradient."
    if any(one.strategy == "averaging" for one, _ in known):
        caption += " Of averaging: how many steps of other ranks, since the last mean, a step did not know of."
    if any(one.strategy == "peer-to-peer" for one, _ in known):
        caption += " Of peers: how many changes of others were published before a change that did not know of them."
    if not any(most for _, (_, _, _, most) in known):
        return Section("Staleness", ["No gradient was stale."])
    drawn = pictures("staleness", lambda: charts.staleness([one for one, _ in known]), caption)
    table = TableSection(["run", "mean", "95th percentile", "max"], rows)
    return Section("Staleness", [], drawn, [table] if len(runs) > 1 else [])


def _bytes(runs: Sequence[RunRecord]) -> Section | None:
    rows = []
    for one in runs:
        names = ("bytes_sent", "bytes_received", "examples", "steps")
        sent, received, examples, steps = (format.number(one.summary.get(name)) for name in names)
        if sent is None or received is None or not sent + received:
            continue
        per = [f"{(sent + received) / what:,.0f} B" if what else "-" for what in (examples, steps)]
        rows.append([one.name, format.size(sent), format.size(received), *per, figures.known_keys(one.summary)])
    if not rows:
        return None
    heads = ["run", "sent", "received", "per row", "per step", "keys not sent again"]
    known = any(row[-1] != "-" for row in rows)
    caption = (
        f"As workers counted them.{' A list of keys that a server has seen is sent as a number.' if known else ''}"
    )
    return Section("Bytes", [], [], [_beside(heads, rows, runs, caption)])


def _cost(runs: Sequence[RunRecord]) -> Section | None:
    """CPU seconds beside wall time."""
    known = [(one, one.cpu) for one in runs if one.cpu]
    if not known:
        return None
    rows = []
    for one, cpu in known:
        examples = format.number(one.summary.get("examples")) or 0.0
        per = f"{1e6 * cpu / examples:,.3g}" if examples else "-"
        elapsed = format.number(one.summary.get("elapsed_seconds"))  # older runs have none
        busy = f"{cpu / elapsed:,.2f}" if elapsed else "-"
        rows.append([one.name, format.exact_seconds(one.run.seconds), explain.cpu(cpu), busy, per])
    heads = ["run", "seconds", "CPU seconds", "CPU seconds a second", "for a million rows"]
    caption = (
        "CPU seconds are of all processes of a run that were started on its own machine, since it was last resumed, "
        "starting and judging included; so is the time that they are divided by."
    )
    drawn = pictures("cost", lambda: charts.costs([one for one, _ in known]), "Seconds of the clock, and CPU seconds.")
    return Section("What it cost", [], drawn if len(known) > 1 else [], [_beside(heads, rows, runs, caption)])


# ---------------------------------------------------------------- servers and members


def _servers(one: RunRecord, of: str) -> Section | None:
    """Segments, copies, moves and losses of servers, and the latency that workers saw."""
    run = one.run
    names = sorted({stay.name for stay in run.attendance.stays if stay.role == "server"}, key=format.natural)
    if not names:
        return None
    moves = [event for event in run.happened if isinstance(event, Handed)]
    taken, given = Counter[str](), Counter[str]()
    for event in moves:
        taken[event.target] += len(event.segments)
        given[event.source] += len(event.segments)
    rows = []
    for name in names:
        stays = [stay for stay in run.attendance.stays if stay.name == name]
        stalls = [event.stall for event in moves if name in (event.source, event.target)]
        held = [
            _first_last([getattr(event, what).get(name, 0) for event in run.shared]) for what in ("serves", "copies")
        ]
        row = [name, *held, f"{taken[name]:,}", f"{given[name]:,}", format.latency(max(stalls)) if stalls else "-"]
        rows.append([*row, f"{sum(stay.how == 'lost' for stay in stays):,}"])
    heads = ["server", "segments served", "copies kept", "segments taken over", "given away", "longest pause", "lost"]
    caption = "Segments and copies: at the start and at the end. Pause: a moving segment answered nobody for so long."
    words = [_answers(one)] if _answers(one) else []
    words.append("Memory and queue lengths of servers are not recorded.")
    drawn = pictures(
        f"segments-{one.name}",
        lambda: member_plots.parts(run),
        "Segments of the model on each server, one above the other. Upright lines: a server joined, left or was lost.",
    )
    return Section(f"Servers{of}", words, drawn, [compact(TableSection(heads, rows, caption))])


def _first_last(values: Sequence[int]) -> str:
    if not values:
        return "-"
    return f"{values[0]:,}" if values[0] == values[-1] else f"{values[0]:,} to {values[-1]:,}"


def _answers(one: RunRecord) -> str:
    """The latency of pushes and pulls, as far as spans are recorded."""
    spans = [span for node in one.run.workers for span in node.spans]
    lengths = sorted(stop - start for kind, start, stop in spans if kind == "communicate")
    if not lengths:
        return ""
    middle, high = (format.latency(lengths[int(share * (len(lengths) - 1))]) for share in (0.5, 0.95))
    return (
        f"Workers pushed and pulled for {middle} at a time (median), {high} at the 95th percentile: this is the latency of "
        f"the servers and the wire together, from {len(lengths):,} recorded spans."
    )


def _members(one: RunRecord, runs: Sequence[RunRecord]) -> Section | None:
    run = one.run
    counts = [event.workers for event in run.progress] + [event.workers for event in run.evaluations]
    changes = len(set(counts)) > 1 or bool(moves_of(run.happened))
    if not counts or (len(runs) > 1 and not changes):
        return None
    if not changes:
        workers = format.many(counts[0], "worker")
        return Section(
            "Members", [f"{workers} took part at each of {format.many(len(run.evaluations), 'evaluation')}."]
        )
    drawn: list[PictureSection] = []
    if len(set(counts)) > 1:
        caption = "Workers that took part; a dot is an evaluation, at the moment its weights were read."
        drawn += pictures(f"members-{one.name}", lambda: member_plots.members(run), caption)
    caption = "Which node was there when. A node without a mark at its beginning was there from the start."
    drawn += pictures(f"there-{one.name}", lambda: member_plots.there(run), caption)
    rows = []
    for workers, events in groupby(run.evaluations, key=lambda event: event.workers):
        numbers = [event.number for event in events]
        rows.append([f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}", f"{workers:,}"])
    table = TableSection(["evaluations", "workers"], rows[:EVALUATIONS], "Workers that took part at each evaluation.")
    return Section(f"Members{_of(one, runs)}", [], drawn, [table] if rows else [])


def _delay(one: RunRecord, runs: Sequence[RunRecord]) -> Section | None:
    if not one.run.delays:
        return None
    caption = (
        "How many steps workers might be apart, chosen while running, and the share of their time that they had "
        "waited before each change."
    )
    return Section(f"Delay{_of(one, runs)}", [], pictures(f"delay-{one.name}", lambda: charts.delays(one.run), caption))


def _share(shares: dict[str, float], kind: str) -> str:
    return format.share(shares[kind]).replace("less than ", "<") if shares else "-"


# ---------------------------------------------------------------- what happened


def incidents(one: RunRecord, of: str) -> list[Section]:
    """Sections on faults, membership changes and checkpoints, if there were any."""
    events = [event for event in one.run.happened if not (isinstance(event, Joined | Linked) and event.seconds <= 0)]
    wrong, changes, saved = _sorted(events)
    found = []
    if wrong:
        rows = [[format.exact_seconds(event.seconds), *_told(event), _felt(one, event)] for event in wrong[:HAPPENINGS]]
        caption = f"Back: seconds from the fault until rows/s were at 90% of before, for a second.{_more(wrong)}"
        table = TableSection(["seconds", "", "what", "back"], rows, caption)
        found.append(Section(f"Faults and recoveries{of}", [], [], [table]))
    if changes:
        groups = event_line.together(changes)
        rows = [[_when(group), *_told(group)] for group in groups[:HAPPENINGS]]
        caption = f"Nodes that joined or left in order, and segments that moved meanwhile.{_more(groups)}"
        found.append(Section(f"Membership changes{of}", [], [], [TableSection(["seconds", "", "what"], rows, caption)]))
    if saved:
        rows = [
            [format.exact_seconds(one.seconds), f"{one.number:,}", f"{one.steps:,}", format.size(one.bytes), took]
            for one in saved[-HAPPENINGS:]
            for took in [format.latency(one.took)]
        ]
        table = TableSection(["seconds", "checkpoint", "steps", "size", "took"], rows, "The run went on meanwhile.")
        found.append(Section(f"Checkpoints{of}", [], [], [table]))
    return found


def _sorted(events: Sequence[Happened]) -> tuple[list[Happened], list[Happened], list[Saved]]:
    """Faults with their recoveries, membership changes, checkpoints.

    Orderly leaves and moves of segments are not faults; a node that was lost and came back is.
    """
    wrong, changes, saved = list[Happened](), list[Happened](), list[Saved]()
    lost: dict[str, bool] = {}  # by name: how it left last
    for event in events:
        match event:
            case Saved():
                saved.append(event)
            case Gone():
                lost[event.name] = not event_line.left_in_order(event)
                (wrong if lost[event.name] else changes).append(event)
            case Joined():
                (wrong if lost.pop(event.name, False) else changes).append(event)
            case Leaving() | Handed() | Split():
                changes.append(event)
            case _:
                wrong.append(event)
    return wrong, changes, saved


_CALLED: dict[type, str] = {
    Joined: "joined", Gone: "lost", Leaving: "leaving", Handed: "moved", MoveSummary: "moved", Split: "split",
    RolledBack: "went back", Resumed: "resumed", Voided: "void", Warned: "warning", Linked: "graph", Elected: "chosen",
}  # fmt: skip


def _told(event: Happened | MoveSummary) -> tuple[str, str]:
    if isinstance(event, Saved):  # they have their own section
        return "saved", f"checkpoint {event.number:,}"
    left = isinstance(event, Gone) and event_line.left_in_order(event)
    return "left" if left else _CALLED[type(event)], event_line.news(event).removeprefix("warning: ")


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

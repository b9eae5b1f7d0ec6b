"""The sections of a report on one run, or on several beside each other.

There is no section for what a run does not record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from shoal.events import Gone, Handed, Joined, Leaving, Linked, RolledBack, Saved, Split
from shoal.views import event_line, explain, format, graph, plots, summary_figures, timeline
from shoal.views.axes import pictures
from shoal.views.ending import NO_ADVICE, advise
from shoal.views.event_line import MoveSummary
from shoal.views.explain import VERBS
from shoal.views.members import moves_of
from shoal.views.page import PictureSection, Section, TableSection, compact
from shoal.views.run_record import OF_WORKERS, Happened, RunRecord, began, emulation, seconds_of, unlike

COLUMNS = 4  # runs beside each other
EVALUATIONS = 40  # rows of a table; of more, a sample is shown
HAPPENINGS = 60  # rows of a table; of more, the first are shown
NAMED = 6  # runs in a title

Cells = Mapping[str, str]  # of a row, by column


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    several = len(runs) > 1
    findings, *of_each = _findings(runs)
    made = [findings, _figures(runs) if several else None, _losses(runs), _time(runs), _timeline(runs), *of_each]
    made += [_staleness(runs), _bytes(runs), _filters(runs), _cost(runs)]
    whose = [(one, f" of {format.clean(one.name)}" if several else "") for one in runs]
    for of_one in (graph.section, _servers):
        made += [of_one(one, of) for one, of in whose]
    made += [_members(one, of, several) for one, of in whose]
    made += [section for one, of in whose for section in incidents(one, of)]
    for one, of in whose:
        if one.run.delays:
            drawn = pictures(f"delay-{one.name}", partial(plots.delays, one.run), _DELAYED)
            made.append(Section(f"Delay{of}", pictures=drawn))
    made += [_trained(runs), _machine(runs)]
    return [one for one in made if one is not None]


def title(runs: Sequence[RunRecord]) -> str:
    if len(runs) > 1:
        names = [format.clean(one.name) for one in runs]
        more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
        return f"{len(runs)} runs: {', '.join([*names[:NAMED], *more])}"
    started, crew = runs[0].run.started, runs[0].run.attendance.crew()
    return f"{runs[0].name}: {' · '.join(event_line.title(started, crew)) if started else 'a run'}"


def _table(rows: Sequence[Cells], caption: str = "") -> TableSection:
    return TableSection(list(rows[0]), [list(row.values()) for row in rows], caption)


def _beside(rows: Sequence[Cells], runs: Sequence[RunRecord], caption: str = "") -> TableSection:
    """A table with a row per run, without empty columns; a single run has no name."""
    kept = [head for head in rows[0] if any(row[head] != "-" for row in rows) and (head != "run" or len(runs) > 1)]
    return _table([{head: row[head] for head in kept} for row in rows], caption)


def _findings(runs: Sequence[RunRecord]) -> list[Section]:
    if len(runs) > 1:
        said = [" ".join([*explain.of_one(one, among=True), *one.problems]) for one in runs]
        each = [f"{format.clean(one.name)}: {text}" for one, text in zip(runs, said, strict=True)]
        return [Section("Findings", explain.of_several(list(runs))), Section("Findings of each run", each)]
    one, advice = runs[0], advise(runs[0]) if runs[0].summary else NO_ADVICE
    move = [] if advice.startswith(NO_ADVICE) else [f"Next: {advice}."]
    return [Section("Findings", [*explain.of_one(one), *one.problems, *move])]


def _figures(runs: Sequence[RunRecord]) -> Section:
    judged = [one for one in runs if one.run.best is not None]
    common = explain.common_loss(judged) if judged and explain.other_task(judged) is None else None
    last = [one.run.finite[-1].metrics if one.run.finite else {} for one in runs]
    names = list(dict.fromkeys(name for found in last for name, value in found.items() if value is not None))
    rows = []
    for one, found in zip(runs, last, strict=True):
        run, stale = one.run, one.staleness
        least, most = run.attendance.between("worker")
        row = {
            "run": one.name if one.strategy in one.name else f"{one.name} ({one.strategy})",
            "workers": "-" if run.started is None else format.from_to(least, most),
            "seconds": format.exact_seconds(run.seconds),
            "CPU seconds": "-" if one.cpu is None else format.exact_seconds(one.cpu),
            "rows/s": f"{one.speed:,.0f}" if one.speed else "-",
            "best test loss": format.loss(run.best.test_loss if run.best else None),
            "last test loss": format.loss(run.finite[-1].test_loss if run.finite else None),
        }
        row |= {f"last {name}": format.metric(name, found.get(name)) for name in names}
        if common is not None:
            there = run.reached(common)
            row[f"seconds to {format.loss(common)}"] = format.exact_seconds(seconds_of(there)) if there else "-"
            row[f"rows to {format.loss(common)}"] = f"{there.examples:,}" if there else "-"
        row |= {VERBS[kind]: _share(run.shares, kind) for kind in OF_WORKERS}
        rows.append(row | {"staleness, mean": f"{stale[1]:.3g}" if stale else "-"})
    table = _beside(rows, runs)
    if len(runs) <= COLUMNS:
        turned = [list(row) for row in zip(table.heads, *table.rows, strict=True)]
        table = TableSection(["", *turned[0][1:]], turned[1:])
    return Section("Figures", tables=[table])


def _trained(runs: Sequence[RunRecord]) -> Section | None:
    known = [(one, unlike(one.job)) for one in runs if one.job is not None]
    if not known:
        return None
    names = list(dict.fromkeys(name for _, settings in known for name in settings))
    values = [[settings.get(name, "(default)") for _, settings in known] for name in names]
    said = [[str(one).lower() if one in (True, False, None) else str(one) for one in row] for row in values]
    rows = [[name, *row] for name, row in zip(names, said, strict=True)]
    heads = ["setting", *(one.name for one, _ in known)] if len(runs) > 1 else ["setting", "value"]
    words = [
        f"{format.clean(s.data)}: {s.rows:,} rows to train on, {s.test_rows:,} to test, {s.features:,} features, "
        f"{s.slots:,} slots of {s.batch:,} rows in an epoch."
        for one in runs
        if len(runs) == 1 and (s := one.run.started) is not None
    ]
    return Section("What was trained", words, tables=[TableSection(heads, rows, "Settings that are not the defaults.")])


def _machine(runs: Sequence[RunRecord]) -> Section:
    rows = []
    for one in runs:
        found = one.summary.get("machine")
        machine: dict[str, Any] = found if isinstance(found, dict) else {}
        memory = format.number(machine.get("memory"))
        used = (one.run.started.cores if one.run.started else 0) or "-"
        rows.append({
            "run": one.name,
            "cores": f"{used} of {machine['cores']}" if machine.get("cores") not in (None, used) else f"{used}",
            "processor": str(machine.get("processor") or "-"),
            "memory": "-" if memory is None else f"{memory / 2**30:.1f} GB",
            **{what: str(machine.get(what, "-")) for what in ("platform", "python", "numpy")},
            "load at the end": str(machine.get("load", "-")),
        })  # fmt: skip
    return Section("The machine", tables=[_beside(rows, runs)])


def _losses(runs: Sequence[RunRecord]) -> Section:
    one, several = runs[0], len(runs) > 1
    caption = "Test loss of every evaluation, at the moment its weights were read."
    if not several:
        caption += " Train loss of the rows since the record before, each before its own update."
        if moves_of(one.run.happened):
            caption += " Below: membership changes, with a name where there is room."
        caption += _emulated(runs)
    caption += graph.CAPTION if any(event.spread for one in runs for event in one.run.evaluations) else ""
    tables = [] if several or not one.run.evaluations else [_evaluations(one)]
    return Section("Losses", pictures=pictures("losses", lambda: plots.losses(runs), caption), tables=tables)


def _evaluations(one: RunRecord) -> TableSection:
    events, best = one.run.evaluations, one.run.best
    every = -(-len(events) // EVALUATIONS)
    shown = [event for at, event in enumerate(events) if at % every == 0 or event in (best, events[-1])]
    metrics = list(dict.fromkeys(name for event in events for name in event.metrics))
    apart = graph.columns(events)
    rows = [
        {
            "evaluation": f"{event.number:,}",
            "seconds": format.exact_seconds(seconds_of(event)),
            "epoch": f"{event.passes:.3g}",
            "rows": f"{event.examples:,}",
            "train loss": format.loss(event.train_loss),
            "test loss": format.loss(event.test_loss),
            **{name: format.metric(name, event.metrics.get(name)) for name in metrics},
            **{name: text(event) for name, text in apart.items()},
            "workers": str(event.workers),
        }
        for event in shown
    ]
    caption = "Workers: how many took part when the weights were read."
    caption += f" {len(events) - len(shown):,} more are left out." if len(events) > len(shown) else ""
    if any(isinstance(event, RolledBack) for event in one.run.happened):
        caption += " The run rolled back to a checkpoint: some numbers come twice."
    return compact(_table(rows, caption))


_DELAYED = (
    "How many steps workers might be apart, chosen while running, and the share of their time that they had "
    "waited before each change."
)
_WAITED = "Wait: a server kept the answer back, for slower workers or the other slots of a step."
_WAITS = {
    "serial": "A serial run computes, and nothing else is counted.",
    "hogwild": "Workers of hogwild wait for nobody, unless there is a lock.",
    "averaging": "Ranks wait for the slowest of them before a mean is taken.",
    "allreduce": "Ranks wait for the slowest of them in every step.",
    "gossip": "Workers wait for their neighbours' weights; the time of the links is separate only where it is emulated.",
    "peer-to-peer": "Peers wait for nobody.",
}


def _time(runs: Sequence[RunRecord]) -> Section | None:
    run, several = runs[0].run, len(runs) > 1
    if several:
        bars = [(one.name, one.run.shares) for one in runs if one.run.shares]
    else:
        bars = [(node.name, node.shares) for node in run.workers if node.shares]
        bars += [("all workers", run.shares)] if run.shares and len(bars) != 1 else []
    if not bars:
        return None
    caption = " ".join(dict.fromkeys(_WAITS.get(one.strategy, _WAITED) for one in runs))
    caption += f" Idle: there was no slot to do.{_emulated(runs)}"
    rows = [
        {
            "worker": node.name,
            "slots": f"{node.slots:,}" if node.exact else "-",
            "computing per slot": "-" if node.per_slot is None else format.latency(node.per_slot),
            **{kind: _share(node.shares, kind) for kind in OF_WORKERS},
        }
        for node in ([] if several else run.workers)
    ]
    partly = "" if all(node.exact for node in run.workers) else " Shares are of the time that was recorded."
    tables = [compact(_table(rows, f"Up to the last evaluation.{partly}"))] if rows else []
    return Section("Where the time went", [], pictures("shares", lambda: plots.shares(bars), caption), tables)


def _timeline(runs: Sequence[RunRecord]) -> Section | None:
    shown = [one for one in runs if any(node.spans for node in one.run.nodes.values())]
    if not shown:
        return None
    pairs = [(one.name, one.run) for one in shown]
    windows = timeline.default_windows([one.run for one in shown])
    caption = "The whole run: how all workers together spent their time. The frame is shown below."
    found = pictures("whole", lambda: timeline.whole(pairs, windows), caption + _emulated(runs))
    (since, until), seconds = windows[0], shown[0].run.seconds
    if len(shown) > 1:
        which = f"{format.latency(until - since)} of each run, after it warmed up"
    elif until - since >= 0.99 * seconds:
        which = "The whole run"
    else:
        which = f"{format.latency(until - since)} of the {format.latency(seconds)} that it ran"
        which += f", {since:,.1f} s after the beginning"
    caption = f"{which}, one row for each node; percentages are of the whole run. Hatched: nothing was recorded."
    found += pictures("timeline", lambda: timeline.drawn(pairs), caption + _emulated(runs))
    where = f" ({format.clean(shown[0].name)})" if len(runs) > 1 else ""
    caption = (
        f"The four steps of one iteration on a real worker's row{where}: it computes a gradient, pushes it, the servers "
        f"update the model, and it pulls the next weights. Push and pull are measured together, and pulls for the next "
        f"step may go on while it computes."
    )
    found += pictures("step", lambda: timeline.step(shown[0].run), caption)
    return Section("Timeline", pictures=found) if found else None


def _emulated(runs: Sequence[RunRecord]) -> str:
    found = dict.fromkeys(one.emulated for one in runs if one.emulated)
    return "".join(f" {emulation(text)}" for text in found)


def _staleness(runs: Sequence[RunRecord]) -> Section | None:
    known = [(one, stale) for one in runs if (stale := one.staleness) is not None]
    if not known:
        return None
    rows = []
    for one, (_, mean, p95, most) in known:
        heads = {"run": one.name, "mean": f"{mean:.3g}", "95th percentile": f"{p95:,}"}
        rows.append(heads | {"max": format.most_stale(most)})
    caption = "How many other pushes were counted between reading the weights and pushing their gradient."
    if any(one.strategy == "averaging" for one, _ in known):
        caption += " Of averaging: how many steps of other ranks, since the last mean, a step did not know of."
    if any(one.strategy == "peer-to-peer" for one, _ in known):
        caption += " Of peers: how many changes of others were published before a change that did not know of them."
    if not any(most for _, (_, _, _, most) in known):
        return Section("Staleness", ["No gradient was stale."])
    drawn = pictures("staleness", lambda: plots.staleness([one for one, _ in known]), caption)
    return Section("Staleness", [], drawn, [_table(rows)] if len(runs) > 1 else [])


def _bytes(runs: Sequence[RunRecord]) -> Section | None:
    rows = []
    for one in runs:
        names = ("bytes_sent", "bytes_received", "examples", "steps")
        sent, received, examples, steps = (format.number(one.summary.get(name)) or 0.0 for name in names)
        handles, known = one.summary.get("handles") or {}, "-"
        if hits := handles.get("hits"):
            known = f"{handles['bytes_saved'] / 1e6:,.2f} MB ({hits / (hits + handles['misses']):.0%} of lists)"
        if moved := sent + received:
            rows.append({
                "run": one.name,
                "sent": format.size(sent),
                "received": format.size(received),
                "per row": f"{moved / examples:,.0f} B" if examples else "-",
                "per step": f"{moved / steps:,.0f} B" if steps else "-",
                "keys not sent again": known,
            })  # fmt: skip
    if not rows:
        return None
    numbered = any(row["keys not sent again"] != "-" for row in rows)
    seen = " A list of keys that a server has seen is sent as a number." if numbered else ""
    return Section("Bytes", tables=[_beside(rows, runs, f"As workers counted them.{seen}")])


def _filters(runs: Sequence[RunRecord]) -> Section | None:
    told = [(one, found) for one in runs if isinstance(found := one.summary.get("filters"), dict) and found.get("sent")]
    if not told:
        return None
    words, rows = [], []
    for one, found in told:
        said = summary_figures.line(one.summary)
        words.append(f"{one.name}: {said}." if len(runs) > 1 else f"{said[:1].upper()}{said[1:]}.")
        ways = {way.replace("_", " "): summary_figures.stages(found, way) for way in summary_figures.WAYS}
        named = [name for name in ("lists by number",) if any(name in stages for stages in ways.values())]
        for name in [*named, *found["bytes"], "all together"]:
            row = {"run": one.name, "filter": name}
            for way, stages in ways.items():
                sizes = zip(("in", "out"), stages.get(name, (0, 0)), strict=True)
                row |= {f"{way}, {what}": f"{size / 1e6:,.2f} MB" if size else "-" for what, size in sizes}
            rows.append(row if len(runs) > 1 else {head: cell for head, cell in row.items() if head != "run"})
    plain = "where in are 8-byte keys and 4-byte values."
    caption = f"Megabytes into (pale) and out of each filter, and of all together, {plain}"
    drawn = pictures("filters", lambda: plots.filtered([(one.name, found) for one, found in told]), caption)
    caption = f"Bytes of keys and values into and out of each filter, and of all together, {plain}"
    return Section("Filters", words, drawn, [_table(rows, caption)])


def _cost(runs: Sequence[RunRecord]) -> Section | None:
    known = [(one, one.cpu) for one in runs if one.cpu]
    if not known:
        return None
    rows = []
    for one, cpu in known:
        examples, elapsed = (format.number(one.summary.get(name)) for name in ("examples", "elapsed_seconds"))
        if one.summary.get("resumed"):
            examples = None  # these are of all spans, CPU seconds of the last one
        rows.append({
            "run": one.name,
            "seconds": format.exact_seconds(one.lasted),
            "CPU seconds": format.exact_seconds(cpu),
            "CPU seconds a second": f"{cpu / elapsed:,.2f}" if elapsed else "-",
            "for a million rows": f"{1e6 * cpu / examples:,.3g}" if examples else "-",
        })  # fmt: skip
    caption = (
        "CPU seconds are of all processes of a run that were started on its own machine, since it was last resumed, "
        "starting and evaluating included; so is the time that they are divided by."
    )
    drawn = pictures("cost", lambda: plots.costs([one for one, _ in known]), "Seconds of the clock, and CPU seconds.")
    return Section("What it cost", [], drawn if len(known) > 1 else [], [_beside(rows, runs, caption)])


def _servers(one: RunRecord, of: str) -> Section | None:
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
        stalls = [event.stall for event in moves if name in (event.source, event.target)]
        rows.append({
            "server": name,
            "segments served": _first_last([event.serves.get(name, 0) for event in run.shared]),
            "copies kept": _first_last([event.copies.get(name, 0) for event in run.shared]),
            "segments taken over": f"{taken[name]:,}",
            "given away": f"{given[name]:,}",
            "longest pause": format.latency(max(stalls)) if stalls else "-",
            "lost": f"{sum(stay.name == name and stay.how == 'lost' for stay in run.attendance.stays):,}",
        })  # fmt: skip
    caption = "Segments and copies: at the start and at the end. Pause: a moving segment answered nobody for so long."
    shown = (
        "Segments of the model on each server, one above the other. Upright lines: a server joined, left or was lost."
    )
    drawn = pictures(f"segments-{one.name}", lambda: plots.segments(run), shown)
    words = [*_answers(one), "Memory and queue lengths of servers are not recorded."]
    return Section(f"Servers{of}", words, drawn, [compact(_table(rows, caption))])


def _first_last(values: Sequence[int]) -> str:
    return format.from_to(values[0], values[-1]) if values else "-"


def _answers(one: RunRecord) -> list[str]:
    spans = [span for node in one.run.workers for span in node.spans]
    lengths = sorted(stop - start for kind, start, stop in spans if kind == "communicate")
    if not lengths:
        return []
    middle, high = (format.latency(lengths[int(share * (len(lengths) - 1))]) for share in (0.5, 0.95))
    said = (
        f"Workers pushed and pulled for {middle} at a time (median), {high} at the 95th percentile: this is the latency"
    )
    return [f"{said} of the servers and the wire together, from {len(lengths):,} recorded spans."]


def _members(one: RunRecord, of: str, several: bool) -> Section | None:
    run = one.run
    counts = [event.workers for event in run.progress] + [event.workers for event in run.evaluations]
    varies = len(set(counts)) > 1
    changes = varies or bool(moves_of(run.happened))
    if not counts or (several and not changes):
        return None
    if not changes:
        took_part = f"{format.many(counts[0], 'worker')} took part"
        return Section("Members", [f"{took_part} at each of {format.many(len(run.evaluations), 'evaluation')}."])
    drawn: list[PictureSection] = []
    if varies:
        caption = "Workers that took part; a dot is an evaluation, at the moment its weights were read."
        drawn += pictures(f"members-{one.name}", lambda: plots.members(run), caption)
    caption = "Which node was there when. A node without a mark at its beginning was there from the start."
    drawn += pictures(f"there-{one.name}", lambda: plots.there(run), caption)
    rows = []
    for workers, events in groupby(run.evaluations, key=lambda event: event.workers):
        rows.append({"evaluations": _first_last([event.number for event in events]), "workers": f"{workers:,}"})
    tables = [_table(rows[:EVALUATIONS], "Workers that took part at each evaluation.")] if rows else []
    return Section(f"Members{of}", [], drawn, tables)


def _share(shares: dict[str, float], kind: str) -> str:
    return format.share(shares[kind]).replace("less than ", "<") if shares else "-"


def incidents(one: RunRecord, of: str) -> list[Section]:
    events = [event for event in one.run.happened if not (isinstance(event, Joined | Linked) and event.seconds <= 0)]
    wrong, changes, saved = _sorted(events)
    found = []
    if wrong:
        rows = [
            {"seconds": format.exact_seconds(event.seconds), **_told(event), "back": _felt(one, event)}
            for event in wrong[:HAPPENINGS]
        ]
        caption = f"Back: seconds from the fault until rows/s were at 90% of before, for a second.{_more(wrong)}"
        found.append(Section(f"Faults and recoveries{of}", tables=[_table(rows, caption)]))
    if changes:
        groups = event_line.together(changes)
        rows = []
        for one_group in groups[:HAPPENINGS]:
            until = one_group.until if isinstance(one_group, MoveSummary) else one_group.seconds
            when = dict.fromkeys(map(format.exact_seconds, (one_group.seconds, until)))
            rows.append({"seconds": " to ".join(when), **_told(one_group)})
        caption = f"Nodes that joined or left in order, and segments that moved meanwhile.{_more(groups)}"
        found.append(Section(f"Membership changes{of}", tables=[_table(rows, caption)]))
    if saved:
        rows = [
            {
                "seconds": format.exact_seconds(event.seconds),
                "checkpoint": f"{event.number:,}",
                "steps": f"{event.steps:,}",
                "size": format.size(event.bytes),
                "took": format.latency(event.took),
            }
            for event in saved[-HAPPENINGS:]
        ]
        found.append(Section(f"Checkpoints{of}", tables=[_table(rows, "The run went on meanwhile.")]))
    return found


def _sorted(events: Sequence[Happened]) -> tuple[list[Happened], list[Happened], list[Saved]]:
    """Faults and recoveries (also a lost node's return), membership changes, checkpoints."""
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


_CALLED = {  # by the event's name, if it is not that
    "Gone": "lost", "Handed": "moved", "MoveSummary": "moved", "RolledBack": "rolled back", "Voided": "void",
    "Warned": "warning", "Linked": "graph", "Elected": "chosen",
}  # fmt: skip


def _told(event: Happened | MoveSummary) -> Cells:
    assert not isinstance(event, Saved)  # they have their own section
    left, name = isinstance(event, Gone) and event_line.left_in_order(event), type(event).__name__
    what = event_line.news(event).removeprefix("warning: ")
    return {"": "left" if left else _CALLED.get(name, name.lower()), "what": what}


def _more(events: Sequence[object]) -> str:
    return f" {len(events) - HAPPENINGS:,} more are left out." if len(events) > HAPPENINGS else ""


def _felt(one: RunRecord, event: Happened) -> str:
    if not isinstance(event, Gone | RolledBack):
        return ""
    after = one.run.back_after(began(event))
    if after is None:
        return "-"
    return "not felt" if after == 0 else "not while it ran" if math.isinf(after) else format.latency(after)

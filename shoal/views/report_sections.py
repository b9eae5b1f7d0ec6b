"""The sections of a report on one run, or on several beside each other. What a run does not tell has no section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.events import RolledBack
from shoal.views import (
    charts,
    consensus,
    event_line,
    explain,
    figures,
    format,
    incidents,
    member_plots,
    plots,
    timeline,
)
from shoal.views.axes import pictures
from shoal.views.explain import VERBS
from shoal.views.members import moves_of
from shoal.views.page import PictureSection, Section, TableSection
from shoal.views.run_record import (
    OF_WORKERS,
    RunRecord,
    seconds_of,
    unlike,
)

COLUMNS = 4  # runs beside each other
EVALUATIONS = 40  # rows of a table: of more, some are left out
NAMED = 6  # runs in a title


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Of one run, or of several beside each other."""
    seen, *of_each = _seen(runs)
    made = [seen, _figures(runs) if len(runs) > 1 else None, _losses(runs), _time(runs), _timeline(runs), *of_each]
    made += [_staleness(runs), _bytes(runs), figures.section(runs), _cost(runs)]
    made += [consensus.section(one, _of(one, runs)) for one in runs]
    made += [_members(one, runs) for one in runs]
    made += [section for one in runs for section in incidents.sections(one, _of(one, runs))]
    made += [_delay(one, runs) for one in runs]
    made += [_trained(runs), _machine(runs)]
    return [one for one in made if one is not None]


def title(runs: Sequence[RunRecord]) -> str:
    if len(runs) > 1:
        names = [format.clean(one.name) for one in runs]
        more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
        return f"{len(runs)} runs: {', '.join([*names[:NAMED], *more])}"
    started = runs[0].run.started
    who = runs[0].run.attendance.crew()
    return f"{runs[0].name}: {' · '.join(event_line.title(started, who)) if started else 'a run'}"


def _of(one: RunRecord, runs: Sequence[RunRecord]) -> str:
    return f" of {format.clean(one.name)}" if len(runs) > 1 else ""


# ---------------------------------------------------------------- words, figures, settings


def _seen(runs: Sequence[RunRecord]) -> list[Section]:
    if len(runs) == 1:
        return [Section("Findings", [*explain.of_one(runs[0]), *runs[0].problems])]
    each = [f"{format.clean(one.name)}: {' '.join([*explain.of_one(one, among=True), *one.problems])}" for one in runs]
    return [Section("Findings", explain.of_several(list(runs))), Section("Findings of each run", each)]


def _figures(runs: Sequence[RunRecord]) -> Section:
    """Runs beside each other: as columns while they are few."""
    judged = [one for one in runs if one.run.best is not None]
    common = explain.common_loss(judged) if judged and explain.other_task(judged) is None else None
    names = list(dict.fromkeys(name for one in runs for name in _metrics(one)))
    heads = [
        "workers",
        "seconds",
        "CPU seconds",
        "rows/s",
        "best test loss",
        "last test loss",
        *(f"last {name}" for name in names),
    ]
    heads += [] if common is None else [f"seconds to {format.loss(common)}", f"rows to {format.loss(common)}"]
    heads += [*(VERBS[kind] for kind in OF_WORKERS), "staleness, mean"]
    rows = [
        [f"{one.name} ({one.strategy})" if one.strategy not in one.name else one.name, *_row(one, common, names)]
        for one in runs
    ]
    heads = ["run", *heads]
    told = [at for at in range(len(heads)) if any(row[at] != "-" for row in rows)]
    heads, rows = [heads[at] for at in told], [[row[at] for at in told] for row in rows]
    if len(runs) <= COLUMNS:
        turned = [list(row) for row in zip(heads, *rows, strict=True)]
        heads, rows = ["", *turned[0][1:]], turned[1:]
    return Section("Figures", [], [], [TableSection(heads, rows)])


def _metrics(one: RunRecord) -> dict[str, float]:
    """Of the last evaluation."""
    found = one.run.finite[-1].metrics if one.run.finite else {}
    return {name: value for name, value in found.items() if value is not None}


def _row(one: RunRecord, common: float | None, names: Sequence[str]) -> list[str]:
    run, stale = one.run, one.staleness
    last = run.finite[-1].test_loss if run.finite else None
    row = [_workers_of(one), format.exact_seconds(run.seconds)]
    row += ["-" if one.cpu is None else explain.cpu(one.cpu)]
    row += [f"{one.speed:,.0f}" if one.speed else "-"]
    row += [format.loss(run.best.test_loss if run.best else None), format.loss(last)]
    found = _metrics(one)
    row += [format.metric(name, found.get(name)) for name in names]
    if common is not None:
        there = run.reached(common)
        row += [format.exact_seconds(seconds_of(there)), f"{there.examples:,}"] if there else ["-", "-"]
    return [*row, *(_share(run.shares, kind) for kind in OF_WORKERS), f"{stale[1]:.3g}" if stale else "-"]


def _workers_of(one: RunRecord) -> str:
    least, most = one.run.attendance.between("worker")
    return "-" if one.run.started is None else f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _trained(runs: Sequence[RunRecord]) -> Section | None:
    told = [(one, unlike(one.job)) for one in runs if one.job is not None]
    if not told:
        return None
    names = list(dict.fromkeys(name for _, settings in told for name in settings))
    rows = [[name, *(_setting(settings, name) for _, settings in told)] for name in names]
    heads = ["setting", *(one.name for one, _ in told)] if len(runs) > 1 else ["setting", "value"]
    said = []
    for one in runs if len(runs) == 1 else ():
        if (s := one.run.started) is not None:
            said.append(
                f"{format.clean(s.data)}: {s.rows:,} rows to train on, {s.test_rows:,} to test, {s.features:,} features, "
                f"{s.slots:,} slots of {s.batch:,} rows in an epoch."
            )
    return Section("What was trained", said, [], [TableSection(heads, rows, "Settings that are not the defaults.")])


def _setting(settings: dict[str, Any], name: str) -> str:
    if name not in settings:
        return "(default)"
    value = settings[name]
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def _machine(runs: Sequence[RunRecord]) -> Section | None:
    heads = ["run", "cores", "processor", "memory", "platform", "python", "numpy", "load at the end"]
    rows = []
    for one in runs:
        told = one.summary.get("machine")
        if isinstance(told, dict):
            memory = format.number(told.get("memory"))
            row = [one.name, _cores(one, told), *(str(told.get("processor") or "-") for _ in "1")]
            row += ["-" if memory is None else f"{memory / 2**30:.1f} GB"]
            row += [str(told.get(what, "-")) for what in ("platform", "python", "numpy", "load")]
        else:
            row = [one.name, _cores(one, {}), "-", "-", "-", "-", "-", "-"]
        rows.append(row)
    first = 0 if len(runs) > 1 else 1
    return Section("The machine", [], [], [TableSection(heads[first:], [row[first:] for row in rows])])


def _cores(one: RunRecord, told: dict[str, Any]) -> str:
    used = (one.run.started.cores if one.run.started else 0) or "-"
    return f"{used} of {told['cores']}" if told.get("cores") not in (None, used) else f"{used}"


# ---------------------------------------------------------------- pictures with their tables


def _losses(runs: Sequence[RunRecord]) -> Section:
    caption = "Test loss of every evaluation, at the moment its weights were read."
    if len(runs) == 1:
        caption += " Train loss of the rows since the record before, each before its own update."
        if moves_of(runs[0].run.happened):
            caption += " Below: who came and went, with a name where there is room; Members has all of them."
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
            format.epochs(event.passes),
            f"{event.examples:,}",
            format.loss(event.train_loss),
            format.loss(event.test_loss),
            *(format.metric(name, event.metrics.get(name)) for name in metrics),
            *(said(event) for said in apart.values()),
            str(event.workers),
        ]
        for event in shown
    ]
    more = f" {len(events) - len(shown):,} more are left out." if len(events) > len(shown) else ""
    if any(isinstance(event, RolledBack) for event in run.happened):
        more += " The run went back to a checkpoint: some numbers come twice."
    return TableSection(heads, rows, f"Workers: how many were at work when the weights were read.{more}")


def _time(runs: Sequence[RunRecord]) -> Section | None:
    if len(runs) > 1:
        bars = [(one.name, one.run.shares) for one in runs if one.run.shares]
    else:
        bars = [(node.name, node.shares) for node in runs[0].run.workers if node.shares]
        bars = [*bars, ("all workers", runs[0].run.shares)] if runs[0].run.shares and len(bars) != 1 else bars
    if not bars:
        return None
    said = (
        " ".join(dict.fromkeys(_WAITS.get(one.strategy, _WAITED) for one in runs)) + " Idle: there was no slot to do."
    )
    said += _emulated(runs)
    tables = [_workers(runs[0])] if len(runs) == 1 and runs[0].run.workers else []
    return Section("Where the time went", [], pictures("shares", lambda: charts.shares(bars), said), tables)


_WAITED = "Wait: a server kept the answer back, for slower workers or the other slots of a step."
_WAITS = {
    "serial": "A serial run computes, and nothing else is counted.",
    "hogwild": "Workers of hogwild wait for nobody, unless there is a lock.",
    "averaging": "Ranks wait for the slowest of them before a mean is taken.",
    "allreduce": "Ranks wait for the slowest of them in every step.",
    "gossip": "Workers wait for what their neighbours have to say; its way is told apart only where it is emulated.",
    "peer-to-peer": "Peers wait for nobody.",
}


def _workers(one: RunRecord) -> TableSection:
    rows = []
    for node in one.run.workers:
        pace = node.per_slot
        row = [node.name, f"{node.slots:,}" if node.exact else "-", "-" if pace is None else format.latency(pace)]
        rows.append([*row, *(_share(node.shares, kind) for kind in OF_WORKERS)])
    partly = "" if all(node.exact for node in one.run.workers) else " Shares are of the time that was recorded."
    return TableSection(
        ["worker", "slots", "computing per slot", *OF_WORKERS], rows, f"Up to the last evaluation.{partly}"
    )


def _timeline(runs: Sequence[RunRecord]) -> Section | None:
    drawn = [one for one in runs if one.run.nodes and any(node.spans for node in one.run.nodes.values())]
    if not drawn:
        return None
    said = f"{_stretches(drawn)}, one row for each node; percentages are of the whole run. Hatched: nothing is known of it, or it was told late."
    if any(moves_of(one.run.happened) for one in drawn):
        said += " Who came and went in the whole run is under Members."
    found = pictures("timeline", lambda: timeline.drawn([(one.name, one.run) for one in drawn]), said + _emulated(runs))
    where = f" ({format.clean(drawn[0].name)})" if len(runs) > 1 else ""
    found += pictures(
        "step",
        lambda: timeline.step(drawn[0].run),
        f"The four steps of one iteration on a real worker's row{where}: it computes a gradient, pushes it, the servers "
        f"update the model, and it pulls the next weights. Push and pull are measured together, and pulls for the next "
        f"step may go on while it computes.",
    )
    return Section("Timeline", [], found) if found else None


def _stretches(runs: Sequence[RunRecord]) -> str:
    """How little of a run it is, in words."""
    windows = timeline.default_windows([one.run for one in runs])
    (since, until), whole = windows[0], runs[0].run.seconds
    if len(runs) > 1:
        return f"{format.latency(until - since)} of each run, after it warmed up"
    if until - since >= 0.99 * whole:
        return "The whole run"
    return f"{format.latency(until - since)} of the {format.latency(whole)} that it ran, {since:,.1f} s after the beginning"


def _emulated(runs: Sequence[RunRecord]) -> str:
    told = list(dict.fromkeys(one.emulated for one in runs if one.emulated))
    return f" Emulated compute: {'; '.join(told)}." if told else ""


def _staleness(runs: Sequence[RunRecord]) -> Section | None:
    told = [one for one in runs if one.staleness is not None]
    if not told:
        return None
    rows = [
        [one.name, f"{mean:.3g}", f"{p95:,}", format.most_stale(most)]
        for one in told
        if one.staleness
        for _, mean, p95, most in [one.staleness]
    ]
    table = TableSection(["run", "mean", "95th percentile", "most"], rows)
    caption = "How many other pushes were counted between reading the weights and pushing their gradient."
    if any(one.strategy == "averaging" for one in told):
        caption += " Of averaging: how many steps of other ranks, since the last mean, a step did not know of."
    if any(one.strategy == "peer-to-peer" for one in told):
        caption += " Of peers: how many changes of others were told before a change that did not know of them."
    drawn: list[PictureSection] = []
    if stale := any(one.staleness and one.staleness[3] for one in told):
        drawn = pictures("staleness", lambda: charts.staleness(told), caption)
    return Section("Staleness", [] if stale else ["No gradient was stale."], drawn, [table] if len(runs) > 1 else [])


def _bytes(runs: Sequence[RunRecord]) -> Section | None:
    rows = []
    for one in runs:
        sent, received = format.number(one.summary.get("bytes_sent")), format.number(one.summary.get("bytes_received"))
        examples, steps = format.number(one.summary.get("examples")), format.number(one.summary.get("steps"))
        if sent is None or received is None or not sent + received:
            continue
        both = sent + received
        per = [f"{both / what:,.0f} B" if what else "-" for what in (examples, steps)]
        rows.append([one.name, format.size(sent), format.size(received), *per, figures.known_keys(one.summary)])
    if not rows:
        return None
    first = 0 if len(runs) > 1 else 1
    last = None if any(row[-1] != "-" for row in rows) else -1
    heads = ["run", "sent", "received", "per row", "per step", "keys not sent again"]
    caption = "As workers counted them." + (
        "" if last else " A server that was sent a list of keys knows it by a number."
    )
    return Section("Bytes", [], [], [TableSection(heads[first:last], [row[first:last] for row in rows], caption)])


def _cost(runs: Sequence[RunRecord]) -> Section | None:
    """CPU seconds beside the clock (S2-13)."""
    told = [(one, one.cpu) for one in runs if one.cpu]
    if not told:
        return None
    rows = []
    for one, cpu in told:
        examples = format.number(one.summary.get("examples")) or 0.0
        per = f"{1e6 * cpu / examples:,.3g}" if examples else "-"
        elapsed = format.number(one.summary.get("elapsed_seconds"))  # runs of earlier versions have none
        busy = f"{cpu / elapsed:,.2f}" if elapsed else "-"
        rows.append([one.name, format.exact_seconds(one.run.seconds), explain.cpu(cpu), busy, per])
    first = 0 if len(runs) > 1 else 1
    heads = ["run", "seconds", "CPU seconds", "CPU seconds a second", "for a million rows"]
    caption = "CPU seconds are of all processes of a run that were started on its own machine, since it was last taken up, starting and judging included; so is the time that they are divided by."
    table = TableSection(heads[first:], [row[first:] for row in rows], caption)
    drawn = pictures("cost", lambda: charts.costs([one for one, _ in told]), "Seconds of the clock, and CPU seconds.")
    return Section("What it cost", [], drawn if len(told) > 1 else [], [table])


def _members(one: RunRecord, runs: Sequence[RunRecord]) -> Section | None:
    run = one.run
    told = [event.workers for event in run.progress] + [event.workers for event in run.evaluations]
    if not told or (len(runs) > 1 and len(set(told)) < 2 and not moves_of(run.happened)):
        return None
    drawn = pictures(
        f"members-{one.name}",
        lambda: member_plots.members(run),
        "Workers at work; a dot is an evaluation, at the moment its weights were read.",
    )
    drawn += pictures(
        f"there-{one.name}",
        lambda: member_plots.there(run),
        "Who was there when. Whoever has no mark at the beginning was there from the start.",
    )
    drawn += pictures(
        f"parts-{one.name}",
        lambda: member_plots.parts(run),
        "How many segments of the model each server held, one above the other. Upright lines: a server joined, left in order or was lost.",
    )
    heads = ["evaluation", *(f"{event.number:,}" for event in run.evaluations[:EVALUATIONS])]
    row = ["workers", *(str(event.workers) for event in run.evaluations[:EVALUATIONS])]
    return Section(f"Members{_of(one, runs)}", [], drawn, [TableSection(heads, [row])] if run.evaluations else [])


def _delay(one: RunRecord, runs: Sequence[RunRecord]) -> Section | None:
    if not one.run.delays:
        return None
    drawn = pictures(
        f"delay-{one.name}",
        lambda: charts.delays(one.run),
        "How many steps workers might be apart, chosen while running, and the share of their time they had waited before each change "
        "(dashed: 5%).",
    )
    return Section(f"Delay{_of(one, runs)}", [], drawn)


def _share(shares: dict[str, float], kind: str) -> str:
    return format.share(shares[kind]).replace("less than ", "<") if shares else "-"

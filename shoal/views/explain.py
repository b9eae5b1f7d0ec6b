"""Findings in words: sentences made only of a run's figures.

Of several runs, it says which was faster, and why. Time is rows over rows/s, so both are given.
Runs of different tasks are not compared.
"""

from __future__ import annotations

import bisect
import math
import re

from shoal.events import Gone, Joined, Resumed, RolledBack, Saved
from shoal.views import consensus, event_line, figures, format
from shoal.views.members import moves_of
from shoal.views.run_record import CLOCK_STOPS, RunRecord, began, emulation, median, seconds_of

MUCH = 0.05  # of the time: worth a reason
SLOW = 1.25  # times as long as others: worth a name
NEAR = 0.1  # seconds that an evaluation may be away from what is due to it
STILL_FALLS = 0.002  # of the loss, from one evaluation to the next: it still falls
OURS = re.compile(r"(server|worker|evaluator)-\d+")  # nodes that a run starts
VERBS = {"compute": "computed", "communicate": "communicated", "wait": "waited", "idle": "had nothing to do"}


def of_one(told: RunRecord, among: bool = False) -> list[str]:
    """Paragraphs on speed, learning, members and faults; only one if ``among`` others."""
    first = [
        _work(told),
        "" if among else emulated([told]),
        _shares(told),
        _waiting(told),
        _delay(told),
        _stale(told),
        _lost(told),
        _idle(told),
        _even(told),
    ]
    second = [_loss(told), consensus.seen(told), _solved(told), _end(told)]
    third = [_part(told), _faults(told)]
    parts = ([*first, *second, *third],) if among else (first, second, third)
    return [text for part in parts if (text := " ".join(one for one in part if one))]


def _solved(told: RunRecord) -> str:
    """The progress of a run that solves an objective."""
    judged = [event.metrics for event in told.run.finite if event.metrics.get("objective") is not None]
    if len(judged) < 2:
        return ""
    first, last = judged[0], judged[-1]
    figures = {name: format.metric(name, last.get(name)) for name in ("objective", "violation", "nonzero", "skipped")}
    said = f"The objective fell from {format.metric('objective', first['objective'])} to {figures['objective']}"
    said += f", and the worst key is {figures['violation']} of l1 from the conditions of a minimum; "
    said += f"{figures['nonzero']} weights are not 0"
    return said + (f", and {figures['skipped']} of the keys were left out at last." if last.get("skipped") else ".")


# ---------------------------------------------------------------- one run


def _work(told: RunRecord) -> str:
    run = told.run
    if run.started is None:
        return ""
    crew = run.attendance.crew().replace(" x ", " and ")
    lasted = format.duration(run.seconds) if run.seconds >= 1 else format.latency(run.seconds)
    rate = f", {told.speed:,.0f} a second" if told.speed else ""
    cost = f", with {cpu(told.cpu)} CPU seconds {_whose(told)}" if told.cpu else ""
    return f"{crew}{event_line.on_cores(run.started)} computed {run.examples:,} rows in {lasted}{rate}{cost}."


def _whose(told: RunRecord) -> str:
    """Whose CPU time was measured: not that of other hosts or a lost coordinator."""
    again = any(isinstance(event, Resumed) for event in told.run.happened)
    since = " since it was last taken up" if again else ""
    elsewhere = any(not OURS.fullmatch(stay.name) for stay in told.run.attendance.stays)
    return f"on the coordinator's machine{since}" if elsewhere else f"in all{since}"


def emulated(runs: list[RunRecord]) -> str:
    """What is emulated, and in which runs; stated before any speed."""
    found = list(dict.fromkeys(one.emulated for one in runs if one.emulated))
    if not found:
        return ""
    some = [one.name for one in runs if one.emulated]
    whose = "" if len(some) == len(runs) else f"In {event_line.names(some)}, not in the others: "
    return f"{whose}{' '.join(map(emulation, found))} Waiting, delay and staleness are measured."


def _shares(told: RunRecord) -> str:
    shares = told.run.shares
    if not shares:
        return ""
    parts = [
        f"{VERBS[kind]} {'for ' if kind == 'idle' else ''}{format.share(share)}"
        for kind, share in shares.items()
        if share
    ]
    return f"Of their time workers {_listed(parts)}."


def _waiting(told: RunRecord) -> str:
    wait, slowest = told.run.shares.get("wait"), told.run.slowest
    if wait is None or wait < MUCH:
        return "" if wait is None or told.strategy not in ("sync", "bounded") else "Nearly nobody waited for another."
    if slowest is None:
        return ""
    node, factor = slowest
    if factor < SLOW:
        return (
            f"No worker is much slower than the others (the slowest, {format.clean(node.name)}, computes {format.times(factor)} "
            f"times as long for a slot as the median of the others): they wait for each other."
        )
    others = [one for one in told.run.workers if one is not node and one.per_slot is not None]
    late = sum((node.per_slot or 0.0) * one.slots - one.spent.get("compute", 0.0) for one in others)
    due = late / (sum(one.spent.get("wait", 0.0) for one in others) or 1.0)
    slow = f"{format.clean(node.name)} computes {format.times(factor)} times as long for a slot as the median of the others"
    if due < 0.5:  # others cannot wait for it longer than it computes
        return (
            f"The slowest worker is not the reason: {slow}, and that is {format.share(due)} of what the others waited."
        )
    waited = format.share(median([one.shares.get("wait", 0.0) for one in others]))
    return (
        f"They wait for the slowest: {slow}; it waited {format.share(node.shares.get('wait', 0.0))} of its time, the others {waited} "
        f"of theirs (median)."
    )


def _delay(told: RunRecord) -> str:
    delays = told.run.delays
    if not delays:
        return ""
    half = told.run.seconds / 2
    held: dict[int, float] = {}  # seconds of the second half
    for event, until in zip(delays, [*(later.seconds for later in delays[1:]), told.run.seconds], strict=True):
        if (seconds := until - max(half, event.seconds)) > 0:
            held[event.max_delay] = held.get(event.max_delay, 0.0) + seconds
    said = f"How far workers may be apart was chosen while it ran, and changed {_often(len(delays))}."
    if held:
        longest = max(held, key=lambda delay: held[delay])
        between = f", {min(held):,} to {max(held):,} in all" if len(held) > 1 else ""
        said += f" In the second half it was {longest:,} steps for longest{between}."
    return f"{said} Before the last change they had waited {format.share(delays[-1].waiting)}."


def _stale(told: RunRecord) -> str:
    if (stale := told.staleness) is None:
        return ""
    _, mean, p95, most = stale
    if not most:
        return "Every gradient was computed with the newest weights: staleness is 0."
    if told.strategy == "averaging":
        return (
            f"A step did not know of {mean:.3g} steps of other ranks since the last mean on average, {p95:,} at the 95th "
            f"percentile, {format.most_stale(most)} at most."
        )
    return (
        f"Between reading weights and pushing their gradient {mean:.3g} other pushes were counted on average, {p95:,} at the "
        f"95th percentile, {format.most_stale(most)} at most."
    )


def _lost(told: RunRecord) -> str:
    said = figures.lost(told.summary.get("lost_updates"))
    return f"{said[:1].upper()}{said[1:]}: workers write without a lock." if said else ""


def cpu(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 1 else f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"


def _idle(told: RunRecord) -> str:
    run, share = told.run, told.run.shares.get("idle", 0.0)
    if share < MUCH or not run.progress:
        return ""
    whole = sum(event.spent.get("idle", 0.0) for event in run.progress)
    last = run.progress[-1].passes
    late = sum(event.spent.get("idle", 0.0) for event in run.progress if event.passes > 0.9 * last)
    if whole and late > 0.5 * whole:
        return f"Of the {format.share(share)} without a slot, {format.share(late / whole)} came in the last tenth of the work."
    around = _around_evaluations(told)
    if around is not None and around > 0.5 and told.strategy == "sync":
        return f"Of the {format.share(share)} without a slot, {format.share(around)} came right before an evaluation read its weights."
    return ""


def _around_evaluations(told: RunRecord) -> float | None:
    """The share of the workers' idle time that ended when an evaluation read the weights."""
    reads = sorted(seconds_of(event) for event in told.run.evaluations)
    whole = near = 0.0
    for node in told.run.workers:
        for kind, start, stop in node.spans:
            if kind == "idle":
                at = bisect.bisect_left(reads, start - NEAR)
                whole += stop - start
                near += stop - start if at < len(reads) and reads[at] <= stop + NEAR else 0.0
    return near / whole if whole else None


def _even(told: RunRecord) -> str:
    done = sorted((node.slots, node.name) for node in told.run.workers if node.exact)
    whole = sum(slots for slots, _ in done)
    if len(done) < 2 or not whole:
        return ""
    (least, who), (most, other) = done[0], done[-1]
    if most <= 1.1 * least:
        return f"Work was even: {least:,} to {most:,} slots each."
    return f"{format.clean(who)} did fewest slots, {least:,} ({format.share(least / whole)}), {format.clean(other)} most, {most:,}."


def _loss(told: RunRecord) -> str:
    run = told.run
    if not run.evaluations:
        return "The model was never judged: nothing can be said of its loss."
    ran_away = next((event for event in run.evaluations if not math.isfinite(event.test_loss)), None)
    away = (
        "" if ran_away is None else f"At epoch {format.epochs(ran_away.passes)} the test loss was no number any more."
    )
    if (best := run.best) is None:
        return away
    first, last = run.finite[0], run.finite[-1]
    if len(run.finite) == 1:
        return f"The model was judged once: test loss {format.loss(first.test_loss)}. {away}".strip()
    said = f"Test loss went from {format.loss(first.test_loss)} to {format.loss(last.test_loss)}."
    if "objective" in last.metrics:  # it minimises that, not the test loss
        return f"{said} {away}".strip()
    if best.test_loss < last.test_loss:
        said += f" The best, {format.loss(best.test_loss)}, was at epoch {format.epochs(best.passes)}; it rose since."
        if best.train_loss is not None and last.train_loss is not None and last.train_loss < best.train_loss:
            said += (
                f" The training loss fell further, from {format.loss(best.train_loss)} to {format.loss(last.train_loss)}: "
                f"it overfits."
            )
    else:
        before = run.finite[-2].test_loss
        fell = (before - last.test_loss) / abs(before) if before else 0.0
        still = "it still fell at the end" if fell > STILL_FALLS else "it hardly changed at the end"
        said += f" The last is the best, and {still} (by {format.share(fell)} since the evaluation before)."
    return f"{said} {away}".strip()


def _end(told: RunRecord) -> str:
    if told.run.stopped is None:
        return "No end is recorded: the run goes on, or was cut short."
    if told.run.stopped.why == "interrupted":
        return "It was interrupted."  # by its user: no failure
    failed = "It failed" if told.summary.get("failed") else "It stopped"
    return f"{failed}: {format.clean(told.run.stopped.why)}."


def _part(told: RunRecord) -> str:
    run = told.run
    if not run.evaluations or run.started is None or run.started.workers < 2:
        return ""
    most = max(run.started.workers, *(event.workers for event in run.evaluations))
    fewer = [event for event in run.evaluations if event.workers < most]
    if not fewer:
        return f"All {most} workers were at work at every evaluation."
    least = min(fewer, key=lambda event: event.workers)
    return (
        f"At {len(fewer):,} of {format.many(len(run.evaluations), 'evaluation')} fewer than {most} workers were at work, "
        f"{least.workers} at the fewest (evaluation {least.number:,}): times are not those of {most} workers throughout."
    )


def _faults(told: RunRecord) -> str:
    happened = told.run.happened
    gone = [event for event in happened if isinstance(event, Gone)]
    back = [event for event in happened if isinstance(event, RolledBack)]
    again = [event for event in happened if isinstance(event, Resumed)]
    saved = [event for event in happened if isinstance(event, Saved)]
    said = []
    came = [event for event in moves_of(happened) if isinstance(event, Joined)]
    left = [event for event in gone if event_line.left_in_order(event)]
    lost = [event for event in gone if not event_line.left_in_order(event)]
    joined = [f"{event_line.nodes(came)} joined while it ran."] if came else []
    parts = [f"{event_line.nodes(left)} left in order."] if left else []
    parts += [f"{event_line.nodes(lost)} {'was' if len(lost) == 1 else 'were'} lost."] if lost else []
    if slots := sum(event.slots for event in gone):
        parts.append(f"Slots of theirs that were dealt again: {slots:,}.")
    # In the order of time: a server that came back was lost first.
    said += [*joined, *parts] if not gone or (came and came[0].seconds < gone[0].seconds) else [*parts, *joined]
    if back:
        steps = sum(max(0, event.steps_before - event.steps_after) for event in back)
        said.append(f"The run went back to a checkpoint {_often(len(back))}, {format.many(steps, 'step')} in all.")
    said += [f"It was taken up again {_often(len(again))}."] if again else []
    faults: list[Gone | RolledBack] = [*lost, *back]
    felt = [after for event in faults if (after := told.run.back_after(began(event))) is not None]
    said += [_felt(felt)] if felt else []
    said += [f"{format.many(len(saved), 'checkpoint')} went to disk."] if saved else []
    return " ".join(said)


def _felt(after: list[float]) -> str:
    never = sum(math.isinf(one) for one in after)
    worst = max((one for one in after if math.isfinite(one)), default=0.0)
    if never:
        return f"After {never:,} of {format.many(len(after), 'such fault')} rows/s did not come back to 90% of what they were while it ran."
    if not worst:
        return "Rows/s were at 90% or more of what they were in the second after."
    return f"Rows/s were back at 90% of what they were after {format.latency(worst)} at the latest."


def _often(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


# ---------------------------------------------------------------- several runs compared


SLACK = 0.005  # of a loss: less than that is chance


def of_several(runs: list[RunRecord]) -> list[str]:
    """Which run first reached the common loss, and why."""
    judged = [one for one in runs if one.run.best is not None]
    said = [emulated(runs)]
    silent = [one.name for one in runs if one.run.best is None]
    said += [f"No loss is known of {event_line.names(silent)}: not compared."] if silent else []
    if len(judged) < 2:
        return [one for one in (*said, "There are no two runs with a loss to compare.") if one]
    if (differ := other_task(judged)) is not None:
        alike = f"These runs do not learn the same ({differ}): their losses are not compared."
        return [one for one in (*said, alike) if one]
    if len({one.run.computing for one in judged}) > 1:
        unlike = "The computing of some is emulated and of others not, or not alike, so their times are not compared: "
        unlike += "give all the same emulate.per_example."
        return [one for one in (*said, unlike) if one]
    common = common_loss(judged)
    order = sorted(judged, key=lambda one: time_to(one, common))
    first = order[0]
    told = [f"{format.clean(first.name)} was there first, after {_short(time_to(first, common))}"]
    told += [
        f"{format.clean(one.name)} took {_short(time_to(one, common))}{_longer(one, first, common)}"
        for one in order[1:]
    ]
    said.append(
        f"All runs reached a test loss of {format.loss(common)} (0.5% above the highest of their best). {'; '.join(told)}."
    )
    said.append(" ".join(_why(first, one, common) for one in order[1:]))
    said.append(
        "Each time is that of the first evaluation at or below the loss, which was reached since the evaluation before."
    )
    still = [one.name for one in judged if one.strategy in CLOCK_STOPS]
    if any(one.strategy == "serial" for one in judged) and len({one.strategy for one in judged}) > 1:
        said.append("A serial run has one core and nobody to talk to.")
    if 0 < len(still) < len(judged):
        said.append(
            f"The clock of {event_line.names(still)} stands still while a model is judged, that of the others does not: their "
            f"evaluator computes beside the workers."
        )
    return [one for one in said if one]


def common_loss(runs: list[RunRecord]) -> float:
    """A loss that all runs reached: a little above the highest of their best ones."""
    highest = max(one.run.best.test_loss for one in runs if one.run.best is not None)
    return highest + SLACK * abs(highest)


def time_to(told: RunRecord, loss: float) -> float:
    found = told.run.reached(loss)
    return math.inf if found is None else seconds_of(found)


def other_task(runs: list[RunRecord]) -> str | None:
    """The differences that make their losses incomparable."""
    for what in ("data", "model", "test_rows", "features"):
        found = {str(getattr(one.run.started, what)) for one in runs if one.run.started}
        if len(found) > 1:
            return f"{what.replace('_', ' ')}: {event_line.names(sorted(found))}"
    return None


def _longer(one: RunRecord, first: RunRecord, loss: float) -> str:
    """The ratio of times, if evaluations are dense enough to tell them apart."""
    soon, late = time_to(first, loss), time_to(one, loss)
    if soon <= 0 or not math.isfinite(late):
        return ""
    before = max((seconds_of(event) for event in one.run.finite if seconds_of(event) < late), default=0.0)
    return (
        f" ({format.times(late / soon)} times as long)"
        if before >= soon
        else " (too near to tell apart by evaluations)"
    )


def _why(first: RunRecord, one: RunRecord, loss: float) -> str:
    """The reason: more rows or fewer rows/s, and the shares of time."""
    here, there = first.run.reached(loss), one.run.reached(loss)
    if here is None or there is None or not here.examples or not there.examples:
        return ""
    speeds = [
        examples / seconds for examples, seconds in ((x.examples, seconds_of(x)) for x in (here, there)) if seconds
    ]
    said = (
        f"Up to there {format.clean(one.name)} needed {format.times(there.examples / here.examples)} times the rows of "
    )
    said += format.clean(first.name)
    said += f", at {format.times(speeds[1] / speeds[0])} times its speed" if len(speeds) == 2 and speeds[0] else ""
    mine, theirs = first.run.shares, one.run.shares
    if mine and theirs:
        kind = max(("wait", "communicate", "idle"), key=lambda what: abs(theirs[what] - mine[what]))
        verb = VERBS[kind]
        if abs(theirs[kind] - mine[kind]) >= MUCH:
            said += f"; over the whole run its workers {verb} {format.share(theirs[kind])} of their time, those of "
            said += f"{format.clean(first.name)} {format.share(mine[kind])}"
    return f"{said}."


def _short(seconds: float) -> str:
    return format.duration(seconds) if seconds >= 1 else format.latency(seconds)

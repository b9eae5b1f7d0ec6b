"""Findings in words: sentences made only of a run's figures.

Of several runs, it says which was faster, and why. Time is rows over rows/s, so both are given.
Runs of different tasks are not compared.
"""

from __future__ import annotations

import math
import re
from statistics import median

from shoal.events import Gone, Joined, Resumed, RolledBack, Saved
from shoal.views import event_line, format, graph, summary_figures
from shoal.views.members import moves_of
from shoal.views.run_record import CLOCK_STOPS, RunMetrics, RunRecord, began, emulation, seconds_of

MUCH = 0.05  # of the time: worth a reason
SLOW = 1.25  # times as long as others: worth a name
NEAR = 0.1  # seconds that an evaluation may be away from what is due to it
STILL_FALLS = 0.002  # of the loss, from one evaluation to the next: it still falls
SLACK = 0.005  # of a loss: less than that is chance
OURS = re.compile(r"(server|worker|evaluator)-\d+")  # nodes that a run starts
VERBS = {"compute": "computed", "communicate": "communicated", "wait": "waited", "idle": "had nothing to do"}


def of_one(told: RunRecord, among: bool = False) -> list[str]:
    """Paragraphs on speed, learning, members and faults; only one if ``among`` others."""
    run, stopped = told.run, told.run.stopped
    lost = summary_figures.lost(told.summary.get("lost_updates"))
    canary = f"{lost[:1].upper()}{lost[1:]}: workers write without a lock." if lost else ""
    if stopped is None:
        end = "No end is recorded: the run goes on, or was cut short."
    elif stopped.why == "interrupted":  # by its user: no failure
        end = "It was interrupted."
    else:
        end = f"{'It failed' if told.summary.get('failed') else 'It stopped'}: {format.clean(stopped.why)}."
    first = [_work(told), "" if among else emulated([told]), _shares(told), _waiting(told), _delay(told)]
    first += [_stale(told), canary, _idle(told), _even(told)]
    second = [_loss(run), graph.seen(told), _solved(told), end]
    third = [_part(run), _faults(run)]
    parts = ([*first, *second, *third],) if among else (first, second, third)
    return [text for part in parts if (text := " ".join(one for one in part if one))]


def _solved(told: RunRecord) -> str:
    judged = [event.metrics for event in told.run.finite if event.metrics.get("objective") is not None]
    if len(judged) < 2:
        return ""
    first, last = judged[0], judged[-1]
    figures = {name: format.metric(name, last.get(name)) for name in ("objective", "violation", "nonzero", "skipped")}
    said = f"The objective fell from {format.metric('objective', first['objective'])} to {figures['objective']}"
    said += f", and the worst key is {figures['violation']} of l1 from the conditions of a minimum; "
    said += f"{figures['nonzero']} weights are not 0"
    return said + (f", and {figures['skipped']} of the keys were left out at last." if last.get("skipped") else ".")


def _work(told: RunRecord) -> str:
    run = told.run
    if run.started is None:
        return ""
    crew = run.attendance.crew().replace(" x ", " and ")
    rate = f", {told.speed:,.0f} a second" if told.speed else ""
    # CPU time of other hosts or a lost coordinator is not measured.
    elsewhere = any(not OURS.fullmatch(stay.name) for stay in run.attendance.stays)
    since = " since it was last resumed" if any(isinstance(event, Resumed) for event in run.happened) else ""
    where = "on the coordinator's machine" if elsewhere else "in all"
    cost = f", with {format.exact_seconds(told.cpu)} CPU seconds {where}{since}" if told.cpu else ""
    lasted = format.elapsed(run.seconds)
    return f"{crew}{event_line.on_cores(run.started)} computed {run.examples:,} rows in {lasted}{rate}{cost}."


def emulated(runs: list[RunRecord]) -> str:
    """What is emulated, and in which runs; stated before any speed."""
    found = list(dict.fromkeys(one.emulated for one in runs if one.emulated))
    if not found:
        return ""
    some = [one.name for one in runs if one.emulated]
    whose = "" if len(some) == len(runs) else f"In {event_line.names(some)}, not in the others: "
    return f"{whose}{' '.join(map(emulation, found))} Waiting, delay and staleness are measured."


def _shares(told: RunRecord) -> str:
    shares = [(kind, share) for kind, share in told.run.shares.items() if share]
    parts = [f"{VERBS[kind]} {'for ' if kind == 'idle' else ''}{format.share(share)}" for kind, share in shares]
    return f"Of their time workers {format.listed(parts)}." if parts else ""


def _waiting(told: RunRecord) -> str:
    wait, slowest = told.run.shares.get("wait"), told.run.slowest
    if wait is not None and wait < MUCH and told.strategy in ("sync", "bounded"):
        return "Workers hardly waited for each other."
    if wait is None or wait < MUCH or slowest is None:
        return ""
    node, factor = slowest
    name, times = format.clean(node.name), f"{format.times(factor)} times as long for a slot"
    slow = f"computes {times} as the median of the others"
    if factor < SLOW:
        return f"No worker is much slower than the others (the slowest, {name}, {slow}): they wait for each other."
    others = [one for one in told.run.workers if one is not node and one.per_slot is not None]
    late = sum((node.per_slot or 0.0) * one.slots - one.spent.get("compute", 0.0) for one in others)
    due = late / (sum(one.spent.get("wait", 0.0) for one in others) or 1.0)
    if due < 0.5:  # others cannot wait for it longer than it computes
        share = format.share(due)
        return f"The slowest worker is not the reason: {name} {slow}, and that is {share} of what the others waited."
    mine = format.share(node.shares.get("wait", 0.0))
    theirs = format.share(median([one.shares.get("wait", 0.0) for one in others]))
    return f"They wait for the slowest: {name} {slow}; it waited {mine} of its time, the others {theirs} of theirs (median)."


def _delay(told: RunRecord) -> str:
    delays = told.run.delays
    if not delays:
        return ""
    half = told.run.seconds / 2
    held: dict[int, float] = {}  # seconds of the second half
    for event, until in zip(delays, [*(later.seconds for later in delays[1:]), told.run.seconds], strict=True):
        if (seconds := until - max(half, event.seconds)) > 0:
            held[event.max_delay] = held.get(event.max_delay, 0.0) + seconds
    said = f"The maximum delay was chosen during the run, and changed {_often(len(delays))}."
    if held:
        longest = max(held, key=lambda delay: held[delay])
        between = f", {min(held):,} to {max(held):,} in all" if len(held) > 1 else ""
        said += f" In the second half it was {longest:,} steps most of the time{between}."
    return f"{said} Before the last change they had waited {format.share(delays[-1].waiting)}."


def _stale(told: RunRecord) -> str:
    if (stale := told.staleness) is None:
        return ""
    _, mean, p95, most = stale
    if not most:
        return "Every gradient was computed with the newest weights: staleness is 0."
    tail = f"on average, {p95:,} at the 95th percentile, {format.most_stale(most)} at most."
    if told.strategy == "averaging":
        return f"A step did not know of {mean:.3g} steps of other ranks since the last mean {tail}"
    return f"Between reading weights and pushing their gradient {mean:.3g} other pushes were counted {tail}"


def _idle(told: RunRecord) -> str:
    run, share = told.run, told.run.shares.get("idle", 0.0)
    if share < MUCH or not run.progress:
        return ""
    whole = sum(event.spent.get("idle", 0.0) for event in run.progress)
    last = run.progress[-1].passes
    late = sum(event.spent.get("idle", 0.0) for event in run.progress if event.passes > 0.9 * last)
    without = f"Of the {format.share(share)} without a slot,"
    if whole and late > 0.5 * whole:
        return f"{without} {format.share(late / whole)} came in the last tenth of the work."
    reads = [seconds_of(event) for event in run.evaluations]
    spans = [(start, stop) for node in run.workers for kind, start, stop in node.spans if kind == "idle"]
    whole = sum(stop - start for start, stop in spans)
    near = sum(stop - start for start, stop in spans if any(start - NEAR <= at <= stop + NEAR for at in reads))
    if told.strategy == "sync" and near > 0.5 * whole:
        return f"{without} {format.share(near / whole)} came right before an evaluation read its weights."
    return ""


def _even(told: RunRecord) -> str:
    done = sorted((node.slots, node.name) for node in told.run.workers if node.exact)
    whole = sum(slots for slots, _ in done)
    if len(done) < 2 or not whole:
        return ""
    (least, who), (most, other) = done[0], done[-1]
    if most <= 1.1 * least:
        return f"Work was even: {least:,} to {most:,} slots each."
    return f"{format.clean(who)} did the fewest slots, {least:,} ({format.share(least / whole)}), {format.clean(other)} most, {most:,}."


def _loss(run: RunMetrics) -> str:
    if not run.evaluations:
        return "The model was never evaluated: its loss is not known."
    diverged = next((event for event in run.evaluations if not math.isfinite(event.test_loss)), None)
    said = []
    if (best := run.best) is not None:
        first, last = run.finite[0], run.finite[-1]
        said = [f"Test loss went from {format.loss(first.test_loss)} to {format.loss(last.test_loss)}."]
        if len(run.finite) == 1:
            said = [f"The model was evaluated once: test loss {format.loss(first.test_loss)}."]
        elif "objective" in last.metrics:
            pass  # it minimises that, not the test loss
        elif best.test_loss < last.test_loss:
            at = format.epochs(best.passes)
            said.append(f"The best, {format.loss(best.test_loss)}, was at epoch {at}; it rose since.")
            if best.train_loss is not None and last.train_loss is not None and last.train_loss < best.train_loss:
                fell = f"from {format.loss(best.train_loss)} to {format.loss(last.train_loss)}"
                said.append(f"The training loss fell further, {fell}: it overfits.")
        else:
            before = run.finite[-2].test_loss
            fell_by = (before - last.test_loss) / abs(before) if before else 0.0
            still = "it still fell at the end" if fell_by > STILL_FALLS else "it hardly changed at the end"
            since = f"by {format.share(fell_by)} since the evaluation before"
            said.append(f"The last is the best, and {still} ({since}).")
    if diverged is not None:
        said.append(f"At epoch {format.epochs(diverged.passes)} the test loss was no longer finite.")
    return " ".join(said)


def _part(run: RunMetrics) -> str:
    if not run.evaluations or run.started is None or run.started.workers < 2:
        return ""
    most = max(run.started.workers, *(event.workers for event in run.evaluations))
    fewer = [event for event in run.evaluations if event.workers < most]
    if not fewer:
        return f"All {most} workers were at work at every evaluation."
    least = min(fewer, key=lambda event: event.workers)
    some = (
        f"At {len(fewer):,} of {format.many(len(run.evaluations), 'evaluation')} fewer than {most} workers were at work"
    )
    at = f"{least.workers} at the fewest (evaluation {least.number:,})"
    return f"{some}, {at}: times are not those of {most} workers throughout."


def _faults(run: RunMetrics) -> str:
    gone = [event for event in run.happened if isinstance(event, Gone)]
    back = [event for event in run.happened if isinstance(event, RolledBack)]
    again = sum(isinstance(event, Resumed) for event in run.happened)
    saved = sum(isinstance(event, Saved) for event in run.happened)
    came = [event for event in moves_of(run.happened) if isinstance(event, Joined)]
    left = [event for event in gone if event_line.left_in_order(event)]
    lost = [event for event in gone if not event_line.left_in_order(event)]
    joined = [f"{event_line.nodes(came)} joined while it ran."] if came else []
    parts = [f"{event_line.nodes(left)} left in order."] if left else []
    parts += [f"{event_line.nodes(lost)} {'was' if len(lost) == 1 else 'were'} lost."] if lost else []
    if slots := sum(event.slots for event in gone):
        parts.append(f"Their slots that were assigned again: {slots:,}.")
    # In the order of time: a server that came back was lost first.
    said = [*joined, *parts] if not gone or (came and came[0].seconds < gone[0].seconds) else [*parts, *joined]
    if back:
        steps = sum(max(0, event.steps_before - event.steps_after) for event in back)
        said.append(f"The run rolled back to a checkpoint {_often(len(back))}, {format.many(steps, 'step')} in all.")
    said += [f"It was resumed {_often(again)}."] if again else []
    faults: list[Gone | RolledBack] = [*lost, *back]
    felt = [after for event in faults if (after := run.back_after(began(event))) is not None]
    never, worst = sum(map(math.isinf, felt)), max(felt, default=0.0)
    if never:
        of = f"{never:,} of {format.many(len(felt), 'such fault')}"
        said.append(f"After {of} rows/s did not come back to 90% of what they were while it ran.")
    elif worst:
        said.append(f"Rows/s were back at 90% of what they were after {format.latency(worst)} at the latest.")
    elif felt:
        said.append("Rows/s were at 90% or more of what they were in the second after.")
    said += [f"{format.many(saved, 'checkpoint')} went to disk."] if saved else []
    return " ".join(said)


def _often(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def of_several(runs: list[RunRecord]) -> list[str]:
    """Which run first reached the common loss, and why."""
    judged = [one for one in runs if one.run.best is not None]
    silent = [one.name for one in runs if one.run.best is None]
    said = [emulated(runs), f"No loss is known of {event_line.names(silent)}: not compared." if silent else ""]
    if len(judged) < 2:
        said.append("There are no two runs with a loss to compare.")
    elif (differ := other_task(judged)) is not None:
        said.append(f"These runs have different tasks ({differ}): their losses are not compared.")
    elif len({one.run.computing for one in judged}) > 1:
        unlike = "The computing of some is emulated and of others not, or not alike, so their times are not compared"
        said.append(f"{unlike}: give all the same emulate.per_example.")
    else:
        said += _compared(judged)
    return [one for one in said if one]


def _compared(judged: list[RunRecord]) -> list[str]:
    common = common_loss(judged)
    times = [(math.inf if (event := one.run.reached(common)) is None else seconds_of(event), one) for one in judged]
    (soonest, first), *others = sorted(times, key=lambda one: one[0])
    reached = f"All runs reached a test loss of {format.loss(common)} (0.5% above the highest of their best)."
    told = [f"{format.clean(first.name)} was there first, after {format.elapsed(soonest)}"]
    for seconds, one in others:
        # The ratio is given if evaluations are dense enough to tell the times apart.
        before = [at for event in one.run.finite if (at := seconds_of(event)) < seconds]
        apart = max(before, default=0.0) >= soonest
        longer = f"{format.times(seconds / soonest)} times as long" if soonest > 0 and apart else ""
        note = longer or ("too near to tell apart by evaluations" if soonest > 0 and math.isfinite(seconds) else "")
        told.append(f"{format.clean(one.name)} took {format.elapsed(seconds)}{f' ({note})' if note else ''}")
    said = [f"{reached} {'; '.join(told)}.", " ".join(_why(first, one, common) for _, one in others)]
    first_at = "Each time is that of the first evaluation at or below the loss"
    said.append(f"{first_at}, which was reached since the evaluation before.")
    strategies = {one.strategy for one in judged}
    if "serial" in strategies and len(strategies) > 1:
        said.append("A serial run uses one core and does not communicate.")
    still = [one.name for one in judged if one.strategy in CLOCK_STOPS]
    if 0 < len(still) < len(judged):
        stops = f"The clock of {event_line.names(still)} stops during an evaluation, that of the others does not"
        said.append(f"{stops}: their evaluator computes beside the workers.")
    return said


def common_loss(runs: list[RunRecord]) -> float:
    """A loss that all runs reached: a little above the highest of their best ones."""
    highest = max(one.run.best.test_loss for one in runs if one.run.best is not None)
    return highest + SLACK * abs(highest)


def other_task(runs: list[RunRecord]) -> str | None:
    for what in ("data", "model", "test_rows", "features"):
        found = {str(getattr(one.run.started, what)) for one in runs if one.run.started}
        if len(found) > 1:
            return f"{what.replace('_', ' ')}: {event_line.names(sorted(found))}"
    return None


def _why(first: RunRecord, one: RunRecord, loss: float) -> str:
    here, there = first.run.reached(loss), one.run.reached(loss)
    if here is None or there is None or not here.examples or not there.examples:
        return ""
    mine, theirs = first.run.shares, one.run.shares
    name, other = format.clean(one.name), format.clean(first.name)
    said = f"Up to there {name} needed {format.times(there.examples / here.examples)} times the rows of {other}"
    if seconds_of(here) and seconds_of(there):
        speed = there.examples / seconds_of(there) * seconds_of(here) / here.examples
        said += f", at {format.times(speed)} times its speed"
    kind = max(("wait", "communicate", "idle"), key=lambda what: abs(theirs.get(what, 0.0) - mine.get(what, 0.0)))
    if mine and theirs and abs(theirs[kind] - mine[kind]) >= MUCH:
        said += f"; over the whole run its workers {VERBS[kind]} {format.share(theirs[kind])} of their time, those of "
        said += f"{other} {format.share(mine[kind])}"
    return f"{said}."

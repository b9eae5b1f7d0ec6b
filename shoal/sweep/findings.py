"""Findings of a sweep in words, from its figures alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.events import counted
from shoal.sweep.grid import Axis
from shoal.sweep.results import PointFigures, RunFigures, Spread, StudyFigures, at, known, lines_of, x_axis
from shoal.views import format
from shoal.views.page import TableSection

QUIET = 0.05  # of a run's cores: less taken by others is not mentioned
NAMED = 6  # points in a sentence before it says how many more
EACH = 10  # points of a line that are listed one by one
POINT = 0.01  # of accuracy
FIRST = 4  # losses that are listed one by one
_STATES = {
    "diverged": "Diverged",
    "failed": "Failed",
    "unfinished": "Not finished",
    "to do": "Missing (not run yet, or deleted)",
}


def paragraphs(of: StudyFigures) -> list[str]:
    said = [_runs(of), _best(of), *_along(of), _speedup(of), same_rows(of), accuracies(of), apart(of)]
    said += [_missed(of), active(of), _others(of), _how(of)]
    return [one for one in said if one]


def value(spread: Spread, timed: bool) -> str:
    """12.3 s, or a loss; with its range if there is one."""
    return spread.text(format.exact_seconds, " s") if timed else spread.text(format.loss)


def _times(spread: Spread) -> str:
    return spread.text("{:.2f}".format)


def _listed(items: Sequence[str], most: int = NAMED) -> str:
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _runs(of: StudyFigures) -> str:
    study, results = of.sweep.study, of.sweep.results
    states = [one.state for one in results]
    points = counted(len(of.points), "point") if of.points else ""
    serial = counted(len(of.serial), "serial point") if of.serial else ""
    text = f"{' and '.join(one for one in (points, serial) if one)}, each with {counted(len(study.seeds), 'seed')}: "
    text += f"{counted(len(results), 'run')}"
    bad = [state for state in ("failed", "diverged", "unfinished", "to do") if state in states]
    return f"{text}, {', '.join(f'{states.count(state)} {state}' for state in bad) or 'all finished'}."


def best_sentence(of: StudyFigures) -> str:
    """The best point and those tied with it, without a full stop: also a picture's title."""
    best, spread = of.best, None if of.best is None else of.best.spread(of.measure)
    if best is None or spread is None:
        what = "a figure" if all(one.complete for one in of.shown) else "all its seeds"
        return f"No point has {what} yet: {of.measured}"
    if of.timed:
        text = f"Soonest at the target ({_target(of)}): {best.point.title}, {value(spread, True)}"
    else:
        known_target = any(run.target is not None for point in of.shown for run in point.runs)
        how = "No point reached the target ({}) with all its seeds" if known_target else "The target ({}) is not known"
        missed = f"{how.format(_target(of))}. " if of.has_target else ""
        text = f"{missed}Lowest median {of.measured}: {best.point.title}, {value(spread, False)}"
    if of.tied:
        text += f"; tied with {_listed([one.point.title for one in of.tied])}: ranges over seeds overlap"
    return text


def _best(of: StudyFigures) -> str:
    best = of.best
    if best is None:
        return ""
    text = best_sentence(of)
    edges = []
    for axis in of.sweep.study.axes if not best.point.serial else of.sweep.study.serial_axes:
        numbers = sorted(choice.number for choice in axis.choices if choice.number is not None)
        mine = best.point.choices[axis.name].number
        ends_there = mine == 0 or (axis.name, mine) == ("workers", 1)  # the axis ends there
        if mine is not None and len(numbers) > 2 and mine in (numbers[0], numbers[-1]) and not ends_there:
            which = "lowest" if mine == numbers[0] else "highest"
            edges.append(f"{axis.short} {at(best, axis)} is the {which} that was tried")
    if edges:
        text += f". It lies at an edge ({'; '.join(edges)}), so a better one may lie beyond"
    return f"{text}."


def highest(points: Sequence[PointFigures], figure: str) -> tuple[PointFigures, Spread]:
    return max(known(points, figure), key=lambda pair: pair[1].median)


def fastest(points: Sequence[PointFigures], figure: str) -> str:
    """2.05 times as fast as the best serial run, with workers 3."""
    one, spread = highest(points, figure)
    return f"{spread.median:.2f} times as fast as the best serial run, with {one.point.title}"


def _target(of: StudyFigures) -> str:
    target = of.sweep.study.target
    if target is None:
        return ""
    if target.loss is not None:
        return f"test loss {format.loss(target.loss)}"
    goals = Spread.of([one.target for point in of.shown for one in point.runs])
    reached = "" if goals is None else f", {value(goals, False)}"
    return f"test loss of the best serial run + {100 * (target.above or 0):g}%{reached}"


def _along(of: StudyFigures) -> list[str]:
    axis = x_axis(of)
    if axis is None or len(axis.choices) < 2:
        return []
    found = []
    for label, points in lines_of(of).items():
        said = [one for one in (_shape(of, points, axis), _waiting(points, axis)) if one]
        if said:
            text = " ".join([said[0][:1].lower() + said[0][1:], *said[1:]])
            found.append(f"With {label}, {text}" if label else _capital(text))
    return found


def _shape(of: StudyFigures, points: Sequence[PointFigures], axis: Axis) -> str:
    """The best place along the axis, and how much worse its ends are."""
    pairs = known(points, of.measure)
    numeric = [pair for pair in pairs if pair[0].point.choices[axis.name].number is not None]
    what = "time to the target" if of.timed else of.measured.removeprefix("last ")
    if len(numeric) < 2:
        ranked = sorted(pairs, key=lambda pair: pair[1].median)
        parts = [
            f"{at(one, axis)} {value(spread, of.timed)}{' (tied)' * (rank > 0 and spread.overlaps(ranked[0][1]))}"
            for rank, (one, spread) in enumerate(ranked[:NAMED])
        ]
        return f"the {what} is, best first: {'; '.join(parts)}." if len(parts) > 1 else ""
    best = min(numeric, key=lambda pair: pair[1].median)
    ends = [pair for pair in (numeric[0], numeric[-1]) if pair is not best]
    place = "inside" if len(ends) == 2 else f"at the {'first' if best is numeric[0] else 'last'} of them"
    text = f"over {axis.short} the {what} is lowest at {at(best[0], axis)}: {value(best[1], of.timed)}, {place}"
    for pair in [*ends, *(pair for pair in pairs if pair not in numeric)]:
        text += f"; {_worse(of, pair, best, axis)}"
    missing = [at(one, axis) for one in points if one.spread(of.measure) is None]
    without = f" (no figure at {', '.join(missing)})" if missing else ""
    return f"{text}{without}."


def _worse(of: StudyFigures, one: tuple[PointFigures, Spread], best: tuple[PointFigures, Spread], axis: Axis) -> str:
    """How one compares with the best, and in how many seeds it is worse, if not in all."""
    text = f"{at(one[0], axis)} {'takes' if of.timed else 'has'} {value(one[1], of.timed)}"
    if best[1].median > 0:
        ratio = one[1].median / best[1].median
        longer = "as long" if f"{ratio:.2f}" == "1.00" else f"{ratio:.2f} times as long"
        text += f", {longer}" if of.timed else f", {100 * (ratio - 1):+.2g}%"
    values = [{run.result.run.seed: getattr(run, of.measure) for run in point.runs} for point in (one[0], best[0])]
    pairs = [(mine, values[1].get(seed)) for seed, mine in values[0].items()]
    both = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    worse = sum(mine > theirs for mine, theirs in both)
    seeds = f"worse in {worse} of {len(both)} seeds" if worse < len(both) and len(both) > 1 else ""
    tied = "tied" if one[1].overlaps(best[1]) else ""
    return text + (f" ({'; '.join(filter(None, (tied, seeds)))})" if tied or seeds else "")


def _waiting(points: Sequence[PointFigures], axis: Axis) -> str:
    """The share of waiting, and staleness: of numbers from end to end, else of each."""
    numeric = [one for one in points if one.point.choices[axis.name].number is not None]
    shown = numeric if len(numeric) > 1 else points
    kinds: list[tuple[str, str, Callable[[float], str]]] = [
        ("workers wait {} of their time", "waiting", format.share),
        ("staleness is {} on average", "staleness_mean", "{:.3g}".format),
    ]
    parts = []
    for sentence, figure, form in kinds:
        medians = [(at(one, axis), form(spread.median)) for one, spread in known(shown, figure)]
        if shown is numeric:
            medians = medians[:1] + medians[1:][-1:]
        if len({median for _, median in medians}) < 2:
            continue
        (first, low), others = medians[0], medians[1:NAMED]
        rest = "".join(f", {median} at {label}" for label, median in others)
        parts.append(f"{sentence.format(low)} at {first}{rest}")
    return f"{_capital('; '.join(parts))}." if parts else ""


def _speedup(of: StudyFigures) -> str:
    serial = of.best_serial
    if serial is None or not of.points:
        return ""
    if (alone := serial.spread("time_to_target")) is None:
        how = f"{serial.reached} of {len(serial.runs)} seeds" if serial.complete else "not all its seeds were run"
        return f"The best serial run ({serial.point.title}) did not reach the target ({how}), so there is no speedup."
    text = f"The best serial run ({serial.point.title}) takes {value(alone, True)}."
    if not known(of.points, "speedup"):
        return f"{text} No point reached the target with all its seeds, so there is no speedup."
    top, speedup = highest(of.points, "speedup")
    text += f" The fastest point is {top.point.title}: {_times(speedup)} times as fast"
    hardware, statistical = top.spread("hardware_efficiency"), top.spread("statistical_efficiency")
    if hardware is not None and statistical is not None:
        text += (
            f", with {_times(hardware)} times the rows a second and {_times(statistical)} times as much learned from"
        )
        text += " a row (for each seed their product is the speedup over the serial run with that seed)"
    if cores := of.cores:
        text += f". Each run had {counted(cores, 'core')}"
    if of.emulated:
        how = "; ".join(of.emulated)
        text += f". The computing is emulated ({how}): waiting and messages are real, the work is not"
    return f"{text}."


def _missed(of: StudyFigures) -> str:
    parts = []
    censored = [one for one in [*of.points, *of.serial] if one.censored]
    if censored:
        some = [f"{one.point.title} ({one.reached} of {len(one.runs)})" for one in censored]
        parts.append(f"Not all seeds reached the target at {_listed(some)}: these points have no time")
    parts += [text for state in _STATES if (text := in_state(of, state))]
    return f"{'. '.join(parts)}." if parts else ""


def in_state(of: StudyFigures, state: str) -> str:
    """The points with runs in this state, how many of their runs, and why; empty if none."""
    said = []
    for point in [*of.points, *of.serial]:
        those = [run.result for run in point.runs if run.result.state == state]
        if those:
            why = f": {format.clean(those[0].reason)}" if those[0].reason else ""
            said.append(f"{point.point.title} ({len(those)} of {len(point.runs)}{why})")
    return f"{_STATES[state]}: {_listed(said)}" if said else ""


def _others(of: StudyFigures) -> str:
    """Whether other processes used the machine."""
    taken = Spread.of([one.others for one in of.sweep.results])
    if taken is None or taken.high < QUIET:
        return ""
    usual, low, high = map(format.share, (taken.median, taken.low, taken.high))
    if taken.median < QUIET:
        return f"Others took {high} of a run's cores at most, {usual} as a rule."
    quiet = f"The machine was not quiet: others took {usual} of the cores that a run had, {low} to {high}"
    return f"{quiet}, so times are longer than they would be alone, and not all alike."


def _how(of: StudyFigures) -> str:
    several = len(of.sweep.study.seeds) > 1
    over = "Figures are medians over seeds, with the lowest and the highest. " if several else ""
    if not of.has_target:
        return over.strip()
    over += (
        "The time to the target is when the weights were read that were first evaluated at or below it: no finer than"
    )
    return f"{over} evaluations are. A point has one only if all its seeds got there."


def same_rows(of: StudyFigures) -> str:
    """Every line against the best serial run, if all learned from equally many rows."""
    seconds, cpu = of.alone("computing_seconds"), of.alone("cpu_seconds")
    if not of.same_work or seconds is None or not known(of.points, "speedup_same_rows"):
        return ""
    text = f"All runs learned from equally many rows. The best serial run took {format.exact_seconds(seconds.median)} s for them"
    text += f" and {format.exact_seconds(cpu.median)} CPU seconds" if cpu is not None else ""
    text += f". Times as fast: {_lines(of, 'speedup_same_rows', '{:.2f}')}"
    if cpu is not None and known(of.points, "cpu_seconds"):
        text += f". Times the CPU seconds: {_lines(of, 'cpu_seconds', '{:.2f}', 1 / cpu.median)}"
    if of.cores is not None:
        text += f". Each run had {counted(of.cores, 'core')}"
    return f"{text}."


def accuracies(of: StudyFigures) -> str:
    """The accuracies, and which are more than a point below the best serial run."""
    pairs, serial = known(of.points, "accuracy"), of.alone("accuracy")
    if not pairs:
        return ""
    text = f"Accuracy at the end: {_lines(of, 'accuracy', '{:.4f}')}"
    if serial is None:
        return f"{text}."
    alone = serial.median
    text += f"; the best serial run {alone:.4f}"
    lower = [(one, spread.median - alone) for one, spread in pairs if alone - spread.median > POINT]
    below = [f"{one.point.title} ({100 * by:+.1f})" for one, by in lower]
    if not below:
        return f"{text}. All are within a point of that, or above."
    return f"{text}. More than a point below that: {_listed(below, EACH)}."


def apart(of: StudyFigures) -> str:
    """The final distance of the workers' models from their mean (gossip)."""
    if not known(of.points, "distance"):
        return ""
    text = f"Distance of the models from their mean at the end: {_lines(of, 'distance', '{:.2g}')}"
    if known(of.points, "worst_loss"):
        text += f". Loss of the worst of them: {_lines(of, 'worst_loss', '{:.4f}')}"
    return f"{text}. The losses are those of the mean, which is nobody's model."


def _lines(of: StudyFigures, figure: str, form: str, factor: float = 1.0) -> str:
    """psgd 0.98 at 1, 1.91 at 2; hogwild 0.97 at 1, 1.88 at 2."""
    axis = x_axis(of)
    parts = []
    for label, points in lines_of(of).items():
        pairs = known(points, figure)
        if len(pairs) > EACH:
            pairs = [pairs[0], pairs[-1]]
        each = [form.format(factor * spread.median) + (f" at {at(one, axis)}" if axis else "") for one, spread in pairs]
        if each:
            parts.append(f"{label} {', '.join(each)}".strip())
    return "; ".join(parts)


def active_table(of: StudyFigures) -> TableSection | None:
    """Workers at the first losses, at the target and in all; None for serial runs."""
    points = [one for one in of.points if one.done and any(_asked(run) > 1 for run in one.runs)]
    if not points:
        return None
    heads = [axis.short for axis in of.sweep.study.axes]
    heads += ["before", *(f"loss {number}" for number in range(1, FIRST + 1))]
    heads += ["at the target"] * of.has_target + ["last", "with all of them"]
    rows = []
    for one in points:
        workers = [[event.workers for event in run.evaluations] for run in one.runs if run.result.is_done]
        cells = [_span([each[number] for each in workers if len(each) > number]) for number in range(FIRST + 1)]
        if of.has_target:
            cells.append(_span([event.workers for run in one.runs if (event := run.at_target) is not None]))
        cells.append(_span([each[-1] for each in workers if each]))
        full, total = _full(one)
        labels = [choice.label for choice in one.point.choices.values()]
        rows.append([*labels, *cells, f"{full:,} of {total:,}"])
    caption = "Workers at work when the weights were read that were evaluated: before training, at the first losses, and in how many of all evaluations all of them were."
    return TableSection(heads, rows, caption)


def active(of: StudyFigures) -> str:
    counts = [(one.point.title, *_full(one)) for one in of.points if any(_asked(run) > 1 for run in one.runs)]
    if not any(total for _, _, total in counts):
        return ""
    short = [f"{title} ({full:,} of {total:,})" for title, full, total in counts if full < total]
    if not short:
        return "All workers of a run were at work at each of its evaluations."
    return f"Not all workers were at work at every evaluation. All were, at: {_listed(short)}."


def all_at_work(of: StudyFigures) -> bool:
    """Whether all workers were present at every evaluation of every run."""
    return all(full == total for full, total in map(_full, of.points))


def _full(one: PointFigures) -> tuple[int, int]:
    """Evaluations with all workers, without the first and the last."""
    found = [event.workers >= _asked(run) for run in one.runs for event in run.evaluations[1:-1]]
    return sum(found), len(found)


def _asked(run: RunFigures) -> int:
    job = run.result.run.job
    return job.workers if job.has_workers else 1


def _span(values: Sequence[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} .. {high}"

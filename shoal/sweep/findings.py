"""Findings of a sweep in words, from its figures alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.events import Evaluated, counted
from shoal.sweep.figures import (
    PlotLine,
    PointFigures,
    RunFigures,
    Spread,
    StudyFigures,
    at,
    first_at_or_below,
    lines_of,
    x_axis,
)
from shoal.sweep.grid import Axis
from shoal.views import format
from shoal.views.page import TableSection

QUIET = 0.05  # of a run's cores: less taken by others is not mentioned
NAMED = 6  # points in a sentence before it says how many more


def paragraphs(of: StudyFigures) -> list[str]:
    """The findings that the figures support."""
    said = [
        _runs(of),
        _best(of),
        *_along(of),
        _speedup(of),
        same_rows(of),
        accuracies(of),
        apart(of),
        _missed(of),
        active(of),
        _others(of),
    ]
    said += [_how(of)]
    return [one for one in said if one]


def value(spread: Spread, has_target: bool) -> str:
    """12.3 s, or a loss; with its spread if there is one."""
    if not has_target:
        middle, low, high = (format.loss(one) for one in (spread.median, spread.low, spread.high))
        return middle if low == high else f"{middle} ({low} to {high})"
    middle, low, high = (format.exact_seconds(one) for one in (spread.median, spread.low, spread.high))
    return f"{middle} s" if low == high else f"{middle} s ({low} to {high})"


def _runs(of: StudyFigures) -> str:
    study, results = of.sweep.study, of.sweep.results
    states = [one.state for one in results]
    points = counted(len(of.points), "point") if of.points else ""
    serial = counted(len(of.serial), "serial point") if of.serial else ""
    text = f"{' and '.join(one for one in (points, serial) if one)}, each with {counted(len(study.seeds), 'seed')}: "
    text += f"{counted(len(results), 'run')}"
    notes = [
        f"{states.count(state)} {state}" for state in ("failed", "diverged", "unfinished", "to do") if state in states
    ]
    return f"{text}, {'all finished' if not notes else ', '.join(notes)}."


def best_sentence(of: StudyFigures) -> str:
    """The best point and those tied with it, without a full stop: also a picture's title."""
    best, spread = of.best, None if of.best is None else of.measure(of.best)
    if best is None or spread is None:
        return f"No point has a figure yet: {of.measured}"
    if of.timed:
        text = f"Soonest at the target ({_target(of)}): {best.point.title}, {value(spread, True)}"
    else:
        missed = f"No point reached the target ({_target(of)}) with all its seeds. " if of.has_target else ""
        text = f"{missed}Lowest median {of.measured}: {best.point.title}, {value(spread, False)}"
    if of.tied:
        text += f"; tied with {_named([one.point.title for one in of.tied])}: ranges over seeds overlap"
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


def extremes(points: Sequence[PointFigures], figure: Callable[[PointFigures], Spread | None], than: str) -> str:
    """2.05 times as fast as the best serial run, with workers 3."""
    spread, one = max(((figure(one), one) for one in points), key=lambda pair: pair[0].median if pair[0] else 0.0)
    return f"{spread.median if spread else 0.0:.2f} times as fast {than}, with {one.point.title}"


def _target(of: StudyFigures) -> str:
    target = of.sweep.study.target
    if target is None:
        return ""
    if target.loss is not None:
        return f"test loss {format.loss(target.loss)}"
    goals = Spread.of([one.target for point in of.shown for one in point.runs])
    return f"test loss of the best serial run + {100 * (target.above or 0):g}%" + (
        "" if goals is None else f", {value(goals, False)}"
    )


# ---------------------------------------------------------------- along an axis


def _along(of: StudyFigures) -> list[str]:
    axis = x_axis(of)
    if axis is None or len(axis.choices) < 2:
        return []
    found = []
    for line in lines_of(of):
        said = [one for one in (_shape(of, line, axis), _waiting(line, axis)) if one]
        if said:
            text = " ".join([said[0][:1].lower() + said[0][1:], *said[1:]])
            found.append(f"With {line.label}, {text}" if line.label else f"{text[:1].upper()}{text[1:]}")
    return found


def _shape(of: StudyFigures, line: PlotLine, axis: Axis) -> str:
    """The best place along the axis, and how much worse its ends are."""
    known = [(one, spread) for one in line.points if (spread := of.measure(one)) is not None]
    numeric = [(one, spread) for one, spread in known if one.point.choices[axis.name].number is not None]
    what = "time to the target" if of.timed else of.measured.removeprefix("last ")
    if len(numeric) < 2:
        ranked = sorted(known, key=lambda pair: pair[1].median)
        parts = [f"{at(one, axis)} {value(spread, of.timed)}{_tie(spread, ranked)}" for one, spread in ranked[:NAMED]]
        return f"the {what} is, best first: {'; '.join(parts)}." if len(parts) > 1 else ""
    best = min(numeric, key=lambda pair: pair[1].median)
    ends = [pair for pair in (numeric[0], numeric[-1]) if pair is not best]
    place = "inside" if len(ends) == 2 else f"at the {'first' if best is numeric[0] else 'last'} of them"
    text = f"over {axis.short} the {what} is lowest at {at(best[0], axis)}: {value(best[1], of.timed)}, {place}"
    for pair in [*ends, *(pair for pair in known if pair not in numeric)]:
        text += f"; {_worse(of, pair, best, axis)}"
    missing = [at(one, axis) for one in line.points if of.measure(one) is None]
    without = f" (no figure at {', '.join(missing)})" if missing else ""
    return f"{text}{without}."


def _tie(spread: Spread, ranked: Sequence[tuple[PointFigures, Spread]]) -> str:
    return " (tied)" if spread is not ranked[0][1] and spread.overlaps(ranked[0][1]) else ""


def _worse(of: StudyFigures, one: tuple[PointFigures, Spread], best: tuple[PointFigures, Spread], axis: Axis) -> str:
    """How one compares with the best, and in how many seeds it is worse, if not in all."""
    text = f"{at(one[0], axis)} {'takes' if of.timed else 'has'} {value(one[1], of.timed)}"
    if best[1].median > 0:
        ratio = one[1].median / best[1].median
        longer = "as long" if f"{ratio:.2f}" == "1.00" else f"{ratio:.2f} times as long"
        text += f", {longer}" if of.timed else f", {100 * (ratio - 1):+.2g}%"
    by_seed = {run.result.run.seed: of.measure_run(run) for run in best[0].runs}
    pairs = [(of.measure_run(run), by_seed.get(run.result.run.seed)) for run in one[0].runs]
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    worse = sum(mine > theirs for mine, theirs in known)
    seeds = f"worse in {worse} of {len(known)} seeds" if worse < len(known) and len(known) > 1 else ""
    tied = "tied" if one[1].overlaps(best[1]) else ""
    return text + (f" ({'; '.join(filter(None, (tied, seeds)))})" if tied or seeds else "")


def _waiting(line: PlotLine, axis: Axis) -> str:
    """The share of waiting, and staleness: of numbers from end to end, else of each."""
    numeric = [one for one in line.points if one.point.choices[axis.name].number is not None]
    shown = numeric if len(numeric) > 1 else line.points
    kinds: list[tuple[str, Callable[[PointFigures], Spread | None], Callable[[float], str]]] = [
        ("workers wait {} of their time", lambda one: one.waiting, format.share),
        ("staleness is {} on average", lambda one: one.stale_mean, lambda stale: f"{stale:.3g}"),
    ]
    parts = []
    for sentence, figure, said in kinds:
        known = [(at(one, axis), said(spread.median)) for one in shown if (spread := figure(one)) is not None]
        if shown is numeric:
            known = known[:1] + known[1:][-1:]
        if len({median for _, median in known}) < 2:
            continue
        (first, low), others = known[0], known[1:NAMED]
        rest = "".join(f", {median} at {label}" for label, median in others)
        parts.append(f"{sentence.format(low)} at {first}{rest}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


# ---------------------------------------------------------------- speedup, and what is missing


def _speedup(of: StudyFigures) -> str:
    serial = of.best_serial
    if serial is None or not of.points:
        return ""
    if serial.time is None:
        how = f"{serial.reached} of {len(serial.runs)} seeds" if serial.complete else "not all its seeds were run"
        return f"The best serial run ({serial.point.title}) did not reach the target ({how}), so there is no speedup."
    text = f"The best serial run ({serial.point.title}) takes {value(serial.time, True)}."
    fast = [one for one in of.points if one.speedup is not None]
    if not fast:
        return f"{text} No point reached the target with all its seeds, so there is no speedup."
    top = max(fast, key=lambda one: one.speedup.median if one.speedup else 0.0)
    assert top.speedup is not None
    text += f" The fastest point is {top.point.title}: {_times(top.speedup)} times as fast"
    if top.hardware is not None and top.statistical is not None:
        text += (
            f", with {_times(top.hardware)} times the rows a second and {_times(top.statistical)} times as much learned from "
            f"a row (for each seed their product is the speedup over the serial run with that seed)"
        )
    if cores := of.cores:
        text += f". Each run had {counted(cores, 'core')}"
    if of.emulated:
        text += (
            f". The computing is emulated ({'; '.join(of.emulated)}): waiting and messages are real, the work is not"
        )
    return f"{text}."


def _times(spread: Spread) -> str:
    middle, low, high = (f"{one:.2f}" for one in (spread.median, spread.low, spread.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _missed(of: StudyFigures) -> str:
    """The points that missed the target, and the failures."""
    parts = []
    censored = [one for one in [*of.points, *of.serial] if one.censored]
    if censored:
        parts.append(
            f"Not all seeds reached the target at {_named([f'{one.point.title} ({one.reached} of {len(one.runs)})' for one in censored])}: "
            f"these points have no time"
        )
    for state in ("diverged", "failed"):
        said = []
        for point in [*of.points, *of.serial]:
            those = [run.result for run in point.runs if run.result.state == state]
            if those:
                why = f": {format.clean(those[0].reason)}" if those[0].reason else ""
                said.append(f"{point.point.title} ({len(those)} of {len(point.runs)}{why})")
        if said:
            parts.append(f"{state.capitalize()}: {_named(said)}")
    return f"{'. '.join(parts)}." if parts else ""


def _others(of: StudyFigures) -> str:
    """Whether other processes used the machine."""
    taken = Spread.of([one.others for one in of.sweep.results])
    if taken is None or taken.high < QUIET:
        return ""
    if taken.median < QUIET:
        return (
            f"Others took {format.share(taken.high)} of a run's cores at most, {format.share(taken.median)} as a rule."
        )
    return (
        f"The machine was not quiet: others took {format.share(taken.median)} of the cores that a run had, {format.share(taken.low)} to "
        f"{format.share(taken.high)}, so times are longer than they would be alone, and not all alike."
    )


def _named(all_of_them: Sequence[str]) -> str:
    more = f"; and {len(all_of_them) - NAMED} more" if len(all_of_them) > NAMED else ""
    return "; ".join(all_of_them[:NAMED]) + more


def _how(of: StudyFigures) -> str:
    several = len(of.sweep.study.seeds) > 1
    over = "Figures are medians over seeds, with the lowest and the highest. " if several else ""
    if not of.has_target:
        return over.strip()
    return (
        f"{over}The time to the target is when the weights were read that were first judged at or below it: no finer than "
        f"evaluations are. A point has one only if all its seeds got there."
    )


# ---------------------------------------------------------------- the same rows


EACH = 10  # points of a line that are listed one by one
POINT = 0.01  # of accuracy


def same_rows(of: StudyFigures) -> str:
    """Every line against the best serial run, if all learned from equally many rows."""
    serial = of.best_serial
    if not of.same_work or serial is None or serial.seconds is None or not any(one.sooner for one in of.points):
        return ""
    text = f"All runs learned from as many rows. The best serial run took {format.exact_seconds(serial.seconds.median)} s for them"
    text += f" and {format.exact_seconds(serial.cpu.median)} CPU seconds" if serial.cpu is not None else ""
    text += f". Times as fast: {_lines(of, lambda one: one.sooner, lambda value: f'{value:.2f}')}"
    if serial.cpu is not None and any(one.cpu is not None for one in of.points):
        cpu = serial.cpu.median
        text += f". Times the CPU seconds: {_lines(of, lambda one: one.cpu, lambda value: f'{value / cpu:.2f}')}"
    if of.cores is not None:
        text += f". Each run had {counted(of.cores, 'core')}"
    return f"{text}."


def accuracies(of: StudyFigures) -> str:
    """The accuracies, and which are more than a point below the best serial run."""
    if not any(one.accuracy is not None for one in of.points):
        return ""
    text = f"Accuracy at the end: {_lines(of, lambda one: one.accuracy, lambda value: f'{value:.4f}')}"
    if of.best_serial is None or of.best_serial.accuracy is None:
        return f"{text}."
    alone = of.best_serial.accuracy.median
    text += f"; the best serial run {alone:.4f}"
    known = [(one, one.accuracy.median) for one in of.points if one.accuracy is not None]
    below = [f"{one.point.title} ({100 * (mine - alone):+.1f})" for one, mine in known if alone - mine > POINT]
    if not below:
        return f"{text}. All are within a point of that, or above."
    more = f"; and {len(below) - EACH} more" if len(below) > EACH else ""
    return f"{text}. More than a point below that: {'; '.join(below[:EACH])}{more}."


def apart(of: StudyFigures) -> str:
    """The final distance of the workers' models from their mean (gossip)."""
    if not any(one.distance is not None for one in of.points):
        return ""
    text = f"Distance of the models from their mean at the end: {_lines(of, lambda one: one.distance, lambda value: f'{value:.2g}')}"
    if any(one.worst_loss is not None for one in of.points):
        text += f". Loss of the worst of them: {_lines(of, lambda one: one.worst_loss, lambda value: f'{value:.4f}')}"
    return f"{text}. The losses are those of the mean, which is nobody's model."


def _lines(of: StudyFigures, figure: Callable[[PointFigures], Spread | None], said: Callable[[float], str]) -> str:
    """psgd 0.98 at 1, 1.91 at 2; hogwild 0.97 at 1, 1.88 at 2."""
    axis = x_axis(of)
    parts = []
    for line in lines_of(of):
        known = [(one, spread) for one in line.points if (spread := figure(one)) is not None]
        if len(known) > EACH:
            known = [known[0], known[-1]]
        each = [f"{said(spread.median)} at {at(one, axis)}" if axis else said(spread.median) for one, spread in known]
        if each:
            parts.append(f"{line.label} {', '.join(each)}".strip())
    return "; ".join(parts)


# ---------------------------------------------------------------- workers


FIRST = 4  # losses that are listed one by one
NAMED = 6


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
        judged = [_judged(run) for run in one.runs if run.result.is_done]
        cells = [
            _span([events[number].workers for events in judged if len(events) > number]) for number in range(FIRST + 1)
        ]
        if of.has_target:
            met = [first_at_or_below(run.result.events, run.target) for run in one.runs]
            cells.append(_span([event.workers for event in met if event is not None]))
        cells.append(_span([events[-1].workers for events in judged if events]))
        full, total = _full(one)
        labels = [choice.label for choice in one.point.choices.values()]
        rows.append([*labels, *cells, f"{full:,} of {total:,}"])
    caption = "Workers at work when the weights were read that were judged: before training, at the first losses, and in how many of all evaluations all of them were."
    return TableSection(heads, rows, caption)


def active(of: StudyFigures) -> str:
    """The table of workers in a sentence."""
    counts = {one.point.title: _full(one) for one in of.points if any(_asked(run) > 1 for run in one.runs)}
    known = {title: (full, total) for title, (full, total) in counts.items() if total}
    if not known:
        return ""
    short = [f"{title} ({full:,} of {total:,})" for title, (full, total) in known.items() if full < total]
    if not short:
        return "All workers of a run were at work at each of its evaluations."
    more = f"; and {len(short) - NAMED} more" if len(short) > NAMED else ""
    return f"Not all workers were at work at every evaluation. All were, at: {'; '.join(short[:NAMED])}{more}."


def all_at_work(of: StudyFigures) -> bool:
    """Whether all workers were present at every evaluation of every run."""
    return all(full == total for full, total in map(_full, of.points))


def _full(one: PointFigures) -> tuple[int, int]:
    """Evaluations with all workers, without the first and the last."""
    found = [(event.workers, _asked(run)) for run in one.runs for event in _judged(run)[1:-1]]
    return sum(there >= asked for there, asked in found), len(found)


def _judged(run: RunFigures) -> list[Evaluated]:
    return [event for event in run.result.events if isinstance(event, Evaluated)]


def _asked(run: RunFigures) -> int:
    job = run.result.run.job
    return job.workers if job.has_workers else 1


def _span(values: Sequence[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} .. {high}"

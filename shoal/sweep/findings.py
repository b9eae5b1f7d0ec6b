"""What is seen, in words, from the figures alone: where the best is, what the ends cost, what was never reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.events import counted
from shoal.sweep.figures import (
    PointFigures,
    RunFigures,
    Spread,
    StudyFigures,
)
from shoal.sweep.grid import Axis
from shoal.sweep.lines import (
    PlotLine,
    at,
    lines_of,
    measure,
    x_axis,
)
from shoal.sweep.totals import accuracies, apart, same_rows
from shoal.sweep.worker_counts import active
from shoal.views import format

QUIET = 0.05  # of a run's cores: so much may be taken by others unsaid
NAMED = 6  # points in a sentence before it says how many more


def paragraphs(of: StudyFigures) -> list[str]:
    """What can be said; nothing that the figures do not say."""
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
    middle, low, high = (seconds(one) for one in (spread.median, spread.low, spread.high))
    return f"{middle} s" if low == high else f"{middle} s ({low} to {high})"


def seconds(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def share(value: float) -> str:
    return f"{100 * value:.2g}%" if value < 0.1 else f"{100 * value:.0f}%"


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


def _best(of: StudyFigures) -> str:
    best = of.best
    if best is None:
        return ""
    timed = best.time is not None
    spread = best.time if timed else best.last_loss
    assert spread is not None
    what = "Soonest at the target" if timed else "Lowest median test loss"
    text = f"{what} ({_target(of)}): " if timed else f"{what}: "
    text += f"{best.point.title}, {value(spread, timed)}"
    if not timed and of.has_target:
        text += "; no point reached the target with all its seeds"
    edges = []
    for axis in of.sweep.study.axes if not best.point.serial else of.sweep.study.serial_axes:
        numbers = sorted(choice.number for choice in axis.choices if choice.number is not None)
        mine = best.point.choices[axis.name].number
        ends_there = mine == 0 or (axis.name, mine) == ("workers", 1)  # there is nothing beyond
        if mine is not None and len(numbers) > 2 and mine in (numbers[0], numbers[-1]) and not ends_there:
            which = "lowest" if mine == numbers[0] else "highest"
            edges.append(f"{axis.short} {at(best, axis)} is the {which} that was tried")
    if edges:
        text += f". It lies at an edge ({'; '.join(edges)}), so a better one may lie beyond"
    return f"{text}."


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
        said = [one for one in (_shape(line, axis, of.has_target), _waiting(line, axis)) if one]
        if said:
            text = " ".join([said[0][:1].lower() + said[0][1:], *said[1:]])
            found.append(f"With {line.label}, {text}" if line.label else f"{text[:1].upper()}{text[1:]}")
    return found


def _shape(line: PlotLine, axis: Axis, has_target: bool) -> str:
    """Where the best is along the axis, and how much worse its ends are."""
    known = [(one, spread) for one in line.points if (spread := measure(one, has_target)) is not None]
    numeric = [(one, spread) for one, spread in known if one.point.choices[axis.name].number is not None]
    what = "time to the target" if has_target else "test loss"
    if len(numeric) < 2:
        ranked = sorted(known, key=lambda pair: pair[1].median)
        parts = [f"{at(one, axis)} {value(spread, has_target)}" for one, spread in ranked[:NAMED]]
        return f"the {what} is, best first: {'; '.join(parts)}." if len(parts) > 1 else ""
    best = min(numeric, key=lambda pair: pair[1].median)
    first, last = numeric[0], numeric[-1]
    text = f"over {axis.short} the {what} is lowest at {at(best[0], axis)}: {value(best[1], has_target)}"
    if best in (first, last):
        other = last if best is first else first
        text += f", at the {'first' if best is first else 'last'} of them; {_worse(other, best, axis, has_target)}"
    else:
        text += f", inside; {_worse(first, best, axis, has_target)}; {_worse(last, best, axis, has_target)}"
    others = [(one, spread) for one, spread in known if (one, spread) not in numeric]
    for one, spread in others:
        text += f"; {_worse((one, spread), best, axis, has_target)}"
    missing = [at(one, axis) for one in line.points if measure(one, has_target) is None]
    without = f" (no figure at {', '.join(missing)})" if missing else ""
    return f"{text}{without}."


def _worse(one: tuple[PointFigures, Spread], best: tuple[PointFigures, Spread], axis: Axis, has_target: bool) -> str:
    """How one compares with the best, and in how many seeds it is worse, if not in all."""
    text = f"{at(one[0], axis)} {'takes' if has_target else 'has'} {value(one[1], has_target)}"
    if best[1].median > 0:
        ratio = one[1].median / best[1].median
        longer = "as long" if f"{ratio:.2f}" == "1.00" else f"{ratio:.2f} times as long"
        text += f", {longer}" if has_target else f", {100 * (ratio - 1):+.2g}%"
    by_seed = {run.result.run.seed: _of(run, has_target) for run in best[0].runs}
    pairs = [(_of(run, has_target), by_seed.get(run.result.run.seed)) for run in one[0].runs]
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    worse = sum(mine > theirs for mine, theirs in known)
    return text + (f" (worse in {worse} of {len(known)} seeds)" if worse < len(known) and len(known) > 1 else "")


def _of(run: RunFigures, has_target: bool) -> float | None:
    return run.time if has_target else run.last_loss


def _waiting(line: PlotLine, axis: Axis) -> str:
    """The share of waiting, and staleness: of numbers from end to end, else of each."""
    numeric = [one for one in line.points if one.point.choices[axis.name].number is not None]
    shown = numeric if len(numeric) > 1 else line.points
    kinds: list[tuple[str, Callable[[PointFigures], Spread | None], Callable[[float], str]]] = [
        ("workers wait {} of their time", lambda one: one.waiting, share),
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


# ---------------------------------------------------------------- against one core, and what is missing


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
    """What never got there, and what failed."""
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
    """Whether the machine was quiet."""
    taken = Spread.of([one.others for one in of.sweep.results])
    if taken is None or taken.high < QUIET:
        return ""
    if taken.median < QUIET:
        return f"Others took {share(taken.high)} of a run's cores at most, {share(taken.median)} as a rule."
    return (
        f"The machine was not quiet: others took {share(taken.median)} of the cores that a run had, {share(taken.low)} to "
        f"{share(taken.high)}, so times are longer than they would be alone, and not all alike."
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

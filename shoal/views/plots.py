"""Pictures of runs: losses, time, staleness, cost, filters, delay, members, segments.

    loss(read_run(folder / "events.jsonl"), folder / "loss.png")

Losses that are not finite are not drawn, and the caption says so. Joins and leaves of nodes are
upright lines while they are few, and marks in a narrow panel below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.events import Evaluated, Progress, RunEvent, Voided, Warned
from shoal.views import axes as draw
from shoal.views import event_line, format, summary_figures
from shoal.views.axes import DASHES, INK, JOINED, LOST, PALE, SERIES, TEST, TIME, TRAIN
from shoal.views.members import ROLES, Move, kind, moves_of, role_of
from shoal.views.run_record import OF_WORKERS, RunMetrics, RunRecord, account, emulation, seconds_of

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

    from shoal.views.axes import Axes, Figure

SOLVED = ("objective", "violation")  # metrics of runs that minimise an objective
POINTS = 400  # of a curve: about two pixels each
FEW = 60  # evaluations that are drawn as marks
TICKS = 0.05  # of the width, for a label
UNITS = (  # up to so many seconds, the unit's name, its length in seconds
    (1.0, "milliseconds", 0.001),
    (600.0, "seconds", 1.0),
    (4 * 3_600.0, "minutes", 60.0),
    (3 * 86_400.0, "hours", 3_600.0),
    (math.inf, "days", 86_400.0),
)
COLORS = {"compute": "#0072B2", "communicate": "#E69F00", "wait": "#D55E00", "idle": "#AAAAAA", "evaluate": "#009E73"}
BINS = 64  # of a histogram
BARS = 32  # workers or nodes in one picture

Point = tuple[float, float, float]  # x, y, weight


# ---------------------------------------------------------------- losses


def loss(events: Iterable[RunEvent], path: str | Path | None = None, title: str = "") -> Figure:
    """Losses and metrics over time and epochs, with membership changes below; saved to ``path``."""
    if path is not None:
        draw.target_of(Path(path))
    run = account(events)
    moves = moves_of(run.happened)
    unit, scale = next((unit, scale) for longest, unit, scale in UNITS if run.seconds < longest)
    metrics: dict[str, list[Point]] = {}
    for event in run.evaluations:
        for name, value in event.metrics.items():
            metrics.setdefault(name, []).extend(_finite([(seconds_of(event) / scale, value, 1.0)]))
    solved = {name: metrics.pop(name) for name in SOLVED if name in metrics}
    shares = {name: one for name, one in metrics.items() if one and all(0 <= y <= 1 for _, y, _ in one)}
    ratios = [3.0, *([1.5] if solved else []), *([1.0] if shares else [])]
    heights = [4.6 * ratio / sum(ratios) for ratio in ratios]
    figure, panels = draw.stack([*heights, *_strip_height(moves)], 1.0, width=9.0, share_x=True)
    left_out = _draw_losses(panels[0], run, scale)
    _draw_epochs(panels[0], run, scale)
    if solved:
        _draw_solved(panels[1], solved)
    if shares:
        axes = panels[len(ratios) - 1]
        for (name, points), color in zip(shares.items(), SERIES[2:], strict=False):
            x, y, _ = zip(*points, strict=True)
            axes.plot(x, y, color=color, linewidth=1.2, marker=".", label=format.clean(name))
        draw.legend(axes, loc="lower right", ncols=len(shares))
        axes.margins(y=0.15)
    end = run.seconds / scale or 1.0
    _draw_moves(panels, moves, end, scale)
    panels[-1].set(xlabel=f"{unit} since training began", xlim=(-0.012 * end, 1.012 * end))
    headline = title or (" · ".join(event_line.what(run.started)) if run.started else "")
    draw.headline(figure, headline, _caption(run, left_out))
    if path is not None:
        draw.save(figure, path)
    return figure


def losses(runs: Sequence[RunRecord]) -> Figure:
    """One run: train and test loss over time. Several: their test losses over time and epochs."""
    if len(runs) == 1:
        run = runs[0].run
        moves = moves_of(run.happened)
        figure, panels = draw.stack([3.4, *_strip_height(moves)], 0.3, share_x=True)
        _draw_losses(panels[0], run)
        _draw_moves(panels, moves, run.seconds or 1.0)
        panels[-1].set_xlabel(TIME)
        return figure
    figure, panels = draw.stack([3.1, 3.1])
    shades = draw.colors(len(runs))
    for number, one in enumerate(runs):
        judged = one.run.finite
        for axes, x in zip(panels, ([seconds_of(e) for e in judged], [e.passes for e in judged]), strict=True):
            _draw_tests(axes, x, judged, shades[number], format.clean(one.name), DASHES[number % len(DASHES)])
    drawn = [event.test_loss for one in runs for event in one.run.finite]
    for axes, title, below in (
        (panels[0], "Test loss over time", TIME),
        (panels[1], "Test loss over epochs: what each row was worth", "epochs"),
    ):
        draw.titled(axes, title)
        _finish(axes, drawn)
        axes.set_xlabel(below)
    return figure


def _draw_losses(axes: Axes, run: RunMetrics, scale: float = 1.0) -> int:
    """Train and test loss, the best, and the spread over workers; returns how many are left out."""
    reported, judged = run.finite, [_train(events) for events in (run.progress, run.evaluations)]
    told = judged[1] if len(_finite(judged[0])) < 2 and len(_finite(judged[1])) > len(_finite(judged[0])) else judged[0]
    x, y = thinned(_finite(told))
    if x:
        alone = "o" if len(x) == 1 else None
        axes.plot([at / scale for at in x], y, color=TRAIN, linewidth=1.4, marker=alone, label="train")
    nan, found = math.nan, [(seconds_of(event) / scale, event.spread) for event in reported]
    each = [(at, spread.get("best", nan), spread.get("worst", nan)) for at, spread in found]
    each = [one for one in each if all(map(math.isfinite, one))]
    label = "test, of the mean of all models" if each else "test"
    drawn = [*y, *_draw_tests(axes, [seconds_of(event) / scale for event in reported], reported, TEST, label)]
    if run.best is not None:
        label = f"best test loss {format.loss(run.best.test_loss)} at epoch {format.epochs(run.best.passes)}"
        at = ([seconds_of(run.best) / scale], [run.best.test_loss])
        axes.plot(*at, "*", color=TEST, markersize=15, markeredgecolor="white", zorder=5, label=label)
    if each:
        when, best, worst = zip(*each, strict=True)
        label = "each worker's own, best to worst"
        axes.fill_between(when, best, worst, color=TEST, alpha=0.18, linewidth=0, label=label)
        drawn += [*best, *worst]
    _finish(axes, drawn)
    return len(told) - len(_finite(told)) + len(run.evaluations) - len(reported)


def _train(events: Sequence[Progress | Evaluated]) -> list[tuple[float, float | None, float]]:
    before = [0, *(event.examples for event in events)]
    return [
        (event.seconds, event.train_loss, max(1.0, event.examples - last))
        for event, last in zip(events, before, strict=False)
        if event.train_loss is not None
    ]


def _finite(points: Iterable[tuple[float, float | None, float]]) -> list[Point]:
    return [(x, y, weight) for x, y, weight in points if y is not None and math.isfinite(y)]


def thinned(points: Sequence[Point], most: int = POINTS) -> tuple[list[float], list[float]]:
    """At most so many points: neighbours become their mean, weighted by their rows."""
    if len(points) <= most:
        return [x for x, _, _ in points], [y for _, y, _ in points]
    import numpy as np

    x, y, weight = np.array(points).T
    starts = np.unique(np.linspace(0, len(points), most, endpoint=False).astype(int))
    total = np.add.reduceat(weight, starts)
    x, y = (np.add.reduceat(one * weight, starts) / total for one in (x, y))
    return x.tolist(), y.tolist()


def _draw_tests(
    axes: Axes, x: Sequence[float], judged: Sequence[Evaluated], color: str, label: str, dashes: str = "-"
) -> list[float]:
    at, values = thinned([(one, event.test_loss, 1.0) for one, event in zip(x, judged, strict=True)])
    if at:
        curve(axes, at, values, color, label, dashes)
    return values


def curve(axes: Axes, x: Sequence[float], y: Sequence[float], color: str, label: str, dashes: str = "-") -> None:
    (line,) = axes.plot(x, y, dashes, color=color, label=label, marker="o" if len(x) <= FEW else None)
    line.set(linewidth=1.4, markersize=5, markeredgecolor="white", markeredgewidth=0.6)


def _finish(axes: Axes, drawn: Sequence[float]) -> None:
    if drawn:
        draw.log_if_steep(axes.yaxis, drawn)
        draw.legend(axes, loc="upper right")
    else:
        draw.nothing(axes, "no loss is recorded yet")
    axes.set_ylabel("loss")
    draw.tidy(axes)


def _caption(run: RunMetrics, left_out: int) -> str:
    said = []
    if s := run.started:
        rows = f"{s.rows:,} rows to train on, {s.test_rows:,} to test, {s.features:,} features."
        crew = f"{run.attendance.crew()}{event_line.on_cores(s)}, batches of {s.batch:,}, seed {s.seed}."
        said.append(f"{format.clean(s.data)}: {rows} {format.clean(s.model)}, {format.clean(s.strategy)}, {crew}")
        said += [emulation(s.emulated)] if s.emulated else []
    told: list[Progress | Evaluated] = [*run.progress[-1:], *run.evaluations[-1:]]
    epochs = format.epochs(max((event.passes for event in told), default=0.0))
    far = f"{epochs} {'epoch' if epochs == '1' else 'epochs'}, {run.examples:,} rows"
    lasted = format.elapsed(run.seconds)
    if run.stopped:
        said.append(f"Stopped after {lasted} ({far}): {format.clean(run.stopped.why)}.")
    else:
        said.append(f"No end is recorded after {lasted} ({far}): it goes on, or was cut short.")
    if left_out:
        said.append(f"Left out, not being finite: {left_out:,} {'loss' if left_out == 1 else 'losses'}.")
    if voided := sum(isinstance(event, Voided) for event in run.happened):
        said.append(f"{format.many(voided, 'slot')} void.")
    if warned := [event for event in run.happened if isinstance(event, Warned)]:
        said.append(f"{event_line.summary(warned).capitalize()}.")
    return " ".join(said)


def _draw_epochs(axes: Axes, run: RunMetrics, scale: float) -> None:
    events: list[Progress | Evaluated] = sorted([*run.progress, *run.evaluations], key=lambda event: event.seconds)
    ticks = epoch_ticks([(event.seconds, event.passes) for event in events])
    if len(ticks) < 2:
        return
    top = axes.secondary_xaxis("top")
    top.set_xticks([seconds / scale for seconds, _ in ticks], [f"{epochs:g}" for _, epochs in ticks])
    top.set_xlabel("epochs")
    top.tick_params(colors=INK, labelsize=8)
    top.spines["top"].set_color(PALE)


def epoch_ticks(far: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """When round numbers of epochs were first reached: (seconds, epochs), if labels have room."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    seconds, epochs = np.array([(0.0, 0.0), *(point for point in far if math.isfinite(point[1]))]).T
    reached = np.maximum.accumulate(epochs)
    most = reached[-1]
    marks = MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(0.0, most) if most > 0 else []
    found: list[tuple[float, float]] = []
    for mark in reversed([one for one in marks if one <= most * (1 + 1e-9)]):
        at = float(np.interp(mark - 1e-12 * most, reached, seconds))  # just before: the first time
        if not found or found[-1][0] - at >= 0.999 * TICKS * found[0][0]:
            found.append((at, float(mark)))
    return found[::-1]


def _draw_solved(axes: Axes, solved: dict[str, list[Point]]) -> None:
    for (name, found), color in zip(solved.items(), SERIES[2:], strict=False):
        points, label = [(x, y) for x, y, _ in found], "violation, in units of l1"
        if name == "objective":
            lowest = min(y for _, y in points)
            points = [(x, (y - lowest) / (abs(lowest) or 1.0)) for x, y in points]
            label = "objective above its lowest, of that"
        points = [(x, y) for x, y in points if y > 0]
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, linewidth=1.2, marker=".", label=label)
    axes.set_yscale("log")
    draw.legend(axes, loc="lower left", fontsize=8)  # both should fall


# ---------------------------------------------------------------- other figures of a report


def shares(rows: Sequence[tuple[str, dict[str, float]]]) -> Figure:
    figure, (axes,) = draw.stack([0.9 + 0.3 * len(rows[:BARS])])
    for row, (_, one) in enumerate(rows[:BARS]):
        left = 0.0
        for what in OF_WORKERS:
            share = one.get(what, 0.0)
            axes.barh(row, share, 0.72, left=left, color=COLORS[what], label=what if row == 0 else None)
            if share >= 0.06:
                color = "#111111" if what in ("idle", "communicate") else "white"
                axes.text(left + share / 2, row, f"{share:.0%}", ha="center", va="center", fontsize=8.5, color=color)
            left += share
    draw.row_names(axes, [name for name, _ in rows[:BARS]])
    axes.set_xlim(0, 1)
    draw.percents(axes.xaxis)
    draw.tidy(axes, grid="")
    draw.legend(figure, loc="outside upper left", ncols=4)
    return figure


def staleness(runs: Sequence[RunRecord]) -> Figure:
    """A histogram of staleness in percent; a panel for each run, on one scale."""
    told = [(one, stale) for one in runs if (stale := one.staleness) is not None]
    most = max(len(counts) for _, (counts, *_) in told)
    width = -(-most // BINS)
    figure, panels = draw.stack([1.7] * len(told), 0.6, share_x=True)
    for axes, (one, (counts, mean, p95, highest)) in zip(panels, told, strict=True):
        bars = [sum(counts[at : at + width]) / sum(counts) for at in range(0, len(counts), width)]
        axes.bar([at * width + (width - 1) / 2 for at in range(len(bars))], bars, 0.86 * width, color=SERIES[0])
        axes.axvline(mean, color=SERIES[1], linewidth=1.4, label=f"mean {mean:.3g}")
        axes.axvline(p95, color=SERIES[3], linewidth=1.4, linestyle="--", label=f"95% are {p95:,} or less")
        axes.plot([highest], [0], "v", color=INK, label=f"max {format.most_stale(highest)}", clip_on=False)
        draw.percents(axes.yaxis)
        axes.set_ylabel("pushes")
        draw.legend(axes, loc="best")
        draw.tidy(axes, grid="y")
        if len(runs) > 1:
            draw.titled(axes, one.name)
    each = "" if width == 1 else f" ({width} to a bar)"
    panels[-1].set_xlabel(f"other pushes between reading weights and pushing{each}")
    panels[-1].set_xlim(-0.6 * width, max(most, 4) - 0.4)
    return figure


def costs(runs: Sequence[RunRecord]) -> Figure:
    shown = runs[:BARS]
    figure, (axes,) = draw.stack([0.9 + 0.5 * len(shown)])
    for shift, color, label, of in (
        (-0.19, SERIES[0], "seconds", [one.lasted for one in shown]),
        (0.19, SERIES[1], "CPU seconds", [one.cpu or 0.0 for one in shown]),
    ):
        bars = axes.barh([row + shift for row in range(len(shown))], of, 0.36, color=color, label=label)
        axes.bar_label(bars, [format.exact_seconds(value) for value in of], padding=3)
    axes.margins(x=0.12)
    draw.row_names(axes, [one.name for one in shown])
    axes.set_xlabel("seconds")
    draw.numbers(axes.xaxis)
    draw.tidy(axes, grid="x")
    draw.legend(figure, loc="outside upper left", ncols=2)
    return figure


def filtered(told: Sequence[tuple[str, dict[str, Any]]]) -> Figure:
    ways = [
        (name, way, summary_figures.stages(found, way))
        for name, found in told[:FEW]
        for way in summary_figures.WAYS
        if found["plain"].get(way) and found["sent"].get(way)
    ]
    figure, panels = draw.stack([0.75 + 0.3 * len(bars) for _, _, bars in ways], 0.5)
    for axes, (name, way, bars) in zip(panels, ways, strict=True):
        for row, (before, after) in enumerate(bars.values()):
            color = SERIES[1 if row == len(bars) - 1 else 0]
            axes.barh(row, before, 0.7, color=PALE)
            axes.barh(row, after, 0.7, color=color)
            times = f", {before / after:,.1f} times fewer" if after else ""
            place = (max(before, after), row)
            text = axes.annotate(f"{after / 1e6:,.2f} of {before / 1e6:,.2f} MB{times}", place, (6, 0))
            text.set(anncoords="offset points", va="center", fontsize=8.5)
        draw.row_names(axes, list(bars))
        axes.set_xlim(0, 1.75 * max(map(max, bars.values())))  # room for the text
        axes.xaxis.set_major_formatter(lambda size, _: f"{size / 1e6:,.3g} MB")
        axes.locator_params(axis="x", nbins=6)
        draw.tidy(axes, grid="x")
        draw.titled(axes, f"{format.clean(name) + ', ' if len(told) > 1 else ''}{way.replace('_', ' ')}")
    return figure


def delays(run: RunMetrics) -> Figure:
    from shoal.schedule.stragglers import MOST_WAITING

    figure, panels = draw.stack([1.6, 1.6], share_x=True)
    upper, lower = panels
    at = [event.seconds for event in run.delays]
    chosen = [event.max_delay for event in run.delays]
    upper.step([*at, run.seconds], [*chosen, chosen[-1]], where="post", color=SERIES[0], linewidth=1.6)
    upper.set_ylabel("max_delay")
    lower.plot(at, [event.waiting for event in run.delays], "o-", color=SERIES[1], linewidth=1)
    draw.reference(lower, MOST_WAITING, f"{MOST_WAITING:.0%}: the delay is raised above this")
    draw.percents(lower.yaxis)
    lower.set(ylabel="waiting", xlabel=TIME)
    for axes in panels:
        axes.set_ylim(bottom=0)
        draw.tidy(axes)
    return figure


# ---------------------------------------------------------------- marks of joins, leaves and losses


UPRIGHT = 12  # moves that are upright lines; more would hide the curves
LETTERS = 15.0  # of a name to an inch
SHIFT = 0.13  # of a row
NEAR = 2.0  # characters: marks that are nearer share one name

_SHAPES: dict[str, tuple[str, str, Literal["-", "--", "-.", ":"], str]] = {
    "joined": ("^", JOINED, ":", "joined"),
    "left": ("v", INK, "-.", "left in order"),
    "lost": ("X", LOST, "--", "lost"),
}


def _strip_rows(moves: Sequence[Move]) -> list[str]:
    return [role for role in ROLES if any(role_of(event) == role for event in moves)]


def _strip_height(moves: Sequence[Move]) -> list[float]:
    return [0.45 + 0.3 * len(_strip_rows(moves))] if moves else []


def _draw_moves(panels: Sequence[Axes], moves: Sequence[Move], end: float, scale: float = 1.0) -> None:
    """Upright lines in the panels above, and marks in the last one."""
    for axes in panels[:-1] if moves else panels:
        upright(axes, moves, scale)
        draw.tidy(axes)
    if moves:
        strip(panels[-1], moves, end, scale)


def upright(axes: Axes, moves: Sequence[Move], scale: float = 1.0) -> None:
    for event in moves if len(moves) <= UPRIGHT else ():
        _, color, dashes, _ = _SHAPES[kind(event)]
        axes.axvline(event.seconds / scale, color=color, linestyle=dashes, linewidth=0.9, zorder=1)


def strip(axes: Axes, moves: Sequence[Move], end: float, scale: float = 1.0) -> None:
    """The narrow panel of marks up to ``end``, in the units of its axis."""
    rows = _strip_rows(moves)
    inches = axes.figure.get_figwidth() * 0.85  # type: ignore[union-attr]  # names and edges off
    letter = end / (inches * LETTERS)
    for row, role in enumerate(rows):
        mine = sorted((event for event in moves if role_of(event) == role), key=lambda event: event.seconds)
        for event in mine:
            _mark(axes, event.seconds / scale, row, kind(event))
        _draw_names(axes, row, [(event.seconds / scale, event.name) for event in mine], end, letter)
    draw.span_rows(axes, [f"{role}s" for role in rows], size=8)
    axes.set_ylim(len(rows) - 0.6, -0.8)
    handles = _handles(moves, lines=True)
    options = {"loc": "lower left", "bbox_to_anchor": (0.0, 0.95), "borderaxespad": 0.0, "handlelength": 2.4}
    draw.legend(axes, handles, ncols=len(handles), frameon=False, fontsize=8, **options)


def _shown(what: str) -> dict[str, Any]:
    shape, color, _, _ = _SHAPES[what]
    inside = "white" if what == "left" else color
    return {"marker": shape, "color": color, "markerfacecolor": inside, "markersize": 6, "zorder": 3}


def _mark(axes: Axes, at: float, row: int, what: str) -> None:
    """A mark, shifted so that a quick return does not hide the loss."""
    axes.plot([at], [row + (SHIFT if what == "joined" else -SHIFT)], linestyle="none", **_shown(what))


def _handles(moves: Sequence[Move], lines: bool = False, marks: bool = True) -> list[Line2D]:
    from matplotlib.lines import Line2D

    found = []
    for what, (_, _, dashes, said) in _SHAPES.items():
        if any(kind(event) == what for event in moves):
            one = Line2D([], [], linestyle=dashes if lines else "none", linewidth=0.9, label=said, **_shown(what))
            one.set(**({} if marks else {"marker": "", "label": f"one {said}"}))
            found.append(one)
    return found


def _draw_names(axes: Axes, row: int, mine: Sequence[tuple[float, str]], end: float, letter: float) -> None:
    groups: list[list[tuple[float, str]]] = []
    for event in mine:
        if groups and event[0] - groups[-1][0][0] < NEAR * letter:
            groups[-1].append(event)
        else:
            groups.append([event])
    taken, gap = -letter, 1.2 * letter
    after = [*(group[0][0] for group in groups[1:]), end + letter]
    for group, until in zip(groups, after, strict=True):
        (at, name), (last, _) = group[0], group[-1]
        others = len({name for _, name in group}) - 1
        said = format.clean(name)[:32] + (f" +{others:,}" if others else "")
        wide = len(said) * letter
        fits_right, fits_left = last + gap + wide <= until, at - gap - wide >= taken
        if fits_right or fits_left:
            where, side = (last + gap, "left") if fits_right else (at - gap, "right")
            text = axes.text(where, row, said, ha=side, va="center", fontsize=7.5, color=INK, zorder=4)
            text.set_parse_math(False)
        taken = last + gap + wide if fits_right else last + letter


# ---------------------------------------------------------------- members and segments


ROLE_COLORS = {"server": "#E69F00", "worker": "#0072B2"}
SHOWN = len(SERIES)  # servers with a band of their own


def members(run: RunMetrics) -> Figure:
    figure, (axes,) = draw.stack([2.4])
    told: list[Progress | Evaluated] = sorted([*run.progress, *run.evaluations], key=lambda event: event.seconds)
    axes.step([event.seconds for event in told], [event.workers for event in told], where="post", color=SERIES[0])
    dots = [(seconds_of(event), event.workers) for event in run.evaluations]
    if dots:
        axes.plot(*zip(*dots, strict=True), "o", color=SERIES[1], label="at an evaluation", clip_on=False)
    most = max([1, *(event.workers for event in told)])
    axes.set(ylim=(0, most * 1.15), ylabel="workers", xlabel=TIME)
    draw.whole_numbers(axes.yaxis)
    draw.legend(figure, loc="outside upper right")  # above: the line may be anywhere inside
    draw.tidy(axes)
    return figure


def there(run: RunMetrics) -> Figure | None:
    """A bar for the presence of every node; None if there were no joins and leaves."""
    from matplotlib.patches import Patch

    moves = moves_of(run.happened)
    if not moves:
        return None
    stays = sorted(run.attendance.stays, key=lambda stay: (ROLES.index(stay.role), format.natural(stay.name)))
    rows = [list(group) for _, group in groupby(stays, key=lambda stay: (stay.role, stay.name))]
    # Of many, those that joined or left: the others were present throughout.
    moved = [row for row in rows if any(stay.since > 0 or math.isfinite(stay.until) for stay in row)]
    rows = rows if len(rows) <= BARS else moved[:BARS]
    end = run.seconds or 1.0
    figure, (axes,) = draw.stack([0.95 + 0.22 * len(rows)])
    for row, stays in enumerate(rows):
        for stay in stays:
            until = min(stay.until, end)
            axes.barh(row, until - stay.since, 0.5, left=stay.since, color=ROLE_COLORS[stay.role], zorder=2)
            if stay.since > 0:
                _mark(axes, stay.since, row, "joined")
            if stay.how:
                _mark(axes, until, row, stay.how)
    draw.span_rows(axes, [stays[0].name for stays in rows], size=8)
    axes.set(xlim=(-0.02 * end, 1.02 * end), ylim=(len(rows) - 0.4, -0.6), xlabel=TIME)
    roles = [role for role in ROLES if any(stays[0].role == role for stays in rows)]
    handles = [*(Patch(color=ROLE_COLORS[role], label=role) for role in roles), *_handles(moves)]
    draw.legend(figure, handles, loc="outside upper left", ncols=len(handles))
    return figure


def segments(run: RunMetrics) -> Figure | None:
    """Segments and copies on each server, stacked, over time; None if they never changed."""
    if len(run.shared) < 2:
        return None
    kept = any(number for event in run.shared for number in event.copies.values())
    servers = sorted({name for event in run.shared for name in event.serves}, key=format.natural)
    figure, panels = draw.stack([1.9, 1.9] if kept else [2.3], 0.5, share_x=True)
    _draw_bands(panels[0], run, servers, [event.serves for event in run.shared])
    draw.titled(panels[0], "Segments that each server serves")
    if kept:
        _draw_bands(panels[1], run, servers, [event.copies for event in run.shared])
        draw.titled(panels[1], "Copies that it keeps of others' segments")
    moves = [event for event in moves_of(run.happened) if event.role == "server"]
    for axes in panels:
        upright(axes, moves)
        draw.tidy(axes, grid="")
        axes.set(ylabel="segments", xlim=(0, run.seconds or 1.0))
        draw.whole_numbers(axes.yaxis)
    panels[-1].set_xlabel(TIME)
    lines = _handles(moves, lines=True, marks=False) if len(moves) <= UPRIGHT else []
    draw.legend(figure, [*panels[0].get_legend_handles_labels()[0], *lines], loc="outside upper left", ncols=4)
    return figure


def _draw_bands(axes: Axes, run: RunMetrics, servers: list[str], held: list[dict[str, int]]) -> None:
    at = [*(event.seconds for event in run.shared), max(run.seconds, run.shared[-1].seconds)]
    shown = [[name] for name in servers[:SHOWN]] + ([servers[SHOWN:]] if len(servers) > SHOWN else [])
    floor = [0.0] * len(at)
    for number, names in enumerate(shown):
        heights = [float(sum(one.get(name, 0) for name in names)) for one in [*held, held[-1]]]
        top = [low + high for low, high in zip(floor, heights, strict=True)]
        said = format.clean(names[0])[:28] if len(names) == 1 else f"{len(names):,} others"
        color = SERIES[number] if len(names) == 1 else PALE
        band = axes.fill_between(at, floor, top, step="post", color=color, alpha=0.75, linewidth=0.6, label=said)
        band.set(hatch="" if len(names) == 1 else "///", edgecolor="white")
        floor = top
    axes.set_ylim(0, max([1.0, *floor]) * 1.02)
    axes.axhline(0, color=INK, linewidth=0.6)

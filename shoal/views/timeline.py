"""Gantt charts of the nodes of one run, or of several over equal time.

A row is a node; each activity has a colour and a height. Unrecorded time (``[trace] spans`` limits
spans) is hatched. At a row's end are the shares of the node's time in the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from shoal.events import Gone, Joined, Resumed, RolledBack, Saved
from shoal.nodes.time_accounting import KINDS
from shoal.views import axes as draw
from shoal.views import event_line, format
from shoal.views.axes import GRID, INK, JOINED, LOST, PALE, TIME
from shoal.views.plots import COLORS
from shoal.views.run_record import OF_WORKERS, NodeMetrics, RunMetrics, Span

if TYPE_CHECKING:
    from shoal.views.axes import Axes, Figure

HEIGHTS = {"compute": 0.84, "communicate": 0.64, "wait": 0.44, "idle": 0.2, "evaluate": 0.84}
STEPS = 12  # of the slowest worker that are shown
ROWS = 17  # of one run
BINS = 120  # of the whole run at a glance
WARM = (0.3, 0.5, 0.7, 0.15, 0.0)  # where to begin, as shares of the run

Window = tuple[float, float]


def drawn(runs: Sequence[tuple[str, RunMetrics]], window: Window | None = None) -> Figure:
    """One panel for each run; without a ``window``, some steps after warm-up."""
    from matplotlib.patches import Patch

    windows = [window] * len(runs) if window else default_windows([run for _, run in runs])
    shown = [rows(run) for _, run in runs]
    figure, panels = draw.stack([0.75 + 0.24 * max(1, len(nodes)) for nodes in shown], 0.75)
    for panel, (title, run), nodes, part in zip(panels, runs, shown, windows, strict=True):
        _draw_panel(panel, run, nodes, part)
        hidden = len(run.nodes) - len(nodes)
        said = format.clean(title) + (" (emulated compute)" if run.started and run.started.emulated else "")
        draw.titled(panel, said + (f", {format.many(hidden, 'more node')} not shown" if hidden > 0 else ""))
    panels[-1].set_xlabel(TIME)
    known = [Patch(color=COLORS[kind], label=kind) for kind in KINDS]
    known.append(Patch(facecolor="none", edgecolor=GRID, hatch="////", label="not recorded"))
    options = {"handlelength": 1.3, "columnspacing": 1.3}
    draw.legend(figure, known, loc="outside upper left", ncols=6, fontsize=8.5, **options)
    figure.draw_without_rendering()  # laid out twice: the table at the side needs it
    return figure


def rows(run: RunMetrics) -> list[NodeMetrics]:
    """The rows: all nodes, or of many the first, the slowest and the evaluator."""
    nodes = list(run.nodes.values())
    if len(nodes) <= ROWS:
        return nodes
    last = [node for node in nodes if node.role != "worker"][:1]
    last += [run.slowest[0]] if run.slowest and run.slowest[0] not in nodes[: ROWS - 2] else []
    return nodes[: ROWS - len(last)] + last[::-1]


def whole(runs: Sequence[tuple[str, RunMetrics]], windows: Sequence[Window]) -> Figure | None:
    shown = [
        (title, run, part, *found)
        for (title, run), part in zip(runs, windows, strict=True)
        if (found := _shares_over_time(run)) is not None
    ]
    if not shown:
        return None
    figure, panels = draw.stack([1.15] * len(shown), 0.75)
    for panel, (title, run, part, edges, shares) in zip(panels, shown, strict=True):
        areas = panel.stackplot(edges, shares, step="post", colors=[COLORS[kind] for kind in OF_WORKERS], linewidth=0)
        for area, kind in zip(areas, OF_WORKERS, strict=True):
            area.set_label(kind)
        if part[1] - part[0] < 0.99 * run.seconds:
            panel.axvspan(*part, facecolor="none", edgecolor=INK, linewidth=1.2)
            text = panel.annotate("shown below", (part[0], 1.0), (0, 2), textcoords="offset points")
            text.set(fontsize=8, color=INK, ha="left" if part[0] < 0.7 * run.seconds else "right", va="bottom")
        panel.set(xlim=(0, run.seconds or 1.0), ylim=(0, 1))
        draw.percents(panel.yaxis)
        draw.tidy(panel, grid="")
        if len(shown) > 1:
            draw.titled(panel, title)
    panels[-1].set_xlabel(TIME)
    draw.legend(figure, loc="outside upper left", ncols=4)
    return figure


def _shares_over_time(run: RunMetrics) -> tuple[list[float], list[list[float]]] | None:
    """The edges of at most ``BINS`` intervals, and the share of each activity at each edge."""
    told = [event for event in run.progress if sum(event.spent.values()) > 0]
    if len(told) < 2 or not run.seconds:
        return None
    size = -(-len(told) // BINS)
    groups = [told[at : at + size] for at in range(0, len(told), size)]
    spent = [[sum(event.spent.get(kind, 0.0) for event in group) for kind in OF_WORKERS] for group in groups]
    shares = [[one[at] / (sum(one) or 1.0) for one in [*spent, spent[-1]]] for at in range(len(OF_WORKERS))]
    return [0.0, *(group[-1].seconds for group in groups)], shares


def default_windows(runs: Sequence[RunMetrics]) -> list[Window]:
    """Windows of equal length that show single steps of the slowest worker."""
    begins = [[start for start, _ in computations(node.spans)] for run in runs for node in run.workers]
    lengths = [STEPS * median([b - a for a, b in pairwise(starts)]) for starts in begins if len(starts) > 2]
    longest = max((run.seconds for run in runs), default=0.0) or 1.0
    length = min(max(lengths, default=longest), longest)
    return [_placed(run, length) for run in runs]


def computations(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Spans of gradient computation, without the much shorter preparation of rows."""
    found = [(start, stop) for kind, start, stop in spans if kind == "compute"]
    usual = sorted(stop - start for start, stop in found)
    return [(a, b) for a, b in found if b - a >= 0.2 * usual[int(0.9 * len(usual))]] if usual else []


def _placed(run: RunMetrics, length: float) -> Window:
    windows = [(at, at + length) for at in (share * max(0.0, run.seconds - length) for share in WARM)]
    spans = [span for node in run.workers for span in node.spans]
    known = [sum(max(0.0, min(b, end) - max(a, start)) for _, a, b in spans) for start, end in windows]
    return next(window for window, seconds in zip(windows, known, strict=True) if seconds >= 0.9 * max(known))


def _draw_panel(axes: Axes, run: RunMetrics, nodes: Sequence[NodeMetrics], part: Window) -> None:
    blank: dict[str, Any] = {"facecolor": "none", "edgecolor": PALE, "hatch": "////", "linewidth": 0.5, "zorder": 1}
    for row, node in enumerate(nodes):
        _draw_row(axes, row, node, part)
        if node.role == "worker":  # an evaluator reports all spans, and is idle in between
            stays = [(max(a, part[0]), min(b, part[1], run.seconds)) for a, b in node.here]
            bars = [(a, b - a) for a, b in stays if b > a]
            axes.broken_barh(bars, (row - 0.3, 0.6), **blank)
    if not nodes:
        draw.nothing(axes, "nothing was recorded")
    _shares(axes, run, nodes)
    _marks(axes, run, part)
    axes.set_xlim(*part)
    axes.locator_params(axis="x", nbins=6)
    draw.span_rows(axes, [node.name for node in nodes])


def _draw_row(axes: Axes, row: int, node: NodeMetrics, part: Window) -> None:
    white: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "zorder": 2}
    inside = [(kind, max(a, part[0]), min(b, part[1])) for kind, a, b in node.spans if b > part[0] and a < part[1]]
    axes.broken_barh([(a, b - a) for _, a, b in inside], (row - 0.45, 0.9), **white)
    for kind in KINDS:
        bars = [(a, b - a) for one, a, b in inside if one == kind]
        if bars:
            height = HEIGHTS[kind]
            axes.broken_barh(bars, (row - height / 2, height), facecolor=COLORS[kind], linewidth=0, zorder=3)
    # A thin line separates consecutive computations.
    begins = [a for kind, a, b in inside if kind == "compute" and b - a > (part[1] - part[0]) / 150]
    axes.vlines(begins, row - 0.43, row + 0.43, color="white", linewidth=0.7, zorder=4)


def _shares(axes: Axes, run: RunMetrics, nodes: Sequence[NodeMetrics]) -> None:
    """A small table to the right: percent of the node's time in the whole run."""
    where = axes.get_yaxis_transform()
    columns = {kind: 1.05 + 0.088 * at for at, kind in enumerate(OF_WORKERS)}
    for kind, at in columns.items():
        head = axes.text(at, -0.62, kind[:4], transform=where, color=COLORS[kind], fontsize=7, ha="center")
        head.set(weight="bold", va="bottom")
    for row, node in enumerate(nodes):
        for kind, share in node.shares.items() if node.role == "worker" else ():
            if kind in columns:
                said = "-" if not share else "<1%" if share < 0.005 else f"{share:.0%}"
                axes.text(columns[kind], row, said, transform=where, fontsize=8, ha="center", va="center", color=INK)
    # Invisible and wide: the reader's font may be wider.
    axes.text(columns["idle"], 0, "0000", transform=where, fontsize=10, ha="center", alpha=0.0)


def _marks(axes: Axes, run: RunMetrics, part: Window) -> None:
    for event in run.happened:
        if not part[0] < event.seconds < part[1]:
            continue
        color = LOST
        match event:
            case Saved(number=number):
                said, color = f"checkpoint {number:,}", INK
            case Joined():
                said, color = f"{event_line.who(event)} joined", JOINED
            case Gone():
                said = f"{event_line.who(event)} {'left' if event_line.left_in_order(event) else 'gone'}"
            case RolledBack() | Resumed():
                said = "rolled back" if isinstance(event, RolledBack) else "resumed"
            case _:
                continue
        axes.axvline(event.seconds, color=color, linewidth=1.1, linestyle="--", zorder=4)
        text = axes.text(event.seconds, -0.5, f" {said}", color=color, fontsize=8, va="top", ha="left", zorder=5)
        text.set(parse_math=False, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})


def step(run: RunMetrics) -> Figure | None:
    """Compute, push, update and pull on a real worker's row; None if no step is recorded."""
    if (found := one_step(run)) is None:
        return None
    node, inside = found
    begin, end = inside[0][1], inside[-1][2]
    figure, (axes,) = draw.stack([2.3])
    axes.set(xlim=(0, (end - begin) * 1.005), ylim=(-0.95, 1.15), yticks=[0.25], xlabel="seconds")
    for kind, a, b in inside:
        axes.broken_barh([(a - begin, b - a)], (0.0, 0.5), facecolor=COLORS[kind], linewidth=0)
    computed = inside[0][2] - begin
    talked = f"2 push … 4 pull\n{format.latency(end - begin - computed)}"
    _draw_brace(axes, 0.0, computed, f"1 compute\n{format.latency(computed)}", COLORS["compute"], -0.18)
    _draw_brace(axes, computed, end - begin, talked, COLORS["communicate"], -0.18)
    _draw_brace(axes, computed, end - begin, "3 update, on the servers, some time in here", INK, 0.68)
    axes.set_yticklabels([format.clean(node.name)[:24]], parse_math=False)
    axes.tick_params(axis="y", length=0)
    draw.tidy(axes, grid="")
    axes.spines["left"].set_visible(False)
    draw.titled(axes, f"one step of {format.clean(node.name)}, {begin:.2f} s after the beginning")
    return figure


def one_step(run: RunMetrics) -> tuple[NodeMetrics, list[Span]] | None:
    """A typical step of a worker: from one computation to the next, with a gap between."""
    for node in sorted(run.workers, key=lambda one: one.shares.get("compute", 0.0)):
        starts = computations(node.spans)
        cycles = [(a, b) for (a, _), (b, _) in pairwise(starts) if a > 0.1 * run.seconds]
        usual = median([b - a for a, b in cycles]) if cycles else 0.0
        for a, b in sorted(cycles, key=lambda one: abs(one[1] - one[0] - usual)):
            inside = [one for one in node.spans if one[1] >= a and one[2] <= b]
            whole = sum(stop - start for _, start, stop in inside)
            if len(inside) > 1 and whole > 0.98 * (b - a) and inside[0][0] == "compute":
                return node, inside
    return None


def _draw_brace(axes: Axes, left: float, right: float, said: str, color: str, at: float) -> None:
    tip, end = (0.08, axes.get_xlim()[1]) if at < 0 else (-0.08, axes.get_xlim()[1])
    axes.plot([left, left, right, right], [at + tip, at, at, at + tip], color=color, linewidth=1.2)
    side = "center" if right - left > 0.45 * end else "left" if left + right < end else "right"
    where = {"left": left, "center": (left + right) / 2, "right": right}[side]
    text = axes.text(where, at - tip, said, ha=side, va="top" if at < 0 else "bottom")
    text.set(color=INK, fontsize=9)

"""The drawing layer of all figures: sizes, colours, scales, labels, legends, files.

Reports, sweeps, chaos and benchmarks use it, so that a colour, a number and a dashed line look
the same everywhere. Text stays text in an SVG: it can be searched and read aloud. ``page`` knows
the greys below and replaces them by the reader's own, for light and dark.

Figures are made without pyplot: they share no state, and threads may draw at the same time.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import textwrap
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import Invalid
from shoal.views import format
from shoal.views.page import PictureSection

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Figure
    from matplotlib.legend import Legend

WIDTH = 6.4  # inches
INK, GRID, PALE = "#444444", "#dddddd", "#bbbbbb"
JOINED, LOST = "#007A5A", "#A0447C"
# Okabe and Ito: distinct for colour-blind readers too. Lines also differ in dashes or markers.
SERIES = ("#0072B2", "#D55E00", "#007A5A", "#A0447C", "#E69F00", "#56B4E9", "#444444", "#8C6D31")
TRAIN, TEST = SERIES[:2]
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
TIME = "seconds since training began"  # label of an axis
STEEP = 7.0  # highest over lowest value from which an axis is logarithmic
ENTRIES = 8  # of a legend
NAME = 28  # characters of a row's name
CHARACTER = 0.6  # width of one over the size of the font

_savefig_lock = threading.Lock()  # matplotlib's settings belong to all threads


def canvas(height: float, width: float = WIDTH) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Invalid("pictures need matplotlib, which is not installed: pip install 'shoal[view]'") from error
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def stack(
    heights: Sequence[float], edges: float = 0.0, width: float = WIDTH, share_x: bool = False
) -> tuple[Figure, list[Axes]]:
    """Panels above each other; heights in inches, ``edges`` is the room for legend and labels."""
    figure = canvas(sum(heights) + edges, width)
    panels = figure.subplots(len(heights), 1, squeeze=False, sharex=share_x, height_ratios=heights)
    return figure, list(panels[:, 0])


def tidy(axes: Axes, grid: Literal["x", "y", "both", ""] = "both") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(True, axis=grid, color=GRID, linewidth=0.6)


def titled(axes: Axes, text: str) -> None:
    axes.set_title(format.clean(text), loc="left", fontsize=10.5, weight="bold", color=INK, parse_math=False)


def headline(figure: Figure, text: str, below: str = "", size: float = 12) -> None:
    """A title over all panels and a caption under them, both wrapped to the figure's width."""
    for say, said, points in ((figure.suptitle, text, size), (figure.supxlabel, below, 8.0)):
        if said:
            wrapped = "\n".join(textwrap.wrap(format.clean(said), int(figure.get_figwidth() * 72 / points / CHARACTER)))
            shown = say(wrapped, x=0.01, ha="left", fontsize=points, parse_math=False)
            shown.set(**({"weight": "bold"} if say == figure.suptitle else {"color": INK}))


def row_names(axes: Axes, names: Sequence[str], size: float | None = None) -> None:
    """Names the rows of horizontal bars, the first row at the top."""
    axes.set_yticks(range(len(names)), [format.clean(name)[:NAME] for name in names], fontsize=size)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def span_rows(axes: Axes, names: Sequence[str], size: float | None = None) -> None:
    """Rows of spans along x: names, a grid, and no edge at the left."""
    row_names(axes, names, size)
    tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)


def column_names(axes: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Names places along x, rotated where they would overlap."""
    axes.set_xticks(list(places), list(names))
    room = axes.get_figure().get_figwidth() * 72 / 10 / CHARACTER  # type: ignore[union-attr]
    across = axes.get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    crowded = sum(map(len, names)) + 2 * len(names) > 0.85 * room / across
    for text in axes.get_xticklabels():
        text.set(parse_math=False, rotation=20 if crowded else 0, ha="right" if crowded else "center")
        text.set_rotation_mode("anchor" if crowded else "default")


def y_label(axes: Axes, text: str) -> None:
    spec = axes.get_subplotspec()
    rows = 1 if spec is None else spec.get_gridspec().nrows
    high = axes.get_figure().get_figheight() / rows  # type: ignore[union-attr]
    axes.set_ylabel("\n".join(textwrap.wrap(text, max(12, int(0.7 * high * 72 / 10 / CHARACTER)))))


def colors(count: int) -> list[Any]:
    """A distinct colour for each line, from ``SERIES``, or shades if these are too few."""
    if count <= len(SERIES):
        return list(SERIES[:count])
    from matplotlib import colormaps

    return [colormaps["viridis"](0.95 * number / (count - 1)) for number in range(count)]


def legend(where: Axes | Figure, handles: Sequence[Any] = (), **options: Any) -> Legend | None:
    """A legend of these handles, or of everything drawn; at most ``ENTRIES``."""
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    shown, given = list(handles), bool(handles)
    if not given:
        panels = [where] if isinstance(where, Axes) else where.axes
        found = [pair for panel in panels for pair in zip(*panel.get_legend_handles_labels(), strict=True)]
        shown = list({label: handle for handle, label in reversed(found)}.values())[::-1]
    if not shown:
        return None
    labels = [str(one.get_label()) for one in shown]
    if len(shown) > ENTRIES and not given:
        rest = len(shown) - ENTRIES + 1
        shown = [*shown[: ENTRIES - 1], Line2D([], [], linestyle="none")]
        labels = [*labels[: ENTRIES - 1], f"and {rest} more"]
    if isinstance(where, Axes):  # lines run behind it
        options = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.85} | options
    else:
        options = {"frameon": False} | options
    made = where.legend(handles=shown, labels=labels, **({"fontsize": 9} | options))
    for text in made.get_texts():
        text.set_parse_math(False)
    return made


def reference(
    axes: Axes, value: float, text: str, dashes: str = "--", side: Literal["left", "right"] = "right"
) -> None:
    """A level to compare with (a target, the serial run), named at the line itself."""
    axes.axhline(value, color=INK, linewidth=0.9, linestyle=dashes)
    place, shift = (0.995, -2) if side == "right" else (0.005, 2)
    shown = axes.annotate(
        text, (place, value), (shift, 2), xycoords=axes.get_yaxis_transform(), textcoords="offset points"
    )
    shown.set(ha=side, va="bottom", fontsize=8, color=INK, parse_math=False, annotation_clip=True)


def nothing(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)


def columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def number(value: float) -> str:
    """A number in plain notation: 1,500,000, 400,000, 0.05."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:g}"


def numbers(axis: Axis) -> None:
    """Tick labels in plain notation; on a linear axis with equal decimals."""

    def shown(value: float, _: object) -> str:
        ticks = [number(tick) for tick in axis.get_majorticklocs()] if axis.get_scale() == "linear" else []
        if abs(value) >= 1_000 or not ticks or any("e" in tick for tick in ticks):
            return number(value)
        return f"{value:.{max(len(tick.partition('.')[2]) for tick in ticks)}f}"

    axis.set_major_formatter(shown)


def percents(axis: Axis) -> None:
    axis.set_major_formatter(lambda share, _: f"{share:.0%}")


def whole_numbers(axis: Axis) -> None:
    axis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]


def is_steep(values: Iterable[float]) -> bool:
    """Whether positive values span too much for a linear axis."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) > STEEP * min(known)


def logarithmic(axis: Axis, base: int = 10) -> None:
    """Make a log axis with plain numbers: 0.5, not 5 x 10^-1."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes, name = axis.axes, axis.axis_name  # type: ignore[attr-defined]
    low, high = axis.get_data_interval()
    (axes.set_xscale if name == "x" else axes.set_yscale)("log", base=base)
    numbers(axis)
    wide = high > 50 * low > 0
    if base == 10 and not wide:
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_minor_formatter(NullFormatter())


def log_if_steep(axis: Axis, values: Iterable[float]) -> bool:
    if steep := is_steep(values):
        logarithmic(axis)
    return steep


def from_zero(axes: Axes, *others: float) -> None:
    """Set the limits from 0 to the highest drawn value, or to these values."""
    top = max([axes.dataLim.y1, *others])
    axes.set_ylim(0, 1.06 * top if math.isfinite(top) and top > 0 else 1.0)


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def pictures(name: str, draw: Callable[[], Figure | None], caption: str) -> list[PictureSection]:
    """A picture of a report; empty without data or without matplotlib."""
    figure = draw() if can_draw() else None
    return [] if figure is None else [PictureSection(name, svg(figure), caption)]


def svg(figure: Figure) -> bytes:
    import matplotlib

    sink = io.BytesIO()
    with _savefig_lock, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "shoal"}):
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    return sink.getvalue()


def png(figure: Figure) -> bytes:
    sink = io.BytesIO()
    figure.savefig(sink, format="png", dpi=110)
    return sink.getvalue()


def target_of(path: Path) -> Path:
    """Checks before the work that a picture can be written there."""
    known = sorted(canvas(1.0).canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in known:
        raise Invalid(f"{path} names no kind of picture: end it in .png, .svg or .pdf (known: {', '.join(known)})")
    if not path.parent.is_dir():
        raise Invalid(f"there is no folder {path.parent} to write {path.name} to: make it first")
    return path


def save(figure: Figure, path: str | Path) -> None:
    """Writes a temporary file and renames it: readers see the old picture or the new one."""
    target = target_of(Path(path))
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(aside, format=target.suffix.removeprefix(".").lower())
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)

"""What all pictures of a report have in common: a size that can be read on a phone, colours, and how they become files.

Text stays text in an SVG, so that it can be searched and read aloud. The greys below are known to ``page``, which gives them
the reader's own: a picture is drawn once, for light and dark.
"""

from __future__ import annotations

import importlib.util
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import Invalid
from shoal.views import format
from shoal.views.page import PictureSection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.4  # inches
INK, GRID, PALE = "#444444", "#dddddd", "#bbbbbb"
JOINED, LOST = "#007A5A", "#A0447C"
# Okabe and Ito: told apart by everybody. Curves of one picture differ in their dashes, too.
SERIES = ("#0072B2", "#D55E00", "#007A5A", "#A0447C", "#E69F00", "#56B4E9", "#444444")
DASHES = ("-", "--", "-.", ":")
# Of a legend that lines run behind.
LEGIBLE: dict[str, Any] = {"frameon": True, "facecolor": "white", "edgecolor": "none", "framealpha": 0.85}

_one_at_a_time = threading.Lock()  # matplotlib's settings belong to all threads


def canvas(height: float, width: float = WIDTH) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Invalid("pictures need matplotlib, which is not installed: pip install 'shoal[view]'") from error
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes, grid: Literal["x", "y", "both", ""] = "both") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(True, axis=grid, color=GRID, linewidth=0.6)


def titled(axes: Axes, said: str) -> None:
    axes.set_title(format.clean(said), loc="left", fontsize=10.5, weight="bold", color=INK, parse_math=False)


def svg(figure: Figure) -> bytes:
    import matplotlib

    sink = io.BytesIO()
    with _one_at_a_time, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "shoal"}):
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    return sink.getvalue()


def save(figure: Figure, path: str | Path) -> None:
    write(figure, target_of(Path(path)))


def target_of(path: Path) -> Path:
    """Where the picture goes; what cannot be is said before the work, not after it."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in known:
        raise Invalid(f"{path} names no kind of picture: end it in .png, .svg or .pdf (known: {', '.join(known)})")
    if not path.parent.is_dir():
        raise Invalid(f"there is no folder {path.parent} to write {path.name} to: make it first")
    return path


def write(figure: Figure, path: Path) -> None:
    """Aside and renamed: whoever looks sees the old picture or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(aside, format=path.suffix.removeprefix(".").lower())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def pictures(name: str, draw: Callable[[], Figure | None], caption: str) -> list[PictureSection]:
    """One, or none if there is nothing to draw, or nothing to draw it with."""
    figure = draw() if can_draw() else None
    return [] if figure is None else [PictureSection(name, svg(figure), caption)]


def clock(seconds: float) -> str:
    """A short time: 3 us, 41 ms, 2.5 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e6:,.0f} µs"

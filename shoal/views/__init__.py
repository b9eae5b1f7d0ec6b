"""Views of runs. A view reads a run's events, live or later, and little else.

Live: ``terminal`` shows a run on a ``board``, or in few calm ``lines`` where there is no terminal;
``live_state`` is their data, ``frame`` draws it. ``status`` and ``query`` show
clusters and models. ``event_line`` writes events and ``format`` figures, for all views; ``ending``
is printed at the end of a run.

A report reads runs from their folders (``run_record``): ``explain`` puts figures into words,
``plots`` and ``timeline`` into pictures on ``axes``, ``report_sections`` makes sections of both,
``page`` makes HTML or Markdown of these; ``trace`` is for other programs. Nothing heavy (rich,
matplotlib, numpy) is imported before it is needed.
"""

from __future__ import annotations

from shoal.views.lines import RunView
from shoal.views.plots import loss
from shoal.views.terminal import view

PUBLIC = (
    "axes",
    "board",
    "ending",
    "event_line",
    "format",
    "graph",
    "lines",
    "page",
    "plots",
    "query",
    "report_sections",
    "run_record",
    "split_plot",
    "status",
    "summary_figures",
    "terminal",
    "trace",
)  # for other packages; the other modules are private

__all__ = ["RunView", "loss", "view"]

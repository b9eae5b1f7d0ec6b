"""Looking at runs. A view reads a run's events, live or later, and knows nothing else of it.

``terminal`` shows a run while it goes on: a live board on a terminal, few lines anywhere else;
``status`` and ``watching`` show a cluster. ``format`` writes figures and ``event_line`` events, the
same way everywhere. ``plots`` draws the picture that every run leaves, ``axes`` is the one layer
that draws.

A report reads runs from their folders (``run_record``): ``explain`` puts figures into words,
``charts``, ``timeline`` and ``member_plots`` into pictures, ``report_sections`` makes sections of
both, ``page`` makes HTML or Markdown of these; ``trace`` is for other programs. Nothing heavy
(rich, matplotlib, numpy) is imported before it is needed.
"""

from __future__ import annotations

from shoal.views.plots import loss
from shoal.views.terminal import RunView, view

__all__ = ["RunView", "loss", "view"]

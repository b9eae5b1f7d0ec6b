"""Shows a run live on a terminal, or in a log.

    with view(epochs=10) as show:
        show.note("packing rcv1 ... 12,000 rows")
        for event in run:
            show(event)

A view may be called from any thread. It never breaks or delays the run: a closed or unread terminal
or pipe only ends the view.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from shoal.views.lines import LineView, RunView


def view(stream: TextIO | None = None, epochs: float | None = None, verbosity: int = 1) -> RunView:
    """A live view where the stream (default: standard error) is a terminal, else few lines.

    ``epochs`` is their total number, if known: events do not have it. With a ``verbosity``
    of 0 nothing is shown; with 2 or 3, lines on a terminal, too: more than a picture holds.
    """
    stream = sys.stderr if stream is None else stream
    with contextlib.suppress(AttributeError, ValueError):  # it is closed, or no file
        if verbosity == 1 and stream.isatty():
            from shoal.views.board import terminal
            from shoal.views.frame import LiveView

            if (console := terminal(stream)) is not None:
                return LiveView(stream, console, epochs)
    return LineView(stream, verbosity=verbosity)

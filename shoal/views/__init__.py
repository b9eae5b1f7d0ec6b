"""Looking at runs. A view reads a run's events, live or later, and knows nothing else of it.

``terminal`` shows a run while it goes on: a live picture on a terminal, few calm lines anywhere else. ``sofar`` is what
both know, ``frame`` (with ``braille``) and ``lines`` turn it into text, ``words`` says things the same way
everywhere. ``plots`` draws the picture that every run leaves.

A report is made of runs as their folders tell them (``told``), added up (``account``): ``explain`` and ``compare`` put figures into
words, ``charts`` and ``timeline`` into pictures (``drawing``), ``about`` makes sections of both, ``page`` makes HTML or Markdown of
these; ``trace`` is for other programs to look at. Nothing heavy (rich, matplotlib) is imported before it is needed.
"""

from __future__ import annotations

from shoal.views.plots import loss
from shoal.views.terminal import RunView, view

__all__ = ["RunView", "loss", "view"]

"""``shoal status --watch``: a live page on a terminal, lines elsewhere; until the run is over, nobody answers, or Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from shoal.errors import Unanswered
from shoal.launch.querying import is_over
from shoal.views.watching import Watching

if TYPE_CHECKING:
    from shoal.launch.looking import Looking

_EVERY = 1.0  # seconds between two looks
_GONE = 10.0  # seconds without an answer: a coordinator that is started again is back by then


def watch(looking: Looking, where: str, numbers: bool = False) -> int:
    """The exit code: 1 if nobody answers any more, and the run was not over; ``numbers``: with those of the protocol."""
    watching = Watching(where, numbers)
    with contextlib.suppress(KeyboardInterrupt), _shown(watching) as show:
        return _look_on(looking, where, watching, show)
    return 0


def _look_on(looking: Looking, where: str, watching: Watching, show: Callable[[list[str]], None]) -> int:
    after, heard, over = 0, time.monotonic(), False
    while True:
        began = time.monotonic()
        try:
            status, fed = looking.status(), looking.feed(after)
        except Unanswered:
            if over or is_over(where):
                click.echo("the run is over")
                return 0
            if time.monotonic() - heard > _GONE:
                click.echo(f"nobody answers any more for {_GONE:g} s: it has ended, or was cut off", err=True)
                return 1
            continue
        after, heard = fed.number, time.monotonic()
        show(watching.take(began, status, fed.events))
        course = status.standing.course
        over = course is not None and (course.ended or bool(course.failed))
        time.sleep(max(0.0, _EVERY - (time.monotonic() - began)))  # a page is drawn so often, not a look for an event


@contextlib.contextmanager
def _shown(watching: Watching) -> Iterator[Callable[[list[str]], None]]:
    if not sys.stdout.isatty():
        yield lambda lines: click.echo("\n".join(lines)) if lines else None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        yield lambda lines: live.update(watching.page(console.width, console.height), refresh=True)

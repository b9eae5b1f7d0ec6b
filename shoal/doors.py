"""What commands have in common, wherever they stand: how they refuse, and how they end."""

from __future__ import annotations

import signal

import click


class Wrong(click.ClickException):
    """What was asked for cannot be; the message says it all, so no usage is shown."""

    exit_code = 2


def end_when_told() -> None:
    """A scheduler, a terminal that was closed: as Ctrl-C, with an exit code that says which."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise SystemExit(128 + number)

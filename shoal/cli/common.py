"""What commands have in common, wherever they stand: how they refuse, and how they end."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

import click


class CommandError(click.ClickException):
    """What was asked for cannot be; the message says it all, so no usage is shown."""

    exit_code = 2


class SuggestingGroup(click.Group):
    """Whoever asks for a command that is not there is told which ones are like it, or all there are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            near = difflib.get_close_matches(args[0], names, n=2, cutoff=0.5)
            meant = f"is {' or '.join(near)} meant?" if near else f"there are {', '.join(names)}."
            ctx.fail(f"No such command {args[0]!r}: {meant}")
        return super().resolve_command(ctx, args)


class Seconds(click.FloatRange):
    """So many at least; and a number, which "nan" and "inf" are not: whoever waits for those waits for ever."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return found


def asks_for_keys(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that calls, or is called by, other machines: --keys and --insecure, for ``Safety.chosen``."""
    keys = click.option(
        "--keys",
        metavar="FOLDER",
        help="Of this host's keys (shoal key).  [default: that of SHOAL_KEYS, or ~/.config/shoal/keys, off this machine]",
    )
    insecure = click.option(
        "--insecure", is_flag=True, help="Off this machine without keys: anybody could do anything."
    )
    return keys(insecure(command))

"""Helpers of all commands: errors, suggestions, and options for keys."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click


def meant(word: str, names: Sequence[str], otherwise: str) -> str:
    """A "did you mean" with similar names, if there are any."""
    near = difflib.get_close_matches(word, names, n=2, cutoff=0.5)
    return f"is {' or '.join(near)} meant?" if near else otherwise


class CommandError(click.ClickException):
    """An error with a complete message: no usage is shown."""

    exit_code = 2


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn our errors into a command's: exit code 2 for Invalid, 1 for the rest."""
    from shoal.errors import Invalid, ShoalError

    try:
        yield
    except Invalid as error:
        raise CommandError(str(error)) from None
    except ShoalError as error:
        raise click.ClickException(str(error)) from None


class SuggestingGroup(click.Group):
    """A group that suggests similar commands for an unknown one, or lists all."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            every = f"there are {', '.join(names)}."
            ctx.fail(f"No such command {args[0]!r}: {meant(args[0], names, every)}")
        return super().resolve_command(ctx, args)


class Seconds(click.FloatRange):
    """A finite number of seconds: waiting for "nan" or "inf" would never end."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return found


def asks_for_keys(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --keys and --insecure (``Safety.chosen``) to a command that uses other machines."""
    keys = click.option(
        "--keys",
        metavar="FOLDER",
        help="The folder of this host's keys (shoal key).  [default: SHOAL_KEYS or ~/.config/shoal/keys, off this machine]",
    )
    insecure = click.option(
        "--insecure", is_flag=True, help="Talk to other machines without keys: anybody could do anything."
    )
    return keys(insecure(command))

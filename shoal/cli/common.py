"""What all commands share: errors, suggestions, options, and how results are printed."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.job import Job
    from shoal.run.finished import Run
    from shoal.run.folder import RunFolder
    from shoal.views.run_record import RunRecord

_ENDS = 10.0  # seconds from the end of a run's servers until its files are written
_LOOK = 0.05  # seconds between checks for them
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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


class ShoalCommand(click.Command):
    """A command that may raise any of our errors: one line is printed."""

    def invoke(self, ctx: click.Context) -> Any:
        with refusals():
            return super().invoke(ctx)


class NamelessCommand(ShoalCommand):
    """The command that a group runs if no other is named."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        assert parent is not None
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


class SuggestingGroup(click.Group):
    """A group that suggests similar commands for an unknown one, or lists all."""

    command_class = ShoalCommand

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


@contextlib.contextmanager
def on_interrupt(left: Callable[[], str], waits: str = "", word: str = "interrupted") -> Iterator[None]:
    """Add what is left, and how to go on, to an interruption; ``waits``: who waits for it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if text := left():
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(text) from None
            say(f"{word}{text}{waits}")
        raise


# ---------------------------------------------------------------- options


def command(function: Callable[..., Any]) -> click.Command:
    return click.command(cls=ShoalCommand)(function)  # a new decorator: it remembers its help


def option(*names: str, **settings: Any) -> Decorator:
    """``click.option``, whose help shows the default."""
    return click.option(*names, **{"show_default": settings.get("default", "") != "", **settings})


def options_of(*options: Decorator) -> Decorator:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def as_json(help: str = "Print it as JSON.") -> Decorator:
    return option("--json", "as_json", is_flag=True, help=help)


def at_least_one(name: str, help: str) -> Decorator:
    return option(name, type=click.IntRange(1), help=help)


def out_folder(help: str) -> Decorator:
    return option("--out", type=click.Path(file_okay=False, path_type=Path), help=help)


def out_file(help: str) -> Decorator:
    return option("--out", type=click.Path(dir_okay=False, path_type=Path), help=help)


def _parse_changes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, Any]:
    from shoal.errors import Invalid
    from shoal.settings_tree import settings_of

    try:
        return settings_of(value)
    except Invalid as error:
        raise click.BadParameter(str(error), param_hint="--set") from None


changes = option(
    "--set",
    "changes",
    metavar="A.B=C",
    multiple=True,
    callback=_parse_changes,
    help="Change any setting of a job; may be repeated. All settings: docs/reference/job-file.md.",
)
run_or_address = click.argument("where", metavar="RUN|ADDRESS")
# as in ``Safety.chosen``, for commands that use other machines
asks_for_keys = options_of(
    option(
        "--keys",
        metavar="FOLDER",
        help="The folder of this host's keys (shoal key).  [default: SHOAL_KEYS or ~/.config/shoal/keys, off this machine]",
    ),
    option("--insecure", is_flag=True, help="Talk to other machines without keys: anybody could do anything."),
)
# of ``shoal train`` and ``shoal launch coordinator``; ``settings_from`` reads them
of_a_run = options_of(
    option("--model", help="logistic, hinge, squared; a network: linear, cnn, sheet, or your own, net.py:Net."),
    at_least_one("--copies", "How many servers hold each segment of the model."),
    option("--epochs", type=float, help="How often all rows are learned from.  [default: 5]"),
    option("--seed", type=int, help="Draw the order of the rows, and made-up rows, from this seed."),
    changes,
    out_folder("Write the run to this folder.  [default: runs/...]"),
    option(
        "--verbosity",
        type=click.IntRange(0, 3),
        help="0 prints errors only, 1 how it goes, 2 also who joins, what is saved and where time goes, 3 every event.  [default: 1]",
    ),
    as_json("Print the summary as JSON."),
    asks_for_keys,
)
_SETTINGS = {  # by option
    **{name: name for name in ("model", "strategy", "workers", "servers", "copies", "seed", "verbosity")},
    **{name: f"launch.{name}" for name in ("listen", "advertise", "keys", "insecure")},
    "epochs": "stop.epochs", "test": "data.test", "on": "launch.how",
    "allow_disconnected": "strategy.allow_disconnected",
}  # fmt: skip


def settings_from(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a job that these options change; ``--set`` comes last."""
    given = {_SETTINGS[name]: value for name, value in options.items() if name in _SETTINGS}
    settings = {name: value for name, value in given.items() if value is not None and value is not False}
    if "launch.keys" in settings:
        settings["launch.keys"] = os.path.abspath(os.path.expanduser(settings["launch.keys"]))
    return {**settings, **options["changes"]}


# ---------------------------------------------------------------- runs


def no_answer(who: str, where: str) -> click.ClickException:
    """The error about a run or cluster that does not answer; ``who`` does not."""
    why = f"{who}: it has ended, or is just being started again; look again in a moment"
    more = "" if "://" in where else f"; if it was killed, go on with it: shoal train --resume {where}"
    return click.ClickException(why + more)


def job_from(data: str, settings: dict[str, Any]) -> Job:
    """The job in a file (.toml), or that trains on this data."""
    from shoal.job import Job
    from shoal.settings_tree import changed

    return Job.load(Path(data), settings) if data.endswith(".toml") else Job.of(changed({"data": data}, settings))


def new_run(job: Job, out: Path | None) -> RunFolder:
    from shoal.run.folder import RunFolder
    from shoal.run.resume import open_folder

    name = f"{Path(job.data.source).name.split('.')[0][:64]}-{job.model.name}-{job.strategy.name}"
    return open_folder(out, job) if out is not None else RunFolder.numbered(Path("runs") / name, job)


def finished_run(folder: Path, settings: dict[str, Any]) -> Run | None:
    """The run in this folder, if it is finished, which is said."""
    from shoal.run.resume import finished

    if (run := finished(folder, settings)) is not None:
        say(f"{click.format_filename(folder)} is finished: there is nothing to go on with")
    return run


def ends_soon(where: str) -> bool:
    """Whether the run has ended, as its folder says; waits until its last files are written."""
    from shoal.inspect.query import is_over

    deadline = time.monotonic() + _ENDS
    while not (over := is_over(where)) and "://" not in where and time.monotonic() < deadline:
        time.sleep(_LOOK)
    return over


# ---------------------------------------------------------------- printing


def say(text: str) -> None:
    """Print a line for people, beside the results of the command."""
    click.echo(text, err=True)


def print_json(facts: object) -> None:
    import msgspec

    # unlike json, it can write an infinite loss
    click.echo(msgspec.json.format(msgspec.json.encode(facts)))


def make_console(width: int = 120) -> Console:
    """A console as wide as the terminal; of fixed width elsewhere."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def show_run(run: Run, as_json: bool) -> None:
    """Print the figures; raises an error that names the folder if it was saved elsewhere."""
    where = click.format_filename(run.folder or "")
    if as_json:
        print_json({**run.summary, "folder": where})
    elif run.job.verbosity:
        from shoal.views.run_record import tell

        record = tell("", run.events, run.summary, run.job)
        record.folder = run.folder
        print_record(record)
    if run.rescued:
        raise click.ClickException(f"{run.rescued}: the run is in {where}: make room, and move it there")


def print_record(record: RunRecord) -> None:
    """Print lines; on a terminal they are wrapped at words."""
    from shoal.views.ending import lines

    width = shutil.get_terminal_size().columns if sys.__stdout__ is not None and sys.__stdout__.isatty() else None
    click.echo("\n".join(lines(record, width)))

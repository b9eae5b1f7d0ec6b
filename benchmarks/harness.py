"""Makes a command, a table, a JSON file and a picture of what a benchmark declares.

A benchmark is a module with settings (``FULL`` and ``QUICK``), a function that measures, columns to show, and a
``BENCH`` that names them. Everything else about the command line is here, once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from shoal.errors import Invalid, ShoalError

if TYPE_CHECKING:
    from rich.console import RenderableType

ROOT = Path(__file__).parents[1]
Say = Callable[[str], None]
Results = TypeVar("Results")


def _as_given(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Option:
    """A setting that the command line may change: ``--name``, unless it is spelled otherwise."""

    setting: str
    help: str
    type: Any = None  # as click takes it
    spelled: str = ""
    metavar: str | None = None
    is_flag: bool = False
    multiple: bool = False
    parse: Callable[[Any], Any] = _as_given

    def decorate(self, command: Callable[..., Any]) -> Callable[..., Any]:
        flag = f"--{self.spelled or self.setting.replace('_', '-')}"
        more: dict[str, Any] = {"multiple": self.multiple, "type": self.type, "metavar": self.metavar}
        return click.option(flag, self.setting, help=self.help, **({"is_flag": True} if self.is_flag else more))(
            command
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a benchmark declares. ``load`` reads what ``--json`` wrote, of several files put together."""

    help: str
    quick_help: str
    measure: Callable[[Any, Say], Any]
    table: Callable[[Any], RenderableType]
    options: Sequence[Option] = ()
    draw: Callable[[Any, Path], Any] | None = None
    load: Callable[[Sequence[Path]], Any] | None = None
    choose: Callable[..., Any] = msgspec.structs.replace  # settings, changed as the command line says


def command(name: str, module: Any) -> click.Command:
    """The command of a benchmark: a module with ``FULL`` and ``QUICK`` settings, and a ``BENCH``."""
    bench: Bench = module.BENCH

    def run(quick: bool, json_file: Path | None, **given: Any) -> None:
        picture, earlier = given.pop("picture", None), given.pop("earlier", ())
        with _errors_as_messages():
            if earlier and bench.load is not None:
                results = bench.load(earlier)
            else:
                results = bench.measure(
                    _chosen(bench, module.QUICK if quick else module.FULL, given),
                    lambda line: click.echo(line, err=True),
                )
            show(bench.table(results), results, json_file)
            if picture is not None and bench.draw is not None:
                bench.draw(results, picture)
                click.echo(f"the picture: {picture}")

    file = click.Path(dir_okay=False, path_type=Path)
    decorated: Callable[..., Any] = click.option("--json", "json_file", type=file, help="Write all figures here.")(run)
    if bench.load is not None:
        help = "Show and draw what --json wrote, of several put together, and measure nothing."
        there = click.Path(exists=True, dir_okay=False, path_type=Path)
        decorated = click.option("--from", "earlier", multiple=True, type=there, help=help)(decorated)
    if bench.draw is not None:
        decorated = click.option("--picture", type=file, help="Draw it here (.png, .svg).")(decorated)
    for option in reversed(bench.options):
        decorated = option.decorate(decorated)
    decorated = click.option("--quick", is_flag=True, help=bench.quick_help)(decorated)
    return click.command(name, help=bench.help)(decorated)


def show(shown: RenderableType, results: object, json_file: Path | None) -> None:
    """Print what was measured, and write it where it is asked for."""
    from rich.console import Console

    Console(width=None if Console().is_terminal else 140).print(shown)
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
        click.echo(f"all figures: {json_file}")


def load(path: Path, kind: type[Results]) -> Results:
    """What an earlier run wrote with ``--json``, here or on another machine."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Invalid(f"{path} is not what this benchmark wrote with --json ({error}): measure again") from None


def numbers(text: str) -> tuple[int, ...]:
    """``1,2,4``."""
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise Invalid(f"{text!r}: give whole numbers with commas between them, such as 1,2,4") from None


def names(text: str) -> tuple[str, ...]:
    """``a,b``."""
    return tuple(one.strip() for one in text.split(","))


def program(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment by which a module of ours runs as a program of its own, from any folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return [sys.executable, "-m", module, *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _chosen(bench: Bench, settings: Any, given: Mapping[str, Any]) -> Any:
    changes = {}
    for option in bench.options:
        value = given[option.setting]
        if value not in (None, (), False):
            try:
                changes[option.setting] = option.parse(value)
            except Invalid as error:
                flag = f"--{option.spelled or option.setting.replace('_', '-')}"
                raise click.BadParameter(str(error), param_hint=flag) from None
    return bench.choose(settings, **changes)


@contextlib.contextmanager
def _errors_as_messages() -> Iterator[None]:
    try:
        yield
    except (ShoalError, ImportError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'the disk'}: {error.strerror}") from None

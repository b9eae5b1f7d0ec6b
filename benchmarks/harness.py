"""Makes a command, tables, a JSON file and a picture of what a benchmark declares.

A benchmark is a module with settings (``FULL`` and ``QUICK``), a function that measures, the
columns of its table, and a ``BENCH`` that names them. What all of them need is here, once: the
machine, the report, tables, turns between contestants, and the command line.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
import msgspec

from shoal.errors import Invalid, ShoalError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.table import Table

ROOT = Path(__file__).parents[1]
Say = Callable[[str], None]
Cell = str | Callable[[Any], str]  # a format of the row, or a function of it
Columns = Sequence[tuple[str, Cell]]  # by heading; one that begins with "<" is left-aligned
S = TypeVar("S")
C = TypeVar("C")
T = TypeVar("T")


def quiet(line: str) -> None:
    """Say nothing."""


# ---------------------------------------------------------------- what is reported


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of settings, cases and results: what is written as JSON is read back as it was."""


class Machine(Record, frozen=True):
    """Where and when: enough to compare, nothing that names the machine."""

    date: str
    cores: int
    cpu: str
    python: str
    versions: dict[str, str]  # of shoal and of what it stands on
    # average of the last minute, at the end; a high one means that others computed
    load: float | None = None

    def __str__(self) -> str:
        return f"{self.cores} cores of {self.cpu}"

    def busy(self) -> str:
        """What to say of the load."""
        return "" if self.load is None else f"load average {self.load:.1f} on {self.cores} cores when it was over"


class Report(Record, Generic[S, C], frozen=True):
    """All of one run of a benchmark."""

    machine: Machine
    settings: S
    seconds: float
    cases: list[C]


def machine(*more: str) -> Machine:
    """This machine; ``more`` are packages whose versions matter too, where they are installed."""
    import zmq

    versions = {name: metadata.version(name) for name in ("shoal", "numpy", "numba", "pyzmq", "msgspec")}
    versions["libzmq"] = zmq.zmq_version()
    for name in more:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    today, load = datetime.date.today().isoformat(), round(os.getloadavg()[0], 1)
    return Machine(today, cores(), cpu(), platform.python_version(), versions, load)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def report(kind: Callable[..., T], settings: Any, cases: Iterable[Any], say: Say, columns: Columns, **more: Any) -> T:
    """Run the cases as they come, say each of them, and add the machine and the time."""
    began, found = time.perf_counter(), []
    for case in cases:
        found.append(case)
        say(line_of(columns, case))
    return kind(machine=machine(), settings=settings, seconds=time.perf_counter() - began, cases=found, **more)


# ---------------------------------------------------------------- how it is measured


def turns(names: Sequence[T], repeat: int) -> Iterator[T]:
    """A B C, B C A, ...: so that a slow second of the machine falls on all of them."""
    for turn in range(repeat):
        first = turn % len(names)
        yield from [*names[first:], *names[:first]]


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def pipelined(calls: Iterable[Any], flying: int, within: float) -> None:
    """Wait for tasks that are begun one after another, at most so many of them under way."""
    under_way: deque[Any] = deque()
    for task in calls:
        under_way.append(task)
        if len(under_way) >= flying:
            under_way.popleft().result(within)
    while under_way:
        under_way.popleft().result(within)


def program(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that run one of our modules as a program, from any folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return [sys.executable, "-m", module, *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


# ---------------------------------------------------------------- how it is shown


def sheet(
    title: str,
    columns: Columns,
    rows: Iterable[Any],
    caption: str = "",
    section: Callable[[Any], object] | None = None,
) -> Table:
    """A row of cells for each of ``rows``; a line between rows of which ``section`` differs."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, title=title, caption=caption or None)
    for heading, _ in columns:
        left = heading.startswith("<")
        shown.add_column(heading.removeprefix("<"), justify="left" if left else "right", no_wrap=True)
    last: Any = None
    for number, row in enumerate(rows):
        key = section(row) if section is not None else None
        if number and key != last:
            shown.add_section()
        shown.add_row(*cells(columns, row))
        last = key
    return shown


def cells(columns: Columns, row: Any) -> list[str]:
    return [cell.format(row) if isinstance(cell, str) else cell(row) for _, cell in columns]


def line_of(columns: Columns, row: Any) -> str:
    """A row in one line, for the progress output."""
    named = zip((heading.removeprefix("<") for heading, _ in columns), cells(columns, row), strict=True)
    return ", ".join(f"{heading} {cell}".strip() for heading, cell in named if cell)


def show(shown: RenderableType, results: object, json_file: Path | None) -> None:
    """Print what was measured, and write it where it is asked for."""
    from rich.console import Console

    Console(width=None if Console().is_terminal else 140).print(shown)
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
        click.echo(f"all figures: {json_file}")


def load(path: Path, kind: type[T]) -> T:
    """What an earlier run wrote with ``--json``, here or on another machine."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Invalid(f"{path} is not what this benchmark wrote with --json ({error}): measure again") from None


# ---------------------------------------------------------------- the command line


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

    @property
    def flag(self) -> str:
        return f"--{self.spelled or self.setting.replace('_', '-')}"

    def decorate(self, command: Callable[..., Any]) -> Callable[..., Any]:
        more: dict[str, Any] = {"multiple": self.multiple, "type": self.type, "metavar": self.metavar}
        kind = {"is_flag": True} if self.is_flag else more
        return click.option(self.flag, self.setting, help=self.help, **kind)(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a benchmark declares; ``load`` reads files that ``--json`` wrote, and joins them."""

    help: str
    quick_help: str
    measure: Callable[[Any, Say], Any]
    table: Callable[[Any], RenderableType]
    options: Sequence[Option] = ()
    picture: Callable[[Any], Figure] | None = None
    load: Callable[[Sequence[Path]], Any] | None = None
    choose: Callable[..., Any] = msgspec.structs.replace  # applies the options


def command(name: str, module: Any) -> click.Command:
    """The command of a benchmark module."""
    bench: Bench = module.BENCH

    def run(quick: bool, json_file: Path | None, **given: Any) -> None:
        drawn, earlier = given.pop("picture", None), given.pop("earlier", ())
        with _errors_as_messages():
            if earlier and bench.load is not None:
                results = bench.load(earlier)
            else:
                settings = _chosen(bench, module.QUICK if quick else module.FULL, given)
                results = bench.measure(settings, lambda line: click.echo(line, err=True))
            show(bench.table(results), results, json_file)
            if drawn is not None and bench.picture is not None:
                from shoal.views.axes import save

                save(bench.picture(results), drawn)
                click.echo(f"the picture: {drawn}")

    file = click.Path(dir_okay=False, path_type=Path)
    decorated: Callable[..., Any] = click.option("--json", "json_file", type=file, help="Write all figures here.")(run)
    if bench.load is not None:
        help = "Show and draw what --json wrote, of several put together, and measure nothing."
        there = click.Path(exists=True, dir_okay=False, path_type=Path)
        decorated = click.option("--from", "earlier", multiple=True, type=there, help=help)(decorated)
    if bench.picture is not None:
        decorated = click.option("--picture", type=file, help="Draw it here (.png, .svg).")(decorated)
    for option in reversed(bench.options):
        decorated = option.decorate(decorated)
    decorated = click.option("--quick", is_flag=True, help=bench.quick_help)(decorated)
    return click.command(name, help=bench.help)(decorated)


def numbers(text: str) -> tuple[int, ...]:
    """``1,2,4``."""
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise Invalid(f"{text!r}: give whole numbers with commas between them, such as 1,2,4") from None


def names(text: str) -> tuple[str, ...]:
    """``a,b``."""
    return tuple(one.strip() for one in text.split(","))


def _chosen(bench: Bench, settings: Any, given: Mapping[str, Any]) -> Any:
    changes = {}
    for option in bench.options:
        value = given[option.setting]
        if value is not None and value is not False and value != ():
            try:
                changes[option.setting] = option.parse(value)
            except Invalid as error:
                raise click.BadParameter(str(error), param_hint=option.flag) from None
    return bench.choose(settings, **changes)


@contextlib.contextmanager
def _errors_as_messages() -> Iterator[None]:
    try:
        yield
    except (ShoalError, ImportError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'the disk'}: {error.strerror}") from None

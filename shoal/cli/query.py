"""``shoal query RUN``: statistics of a model, during training or afterwards."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from shoal.cli.common import (
    Seconds,
    as_json,
    asks_for_keys,
    command,
    ends_soon,
    make_console,
    no_answer,
    option,
    print_json,
    run_or_address,
)
from shoal.limits import COORDINATOR
from shoal.signals import end_when_told

if TYPE_CHECKING:
    from rich.text import Text

    from shoal.inspect.query import QueriedModel
    from shoal.views.query import QuerySnapshot

_LOOKS_LOST = 3  # failures in a row until the cluster counts as gone


@command
@run_or_address
@option("--table", help="Show this table.  [default: weights, or the only one there is]")
@option("--top", type=click.IntRange(0, 1_000), default=10, help="Show so many of the largest weights.")
@option("--watch", is_flag=True, help="Look again until the run has ended.")
@option("--every", type=Seconds(0.05), default=1.0, help="Seconds between two looks.")
@option("--ask", metavar="QUESTION", help="Ask this question instead: norms, ..., or a function of your own.")
@option("--set", "settings", metavar="A=B", multiple=True, help="Set a value of that question; may be repeated.")
@option(
    "--module", "modules", multiple=True, help="Import the question from here.  [default: the modules of the run's job]"
)
@as_json("Print it as JSON; with --watch, one line for each look.")
@asks_for_keys
def query(
    where: str,
    table: str | None,
    top: int,
    watch: bool,
    every: float,
    ask: str | None,
    settings: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
    keys: str | None,
    insecure: bool,
) -> None:
    """How a model is: non-zeros, norms, how large its weights are, the largest ones.

    RUN is the folder of a run that goes on, whose servers are asked without being disturbed, or of
    one that has ended, whose model file is read; or give the address of a coordinator, or a
    model.safetensors.

    \b
    shoal query runs/clicks-logistic-async-1
    shoal query runs/clicks-logistic-async-1 --watch --top 5
    shoal query runs/clicks-logistic-async-1 --ask norms
    shoal query runs/clicks-logistic-async-1 --ask heavy --module my_questions --set above=2
    """
    from shoal.errors import Unanswered
    from shoal.inspect.query import opened
    from shoal.inspect.status import is_of_peers

    if ask is None and (settings or modules):
        raise click.UsageError("--set and --module are for --ask, which is not there")
    if ask is not None and watch:
        raise click.UsageError("--ask asks once: leave --watch away")
    given = _given(settings)
    try:
        with contextlib.closing(opened(where, table, keys, insecure)) as asked:
            if ask is not None:
                _answer(asked, where, ask, given, modules, as_json)
            elif watch and asked.live:
                end_when_told()
                _watch(asked, where, top, every, as_json)
            else:
                _print(_look(asked, where, top), as_json)
    except Unanswered as error:
        if is_of_peers(where):
            raise click.ClickException(
                f"a run of peers has no tables to query; its state: shoal status {where}"
            ) from None
        who = f"nobody answers at {where}" if error.node == COORDINATOR else f"{error.node} does not answer"
        raise no_answer(who, where) from None


def _given(settings: tuple[str, ...]) -> dict[str, float]:
    from shoal.errors import Invalid

    given = {}
    for one in settings:
        name, _, value = one.partition("=")
        try:
            given[name] = float(value)
        except ValueError:
            raise Invalid(f"--set {one}: needs a name and a number, such as --set k=5") from None
    return given


def _answer(
    asked: QueriedModel, where: str, ask: str, given: dict[str, float], modules: tuple[str, ...], as_json: bool
) -> None:
    import msgspec

    from shoal.inspect.query import modules_of
    from shoal.store.query import Found
    from shoal.user_code import import_modules

    import_modules(modules or modules_of(where))
    answer = found = asked.ask(ask, slice(None), servers=None, **given)
    if isinstance(found, Found):
        found = {"numbers": found.numbers.tolist(), "keys": found.keys.tolist(), "values": found.values.tolist()}
    told = msgspec.json.encode(found, enc_hook=str)
    if as_json:
        click.echo(msgspec.json.format(told))
        return
    plain = msgspec.json.decode(told)
    # fields that a user's query left out are not shown
    if own := isinstance(answer, Found):
        plain = {name: value for name, value in plain.items() if value}
    if own and list(plain) == ["numbers"]:
        click.echo("  ".join(f"{number:.6g}" for number in plain["numbers"]))
        return
    rows = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else [("", plain)]
    for name, value in rows:
        click.echo(f"{name}  {value}" if name != "" else value)


def _look(asked: QueriedModel, where: str, top: int) -> QuerySnapshot:
    from shoal.errors import Unanswered
    from shoal.inspect.query import is_over, opened
    from shoal.views.query import look

    try:
        return look(asked, top)
    except Unanswered:
        if not is_over(where):
            raise
    return look(opened(where), top)  # it has just ended


def _print(seen: QuerySnapshot, as_json: bool) -> None:
    from rich.console import Group

    from shoal.views.query import facts, page

    if as_json:
        print_json(facts(seen))
        return
    console = make_console()
    console.print(Group(*page(seen, console.width)), soft_wrap=False)


def _watch(asked: QueriedModel, where: str, top: int, every: float, as_json: bool) -> None:
    """Draw on a terminal; elsewhere print a line for each look."""
    import msgspec

    from shoal.views.board import Board, fit
    from shoal.views.query import QueryHistory, facts, line, page

    history, began = QueryHistory(), time.monotonic()
    shown: tuple[QuerySnapshot, str] | None = None

    def draw(width: int, height: int, plain: bool) -> list[Text]:
        return fit(page(shown[0], width - 1, history, shown[1]) if shown else [], width, height, plain)

    board = None if as_json else Board.on(sys.stdout, draw)
    with board or contextlib.nullcontext():
        for seen, note in _looks(asked, where, top, every):
            if board is not None:
                if not note and seen.live:
                    history.add(seen, time.monotonic() - began if seen.course is None else seen.course.seconds)
                shown = seen, note
                board.start()
            elif note:
                click.echo(note, err=True)
            else:
                click.echo(msgspec.json.encode(facts(seen)).decode() if as_json else line(seen))
                sys.stdout.flush()


def _looks(asked: QueriedModel, where: str, top: int, every: float) -> Iterator[tuple[QuerySnapshot, str]]:
    """Yields results, or the reason for none; the last one is of the saved model."""
    from shoal.errors import ClusterError, ShoalError
    from shoal.inspect.query import is_over, opened
    from shoal.views.query import look

    seen: QuerySnapshot | None = None
    lost = 0
    while True:
        began = time.monotonic()
        try:
            seen, lost = look(asked, top), 0
            yield seen, ""
            over = seen.course is not None and seen.course.ended
        except ShoalError as error:  # a server is being replaced, or the run has ended
            lost, over = lost + 1, lost + 1 >= _LOOKS_LOST
            if seen is None:
                raise
            if not over and not is_over(where):
                yield seen, f"no answer now: {error}"
        if over or is_over(where):
            break
        time.sleep(max(0.0, began + every - time.monotonic()))
    if not ends_soon(where):
        if lost:
            raise ClusterError(f"nobody answers at {where} any more")
        return
    with contextlib.closing(opened(where)) as left:
        yield look(left, top), ""

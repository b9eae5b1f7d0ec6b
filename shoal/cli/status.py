"""``shoal status``: shows a running cluster, once or (``--watch``) until the run ends."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.common import (
    as_json,
    asks_for_keys,
    command,
    make_console,
    no_answer,
    option,
    print_json,
    print_record,
    run_or_address,
)
from shoal.cli.join import show_peers

if TYPE_CHECKING:
    from shoal.inspect.status import StatusClient
    from shoal.views.status import WatchedState

_EVERY = 1.0  # seconds between queries
_GONE = 10.0  # seconds without an answer: enough for a restart of the coordinator


@command
@run_or_address
@option("--ring", is_flag=True, help="Draw who owns what as a ring.")
@option("--segments", is_flag=True, help="Show every segment, however many there are.")
@option("--watch", is_flag=True, help="Look again until the run is over, or Ctrl-C.")
@option("--verbosity", type=click.IntRange(1, 2), default=1, help="2 also shows the numbers of the protocol.")
@as_json()
@asks_for_keys
def status(
    where: str, ring: bool, segments: bool, watch: bool, verbosity: int, as_json: bool, keys: str | None, insecure: bool
) -> None:
    """Look at a cluster that runs: a run's folder, or the address of its coordinator; of
    peers, that of any.

    \b
    heard         when the coordinator heard of it last
    steps         that a worker has done; segments, keys/s: what a server holds, and is asked for
    primary       the server that answers for a segment; copies are kept in case it is lost
    version       how many changes are in it

    \b
    Of the protocol, with --verbosity 2:
    incarnation   a number that every node gets when it joins, never given twice: a node that comes
                  back has another
    view          the numbered list of members and segments that it knows; yellow: not the newest
    fence         how often a segment, or its copies, moved
    term          how often the coordinator was started; generation: how often all went back to a
                  checkpoint

    Of a run that has ended, its figures. Exit code 1 if nobody answers.
    """
    from shoal.errors import Invalid, Unanswered
    from shoal.inspect.query import is_over
    from shoal.inspect.status import address_of, is_of_peers, look_at, safety_for
    from shoal.views.status import facts, page

    if is_over(where):
        _show_ended(where, as_json)
        return
    address = address_of(where)
    try:
        safety = safety_for(where, keys, insecure)
        if is_of_peers(where, safety):
            if watch:
                raise Invalid("a run of peers is watched where it was begun: leave --watch away to look once")
            show_peers(where, as_json)
            return
        with contextlib.closing(look_at(address, safety)) as looking:
            found = looking.status()
            if watch:
                if as_json:
                    raise Invalid("--watch is for people, --json for programs: leave one of them away")
                sys.exit(_watch(looking, where, verbosity > 1))
    except Unanswered:
        raise no_answer(f"nobody answers at {address}", where) from None
    if as_json:
        print_json({"coordinator": address, **facts(found)})
        return
    console = make_console()
    shown = page(found, where, console.width, show_ring=ring, everything=segments, numbers=verbosity > 1)
    console.print(shown, soft_wrap=False)
    if address != where:
        click.echo(f"its coordinator: {address}")  # as other commands that take an ADDRESS


def _show_ended(where: str, as_json: bool) -> None:
    from shoal.views.run_record import read

    record = read(Path(where))
    if as_json:
        print_json({"ended": True, **record.summary})
        return
    again = f": shoal train --resume {where} continues it" if record.summary.get("failed", True) else ""
    click.echo(f"the run in {where} has ended{again}")
    print_record(record)


def _watch(looking: StatusClient, where: str, numbers: bool = False) -> int:
    """Show the cluster until it ends (1: it was lost); ``numbers``: of the protocol, too."""
    from shoal.views.status import WatchedState

    watching = WatchedState(where, numbers)
    with contextlib.suppress(KeyboardInterrupt), _shown(watching) as show:
        return _look_on(looking, where, watching, show)
    return 0


def _look_on(looking: StatusClient, where: str, watching: WatchedState, show: Callable[[list[str]], None]) -> int:
    from shoal.errors import Unanswered
    from shoal.inspect.query import is_over

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
        # drawn at this rate, not for each event
        time.sleep(max(0.0, _EVERY - (time.monotonic() - began)))


@contextlib.contextmanager
def _shown(watching: WatchedState) -> Iterator[Callable[[list[str]], None]]:
    from shoal.views.board import Board

    board = Board.on(sys.stdout, lambda width, height, plain: watching.page(width - 1, height))
    if board is None:
        yield lambda lines: click.echo("\n".join(lines)) if lines else None
        return
    with board:
        yield lambda lines: board.start()

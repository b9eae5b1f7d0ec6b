"""``shoal sweep``. Heavy modules are imported only when a sweep begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.common import as_json, command, make_console, on_interrupt, option, out_folder, print_json, say
from shoal.signals import end_when_told

if TYPE_CHECKING:
    from shoal.sweep.disk import Sweep
    from shoal.sweep.study import Study


@command
@click.argument("study", metavar="STUDY.toml", type=click.Path(dir_okay=False, path_type=Path))
@out_folder("Write the sweep to this folder.  [default: sweeps/NAME]")
@option("--dry-run", is_flag=True, help="Say which runs there are and which are left, and run nothing.")
@as_json("Print the figures as JSON.")
def sweep(study: Path, out: Path | None, dry_run: bool, as_json: bool) -> None:
    """Run every combination of settings in STUDY.toml with several seeds, and hold them
    against each other.

    The same command again goes on where it was stopped: no finished run is run again. Exit code 1
    if a run failed.

    \b
    shoal sweep studies/delay.toml --dry-run
    shoal sweep studies/delay.toml
    """
    from shoal.sweep.study import Study

    try:
        asked = Study.load(study)
        folder = out if out is not None else Path("sweeps") / asked.name
        if dry_run:
            _list(asked, folder, as_json)
            return
        found = _run(asked, folder, study, out)
        failed = _show(found, as_json)
    except BrokenPipeError:
        raise  # the reader has closed the pipe
    except OSError as error:
        where = error.filename or "the sweep's folder"
        why = f"cannot read or write {where}: {error.strerror}: make room, or move it away, and start the sweep again"
        raise click.ClickException(why) from None
    sys.exit(1 if failed else 0)


def _run(asked: Study, folder: Path, file: Path, out: Path | None) -> Sweep:
    from shoal.sweep.schedule import run_left, stands
    from shoal.sweep.show import audience

    end_when_told()
    again = f"shoal sweep {click.format_filename(file)}{'' if out is None else f' --out {click.format_filename(out)}'}"

    def left() -> str:
        done = sum(one.is_done for one in stands(asked, folder))
        return f"; {done:,} of {len(asked.runs):,} runs are finished; go on with the others: {again}"

    with on_interrupt(left, word="terminated"), audience(asked, stands(asked, folder)) as seats:
        return run_left(asked, folder, seats)


def _list(asked: Study, folder: Path, as_json: bool) -> None:
    from shoal.sweep.disk import took
    from shoal.sweep.schedule import check_here, estimate, stands
    from shoal.views import format

    check_here(asked)
    results, beside = stands(asked, folder), len(asked.places())
    left = [one for one in results if not one.is_done]
    seconds = estimate(took(results), len(left), beside)
    if as_json:
        runs = [{"run": one.run.name, "state": one.state, "reason": one.reason} for one in results]
        print_json({"runs": runs, "left": len(left), "seconds_left": seconds})
        return
    for one in results:
        reason = f": {format.clean(one.reason)}" if one.reason else ""
        click.echo(f"  {one.state:10} {format.clean(one.run.point.title)}, seed {one.run.seed}{reason}")
    about = "" if seconds is None or not left else f", about {format.duration(seconds)}"
    at_once = f" ({beside} at a time)" if beside > 1 else ""
    click.echo(f"{len(results):,} runs, {len(left):,} left{at_once}{about}: {click.format_filename(folder)}")


def _show(found: Sweep, as_json: bool) -> bool:
    from shoal.errors import Invalid
    from shoal.sweep.report import facts, printed, write_tables
    from shoal.sweep.results import figures

    of = figures(found)
    write_tables(of, found.folder)
    if as_json:
        print_json(facts(of))
    else:
        console = make_console(140)
        console.print(printed(of, console.width))
    try:
        from shoal.sweep.plots import write_pictures

        write_pictures(of, found.folder)
    except Invalid as error:
        say(f"no pictures: {error}")
    if not as_json:
        click.echo(f"look at it: {click.format_filename(found.folder)}")
    return any(one.state == "failed" for one in found.results)

"""Prints the results of a finished run, for all commands."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shoal.run.finished import Run
    from shoal.views.run_record import RunRecord


def show_run(run: Run, as_json: bool) -> None:
    """Print the figures; raises an error that names the folder if it was saved elsewhere."""
    if as_json:
        import msgspec

        facts = {**run.summary, "folder": click.format_filename(run.folder or "")}
        # unlike json, it can write an infinite loss
        click.echo(msgspec.json.format(msgspec.json.encode(facts)))
    elif run.job.verbosity:
        from shoal.views.run_record import tell

        record = tell("", run.events, run.summary, run.job)
        record.folder = run.folder
        print_record(record)
    if run.rescued:
        where = click.format_filename(run.folder or "")
        raise click.ClickException(f"{run.rescued}: the run is in {where}: make room, and move it there")


def print_record(record: RunRecord) -> None:
    """Print lines; on a terminal they are wrapped at words."""
    from shoal.views.ending import lines

    width = shutil.get_terminal_size().columns if sys.__stdout__ is not None and sys.__stdout__.isatty() else None
    click.echo("\n".join(lines(record, width)))

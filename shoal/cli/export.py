"""``shoal export``. Heavy modules are imported only when needed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shoal.cli.common import Seconds, command, option, say
from shoal.limits import SECOND, UPLOAD_SILENCE
from shoal.signals import end_when_told


@command
@click.argument("folder", metavar="RUN|SWEEP", type=click.Path(path_type=Path))
@option(
    "--out",
    metavar="FILE.tar.gz",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The archive; one of that name is replaced.  [default: NAME.tar.gz beside the folder]",
)
@option(
    "--upload",
    metavar="URL",
    help="Send it there (HTTP PUT; an address that ends in / gets the archive's name), and print the link that comes back.",
)
@option(
    "--timeout",
    type=Seconds(0.1, 3600),
    default=UPLOAD_SILENCE / SECOND,
    help="Seconds without a sign of the other side after which sending is given up.",
)
def export(folder: Path, out: Path | None, upload: str | None, timeout: float) -> None:
    """Put a run or a sweep into one archive: weights, losses as CSV, logs, figures,
    pictures, checksums.

    \b
    shoal export runs/clicks-logistic-async-1
    shoal export sweeps/s4 --upload https://drop.example.org/

    If it cannot be sent the figures are printed, the archive stays, and the exit code is 1.
    """
    from shoal.errors import ShoalError
    from shoal.events import counted
    from shoal.inspect import export as exporting
    from shoal.inspect import upload as uploading

    end_when_told()
    if upload is not None:
        uploading.check(upload, "")  # check it before the work
    made = exporting.export(folder, out)
    shown = click.format_filename(made.path)
    for note in made.notes:
        say(f"note: {note}")
    click.echo(f"{shown}: {counted(made.files, 'file')}, {made.bytes / 1e6:,.1f} MB")
    if upload is None:
        return
    try:
        with click.progressbar(length=made.bytes, label="sending", file=sys.stderr) as bar:
            link = uploading.put(made.path, upload, timeout, lambda gone, _: bar.update(gone - bar.pos))
    except ShoalError as error:
        click.echo(made.figures.rstrip() or "there are no figures yet")
        raise click.ClickException(f"{error}; the archive is {shown}") from None
    click.echo(link)

"""``shoal launch``: a script on several workers, or a batch script that does it elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

import click

from shoal.cli.common import CommandError, refusals
from shoal.launch.batch_scripts import SCHEDULERS
from shoal.signals import end_when_told

WORKERS, SERVERS, COPIES = 2, 1, 1


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--workers", type=click.IntRange(1), help=f"How many workers run the script.  [default: {WORKERS}]")
@click.option("--servers", type=click.IntRange(1), help=f"How many servers hold the model.  [default: {SERVERS}]")
@click.option(
    "--copies", type=click.IntRange(1), help=f"How many servers hold each segment of it.  [default: {COPIES}]"
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option("--script", "scheduler", type=click.Choice(SCHEDULERS), help="Run nothing: write a batch script.")
@click.option(
    "--walltime", default="01:00:00", show_default=True, help="How long the batch job may take: hours:minutes:seconds."
)
@click.option(
    "--cores", type=click.IntRange(1), help="How many cores the batch job asks for.  [default: workers and servers]"
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the batch script to this file.")
@click.argument("script", metavar="SCRIPT|JOB.toml")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def launch(
    workers: int | None,
    servers: int | None,
    copies: int | None,
    module: bool,
    scheduler: str | None,
    walltime: str,
    cores: int | None,
    out: Path | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Start servers, and a Python script that calls shoal.torch.distribute on each of
    several workers.

    \b
    shoal launch --workers 4 --servers 2 train.py --epochs 3
    shoal launch --script slurm --walltime 02:00:00 --out job.sh --workers 4 train.py --epochs 3
    shoal launch --script oar job.toml

    A worker that dies does not stop the others; exit code 1 says at the end that one did.
    """
    if not module and not Path(script).is_file():
        raise CommandError(f"no script {script!r} here: give the path of a file, or -m and the name of a module")
    given = {"--workers": workers, "--servers": servers, "--copies": copies}
    if scheduler is not None:
        _write(scheduler, given, module, script, arguments, walltime, cores, out)
        return
    if script.endswith(".toml"):
        raise CommandError(f"{script} is a job, not a script: shoal train {script}")
    command = ["-m", script, *arguments] if module else [script, *arguments]
    _launch(workers or WORKERS, servers or SERVERS, copies or COPIES, command)


def _launch(workers: int, servers: int, copies: int, command: list[str]) -> None:
    from shoal.launch.script import ScriptLauncher
    from shoal.views.format import many

    lock = threading.Lock()

    def show(text: str, is_error: bool) -> None:
        with (
            lock,
            contextlib.suppress(OSError),
        ):  # the reader has closed the pipe (| head): the workers go on
            click.echo(text, nl=False, err=is_error)

    end_when_told()
    with refusals(), ScriptLauncher(workers, servers, copies, show) as launching:
        here = f"{many(servers, 'server')}, {many(workers, 'worker')}"
        show(f"shoal: {here}; look at them: shoal status {launching.address}\n", True)
        launching.start(command)
        ends = launching.wait()
    if failed := [str(end) for end in ends if end.code]:
        click.echo(f"shoal: {len(failed)} of {workers} workers failed: {', '.join(failed)}", err=True)
        sys.exit(1)


def _write(
    scheduler: str,
    given: dict[str, int | None],
    module: bool,
    script: str,
    arguments: tuple[str, ...],
    walltime: str,
    cores: int | None,
    out: Path | None,
) -> None:
    from shoal.errors import Invalid
    from shoal.launch.batch_scripts import batch_script, submit

    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    try:
        if script.endswith(".toml"):
            if arguments:
                raise Invalid(f"a job takes no arguments ({' '.join(arguments)}): put them into {script}")
            command = ["shoal", "train", script, *options, "--out", f"runs/{Path(script).stem}"]
            needed = _nodes_of(script, given)
        else:
            command = ["shoal", "launch", *options, *(["-m"] if module else []), script, *arguments]
            needed = (given["--workers"] or WORKERS) + (given["--servers"] or SERVERS)
        inside = sys.prefix if sys.prefix != sys.base_prefix else ""
        file = "job.sh" if out is None else str(out)
        text = batch_script(scheduler, command, cores=cores or needed, walltime=walltime, file=file, environment=inside)
    except Invalid as error:
        raise CommandError(str(error)) from None
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        with out.open("x") as stream:
            stream.write(text)
        out.chmod(0o755)  # oarsub needs it
    except FileExistsError:
        raise CommandError(f"{click.format_filename(out)} is there already: take another name") from None
    except OSError as error:
        raise CommandError(
            f"cannot write {click.format_filename(out)} ({error.strerror}): take another place"
        ) from None
    click.echo(f"submit it: {submit(scheduler, str(out))}")


def _nodes_of(script: str, given: dict[str, int | None]) -> int:
    from shoal.job import Job

    settings = {name.removeprefix("--"): value for name, value in given.items() if value is not None}
    job = Job.load(Path(script), settings)
    return job.workers + job.servers

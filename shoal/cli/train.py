"""``shoal train``: trains a model by the command line or a job file."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.background import print_patiently
from shoal.cli.common import asks_for_keys, refusals
from shoal.cli.show_run import show_run
from shoal.limits import HEAR_WITHIN, SECOND
from shoal.signals import end_when_told

if TYPE_CHECKING:
    from shoal.job import Job
    from shoal.launch import torchrun_cluster
    from shoal.run.finished import Run
    from shoal.run.folder import RunFolder
    from shoal.strategies.averaging import mpi
    from shoal.strategies.parameter_server.run import Launcher

    Head = torchrun_cluster.HeadRank | mpi.MpiHead
    Guests = tuple[str | None, str | None] | None  # other servers, and the group there


@click.command()
@click.argument("data", metavar="[DATA|JOB.toml]", required=False)
@click.option("--model", help="logistic, hinge, squared; a network: linear, cnn, sheet, or your own, net.py:Net.")
@click.option(
    "--strategy",
    help="sync, bounded, async; averaging, allreduce, hogwild; gossip, peer-to-peer; block-proximal; or serial.",
)
@click.option("--workers", type=click.IntRange(1), help="How many workers compute.")
@click.option("--servers", type=click.IntRange(1), help="How many servers hold the model.")
@click.option("--copies", type=click.IntRange(1), help="How many servers hold each segment of it.")
@click.option("--allow-disconnected", is_flag=True, help="Let gossip train on a graph in pieces, to see it fail.")
@click.option("--on", help="Run nodes as processes, threads, or mpi, which starts mpirun.  [default: processes]")
@click.option(
    "--servers-at", metavar="RUN|ADDRESS", help="Train on the servers of another run, or of a cluster, as --group."
)
@click.option("--group", help="The name of this run's workers there; its tables are its own.")
@click.option(
    "--test", metavar="PATH", help="Judge the model on these rows.  [default: the set's own, or a share held out]"
)
@click.option("--epochs", type=float, help="How often all rows are learned from.  [default: 5]")
@click.option("--seed", type=int, help="Draw the order of the rows, and made-up rows, from this seed.")
@click.option(
    "--set",
    "changes",
    metavar="A.B=C",
    multiple=True,
    help="Change any setting of a job; may be repeated. All settings: docs/reference/job-file.md.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Write the run to this folder.  [default: runs/...]"
)
@click.option(
    "--resume",
    metavar="RUN",
    type=click.Path(file_okay=False, path_type=Path),
    help="Go on with the run in this folder, from its newest checkpoint.",
)
@click.option(
    "--verbosity",
    type=click.IntRange(0, 3),
    help="0 prints errors only, 1 how it goes, 2 also who joins, what is saved and where time goes, 3 every event.  [default: 1]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option(
    "--listen", metavar="ADDRESS", help="Listen here for nodes of other hosts (shoal join).  [default: nowhere]"
)
@asks_for_keys
@click.pass_obj
def train(
    head: Head | None,
    data: str | None,
    model: str | None,
    strategy: str | None,
    workers: int | None,
    servers: int | None,
    copies: int | None,
    allow_disconnected: bool,
    on: str | None,
    servers_at: str | None,
    group: str | None,
    test: str | None,
    epochs: float | None,
    seed: int | None,
    changes: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    verbosity: int | None,
    as_json: bool,
    listen: str | None,
    keys: str | None,
    insecure: bool,
) -> None:
    """Train a model on DATA (a name of `shoal data list`, or a file), or as JOB.toml says.

    \b
    shoal train clicks --workers 4 --servers 2
    shoal train rcv1 --model hinge --strategy sync --set data.batch=512 --set stop.patience=3
    shoal train rcv1 --strategy block-proximal --set update.l1=1.0 --set strategy.max_delay=2
    shoal train mnist --model cnn --workers 4 --set data.batch=64
    shoal train mnist --strategy gossip --workers 8 --set strategy.topology=torus
    shoal train --resume runs/clicks-logistic-async-1 --workers 8
    shoal train rcv1 --servers-at runs/clicks-logistic-async-1 --group b
    torchrun --nproc-per-node 5 -m shoal train clicks --servers 2
    mpirun -n 4 python -m shoal train clicks --strategy averaging

    The same command again with the same --out goes on with a run that did not end.
    """
    from shoal.errors import Invalid
    from shoal.settings import settings_of

    if resume is None and data is None:
        raise click.UsageError("nothing to train on: give DATA, a JOB.toml, or a run to go on with (--resume)")
    if resume is not None and (data is not None or out is not None):
        raise click.UsageError("--resume goes on with a run as its folder has it: leave DATA and --out away")
    given: dict[str, object] = {"model": model, "strategy": strategy, "workers": workers, "servers": servers}
    given |= {"copies": copies, "seed": seed, "data.test": test, "stop.epochs": epochs, "verbosity": verbosity}
    given |= {
        "launch.listen": listen,
        "launch.keys": keys and os.path.abspath(os.path.expanduser(keys)),
        "launch.insecure": insecure or None,
    }
    given |= {"launch.how": on, "strategy.allow_disconnected": allow_disconnected or None}
    settings = {name: value for name, value in given.items() if value is not None}
    try:
        settings |= settings_of(changes)
    except Invalid as error:
        raise click.BadParameter(str(error), param_hint="--set") from None
    guests = None if servers_at is None and group is None else (servers_at, group)
    with refusals():
        if resume is None:
            run = _train(data or "", settings, out, as_json, head, guests)
        else:
            run = _resume(resume, settings, as_json, head, guests)
    try:
        written, like = io.BytesIO(), sys.stdout
        # In a variable: a freed wrapper closes its stream.
        text = io.TextIOWrapper(written, like.encoding, like.errors, write_through=True)
        try:
            with contextlib.redirect_stdout(text):
                show_run(run, as_json)
        finally:  # also if the run was saved elsewhere
            print_patiently(written.getvalue(), HEAR_WITHIN / SECOND)
    except BrokenPipeError:
        raise  # the reader has closed the pipe
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stdout.close()  # do not retry the failed output
        why = f"cannot print the figures ({error.strerror}): they are in {run.folder}"
        raise click.ClickException(why) from None


def _train(
    data: str, settings: dict[str, Any], out: Path | None, quiet: bool, head: Head | None, guests: Guests
) -> Run:
    from shoal.job import Job
    from shoal.run.folder import RunFolder
    from shoal.run.resume import open_folder
    from shoal.settings import changed

    job = Job.load(Path(data), settings) if data.endswith(".toml") else Job.of(changed({"data": data}, settings))
    if head is not None:
        job = head.staffed(job, out is None)
    name = f"{Path(job.data.source).name.split('.')[0][:64]}-{job.model.name}-{job.strategy.name}"
    folder = open_folder(out, job) if out is not None else RunFolder.numbered(Path("runs") / name, job)
    return _run(job, folder, quiet, head, guests)


def _resume(path: Path, settings: dict[str, Any], quiet: bool, head: Head | None, guests: Guests) -> Run:
    from shoal.run.resume import finished, job_of, reopen

    if (run := finished(path, settings)) is not None:
        click.echo(f"{click.format_filename(path)} is finished: there is nothing to go on with", err=True)
        return run
    if head is not None:
        job = head.staffed(job_of(path, settings))
        settings |= {"workers": job.workers, "launch.how": job.launch.how}
    return _run(*reopen(path, settings), quiet, head, guests)


def _run(job: Job, folder: RunFolder, quiet: bool, head: Head | None, guests: Guests) -> Run:
    from shoal.run.run import execute
    from shoal.views.terminal import view

    launcher: Launcher | None = None if head is None else head.cluster
    if guests is not None:
        from shoal.strategies.parameter_server.group_cluster import guest

        try:
            job, launcher = guest(job, *guests)
        except BaseException:
            folder.discard()
            raise

    end_when_told()
    if head is not None and job.verbosity:
        click.echo(head.words, err=True)
    try:
        with view(epochs=job.stop.passes, verbosity=job.verbosity) as show:
            hears = None if quiet and not sys.stderr.isatty() else show
            return execute(job, folder, hears, show.note, show.follow, launcher)
    except (KeyboardInterrupt, SystemExit) as error:
        if (folder.path / "summary.json").exists():
            shown = click.format_filename(folder.path)
            left = f"; what was learned so far is in {shown}; go on with it: shoal train --resume {shown}"
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(left) from None
            click.echo(f"interrupted{left}", err=True)
        raise

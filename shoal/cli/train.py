"""``shoal train``: trains a model by the command line or a job file."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.background import print_patiently
from shoal.cli.common import (
    at_least_one,
    command,
    finished_run,
    job_from,
    new_run,
    of_a_run,
    on_interrupt,
    option,
    say,
    settings_from,
    show_run,
)
from shoal.limits import HEAR_WITHIN, SECOND
from shoal.signals import end_when_told

if TYPE_CHECKING:
    from shoal.job import Job
    from shoal.launch import torchrun
    from shoal.run.finished import Run
    from shoal.run.folder import RunFolder
    from shoal.strategies.averaging import mpi
    from shoal.strategies.parameter_server.run import Launcher

    Head = torchrun.HeadRank | mpi.MpiHead
    Guests = tuple[str | None, str | None] | None  # other servers, and the group there


@command
@click.argument("data", metavar="[DATA|JOB.toml]", required=False)
@option(
    "--strategy",
    help="sync, bounded, async; averaging, allreduce, hogwild; gossip, peer-to-peer; block-proximal; or serial.",
)
@at_least_one("--workers", "How many workers compute.")
@at_least_one("--servers", "How many servers hold the model.")
@option("--allow-disconnected", is_flag=True, help="Let gossip train on a graph in pieces, to see it fail.")
@option("--on", help="Run nodes as processes, threads, or mpi, which starts mpirun.  [default: processes]")
@option("--servers-at", metavar="RUN|ADDRESS", help="Train on the servers of another run, or of a cluster, as --group.")
@option("--group", help="The name of this run's workers there; its tables are its own.")
@option(
    "--test", metavar="PATH", help="Evaluate the model on these rows.  [default: the set's own, or a share held out]"
)
@option(
    "--resume",
    metavar="RUN",
    type=click.Path(file_okay=False, path_type=Path),
    help="Go on with the run in this folder, from its newest checkpoint.",
)
@option("--listen", metavar="ADDRESS", help="Listen here for nodes of other hosts (shoal join).  [default: nowhere]")
@of_a_run
@click.pass_obj
def train(
    head: Head | None,
    /,
    data: str | None,
    servers_at: str | None,
    group: str | None,
    out: Path | None,
    resume: Path | None,
    as_json: bool,
    **options: Any,
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
    if resume is None and data is None:
        raise click.UsageError("nothing to train on: give DATA, a JOB.toml, or a run to go on with (--resume)")
    if resume is not None and (data is not None or out is not None):
        raise click.UsageError("--resume continues the run in its folder, with its data: give neither DATA nor --out")
    settings = settings_from(options)
    run = None if resume is None else finished_run(resume, settings)
    if run is None:
        job, folder = _begin(data or "", resume, settings, out, head)
        guests = None if servers_at is None and group is None else (servers_at, group)
        run = _run(job, folder, as_json, head, guests)
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


def _begin(
    data: str, resume: Path | None, settings: dict[str, Any], out: Path | None, head: Head | None
) -> tuple[Job, RunFolder]:
    from shoal.run.resume import job_of, reopen

    if resume is None:
        job = job_from(data, settings)
        job = job if head is None else head.staffed(job, out is None)
        return job, new_run(job, out)
    if head is not None:
        job = head.staffed(job_of(resume, settings))
        settings |= {"workers": job.workers, "launch.how": job.launch.how}
    return reopen(resume, settings)


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
        say(head.words)

    def left() -> str:
        if not (folder.path / "summary.json").exists():
            return ""
        shown = click.format_filename(folder.path)
        return f"; what was learned so far is in {shown}; go on with it: shoal train --resume {shown}"

    with on_interrupt(left), view(epochs=job.stop.passes, verbosity=job.verbosity) as show:
        hears = None if quiet and not sys.stderr.isatty() else show
        return execute(job, folder, hears, show.note, show.follow, launcher)

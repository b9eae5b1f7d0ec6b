"""The command line: thin doors to functions that anyone can import."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.aside import print_patiently
from shoal.benchmarks.elastic_commands import bench
from shoal.chaos.command import chaos
from shoal.data.command import data
from shoal.doors import Near, Wrong, asks_for_keys, end_when_told
from shoal.frontends.export_command import export
from shoal.frontends.groups_command import evaluate, groups
from shoal.frontends.hosts_command import launch
from shoal.frontends.join_command import join, leave, show_peers
from shoal.frontends.key_command import key
from shoal.frontends.showing import show_run
from shoal.limits import HEAR_WITHIN, SECOND
from shoal.report import report
from shoal.simulation.command import simulate
from shoal.starting import INTERRUPTED, awake
from shoal.sweeping.command import sweep
from shoal.views.query_command import query
from shoal.views.topology_command import topology

if TYPE_CHECKING:
    from shoal.folder import Folder
    from shoal.job import Job
    from shoal.launch import mpi, ranks
    from shoal.launch.training import Launcher
    from shoal.run import Run

    Head = ranks.Head | mpi.Head
    Guests = tuple[str | None, str | None] | None  # at whose servers, and as which group


class Commands(Near):
    """Ctrl-C ends a command as a shell expects it: in one line, with exit code 130."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Of torchrun's or mpirun's ranks the first runs the command, and the others are its nodes."""
        words = list(sys.argv[1:] if args is None else args)
        if words and words[0].startswith("--local-rank="):  # torch.distributed.launch puts it there
            del words[0]
        if words[:1] != ["train"]:
            return super().main(words, *rest, **extra)
        from shoal.launch import mpi, torchrun

        command = super().main
        take_part = torchrun.take_part if mpi.rank() is None else mpi.take_part
        if take_part is mpi.take_part or torchrun.is_rank():
            awake()  # what ranks do of a Ctrl-C they agree upon
        return take_part(lambda head: command(words, *rest, **extra, obj=head))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            awake()
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            click.echo(f"interrupted{error}", err=True)  # and what is left of it, if anything
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Many workers, one model: a parameter server whose promises are checked by breaking it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever called: otherwise the next file to be opened has its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


@main.command()
@click.argument("data", metavar="[DATA|JOB.toml]", required=False)
@click.option("--model", help="logistic, hinge, squared; a network: linear, cnn, sheet, or your own, net.py:Net.")
@click.option(
    "--strategy",
    help="sync, bounded, async; averaging, allreduce, hogwild; gossip, peer-to-peer; block-proximal; or serial.",
)
@click.option("--workers", type=click.IntRange(1), help="How many compute.")
@click.option("--servers", type=click.IntRange(1), help="How many hold the model.")
@click.option("--copies", type=click.IntRange(1), help="How many of them hold each part of it.")
@click.option(
    "--allow-disconnected", is_flag=True, help="gossip: train though not everybody hears of everybody, to see it fail."
)
@click.option("--on", help="Where they run: processes, threads, or mpi, which starts mpirun.  [default: processes]")
@click.option(
    "--servers-at", metavar="RUN|ADDRESS", help="Train on the servers of another run, or of a cluster, as --group."
)
@click.option("--group", help="The name of this run's workers there: its tables are its own.")
@click.option(
    "--test", metavar="PATH", help="Rows to judge the model on.  [default: the set's own, or a share held out]"
)
@click.option("--epochs", type=float, help="Passes over the data.")
@click.option("--seed", type=int, help="Of the order of the rows, and of rows that are made up.")
@click.option("--set", "changes", metavar="A.B=C", multiple=True, help="Change any setting of a job; may be repeated.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The run's folder.  [default: runs/...]")
@click.option(
    "--resume",
    metavar="RUN",
    type=click.Path(file_okay=False, path_type=Path),
    help="Go on with the run in this folder, from its newest checkpoint.",
)
@click.option(
    "--verbosity",
    type=click.IntRange(0, 3),
    help="0: errors only. 1: how it goes. 2: also who joins, what is saved, where time goes. 3: every event.  [default: 1]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option(
    "--listen", metavar="ADDRESS", help="Where nodes of other hosts reach it (shoal join).  [default: nowhere]"
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
    from shoal.errors import Invalid, ShoalError
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
    try:
        if resume is None:
            run = _train(data or "", settings, out, as_json, head, guests)
        else:
            run = _resume(resume, settings, as_json, head, guests)
    except Invalid as error:
        raise Wrong(str(error)) from None
    except ShoalError as error:
        raise click.ClickException(str(error)) from None
    try:
        written, like = io.BytesIO(), sys.stdout
        # Kept in a variable: a wrapper that is freed closes what it has written to.
        text = io.TextIOWrapper(written, like.encoding, like.errors, write_through=True)
        try:
            with contextlib.redirect_stdout(text):
                show_run(run, as_json)
        finally:  # also if it says that the run is not where it was to be
            print_patiently(written.getvalue(), HEAR_WITHIN / SECOND)
    except BrokenPipeError:
        raise  # whoever read has read enough
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stdout.close()  # what could not be printed is not tried again
        why = f"cannot print the figures ({error.strerror}): they are in {run.folder}"
        raise click.ClickException(why) from None


def _train(
    data: str, settings: dict[str, Any], out: Path | None, quiet: bool, head: Head | None, guests: Guests
) -> Run:
    from shoal.folder import Folder
    from shoal.job import Job
    from shoal.resuming import open_folder
    from shoal.settings import changed

    job = Job.load(Path(data), settings) if data.endswith(".toml") else Job.of(changed({"data": data}, settings))
    if head is not None:
        job = head.staffed(job, out is None)
    name = f"{Path(job.data.source).name.split('.')[0][:64]}-{job.model.name}-{job.strategy.name}"
    folder = open_folder(out, job) if out is not None else Folder.numbered(Path("runs") / name, job)
    return _run(job, folder, quiet, head, guests)


def _resume(path: Path, settings: dict[str, Any], quiet: bool, head: Head | None, guests: Guests) -> Run:
    from shoal.resuming import finished, job_of, reopen

    if (run := finished(path, settings)) is not None:
        click.echo(f"{click.format_filename(path)} is finished: there is nothing to go on with", err=True)
        return run
    if head is not None:
        job = head.staffed(job_of(path, settings))
        settings |= {"workers": job.workers, "launch.how": job.launch.how}
    return _run(*reopen(path, settings), quiet, head, guests)


def _run(job: Job, folder: Folder, quiet: bool, head: Head | None, guests: Guests) -> Run:
    from shoal.run import execute
    from shoal.views.terminal import view

    launcher: Launcher | None = None if head is None else head.cluster
    if guests is not None:
        from shoal.launch.attached import guest

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
            return execute(job, folder, hears, show.note, launcher=launcher)
    except (KeyboardInterrupt, SystemExit) as error:
        if (folder.path / "summary.json").exists():
            shown = click.format_filename(folder.path)
            left = f"; what was learned so far is in {shown}; go on with it: shoal train --resume {shown}"
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(left) from None
            click.echo(f"interrupted{left}", err=True)
        raise


@main.command()
@click.argument("where", metavar="RUN|ADDRESS")
@click.option("--ring", is_flag=True, help="Draw who owns what as a ring.")
@click.option("--segments", is_flag=True, help="Show every segment, however many there are.")
@click.option("--watch", is_flag=True, help="Look on until it is over, or Ctrl-C.")
@click.option(
    "--verbosity", type=click.IntRange(1, 2), default=1, show_default=True, help="2: also the numbers of the protocol."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@asks_for_keys
def status(
    where: str, ring: bool, segments: bool, watch: bool, verbosity: int, as_json: bool, keys: str | None, insecure: bool
) -> None:
    """Look at a cluster that runs: a run's folder, or the address of its coordinator; of peers, that of any.

    \b
    heard         when the coordinator heard of it last
    steps         that a worker has done; parts, keys/s: what a server holds, and is asked for
    primary       whose part it is: who answers for it; copies are kept in case that one is lost
    version       how many changes are in it

    \b
    Of the protocol, with --verbosity 2:
    incarnation   a number that every node gets when it joins, never given twice: a node that comes back has another
    view          the numbered list of members and parts that it knows; yellow: not the newest
    epoch         how often a part has changed hands, or its copies did
    term          how often the coordinator was started; generation: how often all went back to a checkpoint

    Exit code 1 if nobody is there, or the run has ended.
    """
    from shoal.errors import Invalid, ShoalError, Unanswered
    from shoal.launch.looking import address_of, is_of_peers, look_at, safety_for
    from shoal.views.status import facts, page

    try:
        address = address_of(where)
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
                from shoal.frontends.watch import watch as looks_on

                sys.exit(looks_on(looking, where, verbosity > 1))
    except Invalid as error:
        raise Wrong(str(error)) from None
    except Unanswered:
        why = f"nobody answers at {address}: it has ended, or is just being started again; look again in a moment"
        if address != where:
            why += f"; if it was killed, go on with it: shoal train --resume {where}"
        raise click.ClickException(why) from None
    except ShoalError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode({"coordinator": address, **facts(found)})))
        return
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    shown = page(found, where, console.width, show_ring=ring, everything=segments, numbers=verbosity > 1)
    console.print(shown, soft_wrap=False)
    if address != where:
        click.echo(f"its coordinator: {address}")  # what others take who ask for an ADDRESS


@main.command()
def limits() -> None:
    """Print every bound and default."""
    import inspect

    from shoal import limits as bounds
    from shoal.timing import Intervals

    page = inspect.getsource(bounds).partition("MB = 1 << 20\n")[2]
    units = ((" * MILLISECOND", " ms"), (" * SECOND", " s"), (" * MB", " MB"))
    for line in page.strip().splitlines():
        for unit, short in units:
            line = line.replace(unit, short)
        click.echo(line)
    click.echo(
        "\n# How long nodes wait for each other, if a job ([timing], in seconds) or whoever starts the cluster does not say."
    )
    for line in inspect.getsource(Intervals).splitlines():
        name, given, rest = line.strip().partition(": Nanoseconds = ")
        if given:
            for unit, short in units:
                rest = rest.replace(unit, short)
            click.echo(f"timing.{name} = {rest}")


main.add_command(bench)
main.add_command(chaos)
main.add_command(data)
main.add_command(join)
main.add_command(evaluate)
main.add_command(export)
main.add_command(groups)
main.add_command(key)
main.add_command(launch)
main.add_command(leave)
main.add_command(query)
main.add_command(report)
main.add_command(simulate)
main.add_command(sweep)
main.add_command(topology)

"""``shoal launch``: starts a script, or a coordinator, server or worker on several hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from shoal import limits
from shoal.cli.common import (
    CommandError,
    NamelessCommand,
    Seconds,
    SuggestingGroup,
    asks_for_keys,
    at_least_one,
    of_a_run,
    option,
    options_of,
    out_file,
    say,
    show_run,
)
from shoal.launch.batch_scripts import SCHEDULERS
from shoal.signals import end_when_told, handled

_DEFAULTS = {"workers": 2, "servers": 1, "copies": 1}  # of a script
# options that each of several nodes gets unchanged
_SAME = ("listen", "advertise", "data", "patience", "within", "keys")


class LaunchGroup(SuggestingGroup):
    """One of the commands below; any other word is a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else "--help"
        if first not in self.commands and first not in ctx.help_option_names:
            args = ["script", *args]
        return super().parse_args(ctx, args)


@click.group(cls=LaunchGroup)
def launch() -> None:
    """Start a script on several workers, or one node of a run on several hosts.

    \b
    a script (shoal launch script --help):
    shoal launch --workers 4 --servers 2 train.py --epochs 3
    \b
    a run on several hosts: first this, then servers and workers, on any host:
    shoal launch coordinator clicks --listen tcp://10.0.0.1:7000
    shoal launch server --at tcp://10.0.0.1:7000
    shoal launch worker --at tcp://10.0.0.1:7000
    """


_at = option("--at", "where", metavar="ADDRESS|RUN", required=True, help="The coordinator's address, or run folder.")
of_a_server = options_of(
    option("--listen", metavar="ADDRESS", help="A server listens here.  [default: towards the coordinator]"),
    option("--advertise", metavar="ADDRESS", help="A server is reached at this address, if it is another one."),
)  # fmt: skip
of_a_worker = option("--data", metavar="PATH", help="A worker reads its rows here.  [default: as the job says]")
taking_part = options_of(
    option("--name", help="The node's name.  [default: its role, this host and a random part]"),
    option("--modules", multiple=True, help="Import this code (mine, net.py:Net); may be repeated."),
    option("--count", type=click.IntRange(1, limits.COUNT), default=1, help="Start so many processes."),
    option(
        "--patience",
        type=Seconds(1.0),
        metavar="SECONDS",
        help="End after so many seconds without the coordinator, which may be restarted.  [default: as the coordinator says, 60]",
    ),
    option(
        "--within", type=Seconds(1.0), metavar="SECONDS", help="Wait so long for the coordinator.  [default: 600]"
    ),
    option("--quiet", is_flag=True, help="Print only how it ended."),
    # set by --count: one of so many processes
    option("--share", type=click.IntRange(1, limits.COUNT), default=1, hidden=True),
    asks_for_keys,
)  # fmt: skip


@launch.command(short_help="Hold a part of the model.")
@_at
@of_a_server
@taking_part
def server(where: str, **options: Any) -> None:
    """Hold a part of the model, for a cluster whose coordinator is elsewhere.

    It gets its share while everything goes on. SIGTERM or Ctrl-C asks to leave: it ends with exit
    code 0 when others have all that it has; the second time it ends at once (130 or 143).
    """
    take_part(where, "server", **options)


@launch.command(short_help="Compute for a run elsewhere.")
@_at
@of_a_worker
@taking_part
def worker(where: str, **options: Any) -> None:
    """Compute for a run whose coordinator is elsewhere.

    What the run is about is asked for there; the rows are read on this host, and must be the same.
    SIGTERM or Ctrl-C finishes what is begun and leaves; the second time it ends at once.
    """
    take_part(where, "worker", **options)


def take_part(where: str, role: Any, **options: Any) -> None:
    """Run a node by the options of ``taking_part``, to the end."""
    from shoal.launch.remote_node import JoinTerms, RemoteNode

    speak = (lambda text: None) if options["quiet"] else say
    if options["count"] > 1:
        if options["name"]:
            raise CommandError("--name names one node: leave it or --count away")
        sys.exit(_start_several(where, role, options, speak))
    given = {name: options[name] for name in JoinTerms.__slots__ if options.get(name) is not None}
    node = RemoteNode(JoinTerms(where, **given), role, speak)
    with handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), node.leave):
        why = node.run()
    click.echo(f"{node.name} has ended: {why}")


@launch.command(short_help="Coordinate a run or a store.")
@click.argument("data", metavar="[DATA|JOB.toml]", required=False)
@option("--listen", metavar="ADDRESS", help="Listen here, such as tcp://10.0.0.1:7000.")
@option("--advertise", metavar="ADDRESS", help="Others reach it at this address, if it is another one.")
@at_least_one("--servers", "Begin when so many servers have joined.  [default: 1]")
@at_least_one("--workers", "Begin when so many workers have joined.  [default: 1]")
@option("--strategy", help="sync, bounded, async or block-proximal.")
@option("--within", type=Seconds(1.0), metavar="SECONDS", help="Wait so long for the servers.  [default: 600]")
@of_a_run
def coordinator(**options: Any) -> None:
    """Coordinate a run whose servers and workers come from elsewhere; without DATA, a store.

    \b
    shoal launch coordinator clicks --servers 2 --listen tcp://10.0.0.1:7000 --out runs/far
    shoal launch coordinator --out runs/far
        again: it goes on with those who are still there
    shoal launch coordinator --listen tcp://10.0.0.1:7000
        a store, for programs that use shoal.connect

    Ctrl-C ends it, and tells all who are there; SIGTERM ends it, and they wait a minute for it to
    be started again.
    """
    from shoal.cli import launch_coordinator

    if options["data"] is None and not _is_run(options["out"]):
        launch_coordinator.store(options)
    else:
        show_run(launch_coordinator.run(options), options["as_json"])


def _is_run(out: Path | None) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return out is not None and (out / "job.toml").is_file()
    return False


# ---------------------------------------------------------------- several nodes on this host


def _start_several(where: str, role: str, options: Mapping[str, Any], speak: Callable[[str], None]) -> int:
    """Start them by the command for one, pass signals on, and wait; returns the worst exit code."""
    from shoal.launch.process_pool import environment

    command = [sys.executable, "-m", "shoal", "launch", role, "--at", where, *_words(options)]
    hosted = [sys.executable, "-m", "shoal.launch.script_worker", str(os.getpid()), "/", *command[1:]]
    processes: list[subprocess.Popen[bytes]] = []
    signals, sent_to = list[int](), 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal sent_to
        signals.append(number)
        sent_to = len(processes)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    with handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), pass_on):
        for _ in range(options["count"]):
            if signals:
                break
            processes.append(subprocess.Popen(hosted, env=environment(), start_new_session=True))
            if signals and sent_to < len(processes):  # it arrived during this start
                processes[-1].send_signal(signals[-1])
        codes = [process.wait() for process in processes]
    if failed := [code for code in codes if code]:
        speak(f"{len(failed)} of {len(codes)} ended with an error")
    return max((code if code >= 0 else 128 - code for code in codes), default=0)


def _words(options: Mapping[str, Any]) -> list[str]:
    words = [word for name in _SAME if options.get(name) for word in (f"--{name}", str(options[name]))]
    words += [word for one in options["modules"] for word in ("--modules", one)]
    words += ["--share", str(options["count"])]  # share of this host's memory
    return words + [f"--{name}" for name in ("quiet", "insecure") if options[name]]


# ---------------------------------------------------------------- a script


@launch.command(
    "script",
    short_help="Run a Python script on several workers.",
    cls=NamelessCommand,
    context_settings={"allow_interspersed_args": False},
)
@at_least_one("--workers", f"How many workers run the script.  [default: {_DEFAULTS['workers']}]")
@at_least_one("--servers", f"How many servers hold the model.  [default: {_DEFAULTS['servers']}]")
@at_least_one("--copies", f"How many servers hold each segment of it.  [default: {_DEFAULTS['copies']}]")
@option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@option("--script", "scheduler", type=click.Choice(SCHEDULERS), help="Run nothing: write a batch script.")
@option("--walltime", default="01:00:00", help="How long the batch job may take: hours:minutes:seconds.")
@at_least_one("--cores", "How many cores the batch job asks for.  [default: workers and servers]")
@out_file("Write the batch script to this file.")
@click.argument("script", metavar="SCRIPT|JOB.toml")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run_script(script: str, arguments: tuple[str, ...], module: bool, **options: Any) -> None:
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
    given = {name: options[name] for name in _DEFAULTS if options[name] is not None}
    command = ["-m", script, *arguments] if module else [script, *arguments]
    if options["scheduler"] is not None:
        _write_batch_script(script, command, given, options)
    elif script.endswith(".toml"):
        raise CommandError(f"{script} is a job, not a script: shoal train {script}")
    else:
        _launch(command, **{**_DEFAULTS, **given})


def _launch(command: list[str], workers: int, servers: int, copies: int) -> None:
    from shoal.launch.script import ScriptLauncher
    from shoal.views.format import many

    lock = threading.Lock()

    def show(text: str, is_error: bool) -> None:
        # An error: the reader has closed the pipe (| head). The workers go on.
        with lock, contextlib.suppress(OSError):
            click.echo(text, nl=False, err=is_error)

    end_when_told()
    with ScriptLauncher(workers, servers, copies, show) as launching:
        here = f"{many(servers, 'server')}, {many(workers, 'worker')}"
        show(f"shoal: {here}; look at them: shoal status {launching.address}\n", True)
        launching.start(command)
        ends = launching.wait()
    if failed := [str(end) for end in ends if end.code]:
        say(f"shoal: {len(failed)} of {workers} workers failed: {', '.join(failed)}")
        sys.exit(1)


def _write_batch_script(script: str, command: list[str], given: dict[str, int], options: Mapping[str, Any]) -> None:
    from shoal.files import or_refuse
    from shoal.job import Job
    from shoal.launch.batch_scripts import batch_script, submit

    scheduler, out, nodes = options["scheduler"], options["out"], {**_DEFAULTS, **given}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    if script.endswith(".toml"):
        if more := command[1:]:
            raise CommandError(f"a job takes no arguments ({' '.join(more)}): put them into {script}")
        job = Job.load(Path(script), given)
        nodes = {"workers": job.workers, "servers": job.servers}
        command = ["train", script, *words, "--out", f"runs/{Path(script).stem}"]
    else:
        command = ["launch", *words, *command]
    text = batch_script(
        scheduler,
        ["shoal", *command],
        cores=options["cores"] or nodes["workers"] + nodes["servers"],
        walltime=options["walltime"],
        file="job.sh" if out is None else str(out),
        environment=sys.prefix if sys.prefix != sys.base_prefix else "",
    )
    if out is None:
        click.echo(text, nl=False)
        return
    shown = click.format_filename(out)
    with or_refuse(f"write {shown}", "take another name or place"):
        with out.open("x") as stream:
            stream.write(text)
        out.chmod(0o755)  # oarsub needs it
    click.echo(f"submit it: {submit(scheduler, str(out))}")

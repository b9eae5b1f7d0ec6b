"""``shoal launch``: starts a script, or a coordinator, server or worker on several hosts."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shoal import limits
from shoal.cli.common import CommandError, Seconds, asks_for_keys, refusals
from shoal.cli.launch_script import launch as script

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class LaunchGroup(click.Group):
    """One of the commands below; any other word is a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else "--help"
        if first not in self.commands and first not in ctx.help_option_names:
            args = ["script", *args]
        return super().parse_args(ctx, args)


class ScriptCommand(click.Command):
    """The command without a word of its own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        assert parent is not None
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


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


def options_of(*options: Callable[..., Any]) -> Decorator:
    """Add several options to a command."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


of_a_server = options_of(
    click.option("--listen", metavar="ADDRESS", help="A server listens here.  [default: towards the coordinator]"),
    click.option("--advertise", metavar="ADDRESS", help="A server is reached at this address, if it is another one."),
)  # fmt: skip
of_a_worker = click.option(
    "--data", metavar="PATH", help="A worker finds the rows here on this host.  [default: as the job says]"
)
taking_part = options_of(
    click.option("--name", help="The node's name.  [default: its role, this host and a random part]"),
    click.option("--modules", multiple=True, help="Import this code (mine, net.py:Net); may be repeated."),
    click.option("--count", type=click.IntRange(1, limits.COUNT), default=1, show_default=True, help="Start so many processes."),
    click.option(
        "--patience",
        type=Seconds(1.0),
        metavar="SECONDS",
        help="End after so many seconds without the coordinator, which may be restarted.  [default: as the coordinator says, 60]",
    ),
    click.option(
        "--within", type=Seconds(1.0), metavar="SECONDS", help="Wait so long for the coordinator.  [default: 600]"
    ),
    click.option("--quiet", is_flag=True, help="Print only how it ended."),
    # set by --count: one of so many processes
    click.option("--share", type=click.IntRange(1, limits.COUNT), default=1, hidden=True),
    asks_for_keys,
)  # fmt: skip


@launch.command()
@click.option(
    "--at", "where", metavar="ADDRESS|RUN", required=True, help="The coordinator's address, or its run's folder."
)
@of_a_server
@taking_part
def server(where: str, **options: Any) -> None:
    """Hold a part of the model, for a cluster whose coordinator is elsewhere.

    It gets its share while everything goes on. SIGTERM or Ctrl-C asks to leave: it ends with exit
    code 0 when others have all that it has; the second time it ends at once (130 or 143).
    """
    take_part(where, "server", **options)


@launch.command()
@click.option(
    "--at", "where", metavar="ADDRESS|RUN", required=True, help="The coordinator's address, or its run's folder."
)
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
    from shoal.cli.multi import several
    from shoal.launch.remote_node import JoinTerms, RemoteNode
    from shoal.launch.server_process import heard

    def say(text: str) -> None:
        if not options["quiet"]:
            click.echo(text, err=True)

    if options["count"] > 1:
        if options["name"]:
            raise CommandError("--name names one node: leave it or --count away")
        sys.exit(several(where, role, options, say))
    terms = JoinTerms(
        where,
        options["name"] or "",
        options.get("listen") or "",
        options.get("advertise") or "",
        options["modules"],
        options.get("data") or "",
        options["patience"],
        options["keys"] or "",
        options["insecure"],
        options["within"] or limits.HOSTS_WITHIN / limits.SECOND,
        options["share"],
    )
    with refusals():
        visitor = RemoteNode(terms, role, say)
        with heard((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), visitor.leave):
            why = visitor.run()
    click.echo(f"{visitor.name} has ended: {why}")


@launch.command()
@click.argument("data", metavar="[DATA|JOB.toml]", required=False)
@click.option("--listen", metavar="ADDRESS", help="Listen here, such as tcp://10.0.0.1:7000.")
@click.option("--advertise", metavar="ADDRESS", help="Others reach it at this address, if it is another one.")
@asks_for_keys
@click.option("--servers", type=click.IntRange(1), help="Begin when so many servers have joined.  [default: 1]")
@click.option("--workers", type=click.IntRange(1), help="Begin when so many workers have joined.  [default: 1]")
@click.option("--copies", type=click.IntRange(1), help="How many servers hold each segment of the model.")
@click.option("--model", help="As in shoal train.")
@click.option("--strategy", help="sync, bounded, async or block-proximal.")
@click.option("--epochs", type=float, help="How often all rows are learned from.")
@click.option("--seed", type=int)
@click.option(
    "--set",
    "changes",
    metavar="A.B=C",
    multiple=True,
    help="Change any setting of a job (docs/reference/job-file.md), or of a store timing.dead and the like; may be repeated.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Write the run to this folder.  [default: runs/...]"
)
@click.option("--within", type=Seconds(1.0), metavar="SECONDS", help="Wait so long for the servers.  [default: 600]")
@click.option("--verbosity", type=click.IntRange(0, 3), help="As in shoal train.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
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

    with refusals():
        if options["data"] is None and not _is_run(options["out"]):
            launch_coordinator.store(options)
            return
        run = launch_coordinator.run(options)
    from shoal.cli.show_run import show_run

    show_run(run, options["as_json"])


def _is_run(out: Path | None) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return out is not None and (out / "job.toml").is_file()
    return False


launch.add_command(ScriptCommand(name="script", **{
    name: getattr(script, name) for name in ("callback", "params", "help", "context_settings")
}))  # fmt: skip

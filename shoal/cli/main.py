"""The main command: loads the others, and handles Ctrl-C, torchrun and mpirun."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from shoal.cli.bench import bench
from shoal.cli.chaos import chaos
from shoal.cli.common import SuggestingGroup
from shoal.cli.data import data
from shoal.cli.export import export
from shoal.cli.groups import evaluate, groups
from shoal.cli.join import join, leave
from shoal.cli.key import key
from shoal.cli.launch import launch
from shoal.cli.limits import limits
from shoal.cli.query import query
from shoal.cli.report import report
from shoal.cli.simulate import simulate
from shoal.cli.status import status
from shoal.cli.sweep import sweep
from shoal.cli.topology import topology
from shoal.cli.train import train
from shoal.interrupts import INTERRUPTED, raise_on_interrupt


class Commands(SuggestingGroup):
    """A group in which Ctrl-C prints one line and exits with code 130."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run the command; under torchrun or mpirun in rank 0, with the others as its nodes."""
        words = list(sys.argv[1:] if args is None else args)
        if words and words[0].startswith("--local-rank="):  # torch.distributed.launch adds it
            del words[0]
        if words[:1] != ["train"]:
            return super().main(words, *rest, **extra)
        from shoal.launch import mpirun_rank

        command, by_mpirun = super().main, mpirun_rank.rank() is not None
        if not by_mpirun and "TORCHELASTIC_RUN_ID" not in os.environ:
            return command(words, *rest, **extra)
        raise_on_interrupt()  # ranks agree on how to handle Ctrl-C
        launcher = "shoal.strategies.averaging.mpi" if by_mpirun else "shoal.launch.torchrun"
        return importlib.import_module(launcher).take_part(lambda head: command(words, *rest, **extra, obj=head))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in HELP.items():
            with formatter.section(title):
                formatter.write_dl([(f"{command.name:<8}", text) for command, text in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            raise_on_interrupt()
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            click.echo(f"interrupted{error}", err=True)  # and its last output, if any
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Train one model with many workers, and keep training when processes die.

    \b
    shoal train clicks                  the first run; then shoal report RUN
    shoal train --help                  options; every setting: docs/reference/job-file.md
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # closed by the caller: otherwise the next open file gets its number
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


HELP: dict[str, dict[click.Command, str]] = {
    "Train": {
        train: "Train a model on a data set, or as a job file says.",
        sweep: "Train with every combination of settings.",
        data: "List, make, fetch and split data sets.",
    },
    "Watch": {
        status: "Show a running cluster, or how a run ended.",
        query: "Show a model: size, norms, largest weights.",
        evaluate: "Evaluate a model on other data, also while it trains.",
    },
    "Understand": {
        report: "Write one page about runs or sweeps.",
        topology: "Show a graph of workers that gossip.",
        export: "Pack a run or a sweep into one archive.",
        limits: "Print bounds and defaults, all or one.",
        bench: "Measure speed, beside rivals in the same run.",
    },
    "Break": {
        chaos: "Train while processes are killed; count every push.",
        simulate: "Run whole clusters in one thread, with faults.",
    },
    "Hosts": {
        launch: "Start a script or nodes on several hosts.",
        join: "Add a node to a run that is under way.",
        leave: "Take a node out of a run that goes on.",
        groups: "Show and bound groups that share servers.",
        key: "Make and allow the keys of hosts.",
    },
}
for commands in HELP.values():
    for command in commands:
        main.add_command(command)

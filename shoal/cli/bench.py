"""``shoal bench``: runs one of the benchmarks beside the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from shoal.cli.common import CommandError, SuggestingGroup

_ROOT = Path(__file__).parents[2]


class BenchGroup(SuggestingGroup):
    """Imports a benchmark only when it runs: some have heavy imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_benches())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _benches():
            return None
        from benchmarks.harness import command

        module = importlib.import_module(f"benchmarks.{_benches()[name][0]}")
        return command(name, module)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in sorted(_benches().items())])


@click.group(cls=BenchGroup)
def bench() -> None:
    """Measure, with the rivals in the same run."""


def _benches() -> dict[str, tuple[str, str]]:
    """The benchmarks beside the package: present in a clone, absent in an installed package."""
    if not (_ROOT / "benchmarks" / "harness.py").is_file():
        raise CommandError("the benchmarks are not installed: they are beside the package in a clone of the project")
    if str(_ROOT) not in sys.path:
        sys.path.insert(0, str(_ROOT))
    found: dict[str, tuple[str, str]] = importlib.import_module("benchmarks").BENCHES
    return found

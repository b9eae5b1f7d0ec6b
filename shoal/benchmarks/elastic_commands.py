"""``shoal bench elastic``, ``billion`` and ``placement``: doors to what is measured of servers that come and go, as ``commands`` has the others."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from shoal.benchmarks.commands import _bench, _in_words
from shoal.benchmarks.commands import bench as bench


@bench.command("elastic")
@click.option("--quick", is_flag=True, help="A sixteenth of the model, 12 seconds.")
@click.option("--seconds", type=click.FloatRange(1.0), help="Of training, about.  [default: 30]")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (.png, .svg).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_elastic(quick: bool, seconds: float | None, picture: Path | None, json_file: Path | None) -> None:
    """A server joins a run and leaves it again: rows a second, how long segments stand still, and what is lost."""
    results = _bench("elastic", quick, json_file, seconds=seconds)
    if picture is not None:
        with _in_words():
            importlib.import_module("shoal.benchmarks.elastic").draw(results, picture)
        click.echo(f"the picture: {picture}")


@bench.command("billion")
@click.option("--quick", is_flag=True, help="20 million, over two servers.")
@click.option("--floats", type=click.IntRange(1_000_000), help="How many.  [default: 1,000,000,000, which take 4 GB]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_billion(quick: bool, floats: int | None, json_file: Path | None) -> None:
    """A billion floats over four servers: pushed and pulled by range, and one more server joins."""
    _bench("billion", quick, json_file, floats=floats)


@bench.command("placement")
@click.option("--quick", is_flag=True, help="Smaller clusters.")
@click.option(
    "--skew", is_flag=True, help="Real servers, a few keys of which are asked for most: by count, and by load."
)
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (.png, .svg).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_placement(quick: bool, skew: bool, picture: Path | None, json_file: Path | None) -> None:
    """Servers come, leave and die: how even segments lie, and what had to be copied, against other rules."""
    name = "skew" if skew else "placement"
    results = _bench(name, quick, json_file)
    if picture is not None:
        with _in_words():
            importlib.import_module(f"shoal.benchmarks.{name}").draw(results, picture)
        click.echo(f"the picture: {picture}")

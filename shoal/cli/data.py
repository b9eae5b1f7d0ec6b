"""``shoal data``: lists, generates, fetches and splits the named data sets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.common import CommandError, SuggestingGroup, as_json, option, print_json, say
from shoal.signals import end_when_told

if TYPE_CHECKING:
    from shoal.data.split import SplitInfo

COLUMNS = 12  # labels that fit a table
LINES = 30  # clients that fit a table


@click.group(cls=SuggestingGroup)
def data() -> None:
    """The data sets that have a name; making, fetching and splitting them."""


@data.command("list", short_help="List the data sets that have a name.")
@as_json()
def list_data(as_json: bool) -> None:
    """Name the sets, and say which can be had here. Anything else that `shoal train` is
    given is a file.
    """
    from shoal.data.datasets import names

    found = names()
    if as_json:
        print_json([{name: getattr(one, name) for name in ("name", "what", "available", "where")} for one in found])
        return
    for one in found:
        click.echo(f"  {one.name:14} {one.what}")
        how = one.how or f"put it at {one.where}"
        click.echo(f"  {'':14} {one.where if one.available else f'not here: {how}'}")


@data.command("make", short_help="Write rows of a generated set to a file.")
@click.argument("name")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@option("--rows", type=click.IntRange(1), default=100_000, help="How many rows to write.")
@option("--seed", type=int, default=0, help="Draw the rows from this seed.")
@option("--features", type=click.IntRange(1), help="How many features the rows have.  [default: the set's own]")
@option("--test", is_flag=True, help="Make other rows of the same truth, to test on.")
@option("--force", is_flag=True, help="Replace the file if it exists.")
def make_data(name: str, path: Path, rows: int, seed: int, features: int | None, test: bool, force: bool) -> None:
    """Write rows of a made-up set (clicks, rcv1-like) to PATH as LIBSVM text; .gz, .bz2
    and .xz are compressed.
    """
    from shoal.data.export import make

    if path.is_file() and not force:
        raise CommandError(f"{click.format_filename(path)} exists already: take another name, or --force")
    end_when_told()
    size = make(name, rows, seed, path, features, test)
    shown = click.format_filename(path)
    click.echo(f"{rows:,} rows, {size:,} bytes: {shown}; train on it: shoal train {shown}")


@data.command("fetch", short_help="Download a set into the cache.")
@click.argument("name")
def fetch_data(name: str) -> None:
    """Get a set into the cache, so that runs find it there: shoal data fetch mnist."""
    from shoal.data.datasets import NAMED, DataSource, load

    if name not in NAMED:
        raise CommandError(f"no set {name!r}: names are {', '.join(NAMED)}; a file needs no fetching")
    dataset = load(DataSource(name), 0, progress=say)
    rows = f"{dataset.train.rows:,} rows to train on, {dataset.test.rows:,} to test on"
    model = " --model cnn" if dataset.dense else ""
    click.echo(f"{name}: {rows}, in {click.format_filename(dataset.folder)}; train on it: shoal train {name}{model}")


@data.command("split", short_help="Divide a set between clients, a file for each.")
@click.argument("source", metavar="SET")
@option("--clients", type=click.IntRange(1), default=5, help="How many clients get rows.")
@option(
    "--by",
    type=click.Choice(["even", "shuffled", "label", "dirichlet"]),
    default="even",
    help="Equal parts in order, of a shuffle, or sorted by label; or random shares of each label.",
)
@option("--alpha", type=float, help="With dirichlet, a small value gives each client few labels.  [default: 0.5]")
@option("--seed", type=int, default=0, help="Draw shuffled and dirichlet from this seed.")
@option("--out", type=click.Path(path_type=Path), help="Write to this folder.  [default: SET-CLIENTS-BY]")
@as_json("Print split.json instead of a table.")
def split_data(
    source: str, clients: int, by: Any, alpha: float | None, seed: int, out: Path | None, as_json: bool
) -> None:
    """Deal the rows of SET (a name, or a file) out to clients: a file for each, and one
    to test on.

    Every row goes to exactly one client, and the same command gives the same files.

    \b
    shoal data split mnist --clients 5
    shoal data split mnist --clients 10 --by dirichlet --alpha 0.1 --out parts
    """
    from shoal.data.datasets import DataSource, load
    from shoal.data.split import check_split, split
    from shoal.views.axes import can_draw
    from shoal.views.split_plot import draw_split

    check_split(clients, by, alpha)
    dataset = load(DataSource(source), seed, progress=say)
    stem = re.sub(r"[^\w.-]", "_", dataset.name.split(".")[0])[:64] or "set"
    folder = out if out is not None else Path(f"{stem}-{clients}-{by}")
    said = split(dataset, clients, folder, by, alpha, seed, draw_split if can_draw() else None)
    if as_json:
        click.echo((folder / "split.json").read_text(), nl=False)
        return
    for line in table(said):
        click.echo(line)
    for note in (*dataset.notes, *said.notes):
        click.echo(f"  note: {note}")
    _show_next(said, folder, dataset.dense)


def table(said: SplitInfo) -> list[str]:
    labels = said.labels if len(said.labels) <= COLUMNS else []
    lines = [["", *(f"{label:g}" for label in labels), "rows"]]
    for name, counts, size in list(zip(said.files, said.counts or [[]] * len(said.files), said.sizes, strict=True))[
        :LINES
    ]:
        lines.append([name, *(f"{count:,}" if count else "·" for count in counts if labels), f"{size:,}"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  " + "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]) for first, *rest in lines]
    if len(said.files) > LINES:
        shown.append(f"  ... and {len(said.files) - LINES:,} more clients: see split.json")
    if not said.labels:
        shown.append("  too many different labels: not counted")
    elif not labels:
        shown.append(f"  {len(said.labels):,} different labels: see split.json")
    return shown


def _show_next(said: SplitInfo, folder: Path, dense: bool) -> None:
    shown = click.format_filename(folder)
    drawn = folder / "split.png"
    look = f"; look at it: {click.format_filename(drawn)}" if drawn.exists() else ""
    click.echo(f"{said.rows:,} rows for {len(said.files):,} clients, {said.test_rows:,} to test on: {shown}{look}")
    more = (
        f" --model {'cnn' if said.shape == [28, 28] else 'linear'}"
        if dense
        else f" --set data.features={said.shape[0]}"
    )
    first, test = (shlex.quote(click.format_filename(folder / name)) for name in (said.files[0], said.test))
    click.echo(f"train on one: shoal train {first} --test {test}{more}")

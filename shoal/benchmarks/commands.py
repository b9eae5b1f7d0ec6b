"""``shoal bench``: thin doors to what is measured. Nothing heavy is imported before a measurement begins."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from shoal.doors import Near


@click.group(cls=Near)
def bench() -> None:
    """Measure, with the rivals in the same run."""


@bench.command()
@click.option("--quick", is_flag=True, help="Fewer sizes and repeats: under a minute.")
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(["threads", "ipc", "tcp"]),
    help="Measure this one; may be given several times.  [default: all]",
)
@click.option("--repeat", type=click.IntRange(1), help="Batches of each contestant in each case.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def store(quick: bool, transports: tuple[str, ...], repeat: int | None, json_file: Path | None) -> None:
    """Push and pull of the store against a bare ZeroMQ store, an echo of the same bytes and a memory copy."""
    _bench("store", quick, json_file, transports=transports or None, repeat=repeat)


@bench.command("wire")
@click.option("--quick", is_flag=True, help="Fewer repeats.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_wire(quick: bool, json_file: Path | None) -> None:
    """Values that travel as float32, float16 and bfloat16: bytes, and the time of a push and a pull."""
    _bench("forms", quick, json_file)


@bench.command("curve")
@click.option("--quick", is_flag=True, help="Smaller, and fewer repeats: no figures to quote.")
@click.option(
    "--rows", type=click.IntRange(0), help="Of the run that is trained all ways; 0: none.  [default: 200,000]"
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_curve(quick: bool, rows: int | None, json_file: Path | None) -> None:
    """What checksums and keys cost: pushes, pulls, round trips and a run over tcp, bare, with checksums, encrypted; how soon a stranger is told."""
    _bench("curve", quick, json_file, rows=rows)


@bench.command("filters")
@click.option("--quick", is_flag=True, help="Fewer slots and repeats.")
@click.option("--slots", type=click.IntRange(1), help="How many.  [default: 40]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_filters(quick: bool, slots: int | None, json_file: Path | None) -> None:
    """Filters on the pushes of RCV1 (from SHOAL_DATA), against numpy, lz4 and zstandard used plainly: bytes and speed."""
    _bench("filters", quick, json_file, slots=slots)


@bench.command("bytes")
@click.option("--quick", is_flag=True, help="10,000 made-up rows: seconds, and no figures to quote.")
@click.option("--rows", type=click.IntRange(1_000), help="Of clicks.  [default: 2,000,000]")
@click.option("--data", metavar="A,B", help="These sets of rcv1, criteo_tb and clicks.  [default: all that are here]")
@click.option("--solver", type=click.Choice(["ftrl", "block-proximal"]), help="Only this one.  [default: both]")
@click.option("--only", metavar="A,B", help="These ways, such as int8,kkt; none is always among them.  [default: all]")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (.png, .svg).")
@click.option(
    "--from",
    "earlier",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show and draw what --json wrote, of several put together, and measure nothing.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_bytes(
    quick: bool,
    rows: int | None,
    data: str | None,
    solver: str | None,
    only: str | None,
    picture: Path | None,
    earlier: tuple[Path, ...],
    json_file: Path | None,
) -> None:
    """Training with each filter alone and with all together: bytes both ways, and what that does to the objective."""
    from shoal.benchmarks import bytes as what
    from shoal.benchmarks import bytes_show

    with _in_words():
        if earlier:
            results = bytes_show.together([bytes_show.load(path) for path in earlier])
        else:
            settings = what.chosen(what.QUICK if quick else what.FULL, rows, _names(data), solver, _names(only))
            results = what.measure(settings, _progress)
    _show_bench(bytes_show.table(results), results, json_file)
    if picture is not None:
        with _in_words():
            bytes_show.draw(results, picture)
        click.echo(f"the picture: {picture}")


def _names(given: str | None) -> tuple[str, ...]:
    return () if given is None else tuple(one.strip() for one in given.split(","))


@bench.command("handles")
@click.option("--quick", is_flag=True, help="One run of each, fewer rounds.")
@click.option("--data", help="A set of sparse rows (shoal data list).  [default: rcv1]")
@click.option("--repeat", type=click.IntRange(1), help="Runs of each case.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_handles(quick: bool, data: str | None, repeat: int | None, json_file: Path | None) -> None:
    """Lists of keys that servers know by a number, against sending them: bytes of whole runs, and a server's time."""
    _bench("handles", quick, json_file, data=data, repeat=repeat)


@bench.command("keys")
@click.option("--quick", is_flag=True, help="A tenth of everything.")
@click.option("--keys", type=click.IntRange(1_000), help="How many in one table.  [default: 50,000,000]")
@click.option("--rows", type=click.IntRange(0), help="Of clicks; 0 leaves them out.  [default: 2,000,000]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_keys(quick: bool, keys: int | None, rows: int | None, json_file: Path | None) -> None:
    """Very many keys in one table against dictionaries and sorted arrays; and a click log without its rare features."""
    _bench("keys", quick, json_file, keys=keys, rows=rows)


@bench.command("training")
@click.option("--quick", is_flag=True, help="A tenth of the rows.")
@click.option("--rows", type=click.IntRange(10_000), help="How many.  [default: 1,000,000]")
@click.option("--strategy", type=click.Choice(["sync", "bounded", "async"]), help="[default: async]")
@click.option("--how", type=click.Choice(["threads", "processes"]), help="[default: threads]")
@click.option("--repeat", type=click.IntRange(1), help="Rounds of each case.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_training(
    quick: bool, rows: int | None, strategy: str | None, how: str | None, repeat: int | None, json_file: Path | None
) -> None:
    """One worker and one server against the serial kernel on the same rows."""
    _bench("training", quick, json_file, rows=rows, strategy=strategy, how=how, repeat=repeat)


@bench.command("reading")
@click.option("--quick", is_flag=True, help="Fewer repeats.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_reading(quick: bool, json_file: Path | None) -> None:
    """The LIBSVM reader against scikit-learn's on RCV1 (from SHOAL_DATA), and the click-log reader beside it."""
    _bench("reading", quick, json_file)


@bench.command("checkpoint")
@click.option("--quick", is_flag=True, help="128 MB instead of a gigabyte.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="On which disk.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_checkpoint(quick: bool, folder: Path | None, json_file: Path | None) -> None:
    """A model's segments to disk and back, against plain files and the safetensors library; and while it is pushed to."""
    from rich.console import Group

    from shoal.benchmarks import saving
    from shoal.benchmarks.checkpoint import FULL, QUICK, measure, table

    try:
        with _in_words():
            results = measure(QUICK if quick else FULL, _progress, folder)
    except OSError as error:
        raise click.ClickException(f"{error.strerror}: choose another --folder, or --quick") from None
    live = [] if results.live is None else [saving.table(results.live)]
    _show_bench(Group(table(results), *live), results, json_file)


@bench.command("clocks")
@click.option("--quick", is_flag=True, help="Fewer sizes and tasks.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_clocks(quick: bool, json_file: Path | None) -> None:
    """Vector clocks of ranges against a clock for every key: memory, and the time of a task."""
    _bench("clocks", quick, json_file)


@bench.command("consensus")
@click.option("--quick", is_flag=True, help="In threads, up to 8 workers.")
@click.option("--how", type=click.Choice(["threads", "processes"]), help="[default: processes]")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (.png, .svg).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_consensus(quick: bool, how: str | None, picture: Path | None, json_file: Path | None) -> None:
    """Workers that gossip on ring, torus, star and others: how soon all models agree, against what the graph predicts."""
    results = _bench("consensus", quick, json_file, how=how)
    if picture is not None:
        from shoal.benchmarks.consensus import draw

        with _in_words():
            draw(results, picture)
        click.echo(f"the picture: {picture}")


@bench.command("copies")
@click.option("--quick", is_flag=True, help="Smaller pushes, fewer of them.")
@click.option("--repeat", type=click.IntRange(1), help="Batches of each contestant in each case.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_copies(quick: bool, repeat: int | None, json_file: Path | None) -> None:
    """Pushes to servers that keep one, two or three copies: how many a second, and the bytes between servers."""
    _bench("copies", quick, json_file, repeat=repeat)


@bench.command("failover")
@click.option("--quick", is_flag=True, help="20 MB instead of 100, and fewer faults.")
@click.option("--kills", type=click.IntRange(0), help="Servers that are killed.")
@click.option("--stops", type=click.IntRange(0), help="Servers that are stopped, which nobody sees.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_failover(quick: bool, kills: int | None, stops: int | None, json_file: Path | None) -> None:
    """A server dies: the time until all its segments are pushed to again, and until all copies are there."""
    _bench("failover", quick, json_file, kills=kills, stops=stops)


@bench.command("torch")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds.")
@click.option("--net", type=click.Choice(["linear", "cnn", "sheet"]), help="The network.  [default: cnn]")
@click.option("--batch", type=click.IntRange(1), help="Images in a batch.  [default: 64]")
@click.option("--rounds", type=click.IntRange(1), help="Of all contestants in turn.  [default: 5]")
@click.option("--seconds", type=click.FloatRange(0.1), help="Timed, of each contestant in a round.  [default: 5]")
@click.option("--only", metavar="A,B", help="These contestants; plain is always among them.  [default: all]")
@click.option("--workers", metavar="N,N", help="How many, one after another.  [default: 1,2]")
@click.option("--keep-memory", is_flag=True, help="All processes, ours and theirs, keep their memory between batches.")
@click.option("--data", help="mnist, digits or an .npz file of images.  [default: mnist]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_torch(
    quick: bool,
    net: str | None,
    batch: int | None,
    rounds: int | None,
    seconds: float | None,
    only: str | None,
    workers: str | None,
    keep_memory: bool,
    data: str | None,
    json_file: Path | None,
) -> None:
    """A network on MNIST: plain PyTorch, DDP, torch RPC and Ray beside one and two workers of ours.

    \b
    shoal bench torch --net sheet --workers 2 --only "shoal hogwild,shoal averaging,ddp"
    """
    given: dict[str, Any] = {"net": net, "batch": batch, "rounds": rounds, "seconds": seconds, "data": data}
    given |= {"keep_memory": keep_memory}
    if only is not None:
        given["rivals"] = tuple(dict.fromkeys(["plain", *(name.strip() for name in only.split(","))]))
    if workers is not None:
        given["workers"] = _numbers(workers)
    _bench("torch_training", quick, json_file, **given)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: give whole numbers with commas between them, such as 1,2", param_hint="--workers"
        ) from None


@bench.command("sparse-logistic")
@click.option("--quick", is_flag=True, help="RCV1 alone, fewer workers and delays.")
@click.option("--data", "sets", metavar="A,B", help="Which sets.  [default: a9a,rcv1,criteo_tb, from SHOAL_DATA]")
@click.option(
    "--l1", type=click.FloatRange(0, min_open=True), help="The penalty.  [default: 1 for rcv1, 10 for the others]"
)
@click.option("--seconds", type=click.FloatRange(1), help="For each solver in one thread, at most.  [default: 120]")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (.png, .svg).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_sparse_logistic(
    quick: bool,
    sets: str | None,
    l1: float | None,
    seconds: float | None,
    picture: Path | None,
    json_file: Path | None,
) -> None:
    """Block-proximal with 1, 2, 4 workers and delays of 0, 2, 8 beside scikit-learn's liblinear and saga: seconds to the same solution."""
    data = None if sets is None else tuple(name.strip() for name in sets.split(","))
    results = _bench("sparse_logistic", quick, json_file, data=data, l1=l1, seconds=seconds)
    if picture is not None:
        from shoal.benchmarks.sparse_logistic import draw

        with _in_words():
            draw(results, picture)
        click.echo(f"the picture: {picture}")


@bench.command("dense")
@click.option("--quick", is_flag=True, help="Two sizes, one round.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (.png, .svg).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_dense(quick: bool, picture: Path | None, json_file: Path | None) -> None:
    """Dense and sparse updates of the store against an all-reduce (gloo): time, bytes, memory, and where they cross."""
    results = _bench("dense", quick, json_file)
    if picture is not None:
        from shoal.benchmarks.dense import draw

        with _in_words():
            draw(results, picture)
        click.echo(f"the picture: {picture}")


@bench.command("hogwild")
@click.option("--quick", is_flag=True, help="Few rows and steps: seconds, and no figures to quote.")
@click.option("--rows", type=click.IntRange(2_000), help="Of the smaller set.  [default: 150,000 a core]")
@click.option("--threads", help="Counts, with commas.  [default: 1,2,4,... up to the cores]")
@click.option("--repeat", type=click.IntRange(1), help="Runs of each case.  [default: 3]")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (.png, .svg).")
@click.option(
    "--from",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show and draw what --json wrote, here or elsewhere, and measure nothing.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def bench_hogwild(
    quick: bool,
    rows: int | None,
    threads: str | None,
    repeat: int | None,
    picture: Path | None,
    earlier: Path | None,
    json_file: Path | None,
) -> None:
    """Does Hogwild still scale? Threads on one model by rows a second and by time to a loss, for every way and rule."""
    import msgspec

    from shoal.benchmarks import hogwild, hogwild_show

    given = {"rows": rows, "threads": _counts(threads), "repeat": repeat}
    changes = {setting: value for setting, value in given.items() if value is not None}
    with _in_words():
        if earlier is not None:
            results = hogwild_show.load(earlier)
        else:
            settings = msgspec.structs.replace(hogwild.QUICK if quick else hogwild.FULL, **changes)
            results = hogwild.measure(settings, _progress)
    _show_bench(hogwild_show.table(results), results, json_file)
    if picture is not None:
        with _in_words():
            hogwild_show.draw(results, picture)
        click.echo(f"the picture: {picture}")


def _counts(given: str | None) -> tuple[int, ...] | None:
    try:
        return None if given is None else tuple(sorted({int(one) for one in given.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{given!r}: numbers with commas are needed, as in 1,2,4") from None


def _bench(name: str, quick: bool, json_file: Path | None, **given: Any) -> Any:
    """Measure by the module of this name, with the settings that were given on the command line, and show what was found."""
    import msgspec

    what = importlib.import_module(f"shoal.benchmarks.{name}")
    changes = {setting: value for setting, value in given.items() if value is not None}
    with _in_words():
        results = what.measure(msgspec.structs.replace(what.QUICK if quick else what.FULL, **changes), _progress)
    _show_bench(what.table(results), results, json_file)
    return results


def _progress(line: str) -> None:
    click.echo(line, err=True)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    from shoal.errors import ShoalError

    try:
        yield
    except (ShoalError, ImportError) as error:
        raise click.ClickException(str(error)) from None


def _show_bench(shown: object, results: object, json_file: Path | None) -> None:
    import msgspec
    from rich.console import Console

    Console(width=None if Console().is_terminal else 140).print(shown)
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
        click.echo(f"all figures: {json_file}")

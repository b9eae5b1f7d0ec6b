"""Dense against sparse updates, and where an all-reduce wins (S1-29).

    dense        a table with all rows: the whole range is pushed and comes back
    sparse       rows are made when pushed: keys and values of nonzeros go, values come back
    all-reduce   gloo, two processes: both get the sum of two dense gradients, and each applies it

An update is two gradients, of two workers: the store has both in flight at once, from one client to
one server process over Unix sockets, with plain SGD. An all-reduce costs the same at any density, a
sparse push only its nonzeros: so the lines cross, and the density where they do is shown. Rounds
alternate; times are medians, bytes are those of one worker both ways.
"""

from __future__ import annotations

import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from benchmarks.harness import Bench, Record, Report, Say, machine, sheet
from shoal.errors import Invalid
from shoal.launch.local import local
from shoal.models import needs_torch
from shoal.store.table.update import SGD
from shoal.tables import Dense, Sparse

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from shoal.client import KV

WORKERS = 2


class Settings(Record, frozen=True, kw_only=True):
    """Which sizes."""

    weights: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    densities: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    rounds: int = 3
    seconds: float = 0.15  # of each case in each round
    seed: int = 0


FULL = Settings()
QUICK = Settings(weights=(10_000, 1_000_000), rounds=1)


class Case(Record, frozen=True):
    """One way to make an update."""

    way: str
    weights: int
    density: float  # of what is pushed
    milliseconds: float  # an update
    sent: int  # bytes of arrays that one worker sends and is sent
    memory: int  # bytes of a server's rows


class Results(Report[Settings, Case], frozen=True):
    """With a way to find cases."""

    def of(self, way: str, weights: int) -> list[Case]:
        return [case for case in self.cases if (case.way, case.weights) == (way, weights)]


class Sums(Record, frozen=True):
    """What the processes of an all-reduce are to do."""

    weights: list[int]
    seconds: float


def measure(settings: Settings, say: Say) -> Results:
    needs_torch("an all-reduce")
    if min(settings.rounds, *settings.weights) < 1 or not all(0 < one <= 1 for one in settings.densities):
        raise Invalid("a benchmark needs at least one round and one weight, and densities above 0 and up to 1")
    began = time.perf_counter()
    times: dict[tuple[str, int, float], list[float]] = {}
    memory: dict[tuple[str, int, float], tuple[int, int]] = {}
    for number in range(settings.rounds):
        say(f"round {number + 1} of {settings.rounds}: all-reduce, then the store")
        for weights, took in zip(settings.weights, all_reduces(settings), strict=True):
            times.setdefault(("all-reduce", weights, 1.0), []).append(took)
            # A ring of two sends as much as it has, and is sent as much.
            memory["all-reduce", weights, 1.0] = 8 * weights, 0
        with local(1, processes=True) as cluster, cluster.client() as kv:
            for weights in settings.weights:
                _store(kv, weights, settings, times, memory)
    cases = [
        Case(*key, statistics.median(found) * 1e3, *memory[key]) for key, found in sorted(times.items(), key=_order)
    ]
    return Results(machine(), settings, time.perf_counter() - began, cases)


def _order(item: tuple[tuple[str, int, float], list[float]]) -> tuple[int, str, float]:
    (way, weights, density), _ = item
    return weights, way, density


def _store(kv: KV, weights: int, settings: Settings, times: dict[Any, list[float]], memory: dict[Any, Any]) -> None:
    """All densities of one size, in tables that are dropped again."""
    chance = np.random.default_rng(settings.seed)
    whole = [(slice(0, weights), chance.standard_normal(weights, np.float32)) for _ in range(WORKERS)]
    kv.create("dense", Dense(rows=weights, update=SGD(0.01)))
    times.setdefault(("dense", weights, 1.0), []).append(_timed(_updates(kv, "dense", whole), settings.seconds))
    memory["dense", weights, 1.0] = (8 * weights, _memory(kv, "dense"))
    kv.drop("dense")
    for density in settings.densities:
        some = []
        for _, values in whole:
            keys = np.flatnonzero(chance.random(weights) < density).astype(np.uint64)
            keys = keys if len(keys) else np.array([weights // 2], np.uint64)
            some.append((keys, values[: len(keys)]))
        kv.create("sparse", Sparse(keys=weights, update=SGD(0.01)))
        times.setdefault(("sparse", weights, density), []).append(
            _timed(_updates(kv, "sparse", some), settings.seconds)
        )
        memory["sparse", weights, density] = (16 * len(some[0][0]), _memory(kv, "sparse"))
        kv.drop("sparse")


def _updates(kv: KV, table: str, pushed: list[tuple[Any, Any]]) -> Callable[[], None]:
    return lambda: kv.wait([kv.push_pull(table, keys, values) for keys, values in pushed])


def _memory(kv: KV, table: str) -> int:
    return int(kv.stats(table)["bytes"])


def _timed(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call, on average, after the first."""
    call()
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < seconds:
        call()
        count += 1
    return (time.perf_counter() - began) / count


# ------------------------------------------------------------ the all-reduce


def all_reduces(settings: Settings) -> list[float]:
    """Seconds of an update, size by size, in two processes of their own."""
    from benchmarks.torch_training import said_by

    orders = msgspec.json.encode(Sums(list(settings.weights), settings.seconds)).decode()
    said = said_by("benchmarks.dense", [orders], 60.0 + 10 * settings.seconds * len(settings.weights))
    return msgspec.json.decode(said, type=list[float])


def reducing(number: int, orders: Any, meet: str, barrier: Any) -> Any:
    """One of the processes: what it took, from the first one."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, rank=number, world_size=WORKERS)
    found = []
    for weights in orders.weights:
        gradient, model = torch.full((weights,), 1e-6), torch.zeros(weights)
        found.append(_reduce(dist, torch, gradient, model, orders.seconds))
    dist.destroy_process_group()
    return found if number == 0 else None


def _reduce(dist: Any, torch: Any, gradient: Any, model: Any, seconds: float) -> float:
    def update() -> None:
        dist.all_reduce(gradient)
        model.add_(gradient, alpha=-0.01)
        gradient.mul_(0.5)

    update()
    began = time.perf_counter()
    for _ in range(3):
        update()
    count = torch.tensor([max(3, math.ceil(3 * seconds / (time.perf_counter() - began)))])
    dist.broadcast(count, 0)  # as many on both sides
    began = time.perf_counter()
    for _ in range(int(count.item())):
        update()
    return (time.perf_counter() - began) / int(count.item())


# ------------------------------------------------------------ shown


def crossing(cases: Sequence[Case], level: float) -> float | None:
    """The density at which sparse updates take so long, interpolated; None: at none."""
    for one, two in pairwise(cases):
        if one.milliseconds <= level < two.milliseconds:
            share = math.log(level / one.milliseconds) / math.log(two.milliseconds / one.milliseconds)
            return math.exp(math.log(one.density) + share * math.log(two.density / one.density))
    return None


def verdicts(results: Results) -> list[str]:
    """For each size, where the lines cross."""
    found = []
    for weights in results.settings.weights:
        sparse, (reduced,) = results.of("sparse", weights), results.of("all-reduce", weights)
        at = crossing(sparse, reduced.milliseconds)
        if at is not None:
            what = f"sparse updates are faster than an all-reduce below a density of {at:.2g}"
        elif sparse and sparse[0].milliseconds > reduced.milliseconds:
            what = "an all-reduce is faster at every density"
        else:
            what = "sparse updates are faster at every density"
        found.append(f"{weights:,} weights: {what}")
    return found


COLUMNS = (
    ("weights", "{0.weights:,}"),
    ("<how", "{0.way}"),
    ("density", "{0.density:g}"),
    ("ms an update", "{0.milliseconds:,.2f}"),
    ("KB a worker", lambda case: f"{case.sent / 1e3:,.1f}"),
    ("MB of a server", lambda case: f"{case.memory / 1e6:,.2f}" if case.memory else ""),
)


def table(results: Results) -> Table:
    said = "KB: arrays that one worker sends and is sent; of an all-reduce as a ring of two has it"
    return sheet(
        f"one update of two workers, {results.machine}",
        COLUMNS,
        results.cases,
        "\n".join([*verdicts(results), said]),
        section=lambda case: case.weights,
    )


def picture(results: Results) -> Figure:
    """Time over density, one panel for each size."""
    from shoal.views import axes as draw
    from shoal.views.axes import DASHES, INK, SERIES

    sizes = results.settings.weights
    rows = math.ceil(len(sizes) / 2)
    figure = draw.canvas(2.5 * rows + 0.6, 7.2)
    crossings = []
    panels = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).flat
    for number, (weights, axes) in enumerate(zip(sizes, panels, strict=False)):
        sparse = results.of("sparse", weights)
        x, y = [one.density for one in sparse], [one.milliseconds for one in sparse]
        axes.loglog(x, y, "o-", color=SERIES[0], label="sparse push")
        levels = {way: results.of(way, weights)[0].milliseconds for way in ("dense", "all-reduce")}
        axes.axhline(levels["dense"], color=SERIES[1], linestyle=DASHES[1], label="dense push")
        axes.axhline(levels["all-reduce"], color=SERIES[2], linestyle=DASHES[2], label="all-reduce")
        if (at := crossing(sparse, levels["all-reduce"])) is not None:
            crossings.append(at)
            axes.axvline(at, color=INK, linewidth=0.7, linestyle=":")
            text = axes.text(at, 0.02, f" {at:.2g}", transform=axes.get_xaxis_transform())
            text.set(fontsize=8, color=INK)
        draw.titled(axes, f"{weights:,} weights")
        draw.numbers(axes.yaxis)
        draw.tidy(axes)
        if number >= len(sizes) - 2:
            axes.set_xlabel("share of weights in the gradient")
        if number % 2 == 0:
            axes.set_ylabel("milliseconds an update")
        if number == 0:
            draw.legend(axes, fontsize=8)
    found = f": up to a share of {min(crossings):.2g} to {max(crossings):.2g}" if crossings else " at every density"
    draw.headline(figure, f"Sparse pushes are faster than an all-reduce{found}", size=11)
    return figure


if __name__ == "__main__":
    from benchmarks.torch_rivals import _end_with_parent, together

    threading.Thread(target=_end_with_parent, daemon=True).start()
    given: Any = msgspec.json.decode(sys.argv[1], type=Sums)
    print(msgspec.json.encode(together(reducing, given, WORKERS)[0]).decode(), flush=True)


BENCH = Bench(
    help="Dense and sparse updates of the store against an all-reduce (gloo): time, bytes, memory, and where they cross.",
    quick_help="Two sizes, one round.",
    measure=measure,
    table=table,
    picture=picture,
)

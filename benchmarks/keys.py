"""A table of very many keys: bytes and speed; and a click log without its rare features.

store      one server (a thread), AdaGrad, unique random 63-bit ids, 1M in a push: first all of them
           are made, then some pushed again and pulled; bytes are those of rows and index, and what
           the process grew by
rare       the same keys, each pushed once, to a table that admits a key at its second push
rivals     fewer keys, in this process, no messages, the same pushes for all; none keeps optimizer
           state, checks anything or survives anything:
             python dict      one Python object for each key and each value
             sorted arrays    numpy: searchsorted, and everything is merged when keys are new
             numba dict       a typed dictionary and a compiled loop over the keys of a push
clicks     a linear model on made-up clicks, with features admitted at their n-th push: how many
           there are, and the AUC
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import click
import numpy as np

from benchmarks.harness import Bench, Machine, Option, Record, Say, machine, sheet
from shoal.errors import Invalid
from shoal.keys import KeyList, KeyRange, Keys, Values, distinct
from shoal.launch.local import local
from shoal.limits import KEY_LIMIT
from shoal.store.table.table import ServerTable
from shoal.store.table.update import AdaGrad
from shoal.tables import Sparse

if TYPE_CHECKING:
    from rich.console import Group

LOW_BITS = 12  # of a key say which push it is of: so no key is in two


class Settings(Record, frozen=True, kw_only=True):
    """What is measured."""

    keys: int = 50_000_000
    push: int = 1_000_000  # keys in one
    again: int = 10  # pushes and pulls of keys that are there
    rival_keys: int = 4_000_000
    rows: int = 2_000_000  # of clicks; 0: none
    admit: tuple[int, ...] = (0, 2, 3, 5, 10)


FULL = Settings()
QUICK = Settings(keys=5_000_000, rival_keys=1_000_000, rows=200_000, admit=(0, 3))


class Figures(Record, frozen=True):
    """One contestant: keys a second when new, when known, when read; and bytes a key."""

    who: str
    keys: int
    born: float
    pushed: float
    pulled: float
    bytes_per_key: float  # as it says itself; 0: it does not
    grown_per_key: float  # what the process has more of, memory that was taken ahead included


class Rare(Record, frozen=True):
    """Keys that came once, to a table that wants them twice."""

    keys: int
    rows: int  # keys that were admitted
    pushed: float  # keys a second
    grown_per_key: float


class Clicks(Record, frozen=True):
    """A run whose features are let in at their n-th push."""

    admit: int
    weights: int  # that are not 0
    auc: float
    loss: float
    seconds: float


class Results(Record, frozen=True):
    """All of one run."""

    machine: Machine
    settings: Settings
    seconds: float
    store: Figures
    rare: Rare
    rivals: list[Figures]
    clicks: list[Clicks]


def measure(settings: Settings, say: Say) -> Results:
    if not 0 < settings.push <= settings.keys <= settings.push << LOW_BITS or settings.again < 1:
        raise Invalid(f"a benchmark of keys needs some: 1 to {1 << LOW_BITS} pushes, and some that are made again")
    began = time.perf_counter()
    say(f"{settings.keys:,} keys, {settings.push:,} in a push")
    store = _store(settings)
    say(f"{settings.keys:,} keys that come once, where twice is wanted")
    rare = _rare(settings)
    rivals = []
    for who, rival in RIVALS.items():
        say(f"{who}: {settings.rival_keys:,} keys")
        rivals.append(_rival(settings, who, rival()))
    clicks = []
    for admit in settings.admit if settings.rows else ():
        say(f"{settings.rows:,} rows of clicks, features let in at push {max(1, admit)}")
        clicks.append(_clicks(settings, admit))
    return Results(machine(), settings, time.perf_counter() - began, store, rare, rivals, clicks)


def _keys(settings: Settings, number: int, most: int) -> Keys:
    """The sorted keys of the n-th push of so many in all."""
    count = min(settings.push, most - number * settings.push)
    draw = np.random.default_rng([number, settings.keys])
    found = distinct(draw.integers(0, KEY_LIMIT >> LOW_BITS, size=count + count // 1_000 + 8, dtype=np.uint64))
    return (found[:count] << np.uint64(LOW_BITS)) | np.uint64(number)


def _some(settings: Settings, number: int, most: int) -> Keys:
    """As many that were pushed before, of all pushes alike."""
    pushes = -(-most // settings.push)
    draw = np.random.default_rng([number, 1])
    parts = [_keys(settings, at, most) for at in draw.integers(0, pushes, size=4)]
    return distinct(np.concatenate([one[draw.random(len(one)) < 0.25] for one in parts]))


def _store(settings: Settings) -> Figures:
    before = _memory()
    with local(servers=1) as cluster, cluster.client() as kv:
        kv.create("keys", Sparse(keys=KEY_LIMIT, update=AdaGrad(step=0.1)))
        push = lambda keys: kv.push("keys", KeyList(keys), np.ones(len(keys), np.float32)).result()  # noqa: E731
        pull = lambda keys: kv.pull("keys", KeyList(keys)).result()  # noqa: E731
        born, pushed, pulled = _timed(settings, settings.keys, push, pull)
        told = kv.stats("keys")
        grown = _memory() - before
    assert told["rows"] == settings.keys
    return Figures("shoal", settings.keys, born, pushed, pulled, told["bytes"] / told["rows"], grown / settings.keys)


def _rare(settings: Settings) -> Rare:
    before = _memory()
    with local(servers=1) as cluster, cluster.client() as kv:
        kv.create("rare", Sparse(keys=KEY_LIMIT, update=AdaGrad(step=0.1), admit=2))
        taken = 0.0
        for number in range(-(-settings.keys // settings.push)):
            keys = _keys(settings, number, settings.keys)
            values, began = np.ones(len(keys), np.float32), time.perf_counter()
            kv.push("rare", KeyList(keys), values).result()
            taken += time.perf_counter() - began
        rows, grown = kv.stats("rare")["rows"], _memory() - before
    return Rare(settings.keys, rows, settings.keys / taken, grown / settings.keys)


def _rival(settings: Settings, who: str, rival: Any) -> Figures:
    before, most = _memory(), settings.rival_keys
    push = lambda keys: rival.push(keys, np.ones(len(keys), np.float32))  # noqa: E731
    born, pushed, pulled = _timed(settings, most, push, rival.pull)
    return Figures(who, most, born, pushed, pulled, 0.0, (_memory() - before) / most)


def _timed(
    settings: Settings, most: int, push: Callable[[Keys], Any], pull: Callable[[Keys], Any]
) -> tuple[float, ...]:
    """Keys a second: born, pushed again, pulled."""
    pushes = range(-(-most // settings.push))
    speeds = [_speed(push, (_keys(settings, number, most) for number in pushes))]
    for what in (push, pull):
        speeds.append(_speed(what, (_some(settings, number, most) for number in range(settings.again))))
    return tuple(speeds)


def _speed(call: Callable[[Keys], Any], lists: Any) -> float:
    count, taken = 0, 0.0
    for keys in lists:
        began = time.perf_counter()
        call(keys)
        taken += time.perf_counter() - began
        count += len(keys)
    return float(count / taken)


def _clicks(settings: Settings, admit: int) -> Clicks:
    from shoal.models.trained import Trained
    from shoal.run.run import train

    more = {"launch.how": "threads", "data.rows": settings.rows, "strategy.admit": admit}
    run = train("clicks", strategy="sync", workers=1, epochs=1, settings=more)
    assert isinstance(run.model, Trained)
    figures = run.summary
    auc, loss, seconds = figures["metrics"]["auc"], figures["test_loss"], figures["seconds"]
    return Clicks(admit, int(np.count_nonzero(run.model.weights)), auc, loss, seconds)


def _memory() -> int:
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


# ---------------------------------------------------------------- rivals


class Rival(Protocol):
    """Adds what is pushed to what it has; a key that it does not have reads as 0."""

    def push(self, keys: Keys, values: Values) -> None: ...

    def pull(self, keys: Keys) -> Values: ...


class Ours:
    """The rows of a table, without client, server or copies: what a server has at its heart."""

    def __init__(self) -> None:
        self._table = ServerTable(Sparse(keys=KEY_LIMIT), [KeyRange(0, KEY_LIMIT)])

    def push(self, keys: Keys, values: Values) -> None:
        self._table.push(keys, values)

    def pull(self, keys: Keys) -> Values:
        return self._table.pull(keys).reshape(-1)


class PythonDict:
    def __init__(self) -> None:
        self._found: dict[int, float] = {}

    def push(self, keys: Keys, values: Values) -> None:
        found = self._found
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            found[key] = found.get(key, 0.0) + value

    def pull(self, keys: Keys) -> Values:
        found = self._found
        return np.array([found.get(key, 0.0) for key in keys.tolist()], np.float32)


class SortedArrays:
    def __init__(self) -> None:
        self._keys: Keys = np.empty(0, np.uint64)
        self._values: Values = np.empty(0, np.float32)

    def push(self, keys: Keys, values: Values) -> None:
        places, known = self._find(keys)
        self._values[places[known]] += values[known]
        if known.all():
            return
        new = np.concatenate([self._keys, keys[~known]])
        order = np.argsort(new, kind="stable")
        self._keys, self._values = new[order], np.concatenate([self._values, values[~known]])[order]

    def pull(self, keys: Keys) -> Values:
        places, known = self._find(keys)
        out = np.zeros(len(keys), np.float32)
        out[known] = self._values[places[known]]
        return out

    def _find(self, keys: Keys) -> tuple[Any, Any]:
        places = np.searchsorted(self._keys, keys)
        inside = places < len(self._keys)
        known = inside.copy()
        known[inside] = self._keys[places[inside]] == keys[inside]
        return places, known


class NumbaDict:
    def __init__(self) -> None:
        from numba import njit, types
        from numba.typed import Dict

        self._found = Dict.empty(types.uint64, types.float32)

        @njit  # type: ignore[misc, unused-ignore]
        def push(found: Any, keys: Any, values: Any) -> None:
            for i in range(len(keys)):
                found[keys[i]] = found.get(keys[i], np.float32(0)) + values[i]

        @njit  # type: ignore[misc, unused-ignore]
        def pull(found: Any, keys: Any, out: Any) -> None:
            for i in range(len(keys)):
                out[i] = found.get(keys[i], np.float32(0))

        self._push, self._pull = push, pull
        nothing = np.empty(0, np.uint64), np.empty(0, np.float32)
        push(self._found, *nothing)  # compiled before the race
        pull(self._found, *nothing)

    def push(self, keys: Keys, values: Values) -> None:
        self._push(self._found, keys, values)

    def pull(self, keys: Keys) -> Values:
        out = np.empty(len(keys), np.float32)
        self._pull(self._found, keys, out)
        return out


RIVALS: dict[str, type[Rival]] = {
    "shoal's rows": Ours,
    "numba dict": NumbaDict,
    "sorted arrays": SortedArrays,
    "python dict": PythonDict,
}


# ---------------------------------------------------------------- showing it

COLUMNS = (
    ("<", "{0.who}"),
    ("keys", "{0.keys:,}"),
    ("born M/s", lambda one: f"{one.born / 1e6:.2f}"),
    ("pushed M/s", lambda one: f"{one.pushed / 1e6:.2f}"),
    ("pulled M/s", lambda one: f"{one.pulled / 1e6:.2f}"),
    ("bytes a key", lambda one: f"{one.bytes_per_key:.1f}" if one.bytes_per_key else ""),
    ("grown a key", "{0.grown_per_key:.1f}"),
)
CLICKS = (
    ("admitted at push", lambda run: f"{max(1, run.admit)}"),
    ("weights", "{0.weights:,}"),
    ("AUC", "{0.auc:.4f}"),
    ("loss", "{0.loss:.5f}"),
    ("seconds", "{0.seconds:.1f}"),
)


def table(results: Results) -> Group:
    from rich.console import Group

    rare = results.rare
    shown = sheet(
        f"many keys, {results.machine}",
        COLUMNS,
        [results.store, *results.rivals],
        "M/s: million keys a second. bytes: of rows and index; grown: what the process has more of. "
        f"{rare.keys:,} keys that came once, where twice is wanted: {rare.rows:,} were admitted, {rare.pushed / 1e6:.1f} M/s, "
        f"grown {rare.grown_per_key:.1f} bytes a key.",
    )
    clicks = sheet(f"{results.settings.rows:,} rows of clicks, one epoch, sync", CLICKS, results.clicks)
    return Group(shown, clicks) if results.clicks else Group(shown)


BENCH = Bench(
    help="Very many keys in one table against dictionaries and sorted arrays; and a click log without its rare features.",
    quick_help="A tenth of everything.",
    measure=measure,
    table=table,
    options=(
        Option("keys", "How many in one table.  [default: 50,000,000]", click.IntRange(1_000)),
        Option("rows", "Of clicks; 0 leaves them out.  [default: 2,000,000]", click.IntRange(0)),
    ),
)

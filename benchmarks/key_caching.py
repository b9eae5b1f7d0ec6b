"""Key caching against sending every key: bytes, hits, and the time of a server.

    runs      the same job with and without, by turns: bytes, lists sent by number, rows a second
    server    one push or pull of a slot's keys, in one thread without a network

Tables of a server: *dense* and *sparse* hold the features of the set, and the lists are those of
its slots; *large* is a sparse table with millions of rows, more than any cache holds, and lists
drawn from them. Times are CPU time of one thread, medians over rounds; a round is all lists once.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np

from benchmarks.harness import Bench, Machine, Option, Record, Say, machine, sheet
from shoal.data.batch import Localiser
from shoal.data.datasets import Dataset, load
from shoal.data.packed import sparse
from shoal.data.slots import Slots
from shoal.errors import Invalid
from shoal.job import Job
from shoal.keys import KeyRange, Keys
from shoal.run.run import train
from shoal.store.server.key_lists import KeyLists, crc_of
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.primary import Primary
from shoal.store.table.update import AdaGrad
from shoal.tables import Dense, Sparse
from shoal.tables import Table as Spec
from shoal.wire import messages as m

if TYPE_CHECKING:
    from rich.console import Group

Letter = tuple[m.Push | m.Pull, list[m.Array]]
ME = 7  # the incarnation of the one client there is


class Settings(Record, frozen=True, kw_only=True):
    """What is measured, and how often."""

    data: str = "rcv1"
    rows: int | None = None
    passes: int = 5
    strategies: tuple[str, ...] = ("sync", "bounded")
    workers: int = 2
    servers: int = 2
    how: str = "processes"
    repeat: int = 3  # runs of each case
    rounds: int = 15  # of all lists, at a server
    lists: int = 40
    large: int = 4_000_000  # rows of the large table
    drawn: int = 4_000  # keys in one of its lists


FULL = Settings()
QUICK = Settings(repeat=1, rounds=5, large=500_000)


class Ran(Record, frozen=True):
    """One strategy, with lists by number or without; medians over its runs."""

    strategy: str
    handles: bool
    sent: float  # bytes, by workers
    received: float
    hits: float  # messages' lists that went by number
    misses: float  # that were sent, to be known from then on
    forgotten: float
    saved: float  # bytes of keys that did not go
    rows_a_second: float
    cpu: float  # seconds, of all processes, what they begin with included
    loss: float

    @property
    def rate(self) -> float:
        return self.hits / (self.hits + self.misses) if self.hits else 0.0


class Served(Record, frozen=True):
    """One table at a server: microseconds of a push and of a pull, with all keys and by number."""

    table: str
    rows: int
    keys: float  # in a list, on average
    push: float
    push_known: float
    pull: float
    pull_known: float


class Results(Record, frozen=True):
    """All of one run."""

    machine: Machine
    settings: Settings
    seconds: float
    runs: list[Ran]
    served: list[Served]


def measure(settings: Settings, say: Say) -> Results:
    if min(settings.repeat, settings.rounds, settings.lists, settings.large, settings.drawn, settings.passes) < 1:
        raise Invalid("a benchmark needs at least one pass, repeat, round, list, row and key")
    began = time.perf_counter()
    job = _job(settings, settings.strategies[0] if settings.strategies else "sync", True)
    dataset = load(job.data, job.seed)
    runs: list[Ran] = []
    for strategy in settings.strategies:
        say(f"{strategy}: {settings.passes} passes over {settings.data}, {settings.repeat} times each")
        runs += _runs(settings, strategy)
    served = [
        _served(settings, name, spec, lists, say)
        for name, spec, lists in _tables(settings, dataset, _lists(settings, job, dataset))
    ]
    return Results(machine(), settings, time.perf_counter() - began, runs, served)


# ---------------------------------------------------------------- whole runs


def _job(settings: Settings, strategy: str, handles: bool) -> Job:
    data: dict[str, object] = {"source": settings.data}
    if settings.rows is not None:
        data["rows"] = settings.rows
    return Job.of(
        {
            "data": data,
            "strategy": strategy,
            "workers": settings.workers,
            "servers": settings.servers,
            "handles": handles,
            "launch": {"how": settings.how},
            "stop": {"epochs": float(settings.passes)},
            "evaluate": {"every": float("inf")},
        }
    )


def _runs(settings: Settings, strategy: str) -> list[Ran]:
    found: dict[bool, list[Ran]] = {True: [], False: []}
    for turn in range(settings.repeat):
        for handles in (True, False) if turn % 2 else (False, True):
            told = train(_job(settings, strategy, handles)).summary
            known = told["handles"] or dict.fromkeys(("hits", "misses", "forgotten", "bytes_saved"), 0)
            figures = [told["bytes_sent"], told["bytes_received"], *known.values()]
            figures += [told["examples_per_second"], told["cpu_seconds"] or 0.0, told["test_loss"]]
            found[handles].append(Ran(strategy, handles, *figures))
    return [_median(found[handles]) for handles in (False, True)]


def _median(runs: list[Ran]) -> Ran:
    first, *_ = runs
    numbers = [name for name in Ran.__struct_fields__ if name not in ("strategy", "handles")]
    middle = {name: float(np.median([getattr(run, name) for run in runs])) for name in numbers}
    return msgspec.structs.replace(first, **middle)


# ---------------------------------------------------------------- a server


def _lists(settings: Settings, job: Job, dataset: Dataset) -> list[Keys]:
    """The keys of the first slots, as workers send them."""
    train = sparse(dataset.train)
    slots, localiser = Slots(train.rows, job.data.batch, job.seed), Localiser(dataset.features)
    contents = range(min(settings.lists, slots.per_pass))
    return [localiser.local(train.slice(*slots.span(content)), bias=True).keys for content in contents]


def _tables(settings: Settings, dataset: Dataset, lists: list[Keys]) -> list[tuple[str, Spec, list[Keys]]]:
    chance, rule = np.random.default_rng(0), AdaGrad()
    drawn = [
        np.unique(chance.integers(0, settings.large, settings.drawn).astype(np.uint64)) * np.uint64(97) for _ in lists
    ]
    return [
        ("dense", Dense(rows=dataset.features + 1, update=rule), lists),
        ("sparse", Sparse(keys=dataset.features + 1, update=rule), lists),
        ("large", Sparse(keys=97 * settings.large, update=rule), drawn),
    ]


def _served(settings: Settings, name: str, spec: Spec, lists: list[Keys], say: Say) -> Served:
    say(f"a server, {name}: {len(lists)} lists of {np.mean([len(keys) for keys in lists]):,.0f} keys")
    desk = Desk(spec)
    if name == "large":
        everything = np.arange(settings.large, dtype=np.uint64) * np.uint64(97)
        desk.own.table.push(everything, np.ones((settings.large, 1), np.float32))
    times: dict[str, list[float]] = {"push": [], "push_known": [], "pull": [], "pull_known": []}
    for _ in range(2):  # births, numbers and rows
        for known in (False, True):
            desk.push(lists, known)
            desk.pull(lists, known)
    gc.collect()
    for turn in range(settings.rounds):
        for what in list(times) if turn % 2 else reversed(times):
            call = desk.push if what.startswith("push") else desk.pull
            times[what].append(call(lists, what.endswith("known")) / len(lists))
    middle = {what: float(np.median(taken)) for what, taken in times.items()}
    return Served(name, desk.own.table.rows, float(np.mean([len(keys) for keys in lists])), **middle)


class Desk:
    """A server's segments of one table, and the one client that asks them."""

    def __init__(self, spec: Spec) -> None:
        cuts = [spec.span * part // 8 for part in range(9)]
        held = [(part, KeyRange(cuts[part], cuts[part + 1])) for part in range(8)]
        self.own = Primary(1, spec, held, inline=1 << 60)
        self.own.key_lists = KeyLists()
        self._numbers = count(1)

    def push(self, lists: list[Keys], known: bool) -> float:
        """Push to all lists; microseconds."""
        letters: list[Letter] = []
        for number, keys in enumerate(lists, 1):
            at = next(self._numbers)
            push = m.Push(
                request=at, table=1, view=1, generation=0, incarnation=ME, stream=-ME, number=at, floor=at, step=0, entered=0,
                spell=0, first=0, last=m.EVERYWHERE, count=len(keys), handle=number, known=known, crc=crc_of(keys),
            )  # fmt: skip
            values = np.full(len(keys), 0.5, np.float32)
            plain = msgspec.structs.replace(push, handle=0, crc=0) if self._taught(known) else push
            letters.append((push if known else plain, [values] if known else [keys, values]))
        return self._timed(letters, self.own.push)

    def pull(self, lists: list[Keys], known: bool) -> float:
        letters: list[Letter] = []
        for number, keys in enumerate(lists, 1):
            pull = m.Pull(
                request=next(self._numbers), table=1, view=1, generation=0, incarnation=ME, clock=-1, entered=0, spell=0, first=0,
                last=m.EVERYWHERE, count=len(keys), handle=number if known else 0, known=known, crc=crc_of(keys) if known else 0,
            )  # fmt: skip
            letters.append((pull, [] if known else [keys]))
        return self._timed(letters, self.own.pull)

    def _taught(self, known: bool) -> bool:
        """Whether the lists were sent with their numbers once: what is timed as plain has none."""
        return not known and len(self.own.key_lists) > 0

    def _timed(self, letters: list[Letter], call: Callable[..., HandlerResult]) -> float:
        began = time.thread_time()  # of this thread alone
        for message, arrays in letters:
            outcome = call(0, "me", message, arrays)
            if isinstance(outcome.effects[0].message, m.Refusal | m.Forgot):  # type: ignore[union-attr]
                raise Invalid(f"the server says {outcome.effects[0]}")
        return (time.thread_time() - began) * 1e6


RUNS = (
    ("<strategy", "{0.strategy}"),
    ("<handles", lambda ran: "yes" if ran.handles else "no"),
    ("MB to servers", lambda ran: f"{ran.sent / 1e6:.2f}"),
    ("MB to workers", lambda ran: f"{ran.received / 1e6:.2f}"),
    ("by number", lambda ran: f"{ran.rate:.1%}" if ran.handles else "-"),
    ("forgotten", "{0.forgotten:.0f}"),
    ("rows/s", "{0.rows_a_second:,.0f}"),
    ("CPU s", "{0.cpu:.2f}"),
    ("loss", "{0.loss:.4f}"),
)
SERVED = (
    ("<table", "{0.table}"),
    ("rows", "{0.rows:,}"),
    ("keys", "{0.keys:,.0f}"),
    ("push", "{0.push:.1f}"),
    ("by number", "{0.push_known:.1f}"),
    ("x", lambda one: f"{one.push / one.push_known:.2f}"),
    ("pull", "{0.pull:.1f}"),
    ("by number", "{0.pull_known:.1f}"),
    ("x", lambda one: f"{one.pull / one.pull_known:.2f}"),
)


def table(results: Results) -> Group:
    from rich.console import Group

    settings = results.settings
    runs = sheet(
        f"{settings.passes} epochs over {settings.data}, {settings.workers} workers x {settings.servers} servers",
        RUNS,
        results.runs,
        "By number: lists of keys in messages that went by a number, of those that could. The first epoch has to send them.",
        section=lambda ran: ran.strategy,
    )
    served = sheet(
        f"a server's CPU time, {results.machine.cpu}: microseconds, with all keys and by number",
        SERVED,
        results.served,
        "From the message to the answer, without the network and the decoding of bytes.",
    )
    return Group(runs, served)


BENCH = Bench(
    help="Lists of keys that servers know by a number, against sending them: bytes of whole runs, and a server's time.",
    quick_help="One run of each, fewer rounds.",
    measure=measure,
    table=table,
    options=(
        Option("data", "A set of sparse rows (shoal data list).  [default: rcv1]"),
        Option("repeat", "Runs of each case.", click.IntRange(1)),
    ),
)

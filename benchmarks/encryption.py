"""What checksums and encryption cost over tcp: bare, with checksums, and with keys (CURVE).

    push, pull     a whole dense table, several in flight: MB a second of values
    round trip     256 floats (1 KB) pulled, one after another
    training       rows a second of a run on made-up clicks, over tcp
    refusals       the time until a caller is refused: with a key that is not on the list, with
                   another key than the address says, without a key; 5 seconds are allowed

All clusters run together and take turns: A B C, C B A, ... A figure is the median over the turns,
a ratio that of medians to the bare one, above 1 where it is faster. Beside it stand the lowest and
the highest ratio of a round: how much of it is chance. Both ends of every wire share the cores of
one machine: over a network the same encryption weighs less.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.harness import Bench, Cell, Option, Record, Report, Say, machine, pipelined, quiet, sheet, timed
from shoal.client import KV
from shoal.errors import Invalid, Refused
from shoal.launch.local import connect, local
from shoal.security import keyring
from shoal.security.address import parsed, with_key
from shoal.tables import Dense

if TYPE_CHECKING:
    from rich.table import Table

WAYS = ("bare", "clear", "keys")  # without checksums, with them, encrypted
WITHIN = 5.0  # seconds until a refusal
_ANSWER = 60.0  # seconds for one push
_WORD = 256  # floats: 1 KB


class Settings(Record, frozen=True, kw_only=True):
    """What is measured, and how often."""

    floats: int = 1_000_000  # of the dense table
    pushes: int = 40  # and pulls, in one turn
    flying: int = 4
    trips: int = 500
    rows: int = 200_000  # of clicks; 0: no training
    workers: int = 2
    repeat: int = 7
    runs: int = 3  # of training, each way
    refusals: int = 5


FULL = Settings()
QUICK = Settings(floats=250_000, pushes=16, trips=100, rows=20_000, repeat=3, runs=1, refusals=2)


class Case(Record, frozen=True):
    """One thing, all ways."""

    what: str
    unit: str
    found: dict[str, list[float]]  # by way, turn by turn

    def median(self, way: str) -> float:
        return statistics.median(self.found[way])

    def ratio(self, way: str) -> float:
        """To the bare one, as speeds."""
        return self._ratio(self.median("bare"), self.median(way))

    def spread(self, way: str) -> tuple[float, float]:
        """The lowest and the highest of turns of the same round."""
        each = [self._ratio(bare, other) for bare, other in zip(self.found["bare"], self.found[way], strict=True)]
        return min(each), max(each)

    def _ratio(self, bare: float, other: float) -> float:
        return bare / other if self.unit == "us" else other / bare

    def compared(self, way: str) -> str:
        low, high = self.spread(way)
        told = f"{self.ratio(way):.2f}"
        return f"{told} ({low:.2f}-{high:.2f})" if len(self.found[way]) > 1 else told


class Refusal(Record, frozen=True):
    """How soon a caller hears that it may not come in."""

    why: str
    seconds: list[float]
    told: str


class Results(Report[Settings, Case], frozen=True):
    """With the refusals."""

    refusals: list[Refusal]


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if settings.repeat < 1 or settings.refusals < 1 or (settings.rows and settings.runs < 1):
        raise Invalid("a benchmark needs at least one repeat of everything")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="shoal-curve-") as place:
        keys = Path(place) / "keys"
        keyring.make(keys, "coordinator", "coordinator")
        with contextlib.ExitStack() as stack:
            clusters = {
                way: stack.enter_context(
                    local(
                        1,
                        processes=True,
                        transport="tcp",
                        keys=keys if way == "keys" else None,
                        checksums=way != "bare",
                    )
                )
                for way in WAYS
            }
            kvs = {way: stack.enter_context(cluster.client()) for way, cluster in clusters.items()}
            cases = _race(settings, kvs, say)
            refusals = _refused(settings, clusters["keys"].address, Path(place), say)
        if settings.rows:
            cases.append(_training(settings, keys, Path(place), say))
    return Results(machine(), settings, time.perf_counter() - began, cases, refusals)


# ---------------------------------------------------------------- the store


def _race(settings: Settings, kvs: dict[str, KV], say: Say) -> list[Case]:
    values = np.random.default_rng(0).standard_normal(settings.floats, np.float32)
    whole, word = slice(0, settings.floats), slice(0, _WORD)
    megabytes = settings.pushes * values.nbytes / 1e6
    for kv in kvs.values():
        kv.create("w", Dense(rows=settings.floats))

    def push(kv: KV) -> float:
        return megabytes / _many(settings, lambda: kv.push("w", whole, values))

    def pull(kv: KV) -> float:
        return megabytes / _many(settings, lambda: kv.pull("w", whole))

    def trip(kv: KV) -> float:
        began = time.perf_counter()
        for _ in range(settings.trips):
            kv.pull("w", word).result(_ANSWER)
        return 1e6 * (time.perf_counter() - began) / settings.trips

    cases = [
        _turns("push", "MB/s", settings.repeat, kvs, push, say),
        _turns("pull", "MB/s", settings.repeat, kvs, pull, say),
        _turns("round trip of 1 KB", "us", settings.repeat, kvs, trip, say),
    ]
    for kv in kvs.values():
        kv.drop("w")
    return cases


def _many(settings: Settings, ask: Callable[[], Any]) -> float:
    """Seconds for so many, several in flight."""
    return timed(lambda: pipelined((ask() for _ in range(settings.pushes)), settings.flying, _ANSWER))


def _turns(what: str, unit: str, repeat: int, by: dict[str, Any], once: Callable[[Any], float], say: Say) -> Case:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for one in by.values():
        once(one)  # the first is thrown away
    for turn in range(repeat):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            found[way].append(once(by[way]))
    return _case(what, unit, found, say)


def _case(what: str, unit: str, found: dict[str, list[float]], say: Say) -> Case:
    case = Case(what, unit, {way: [round(one, 3) for one in found[way]] for way in WAYS})
    say(
        f"{what}: {case.median('bare'):,.0f} {unit} without checksums, {case.median('clear'):,.0f} with them "
        f"(x {case.compared('clear')}), {case.median('keys'):,.0f} with keys (x {case.compared('keys')})"
    )
    return case


# ---------------------------------------------------------------- a run


def _training(settings: Settings, keys: Path, place: Path, say: Say) -> Case:
    from shoal.run.run import train

    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(settings.runs):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            launch: dict[str, Any] = {"launch.transport": "tcp", "launch.keys": str(keys) if way == "keys" else ""}
            launch |= {"launch.checksums": way != "bare", "data.rows": settings.rows, "verbosity": 0}
            run = train(
                "clicks", workers=settings.workers, servers=1, epochs=2, settings=launch, out=place / f"{way}-{turn}"
            )
            found[way].append(run.summary["examples_per_second"])
    return _case(f"training, {settings.workers} workers", "rows/s", found, say)


# ---------------------------------------------------------------- who may not come in


def _refused(settings: Settings, address: str, place: Path, say: Say) -> list[Refusal]:
    stranger = keyring.make(place / "stranger", "stranger", "client")
    plain = parsed(address).plain
    ways: dict[str, Callable[[], KV]] = {
        "a key that is not on the list": lambda: connect(address, keys=place / "stranger"),
        "another key than the address says": lambda: connect(with_key(plain, stranger.public), keys=place / "stranger"),
        "no key": lambda: connect(plain),
    }
    found = []
    say("callers who may not come in: what the coordinator says of them below is meant")
    for why, call in ways.items():
        seconds, told = [], ""
        for _ in range(settings.refusals):
            began = time.perf_counter()
            try:
                call().close()
            except Refused as error:
                seconds.append(round(time.perf_counter() - began, 4))
                told = str(error)
        found.append(Refusal(why, seconds, told))
        say(f"{why}: told after {max(seconds, default=0.0):.3f} s at most")
    return found


def _median(way: str) -> Cell:
    return lambda case: f"{case.median(way):,.0f} {case.unit}"


COLUMNS = (
    ("<what", "{0.what}"),
    ("bare", _median("bare")),
    ("checksums", _median("clear")),
    ("x bare", lambda case: case.compared("clear")),
    ("keys", _median("keys")),
    ("x bare", lambda case: case.compared("keys")),
)


def table(results: Results) -> Table:
    """All ways, and their ratios; below, how soon a caller that may not come in hears it."""
    shown = sheet(
        f"tcp in the clear, without and with checksums, and with keys (CURVE), {results.machine}",
        COLUMNS,
        results.cases,
        "x bare: as fast as in the clear without checksums, above 1 faster: of the medians (and the lowest and highest of one "
        f"round, of {results.settings.repeat}); refusals: seconds until the caller is told, median and worst. "
        f"{results.machine.busy()}".rstrip(),
    )
    shown.add_section()
    for refusal in results.refusals:
        worst = max(refusal.seconds, default=float("inf"))
        took = f"{statistics.median(refusal.seconds or [worst]):.3f} s, {worst:.3f} s"
        shown.add_row(f"refused: {refusal.why}", "", "", "", took, "held" if worst < WITHIN else "PASSED")
    return shown


BENCH = Bench(
    help="What checksums and keys cost: pushes, pulls, round trips and a run over tcp, bare, with checksums, encrypted; and how soon a stranger is told.",
    quick_help="Smaller, and fewer repeats: no figures to quote.",
    measure=measure,
    table=table,
    options=(Option("rows", "Of the run that is trained all ways; 0: none.  [default: 200,000]", click.IntRange(0)),),
)

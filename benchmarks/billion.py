"""A billion floats in one dense table over four servers, and one more server joins (S1-02).

    push, pull      range after range, a few in flight; numpy's copy of the same bytes is timed
                    in between
    join            segments move to the new server while ranges are pushed and one key of every
                    segment is pulled in a loop: the slowest pull of a segment is its stall
    afterwards      everything is pushed and pulled once more

Every float is checked: the n-th push of a range makes it n times a pattern, exactly. Memory is what
the servers' processes have resident.
"""

from __future__ import annotations

import statistics
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.harness import Bench, Machine, Option, Record, Say, machine, quiet, sheet
from shoal.client import KV
from shoal.errors import Invalid, ShoalError
from shoal.inspect.status import StatusClient, look_at
from shoal.keys import KeyRange
from shoal.launch.local import local
from shoal.launch.processes import ProcessCluster
from shoal.tables import Dense, Update

if TYPE_CHECKING:
    from rich.table import Table

PATTERN = 1_024  # different values, so that a range in another's place is seen
PAUSE = 0.02  # seconds between two rounds of pulls, so that they do not load the servers
_COPIES = 8  # ranges that are copied in turn
_PARTS = 16  # of a range that is pushed while a server joins
_WITHIN = 300.0  # seconds for anything that is waited for
_GB = 1e9


class Settings(Record, frozen=True, kw_only=True):
    """How large."""

    floats: int = 1_000_000_000
    servers: int = 4
    piece: int = 8_000_000  # floats in one push or pull
    flying: int = 3  # of them under way


FULL = Settings()
QUICK = Settings(floats=20_000_000, servers=2, piece=1_000_000)


class Leg(Record, frozen=True):
    """All ranges, once."""

    what: str
    seconds: float
    gb_per_second: float
    of_copy: float  # against numpy's copy


class Stalls(Record, frozen=True):
    """The slowest pull of each segment, in seconds."""

    segments: int
    median: float
    worst: float


class Results(Record, frozen=True):
    """All of one run."""

    machine: Machine
    settings: Settings
    created: float  # seconds
    segments: int
    copy: float  # GB/s of a plain copy
    legs: list[Leg]
    join: float  # seconds, from the first word until it has its share
    moved: int  # segments
    pushed: int  # ranges, while it joined
    before: Stalls
    handed: Stalls  # of the segments that moved
    stayed: Stalls  # of those that did not
    memory: dict[str, int]  # bytes that servers had
    memory_after: dict[str, int]


@dataclass(slots=True)
class Scene:
    """The cluster, its client, and how often every range was pushed."""

    settings: Settings
    cluster: ProcessCluster
    kv: KV
    looking: StatusClient
    pattern: Any
    pushes: list[int] = field(default_factory=list)

    def pieces(self) -> Iterator[tuple[int, KeyRange]]:
        for number in range(len(self.pushes)):
            start = number * self.settings.piece
            yield number, KeyRange(start, min(start + self.settings.piece, self.settings.floats))

    def push(self, number: int, keys: KeyRange) -> Any:
        self.pushes[number] += 1
        return self.kv.push("w", keys, self.pattern[: len(keys)])

    def push_in_parts(self, number: int, keys: KeyRange) -> Iterator[Any]:
        """Pushes in small messages, so that concurrent pulls do not wait for a large one."""
        self.pushes[number] += 1
        for start in range(0, len(keys), -(-len(keys) // _PARTS)):
            part = KeyRange(keys.start + start, min(keys.start + start + -(-len(keys) // _PARTS), keys.stop))
            yield self.kv.push("w", part, self.pattern[start : start + len(part)])

    def check(self, number: int, keys: KeyRange, found: Any) -> None:
        if not np.array_equal(found.reshape(-1), self.pushes[number] * self.pattern[: len(keys)]):
            raise ShoalError(f"keys {keys} are not what {self.pushes[number]} pushes make them: report this")


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if not 0 < settings.piece <= settings.floats or settings.servers < 1 or settings.flying < 1:
        raise Invalid("this needs servers, and ranges that are not larger than the table")
    with ExitStack() as stack:
        cluster = stack.enter_context(local(settings.servers, processes=True))
        assert isinstance(cluster, ProcessCluster)
        kv = stack.enter_context(cluster.client())
        looking = look_at(cluster.address)
        stack.callback(looking.close)
        pattern = (np.arange(settings.piece) % PATTERN).astype(np.float32)
        scene = Scene(settings, cluster, kv, looking, pattern, [0] * -(-settings.floats // settings.piece))
        began = time.perf_counter()
        kv.create("w", Dense(rows=settings.floats, update=Update("sum")))
        created = time.perf_counter() - began
        copy = _copied(scene)
        legs = [_leg(scene, "push", copy, say), _leg(scene, "pull", copy, say)]
        # with nothing else to do
        memory, before = _memory(cluster), _watched(scene, lambda: time.sleep(2.0))
        say("one more server joins")
        joined = _join(scene)
        after = _memory(cluster)
        say(f"it has {len(joined.moved)} segments after {joined.seconds:.1f} s; once more all of it")
        legs += [_leg(scene, "push again", copy, say), _leg(scene, "pull again", copy, say)]
        stood = joined.slowest
        return Results(
            machine(),
            settings,
            created,
            len(stood),
            copy,
            legs,
            joined.seconds,
            len(joined.moved),
            joined.pushed,
            _stalls([*before.values()]),
            _stalls([stood[start] for start in joined.moved]),
            _stalls([one for start, one in stood.items() if start not in joined.moved]),
            memory,
            after,
        )


# ---------------------------------------------------------------- by range


def _copied(scene: Scene) -> float:
    """GB/s of numpy copying ranges, each of which is in no cache any more when its turn comes."""
    ranges = [keys for _, keys in scene.pieces()][:_COPIES]
    sources = [scene.pattern[: len(keys)].copy() for keys in ranges]
    targets = [np.zeros(len(keys), np.float32) for keys in ranges]
    times: list[float] = []
    for _ in range(3):
        for source, target in zip(sources, targets, strict=True):
            began = time.perf_counter()
            target[:] = source
            times.append((time.perf_counter() - began) / source.nbytes)
    return 1 / statistics.median(times) / _GB


def _leg(scene: Scene, what: str, copy: float, say: Say) -> Leg:
    """Push or pull every range. What came is checked while nobody looks at the clock."""
    pull = what.startswith("pull")
    under_way: deque[tuple[int, KeyRange, Any]] = deque()
    spent, began = 0.0, time.perf_counter()

    def finish() -> None:
        nonlocal spent, began
        number, keys, task = under_way.popleft()
        found = task.result(_WITHIN)
        if pull:
            spent += time.perf_counter() - began
            scene.check(number, keys, found.values if hasattr(found, "values") else found)
            began = time.perf_counter()

    for number, keys in scene.pieces():
        under_way.append((number, keys, scene.kv.pull("w", keys) if pull else scene.push(number, keys)))
        if len(under_way) >= (1 if pull else scene.settings.flying):
            finish()
    while under_way:
        finish()
    spent += time.perf_counter() - began
    rate = 4 * scene.settings.floats / spent / _GB
    say(f"{what}: {spent:.1f} s, {rate:.2f} GB/s")
    return Leg(what, spent, rate, rate / copy)


# ---------------------------------------------------------------- one more server


@dataclass(slots=True)
class Joining:
    """How it went."""

    seconds: float
    moved: list[int]
    pushed: int
    slowest: dict[int, float]  # by the first key of each segment


def _join(scene: Scene) -> Joining:
    before = _primaries(scene)
    pushed = [0]
    took = [0.0]

    def join() -> None:
        began = time.perf_counter()
        name = scene.cluster.add_server()[0]
        pieces = list(scene.pieces())
        while not _has_its_share(scene, name):
            if time.perf_counter() - began > _WITHIN:
                raise ShoalError(f"{name} has not got its share in {_WITHIN:g} s: report this")
            for task in scene.push_in_parts(*pieces[pushed[0] % len(pieces)]):
                task.result(_WITHIN)
            pushed[0] += 1
        took[0] = time.perf_counter() - began

    slowest = _watched(scene, join)
    after = _primaries(scene)
    moved = [start for start in slowest if _of(after, start) != _of(before, start)]
    return Joining(took[0], moved, pushed[0], slowest)


def _primaries(scene: Scene) -> dict[int, str]:
    """By the first key of each segment."""
    placed = scene.looking.view(_WITHIN).tables[0]
    return {start: place.servers[0] for start, place in zip(placed.starts, placed.places, strict=True)}


def _of(primaries: dict[int, str], key: int) -> str:
    """Whose this key is: a segment may have been cut in two since."""
    starts = list(primaries)
    return primaries[starts[bisect_right(starts, key) - 1]]


def _has_its_share(scene: Scene, name: str) -> bool:
    places = scene.looking.view(_WITHIN).tables[0].places
    held = sum(name in place.servers for place in places)
    moving = scene.looking.look(_WITHIN).moves or any(place.filling for place in places)
    return held >= len(places) // (scene.settings.servers + 1) and not moving


def _watched(scene: Scene, do: Callable[[], None]) -> dict[int, float]:
    """Runs ``do`` while keys of all segments are pulled; returns the slowest pull of each."""
    starts = scene.looking.view(_WITHIN).tables[0].starts
    slowest, over, failed = dict.fromkeys(starts, 0.0), threading.Event(), list[BaseException]()

    def watch() -> None:
        try:
            with scene.cluster.client("watcher") as kv:
                while not over.is_set():
                    for task in [_timed(kv, slowest, start) for start in starts]:
                        task.result(_WITHIN)
                    over.wait(PAUSE)
        except BaseException as error:
            failed.append(error)

    watcher = threading.Thread(target=watch, name="shoal-bench-watcher", daemon=True)
    watcher.start()
    try:
        do()
    finally:
        over.set()
        watcher.join(_WITHIN)
    if failed:
        raise ShoalError(f"a pull failed while a server joined: {failed[0]}") from failed[0]
    return slowest


def _timed(kv: KV, slowest: dict[int, float], start: int) -> Any:
    began = time.perf_counter()

    def done(task: Any) -> None:
        slowest[start] = max(slowest[start], time.perf_counter() - began)

    task = kv.pull("w", np.array([start], np.uint64))
    task.then(done)
    return task


def _stalls(seconds: list[float]) -> Stalls:
    return Stalls(len(seconds), statistics.median(seconds), max(seconds)) if seconds else Stalls(0, 0.0, 0.0)


def _memory(cluster: ProcessCluster) -> dict[str, int]:
    """What the servers have resident; nothing where that cannot be read."""
    found: dict[str, int] = {}
    for name, pid in cluster.pids.items():
        status = Path(f"/proc/{pid}/status")
        if name.startswith("server") and status.exists():
            line = next((line for line in status.read_text().splitlines() if line.startswith("RssAnon")), "")
            found[name] = int(line.split()[1]) * 1_024 if line else 0
    return found


COLUMNS = (
    ("<", "{0.what}"),
    ("s", lambda leg: f"{leg.seconds:.2f}" if leg.seconds else ""),
    ("GB/s", "{0.gb_per_second:.2f}"),
    ("of a copy", "{0.of_copy:.2f}"),
)


def table(results: Results) -> Table:
    """Speeds against a plain copy; what joined, and what it cost."""

    def told(stalls: Stalls) -> str:
        return f"{1e3 * stalls.median:.0f} ms (median), {1e3 * stalls.worst:.0f} ms (worst)"

    settings = results.settings
    had, has = sum(results.memory.values()) / _GB, sum(results.memory_after.values()) / _GB
    return sheet(
        f"{settings.floats:,} floats ({4 * settings.floats / _GB:g} GB) over {settings.servers} servers, {results.machine}",
        COLUMNS,
        [Leg("numpy copies", 0.0, results.copy, 1.0), *results.legs],
        f"made in {results.created:.2f} s. One more server had {results.moved} of {results.segments} segments after "
        f"{results.join:.1f} s, while {results.pushed} ranges were pushed. The slowest pull of a segment that moved: "
        f"{told(results.handed)}; of the others {told(results.stayed)}; before, with nothing else to do, {told(results.before)}. "
        f"Servers had {had:.2f} GB in memory, and {has:.2f} GB afterwards. Every float is right.",
    )


BENCH = Bench(
    help="A billion floats over four servers: pushed and pulled by range, and one more server joins.",
    quick_help="20 million, over two servers.",
    measure=measure,
    table=table,
    options=(Option("floats", "How many.  [default: 1,000,000,000, which take 4 GB]", click.IntRange(1_000_000)),),
)

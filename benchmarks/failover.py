"""How long pushes stop when a server dies, and how long until all copies are there again.

    killed     kill -9: the launcher sees the process end, and tells the coordinator
    stopped    SIGSTOP: the coordinator finds the server silent

A client pushes to one key in every segment, one push after another. At a random moment the server
that owns most segments is struck. The time runs until the acknowledgement of the first push that
was begun afterwards: by then every segment of the dead server was written to at its new owner.
Then the copies are filled, the server restarts empty, and the next one is struck. Segments do not
move back to it, so a struck server may own all of them later: the worst case. In the end every key
must equal the number of acknowledged pushes.

No rival can be run here: the time is compared with what Li et al. (OSDI 2014) report.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click
import numpy as np

from benchmarks.harness import Bench, Cell, Machine, Option, Record, Say, line_of, machine, quiet, sheet
from shoal import limits
from shoal.client import KV
from shoal.errors import Invalid, ShoalError
from shoal.inspect.status import StatusClient, look_at
from shoal.keys import Keys
from shoal.launch.local import local
from shoal.launch.processes import ProcessCluster
from shoal.tables import Dense, Update
from shoal.timing import DEFAULT
from shoal.wire import messages as m

if TYPE_CHECKING:
    from rich.table import Table

Kind = Literal["killed", "stopped"]
SIGNALS: dict[Kind, signal.Signals] = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
TARGETS: dict[Kind, float] = {"killed": 0.8, "stopped": (DEFAULT.dead + limits.SECOND) / limits.SECOND}
_WITHIN = 60.0  # seconds for anything that is waited for


class Settings(Record, frozen=True, kw_only=True):
    """How large, and how often."""

    megabytes: int = 100  # of float32
    servers: int = 3
    copies: int = 2
    kills: int = 30
    stops: int = 5
    # of one cluster; then another is started, since restarts are delayed more and more
    faults: int = 10
    seed: int = 0


FULL = Settings()
QUICK = Settings(megabytes=20, kills=5, stops=1)


class Fault(Record, frozen=True):
    """One server struck."""

    kind: Kind
    segments: int  # that it owned
    pushing: float  # seconds until every one of them was pushed to
    full: float  # seconds until all copies were there
    back: float  # seconds until it was a member again; of a stopped one, after SIGCONT


class Results(Record, frozen=True):
    """All of one run."""

    machine: Machine
    settings: Settings
    seconds: float
    segments: int  # of the table
    pushes: int  # all acknowledged, and counted once
    faults: list[Fault]

    def of(self, kind: Kind) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind == kind]


@dataclass(slots=True)
class Scene:
    """A cluster, and the client that pushes to it."""

    cluster: ProcessCluster
    kv: KV
    looking: StatusClient
    keys: Keys  # the first of each segment
    copies: int
    pushes: int = 0

    def push(self) -> None:
        self.kv.push("w", self.keys, np.ones(len(self.keys), np.float32)).result(_WITHIN)
        self.pushes += 1

    def push_until(self, true: Callable[[m.View], bool], what: str) -> None:
        """Go on pushing until the view is such."""
        deadline = time.monotonic() + _WITHIN
        while not true(self.looking.view(_WITHIN)):
            if time.monotonic() > deadline:
                raise ShoalError(f"{what} in {_WITHIN:g} s: look at what was printed above, and report this")
            self.push()

    def is_full(self, view: m.View) -> bool:
        return all(len(place.servers) == self.copies and not place.filling for place in view.tables[0].places)


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if settings.kills < 0 or settings.stops < 0 or settings.kills + settings.stops < 1 or settings.faults < 1:
        raise Invalid("a benchmark needs at least one fault")
    if not 1 < settings.copies < settings.servers:
        raise Invalid("nobody takes over without copies, nobody is filled without one more server: copies=2, servers=3")
    began, chance = time.perf_counter(), random.Random(settings.seed)
    counts: list[tuple[Kind, int]] = [("killed", settings.kills), ("stopped", settings.stops)]
    todo = [kind for kind, count in counts for _ in range(count)]
    faults: list[Fault] = []
    pushes = segments = 0
    for first in range(0, len(todo), settings.faults):
        with _scene(settings) as scene:
            segments = len(scene.keys)
            for kind in todo[first : first + settings.faults]:
                faults.append(_strike(scene, kind, chance.uniform(0.05, 0.3)))
                say(f"{len(faults)} of {len(todo)}: {line_of(FAULT, faults[-1])}")
            _check(scene)
            pushes += scene.pushes
    return Results(machine(), settings, time.perf_counter() - began, segments, pushes, faults)


FAULT = (
    ("<server", "{0.kind}"),
    ("segments", "{0.segments}"),
    ("pushed to again, s", "{0.pushing:.3f}"),
    ("full copies, s", "{0.full:.3f}"),
    ("back, s", "{0.back:.3f}"),
)


def _median(what: str) -> Cell:
    return lambda faults: f"{statistics.median(getattr(one, what) for one in faults):.3f}"


def _worst(what: str) -> Cell:
    return lambda faults: f"{max(getattr(one, what) for one in faults):.3f}"


COLUMNS = (  # of all faults of one kind
    ("<server", "{0[0].kind}"),
    ("faults", lambda faults: f"{len(faults)}"),
    ("median s", _median("pushing")),
    ("worst s", _worst("pushing")),
    ("wanted s", lambda faults: f"{TARGETS[faults[0].kind]:.3f}"),
    ("full copies s", _median("full")),
    ("worst s", _worst("full")),
    ("back s", _median("back")),
)


def table(results: Results) -> Table:
    settings = results.settings
    return sheet(
        f"a server of {settings.servers} dies, {settings.copies} copies of {settings.megabytes} MB, {results.machine}",
        COLUMNS,
        [faults for kind in SIGNALS if (faults := results.of(kind))],
        "seconds to the first push acknowledged in every segment it owned; killed: Li et al. (OSDI 2014) say 0.8 s; stopped: "
        f"dead after {DEFAULT.dead / limits.SECOND:g} s of silence. All {results.pushes:,} pushes were counted once.",
    )


# ---------------------------------------------------------------- one cluster


@contextlib.contextmanager
def _scene(settings: Settings) -> Iterator[Scene]:
    rows = settings.megabytes * 1_000_000 // 4
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(local(settings.servers, copies=settings.copies, processes=True))
        assert isinstance(cluster, ProcessCluster)
        kv = stack.enter_context(cluster.client())
        kv.create("w", Dense(rows=rows, update=Update("sum")))
        looking = look_at(cluster.address)
        stack.callback(looking.close)
        keys = np.array(looking.view().tables[0].starts, np.uint64)
        scene = Scene(cluster, kv, looking, keys, settings.copies)
        for _ in range(10):
            scene.push()
        yield scene


def _strike(scene: Scene, kind: Kind, wait: float) -> Fault:
    """Strike the largest owner while pushing; returns when everything is complete again."""
    view = scene.looking.view()
    owned = [place.servers[0] for place in view.tables[0].places]
    victim = max(sorted(set(owned)), key=owned.count)
    life, pid = _life(view, victim), scene.cluster.pids[victim]
    struck: list[tuple[float, float]] = []  # right before, and after

    def strike() -> None:
        before = time.perf_counter()
        os.kill(pid, SIGNALS[kind])
        struck.append((before, time.perf_counter()))

    timer = threading.Timer(wait, strike)
    timer.daemon = True
    try:
        timer.start()
        began = 0.0
        while not struck or began < struck[0][1]:
            began = time.perf_counter()
            scene.push()
        pushing = time.perf_counter() - struck[0][0]
        scene.push_until(scene.is_full, "not all segments had their copies again")
        full = continued = time.perf_counter() - struck[0][0]
    finally:
        timer.cancel()
        if kind == "stopped":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    scene.push_until(lambda view: _life(view, victim) > life, f"{victim} did not come back")
    back = time.perf_counter() - struck[0][0] - (continued if kind == "stopped" else 0.0)
    return Fault(kind, owned.count(victim), pushing, full, back)


def _life(view: m.View, server: str) -> int:
    return next((member.incarnation for member in view.members if member.name == server), 0)


def _check(scene: Scene) -> None:
    """Every push was acknowledged, so every key has counted every one."""
    found = scene.kv.pull("w", scene.keys).result(_WITHIN).reshape(-1)
    if not np.array_equal(found, np.full(len(found), scene.pushes, np.float32)):
        raise ShoalError(f"{scene.pushes:,} pushes were acknowledged, and the keys read {found.tolist()}: report this")


BENCH = Bench(
    help="A server dies: the time until all its segments are pushed to again, and until all copies are there.",
    quick_help="20 MB instead of 100, and fewer faults.",
    measure=measure,
    table=table,
    options=(
        Option("kills", "Servers that are killed.", click.IntRange(0)),
        Option("stops", "Servers that are stopped, which nobody sees.", click.IntRange(0)),
    ),
)

"""A few hot keys: the load of each server when segments are balanced by count, and by load.

Keys are drawn by Zipf's law and lie in the order of their frequency, as words of a vocabulary do.
So most requests go to the first segments, and by count one server does most of the work. By load
the coordinator splits hot segments and trades them. Both clusters run the same workload, one after
the other: real servers, one process each; clients push lists of keys, several in flight. In the
end every row must equal what was pushed to it.

The load of a server is what its heartbeats report (rows a second); pushed rows a second are the
clients'.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Record, Report, Say, quiet, report, sheet
from shoal.client import KV
from shoal.cluster.move_settings import MoveSettings
from shoal.errors import Invalid
from shoal.job import LaunchSettings
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from shoal.store.table.update import Sum
from shoal.tables import Dense

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_WITHIN = 60.0  # seconds for one push
_LISTS = 64  # that each client pushes by turns
_PIECE = 1 << 18  # rows read at once, in the end


class Settings(Record, frozen=True, kw_only=True):
    """What is pushed, and for how long."""

    servers: int = 3
    copies: int = 1
    rows: int = 1_000_000
    width: int = 8
    drawn: int = 5_000  # keys of one push; those that repeat are one
    zipf: float = 1.1
    clients: int = 2
    flying: int = 4  # pushes under way, of each
    seconds: float = 60.0
    seed: int = 0


FULL = Settings()
QUICK = Settings(seconds=20.0, rows=100_000)


class Moment(Record, frozen=True):
    """How it stood."""

    seconds: float
    pushed: int  # rows, so far
    loads: dict[str, float]  # rows a second, by server
    segments: int
    counts: dict[str, int]  # what the coordinator counted


class Case(Record, frozen=True):
    """One way to share out, from beginning to end."""

    balance: str
    moments: list[Moment]

    def rate(self, last: bool) -> float:
        """Rows pushed a second, in the first or the last third of the time."""
        third = len(self.moments) // 3
        part = self.moments[-third - 1 :] if last else self.moments[: third + 1]
        return (part[-1].pushed - part[0].pushed) / (part[-1].seconds - part[0].seconds)

    @property
    def busiest(self) -> float:
        """What the busiest server was asked for, over the mean: in the last third of the time."""
        last = [one for one in self.moments[-len(self.moments) // 3 :] if any(one.loads.values())]
        return fmean(most_over_mean(one.loads) for one in last) if last else float("nan")

    def happened(self, what: str) -> int:
        return self.moments[-1].counts.get(what, 0)


Results = Report[Settings, Case]


def most_over_mean(loads: dict[str, float]) -> float:
    return max(loads.values()) / fmean(loads.values())


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if settings.servers < 2 or settings.clients < 1 or settings.seconds < 3 or settings.flying < 1:
        raise Invalid("a skewed load needs two servers, a client with a push under way, and 3 seconds")
    cases = (_case(settings, balance, say) for balance in ("count", "load"))
    return report(Results, settings, cases, say, COLUMNS)


def _case(settings: Settings, balance: Any, say: Say) -> Case:
    cluster = ProcessCluster(settings.servers, LaunchSettings(), JournalFile(None), settings.copies)
    cluster.moves = MoveSettings(balance=balance)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.start()
        kvs = [stack.enter_context(cluster.client()) for _ in range(settings.clients)]
        kvs[0].create("w", Dense(rows=settings.rows, width=settings.width, update=Sum()))
        pushers = [_Pusher(settings, kv, seed) for seed, kv in enumerate(kvs)]
        threads = [threading.Thread(target=one.run, name=f"shoal-skew-{at}") for at, one in enumerate(pushers)]
        try:
            for thread in threads:
                thread.start()
            moments = _watch(settings, cluster, pushers)
        finally:
            for one in pushers:
                one.over.set()
            for thread in threads:
                thread.join()
        for one in pushers:
            if one.failed is not None:
                raise one.failed
        _check(settings, kvs[0], pushers)
        return Case(balance, moments)


class _Pusher:
    """One client, until it is stopped."""

    def __init__(self, settings: Settings, kv: KV, seed: int) -> None:
        chance = np.random.default_rng((settings.seed, seed))
        odds = np.cumsum(np.arange(1, settings.rows + 1) ** -settings.zipf)
        drawn = (chance.random(settings.drawn) * odds[-1] for _ in range(_LISTS))
        self.lists = [np.unique(np.searchsorted(odds, one)).astype(np.uint64) for one in drawn]
        self.values = [np.ones((len(keys), settings.width), np.float32) for keys in self.lists]
        self.kv, self.flying = kv, settings.flying
        self.counts = [0] * _LISTS
        self.pushed = 0
        self.over = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            flying: deque[Any] = deque()
            number = 0
            while not self.over.is_set():
                at = number % _LISTS
                flying.append((at, self.kv.push("w", self.lists[at], self.values[at])))
                number += 1
                if len(flying) >= self.flying:
                    self._done(*flying.popleft())
            while flying:
                self._done(*flying.popleft())
        except BaseException as error:  # raised by the main thread
            self.failed = error

    def _done(self, at: int, task: Any) -> None:
        task.result(_WITHIN)
        self.counts[at] += 1
        self.pushed += len(self.lists[at])


def _watch(settings: Settings, cluster: ProcessCluster, pushers: list[_Pusher]) -> list[Moment]:
    """How it stands, once a second: that is the clock of this measurement."""
    began, moments = time.perf_counter(), list[Moment]()
    while (now := time.perf_counter() - began) < settings.seconds and not any(one.failed for one in pushers):
        standing, view = cluster._looking.look(), cluster._looking.view()
        loads = {one.name: one.load for one in standing.members if one.role == "server"}
        pushed = sum(one.pushed for one in pushers)
        moments.append(Moment(round(now, 3), pushed, loads, len(view.tables[0].starts), dict(standing.counts)))
        time.sleep(1.0)  # loads are reported every two seconds
    return moments


def _check(settings: Settings, kv: KV, pushers: list[_Pusher]) -> None:
    """Every row is what was pushed to it."""
    expected: npt.NDArray[np.int64] = np.zeros(settings.rows, np.int64)
    for one in pushers:
        for keys, count in zip(one.lists, one.counts, strict=True):
            expected[keys.astype(np.int64)] += count
    for low in range(0, settings.rows, _PIECE):
        high = min(settings.rows, low + _PIECE)
        found = np.asarray(kv.pull("w", slice(low, high)).result(_WITHIN)).reshape(high - low, settings.width)
        if not np.array_equal(found, np.repeat(expected[low:high, None], settings.width, axis=1).astype(np.float32)):
            raise Invalid("some pushes were lost or counted twice: report this with the settings")


# ---------------------------------------------------------------- showing it


COLUMNS = (
    ("<shared out by", "{0.balance}"),
    ("busiest", "{0.busiest:.2f}"),
    ("rows/s first", lambda case: f"{case.rate(last=False):,.0f}"),
    ("rows/s last", lambda case: f"{case.rate(last=True):,.0f}"),
    ("segments", lambda case: f"{case.moments[-1].segments:,}"),
    ("split", lambda case: f"{case.happened('segments split'):,}"),
    ("handed over", lambda case: f"{case.happened('hand-overs'):,}"),
)


def table(results: Results) -> Table:
    settings = results.settings
    return sheet(
        f"{settings.servers} servers, keys by Zipf's law ({settings.zipf:g}), {results.machine}",
        COLUMNS,
        results.cases,
        "busiest: what the busiest server was asked for over the mean, in the last third of the time; rows/s: pushed by all "
        "clients, in the first and the last third. Every row was checked in the end",
    )


def picture(results: Results) -> Figure:
    """A panel for each: rows a second by server over time."""
    from shoal.views import axes as draw
    from shoal.views.axes import SERIES

    figure = draw.canvas(3.0, 9.6)
    panels = figure.subplots(1, len(results.cases), squeeze=False, sharey=True)[0]
    for panel, case in zip(panels, results.cases, strict=True):
        for name, color in zip(sorted(case.moments[-1].loads), SERIES, strict=False):
            x = [one.seconds for one in case.moments]
            panel.plot(x, [one.loads.get(name, 0.0) for one in case.moments], color=color, label=name)
        draw.titled(panel, f"By {case.balance}: the busiest has {case.busiest:.2f} times the mean")
        panel.set(xlabel="seconds")
        draw.tidy(panel)
    panels[0].set_ylim(bottom=0)  # at the end, as panels share it
    panels[0].set_ylabel("rows a second")
    draw.numbers(panels[0].yaxis)
    draw.legend(panels[0], fontsize=8)
    return figure

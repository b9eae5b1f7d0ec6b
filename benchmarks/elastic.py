"""A server joins a run and leaves it again while workers train: what that costs.

    first third     the servers that the run began with
    then            one more joins: segments move to it until it has its share
    last third      it is asked to leave: its segments move back, and its process ends

Training is real (a linear model on a made-up click log, asynchronous). Every slot is counted in a
table beside the model, as in ``shoal chaos``, and must be counted once. A segment stalls from the
view that hands it over until its new owner serves it; the coordinator measures that. A point of
the curve is rows a second in the half second around it, a phase has the mean of its points; the
first half of the first phase is left out (caches, kernels). A short run beforehand finds how many
epochs fill the time. It is one run: its noise is not known, and the load of the machine is shown
beside it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.harness import Bench, Machine, Option, Record, Say, machine, quiet, sheet
from shoal.data.datasets import Dataset, load
from shoal.errors import Invalid, ShoalError
from shoal.events import Gone, Handed, RunEvent, Voided, Warned
from shoal.inspect.status import StatusClient, look_at
from shoal.job import Job
from shoal.strategies.parameter_server.run import ServerRun
from shoal.tables import TABLE, TALLY, Sparse, Update
from shoal.views import axes as draw
from shoal.views import format
from shoal.views.axes import INK, LOST, TEST, TRAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

TICK = 0.05  # seconds between two looks at how far it is
WINDOW = 0.5  # seconds around a point of the curve
WARM = 0.5  # of the time before the server joins, from which no figure is taken
WORDS = 3  # of a row: the weight, and the two numbers that FTRL keeps
_LOOK = 1.0  # seconds: who takes longer is asked again
_WITHIN = 120.0  # seconds for a server to get its share, or to be let go


class Settings(Record, frozen=True, kw_only=True):
    """How large, and how long."""

    features: int = 1 << 24  # with what FTRL keeps of each: 201 MB
    rows: int = 200_000
    workers: int = 4
    servers: int = 2
    copies: int = 1
    batch: int = 256
    seconds: float = 30.0  # about
    probe: float = 6.0  # of the run beforehand
    seed: int = 0


FULL = Settings()
QUICK = Settings(features=1 << 20, rows=50_000, seconds=12.0, probe=3.0)


class Move(Record, frozen=True):
    """Segments that changed hands together."""

    at: float
    table: str
    segments: int
    source: str
    target: str
    why: str
    took: float  # seconds, from when it was begun
    stall: float  # of these nobody served them


class Phase(Record, frozen=True):
    """A stretch of the run."""

    name: str
    start: float
    stop: float
    rate: float  # rows a second


class Results(Record, frozen=True):
    """All of one run."""

    machine: Machine
    settings: Settings
    megabytes: float  # of the model
    seconds: float
    slots: int  # that were acknowledged
    lost: int
    doubled: int
    errors: list[str]  # of workers, and warnings
    phases: list[Phase]
    moves: list[Move]
    rates: list[tuple[float, float]]  # seconds, rows a second

    def stalls(self) -> list[float]:
        """Of the model's segments, each by itself."""
        return [one.stall for one in self.moves if one.table == TABLE for _ in range(one.segments)]


@dataclass(slots=True)
class Story:
    """What is heard and seen while it goes on; events come from another thread."""

    began: float = field(default_factory=time.monotonic)
    moves: list[Move] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seen: list[tuple[float, int]] = field(default_factory=list)  # seconds, rows
    marks: dict[str, float] = field(default_factory=dict)
    failed: list[BaseException] = field(default_factory=list)
    share: float = 0.0  # of the work that is done
    held: dict[str, int] = field(default_factory=dict)  # segments, by server
    moving: bool = False
    looked: threading.Event = field(default_factory=threading.Event)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def look(self, looking: StatusClient, batch: int) -> None:
        """How far it is, and who holds what."""
        at, standing, view = self.now, looking.look(_LOOK), looking.view(_LOOK)
        if (course := standing.course) is not None:
            self.seen.append((at, course.done * batch))
            self.share = course.done / course.limit if course.limit else 0.0
        places = [place for one in view.tables for place in one.places]
        self.held = Counter(name for place in places for name in place.servers)
        self.moving = bool(standing.moves) or any(place.filling for place in places)
        self.looked.set()

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for what the looks show."""
        deadline = time.monotonic() + _WITHIN
        while not true():
            if time.monotonic() > deadline:
                raise ShoalError(
                    f"nothing came of it in {_WITHIN:g} s: look at what was printed above, and report this"
                )
            self.looked.clear()
            self.looked.wait(TICK)

    def hear(self, event: RunEvent) -> None:
        match event:
            case Handed():
                one = event
                move = (one.table, len(one.segments), one.source, one.target, one.why, one.took, one.stall)
                self.moves.append(Move(round(self.now, 3), *move))
            case Gone(name=name, why=reason) if name.startswith("worker"):
                self.errors.append(f"{name} went: {reason}")
            case Voided() | Warned():
                self.errors.append(str(event))


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if settings.servers < 1 or settings.workers < 1 or not settings.seconds > 0 or not settings.probe > 0:
        raise Invalid("this needs servers, workers, and some seconds")
    job = _job(settings, {"seconds": settings.probe})
    say(f"{settings.features:,} features: making {settings.rows:,} rows")
    dataset = load(job.data, job.seed, progress=say)
    story = Story()
    say(f"{settings.probe:g} s, to see how fast it is")
    rate = _run(job, dataset, story, comes=False)[0] / settings.probe
    passes = max(1, round(rate * settings.seconds / job.slots(dataset.train.rows).per_pass))
    say(f"{passes:,} passes, about {settings.seconds:g} s: one more server joins, and leaves")
    story = Story()
    slots, (lost, doubled), over = _run(_job(settings, {"epochs": float(passes)}), dataset, story, comes=True)
    rates = _rates(story.seen)
    return Results(
        machine(),
        settings,
        settings.features * WORDS * 4 / 1e6,
        round(over, 2),
        slots,
        lost,
        doubled,
        story.errors,
        _phases(story.marks, rates, over),
        story.moves,
        rates,
    )


def _job(settings: Settings, stop: dict[str, float]) -> Job:
    data = {"source": "clicks", "rows": settings.rows, "features": settings.features, "batch": settings.batch}
    return Job.of(
        {
            "data": data,
            "strategy": {"name": "async"},
            "update": {"rule": "ftrl"},
            "workers": settings.workers,
            "servers": settings.servers,
            "copies": settings.copies,
            "stop": stop,
            "evaluate": {"every": 1e6},  # an evaluation pulls the whole model
            "launch": {"how": "processes"},
            "moves": {"balance": "count"},  # only what comes and goes is to be seen
            "seed": settings.seed,
        }
    )


class Counting(ServerRun):
    """A training whose workers count every slot in a table beside the model."""

    def _start_evaluator(self) -> None:
        self._client.create(
            TALLY, Sparse(hashed=True, update=Update("sum"), max_delay=None)
        )  # before any worker is there
        super()._start_evaluator()

    def counted(self) -> tuple[int, int]:
        """How many slots of a finished run were never counted, and how many once too often."""
        found: Any = self._client.pull(TALLY, slice(None)).result(_WITHIN)
        times = np.zeros(self.course.done, np.int64)
        times[found.keys.astype(np.int64)] = np.rint(found.values).astype(np.int64).reshape(-1)
        return int((times < 1).sum()), int(np.maximum(times - 1, 0).sum())


def _run(job: Job, dataset: Dataset, story: Story, comes: bool) -> tuple[int, tuple[int, int], float]:
    """Train, with or without the extra server: slots, those lost and doubled, and seconds."""
    training = Counting(job, dataset, story.hear)
    with training:
        story.began = time.monotonic()
        looking = look_at(training._cluster.address)
        helper = threading.Thread(target=_come_and_go, args=(training, story), daemon=True)
        try:
            if comes:
                helper.start()
            while (outcome := training.wait(TICK)) is None:
                with suppress(ShoalError):  # it is asked again
                    story.look(looking, job.data.batch)
            over = story.now
            if comes:
                helper.join(_WITHIN)
        finally:
            looking.close()
        if outcome.failed:
            raise ShoalError(f"the run failed: {outcome.why}")
        if story.failed:
            raise ShoalError(f"the servers did not come and go as they should: {story.failed[0]}")
        return training.course.done, training.counted() if comes else (0, 0), over


def _come_and_go(training: ServerRun, story: Story) -> None:
    try:
        story.until(lambda: story.share >= 1 / 3)
        story.marks["joins"] = story.now
        name = training.add_server()[0]
        story.until(lambda: story.held.get(name, 0) > 0 and not story.moving)
        story.marks["has its share"] = story.now
        story.until(lambda: story.share >= 2 / 3)
        story.marks["leaves"] = story.now
        training.remove_server(name)
        story.marks["is gone"] = story.now
    except BaseException as error:
        story.failed.append(error)


# ---------------------------------------------------------------- figures


def _phases(marks: dict[str, float], rates: list[tuple[float, float]], over: float) -> list[Phase]:
    bounds = [
        ("before", WARM * marks["joins"], marks["joins"]),
        ("it joins", marks["joins"], marks["has its share"]),
        ("with it", marks["has its share"], marks["leaves"]),
        ("it leaves", marks["leaves"], min(over, marks["is gone"])),
        ("after", marks["is gone"], over),
    ]
    return [Phase(name, a, b, _mean(rates, a, b)) for name, a, b in bounds if b > a]


def _mean(rates: list[tuple[float, float]], start: float, stop: float) -> float:
    """The mean of the curve's points in this phase; without any, the nearest point."""
    within = [rate for at, rate in rates if start <= at <= stop]
    if within:
        return statistics.fmean(within)
    return min(rates, key=lambda one: abs(one[0] - (start + stop) / 2), default=(0.0, 0.0))[1]


def _rates(seen: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """Rows a second around evenly spaced points, interpolated between two looks."""
    if not seen or seen[-1][0] - seen[0][0] <= WINDOW:
        return []
    times = np.arange(seen[0][0] + WINDOW / 2, seen[-1][0] - WINDOW / 2, TICK)
    looks, rows = np.array(seen, np.float64).T
    rates = (np.interp(times + WINDOW / 2, looks, rows) - np.interp(times - WINDOW / 2, looks, rows)) / WINDOW
    return [(round(float(at), 2), round(float(rate))) for at, rate in zip(times, rates, strict=True)]


def table(results: Results) -> Table:
    """Rows a second in each stretch, and how long segments stood still."""
    settings, stalls = results.settings, [1_000 * one for one in results.stalls()]
    stood = "no segment changed hands"
    if stalls:
        stood = (
            f"{len(stalls)} segments of the model changed hands; each stood still for {statistics.median(stalls):.1f} ms "
            f"(median), {max(stalls):.1f} ms (worst)"
        )
    before = results.phases[0].rate if results.phases else 0.0
    return sheet(
        f"a server joins {settings.servers} and leaves again while {settings.workers} workers train "
        f"{results.megabytes:.0f} MB, {results.machine}",
        (
            ("<", "{0.name}"),
            ("from s", "{0.start:.1f}"),
            ("to s", "{0.stop:.1f}"),
            ("rows a second", "{0.rate:,.0f}"),
            ("of before", lambda one: f"{one.rate / before:.2f}" if before else "-"),
        ),
        results.phases,
        f"{stood}. Of {results.slots:,} slots {results.lost} are lost and {results.doubled} doubled; "
        f"{len(results.errors)} errors. One run; {results.machine.busy() or 'the load of the machine is not known'}.",
    )


def picture(results: Results) -> Figure:
    figure = draw.canvas(5.8, 10.0)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_rates(top, results)
    _draw_stalls(bottom, results)
    settings = results.settings
    errors = format.many(len(results.errors), "error")
    title = f"While a server joins {settings.servers} and leaves again, {results.lost} of {results.slots:,} slots are lost, "
    below = f"{settings.workers} workers, {results.megabytes:.0f} MB; one run; {results.machine.busy() or 'load not known'}."
    draw.headline(figure, f"{title}{results.doubled} counted twice, with {errors}", below, size=11)
    return figure


def _draw_rates(axes: Axes, results: Results) -> None:
    axes.plot(*zip(*results.rates, strict=True), color=TRAIN, linewidth=1.2) if results.rates else None
    for one in results.phases:
        axes.hlines(one.rate, one.start, one.stop, color=INK, linewidth=1.0, linestyle=":")
        axes.annotate(
            f"{one.name}\n{one.rate:,.0f}", ((one.start + one.stop) / 2, 0.02), xycoords=("data", "axes fraction"),
            ha="center", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
        if one.name.startswith("it "):
            axes.axvspan(one.start, one.stop, color=TEST, alpha=0.15, linewidth=0)
    axes.set_ylabel(f"rows a second (in {WINDOW:g} s)\ndotted: mean of the stretch", color=TRAIN)
    axes.set_ylim(bottom=0)
    draw.numbers(axes.yaxis)
    draw.tidy(axes)


def _draw_stalls(axes: Axes, results: Results) -> None:
    for one in results.moves:
        joins = one.why != "leaving"
        axes.plot([one.at, one.at], [0, 1_000 * one.stall], color=TRAIN if joins else LOST, linewidth=1.5, alpha=0.7)
        axes.plot([one.at], [1_000 * one.stall], ".", color=TRAIN if joins else LOST)
    axes.set_ylabel("a batch stood still,\nmilliseconds")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    draw.numbers(axes.yaxis)
    draw.tidy(axes)


BENCH = Bench(
    help="A server joins a run and leaves it again: rows a second, how long segments stand still, and what is lost.",
    quick_help="A sixteenth of the model, 12 seconds.",
    measure=measure,
    table=table,
    options=(Option("seconds", "Of training, about.  [default: 30]", click.FloatRange(1.0)),),
    picture=picture,
)

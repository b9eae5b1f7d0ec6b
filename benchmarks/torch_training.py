"""A module trained through the store against plain PyTorch, DDP, RPC and Ray.

Contestants take turns, round after round, each started as a new process (see ``torch_rivals``). A
ratio is the median over the rounds, each to what ran in the same round: one plain process for one
worker, the sum of two independent ones for two. Our own runs are timed between reports of the
workers, after the first evaluation and ``warm`` batches, and before the last second.

Our worker has a server beside it, on a core of its own if there is one. Hogwild's workers and the
ranks of an average have none, and take part with two or more workers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np

from benchmarks.harness import Bench, Option, Record, Report, Say, machine, names, numbers, program, sheet
from shoal.data.datasets import Dataset, load
from shoal.data.dense_file import DenseFile
from shoal.errors import Invalid
from shoal.events import Evaluated, Progress, RunEvent
from shoal.job import Job
from shoal.models import needs_torch
from shoal.run.run import execute

if TYPE_CHECKING:
    from rich.table import Table

TARGETS = {("shoal async", 1): 0.85, ("shoal async", 2): 0.85, ("shoal hogwild", 2): 0.85, ("shoal averaging", 2): 0.85}
_SEVERAL = ("ddp", "shoal hogwild", "shoal averaging", "shoal allreduce")  # not with one worker
LAST = 1.0  # seconds at the end of a run that are not counted: some workers have nothing left
_LONGER = (3.0, 10.0, 30.0)  # extra seconds of a run: one try after another
MADE_UP = 6_000  # images, where there are no real ones
WITHIN = 120.0  # seconds beyond what is timed, for a rival to start and end


class Settings(Record, frozen=True, kw_only=True):
    """What is measured."""

    data: str = "mnist"
    net: str = "cnn"
    batch: int = 64
    workers: tuple[int, ...] = (1, 2)
    rivals: tuple[str, ...] = (
        "plain", "shoal async", "shoal sync", "shoal hogwild", "shoal averaging", "shoal allreduce", "ddp", "rpc", "ray",
    )  # fmt: skip
    rounds: int = 5
    seconds: float = 5.0  # timed, of each contestant in each round
    warm: int = 30  # batches
    step: float = 0.01
    momentum: float = 0.9
    keep_memory: bool = False  # no process gives memory back between batches: ours and theirs alike
    seed: int = 0


FULL = Settings()
QUICK = Settings(rounds=3, seconds=3.0)


class Case(Record, frozen=True):
    """One contestant: images a second of all its workers, round by round."""

    who: str
    workers: int
    images: list[float]
    ratio: float  # to plain processes, as many as workers


class Results(Report[Settings, Case], frozen=True):
    """With the images, and who was not there."""

    images: str  # which ones
    load: list[float]  # of the machine, before each round
    missing: list[str]  # contestants that could not run, and why


def measure(settings: Settings, say: Say) -> Results:
    needs_torch("this benchmark")
    if min(settings.rounds, settings.batch, settings.warm, *settings.workers) < 1 or settings.seconds <= 0:
        raise Invalid("a benchmark needs at least one round, worker, image and batch, and some time")
    began, loads = time.perf_counter(), []
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, _kept(settings.keep_memory):
        cast, missing = _cast(settings)
        source, dataset, images = _images(settings, Path(folder), say)
        for number in range(settings.rounds):
            loads.append(os.getloadavg()[0])
            say(f"round {number + 1} of {settings.rounds}, load {loads[-1]:.1f}")
            for who, workers in [*cast[number % len(cast) :], *cast[: number % len(cast)]]:
                rate = (
                    _ours(settings, source, who, workers) if who in _OURS else _theirs(settings, dataset, who, workers)
                )
                found.setdefault((who, workers), []).append(rate)
                say(f"  {who}, {workers}: {rate:,.0f} images/s")
    cases = [Case(who, workers, found[who, workers], _ratio(found, who, workers)) for who, workers in cast]
    return Results(machine("torch", "ray"), settings, time.perf_counter() - began, cases, images, loads, missing)


_OURS: dict[str, Callable[[int], dict[str, Any]]] = {
    "shoal async": lambda workers: {"name": "async"},
    "shoal sync": lambda workers: {"name": "sync", "slots_per_step": workers},
    "shoal hogwild": lambda workers: {"name": "hogwild"},
    "shoal averaging": lambda workers: {"name": "averaging", "every": 16, "over": "gloo"},
    "shoal allreduce": lambda workers: {"name": "allreduce", "over": "gloo"},
}


# glibc reads these when a process starts. Without them it may return large blocks to the system
# in every batch: up to 2,600 page faults, a quarter of the time of a batch.
_KEEP = {
    "MALLOC_MMAP_THRESHOLD_": f"{1 << 25}",
    "MALLOC_TRIM_THRESHOLD_": f"{1 << 27}",
    "MALLOC_TOP_PAD_": f"{1 << 24}",
}


@contextlib.contextmanager
def _kept(keep: bool) -> Iterator[None]:
    """Whatever is started meanwhile, by us or by a rival, keeps its memory."""
    before = {name: os.environ.get(name) for name in _KEEP}
    if keep:
        os.environ.update(_KEEP)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _cast(settings: Settings) -> tuple[list[tuple[str, int]], list[str]]:
    """Who takes part with how many workers, and who cannot."""
    rivals, missing = list(settings.rivals), []
    known = Settings().rivals
    if unknown := [who for who in rivals if who not in known]:
        raise Invalid(f"no contestant {unknown[0]!r} (there are {', '.join(known)})")
    if "ray" in rivals and importlib.util.find_spec("ray") is None:
        rivals.remove("ray")
        missing.append("ray is not installed: pip install 'shoal[ray]' to have it beside the others")
    cast = [(who, workers) for workers in settings.workers for who in rivals if workers > 1 or who not in _SEVERAL]
    return cast, missing


def _images(settings: Settings, folder: Path, say: Say) -> tuple[dict[str, Any], Dataset, str]:
    """The images for all contestants; random ones, named so, if the real are missing."""
    source: dict[str, Any] = {"source": settings.data, "batch": settings.batch}
    said = settings.data
    try:
        dataset = load(_job(settings, source, "shoal async", 1).data, settings.seed, progress=say)
    except Invalid as error:
        if settings.data != "mnist":
            raise
        said = f"random images, NOT mnist ({error})"
        say(said)
        chance = np.random.default_rng(settings.seed)
        x, y = chance.integers(0, 256, (MADE_UP, 28, 28), np.uint8), chance.integers(0, 10, MADE_UP)
        np.savez(folder / "random.npz", x=x, y=y, classes=10, factor=1 / 128, shift=-1.0)
        source["source"] = str(folder / "random.npz")
        dataset = load(_job(settings, source, "shoal async", 1).data, settings.seed)
    if not isinstance(dataset.train, DenseFile):
        raise Invalid(f"{settings.data} has sparse rows, and images are needed: take mnist or digits")
    return source, dataset, f"{said}, {dataset.train.rows:,} to train on"


def _job(settings: Settings, source: dict[str, Any], who: str, workers: int) -> Job:
    return Job.of(
        {
            "data": source,
            "model": {"kind": "torch", "net": settings.net, "threads": 1},
            "strategy": _OURS[who](workers),
            "update": {"rule": "momentum", "step": settings.step, "momentum": settings.momentum},
            "workers": workers,
            "servers": 1,
            "seed": settings.seed,
            "stop": {"epochs": float("inf"), "seconds": settings.seconds},
            "evaluate": {"every": float("inf")},
            "launch": {"how": "processes"},
        }
    )


def _ours(settings: Settings, source: dict[str, Any], who: str, workers: int) -> float:
    """Runs for longer if the first evaluation takes as long as the run, as on a busy machine."""
    job = _job(settings, source, who, workers)
    for longer in _LONGER:
        stop = msgspec.structs.replace(job.stop, seconds=settings.seconds + longer)
        run = execute(msgspec.structs.replace(job, stop=stop))
        rate = counted(run.events, settings.warm * settings.batch * workers, settings.seconds / 2)
        if rate is not None:
            return rate
    raise Invalid(
        f"{who} with {workers} workers was never warm for {settings.seconds / 2:g} s: wait until the machine is idle"
    )


def counted(events: list[RunEvent], warm: int, least: float) -> float | None:
    """Images a second between the first warm report and the last before the end.

    None if these are less than ``least`` seconds apart. Reports after the last image do not count:
    an evaluation may still be going on then.
    """
    judged = min((event.seconds for event in events if isinstance(event, Evaluated)), default=0.0)
    reports = [event for event in events if isinstance(event, Progress)]
    over = next((one.seconds for one in reports if one.examples == reports[-1].examples), 0.0)
    inner = [one for one in reports if one.examples >= warm and judged <= one.seconds <= over - LAST]
    if len(inner) < 2 or inner[-1].seconds - inner[0].seconds < least:
        return None
    return (inner[-1].examples - inner[0].examples) / (inner[-1].seconds - inner[0].seconds)


def _theirs(settings: Settings, dataset: Dataset, who: str, workers: int) -> float:
    from benchmarks.torch_rivals import Orders, Rates

    assert isinstance(dataset.train, DenseFile)
    orders = Orders(
        str(dataset.train.folder),
        settings.net,
        workers,
        settings.batch,
        settings.warm,
        settings.seconds,
        settings.step,
        settings.momentum,
        settings.seed,
    )
    said = said_by("benchmarks.torch_rivals", [who, msgspec.json.encode(orders).decode()], WITHIN + 4 * orders.seconds)
    return sum(msgspec.json.decode(said, type=Rates).images)


def said_by(module: str, arguments: list[str], within: float) -> str:
    """The last line of one of our modules that is run as a program and ends with us."""
    command, environment = program(module, *arguments)
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,  # it ends when this closes
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own
    )
    try:
        # Its input stays open until it has ended, so communicate(), which closes it, will not do.
        said, why = _read(child, within)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its process group
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if not said:
        raise Invalid(f"{' '.join([module, *arguments])} said nothing: {why or 'it took too long'}")
    return said


def _read(child: subprocess.Popen[str], within: float) -> tuple[str, str]:
    """Its last line, and its last complaint, once it has ended or its time is over."""
    from concurrent.futures import ThreadPoolExecutor

    assert child.stdout is not None and child.stderr is not None
    with ThreadPoolExecutor(2) as pool:
        out, err = pool.submit(child.stdout.read), pool.submit(child.stderr.read)
        try:
            ended = child.wait(within) == 0
        except subprocess.TimeoutExpired:
            ended = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # else somebody might hold the pipes open
        said, why = out.result().strip().splitlines(), err.result().strip().splitlines()
    return said[-1] if ended and said else "", why[-1] if why else ""


def _ratio(found: dict[tuple[str, int], list[float]], who: str, workers: int) -> float:
    plain = found.get(("plain", workers))
    if plain is None:
        return float("nan")
    return statistics.median(one / other for one, other in zip(found[who, workers], plain, strict=True))


COLUMNS = (
    ("workers", "{0.workers}"),
    ("<who", "{0.who}"),
    ("images/s", lambda case: f"{statistics.median(case.images):,.0f}"),
    ("lowest to highest", lambda case: f"{min(case.images):,.0f} to {max(case.images):,.0f}"),
    ("x plain", "{0.ratio:.2f}"),
)


def table(results: Results) -> Table:
    settings, machine = results.settings, results.machine
    load = f"load {min(results.load):.1f} to {max(results.load):.1f}"
    notes = [
        f"{results.images}; batches of {settings.batch}, SGD with momentum, one thread of PyTorch in every process.",
        f"Median of {settings.rounds} rounds (lowest to highest), {load}; x plain: median over the rounds.",
        "Servers, coordinator and evaluator share the cores with the workers; one worker has its server on another core.",
        "Hogwild: one shared memory; averaging: a mean every 16 batches of each, over gloo; allreduce: every batch.",
        *(["No process gives memory back between batches (--keep-memory)."] if settings.keep_memory else []),
        *results.missing,
    ]
    targets = TARGETS if settings.net in ("cnn", "sheet") else {}
    wanted = ("wanted", lambda case: f"{targets.get((case.who, case.workers), '')}")
    return sheet(
        f"{settings.net}, images a second, {machine}, torch {machine.versions['torch']}",
        (*COLUMNS, wanted),
        results.cases,
        "\n".join(notes),
        section=lambda case: case.workers,
    )


def with_plain(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(["plain", *names(text)]))


BENCH = Bench(
    help="A network on MNIST: plain PyTorch, DDP, torch RPC and Ray beside one and two workers of ours.",
    quick_help="Fewer and shorter rounds.",
    measure=measure,
    table=table,
    options=(
        Option("net", "The network.  [default: cnn]", click.Choice(["linear", "cnn", "sheet"])),
        Option("batch", "Images in a batch.  [default: 64]", click.IntRange(1)),
        Option("rounds", "Of all contestants in turn.  [default: 5]", click.IntRange(1)),
        Option("seconds", "Timed, of each contestant in a round.  [default: 5]", click.FloatRange(0.1)),
        Option(
            "rivals",
            "These contestants; plain is always among them.  [default: all]",
            spelled="only",
            metavar="A,B",
            parse=with_plain,
        ),
        Option("workers", "How many, one after another.  [default: 1,2]", metavar="N,N", parse=numbers),
        Option("keep_memory", "All processes, ours and theirs, keep their memory between batches.", is_flag=True),
        Option("data", "mnist, digits or an .npz file of images.  [default: mnist]"),
    ),
)

"""Checkpoints of a table that is pushed to at full speed: time, cost, and restoring.

    quiet     only pushes
    saving    a checkpoint is made meanwhile: cut, copied, hashed, written, synced; and its manifest
    plain     the rival: a thread of the client writes and syncs as many bytes in as many files

The three take turns. A rate is the median over the rounds, a ratio the median of ratios to the
quiet phase of the same round. Then, without pushes: a checkpoint against plain writing, and a
table made from it (``origin``) against plain reading into fresh memory, both from the page cache.
We write and read in one process for each server, with hashes; plain is one thread without.

The table is dense with AdaGrad's state, in server processes over ipc. The coordinator, its
checkpoints and the servers are those of a training run. Its only worker is a stand-in that joins,
so that the run may be saved, and computes nothing; a client pushes ranges of the table in its
place.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.harness import Record, Say, sheet, timed, turns
from shoal import limits
from shoal.client import KV
from shoal.errors import Invalid, ShoalError
from shoal.events import RunEvent, Saved, Warned
from shoal.job import Job, LaunchSettings
from shoal.keys import Values
from shoal.launch.coordinator_process import RunFacts
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from shoal.tables import Dense, Update
from shoal.wire import messages as m

if TYPE_CHECKING:
    from rich.table import Table

Meanwhile = Literal["quiet", "saving", "plain"]
MEANWHILE: tuple[Meanwhile, ...] = ("quiet", "saving", "plain")
_WITHIN = 300.0  # seconds for anything that is waited for
_SAMPLE = 65_536  # rows that are compared


class Settings(Record, frozen=True, kw_only=True):
    """How much, and how often."""

    megabytes: int = 1_024  # weights and optimizer state
    servers: int = 2
    floats: int = 1_000_000  # in one push
    flying: int = 4  # pushes under way
    quiet: float = 5.0  # seconds
    rounds: int = 3


FULL = Settings()
QUICK = Settings(megabytes=128, quiet=1.0, rounds=2)


class Pushed(Record, frozen=True):
    """Pushes while something else went on."""

    meanwhile: Meanwhile
    seconds: float
    pushes: int
    worst: float  # seconds: the longest that a push took

    @property
    def rate(self) -> float:
        return self.pushes / self.seconds


class Results(Record, frozen=True):
    """All of one run."""

    settings: Settings
    size: int  # bytes of a checkpoint
    files: int
    rounds: list[dict[Meanwhile, Pushed]]
    idle: dict[str, list[float]]  # seconds of write, plain write, restore, plain read

    def ratio(self, meanwhile: Meanwhile) -> float:
        """Of the rate to that of the quiet phase of the same round."""
        return statistics.median(one[meanwhile].rate / one["quiet"].rate for one in self.rounds)


# ---------------------------------------------------------------- plain files


def plain_write(path: Path, rows: Values) -> None:
    with open(path, "wb", buffering=0) as file:
        rest = rows.reshape(-1).view(np.uint8).data
        while rest.nbytes:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def plain_read(path: Path, rows: Values) -> Values:
    with open(path, "rb", buffering=0) as file:
        rest = rows.reshape(-1).view(np.uint8).data
        while rest.nbytes:
            rest = rest[file.readinto(rest) :]
    return rows


# ---------------------------------------------------------------- the run


@dataclass(slots=True)
class Scene:
    """A run that may be saved, and who pushes to it."""

    settings: Settings
    cluster: ProcessCluster
    kv: KV
    saver: KV
    told: queue.SimpleQueue[Saved | Warned]
    spec: Dense
    home: Path
    at: int = 0  # where the next push begins

    @property
    def starts(self) -> list[int]:
        return self.cluster.status().view.tables[0].starts

    def save(self) -> Saved:
        """A checkpoint; returns when it is on disk."""
        self.saver.save(_WITHIN)
        while isinstance(told := self.told.get(timeout=_WITHIN), Warned):
            if told.what.startswith("no checkpoint"):
                raise ShoalError(told.what)
        return told

    def push(self, values: Values) -> Any:
        start, rows = self.at, len(values)
        self.at = start + rows if start + 2 * rows <= self.spec.rows else 0
        return self.kv.push("w", slice(start, start + rows), values)

    def sample(self) -> Values:
        keys = np.linspace(0, self.spec.rows - 1, min(_SAMPLE, self.spec.rows)).astype(np.uint64)
        found: Values = self.kv.pull("w", np.unique(keys)).result(_WITHIN)
        return found


def measure(settings: Settings, say: Say, folder: str | None = None) -> Results:
    """Run it all, in a folder of its own that is removed afterwards."""
    if settings.rounds < 1 or settings.flying < 1 or not 1 <= settings.floats <= settings.megabytes * limits.MB // 8:
        raise Invalid("a benchmark needs at least one round, and pushes that are no larger than the table")
    with tempfile.TemporaryDirectory(prefix="shoal-saving-", dir=folder) as home, _scene(settings, Path(home)) as scene:
        say(f"filling {settings.megabytes:,} MB on {settings.servers} servers")
        starts = scene.starts
        values = np.random.default_rng(0).standard_normal(settings.floats, np.float32)
        for _ in range(0, scene.spec.rows, settings.floats):
            scene.push(values).result(_WITHIN)
        size = scene.save().bytes  # the first one, thrown away: it finds the disk cold
        plain = _Plain(Path(home) / "plain", size, len(starts))
        rounds: list[dict[Meanwhile, Pushed]] = []
        idle: dict[str, list[float]] = {"write": [], "plain write": [], "restore": [], "plain read": []}
        for number in range(settings.rounds):
            order = list(turns(MEANWHILE, number + 1))[-len(MEANWHILE) :]
            rounds.append({what: _push_while(scene, what, values, plain) for what in order})
            _idle(scene, plain, starts, idle)
            say(f"round {number + 1} of {settings.rounds}: {_line(rounds[-1], idle, settings.floats)}")
    return Results(settings, size, len(starts), rounds, idle)


@contextlib.contextmanager
def _scene(settings: Settings, home: Path) -> Iterator[Scene]:
    told: queue.SimpleQueue[Saved | Warned] = queue.SimpleQueue()

    def listen(event: RunEvent) -> None:
        if isinstance(event, Saved | Warned):
            told.put(event)

    job = Job.of({"workers": 1, "servers": settings.servers, "checkpoint": {"every": 1e9, "keep": 1}})
    cluster = ProcessCluster(settings.servers, LaunchSettings(), JournalFile(None))
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.train(RunFacts(job.toml(), "nothing", 1_000, 0, 1_000, str(home / "checkpoints")), listen)
        cluster.start()
        kv, saver = (stack.enter_context(cluster.client()) for _ in range(2))
        spec = Dense(rows=settings.megabytes * limits.MB // 8, update=Update("adagrad", {"step": 0.1}))
        kv.create("w", spec)
        for one in (cluster.worker("worker-0"), cluster._join("evaluator", "evaluator")):
            _take_part(stack.enter_context(one))
        yield Scene(settings, cluster, kv, saver, told, spec, home)


def _take_part(kv: KV) -> None:
    """Joins as a worker that wants no slots, or as an evaluator: all that a run needs to begin."""
    client = kv._client
    if client.session.role == "worker":
        task = client.ask("take part", lambda request: m.Want(request, client.session.incarnation, 0), m.Deal)
    else:
        task = client.ask(
            "take part", lambda request: m.EvaluationReady(request, client.session.incarnation, holds=0), m.EvaluateNow
        )
    kv._call(lambda: task).result(_WITHIN)


# ---------------------------------------------------------------- under load, and idle


class _Plain:
    """As many bytes in as many files; what is in them does not matter."""

    def __init__(self, folder: Path, size: int, files: int) -> None:
        self.folder, self.files = folder, files
        self._rows = np.random.default_rng(1).standard_normal(size // files // 4, np.float32)

    def write(self) -> None:
        self.folder.mkdir()
        for number in range(self.files):
            plain_write(self.folder / str(number), self._rows)

    def read(self) -> None:
        found = [plain_read(self.folder / str(i), np.empty_like(self._rows)) for i in range(self.files)]
        if not all(np.array_equal(rows[:8], self._rows[:8]) for rows in found):
            raise ShoalError("what was read is not what was written: report this")

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def _push_while(scene: Scene, meanwhile: Meanwhile, values: Values, plain: _Plain) -> Pushed:
    """Push at full speed until the other thing is done."""
    failed: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            if meanwhile == "quiet":
                over.wait(scene.settings.quiet)
            elif meanwhile == "saving":
                scene.save()
            else:
                plain.write()
        except BaseException as error:
            failed.append(error)
        finally:
            over.set()

    flying: deque[tuple[float, Any]] = deque()
    for _ in range(scene.settings.flying):
        flying.append((time.perf_counter(), scene.push(values)))
    pushes, worst = 0, 0.0
    other = threading.Thread(target=run, name="shoal-meanwhile", daemon=True)
    began = time.perf_counter()
    other.start()
    while not over.is_set():
        sent, task = flying.popleft()
        task.result(_WITHIN)
        now = time.perf_counter()
        pushes, worst = pushes + 1, max(worst, now - sent)
        flying.append((now, scene.push(values)))
    seconds = time.perf_counter() - began
    scene.kv.wait([task for _, task in flying], _WITHIN)
    other.join(_WITHIN)
    if meanwhile == "plain":
        plain.remove()
    if failed:
        raise failed[0]
    return Pushed(meanwhile, seconds, pushes, worst)


def _idle(scene: Scene, plain: _Plain, starts: list[int], idle: dict[str, list[float]]) -> None:
    """To disk and back, with nobody pushing."""
    idle["write"].append(timed(scene.save))
    idle["plain write"].append(timed(plain.write))
    before, origin = scene.sample(), scene.cluster.look().checkpoint
    scene.kv.drop("w")
    idle["restore"].append(timed(lambda: scene.kv.create("w", scene.spec, starts, origin)))
    idle["plain read"].append(timed(plain.read))
    plain.remove()
    if not np.array_equal(scene.sample(), before):
        raise ShoalError("the restored table is not the one that was saved: report this")


# ---------------------------------------------------------------- telling


NAMED = {"quiet": "pushing alone", "saving": "pushing, saving", "plain": "pushing, plain files"}
HEADINGS = ("<what", "seconds", "MB/s", "pushed M/s", "worst push ms", "x")


def table(results: Results) -> Table:
    """Rates under load, times when idle, and how we compare."""
    settings, rows = results.settings, list[tuple[str, ...]]()
    for what in MEANWHILE:
        phases = [one[what] for one in results.rounds]
        seconds = statistics.median(one.seconds for one in phases)
        rate = statistics.median(one.rate for one in phases) * settings.floats / 1e6
        disk = "" if what == "quiet" else f"{results.size / seconds / 1e6:,.0f}"
        worst = max(one.worst for one in phases) * 1e3
        row = NAMED[what], f"{seconds:.2f}", disk, f"{rate:,.1f}", f"{worst:,.0f}", f"{results.ratio(what):.2f}"
        rows.append(row)
    for ours, theirs in (("write", "plain write"), ("restore", "plain read")):
        x = statistics.median(b / a for a, b in zip(results.idle[ours], results.idle[theirs], strict=True))
        for name, ratio in ((ours, f"{x:.2f}"), (theirs, "")):
            seconds = statistics.median(results.idle[name])
            rows.append((name, f"{seconds:.2f}", f"{results.size / seconds / 1e6:,.0f}", "", "", ratio))
    where = f"{results.size / limits.MB:,.0f} MB in {results.files} segments on {settings.servers} servers"
    return sheet(
        f"{where}, while pushes go on",
        [(heading, f"{{0[{at}]}}") for at, heading in enumerate(HEADINGS)],
        rows,
        f"medians of {settings.rounds} rounds. x: pushing to quiet pushing; to disk and back: our rate over that of plain files, "
        "nobody pushing. Above 1 is faster",
        section=lambda row: row[0] in NAMED.values(),
    )


def _line(one: dict[Meanwhile, Pushed], idle: dict[str, list[float]], floats: int) -> str:
    rates = ", ".join(f"{what} {pushed.rate * floats / 1e6:,.1f} M/s" for what, pushed in one.items())
    return f"{rates}; " + ", ".join(f"{what} {seconds[-1]:.2f} s" for what, seconds in idle.items())

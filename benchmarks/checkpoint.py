"""A model to disk and back, timed in turn with plain files of the same bytes.

    shoal         one safetensors file per segment, hashed and synced, and the manifest; verified
    plain         the same arrays to as many files, synced; read back unverified
    safetensors   the library's own save_file (and a sync) and load_file: a header, no hash

All three write from memory to new files and sync each of them, and read from the page cache into
fresh memory. A time is the best of the turns, a ratio our rate over theirs: above 1 we are faster.
``live_checkpoint`` measures what a checkpoint costs while a table is pushed to.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from benchmarks import live_checkpoint
from benchmarks.harness import Bench, Cell, Option, Record, Report, Say, machine, quiet, sheet, timed, turns
from benchmarks.live_checkpoint import plain_read, plain_write
from shoal import limits
from shoal.errors import Invalid
from shoal.files import Disk
from shoal.keys import KeyRange, Values
from shoal.store.checkpoint import manifest
from shoal.store.checkpoint.manifest import Manifest, SavedTable
from shoal.store.checkpoint.segment_file import read_segment, write_segment
from shoal.store.table.table import SegmentImage
from shoal.tables import Dense, Update
from shoal.wire.messages import Counts, SegmentBooks

if TYPE_CHECKING:
    from rich.console import RenderableType

CONTESTANTS = ("shoal", "plain", "safetensors")


class Settings(Record, frozen=True, kw_only=True):
    """How much, and how often."""

    megabytes: int = 1_024  # weights and optimizer state
    segment: int = limits.DENSE_SEGMENT_BYTES // limits.MB  # megabytes in a file
    repeat: int = 5  # turns
    live: live_checkpoint.Settings | None = None  # also while a table is pushed to
    folder: str | None = None  # on which disk; none: that of temporary files


FULL = Settings(live=live_checkpoint.FULL)
QUICK = Settings(megabytes=128, repeat=3, live=live_checkpoint.QUICK)


class Case(Record, frozen=True):
    """One way: to disk, or back."""

    what: str
    size: int  # bytes of numbers
    seconds: dict[str, list[float]]  # by contestant, in the order they were run

    def best(self, contestant: str) -> float:
        return min(self.seconds[contestant])

    def ratio(self, rival: str) -> float:
        return self.best(rival) / self.best("shoal")


class Results(Report[Settings, Case], frozen=True):
    """With those of a run that goes on."""

    live: live_checkpoint.Results | None = None


class Model:
    """Made-up segments of a dense table with AdaGrad's state."""

    def __init__(self, settings: Settings) -> None:
        count = max(1, settings.megabytes // settings.segment)
        rows = settings.segment * limits.MB // 8  # a weight and its state
        self.table = SavedTable(
            1, "w", Dense(rows=rows * count, update=Update("adagrad")), list(range(0, rows * count, rows))
        )
        one = np.random.default_rng(0).standard_normal((rows, 2), np.float32)
        books = SegmentBooks(1_000, {0: Counts(8_000)})
        self.images = [
            SegmentImage(i, KeyRange(i * rows, (i + 1) * rows), books, one + np.float32(i)) for i in range(count)
        ]

    @property
    def size(self) -> int:
        return sum(image.nbytes for image in self.images)


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    """Run it all, in a folder of its own that is removed afterwards."""
    if settings.repeat < 1 or settings.segment < 1 or settings.megabytes < settings.segment:
        raise Invalid("a benchmark needs at least one repeat and one segment")
    began = time.perf_counter()
    model = Model(settings)
    writes: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    reads: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory(prefix="shoal-checkpoint-", dir=settings.folder) as home:
        for name in turns(CONTESTANTS, settings.repeat):
            root = Path(home) / name
            root.mkdir()
            gc.collect()
            writes[name].append(timed(lambda name=name, root=root: WRITE[name](model, root)))  # type: ignore[misc]
            gc.collect()
            reads[name].append(timed(lambda name=name, root=root: READ[name](model, root)))  # type: ignore[misc]
            shutil.rmtree(root)
            say(
                f"{name}: {model.size / writes[name][-1] / 1e6:,.0f} and {model.size / reads[name][-1] / 1e6:,.0f} MB/s"
            )
    cases = [Case("write", model.size, writes), Case("read", model.size, reads)]
    live = None if settings.live is None else live_checkpoint.measure(settings.live, say, settings.folder)
    return Results(machine("safetensors"), settings, time.perf_counter() - began, cases, live)


def _best(contestant: str) -> Cell:
    return lambda case: f"{case.best(contestant) * 1e3:,.0f}"


COLUMNS = (
    ("<what", "{0.what}"),
    ("MB", lambda case: f"{case.size / limits.MB:,.0f}"),
    ("shoal ms", _best("shoal")),
    ("MB/s", lambda case: f"{case.size / case.best('shoal') / 1e6:,.0f}"),
    ("plain ms", _best("plain")),
    ("x plain", lambda case: f"{case.ratio('plain'):.2f}"),
    ("safetensors ms", _best("safetensors")),
    ("x safetensors", lambda case: f"{case.ratio('safetensors'):.2f}"),
)


def table(results: Results) -> RenderableType:
    """Of files alone, and of a run that goes on."""
    from rich.console import Group

    files = sheet(
        f"a model to disk and back, {results.machine}",
        COLUMNS,
        results.cases,
        f"best of {results.settings.repeat} turns; written: synced; read: from the page cache. "
        "x: our rate over theirs, above 1 we are faster",
    )
    return Group(files, *([] if results.live is None else [live_checkpoint.table(results.live)]))


# ---------------------------------------------------------------- the contestants


def _save(model: Model, root: Path) -> None:
    disk = Disk()
    number = manifest.prepare(disk, root)
    folder = manifest.folder_of(root, number)
    written = [write_segment(disk, folder, "w", 1, image) for image in model.images]
    manifest.finish(
        disk, folder, Manifest(number=number, generation=0, job="", steps=1, tables=[model.table], segments=written)
    )


def _load(model: Model, root: Path) -> None:
    disk, folder = Disk(), manifest.folder_of(root, 1)
    for written in manifest.read_manifest(disk, folder).segments:
        keys = model.table.keys(written.segment)
        _same(read_segment(disk, folder, written, model.table.spec, keys).rows, model.images[written.segment])


def _save_plain(model: Model, root: Path) -> None:
    for image in model.images:
        plain_write(root / str(image.segment), image.rows)


def _load_plain(model: Model, root: Path) -> None:
    for image in model.images:
        _same(plain_read(root / str(image.segment), np.empty_like(image.rows)), image)


def _save_theirs(model: Model, root: Path) -> None:
    from safetensors.numpy import save_file

    for image in model.images:
        path = root / str(image.segment)
        save_file({"rows": image.rows}, path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _load_theirs(model: Model, root: Path) -> None:
    from safetensors.numpy import load_file

    for image in model.images:
        _same(load_file(root / str(image.segment))["rows"], image)


WRITE = {"shoal": _save, "plain": _save_plain, "safetensors": _save_theirs}
READ = {"shoal": _load, "plain": _load_plain, "safetensors": _load_theirs}


def _same(rows: Values, image: SegmentImage) -> None:
    """Enough to know that it was read, too little to be timed."""
    if rows.shape != image.rows.shape or not np.array_equal(
        rows[:: len(rows) // 8 + 1], image.rows[:: len(rows) // 8 + 1]
    ):
        raise Invalid("what was read is not what was written: report this")


BENCH = Bench(
    help="A model's segments to disk and back, against plain files and the safetensors library; and while it is pushed to.",
    quick_help="128 MB instead of a gigabyte.",
    measure=measure,
    table=table,
    options=(Option("folder", "On which disk.", click.Path(exists=True, file_okay=False)),),
)

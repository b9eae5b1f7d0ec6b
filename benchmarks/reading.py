"""Reading text into memory, timed in turn with scikit-learn.

    LIBSVM    RCV1, unpacked to a plain file first: neither side is timed on decompression
    rival     sklearn.datasets.load_svmlight_file, float32, the same file; it must find the same rows
    Criteo    the 1TB sample, unpacked as well; there is no rival, so rows a second is all that is said

Without $SHOAL_DATA the LIBSVM file is made up (`rcv1-like`), which is said, and Criteo is left out. Ours and theirs run
by turns, whoever is first changes; a time is the best of the turns, a ratio the best of theirs over the best of ours.
"""

from __future__ import annotations

import gc
import lzma
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from benchmarks.harness import Bench
from benchmarks.store import Machine, _machine
from shoal.data.batch import Batch
from shoal.data.datasets import NAMED, VARIABLE
from shoal.data.export import make
from shoal.data.readers import read
from shoal.errors import Invalid

if TYPE_CHECKING:
    from rich.table import Table


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is read, and how often."""

    repeat: int = 7  # turns
    rows: int = 20_000  # of the made-up file, where there is no RCV1


FULL = Settings()
QUICK = Settings(repeat=3)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file."""

    what: str
    rows: int
    nonzeros: int
    size: int  # bytes of text
    seconds: dict[str, list[float]]  # by contestant, in the order they were run
    ratio: float | None  # how many times faster than the rival, if there is one

    def best(self, contestant: str) -> float:
        return min(self.seconds[contestant])


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of one run."""

    machine: Machine
    settings: Settings
    seconds: float
    cases: list[Case]


def measure(settings: Settings = FULL, progress: Callable[[str], None] = lambda line: None) -> Results:
    """Run it all. ``progress`` is told what is going on, one line at a time."""
    if settings.repeat < 1 or settings.rows < 1:
        raise Invalid("a benchmark needs at least one repeat and one row")
    began = time.perf_counter()
    home = os.environ.get(VARIABLE)
    cases = []
    with tempfile.TemporaryDirectory(prefix="shoal-reading-") as folder:
        text = Path(folder) / "rows.svm"
        what = _libsvm_file(home, settings, text)
        progress(f"{what}: {text.stat().st_size / 1e6:.1f} MB of text")
        cases.append(_libsvm(what, text, settings.repeat))
        progress(_line(cases[-1]))
        if home and (packed := Path(home) / NAMED["criteo_tb"].train).is_file():
            _unpack(packed, text)
            cases.append(_criteo(text, settings.repeat))
            progress(_line(cases[-1]))
    machine = _machine()
    versions = machine.versions | {"scikit-learn": metadata.version("scikit-learn")}
    machine = msgspec.structs.replace(machine, versions=versions)
    return Results(machine, settings, time.perf_counter() - began, cases)


def table(results: Results) -> Table:
    """Best times, rates, and how we compare."""
    from rich import box
    from rich.table import Table

    machine = results.machine
    shown = Table(
        box=box.SIMPLE_HEAD,
        title=f"reading text, one thread of {machine.cores} cores of {machine.cpu}",
        caption=f"best of {results.settings.repeat} turns, from a plain file in the page cache into memory",
    )
    shown.add_column("what", no_wrap=True)
    for name in ("rows", "nonzeros", "shoal ms", "sklearn ms", "x sklearn", "MB/s", "rows/s"):
        shown.add_column(name, justify="right", no_wrap=True)
    for case in results.cases:
        ours = case.best("shoal")
        shown.add_row(
            case.what,
            f"{case.rows:,}",
            f"{case.nonzeros:,}",
            f"{ours * 1e3:,.1f}",
            f"{case.best('sklearn') * 1e3:,.1f}" if case.ratio else "",
            f"{case.ratio:.1f}" if case.ratio else "",
            f"{case.size / ours / 1e6:,.0f}",
            f"{case.rows / ours:,.0f}",
        )
    return shown


def _libsvm_file(home: str | None, settings: Settings, text: Path) -> str:
    if home and (packed := Path(home) / NAMED["rcv1"].train).is_file():
        _unpack(packed, text)
        return "LIBSVM, RCV1"
    make("rcv1-like", settings.rows, 0, text)
    return "LIBSVM, made up"


def _libsvm(what: str, text: Path, repeat: int) -> Case:
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError:
        raise Invalid("the rival is scikit-learn, which is not installed: install shoal[sklearn]") from None

    found: dict[str, Any] = {}

    def ours() -> None:
        found["shoal"] = read(text, "libsvm")

    def theirs() -> None:
        found["sklearn"] = load_svmlight_file(str(text), dtype=np.float32, zero_based=False)

    seconds = _turns({"shoal": ours, "sklearn": theirs}, repeat)
    rows: Batch = found["shoal"]
    _same(rows, *found["sklearn"])
    ratio = min(seconds["sklearn"]) / min(seconds["shoal"])
    return Case(what, len(rows), rows.nonzeros, text.stat().st_size, seconds, ratio)


def _criteo(text: Path, repeat: int) -> Case:
    found: list[Batch] = []
    seconds = _turns({"shoal": lambda: found.append(read(text, "criteo"))}, repeat)
    rows = found[-1]
    return Case("Criteo TSV, 1TB sample", len(rows), rows.nonzeros, text.stat().st_size, seconds, None)


def _turns(calls: dict[str, Callable[[], None]], repeat: int) -> dict[str, list[float]]:
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for call in calls.values():
        call()  # kernels are compiled and the file is in the page cache before anything counts
    for turn in range(repeat):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            began = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def _same(rows: Batch, matrix: Any, labels: Any) -> None:
    """A race between readers that do not read the same is none."""
    values = np.ones(rows.nonzeros, np.float32) if rows.values is None else rows.values
    pairs = ((rows.indptr, matrix.indptr), (rows.columns, matrix.indices), (values, matrix.data), (rows.labels, labels))
    if not all(np.array_equal(ours, theirs) for ours, theirs in pairs):
        raise Invalid("the two readers found different rows in the same file: report this with the file")


def _unpack(packed: Path, to: Path) -> None:
    with lzma.open(packed) as source, to.open("wb") as target:
        shutil.copyfileobj(source, target)


def _line(case: Case) -> str:
    ratio = f", {case.ratio:.1f} times as fast as sklearn" if case.ratio else ""
    return f"{case.what}: {case.rows:,} rows in {case.best('shoal') * 1e3:,.1f} ms{ratio}"


BENCH = Bench(
    help="The LIBSVM reader against scikit-learn's on RCV1 (from SHOAL_DATA), and the click-log reader beside it.",
    quick_help="Fewer repeats.",
    measure=measure,
    table=table,
)

"""Reading text into memory, timed in turn with scikit-learn.

    LIBSVM    RCV1, unpacked to a plain file first: no side is timed on decompression
    rival     sklearn.datasets.load_svmlight_file, float32, the same file, the same rows
    Criteo    the 1TB sample, unpacked as well; without a rival

Without $SHOAL_DATA the LIBSVM file is made up (`rcv1-like`), and Criteo is left out. Ours and
theirs run by turns; a time is the best of the turns, a ratio the best of theirs over the best of
ours.
"""

from __future__ import annotations

import gc
import lzma
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from benchmarks.harness import Bench, Record, Report, Say, machine, quiet, report, sheet, timed, turns
from shoal.data.batch import Batch
from shoal.data.datasets import NAMED, VARIABLE
from shoal.data.export import make
from shoal.data.readers import read
from shoal.errors import Invalid

if TYPE_CHECKING:
    from rich.table import Table


class Settings(Record, frozen=True, kw_only=True):
    """What is read, and how often."""

    repeat: int = 7  # turns
    rows: int = 20_000  # of the made-up file, where there is no RCV1


FULL = Settings()
QUICK = Settings(repeat=3)


class Case(Record, frozen=True):
    """One file."""

    what: str
    rows: int
    nonzeros: int
    size: int  # bytes of text
    seconds: dict[str, list[float]]  # by contestant, in the order they were run
    ratio: float | None  # how many times faster than the rival, if there is one

    def best(self, contestant: str) -> float:
        return min(self.seconds[contestant])


Results = Report[Settings, Case]


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if settings.repeat < 1 or settings.rows < 1:
        raise Invalid("a benchmark needs at least one repeat and one row")
    made = report(Results, settings, _cases(settings, say), say, COLUMNS)
    return msgspec.structs.replace(made, machine=machine("scikit-learn"))


def _cases(settings: Settings, say: Say) -> Iterator[Case]:
    home = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="shoal-reading-") as folder:
        text = Path(folder) / "rows.svm"
        what = _libsvm_file(home, settings, text)
        say(f"{what}: {text.stat().st_size / 1e6:.1f} MB of text")
        yield _libsvm(what, text, settings.repeat)
        if home and (packed := Path(home) / NAMED["criteo_tb"].train).is_file():
            _unpack(packed, text)
            yield _criteo(text, settings.repeat)


COLUMNS = (
    ("<what", "{0.what}"),
    ("rows", "{0.rows:,}"),
    ("nonzeros", "{0.nonzeros:,}"),
    ("shoal ms", lambda case: f"{case.best('shoal') * 1e3:,.1f}"),
    ("sklearn ms", lambda case: f"{case.best('sklearn') * 1e3:,.1f}" if case.ratio else ""),
    ("x sklearn", lambda case: f"{case.ratio:.1f}" if case.ratio else ""),
    ("MB/s", lambda case: f"{case.size / case.best('shoal') / 1e6:,.0f}"),
    ("rows/s", lambda case: f"{case.rows / case.best('shoal'):,.0f}"),
)


def table(results: Results) -> Table:
    return sheet(
        f"reading text, one thread of {results.machine}",
        COLUMNS,
        results.cases,
        f"best of {results.settings.repeat} turns, from a plain file in the page cache into memory",
    )


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
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # kernels are compiled and the file is in the page cache before anything counts
    for name in turns(list(calls), repeat):
        gc.collect()
        seconds[name].append(timed(calls[name]))
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


BENCH = Bench(
    help="The LIBSVM reader against scikit-learn's on RCV1 (from SHOAL_DATA), and the click-log reader beside it.",
    quick_help="Fewer repeats.",
    measure=measure,
    table=table,
)

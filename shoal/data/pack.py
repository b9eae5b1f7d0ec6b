"""Packs a plan into a folder with two sets, train/ and test/, whole or not at all.

Training rows are shuffled, so that adjacent rows are a fair minibatch; synthetic ones have no
order. Which rows are held out depends only on their position in the source, never on the seed:
runs with different seeds use the same test rows. Dense sets are read into memory:

    mnist, digits    see ``mnist``
    a path           .npz, as numpy writes it (``npz``)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data import mnist, npz, readers, synthetic
from shoal.data.batch import Batch, Hashing, Ids, take
from shoal.data.csr_file import CsrFile, CsrWriter, StagingFolder, write_json
from shoal.data.dense_file import DenseExamples, DensePair, Inputs, classes_of, write
from shoal.decoding import resolve_types
from shoal.errors import Invalid
from shoal.limits import MB

Progress = Callable[[str], None]

TEST_SHARE = 10  # synthetic rows per test row
MADE_AT_ONCE, COPIED_AT_ONCE = 50_000, 16_384  # rows
# chosen so that the second row is among the first held out: a few rows suffice for a trial
HELD_OUT = np.uint64(3218)
BUCKET = 256 * MB  # bytes of the file, compressed or not: random reads should stay in memory
BUCKETS = 64
DEAL, ORDER = np.uint64(0x6465616C), np.uint64(0x6F726472)


class PackPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines a packed pair; its hash is the pair's name in the cache."""

    name: str
    made: str = ""  # the synthetic source; else files
    dense: Literal["", "mnist", "digits", "npz"] = ""  # the reader of dense rows
    seed: int = 0
    train: str = ""
    test: str | None = None
    sums: list[str] = []  # checksums of the files, if known beforehand
    stamps: list[tuple[int, int]] = []  # size and mtime of the files
    format: readers.Format = "libsvm"
    held_out: float = 0.0
    rows: int | None = None
    features: int | None = None
    hash_bits: int | None = None
    bad_lines: int = 0


class PackInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    notes: list[str]


def pack(plan: PackPlan, folder: Path, progress: Progress | None) -> None:
    """Read or make all rows; leaves nothing behind on an error."""
    pair = _read_dense(plan, folder.parent, progress) if plan.dense else None
    with StagingFolder(folder) as aside:
        where = aside.path
        notes = _pack_sparse(plan, where, progress) if pair is None else _pack_dense(plan, pair, where, progress)
        write_json(aside.path / "facts.json", PackInfo(plan.name, notes))
        aside.settle()


def stamps(paths: list[Path]) -> list[tuple[int, int]]:
    facts = [path.stat() for path in paths]
    return [(one.st_size, one.st_mtime_ns) for one in facts]


def _check_unchanged(plan: PackPlan) -> None:
    try:
        now = stamps([Path(path) for path in (plan.train, plan.test) if path])
    except FileNotFoundError:
        now = []
    if now != plan.stamps:
        raise Invalid(f"{plan.name} was changed while it was read: load it again")


def _check_halves(plan: PackPlan, train: int, test: int) -> None:
    if not train or not test:
        what = "left to train on" if test else "held out to test on"
        raise Invalid(
            f"{plan.train or plan.name} has {train + test} rows, and with held_out = {plan.held_out:g} none is {what}: "
            f"give a test set, or another share"
        )


def held_out(first: int, count: int, share: float) -> npt.NDArray[np.bool_]:
    """Which rows from ``first`` on are held out: about ``share`` of them, for any seed."""
    return _draws(first, count, HELD_OUT) < share


def _draws(first: int, count: int, seed: np.uint64) -> npt.NDArray[np.float64]:
    from shoal.data import kernels

    draws = np.empty(count, np.float64)
    kernels.draws(first, seed, draws)
    return draws


def _shuffled(first: int, count: int, length: int, seed: np.uint64) -> Ids:
    from shoal.data import kernels

    order = np.empty(count, np.int64)
    kernels.permute(first, length, seed, order)
    return order


def _tell(progress: Progress | None, name: str, rows: int) -> None:
    if progress:
        progress(f"packing {name}: {rows:,} rows")


# ---------------------------------------------------------------- sparse rows


def _pack_sparse(plan: PackPlan, folder: Path, progress: Progress | None) -> list[str]:
    with CsrWriter(folder / "train") as train, CsrWriter(folder / "test") as test:
        if plan.made:
            features, notes, hashing = _make(plan, train, test, progress), list[str](), None
        else:
            with StagingFolder(folder / "buckets") as buckets, Shuffle(buckets.path, plan.stamps[0][0]) as shuffle:
                try:
                    features, notes, hashing = _read(plan, shuffle, train, test, progress)
                except Invalid:
                    _check_unchanged(plan)  # report a changed file, not its truncated line
                    raise
            _check_unchanged(plan)
        features = max(features, train.features, test.features, 1)
        train.finish(plan.train or plan.name, features, hashing)
        test.finish(plan.test or plan.train or plan.name, features, hashing)
    return notes


def _make(plan: PackPlan, train: CsrWriter, test: CsrWriter, progress: Progress | None) -> int:
    maker = synthetic.MAKERS[plan.made](plan.seed, plan.features)
    rows = plan.rows or 1
    for writer, first, count in ((train, 0, rows), (test, synthetic.TEST_FROM, max(1, rows // TEST_SHARE))):
        for start in range(0, count, MADE_AT_ONCE):
            writer.append(maker.rows(first + start, min(MADE_AT_ONCE, count - start)))
            _tell(progress, plan.name, writer.rows)
    return maker.features


def _read(
    plan: PackPlan, shuffle: Shuffle, train: CsrWriter, test: CsrWriter, progress: Progress | None
) -> tuple[int, list[str], Hashing | None]:
    reader = _reader(plan, plan.train, plan.rows)
    for batch, lines in reader:
        if plan.test:
            shuffle.append(batch, lines)
        else:
            held = held_out(shuffle.rows + test.rows, len(batch), plan.held_out)
            for writer, rows in ((shuffle, np.flatnonzero(~held)), (test, np.flatnonzero(held))):
                writer.append(take(batch, rows), lines[rows])
        _tell(progress, plan.name, shuffle.rows + test.rows)
    shuffle.into(train)
    notes = reader.notes()
    if plan.test:
        others = _reader(plan, plan.test, None)
        for batch, lines in others:
            test.append(batch, lines)
        notes += others.notes()
    else:
        _check_halves(plan, train.rows, test.rows)
    hashing = None if reader.hash_bits is None else Hashing(reader.hash_bits, plan.format)
    return max(reader.features, plan.features or 0), notes, hashing


def _reader(plan: PackPlan, path: str, rows: int | None) -> readers.RowReader:
    return readers.RowReader(
        Path(path), plan.format, features=plan.features, hash_bits=plan.hash_bits, bad_lines=plan.bad_lines, rows=rows
    )


class Shuffle:
    """Takes batches like a ``CsrWriter``; ``into`` writes them shuffled. A context manager.

    A file may be sorted (by label, by day) and larger than memory. So rows are assigned at random
    to a few buckets, each a packed set on disk, and each bucket is then read in random order. The
    order depends only on the row numbers: the same file gives the same set.
    """

    def __init__(self, folder: Path, size: int) -> None:
        count = max(1, min(BUCKETS, -(-size // BUCKET)))
        self.rows = 0
        self._writers = [CsrWriter(folder / f"bucket-{number}") for number in range(count)]

    def append(self, batch: Batch, lines: Ids) -> None:
        if len(self._writers) == 1:
            self._writers[0].append(batch, lines)
        else:
            bucket = (_draws(self.rows, len(batch), DEAL) * len(self._writers)).astype(np.int64)
            for number, writer in enumerate(self._writers):
                rows = np.flatnonzero(bucket == number)
                writer.append(take(batch, rows), lines[rows])
        self.rows += len(batch)

    def into(self, final: CsrWriter) -> None:
        labels: dict[float, tuple[int, int]] = {}
        for number, writer in enumerate(self._writers):
            for value, (rows, line) in writer.labels.items():
                before, first = labels.get(value, (0, line))
                labels[value] = (before + rows, min(first, line))
            self._copy(writer.finish(), ORDER + np.uint64(number), final)
        # the line numbers of the file, not of the buckets
        final.labels, final.more_labels = labels, any(writer.more_labels for writer in self._writers)

    def _copy(self, bucket: CsrFile, seed: np.uint64, final: CsrWriter) -> None:
        for first in range(0, bucket.rows, COPIED_AT_ONCE):
            count = min(COPIED_AT_ONCE, bucket.rows - first)
            final.append(bucket.take(_shuffled(first, count, bucket.rows, seed)))

    def __enter__(self) -> Shuffle:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()


# ---------------------------------------------------------------- dense rows


def _read_dense(plan: PackPlan, cache: Path, progress: Progress | None) -> DensePair:
    match plan.dense:
        case "mnist":
            return mnist.read(cache, progress)
        case "digits":
            return mnist.read_digits()
    return npz.read(Path(plan.train), Path(plan.test) if plan.test else None)


def _pack_dense(plan: PackPlan, pair: DensePair, folder: Path, progress: Progress | None) -> list[str]:
    _check_unchanged(plan)
    train, test = pair.train, pair.test
    rows = np.arange(len(train) if plan.rows is None else min(plan.rows, len(train)), dtype=np.int64)
    if test is None:
        keep = ~held_out(0, len(rows), plan.held_out)
        rows, held, test = rows[keep], rows[~keep], train
        _check_halves(plan, len(rows), len(held))
    else:
        held = np.arange(len(test), dtype=np.int64)
    classes, notes = _classes(pair)
    facts = (*(pair.scale or scale_of(train.inputs, rows)), classes)
    order = rows[_shuffled(0, len(rows), len(rows), ORDER)]
    write(folder / "train", _parts(plan.name, train, order, progress), plan.train or plan.name, *facts)
    write(folder / "test", _parts(plan.name, test, held, None), plan.test or plan.train or plan.name, *facts)
    return notes


def _classes(pair: DensePair) -> tuple[int, list[str]]:
    if pair.classes is not None:
        return pair.classes, []
    labels = [some.labels for some in (pair.train, pair.test) if some is not None]
    classes = classes_of(*labels)
    if not classes or min(some.min() for some in labels) == 0:
        return classes, []
    return classes, [f"label 0 is not there: {classes:,} classes, counted from 0"]


def scale_of(inputs: Inputs, rows: Ids) -> tuple[float, float]:
    """Factor and shift that normalise bytes to mean 0 and deviation 1; floats stay unchanged."""
    if inputs.dtype != np.uint8:
        return 1.0, 0.0
    counts = np.zeros(256)
    for first in range(0, len(rows), COPIED_AT_ONCE):
        counts += np.bincount(inputs[rows[first : first + COPIED_AT_ONCE]].reshape(-1), minlength=256)
    values, total = np.arange(256.0), counts.sum()
    mean = float(counts @ values / total)
    deviation = float(np.sqrt(counts @ (values - mean) ** 2 / total)) or 1.0
    return 1 / deviation, -mean / deviation


def _parts(
    name: str, examples: DenseExamples, rows: Ids, progress: Progress | None
) -> Iterator[tuple[DenseExamples, Ids]]:
    for first in range(0, len(rows), COPIED_AT_ONCE):
        some = rows[first : first + COPIED_AT_ONCE]
        yield DenseExamples(examples.inputs[some], examples.labels[some]), some + 1
        _tell(progress, name, min(first + COPIED_AT_ONCE, len(rows)))


resolve_types(PackInfo)

"""Packs a plan into a folder with two sets, train/ and test/, whole or not at all.

Rows of a file are shuffled (``shuffle``); synthetic ones have no order. Which rows are held out
depends only on their position in the file, never on the seed: runs with different seeds use the
same test rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data import readers, synthetic
from shoal.data.batch import take
from shoal.data.csr_file import CsrWriter, StagingFolder
from shoal.data.hashing import Hashing
from shoal.data.shuffle import Shuffle
from shoal.decoding import look_up
from shoal.errors import Invalid

Progress = Callable[[str], None]

TEST_SHARE = 10  # synthetic rows per test row
AT_ONCE = 50_000  # synthetic rows made at once
# chosen so that the second row is among the first held out: a few rows suffice for a trial
HELD_OUT = np.uint64(3218)


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
    """Facts about a packed pair beside its arrays."""

    name: str
    notes: list[str]


def pack(plan: PackPlan, folder: Path, progress: Progress | None) -> None:
    """Read or make all rows; leaves nothing behind on an error."""
    with (
        StagingFolder(folder) as aside,
        CsrWriter(aside.path / "train") as train,
        CsrWriter(aside.path / "test") as test,
    ):
        if plan.made:
            features, notes = _make(plan, train, test, progress)
        else:
            size = plan.stamps[0][0]
            with StagingFolder(aside.path / "buckets") as buckets, Shuffle(buckets.path, size) as shuffle:
                try:
                    features, notes = _read(plan, shuffle, train, test, progress)
                except Invalid:
                    check_unchanged(plan)  # report a changed file, not its truncated line
                    raise
            check_unchanged(plan)
        features = max(features, train.features, test.features, 1)
        hashing = _hashing(plan)
        train.finish(plan.train or plan.name, features, hashing)
        test.finish(plan.test or plan.train or plan.name, features, hashing)
        with (aside.path / "facts.json").open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(PackInfo(plan.name, notes))) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        aside.settle()


def stamps(paths: list[Path]) -> list[tuple[int, int]]:
    """Size and mtime of files, to detect changes."""
    facts = [path.stat() for path in paths]
    return [(one.st_size, one.st_mtime_ns) for one in facts]


def check_unchanged(plan: PackPlan) -> None:
    try:
        now = stamps([Path(path) for path in (plan.train, plan.test) if path])
    except FileNotFoundError:
        now = []
    if now != plan.stamps:
        raise Invalid(f"{plan.name} was changed while it was read: load it again")


def _make(plan: PackPlan, train: CsrWriter, test: CsrWriter, progress: Progress | None) -> tuple[int, list[str]]:
    maker = synthetic.MAKERS[plan.made](plan.seed, plan.features)
    rows = plan.rows or 1
    for writer, first, count in ((train, 0, rows), (test, synthetic.TEST_FROM, max(1, rows // TEST_SHARE))):
        for start in range(0, count, AT_ONCE):
            writer.append(maker.rows(first + start, min(AT_ONCE, count - start)))
            tell(progress, plan.name, writer.rows)
    return maker.features, []


def _read(
    plan: PackPlan, shuffle: Shuffle, train: CsrWriter, test: CsrWriter, progress: Progress | None
) -> tuple[int, list[str]]:
    reader = _reader(plan, plan.train, plan.rows)
    for batch, lines in reader:
        if plan.test:
            shuffle.append(batch, lines)
        else:
            held = held_out(shuffle.rows + test.rows, len(batch), plan.held_out)
            for writer, rows in ((shuffle, np.flatnonzero(~held)), (test, np.flatnonzero(held))):
                writer.append(take(batch, rows), lines[rows])
        tell(progress, plan.name, shuffle.rows + test.rows)
    shuffle.into(train)
    notes = reader.notes()
    if plan.test:
        others = _reader(plan, plan.test, None)
        for batch, lines in others:
            test.append(batch, lines)
        notes += others.notes()
    elif not train.rows or not test.rows:
        what = "left to train on" if test.rows else "held out to test on"
        raise Invalid(
            f"{plan.train} has {train.rows + test.rows} rows, and with held_out = {plan.held_out:g} none is {what}: "
            f"give a test set, or another share"
        )
    return max(reader.features, plan.features or 0), notes


def _reader(plan: PackPlan, path: str, rows: int | None) -> readers.RowReader:
    return readers.RowReader(
        Path(path), plan.format, features=plan.features, hash_bits=plan.hash_bits, bad_lines=plan.bad_lines, rows=rows
    )


def _hashing(plan: PackPlan) -> Hashing | None:
    """How the readers of this plan hash ids."""
    bits = None if plan.made else _reader(plan, plan.train, plan.rows).hash_bits
    return None if bits is None else Hashing(bits, plan.format)


def held_out(first: int, count: int, share: float) -> npt.NDArray[np.bool_]:
    """Which rows from ``first`` on are held out: about ``share`` of them, for any seed."""
    from shoal.data import kernels

    draws = np.empty(count, np.float64)
    kernels.draws(first, HELD_OUT, draws)
    held: npt.NDArray[np.bool_] = draws < share
    return held


def tell(progress: Progress | None, name: str, rows: int) -> None:
    if progress:
        progress(f"packing {name}: {rows:,} rows")


look_up(PackInfo)

"""Packs dense rows into a folder with two sets, as ``pack`` does for sparse rows.

    mnist       four idx files                                  mnist
    digits      scikit-learn's, as images of 28 x 28            digits
    a path      .npz, as numpy writes it                        npz

Each reader returns a ``DensePair`` in memory. Training rows are shuffled in a fixed order; which
rows are held out depends only on their position in the source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.data import digits, mnist, npz
from shoal.data.batch import Ids
from shoal.data.csr_file import StagingFolder
from shoal.data.dense_file import DenseExamples, DenseInfo, DensePair, Inputs, classes_of, write
from shoal.data.pack import PackInfo, PackPlan, check_unchanged, held_out, tell
from shoal.data.shuffle import ORDER
from shoal.errors import Invalid

Progress = Callable[[str], None]

AT_ONCE = 16_384  # rows copied at once


def pack_dense(plan: PackPlan, folder: Path, progress: Progress | None) -> None:
    """Read all rows and write the sets; leaves nothing behind on an error."""
    pair = _read(plan, folder.parent, progress)
    check_unchanged(plan)
    train, test = pair.train, pair.test
    rows = np.arange(len(train) if plan.rows is None else min(plan.rows, len(train)), dtype=np.int64)
    held = rows[:0]
    if test is None:
        keep = ~held_out(0, len(rows), plan.held_out)
        rows, held, test = rows[keep], rows[~keep], train
        if not len(rows) or not len(held):
            what = "left to train on" if len(held) else "held out to test on"
            raise Invalid(
                f"{plan.train or plan.name} has {len(rows) + len(held)} rows, and with held_out = {plan.held_out:g} none "
                f"is {what}: give a test set, or another share"
            )
    else:
        held = np.arange(len(test), dtype=np.int64)
    classes, notes = _classes(pair)
    factor, shift = pair.scale or scale_of(train.inputs, rows)
    order = rows[_order(len(rows))]
    with StagingFolder(folder) as aside:
        about = DenseInfo(plan.train or plan.name, factor, shift, classes)
        write(aside.path / "train", _parts(plan.name, train, order, progress), about)
        about = DenseInfo(plan.test or plan.train or plan.name, factor, shift, classes)
        write(aside.path / "test", _parts(plan.name, test, held, None), about)
        with (aside.path / "facts.json").open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(PackInfo(plan.name, notes))) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        aside.settle()


def _classes(pair: DensePair) -> tuple[int, list[str]]:
    """The number of classes, and warnings for the user."""
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
    for first in range(0, len(rows), AT_ONCE):
        counts += np.bincount(inputs[rows[first : first + AT_ONCE]].reshape(-1), minlength=256)
    values, total = np.arange(256.0), counts.sum()
    mean = float(counts @ values / total)
    deviation = float(np.sqrt(counts @ (values - mean) ** 2 / total)) or 1.0
    return 1 / deviation, -mean / deviation


def _read(plan: PackPlan, cache: Path, progress: Progress | None) -> DensePair:
    match plan.dense:
        case "mnist":
            return mnist.read(cache, progress)
        case "digits":
            return digits.read()
    return npz.read(Path(plan.train), Path(plan.test) if plan.test else None)


def _order(rows: int) -> Ids:
    from shoal.data import kernels

    order = np.empty(rows, np.int64)
    kernels.permute(0, rows, ORDER, order)
    return order


def _parts(
    name: str, all_of_them: DenseExamples, rows: Ids, progress: Progress | None
) -> Iterator[tuple[DenseExamples, Ids]]:
    for first in range(0, len(rows), AT_ONCE):
        some: Any = rows[first : first + AT_ONCE]
        yield DenseExamples(all_of_them.inputs[some], all_of_them.labels[some]), some + 1
        tell(progress, name, min(first + AT_ONCE, len(rows)))

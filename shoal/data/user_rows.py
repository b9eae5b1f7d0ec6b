"""Converts a user's rows to a Batch over a model's features, or says why it cannot.

    an array            one row, or rows; column j is LIBSVM's id j + 1
    a scipy matrix      of any layout; columns as above
    a path              a file of the kind that the model was trained on
    a Batch             as shoal read it: over the model's features already

Ids are hashed by the same function as in training. Numbers that training refuses (NaN, infinite,
too large for float32) are refused here too: their predictions would look like any other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Floats, Hashing, Ids, hash_ids
from shoal.errors import Invalid


def batch_of(rows: Any, features: int, hashing: Hashing | None = None) -> Batch:
    if isinstance(rows, Batch):
        return rows
    if isinstance(rows, str | os.PathLike):
        return _from_file(Path(rows), features, hashing)
    if hashing is not None and hashing.format == "criteo":
        raise Invalid(
            "the model was trained on a click log, whose fields were hashed, and no column of an array stands for one of them: "
            "give the path of a file of such lines (model.predict('lines.tsv')), or use shoal evaluate"
        )
    indptr, columns, values = _from_scipy(rows) if hasattr(rows, "tocsr") else _from_array(rows, features, hashing)
    values = finite(values, indptr)
    labels = np.zeros(len(indptr) - 1, np.float32)
    if hashing is not None:
        return hash_ids(indptr, columns.astype(np.uint64) + np.uint64(1), values, hashing.bits, labels)
    if len(columns) and int(columns.max()) >= features:
        raise Invalid(
            f"rows have columns up to {int(columns.max()):,}, and the model has {features:,} features: rows need the ids that it was "
            f"trained on"
        )
    return Batch(indptr, np.ascontiguousarray(columns, np.uint32), values, labels)


def dense_of(rows: Any, features: int, hashing: Hashing | None) -> Floats:
    return spread(batch_of(rows, features, hashing), features)


def spread(batch: Batch, features: int) -> Floats:
    dense = np.zeros((len(batch), features), np.float32)
    rows = np.repeat(np.arange(len(batch)), np.diff(batch.indptr))
    dense[rows, batch.columns] = 1.0 if batch.values is None else batch.values
    return dense


def finite(values: npt.NDArray[Any], indptr: Ids | None = None) -> Floats:
    """Values as float32; Invalid names the first row with a value that is not finite."""
    if values.dtype.kind not in "fiub":
        raise Invalid(f"rows of type {values.dtype}: real numbers are needed")
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(floats).all():
        place = int(np.flatnonzero(~np.isfinite(floats).ravel())[0])
        row = place // max(1, floats[0].size) if indptr is None else int(np.searchsorted(indptr, place, "right")) - 1
        raise Invalid(f"row {row:,} has a value that is not finite, or too large for float32: fix or drop it")
    return floats


def _from_scipy(rows: Any) -> tuple[Ids, npt.NDArray[Any], npt.NDArray[Any]]:
    rows = rows.tocsr()
    columns = np.asarray(rows.indices)
    if len(columns) and int(columns.min()) < 0:
        raise Invalid(f"a matrix with column {int(columns.min())}: columns are numbered from 0")
    return np.ascontiguousarray(rows.indptr, np.int64), columns, np.asarray(rows.data)


def _from_array(rows: Any, features: int, hashing: Hashing | None) -> tuple[Ids, npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        given = np.asarray(rows)
        # no rows, rather than one row without features
        dense = np.atleast_2d(given) if given.shape != (0,) else np.zeros((0, 0))
    except ValueError as error:  # rows of unequal lengths
        raise Invalid(f"rows that are no array: {error}") from None
    if dense.ndim != 2 or (hashing is None and dense.shape[1] > features):
        most = "" if hashing is not None else f" of at most {features:,} features"
        raise Invalid(f"rows of shape {dense.shape}: rows{most} are needed")
    if dense.dtype.kind not in "fiub":
        raise Invalid(f"rows of type {dense.dtype}: real numbers are needed")
    places = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(dense, axis=1))]).astype(np.int64)
    return indptr, places[1], dense[places]


def _from_file(path: Path, features: int, hashing: Hashing | None) -> Batch:
    from shoal.data.readers import guess, read

    if not path.is_file():
        raise Invalid(f"no file {str(path)!r}: give rows, or a file of them")
    format = guess(path)
    trained_on = "libsvm" if hashing is None else hashing.format
    if format != trained_on:
        raise Invalid(f"{path} is {format} text, and the model was trained on {trained_on}: give the same format")
    batch = read(path, format, None if hashing is None else hashing.bits)
    if len(batch.columns) and int(batch.columns.max()) >= features:
        raise Invalid(
            f"{path} has ids up to {int(batch.columns.max()) + 1:,}, and the model has {features:,} features: they are not the same ids"
        )
    return batch

"""Writes rows as LIBSVM text, synthetic ones or any others.

Synthetic values have six decimals, so the text is exact: reading it gives the same rows.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from shoal.data import synthetic
from shoal.data.batch import Batch
from shoal.errors import Invalid
from shoal.files import or_refuse, replacing

AT_ONCE = 10_000  # rows
ROW, FEATURE = 16, 32  # upper bounds in bytes for a label, and for one id:value

_NOTHING = np.empty(0, np.float32)


def make(name: str, rows: int, seed: int, path: Path, features: int | None = None, test: bool = False) -> int:
    """Write rows of a synthetic set to a file, whole or not at all; returns its size in bytes."""
    if name not in synthetic.MAKERS:
        raise Invalid(f"no synthetic set {name!r}: there are {' and '.join(synthetic.MAKERS)}")
    if rows < 1:
        raise Invalid(f"rows = {rows}: at least 1 is needed")
    maker = synthetic.MAKERS[name](seed, features)
    first = synthetic.TEST_FROM if test else 0
    with or_refuse(f"write {path}", "nothing was left there: choose another path"):
        # a rename would replace a device or pipe, not write to it
        if path.exists() and not path.is_file():
            raise Invalid(f"cannot write {path}: it is no regular file: choose another path")
        with replacing(path) as raw:
            with _compressed(raw, path.suffix) as file:
                for start in range(0, rows, AT_ONCE):
                    file.write(as_text(maker.rows(first + start, min(AT_ONCE, rows - start))))
            size: int = raw.tell()
    return size


def as_text(batch: Batch) -> memoryview:
    """Rows as LIBSVM lines; labels must be integers, values have at most six decimals."""
    from shoal.data import synthetic_kernels

    out = np.empty(ROW * len(batch) + FEATURE * len(batch.columns), np.uint8)
    values = _NOTHING if batch.values is None else batch.values
    used = synthetic_kernels.as_libsvm(batch.indptr, batch.columns, values, batch.labels, out)
    return out[:used].data


def write_text(parts: Iterable[Batch], path: Path) -> None:
    """Write any rows as LIBSVM lines that read back bit for bit."""
    with path.open("wb") as file:
        for batch in parts:
            file.write(as_text(batch) if _short(batch) else _long_text(batch))


def _short(batch: Batch) -> bool:
    """Whether ``as_text`` represents these rows exactly."""
    labels, values = batch.labels, batch.values
    if (labels != np.floor(labels)).any() or (np.abs(labels) > 1e9).any():
        return False
    if values is None:
        return True
    rounded = (np.floor(values.astype(np.float64) * 1e6 + 0.5) / 1e6).astype(np.float32)
    return bool(((values >= 0) & (values < 1e9) & (rounded == values)).all())


def _long_text(batch: Batch) -> bytes:
    """LIBSVM lines with nine digits, which are exact for any float32."""
    labels = np.char.mod("%.9g", batch.labels)
    ids = (batch.columns.astype(np.int64) + 1).astype(str)
    values = np.char.mod("%.9g", np.ones(len(ids), np.float32) if batch.values is None else batch.values)
    words = np.insert(np.char.add(np.char.add(ids, ":"), values).astype(object), batch.indptr[:-1], labels)
    ends = np.full(len(words), " ", object)
    ends[batch.indptr[1:] + np.arange(len(batch))] = "\n"
    return "".join((words + ends).tolist()).encode("ascii")


def _compressed(raw: IO[bytes], suffix: str) -> contextlib.AbstractContextManager[Any]:
    match suffix:
        case ".gz":
            # without name and time, equal rows make equal files
            return gzip.GzipFile("", "wb", 6, raw, mtime=0)
        case ".bz2":
            return bz2.BZ2File(raw, "wb")
        case ".xz":
            return lzma.LZMAFile(raw, "wb", preset=1)
    return contextlib.nullcontext(raw)

"""A made-up set written out as LIBSVM text, for other programs to read, or to try the readers on.

Values have six decimals to begin with, so the text says them exactly: reading it back gives the very same rows.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from shoal.data import synthetic
from shoal.data.batch import Batch
from shoal.errors import Invalid

AT_ONCE = 10_000  # rows
ROW, FEATURE = 16, 32  # bytes that are surely enough for a label, and for one id:value

_NOTHING = np.empty(0, np.float32)


def make(
    name: str,
    rows: int,
    seed: int,
    path: Path,
    features: int | None = None,
    test: bool = False,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Write ``rows`` rows of a made-up set (or of its test rows) to a file; .gz, .bz2 and .xz are compressed.

    The file is there whole or not at all. Answers its size in bytes.
    """
    if name not in synthetic.MAKERS:
        raise Invalid(f"no made-up set {name!r}: there are {' and '.join(synthetic.MAKERS)}")
    if rows < 1:
        raise Invalid(f"rows = {rows}: at least 1 is needed")
    maker = synthetic.MAKERS[name](seed, features)
    try:
        if path.exists() and not path.is_file():  # a device or pipe would be replaced, not written to
            raise Invalid(f"cannot write {path}: it is no regular file: choose another path")
        return _write(maker, synthetic.TEST_FROM if test else 0, rows, path, progress)
    except OSError as error:
        raise Invalid(
            f"cannot write {path}: {error.strerror or error}; nothing was left there: choose another path"
        ) from error


def as_text(batch: Batch) -> memoryview:
    """Rows as LIBSVM lines. Labels are whole numbers and values have at most six decimals, as made-up ones do."""
    from shoal.data import draw

    out = np.empty(ROW * len(batch) + FEATURE * len(batch.columns), np.uint8)
    values = _NOTHING if batch.values is None else batch.values
    used = draw.as_libsvm(batch.indptr, batch.columns, values, batch.labels, out)
    return out[:used].data


def _write(maker: synthetic.Maker, first: int, rows: int, path: Path, progress: Callable[[str], None] | None) -> int:
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as raw:
            with _compressed(raw, path.suffix) as file:
                for start in range(0, rows, AT_ONCE):
                    file.write(as_text(maker.rows(first + start, min(AT_ONCE, rows - start))))
                    if progress:
                        progress(f"writing {path.name}: {min(start + AT_ONCE, rows):,} rows")
            raw.flush()
            os.fsync(raw.fileno())
            size = raw.tell()
        os.chmod(beside, 0o644)
        os.replace(beside, path)
        return size
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _compressed(raw: IO[bytes], suffix: str) -> contextlib.AbstractContextManager[Any]:
    match suffix:
        case ".gz":
            return gzip.GzipFile("", "wb", 6, raw, mtime=0)  # no name, no time: the same rows are the same file
        case ".bz2":
            return bz2.BZ2File(raw, "wb")
        case ".xz":
            return lzma.LZMAFile(raw, "wb", preset=1)
    return contextlib.nullcontext(raw)

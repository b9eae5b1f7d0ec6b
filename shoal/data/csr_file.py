"""Sparse rows on disk as plain arrays, mapped into memory: a reader loads only its rows.

    labels.f32  indptr.i64  columns.u32  values.f32 (absent if all are 1)  counts.u32  meta.json

counts[c] is the number of rows with feature c. All arrays are little-endian and not compressed. A
folder exists whole or not at all: it is written under a temporary name, synced and renamed.
``sweep`` removes the temporary folders of killed writers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Columns, Floats, Hashing, Ids, take
from shoal.decoding import resolve_types
from shoal.errors import Invalid
from shoal.limits import FEATURES, LABELS_COUNTED

FORMAT = 3  # of folder and contents; sets of another format are packed again
ASIDE = ".part"
BLOCK = 1 << 20  # elements written or checked at once
PIECES, PIECE = 64, 1 << 16  # samples of a file for its fingerprint, and bytes of each
YOUNG = 60.0  # seconds: a younger temporary folder may not be locked yet


class LabelCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: float
    rows: int
    line: int


class SetMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    rows: int


Kind = TypeVar("Kind", bound=SetMeta)


class CsrMeta(SetMeta, frozen=True):
    features: int
    nonzeros: int
    ones: bool  # all values are 1 and not stored
    labels: list[LabelCount]  # sorted by value; the first LABELS_COUNTED distinct ones
    more_labels: bool  # there are labels that were not counted
    source: str  # where the rows were read from, for messages
    hashing: Hashing | None = None  # features are hashes of ids


@dataclass(frozen=True, slots=True, eq=False)
class CsrFile:
    """A packed set, mapped. Labels are as in the file."""

    folder: Path
    meta: CsrMeta
    indptr: Ids
    columns: Columns
    values: Floats | None
    labels: Floats
    counts: Columns

    @classmethod
    def open(cls, folder: Path) -> CsrFile:
        """Map a folder of ``CsrWriter``; detects truncated files by their sizes."""
        meta = read_meta(folder / "meta.json", CsrMeta, FORMAT)
        packed = cls(
            folder,
            meta,
            map_file(folder, "indptr.i64", np.int64, meta.rows + 1),
            map_file(folder, "columns.u32", np.uint32, meta.nonzeros),
            None if meta.ones else map_file(folder, "values.f32", np.float32, meta.nonzeros),
            map_file(folder, "labels.f32", np.float32, meta.rows),
            map_file(folder, "counts.u32", np.uint32, meta.features),
        )
        if packed.indptr[0] != 0 or packed.indptr[-1] != meta.nonzeros:
            raise damaged(folder / "indptr.i64", "its rows do not cover its columns")
        return packed

    @property
    def rows(self) -> int:
        return self.meta.rows

    @property
    def features(self) -> int:
        return self.meta.features

    @property
    def hashing(self) -> Hashing | None:
        return self.meta.hashing

    @property
    def nonzeros(self) -> int:
        return self.meta.nonzeros

    def __len__(self) -> int:
        return self.meta.rows

    def take(self, rows: Ids) -> Batch:
        try:
            return take(Batch(self.indptr, self.columns, self.values, self.labels), rows)
        except Invalid as error:
            raise Invalid(f"{self.folder}: {error}") from None

    def slice(self, start: int, stop: int) -> Batch:
        """Rows start..stop as views of the map; only ``indptr`` is copied if it must start at 0."""
        if not 0 <= start <= stop <= self.rows:
            raise Invalid(f"rows {start}..{stop}: the set has {self.rows:,}, numbered from 0")
        indptr = self.indptr[start : stop + 1]
        first, last = int(indptr[0]), int(indptr[-1])
        if not 0 <= first <= last <= self.nonzeros or (indptr[1:] < indptr[:-1]).any():
            raise damaged(self.folder / "indptr.i64", f"rows {start}..{stop} end before they start")
        values = None if self.values is None else self.values[first:last]
        return Batch(indptr - first if first else indptr, self.columns[first:last], values, self.labels[start:stop])

    def __reduce__(self) -> tuple[Any, ...]:
        return CsrFile.open, (self.folder,)  # another process maps the folder itself


class CsrWriter:
    """Writes batches of any length to a folder, whole or not at all. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = self.nonzeros = self.features = 0
        self.labels: dict[float, tuple[int, int]] = {}  # value -> rows, first line
        self.more_labels = False
        self._counts = np.zeros(0, np.uint32)
        self._files: dict[str, IO[bytes]] = {}
        self._aside = StagingFolder(folder)
        try:
            for name in ("labels.f32", "indptr.i64", "columns.u32"):
                self._open(name)
            self._write("indptr.i64", np.zeros(1, np.int64))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CsrWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, batch: Batch, lines: Ids | None = None) -> None:
        """Append rows with their line numbers (default: counted from 1)."""
        if not len(batch):
            return
        if lines is None:
            lines = np.arange(self.rows + 1, self.rows + 1 + len(batch), dtype=np.int64)
        self.more_labels |= note_labels(self.labels, batch.labels, lines)
        self._count(batch.columns)
        self._write("labels.f32", batch.labels)
        self._write("indptr.i64", batch.indptr[1:] + (self.nonzeros - batch.indptr[0]))
        self._write("columns.u32", batch.columns)
        if batch.values is not None and "values.f32" not in self._files and not (batch.values == 1).all():
            self._open("values.f32")
            self._ones(self.nonzeros)  # rows before this batch
        if "values.f32" in self._files:
            self._ones(len(batch.columns)) if batch.values is None else self._write("values.f32", batch.values)
        self.rows += len(batch)
        self.nonzeros += len(batch.columns)

    def finish(self, source: str = "", features: int | None = None, hashing: Hashing | None = None) -> CsrFile:
        """Sync, rename and map it. ``features``: a minimum (the other half may have more)."""
        self.features = max(self.features, features or 0)
        sizes, ones = (self.rows, self.features, self.nonzeros), "values.f32" not in self._files
        meta = CsrMeta(FORMAT, *sizes, ones, label_counts(self.labels), self.more_labels, source, hashing)
        self._write_counts()
        sync(*self._files.values())
        write_json(self._aside.path / "meta.json", meta)
        self._aside.settle()
        return CsrFile.open(self.folder)

    def close(self) -> None:
        for file in self._files.values():
            # on a full disk, flushing the rest fails again
            with contextlib.suppress(OSError):
                file.close()
        self._aside.discard()

    def _open(self, name: str) -> IO[bytes]:
        self._files[name] = open(self._aside.path / name, "wb", buffering=1 << 20)  # noqa: SIM115
        return self._files[name]

    def _write(self, name: str, array: npt.NDArray[Any]) -> None:
        self._files[name].write(np.ascontiguousarray(array).data)

    def _ones(self, count: int) -> None:
        for start in range(0, count, BLOCK):
            self._write("values.f32", np.ones(min(BLOCK, count - start), np.float32))

    def _count(self, columns: Columns) -> None:
        from shoal.data import kernels

        if not len(columns):
            return
        self.features = max(self.features, int(columns.max()) + 1)
        if len(self._counts) < self.features:
            try:  # untouched zeros take no memory
                larger = np.zeros(min(FEATURES, max(self.features, 2 * len(self._counts))), np.uint32)
            except MemoryError:
                raise Invalid(
                    f"feature ids up to {self.features:,} need {4 * self.features >> 20:,} MB to count: "
                    f"hash them to fewer (hash_bits)"
                ) from None
            larger[: len(self._counts)] = self._counts
            self._counts = larger
        kernels.count(columns, self._counts)

    def _write_counts(self) -> None:
        file = self._open("counts.u32")
        for start in range(0, self.features, BLOCK):
            stop = min(start + BLOCK, self.features)
            part = np.zeros(stop - start, np.uint32)
            known = self._counts[start:stop]
            part[: len(known)] = known
            if part.any():
                file.seek(4 * start)
                file.write(part.data)
        file.truncate(4 * self.features)  # ranges without a feature become holes in the file


def note_labels(known: dict[float, tuple[int, int]], labels: Floats, lines: Ids) -> bool:
    """Count labels (value -> rows, first line); whether some labels were not counted."""
    more = False
    values, firsts, counts = np.unique(labels, return_index=True, return_counts=True)
    for value, first, count in zip(values[:BLOCK].tolist(), firsts.tolist(), counts.tolist(), strict=False):
        if value in known:
            rows, line = known[value]
            known[value] = (rows + count, min(line, int(lines[first])))
        elif len(known) < LABELS_COUNTED:
            known[value] = (count, int(lines[first]))
        else:
            more = True
    return more


def label_counts(known: dict[float, tuple[int, int]]) -> list[LabelCount]:
    return [LabelCount(value, *found) for value, found in sorted(known.items())]


def write_json(path: Path, what: msgspec.Struct) -> None:
    with path.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(what)) + b"\n")
        sync(file)


def sync(*files: IO[bytes]) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())


class StagingFolder:
    """A temporary folder beside its target, locked while its writer lives."""

    def __init__(self, final: Path) -> None:
        self.final = final
        final.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._lock = final.with_name(f"{final.name}.{secrets.token_hex(4)}{ASIDE}"), -1
        try:  # the name is set before the folder exists: an interrupt leaves nothing
            self.path.mkdir(0o700)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()
            raise

    def __enter__(self) -> StagingFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def settle(self) -> None:
        """Rename it to its target; if another process was faster, use its folder."""
        os.fsync(self._lock)
        try:
            os.rename(self.path, self.final)
        except OSError:
            if not self.final.is_dir():
                raise
            self.discard()
            return
        self._unlock()
        with _descriptor(self.final.parent) as parent:
            os.fsync(parent)

    def discard(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def sweep(folder: Path) -> int:
    """Remove temporary folders of killed writers here; returns their number."""
    removed = 0
    for path in sorted(folder.glob(f"*{ASIDE}")):
        # locked: its writer is alive
        with contextlib.suppress(OSError), _descriptor(path) as lock:
            if time.time() - path.stat().st_mtime > YOUNG:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
    return removed


@contextlib.contextmanager
def _descriptor(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_meta(path: Path, kind: type[Kind], current: int) -> Kind:
    folder = path.parent
    try:
        meta = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise Invalid(f"no packed set in {folder}: load the data again") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise Invalid(f"{path} cannot be read ({error}): delete {folder} and load again") from None
    if meta.format != current:
        raise Invalid(f"{folder} has format {meta.format}, this is {current}: delete it and load again")
    return meta


def map_file(folder: Path, name: str, kind: type[np.generic], count: int) -> npt.NDArray[Any]:
    path = folder / name
    wanted = np.dtype(kind).itemsize * count
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != wanted:
                raise damaged(path, f"it has {size:,} bytes instead of {wanted:,}")
            if not size:
                return np.empty(0, kind)
            return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), kind)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None


def damaged(path: Path, what: str) -> Invalid:
    return Invalid(f"{path} is damaged ({what}): delete {path.parent} and load again")


def fingerprint(folder: Path) -> str:
    """Tells whether two hosts have the same packed rows, of large files by samples.

    It detects another set, version or seed, but not a single byte changed on purpose. The
    description of a set has paths and is left out.
    """
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            continue
        size = path.stat().st_size
        found.update(f"{path.name} {size} ".encode())
        places = list(range(0, size, PIECE))
        if len(places) > PIECES:  # spread from the first byte to the last
            places = [(size - PIECE) * i // (PIECES - 1) for i in range(PIECES)]
        with path.open("rb") as file:
            for at in places:
                file.seek(at)
                found.update(file.read(PIECE))
    return found.hexdigest()


resolve_types(CsrMeta)

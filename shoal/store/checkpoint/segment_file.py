"""A segment as a safetensors file, and initial weights from a file.

Nothing that was read is trusted: length, types and shapes are checked against the table before
memory is allocated, and the hash covers every byte (safetensors accepts a flipped bit). The
safetensors library can read these files; it is not used here, since it copies once more. Initial
weights are a plain float32 file (``tables.Given``); every server reads its own segments.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from shoal import limits
from shoal.errors import BadCheckpoint, Invalid
from shoal.files import Digest, Disk
from shoal.keys import KeyRange, Keys, Values, is_sorted
from shoal.limits import MB
from shoal.store.table.table import SegmentImage
from shoal.store.table.update import rule_named
from shoal.tables import Dense, Given, Table
from shoal.wire import messages as m

_CHUNK = 4 * limits.MB
_KEYS, _FLOATS = np.dtype("<u8"), np.dtype("<f4")


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array in a segment's file, as safetensors describes it."""

    dtype: str
    shape: list[m.Count]
    data_offsets: tuple[m.Count, m.Count]


def file_name(table: str, number: int, segment: int) -> str:
    """A segment's file: by the table's name if it can be a file name, else by its number."""
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", table)
    return f"{table if plain else f'~{number}'}-{segment}.safetensors"


def write_segment(disk: Disk, folder: Path, name: str, number: int, image: SegmentImage) -> m.Written:
    """Write one segment and sync it; returns its entry in the manifest."""
    file = file_name(name, number, image.segment)
    digest, size = Digest(), 0

    def chunks() -> Iterator[bytes | memoryview]:
        nonlocal size
        for chunk in _file_of(image):
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    disk.write(folder / file, chunks())
    return m.Written(number, image.segment, file, size, digest.hexdigest(), image.books)


def _file_of(image: SegmentImage) -> Iterator[bytes | memoryview]:
    arrays: dict[str, npt.NDArray[Any]] = {"rows": np.ascontiguousarray(image.rows, _FLOATS)}
    if image.names is not None:
        arrays = {"names": np.ascontiguousarray(image.names, _KEYS), **arrays}
    header, at = {}, 0
    for name, array in arrays.items():
        dtype = "F32" if array.dtype == _FLOATS else "U64"
        header[name] = _Tensor(dtype, list(array.shape), (at, at + array.nbytes))
        at += array.nbytes
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # aligns what follows
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        flat = array.reshape(-1).view(np.uint8).data
        yield from (flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK))


def read_segment(disk: Disk, folder: Path, written: m.Written, spec: Table, keys: KeyRange) -> SegmentImage:
    path = folder / Path(written.file).name
    try:
        floats = spec.width * (1 + rule_named(spec.update.name).state)
    except Invalid as error:
        raise BadCheckpoint(str(path), str(error)) from None
    with opened(disk, path) as (file, size):
        if size != written.bytes:
            raise BadCheckpoint(str(path), f"has {size:,} bytes, and {written.bytes:,} were written")
        digest = Digest()
        rows = _rows_in(path, _header(path, file, digest), size - file.tell(), spec, keys, floats)
        names: Keys | None = None
        if not isinstance(spec, Dense):
            _fill(path, file, names := np.empty(rows, _KEYS), digest)
        _fill(path, file, values := np.empty((rows, floats), _FLOATS), digest)
    if digest.hexdigest() != written.sha256:
        raise BadCheckpoint(str(path), "is damaged: its hash differs")
    if names is not None and rows and not (keys.start <= names[0] and names[-1] < keys.stop and is_sorted(names)):
        raise BadCheckpoint(str(path), f"its keys are not sorted, or not all in {keys}")
    return SegmentImage(written.segment, keys, written.books, values, names)


def _header(path: Path, file: BinaryIO, digest: Digest) -> dict[str, _Tensor]:
    length = file.read(8)
    size = int.from_bytes(length, "little")
    if len(length) < 8 or size > limits.TENSORS_BYTES:
        raise BadCheckpoint(str(path), f"is no segment: a header of {size:,} bytes")
    text = file.read(size)
    digest.update(length + text)
    try:
        return msgspec.json.decode(text, type=dict[str, _Tensor])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheckpoint(str(path), f"is no segment: {error}") from None


def _rows_in(path: Path, header: dict[str, _Tensor], size: int, spec: Table, keys: KeyRange, floats: int) -> int:
    """How many rows there are; BadCheckpoint unless the arrays fit this segment."""
    shape = header["rows"].shape if "rows" in header else []
    rows = shape[0] if shape else 0
    expected = {} if isinstance(spec, Dense) else {"names": _Tensor("U64", [rows], (0, 8 * rows))}
    end = expected["names"].data_offsets[1] if expected else 0
    expected["rows"] = _Tensor("F32", [rows, floats], (end, end + 4 * rows * floats))
    most = keys.stop - keys.start  # len() ends at 2^63 - 1
    if rows > most or (isinstance(spec, Dense) and rows != most):
        raise BadCheckpoint(str(path), f"has {rows:,} rows for {most:,} keys")
    if header != expected:
        raise BadCheckpoint(str(path), f"holds {_told(header)}, and this segment needs {_told(expected)}")
    if size != expected["rows"].data_offsets[1]:
        raise BadCheckpoint(str(path), f"has {size:,} bytes of numbers for {_told(expected)}")
    return rows


def _told(header: dict[str, _Tensor]) -> str:
    return ", ".join(f"{name[:16]}: {one.dtype[:16]} {one.shape[:4]}" for name, one in list(header.items())[:4])


def _fill(path: Path, file: BinaryIO, array: npt.NDArray[Any], digest: Digest) -> None:
    flat = array.reshape(-1).view(np.uint8).data
    at = 0
    while at < len(flat):
        got = file.readinto(flat[at : at + _CHUNK])  # type: ignore[attr-defined]
        if not got:
            raise BadCheckpoint(str(path), "ends too early")
        digest.update(flat[at : at + got])
        at += got


@contextmanager
def opened(disk: Disk, path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A file and its size; an OSError becomes a BadCheckpoint with its name."""
    try:
        with disk.open(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            yield file, size
    except FileNotFoundError:
        raise BadCheckpoint(str(path), "is missing") from None
    except OSError as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error.strerror}") from None


def initial_images(disk: Disk, table: m.TablePlaces, segments: Sequence[int]) -> list[SegmentImage]:
    spec, initial = table.spec, table.spec.initial
    assert isinstance(initial, Given)
    weights = _read(disk, initial, spec.span * spec.width)
    ends = [*table.starts, spec.span]
    words = spec.width * (1 + rule_named(spec.update.name).state)
    found = []
    for segment in segments:
        keys = KeyRange(ends[segment], ends[segment + 1])
        rows: Values = np.zeros((len(keys), words), np.float32)
        rows[:, : spec.width] = weights[keys.start * spec.width : keys.stop * spec.width].reshape(-1, spec.width)
        found.append(SegmentImage(segment, keys, m.SegmentBooks(0), rows))
    return found


def _read(disk: Disk, initial: Given, count: int) -> Values:
    try:
        with disk.open(Path(initial.path)) as file:
            size = file.seek(0, 2)
            if size != 4 * count:
                raise Invalid(f"{initial.path} has {size:,} bytes, the weights are {4 * count:,}: write it again")
            file.seek(0)
            weights: Values = np.empty(count, "<f4")
            rest = weights.data.cast("B")
            while len(rest) and (some := file.readinto(rest[: 64 * MB])):  # type: ignore[attr-defined]
                rest = rest[some:]
    except OSError as error:
        raise Invalid(
            f"{initial.path} cannot be read ({error.strerror or error}): write the weights again; servers of other hosts need that "
            f"folder, too"
        ) from None
    if zlib.crc32(weights.data) != initial.crc32:
        raise Invalid(f"{initial.path} is not what the table was described with (another checksum): write it again")
    if not np.isfinite(weights).all():
        raise Invalid(f"{initial.path} has values that are no finite numbers: give weights that are")
    return weights

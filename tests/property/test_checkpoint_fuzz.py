"""A checkpoint with any contents is refused by file name, or read as it is (T10).

The hashes are correct here, so only the contents can be wrong.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.errors import BadCheckpoint
from shoal.keys import KeyRange
from shoal.simulation.disk import SimulatedDisk
from shoal.store.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    SavedTable,
    SealedCheckpoint,
    finish,
    newest,
    prepare,
    verify,
)
from shoal.store.checkpoint.segment_file import read_segment, write_segment
from shoal.store.table.table import SegmentImage
from shoal.tables import Dense, Sparse, Step
from shoal.wire.messages import ClockedWorker, Counts, SegmentBooks, Written

ROOT = Path("/run/checkpoints")
FOLDER = ROOT / "00000001"
D = SavedTable(1, "d", Dense(rows=6, width=2, apply=Step()), [0, 3])
S = SavedTable(2, "s", Sparse(keys=100), [0])


def saved() -> tuple[SimulatedDisk, Manifest]:
    disk = SimulatedDisk()
    prepare(disk, ROOT)
    books = SegmentBooks(4, {0: Counts.of(3, [5])}, {7: ClockedWorker("ann", 1, True, 0, Counts(2))})
    images = [SegmentImage(i, D.keys(i), books, np.ones((3, 2), np.float32)) for i in range(2)]
    sparse = SegmentImage(0, S.keys(0), books, np.ones((2, 1), np.float32), np.array([4, 9], np.uint64))
    written = [write_segment(disk, FOLDER, "d", 1, image) for image in images]
    written.append(write_segment(disk, FOLDER, "s", 2, sparse))
    manifest = Manifest(number=1, generation=0, job="j", steps=4, tables=[D, S], segments=written)
    finish(disk, FOLDER, manifest)
    return disk, manifest


DISK, MANIFEST_SAVED = saved()
SEGMENTS = MANIFEST_SAVED.segments
PLAIN = msgspec.json.decode(msgspec.json.encode(MANIFEST_SAVED))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside this one."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] + [way for key, one in inside for way in places(one, (*at, key))]


def changed(value: Any, way: tuple[Any, ...], to: Any) -> Any:
    if not way:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[way[0]] = changed(copy[way[0]], way[1:], to)
    return copy


def sealed(manifest: Any) -> bytes:
    text = msgspec.json.encode(manifest)
    return msgspec.json.encode(SealedCheckpoint(hashlib.sha256(text).hexdigest(), msgspec.Raw(text)))


@given(st.sampled_from(places(PLAIN)), json_values)
@example(("segments", 0, 3), 1 << 60)
@example(("tables", 1, "spec", "keys"), 1 << 63)
@example(("tables", 0, "starts", 1), 1 << 70)
@settings(max_examples=400, deadline=None)
def test_a_manifest_with_anything_in_place_of_anything_is_refused_or_true(way: tuple[Any, ...], to: Any) -> None:
    DISK.damage(FOLDER / MANIFEST, sealed(changed(PLAIN, way, to)))
    found, refused = newest(DISK, ROOT)
    assert (found is None) == bool(refused)
    if found is not None:  # the changed field is not read here, or the value is the same
        assert found[1].number == 1 and [one.file for one in found[1].segments] == [one.file for one in SEGMENTS]


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_for_a_manifest_are_refused(contents: bytes) -> None:
    DISK.damage(FOLDER / MANIFEST, contents)
    try:
        verify(DISK, FOLDER)
    except BadCheckpoint as error:
        assert error.file.endswith(MANIFEST)
    else:
        raise AssertionError("it was taken for a manifest")


headers = st.dictionaries(
    st.sampled_from(["rows", "names", "__metadata__", "x"]),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "U64", "F64", "I64", "BOOL", ""]),
            "shape": st.lists(st.integers(-1, 1 << 62) | st.integers(0, 4), max_size=3),
            "data_offsets": st.lists(st.integers(0, 1 << 62) | st.sampled_from([0, 8, 16, 24]), min_size=2, max_size=2),
        }
    )
    | json_values,
    max_size=3,
).map(msgspec.json.encode)


@given(headers | st.binary(max_size=80), st.binary(max_size=64), st.booleans(), st.none() | st.integers(0, 1 << 64))
@settings(max_examples=400, deadline=None)
def test_any_file_for_a_segment_is_refused_or_read_as_it_is(
    header: bytes, body: bytes, dense: bool, length: int | None
) -> None:
    size = min(len(header) if length is None else length, (1 << 64) - 1)
    contents = size.to_bytes(8, "little") + header + body
    disk = SimulatedDisk()
    disk.make_folder(FOLDER)
    disk.write(FOLDER / "f", [contents])
    written = Written(1, 0, "f", len(contents), hashlib.sha256(contents).hexdigest(), SegmentBooks(0))
    spec = Dense(rows=2) if dense else Sparse(keys=2)
    try:
        image = read_segment(disk, FOLDER, written, spec, KeyRange(0, 2))
    except BadCheckpoint as error:
        assert error.file == str(FOLDER / "f")
    else:
        assert image.nbytes == len(body) and len(image.rows) <= 2

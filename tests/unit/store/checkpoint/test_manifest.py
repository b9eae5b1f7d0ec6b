"""A checkpoint restores completely and verifies, or is refused with file and reason.

After a refusal the checkpoint before it is taken (F31, T10).
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from shoal import limits
from shoal.errors import BadCheckpoint, Invalid
from shoal.files import Digest, Disk
from shoal.keys import KeyRange
from shoal.store.checkpoint.manifest import (
    MANIFEST,
    OWNER,
    BestCheckpoint,
    Manifest,
    SavedTable,
    SealedCheckpoint,
    finish,
    folder_of,
    images,
    mark_best,
    newest,
    prepare,
    prune,
    read_best,
    read_manifest,
    verify,
)
from shoal.store.checkpoint.segment_file import file_name, read_segment, write_segment
from shoal.store.table.table import SegmentImage
from shoal.tables import Dense, Sparse, Step, Update
from shoal.wire.messages import ClockedWorker, Counts, Replicas, SegmentBooks, TablePlaces, Written

DISK = Disk()
W = SavedTable(3, "w", Dense(rows=50, width=3, update=Update("ftrl"), apply=Step(slots=4)), [0, 20])
S = SavedTable(5, "ids", Sparse(keys=1 << 40, width=2), [0, 1 << 39])


def image_of(table: SavedTable, segment: int, number: int = 1) -> SegmentImage:
    random = np.random.default_rng([table.number, segment, number])
    keys = table.keys(segment)
    books = SegmentBooks(
        8 * number,
        {-9: Counts.of(3, [5, 7]), 1: Counts(number)},
        {9: ClockedWorker("ann", 2, False, 1, Counts.of(4, [6]))},
    )
    if isinstance(table.spec, Dense):
        return SegmentImage(segment, keys, books, random.normal(size=(len(keys), 9)).astype(np.float32))
    names = (np.sort(random.choice(1 << 30, 40, replace=False)) + keys.start).astype(np.uint64)
    return SegmentImage(segment, keys, books, random.normal(size=(40, 2)).astype(np.float32), names)


def save(root: Path, disk: Disk = DISK, group: str = "") -> Path:
    """Save both tables as the next checkpoint."""
    number = prepare(disk, root, group=group)
    folder = folder_of(root, number)
    written = [
        write_segment(disk, folder, table.name, table.number, image_of(table, segment, number))
        for table in (W, S)
        for segment in range(2)
    ]
    state = msgspec.Raw(b'{"counted": [1, 2], "why": "\\u00e9"}')
    finish(
        disk,
        folder,
        Manifest(
            number=number, generation=2, job="abc", steps=8 * number, tables=[W, S], segments=written, state=state
        ),
    )
    return folder


def test_a_group_begins_with_no_checkpoint_but_its_own(tmp_path: Path) -> None:
    """A group may start only from its own checkpoints.

    Servers read with their own rights: otherwise a group would get the model of a run that it may
    not read.
    """
    root = tmp_path / "run" / "checkpoints"
    table = TablePlaces(9, f"b/{W.name}", W.spec, W.starts, [])
    for owner in ("", "a", "b"):
        folder = save(root, group=owner)
        if owner != "b":
            with pytest.raises(BadCheckpoint, match="is no checkpoint of group 'b'"):
                list(images(DISK, folder, table, [0]))
    assert len(list(images(DISK, folder, table, [0, 1]))) == 2
    # The operator may use any checkpoint.
    assert len(list(images(DISK, folder, TablePlaces(9, W.name, W.spec, W.starts, []), [0, 1]))) == 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "run" / "checkpoints"
    save(root)
    save(root)
    return root


def same(one: SegmentImage, other: SegmentImage) -> bool:
    return (
        (one.segment, one.keys, one.books) == (other.segment, other.keys, other.books)
        and one.rows.dtype == np.float32
        and np.array_equal(one.rows, other.rows)
        and (one.names is None) == (other.names is None)
        and (one.names is None or other.names is None or np.array_equal(one.names, other.names))
    )


# ---------------------------------------------------------------- what is written is read


def test_a_group_s_checkpoint_whose_owner_cannot_be_read_is_passed_over(root: Path) -> None:
    """Servers would not read it for the group, so a resumed run takes an earlier one."""
    folder = root / "00000002"
    finish(DISK, folder, msgspec.structs.replace(read_manifest(DISK, folder), group="ours"))
    (folder / OWNER).write_bytes(b"ours")
    assert (newest(DISK, root)[0] or ("",))[0] == folder
    (folder / OWNER).write_bytes(b"outs")
    found, refused = newest(DISK, root)
    assert found is not None and found[0] == root / "00000001"
    assert [one.file for one in refused] == [str(folder / OWNER)]


def test_what_was_saved_comes_back(root: Path) -> None:
    found, refused = newest(DISK, root)
    assert found is not None and refused == []
    folder, manifest = found
    assert (folder, manifest.number, manifest.generation, manifest.steps) == (root / "00000002", 2, 2, 16)
    assert manifest.job == "abc" and msgspec.json.decode(manifest.state) == {"counted": [1, 2], "why": "é"}
    assert manifest.tables == [W, S]
    for one in manifest.segments:
        table = W if one.table == 3 else S
        assert same(
            read_segment(DISK, folder, one, table.spec, table.keys(one.segment)), image_of(table, one.segment, 2)
        )
    assert manifest.bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_a_server_reads_the_segments_that_it_holds(root: Path) -> None:
    placed = TablePlaces(
        77, "w", msgspec.structs.replace(W.spec, max_delay=4), W.starts, [Replicas(1, ["a"])] * 2, "there"
    )
    assert [same(one, image_of(W, 1, 1)) for one in images(DISK, root / "00000001", placed, [1])] == [True]
    for other in ({"name": "v"}, {"starts": [0, 30]}, {"spec": Dense(rows=50, width=3)}):
        with pytest.raises(BadCheckpoint, match="is another one than"):
            list(images(DISK, root / "00000001", msgspec.structs.replace(placed, **other), [1]))


def test_the_library_reads_our_files_and_we_read_its_files(root: Path, tmp_path: Path) -> None:
    image = image_of(S, 1, 2)
    theirs = load_file(root / "00000002" / "ids-1.safetensors")
    assert list(theirs) == ["names", "rows"]
    assert np.array_equal(theirs["names"], image.names) and np.array_equal(theirs["rows"], image.rows)
    assert image.names is not None
    save_file({"rows": image.rows, "names": image.names}, tmp_path / "ids-1.safetensors")
    contents = (tmp_path / "ids-1.safetensors").read_bytes()
    written = Written(5, 1, "ids-1.safetensors", len(contents), hashlib.sha256(contents).hexdigest(), image.books)
    assert same(read_segment(DISK, tmp_path, written, S.spec, S.keys(1)), image)


def test_segments_that_are_empty_long_or_not_contiguous_are_saved_as_they_are(tmp_path: Path) -> None:
    spec = Dense(rows=1_500_000, update=Update("sum"))
    # Six megabytes: several chunks.
    long = np.arange(3_000_000, dtype=np.float32).reshape(-1, 2)[:, :1]
    image = SegmentImage(0, KeyRange(0, 1_500_000), SegmentBooks(1), long)
    assert same(read_segment(DISK, tmp_path, write_segment(DISK, tmp_path, "a", 1, image), spec, image.keys), image)
    none = SegmentImage(0, KeyRange(5, 9), SegmentBooks(0), np.empty((0, 2), np.float32), np.empty(0, np.uint64))
    assert same(read_segment(DISK, tmp_path, write_segment(DISK, tmp_path, "b", 1, none), S.spec, none.keys), none)


def test_the_hash_is_of_all_bytes_in_order_however_long_the_chunks_are() -> None:
    whole = np.random.default_rng(1).integers(0, 256, 9 << 20, np.uint8).tobytes()
    for sizes in ([7, 3 << 20, 9, 1 << 20, 100], [1 << 21], [5]):
        digest, rest = Digest(), memoryview(whole)
        for size in sizes:
            digest.update(rest[:size])
            rest = rest[size:]
        digest.update(rest)
        assert digest.hexdigest() == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "-rf", "", "é", "x" * 128, "a\\b", "con:", "~5"])
def test_a_name_that_can_be_no_file_is_written_under_the_tables_number(name: str) -> None:
    assert file_name(name, 5, 0) == "~5-0.safetensors"


def test_two_tables_never_share_a_file() -> None:
    tables = [("a", 1), ("a-1", 2), ("~5", 3), ("é", 5), ("~5-1", 6), ("A", 7), ("table.v2", 8)]
    names = [file_name(name, number, segment) for name, number in tables for segment in range(3)]
    assert len(set(names)) == len(names)
    assert file_name("table.v2", 8, 0) == "table.v2-0.safetensors"


# ---------------------------------------------------------------- damaged checkpoints


def edit(path: Path, change: Callable[[bytearray], Any]) -> None:
    contents = bytearray(path.read_bytes())
    change(contents)
    path.write_bytes(contents)


def flip(at: int) -> Callable[[bytearray], None]:
    def change(contents: bytearray) -> None:
        contents[at] ^= 16

    return change


def shorten(contents: bytearray) -> None:
    del contents[-4:]


DAMAGE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a flipped bit of a row": (lambda f: edit(f / "w-1.safetensors", flip(-5)), "w-1.safetensors", "hash differs"),
    "a flipped bit of a key": (lambda f: edit(f / "ids-0.safetensors", flip(200)), "ids-0.safetensors", "hash differs"),
    "a flipped bit of a header": (lambda f: edit(f / "w-0.safetensors", flip(12)), "w-0.safetensors", "w-0"),
    "a file cut short": (lambda f: edit(f / "w-1.safetensors", shorten), "w-1.safetensors", "bytes, and 1,"),
    "a file that grew": (lambda f: edit(f / "w-1.safetensors", lambda c: c.extend(b"more")), "w-1.safetensors", "bytes, and"),
    "an empty file": (lambda f: (f / "w-1.safetensors").write_bytes(b""), "w-1.safetensors", "has 0 bytes"),
    "no file": (lambda f: (f / "ids-1.safetensors").unlink(), "ids-1.safetensors", "is missing"),
    "another segment's file": (
        lambda f: shutil.copy(f / "ids-0.safetensors", f / "ids-1.safetensors"), "ids-1.safetensors", "hash differs"
    ),
    "another checkpoint's file": (
        lambda f: shutil.copy(f.parent / "00000001" / "w-0.safetensors", f / "w-0.safetensors"), "w-0.safetensors", "hash differs"
    ),
    "a folder for a file": (
        lambda f: ((f / "w-0.safetensors").unlink(), (f / "w-0.safetensors").mkdir()), "w-0.safetensors", "no plain file"
    ),
    "a pipe for a file": (
        lambda f: ((f / "w-0.safetensors").unlink(), os.mkfifo(f / "w-0.safetensors")), "w-0.safetensors", "no plain file"
    ),
    "a link for a file": (
        lambda f: ((f / "w-0.safetensors").rename(f / "x"), (f / "w-0.safetensors").symlink_to("x")),
        "w-0.safetensors", "cannot be read"
    ),
    "a flipped bit of the manifest": (lambda f: edit(f / MANIFEST, flip(-200)), MANIFEST, "manifest"),
    "a manifest cut short": (lambda f: edit(f / MANIFEST, shorten), MANIFEST, "is no manifest"),
    "an empty manifest": (lambda f: (f / MANIFEST).write_bytes(b""), MANIFEST, "is no manifest"),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), MANIFEST, "is missing"),
    "another checkpoint's manifest": (
        lambda f: shutil.copy(f.parent / "00000001" / MANIFEST, f / MANIFEST), MANIFEST, "is the manifest of checkpoint 1"
    ),
    "a pickle for a manifest": (lambda f: (f / MANIFEST).write_bytes(pickle.dumps({"a": 1})), MANIFEST, "is no manifest"),
    "a bottomless manifest": (lambda f: (f / MANIFEST).write_bytes(b"[" * 100_000), MANIFEST, "is no manifest"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(root: Path, what: str) -> None:
    damage, file, reason = DAMAGE[what]
    folder = root / "00000002"
    damage(folder)
    found, refused = newest(DISK, root)
    assert found is not None and found[0] == root / "00000001"
    assert [one.file for one in refused] == [str(folder / file)]
    assert reason in str(refused[0]) and str(refused[0]).endswith(": take an earlier checkpoint")
    with pytest.raises(BadCheckpoint, match=re.escape(file)):
        verify(DISK, folder)


def test_a_manifest_that_is_too_long_is_not_even_read(root: Path) -> None:
    with open(root / "00000002" / MANIFEST, "ab") as file:
        file.truncate(limits.MANIFEST_BYTES + 1)  # a sparse file: the hole takes no disk space
    with pytest.raises(BadCheckpoint, match="at most 268,435,456 are allowed"):
        read_manifest(DISK, root / "00000002")


def test_every_bit_of_a_manifest_counts(root: Path) -> None:
    path = root / "00000002" / MANIFEST
    contents = path.read_bytes()
    for at in range(0, len(contents), 7):
        path.write_bytes(contents[:at] + bytes([contents[at] ^ 1]) + contents[at + 1 :])
        with pytest.raises(BadCheckpoint):
            read_manifest(DISK, root / "00000002")


# ---------------------------------------------------------------- forged, with correct hashes


def forge(folder: Path, **changes: Any) -> None:
    manifest = msgspec.structs.replace(read_manifest(DISK, folder), **changes)
    text = msgspec.json.encode(manifest)
    sealed = SealedCheckpoint(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))
    (folder / MANIFEST).write_bytes(msgspec.json.encode(sealed))


def forge_segment(folder: Path, at: int, **changes: Any) -> None:
    segments = list(read_manifest(DISK, folder).segments)
    segments[at] = msgspec.structs.replace(segments[at], **changes)
    forge(folder, segments=segments)


def forge_file(folder: Path, file: str, header: Any, body: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    contents = len(text).to_bytes(8, "little") + text + body
    (folder / file).write_bytes(contents)
    segments = read_manifest(DISK, folder).segments
    at = [one.file for one in segments].index(file)
    forge_segment(folder, at, bytes=len(contents), sha256=hashlib.sha256(contents).hexdigest())


def tensor(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def sparse_file(names: list[int], rows: int) -> tuple[Any, bytes]:
    keys, values = np.array(names, np.uint64).tobytes(), np.zeros((rows, 2), np.float32).tobytes()
    header = {
        "names": tensor("U64", [len(names)], 0, len(keys)),
        "rows": tensor("F32", [rows, 2], len(keys), len(keys) + len(values)),
    }
    return header, keys + values


BOMB = [1 << 30, 1 << 30]
HOSTILE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a file elsewhere": (lambda f: forge_segment(f, 0, file="../../../secret"), MANIFEST, "where 'w-0.safetensors' belongs"),
    "an absolute path": (lambda f: forge_segment(f, 0, file="/etc/passwd"), MANIFEST, "where 'w-0.safetensors' belongs"),
    "one file twice": (lambda f: forge_segment(f, 0, file="w-1.safetensors"), MANIFEST, "where 'w-0.safetensors' belongs"),
    "a segment twice": (
        lambda f: forge(f, segments=[*read_manifest(DISK, f).segments] * 2), MANIFEST, "every segment of its tables once"
    ),
    "a segment too few": (lambda f: forge(f, segments=read_manifest(DISK, f).segments[1:]), MANIFEST, "missing: [(3, 0)]"),
    "a segment of no table": (lambda f: forge_segment(f, 0, table=99), MANIFEST, "every segment of its tables once"),
    "a table twice": (lambda f: forge(f, tables=[W, W, S]), MANIFEST, "has a table twice"),
    "a table of two names": (
        lambda f: forge(f, tables=[W, msgspec.structs.replace(S, name="w")]), MANIFEST, "has a table twice"
    ),
    "segments in disorder": (
        lambda f: forge(f, tables=[msgspec.structs.replace(W, starts=[20, 0]), S]), MANIFEST, "do not cover its keys"
    ),
    "a segment past the end": (
        lambda f: forge(f, tables=[msgspec.structs.replace(W, starts=[0, 50]), S]), MANIFEST, "do not cover its keys"
    ),
    "no segments": (lambda f: forge(f, tables=[msgspec.structs.replace(W, starts=[]), S]), MANIFEST, "do not cover its keys"),
    "a table that cannot be": (
        lambda f: forge(f, tables=[msgspec.structs.replace(W, spec=Dense(rows=50, width=1 << 20)), S]), MANIFEST, "needs 1 to 65536"
    ),
    "a huge table": (
        lambda f: forge(f, tables=[msgspec.structs.replace(W, spec=Dense(rows=1 << 60, width=3, update=Update("ftrl"))), S]),
        "w-1.safetensors", "has 30 rows for 1,152,921,504,606,846,956 keys",
    ),
    "an update nobody knows": (
        lambda f: forge(f, tables=[msgspec.structs.replace(W, spec=Dense(rows=50, width=3, update=Update("mine"))), S]),
        "w-0.safetensors", "no update 'mine' here",
    ),
    "an update with other state": (
        lambda f: forge(f, tables=[msgspec.structs.replace(W, spec=Dense(rows=50, width=3)), S]),
        "w-0.safetensors", "holds rows: F32 [20, 9], and this segment needs rows: F32 [20, 3]",
    ),
    "steps that differ": (lambda f: forge_segment(f, 1, books=SegmentBooks(3)), MANIFEST, "of different steps (3 to 16)"),
    "another format": (lambda f: forge(f, format=2), MANIFEST, "has format 2, this version of shoal reads 1"),
    "another number": (lambda f: forge(f, number=9), MANIFEST, "is the manifest of checkpoint 9"),
    "a dense bomb": (
        lambda f: forge_file(f, "w-0.safetensors", {"rows": tensor("F32", BOMB, 0, 1 << 62)}), "w-0.safetensors", "no segment"
    ),
    "a dense bomb of small offsets": (
        lambda f: forge_file(f, "w-0.safetensors", {"rows": tensor("F32", [20, 1 << 40], 0, 720)}, bytes(720)),
        "w-0.safetensors", "needs rows: F32 [20, 9]",
    ),
    "a sparse bomb": (
        lambda f: forge_file(
            f, "ids-0.safetensors",
            {"names": tensor("U64", [1 << 35], 0, 1 << 38), "rows": tensor("F32", [1 << 35, 2], 1 << 38, 1 << 39)},
        ),
        "ids-0.safetensors", "has 0 bytes of numbers for",
    ),
    "more rows than keys": (
        lambda f: forge_file(f, "ids-0.safetensors", {"rows": tensor("F32", [1 << 60, 2], 0, 1 << 61)}),
        "ids-0.safetensors", "rows for 549,755,813,888 keys",
    ),
    "doubles": (
        lambda f: forge_file(f, "w-0.safetensors", {"rows": tensor("F64", [20, 9], 0, 1440)}, bytes(1440)),
        "w-0.safetensors", "holds rows: F64 [20, 9]",
    ),
    "offsets that overlap": (
        lambda f: forge_file(
            f, "ids-0.safetensors", {"names": tensor("U64", [2], 0, 16), "rows": tensor("F32", [2, 2], 0, 16)}, bytes(16)
        ),
        "ids-0.safetensors", "needs names",
    ),
    "one array too many": (
        lambda f: forge_file(
            f, "w-0.safetensors", {"rows": tensor("F32", [20, 9], 0, 720), "x": tensor("F32", [1], 720, 724)}, bytes(724)
        ),
        "w-0.safetensors", "holds rows: F32 [20, 9], x: F32 [1]",
    ),
    "no array": (lambda f: forge_file(f, "w-0.safetensors", {}), "w-0.safetensors", "has 0 rows for 20 keys"),
    "a number for a header": (lambda f: forge_file(f, "w-0.safetensors", b"7"), "w-0.safetensors", "is no segment"),
    "a bottomless header": (lambda f: forge_file(f, "w-0.safetensors", b'{"a":' * 9_999), "w-0.safetensors", "is no segment"),
    "a header without end": (
        lambda f: forge_file(f, "w-0.safetensors", b" " * 100_000), "w-0.safetensors", "a header of 100,000 bytes"
    ),
    "a pickle for a segment": (
        lambda f: forge_file(f, "w-0.safetensors", pickle.dumps(np.zeros(3))), "w-0.safetensors", "is no segment"
    ),
    "keys in disorder": (
        lambda f: forge_file(f, "ids-0.safetensors", *sparse_file([1, 3, 2], 3)), "ids-0.safetensors", "are not sorted"
    ),
    "a key twice": (
        lambda f: forge_file(f, "ids-0.safetensors", *sparse_file([1, 3, 3], 3)), "ids-0.safetensors", "are not sorted"
    ),
    "keys of another segment": (
        lambda f: forge_file(f, "ids-1.safetensors", *sparse_file([1, 1 << 39], 2)), "ids-1.safetensors", "not all in"
    ),
    "fewer keys than rows": (
        lambda f: forge_file(f, "ids-0.safetensors", *sparse_file([1], 2)), "ids-0.safetensors", "needs names: U64 [2]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_forged_checkpoint_is_refused_before_memory_is_taken(root: Path, what: str) -> None:
    forgery, file, reason = HOSTILE[what]
    folder = root / "00000002"
    forgery(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, refused = newest(DISK, root)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # kilobytes
    assert found is not None and found[0] == root / "00000001"
    assert [one.file for one in refused] == [str(folder / file)]
    assert reason in refused[0].reason


def test_a_manifest_that_is_not_whole_is_not_written(root: Path) -> None:
    manifest = read_manifest(DISK, root / "00000002")
    number = prepare(DISK, root)
    short = msgspec.structs.replace(manifest, number=number, segments=manifest.segments[:-1])
    with pytest.raises(BadCheckpoint, match=r"missing: \[\(5, 1\)\]"):
        finish(DISK, folder_of(root, number), short)
    assert DISK.names(folder_of(root, number)) == []


# ---------------------------------------------------------------- which checkpoints are kept


def test_the_last_three_and_the_best_are_kept_and_what_was_never_finished_goes(root: Path) -> None:
    assert mark_best(DISK, root, 1, 0.5) == mark_best(DISK, root, 2, 0.7) == BestCheckpoint(1, 0.5)
    (root / "notes").mkdir()  # not a checkpoint
    unfinished = prepare(DISK, root)
    # Nothing was written yet, so nothing is reported.
    assert unfinished == 3 and newest(DISK, root)[1] == []
    write_segment(DISK, folder_of(root, 3), "w", 3, image_of(W, 0))
    assert newest(DISK, root)[1][0].reason.startswith("is missing")
    for _ in range(4):
        save(root)
        prune(DISK, root)
    assert DISK.names(root) == ["00000001", "00000005", "00000006", "00000007", "best.json", "notes"]
    begun = prepare(DISK, root)
    # It may be under way.
    assert prune(DISK, root) == [] and begun == 8 and (root / "00000008").is_dir()
    assert mark_best(DISK, root, 6, 0.25) == read_best(DISK, root) == BestCheckpoint(6, 0.25)
    assert prune(DISK, root) == [1]


def test_a_loss_that_is_no_number_or_of_no_checkpoint_is_never_the_best(root: Path) -> None:
    assert mark_best(DISK, root, 2, float("nan")) is None
    assert mark_best(DISK, root, 9, 0.1) is None
    (root / "best.json").write_bytes(b'{"number": 1, "lo')
    assert read_best(DISK, root) is None and mark_best(DISK, root, 2, 3.0) == BestCheckpoint(2, 3.0)


def test_a_folder_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert newest(DISK, tmp_path / "none") == (None, []) and prune(DISK, tmp_path / "none") == []


# ---------------------------------------------------------------- full disks (F29)

FULL = """
import json, resource, sys
from pathlib import Path
import numpy as np
from shoal.files import Disk
from shoal.keys import KeyRange
from shoal.store.checkpoint import manifest as checkpoint
from shoal.store.checkpoint.manifest import Manifest, SavedTable
from shoal.store.table.table import SegmentImage
from shoal.store.checkpoint.segment_file import write_segment
from shoal.tables import Dense
from shoal.wire.messages import SegmentBooks

root, room = Path(sys.argv[1]) / "checkpoints", int(sys.argv[2])
disk, table = Disk(), SavedTable(1, "w", Dense(rows=50_000), [0, 25_000])

def save(value):
    number = checkpoint.prepare(disk, root)
    folder = checkpoint.folder_of(root, number)
    rows = np.full((25_000, 1), value, np.float32)
    try:
        written = [write_segment(disk, folder, "w", 1, SegmentImage(i, table.keys(i), SegmentBooks(1), rows)) for i in range(2)]
        checkpoint.finish(
            disk, folder, Manifest(number=number, generation=0, job="", steps=1, tables=[table], segments=written)
        )
    except OSError as error:
        left = disk.names(folder)
        checkpoint.abandon(disk, folder)
        return error.strerror, left
    return number, disk.names(folder)

told = [save(1.0)]
if room:
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
told += [save(2.0)]
found, refused = checkpoint.newest(disk, root)
told += [(found[1].number, len(refused)), disk.names(root)]
print(json.dumps(told))
"""
WHOLE = [MANIFEST, "w-0.safetensors", "w-1.safetensors"]


def test_a_small_disk_that_fills_up_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=350k none {small}"
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    command = [*alone, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL, str(small), "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    first, second, found, names = json.loads(ended.stdout)
    # The second did not fit.
    assert first == [1, WHOLE] and second == ["No space left on device", ["w-0.safetensors"]]
    assert found == [1, 0] and names == ["00000001", "00000002"]  # the second folder is empty


def test_a_file_that_may_not_grow_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), "60000"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    first, second, found, names = json.loads(ended.stdout)
    assert first == [1, WHOLE] and second == ["File too large", []]
    assert found == [1, 0] and names == ["00000001", "00000002"]  # the second folder is empty


def test_a_device_that_is_always_full_is_told(tmp_path: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("there is no /dev/full here")
    with pytest.raises(FileExistsError):  # only new files are written, never an existing one
        DISK.write(Path("/dev/full"), [b"1"])
    (tmp_path / "w-0.safetensors").symlink_to("/dev/full")
    with pytest.raises(FileExistsError):
        write_segment(DISK, tmp_path, "w", 3, image_of(W, 0))


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        prepare(DISK, tmp_path / "file" / "checkpoints")
    assert issubclass(BadCheckpoint, Invalid)

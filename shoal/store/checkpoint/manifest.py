"""A model on disk: one file per segment, and a manifest that is written last and names them.

    checkpoints/00000012/w-0.safetensors     rows (and keys, if sparse) of segment 0 of table "w"
    checkpoints/00000012/manifest.json       files with length and hash, books, the run's state
    checkpoints/00000012/group               whose it is; absent: the cluster's own
    checkpoints/best.json                    which one has the lowest loss

A folder is a checkpoint if its manifest is there and everything in it checks; anything else is
refused, by file and reason, and the one before is taken. Nothing that was read is trusted: file
names are derived again and compared, and ``segment_file`` checks the contents. The files hold only
numbers and text, nothing that runs.

All of this runs on a disk thread, with the ``Disk`` to use.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from shoal import limits
from shoal.decoding import resolve_types
from shoal.errors import BadCheckpoint, Invalid, OtherRun
from shoal.files import Disk
from shoal.keys import KeyRange
from shoal.store.checkpoint.segment_file import file_name, opened, read_segment
from shoal.store.table.table import SegmentImage
from shoal.tables import Step, Table, checked
from shoal.wire import messages as m
from shoal.wire.messages.groups import namespace, seen

FORMAT = 1
MANIFEST, BEST, OWNER = "manifest.json", "best.json", "group"


class SavedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as it was when its segments were written."""

    number: m.Count
    name: str
    spec: Table
    starts: list[int]

    def keys(self, segment: int) -> KeyRange:
        return KeyRange(self.starts[segment], [*self.starts[1:], self.spec.span][segment])


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What belongs to a checkpoint."""

    format: int = FORMAT
    number: m.Count
    generation: m.Count
    job: str  # hash of the run's identity
    steps: m.Count
    loss: float | None = None  # if it was evaluated before it was finished
    tables: list[SavedTable]
    segments: list[m.Written]
    state: msgspec.Raw = msgspec.Raw(b"{}")  # the run's: only the coordinator reads it
    group: str = ""  # whose it is; servers go by the file ``group``

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.segments)


class SealedCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class BestCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: m.Count
    loss: float


def prepare(disk: Disk, root: Path, above: int = 0, group: str = "") -> int:
    """Make a folder for the next checkpoint of this group; its number is above all others."""
    number = max(*_numbers(disk, root), above, 0) + 1
    folder = folder_of(root, number)
    disk.make_folder(folder)
    if group:
        disk.write(folder / OWNER, [group.encode()])
    return number


def is_of(disk: Disk, folder: Path, group: str) -> bool:
    """Whether it was made for this group: servers write and read for a group nowhere else."""
    try:
        with opened(disk, folder / OWNER) as (file, size):
            return size < limits.HEADER_BYTES and file.read() == group.encode()
    except BadCheckpoint:
        return False


def finish(disk: Disk, folder: Path, manifest: Manifest) -> None:
    """All segments are on disk: write the manifest. After this it survives a crash."""
    if (reason := _wrong(manifest)) is not None:
        raise BadCheckpoint(str(folder / MANIFEST), reason)
    text = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(SealedCheckpoint(hashlib.sha256(text).hexdigest(), msgspec.Raw(text)))
    if len(sealed) > limits.MANIFEST_BYTES:
        raise Invalid(f"a manifest of {len(sealed):,} bytes: at most {limits.MANIFEST_BYTES:,} are allowed")
    disk.sync_folder(folder)  # the segment files first
    _replace(disk, folder / MANIFEST, sealed)
    disk.sync_folder(folder.parent)
    disk.sync_folder(folder.parent.parent)


def mark_best(disk: Disk, root: Path, number: int, loss: float) -> BestCheckpoint | None:
    """A checkpoint was evaluated: remember it if none was better. Returns the best one."""
    best = read_best(disk, root)
    if math.isfinite(loss) and (best is None or loss < best.loss) and number in finished(disk, root):
        best = BestCheckpoint(number, loss)
        _replace(disk, root / BEST, msgspec.json.encode(best))
    return best


def _replace(disk: Disk, path: Path, contents: bytes) -> None:
    aside = path.with_name(f".{path.name}")
    disk.remove(aside)  # from a crash
    disk.write(aside, [contents])
    disk.rename(aside, path)
    disk.sync_folder(path.parent)


def read_manifest(disk: Disk, folder: Path) -> Manifest:
    """What a checkpoint says it is; its files are not read."""
    path = folder / MANIFEST
    with opened(disk, path) as (file, size):
        if size > limits.MANIFEST_BYTES:
            raise BadCheckpoint(str(path), f"has {size:,} bytes, at most {limits.MANIFEST_BYTES:,} are allowed")
        text = file.read()
    try:
        sealed = msgspec.json.decode(text, type=SealedCheckpoint)
        if hashlib.sha256(sealed.manifest).hexdigest() != sealed.sha256:
            raise BadCheckpoint(str(path), "is damaged: its hash differs")
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheckpoint(str(path), f"is no manifest: {error}") from None
    if folder != folder_of(folder.parent, manifest.number):
        raise BadCheckpoint(str(path), f"is the manifest of checkpoint {manifest.number}")
    if (reason := _wrong(manifest)) is not None:
        raise BadCheckpoint(str(path), reason)
    return manifest


def _wrong(manifest: Manifest) -> str | None:
    if manifest.format != FORMAT:
        return f"has format {manifest.format}, this version of shoal reads {FORMAT}"
    names = {table.name for table in manifest.tables}
    tables = {table.number: table for table in manifest.tables}
    if not len(names) == len(tables) == len(manifest.tables) <= limits.TABLES:
        return "has a table twice, or too many of them"
    for table in manifest.tables:
        try:
            checked(table.spec)
        except Invalid as error:
            return f"table {table.name!r}: {error}"
        ends = [*table.starts, table.spec.span]
        if not 2 <= len(ends) <= limits.SEGMENTS_PER_TABLE + 1 or ends[0] != 0 or sorted(set(ends)) != ends:
            return f"table {table.name!r}: its segments do not cover its keys"
    needed = {(table.number, segment) for table in manifest.tables for segment in range(len(table.starts))}
    given = [(one.table, one.segment) for one in manifest.segments]
    if len(set(given)) != len(given) or set(given) != needed:
        missing = sorted(needed.difference(given))[:3]
        return f"does not name every segment of its tables once (missing: {missing or 'none'})"
    for one in manifest.segments:
        file = file_name(tables[one.table].name, one.table, one.segment)
        if one.file != file:
            return f"names a file {one.file[:256]!r}, where {file!r} belongs"
    for table in manifest.tables:
        versions = {one.books.version for one in manifest.segments if one.table == table.number}
        if isinstance(table.spec.apply, Step) and len(versions) != 1:
            return f"table {table.name!r}: its segments are of different steps ({min(versions)} to {max(versions)})"
    return None


def folder_of(root: Path, number: int) -> Path:
    return root / f"{number:08d}"


def verify(disk: Disk, folder: Path) -> Manifest:
    """Read a whole checkpoint, one segment at a time; BadCheckpoint if anything is wrong."""
    manifest = read_manifest(disk, folder)
    if manifest.group and not is_of(disk, folder, manifest.group):
        raise BadCheckpoint(str(folder / OWNER), f"does not say that it is of group {manifest.group!r}")
    tables = {table.number: table for table in manifest.tables}
    for one in manifest.segments:
        read_segment(disk, folder, one, tables[one.table].spec, tables[one.table].keys(one.segment))
    return manifest


def newest(disk: Disk, root: Path, job: str | None = None) -> tuple[tuple[Path, Manifest] | None, list[BadCheckpoint]]:
    """The newest valid checkpoint (of this job), and what is wrong with newer ones."""
    refused: list[BadCheckpoint] = []
    for number in sorted(_numbers(disk, root), reverse=True):
        folder = folder_of(root, number)
        try:
            names = disk.names(folder)
        except OSError as error:
            refused.append(BadCheckpoint(str(folder), f"cannot be read: {error.strerror or error}"))
            continue
        if not names:  # it was given up
            continue
        if MANIFEST not in names:
            refused.append(BadCheckpoint(str(folder / MANIFEST), "is missing: that checkpoint was not finished"))
            continue
        try:
            manifest = verify(disk, folder)
            if job is not None and manifest.job != job:
                raise OtherRun(str(folder / MANIFEST), number)
            return (folder, manifest), refused
        except BadCheckpoint as error:
            refused.append(error)
    return None, refused


def images(disk: Disk, folder: Path, table: m.TablePlaces, segments: Sequence[int]) -> Iterator[SegmentImage]:
    """These segments of a table that is to be restored, one at a time."""
    group = namespace(table.name)
    if group and not is_of(disk, folder, group):
        raise BadCheckpoint(str(folder), f"is no checkpoint of group {group!r}")
    if not disk.names(folder):
        raise BadCheckpoint(str(folder), "is not there: servers of other hosts need the run's folder, too (share it)")
    manifest = read_manifest(disk, folder)
    names = (table.name, seen(table.name, group))  # without its namespace
    was = next((one for one in manifest.tables if one.name in names), None)
    if was is None or was.starts != table.starts or _kind(was.spec) != _kind(table.spec):
        raise BadCheckpoint(str(folder / MANIFEST), f"its table {table.name!r} is another one than {table.spec}")
    for segment in segments:
        written = next(one for one in manifest.segments if (one.table, one.segment) == (was.number, segment))
        yield read_segment(disk, folder, written, was.spec, was.keys(segment))


def _kind(spec: Table) -> tuple[object, ...]:
    return type(spec), spec.span, spec.hashed, spec.width, spec.update.name


def read_best(disk: Disk, root: Path) -> BestCheckpoint | None:
    try:
        with opened(disk, root / BEST) as (file, _):
            return msgspec.json.decode(file.read(4_096), type=BestCheckpoint)
    except (BadCheckpoint, msgspec.MsgspecError, UnicodeDecodeError):
        return None  # missing or damaged: the next one is the best


def prune(disk: Disk, root: Path, keep: int = limits.CHECKPOINTS_KEPT) -> list[int]:
    """Remove all but the newest finished ones and the best, and unfinished ones before them."""
    done = finished(disk, root)
    best = read_best(disk, root)
    kept = {*done[-max(keep, 1) :], *([best.number] if best is not None else [])}
    gone = [number for number in _numbers(disk, root) if done and number < done[-1] and number not in kept]
    for number in gone:
        folder = folder_of(root, number)
        if number in done:  # the manifest goes first
            disk.remove(folder / MANIFEST)
            disk.sync_folder(folder)
        disk.remove(folder)
    return gone


def abandon(disk: Disk, folder: Path) -> None:
    """Give one up. Its empty folder stays until a later one is finished: numbers are unique."""
    for name in disk.names(folder):
        disk.remove(folder / name)


def finished(disk: Disk, root: Path) -> list[int]:
    """The numbers of those that have a manifest, in order."""
    return [number for number in _numbers(disk, root) if _has_manifest(disk, folder_of(root, number))]


def _has_manifest(disk: Disk, folder: Path) -> bool:
    try:
        return MANIFEST in disk.names(folder)
    except NotADirectoryError:  # not our file
        return False


def _numbers(disk: Disk, root: Path) -> list[int]:
    return sorted(int(name) for name in disk.names(root) if re.fullmatch(r"\d{8,18}", name) and int(name) > 0)


resolve_types(SealedCheckpoint, Manifest, BestCheckpoint)

"""After a crash at any moment the newest complete checkpoint is found, never a mix (F30).

The disk forgets what was not synced.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.files import Disk
from shoal.keys import KeyRange
from shoal.simulation.disk import BLOCK, Crashed, SimulatedDisk
from shoal.store.checkpoint import manifest as checkpoint
from shoal.store.checkpoint import segment_file
from shoal.store.checkpoint.manifest import Manifest, SavedTable, finish, newest, prepare, prune
from shoal.store.table.table import SegmentImage
from shoal.tables import Dense, Sparse, Step, Update
from shoal.wire.messages import ClockedWorker, Counts, SegmentBooks
from tests.support.mutants.training import CHECKPOINT_MUTANTS

ROOT = Path("/run/checkpoints")
TABLES = [
    SavedTable(1, "w", Dense(rows=300, width=2, update=Update("adagrad"), apply=Step(slots=2)), [0, 100, 200]),
    SavedTable(7, "../odd name", Sparse(hashed=True), [0, 1 << 62]),
]
SEEDS = range(12)  # seeds for what survives a crash


def run_folder(seed: int = 0) -> SimulatedDisk:
    """A disk with the folder of a run on it."""
    disk = SimulatedDisk(seed)
    disk.make_folder(ROOT.parent)
    disk.sync_folder(ROOT.parent.parent)
    return disk


def images(number: int) -> dict[tuple[int, int], SegmentImage]:
    """A model that differs in every segment from checkpoint to checkpoint: rows, ledger, clocks."""
    random = np.random.default_rng(number)
    made = {}
    for table in TABLES:
        for segment in range(len(table.starts)):
            keys = table.keys(segment)
            books = SegmentBooks(
                10 * number, {0: Counts(20 * number), -3: Counts.of(number, [number + segment + 2])}, {4: clock(number)}
            )
            if isinstance(table.spec, Dense):
                rows, names = random.normal(size=(len(keys), 4)).astype(np.float32), None
            else:
                names = np.sort(random.choice(1 << 40, 90 + number, replace=False)).astype(np.uint64)
                names += np.uint64(keys.start)
                rows = random.normal(size=(len(names), 1)).astype(np.float32)
            made[table.number, segment] = SegmentImage(segment, keys, books, rows, names)
    return made


def clock(number: int) -> ClockedWorker:
    return ClockedWorker("worker-1", 1, False, 0, Counts(5 * number))


def save(disk: Disk, keep: int = 1) -> int:
    """Saves one checkpoint, as servers and the coordinator do together."""
    number = prepare(disk, ROOT)
    folder = checkpoint.folder_of(ROOT, number)
    made = images(number)
    written = [
        segment_file.write_segment(disk, folder, table.name, table.number, made[table.number, segment])
        for table in TABLES
        for segment in range(len(table.starts))
    ]
    finish(
        disk, folder, Manifest(number=number, generation=0, job="j", steps=10 * number, tables=TABLES, segments=written)
    )
    prune(disk, ROOT, keep)
    return number


def differences(disk: Disk, folder: Path, manifest: Manifest) -> list[str]:
    """The differences between a checkpoint and what was saved under its number."""
    made = images(manifest.number)
    wrong = []
    for one in manifest.segments:
        table = next(table for table in manifest.tables if table.number == one.table)
        image, was = (
            segment_file.read_segment(disk, folder, one, table.spec, table.keys(one.segment)),
            made.pop((one.table, one.segment)),
        )
        same = np.array_equal(image.rows, was.rows) and (
            image.names is was.names or np.array_equal(image.names, was.names)  # type: ignore[arg-type]
        )
        wrong += [] if same else [f"rows of {one.file}"]
        wrong += [] if image.books == was.books else [f"books of {one.file}"]
    return wrong + [f"no segment {missing}" for missing in made]


def broken(saves: int, stop_at: int | None, seed: int) -> tuple[list[str], str, bool]:
    """Saves some checkpoints, stops at an operation, and checks what is left.

    Returns the broken laws, which checkpoint was found, and whether it did stop.
    """
    disk = run_folder(seed)
    disk.stop_at = stop_at
    done = 0
    stopped = False
    try:
        for _ in range(saves):
            done = save(disk)
    except Crashed:
        stopped = True
    after = disk.crash(seed)
    found, refused = newest(after, ROOT)
    number = 0 if found is None else found[1].number
    laws = []
    if number < done:
        laws.append(f"checkpoint {done} was saved, and {number or 'none'} is found: {[str(one) for one in refused]}")
    if number > done + 1:
        laws.append(f"checkpoint {number} is found, and only {done} was saved")
    if found is not None:
        laws += differences(after, *found)
    laws += [f"refused without its file: {one}" for one in refused if not one.file.startswith(str(ROOT))]
    try:
        if save(after) <= number:
            laws.append("a number was given twice")
    except OSError as error:
        laws.append(f"nothing can be saved afterwards: {error}")
    return laws, "none" if found is None else "new" if number == done + 1 else "old", stopped


def length() -> int:
    disk = run_folder()
    for _ in range(2):
        save(disk)
    return len(disk.trace)


def sweep() -> tuple[list[str], dict[str, int]]:
    """Stops at every operation of two checkpoints in a row.

    What survives is drawn several times for each.
    """
    laws: list[str] = []
    counts = dict.fromkeys(("none", "old", "new"), 0)
    for stop_at in range(2, length() + 1):  # the folder of the run was made before
        for seed in SEEDS:
            wrong, found, stopped = broken(2, stop_at, 1000 * stop_at + seed)
            assert stopped == (stop_at < length())
            laws += [f"stopped before operation {stop_at}, seed {seed}: {law}" for law in wrong]
            counts[found] += 1
    return laws, counts


def test_a_crash_at_every_operation_leaves_a_whole_checkpoint() -> None:
    laws, counts = sweep()
    assert laws == []
    # The cases: no checkpoint yet, an older one, and a new one that was not reported yet.
    assert all(counts.values()), counts


@pytest.mark.parametrize("name", CHECKPOINT_MUTANTS)
def test_a_broken_variant_is_caught(name: str) -> None:
    with CHECKPOINT_MUTANTS[name]():
        caught = [law for stop_at in range(0, 60, 3) for law in broken(2, stop_at, stop_at)[0]]
        caught += [law for seed in SEEDS for law in broken(2, None, seed)[0]]
    said = {
        "ledger not in checkpoint": "books of",
        "manifest before data": "damaged",
        "no directory sync": "none is found",
    }
    assert any(said[name] in law for law in caught), caught


@pytest.mark.parametrize("reason", [errno.EIO, errno.ENOSPC])
def test_an_operation_that_fails_costs_one_checkpoint_and_not_those_before(reason: int) -> None:
    clean = run_folder()
    first = save(clean)
    for number in range(len(clean.trace), 2 * len(clean.trace)):
        disk = run_folder()
        save(disk)
        disk.failing[number] = reason
        try:
            save(disk)
            failed = False
        except OSError as error:
            failed = True
            assert error.errno == reason
        assert failed == (number < len(disk.trace))  # the trace of the second may end earlier
        found, _ = newest(disk.crash(number), ROOT)
        assert found is not None and found[1].number >= first and differences(disk, *found) == []
        disk.failing.clear()
        last = save(disk)  # as soon as the disk works again
        found, refused = newest(disk.crash(number), ROOT)
        assert found is not None and found[1].number == last and refused == []


def test_a_disk_that_fills_up_keeps_the_checkpoint_before_and_leaves_nothing_half() -> None:
    disk = run_folder()
    save(disk)
    used = disk.used
    for room in range(0, used, 700):
        disk.capacity = used + room
        with pytest.raises(OSError, match="No space left"):
            save(disk, keep=2)
        unfinished = checkpoint.folder_of(ROOT, int(disk.names(ROOT)[-1]))
        checkpoint.abandon(disk, unfinished)
        assert disk.names(unfinished) == [] and disk.used == used
        found, refused = newest(disk, ROOT)
        assert found is not None and found[1].number == 1 and refused == []
    disk.capacity = None
    last = save(disk)
    assert last > 2 and disk.names(ROOT) == [f"{last:08d}"]


def test_a_bit_that_is_read_wrong_is_seen_in_any_file() -> None:
    disk = run_folder()
    save(disk, keep=3)
    save(disk, keep=3)
    folder = checkpoint.folder_of(ROOT, 2)
    for name in disk.names(folder):
        for bit in (3, 70, 999, 12_345, -1):
            disk.flips = {folder / name: bit}
            found, refused = newest(disk, ROOT)
            assert found is not None and found[1].number == 1
            assert [one.file for one in refused] == [str(folder / name)]


def test_what_was_not_synced_is_torn_at_blocks() -> None:
    kinds = set()
    for seed in range(40):
        disk = SimulatedDisk()
        disk.make_folder(Path("/a"))
        disk.sync_folder(Path("/"))
        disk.stop_at = 4  # folder made and synced, file created and written, but not synced
        with pytest.raises(Crashed):
            disk.write(Path("/a/b"), [b"x" * 3 * BLOCK])
        with pytest.raises(Crashed):
            disk.remove(Path("/a/b"))  # after a crash nothing happens
        after = disk.crash(seed)
        if "b" not in after.names(Path("/a")):
            kinds.add("no name")
        else:
            found = after.open(Path("/a/b")).read()
            assert {found[i : i + BLOCK].strip(b"x").strip(b"\0") for i in range(0, len(found), BLOCK)} <= {b""}
            kinds.add("whole" if found == b"x" * 3 * BLOCK else "zeros" if b"\0" in found else "short")
    assert kinds == {"no name", "whole", "zeros", "short"}


def test_slow_operations_add_up_and_a_process_that_dies_alone_loses_nothing() -> None:
    disk = run_folder(3)
    disk.slow = 1_000
    disk.stop_at = 7
    with pytest.raises(Crashed):
        save(disk)
    assert 0 < disk.spent < 7_000 and len(disk.trace) == 7
    names = disk.names(checkpoint.folder_of(ROOT, 1))
    disk.stop_at = None
    assert disk.names(checkpoint.folder_of(ROOT, 1)) == names != []


def ways(disk: Disk, at: Path) -> list[Any]:
    """All responses of a disk to a list of operations."""

    def call(function: Any, *given: Any) -> Any:
        try:
            return function(*given)
        except OSError as error:
            return type(error).__name__, error.errno

    def read(path: Path) -> bytes:
        with disk.open(path) as file:
            return file.read()

    return [
        call(disk.names, at / "a"),
        call(disk.make_folder, at / "a" / "b"),
        call(disk.make_folder, at / "a" / "b"),
        call(disk.write, at / "a" / "one", [b"12", memoryview(b"345"), b""]),
        call(disk.write, at / "a" / "one", [b"again"]),
        call(disk.write, at / "none" / "one", [b"1"]),
        call(disk.names, at / "a"),
        call(disk.rename, at / "a" / "one", at / "a" / "two"),
        call(disk.rename, at / "a" / "one", at / "a" / "two"),
        call(disk.sync_folder, at / "a"),
        call(disk.sync_folder, at / "c"),
        call(disk.names, at / "a"),
        call(read, at / "a" / "two"),
        call(disk.open, at / "a" / "one"),
        call(disk.open, at / "a" / "b"),
        call(disk.make_folder, at / "a" / "two" / "x"),
        call(disk.remove, at / "a" / "none"),
        call(disk.remove, at / "none" / "none"),
        call(disk.remove, at / "a" / "two"),
        call(disk.names, at / "a"),
        call(disk.remove, at / "a"),
        call(disk.names, at),
    ]


def test_the_two_disks_answer_alike(tmp_path: Path) -> None:
    simulated = SimulatedDisk()
    simulated.make_folder(Path("/x"))
    assert ways(simulated, Path("/x")) == ways(Disk(), tmp_path)


def test_a_range_of_all_keys_is_saved_and_read(tmp_path: Path) -> None:
    image = SegmentImage(0, KeyRange(0, 1 << 63), SegmentBooks(1), np.empty((0, 1), np.float32), np.empty(0, np.uint64))
    written = segment_file.write_segment(Disk(), tmp_path, "all", 1, image)
    back = segment_file.read_segment(Disk(), tmp_path, written, Sparse(hashed=True), image.keys)
    assert back.names is not None and len(back.names) == len(back.rows) == 0

"""A packed set has the rows that were appended, memory-mapped; it is complete or absent."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.data.batch import Batch
from shoal.data.csr_file import (
    CsrFile,
    CsrWriter,
    LabelCount,
    StagingFolder,
    sweep,
)
from shoal.errors import Invalid


def batch_of(rows: list[dict[int, float]], labels: list[float], ones: bool = False) -> Batch:
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    columns = np.array([column for row in rows for column in row], np.uint32)
    values = np.array([value for row in rows for value in row.values()], np.float32)
    return Batch(indptr, columns, None if ones else values, np.array(labels, np.float32))


FIRST = batch_of([{0: 1.0, 5: 2.0}, {}], [1, -1])
SECOND = batch_of([{2: 0.5}], [1])


@pytest.fixture
def packed(tmp_path: Path) -> CsrFile:
    with CsrWriter(tmp_path / "set") as writer:
        writer.append(FIRST, np.array([3, 9]))
        writer.append(SECOND)
        return writer.finish("here", features=8)


def test_rows_come_back_as_they_went_in(packed: CsrFile) -> None:
    assert (packed.rows, len(packed), packed.features, packed.nonzeros) == (3, 3, 8, 3)
    taken = packed.take(np.array([2, 0, 2]))
    assert taken.indptr.tolist() == [0, 1, 3, 4]
    assert taken.columns.tolist() == [2, 0, 5, 2]
    assert taken.values is not None
    assert taken.values.tolist() == [0.5, 1.0, 2.0, 0.5]
    assert taken.labels.tolist() == [1, 1, 1]
    assert packed.counts.tolist() == [1, 0, 1, 0, 0, 1, 0, 0]
    assert sorted(path.name for path in packed.folder.iterdir()) == [
        "columns.u32", "counts.u32", "indptr.i64", "labels.f32", "meta.json", "values.f32",
    ]  # fmt: skip
    assert [path.name for path in packed.folder.parent.iterdir()] == ["set"]  # and no other file


def test_a_slice_is_a_view_of_the_map(packed: CsrFile) -> None:
    part = packed.slice(1, 3)
    assert part.indptr.tolist() == [0, 0, 1]
    assert part.columns.tolist() == [2]
    assert np.shares_memory(part.columns, packed.columns) and np.shares_memory(part.labels, packed.labels)
    assert packed.slice(3, 3).labels.tolist() == []
    with pytest.raises(ValueError, match="read-only"):
        part.labels[0] = 3


def test_labels_are_counted_with_the_first_line_of_each(packed: CsrFile) -> None:
    assert packed.meta.labels == [LabelCount(-1.0, 1, 9), LabelCount(1.0, 2, 3)]
    assert not packed.meta.more_labels


def test_only_so_many_labels_are_counted(tmp_path: Path) -> None:
    with CsrWriter(tmp_path / "set") as writer:
        writer.append(batch_of([{} for _ in range(40)], [float(label) for label in range(40)]))
        packed = writer.finish()
    assert [label.value for label in packed.meta.labels] == list(range(16))
    assert packed.meta.more_labels


def test_values_that_are_all_one_are_not_stored(tmp_path: Path) -> None:
    with CsrWriter(tmp_path / "set") as writer:
        writer.append(batch_of([{1: 1.0}], [0]))
        writer.append(batch_of([{2: 1.0}], [0], ones=True))
        packed = writer.finish()
    assert packed.values is None and packed.take(np.array([0])).values is None
    assert not (packed.folder / "values.f32").exists()


def test_the_first_value_that_is_not_one_brings_the_ones_before_it(tmp_path: Path) -> None:
    with CsrWriter(tmp_path / "set") as writer:
        writer.append(batch_of([{1: 1.0, 2: 1.0}], [0], ones=True))
        writer.append(batch_of([{1: 7.0}], [0]))
        writer.append(batch_of([{3: 1.0}], [0], ones=True))
        packed = writer.finish()
    assert packed.values is not None
    assert packed.values.tolist() == [1, 1, 7, 1]


def test_a_set_without_features_is_a_set(tmp_path: Path) -> None:
    with CsrWriter(tmp_path / "set") as writer:
        writer.append(batch_of([{}, {}], [1, 0]))
        packed = writer.finish(features=3)
    assert packed.take(np.array([1, 0])).labels.tolist() == [0, 1]
    assert packed.counts.tolist() == [0, 0, 0]


def test_a_huge_id_takes_no_disk_for_the_ids_below_it(tmp_path: Path) -> None:
    with CsrWriter(tmp_path / "set") as writer:
        writer.append(batch_of([{200_000_000: 1.0}], [1]))
        packed = writer.finish()
    assert packed.features == 200_000_001 and packed.counts[-1] == 1
    assert (packed.folder / "counts.u32").stat().st_blocks * 512 < 10_000_000


def test_a_row_that_is_not_there_is_refused(packed: CsrFile) -> None:
    for row in (-1, 3, 2**40):
        with pytest.raises(Invalid, match="there are 3"):
            packed.take(np.array([0, row]))
    with pytest.raises(Invalid, match="the set has 3"):
        packed.slice(1, 4)


@pytest.mark.parametrize("name", ["labels.f32", "indptr.i64", "columns.u32", "values.f32", "counts.u32"])
def test_a_file_that_was_cut_is_found_when_it_is_opened(packed: CsrFile, name: str) -> None:
    path = packed.folder / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Invalid, match=rf"{name} is damaged .*delete .*set and load again"):
        CsrFile.open(packed.folder)
    path.unlink()
    with pytest.raises(Invalid, match=f"{name} is damaged"):
        CsrFile.open(packed.folder)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', "\xff", "[" * 5_000])
def test_a_description_that_makes_no_sense_is_an_error_that_says_what_to_do(packed: CsrFile, text: str) -> None:
    (packed.folder / "meta.json").write_text(text)
    with pytest.raises(Invalid, match="delete"):
        CsrFile.open(packed.folder)


def test_rows_that_end_before_they_start_are_found_before_they_are_read(packed: CsrFile) -> None:
    with (packed.folder / "indptr.i64").open("r+b") as file:
        file.seek(8)
        file.write(np.array([1 << 40], np.int64).tobytes())
    damaged = CsrFile.open(packed.folder)
    with pytest.raises(Invalid, match="damaged"):
        damaged.take(np.array([0]))
    with pytest.raises(Invalid, match="damaged"):
        damaged.slice(0, 2)


def test_another_process_maps_the_set_for_itself(packed: CsrFile) -> None:
    assert len(pickle.dumps(packed)) < 1_000
    assert pickle.loads(pickle.dumps(packed)).take(np.array([2])).columns.tolist() == [2]


def test_an_error_while_packing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), CsrWriter(tmp_path / "set") as writer:
        writer.append(FIRST)
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_pack_the_same_set_the_second_takes_the_firsts(tmp_path: Path) -> None:
    with CsrWriter(tmp_path / "set") as ann, CsrWriter(tmp_path / "set") as bob:
        ann.append(FIRST)
        bob.append(FIRST)
        assert ann.finish().rows == bob.finish().rows == 2
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


KILLED = """
import os, signal, sys
from pathlib import Path
from shoal.data.csr_file import StagingFolder
aside = StagingFolder(Path(sys.argv[1]) / "set")
(aside.path / "labels.f32").write_bytes(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_no_set_and_is_swept_away(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60, check=False)
    assert ran.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert sweep(tmp_path) == 0  # it is new: its writer may be about to lock it
    os.utime(left, (0, 0))
    with StagingFolder(tmp_path / "other") as alive:
        os.utime(alive.path, (0, 0))
        assert sweep(tmp_path) == 1
        assert alive.path.is_dir()  # locked: a writer is active
    assert list(tmp_path.iterdir()) == []

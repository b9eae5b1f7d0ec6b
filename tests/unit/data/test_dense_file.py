"""Dense rows are packed unchanged and memory-mapped; a set is complete or absent."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.data.batch import Batch
from shoal.data.csr_file import CsrFile, CsrWriter, LabelCount
from shoal.data.dense_file import DenseExamples, DenseFile, classes_of, write
from shoal.data.packed import open_rows, sparse
from shoal.errors import Invalid

IMAGES = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
LABELS = np.array([2, 0, 1, 0, 2], np.float32)


def packed(folder: Path, inputs: np.ndarray = IMAGES, labels: np.ndarray = LABELS) -> DenseFile:
    numbers = np.arange(1, len(labels) + 1)
    halves = (slice(0, 3), slice(3, None))
    parts = ((DenseExamples(inputs[half], labels[half]), numbers[half]) for half in halves)
    return write(folder / "set", parts, "here", 0.5, -1.0, 3)


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    rows = packed(tmp_path)
    assert (rows.rows, len(rows), rows.shape, rows.features, rows.nonzeros) == (5, 5, (2, 3), 6, 30)
    assert rows.inputs.dtype == np.uint8 and rows.inputs.tolist() == IMAGES.tolist()
    assert rows.labels.tolist() == LABELS.tolist()
    assert (rows.meta.factor, rows.meta.shift, rows.meta.classes, rows.meta.source) == (0.5, -1.0, 3, "here")
    assert rows.meta.labels == [LabelCount(0.0, 2, 2), LabelCount(1.0, 1, 3), LabelCount(2.0, 2, 1)]
    assert sorted(path.name for path in rows.folder.iterdir()) == ["arrays.json", "inputs.u8", "labels.f32"]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]  # and no other file


def test_numbers_are_kept_as_numbers(tmp_path: Path) -> None:
    rows = packed(tmp_path, IMAGES.astype(np.float32) / 7)
    assert rows.inputs.dtype == np.float32 and (rows.inputs == IMAGES.astype(np.float32) / 7).all()
    assert (rows.folder / "inputs.f32").exists()


def test_a_slice_is_a_view_of_the_map(tmp_path: Path) -> None:
    rows = packed(tmp_path)
    part = rows.slice(1, 4)
    assert len(part) == 3 and part.nbytes == 3 * 6 + 3 * 4
    assert np.shares_memory(part.inputs, rows.inputs) and np.shares_memory(part.labels, rows.labels)
    assert len(rows.slice(5, 5)) == 0
    with pytest.raises(ValueError, match="read-only"):
        part.inputs[0] = 3
    with pytest.raises(Invalid, match="the set has 5"):
        rows.slice(1, 6)


def test_rows_are_taken_in_any_order(tmp_path: Path) -> None:
    rows = packed(tmp_path)
    taken = rows.take(np.array([4, 0, 4]))
    assert taken.inputs.tolist() == IMAGES[[4, 0, 4]].tolist() and taken.labels.tolist() == [2, 2, 2]
    for row in (-1, 5):
        with pytest.raises(Invalid, match=f"row {row} asked for: there are 5"):
            rows.take(np.array([0, row]))


def test_another_process_maps_the_set_for_itself(tmp_path: Path) -> None:
    rows = packed(tmp_path)
    assert len(pickle.dumps(rows)) < 1_000
    assert pickle.loads(pickle.dumps(rows)).inputs.tolist() == IMAGES.tolist()


@pytest.mark.parametrize("name", ["inputs.u8", "labels.f32"])
def test_a_file_that_was_cut_is_found_when_it_is_opened(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path).folder / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Invalid, match=rf"{name} is damaged .*delete .*set and load again"):
        DenseFile.open(path.parent)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', "\xff", "[" * 5_000])
def test_a_description_that_makes_no_sense_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    folder = packed(tmp_path).folder
    (folder / "arrays.json").write_text(text)
    with pytest.raises(Invalid, match="delete"):
        DenseFile.open(folder)


def test_rows_of_no_size_and_other_formats_are_refused(tmp_path: Path) -> None:
    path = packed(tmp_path).folder / "arrays.json"
    text = " ".join(path.read_text().split())
    path.write_text(text.replace("[ 2, 3 ]", "[-2, 3]"))
    with pytest.raises(Invalid, match="damaged"):
        DenseFile.open(path.parent)
    path.write_text(text.replace('"format": 1', '"format": 99'))
    with pytest.raises(Invalid, match="has format 99"):
        DenseFile.open(path.parent)
    with pytest.raises(Invalid, match="no packed set in"):
        DenseFile.open(tmp_path)


def test_an_error_while_packing_leaves_nothing(tmp_path: Path) -> None:
    def parts() -> Iterator[tuple[DenseExamples, np.ndarray]]:
        yield DenseExamples(IMAGES, LABELS), np.arange(5)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(tmp_path / "set", parts())
    with pytest.raises(Invalid, match="has no rows"):
        write(tmp_path / "set", [], "nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_opened_as_what_it_is(tmp_path: Path) -> None:
    dense = packed(tmp_path)
    with CsrWriter(tmp_path / "sparse") as writer:
        one = Batch(np.array([0, 1]), np.array([3], np.uint32), None, np.ones(1, np.float32))
        writer.append(one)
        writer.finish()
    assert isinstance(open_rows(dense.folder), DenseFile)
    other = open_rows(tmp_path / "sparse")
    assert isinstance(other, CsrFile) and sparse(other) is other
    with pytest.raises(Invalid, match=r"here has dense rows \(2 x 3\): take a set of sparse rows"):
        sparse(dense)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([0, 1, 2], 3), ([0, 5], 6), ([-1, 1], 0), ([0.5, 1], 0), ([0, 1e9], 0), ([], 0)],
)
def test_labels_are_classes_if_they_are_whole_and_from_0_on(labels: list[float], classes: int) -> None:
    assert classes_of(np.array(labels, np.float32)) == classes
    assert classes_of(np.array([0, 1], np.float32), np.array([3], np.float32)) == 4

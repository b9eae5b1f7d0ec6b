"""Files are read in any compression; an error names its line and what to do next."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.data.datasets import NAMED
from shoal.data.readers import Format, RowReader, guess, read
from shoal.data.text import TextChunks
from shoal.errors import Invalid
from shoal.limits import LINE

TEXT = b"+1 1:0.5 3:2 # first\n\n# nothing\n-1 qid:3 2:-1e1\r\n0 5:0 6:1"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def written(content: bytes) -> Path:
        path = tmp_path / "rows.txt"
        path.write_bytes(content)
        return path

    return written


def click(label: int = 1, **fields: str) -> bytes:
    names = [f"I{n}" for n in range(1, 14)] + [f"C{n}" for n in range(1, 27)]
    return "\t".join([str(label)] + [fields.get(name, "") for name in names]).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_rows_are_read_from_plain_and_packed_files(
    write: Callable[[bytes], Path], pack: Callable[[bytes], bytes]
) -> None:
    reader = RowReader(write(pack(TEXT + b"\n")), "libsvm")
    ((batch, lines),) = list(reader)
    assert batch.labels.tolist() == [1, -1, 0]
    assert batch.indptr.tolist() == [0, 2, 3, 4]
    assert batch.columns.tolist() == [0, 2, 1, 5]
    assert batch.values is not None and batch.values.tolist() == [0.5, 2, -10, 1]
    assert lines.tolist() == [1, 4, 5]
    assert (reader.rows, reader.features, reader.skipped, reader.notes()) == (3, 6, 0, [])


def test_a_last_line_without_an_end_is_a_line(write: Callable[[bytes], Path]) -> None:
    batch = read(write(TEXT), "libsvm")
    assert (len(batch), batch.columns.tolist()) == (3, [0, 2, 1, 5])


def test_files_that_were_joined_after_packing_are_read_to_the_end(write: Callable[[bytes], Path]) -> None:
    assert len(read(write(gzip.compress(b"1 1:1\n") + gzip.compress(b"0 2:1\n")), "libsvm")) == 2


@pytest.mark.parametrize("chunk", [1, 2, 5, 17, 1_000])
def test_chunks_of_any_size_have_the_same_lines(write: Callable[[bytes], Path], chunk: int) -> None:
    lines = TextChunks(write(TEXT), chunk)
    parts = [bytes(lines.data[:stop]) for stop in lines]
    assert b"".join(parts) == TEXT + b"\n"
    assert all(part.endswith(b"\n") for part in parts)


def test_a_mark_before_the_first_line_is_no_part_of_it(write: Callable[[bytes], Path]) -> None:
    assert read(write(b"\xef\xbb\xbf1 1:1\n"), "libsvm").labels.tolist() == [1]
    assert read(write(b"\xef\xbb\xbf" + click(1)), "criteo").labels.tolist() == [1]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"x 1:1", "label 'x' is no number"),
        (b"1 3", "'3' is no id:value"),
        (b"1 1:1 3:", "'3:' is no id:value"),
        (b"1 1:1:1", "'1:1:1' is no id:value"),
        (b"1 0:1", "id 0, and ids start at 1.*add 1 to all ids"),
        (b"1 -4:1", "negative id in '-4:1'"),
        (b"1 4294967296:1", r"above 4,294,967,295.*hash them with hash_bits"),
        (b"1 5:1 5:2", "'5:2' is given twice"),
        (b"1 5:1 4:2", "'4:2' is smaller than the one before"),
        (b"1 5:nan", "not finite"),
        (b"-inf 5:1", "'-inf' is not finite"),
        (b"1 5:1e39", "'5:1e39' is not finite, or too large"),
        (b"1 qid:a 5:1", "'qid:a' is no id:value"),
        (b"\xff\x01", r"line 2: label '\\xff\\x01' is no number: \\xff\\x01;"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong_and_what_to_do(
    write: Callable[[bytes], Path], line: bytes, what: str
) -> None:
    path = write(b"1 1:1\n" + line + b"\n1 1:1\n")
    with pytest.raises(Invalid, match=what) as caught:
        read(path, "libsvm")
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert "bad_lines" in str(caught.value) or "hash_bits" in str(caught.value)
    reader = RowReader(path, "libsvm", bad_lines=1)
    assert sum(len(batch) for batch, _ in reader) == 2
    assert reader.skipped == 1 and reader.notes()[0].startswith("1 bad lines skipped: line 2: ")


def test_one_bad_line_more_than_allowed_is_one_too_many(write: Callable[[bytes], Path]) -> None:
    path = write(b"1 1:1\n" + b"bad\n" * 8)
    reader = RowReader(path, "libsvm", bad_lines=8)
    assert sum(len(batch) for batch, _ in reader) == 1
    assert reader.skipped == 8 and len(reader.examples) == 5 and "; and 3 more" in reader.notes()[0]
    with pytest.raises(Invalid, match=r"line 9: .*7 bad lines were allowed"):
        list(RowReader(path, "libsvm", bad_lines=7))


def test_only_the_start_of_a_bad_line_is_shown(write: Callable[[bytes], Path]) -> None:
    with pytest.raises(Invalid) as caught:
        read(write(b"1 " + b"y" * 3_000), "libsvm")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("extra", [0, 1, 5_000_000])
def test_a_line_that_is_too_long_is_a_bad_one_and_the_next_is_read(write: Callable[[bytes], Path], extra: int) -> None:
    start = b"1 1:1 #"
    long = start + b"x" * (LINE - len(start) + extra)
    reader = RowReader(write(b"0 2:1\n" + long + b"\n-1 3:1\n"), "libsvm", bad_lines=1)
    rows = [(label, line) for batch, lines in reader for label, line in zip(batch.labels, lines, strict=True)]
    assert rows == ([(0, 1), (-1, 3)] if extra else [(0, 1), (1, 2), (-1, 3)])
    assert reader.skipped == (1 if extra else 0)


def test_at_most_so_many_rows_are_read_and_what_comes_behind_does_not_matter(write: Callable[[bytes], Path]) -> None:
    reader = RowReader(write(b"1 1:1\n0 2:1\n1 9:1\nbad\n"), "libsvm", rows=2)
    assert [batch.labels.tolist() for batch, _ in reader] == [[1, 0]]
    assert (reader.rows, reader.features) == (2, 2)


def test_ids_above_the_features_that_were_said_are_bad(write: Callable[[bytes], Path]) -> None:
    path = write(b"1 10:1\n1 11:1\n")
    with pytest.raises(Invalid, match="line 2: id of '11:1' is above 10"):
        list(RowReader(path, "libsvm", features=10))
    reader = RowReader(path, "libsvm", features=20)
    assert len(list(reader)) == 1 and reader.features == 20


def test_hashed_ids_may_be_large_and_what_falls_together_is_added(write: Callable[[bytes], Path]) -> None:
    reader = RowReader(write(b"1 5:1.5 77777777777777777:2\n"), "libsvm", hash_bits=1)
    ((batch, _),) = list(reader)
    assert reader.features == 2
    assert batch.values is not None and batch.values.sum() == 3.5
    assert batch.columns.tolist() in ([0], [1], [0, 1])


def test_a_click_log_has_one_feature_for_each_field(write: Callable[[bytes], Path]) -> None:
    lines = [click(1, I1="5", C1="05db9164"), click(0, I1="6", C2="05db9164"), click(0, I2="-2", C1="05DB9164")]
    batch = read(write(b"\n".join(lines)), "criteo")
    assert batch.labels.tolist() == [1, 0, 0]
    assert batch.values is None
    first, second, third = (set(batch.columns[39 * row : 39 * row + 39].tolist()) for row in range(3))
    assert len(first) == len(second) == len(third) == 39  # a missing field is a feature, too
    # 5 and 6 are in different buckets, the category is in another column, and C1 is missing.
    assert len(first - second) == 3
    assert len(first - third) == 2  # only the counts differ: letter case does not matter


def test_large_counts_share_buckets_and_small_ones_do_not(write: Callable[[bytes], Path]) -> None:
    counts = ["-3", "-1", "0", "1", "2", "1000", "1001", "2000"]
    batch = read(write(b"\n".join(click(0, I7=count) for count in counts)), "criteo")
    rows = [frozenset(batch.columns[39 * row : 39 * row + 39].tolist()) for row in range(len(counts))]
    assert len(set(rows)) == len(counts) - 1
    assert rows[5] == rows[6]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (click(0)[:-1], "not 40 fields"),
        (click(0) + b"\t", "not 40 fields"),
        (b"1 1:1", "not 40 fields"),
        (b"2" + click(0)[1:], "label '2' is neither 0 nor 1"),
        (click(0)[1:], "label '' is neither 0 nor 1"),
        (click(0, I13="1.5"), "I13 is '1.5', which is no whole number"),
        (click(0, I2="-"), "I2 is '-', which is no whole number"),
        (click(0, C1="xyz"), "C1 is 'xyz', which is not hexadecimal"),
        (click(0, C26="f" * 17), "C26 is 'fffffffffffffffff', which is not hexadecimal"),
    ],
)
def test_a_bad_line_of_a_click_log_is_named(write: Callable[[bytes], Path], line: bytes, what: str) -> None:
    path = write(click(1) + b"\n" + line + b"\n" + click(0))
    with pytest.raises(Invalid, match=f"line 2: {what}"):
        read(path, "criteo")
    assert sum(len(batch) for batch, _ in RowReader(path, "criteo", bad_lines=1)) == 2


def test_what_kind_of_text_it_is_the_first_row_says(write: Callable[[bytes], Path]) -> None:
    assert guess(write(b"\n# 1\t2\n1\t1:1\t2:1\n")) == "libsvm"
    assert guess(write(b"\n" + click())) == "criteo"
    with pytest.raises(Invalid, match="has no row"):
        guess(write(b"\n# x\n"))


@pytest.mark.parametrize("format", ["libsvm", "criteo"])
def test_a_file_that_holds_no_rows_says_what_it_is(tmp_path: Path, format: Format) -> None:
    path = tmp_path / "file"
    cases = {
        b"": "is empty",
        b"\n\r\n\n": "has no row in its 3 lines",
        b"1 1:1\0\n": "is no text: byte 5",
        b"PK\x03\x04....": "is a zip archive and not called .npz: give plain text",
        b"\x28\xb5\x2f\xfd....": "compressed with zstd",
        gzip.compress(b""): "has no row",
    }
    for content, what in cases.items():
        path.write_bytes(content)
        with pytest.raises(Invalid, match=what):
            read(path, format)
    with pytest.raises(Invalid, match="is a folder: name a file in it"):
        read(tmp_path, format)
    with pytest.raises(Invalid, match=r"no file .*is the path right"):
        read(tmp_path / "nothing", format)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Invalid, match="no regular file"):
        read(tmp_path / "pipe", format)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_file_that_was_cut_or_changed_is_named(
    write: Callable[[bytes], Path], pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(b"".join(b"1 %d:0.5\n" % number for number in range(1, 20_000)))
    with pytest.raises(Invalid, match=r"rows.txt, a compressed file, ends in the middle: fetch it again"):
        read(write(whole[: len(whole) // 2]), "libsvm")
    changed = bytearray(whole)
    for place in range(len(whole) // 2, len(whole) // 2 + 30):
        changed[place] ^= 0xA5
    with pytest.raises(Invalid, match=r"rows\.txt"):
        read(write(bytes(changed)), "libsvm")


def test_a_file_that_grows_without_end_is_refused(write: Callable[[bytes], Path]) -> None:
    with pytest.raises(Invalid, match=r"more than 300-fold.*unpack it first"):
        read(write(gzip.compress(b"\n" * 100_000_000)), "libsvm")
    # This one is small enough to be harmless.
    assert len(read(write(gzip.compress(b"1 1:1\n" + b"\n" * 10_000_000)), "libsvm")) == 1


@pytest.mark.skipif("SHOAL_DATA" not in os.environ, reason="SHOAL_DATA is not set")
def test_rcv1_is_read_as_scikit_learn_reads_it() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    path = Path(os.environ["SHOAL_DATA"]) / NAMED["rcv1"].test
    with lzma.open(path) as file:
        matrix, labels = datasets.load_svmlight_file(file, dtype=np.float32, zero_based=False)
    ours = read(path, "libsvm")
    assert (ours.indptr == matrix.indptr).all()
    assert (ours.columns == matrix.indices).all()
    assert ours.values is not None and (ours.values == matrix.data).all()
    assert (ours.labels == labels).all()

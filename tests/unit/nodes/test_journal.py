"""A journal has every acknowledged record after a crash, and no torn record."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import Invalid
from shoal.nodes.journal import JournalFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal"


def write(path: Path, *records: bytes) -> None:
    journal = JournalFile(path)
    for record in records:
        assert journal.append(record) == ""
    journal.close()


def read(path: Path) -> list[bytes]:
    journal = JournalFile(path)
    journal.close()
    return journal.records


def test_what_was_appended_is_there_when_it_is_opened_again(path: Path) -> None:
    write(path, b"one", b"two")
    assert read(path) == [b"one", b"two"]
    write(path, b"three")
    assert read(path) == [b"one", b"two", b"three"]


def test_a_new_journal_is_empty_and_private(path: Path) -> None:
    assert read(path) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_torn_tail_ends_the_journal_wherever_it_was_torn(path: Path) -> None:
    write(path, b"one", b"two")
    whole = path.read_bytes()
    record = 8 + len(b"one")  # length, checksum, three bytes
    head = len(whole) - 2 * record
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert read(path) == [b"one", b"two"][: max(0, length - head) // record]


def test_after_a_torn_tail_the_journal_goes_on(path: Path) -> None:
    write(path, b"one", b"two")
    path.write_bytes(path.read_bytes()[:-1])
    write(path, b"three")
    assert read(path) == [b"one", b"three"]


def test_a_record_with_a_flipped_bit_is_not_believed(path: Path) -> None:
    write(path, b"one", b"two")
    whole = bytearray(path.read_bytes())
    for place in range(len(whole) - 8 - len(b"two"), len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        assert read(path) == [b"one"]


def test_without_a_folder_nothing_is_kept() -> None:
    journal = JournalFile()
    assert journal.append(b"one") == ""
    assert journal.records == []
    journal.close()


def test_a_journal_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="choose another folder"):
        JournalFile(tmp_path / "file" / "journal")
    with pytest.raises(Invalid, match="choose another folder"):
        JournalFile(tmp_path)


def test_a_closed_journal_can_be_closed_again(path: Path) -> None:
    journal = JournalFile(path)
    journal.close()
    journal.close()


def test_the_journal_is_not_inherited_by_other_programs(path: Path) -> None:
    journal = JournalFile(path)
    assert journal._file is not None
    assert not os.get_inheritable(journal._file)
    journal.close()


def test_a_full_disk_is_told_and_leaves_the_journal_as_it_was(path: Path) -> None:
    program = f"""
import resource, pathlib
from shoal.nodes.journal import JournalFile
journal = JournalFile(pathlib.Path({str(path)!r}))
assert journal.append(b"one") == ""
resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
print(journal.append(b"x" * 100))  # a part of it fits
print(journal.append(b"y" * 100))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert journal.append(b"two") == ""
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    # Each with a reason.
    assert len([line for line in run.stdout.splitlines() if line.strip()]) == 2
    assert read(path) == [b"one", b"two"]


def test_a_tail_of_zeros_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = JournalFile(path)
    journal.append(b"one")
    journal.close()
    with path.open("ab") as file:
        file.write(bytes(4096))
    journal = JournalFile(path)
    assert journal.records == [b"one"]
    journal.close()


def test_a_file_that_is_no_journal_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"somebody's thesis")
    with pytest.raises(Invalid, match="no journal of shoal"):
        JournalFile(path)
    assert path.read_bytes() == b"somebody's thesis"


def test_a_journal_that_is_rewritten_has_the_new_records_and_goes_on(path: Path) -> None:
    write(path, b"one", b"two", b"three")
    journal = JournalFile(path)
    journal.rewrite([b"three"])
    assert journal.append(b"four") == ""
    journal.close()
    assert read(path) == [b"three", b"four"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_a_journal_that_cannot_be_rewritten_stays_as_it_was(path: Path) -> None:
    write(path, b"one", b"two")
    path.with_name(f"{path.name}.new").mkdir()  # blocks the new file
    journal = JournalFile(path)
    journal.rewrite([b"two"])
    assert journal.append(b"three") == ""
    journal.close()
    assert read(path) == [b"one", b"two", b"three"]

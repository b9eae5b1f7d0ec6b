"""The journal file: append-only records with length and checksum, synced before an answer.

A record that was torn by a crash ends the journal: it was never acknowledged. Without a folder
nothing is kept, which is right for a cluster that ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import Invalid
from shoal.files import Disk

_MAGIC = b"shoal journal 3\n"
_HEAD = 8  # length and checksum, four bytes each


class JournalFile:
    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: list[bytes] = []
        self.damaged: int | None = None  # the byte from which on it could not be read, and was cut
        self._file: int | None = None
        self._valid_bytes: int | None = None  # bytes beyond this are to be cut off
        if path is not None:
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            data = path.read_bytes()
            if _MAGIC.startswith(data):  # new, or torn when it was new
                os.ftruncate(self._file, 0)
                if os.write(self._file, _MAGIC) != len(_MAGIC):
                    raise OSError(28, "no space left on device")
                data = _MAGIC
        except OSError as error:
            raise Invalid(f"cannot open the journal {path}: {error.strerror}: choose another folder") from None
        if not data.startswith(_MAGIC):
            raise Invalid(f"{path} is no journal of shoal: move it away, or choose another folder")
        at = len(_MAGIC)
        while (record := _record_at(data, at)) is not None:
            self.records.append(record)
            at += _HEAD + len(record)
        if at < len(data):
            self.damaged = at
            os.ftruncate(self._file, at)
            os.fsync(self._file)
        Disk().sync_folder(path.parent)  # its name, too, must survive

    def append(self, record: bytes) -> str:
        """Empty when it would survive a crash; otherwise why not."""
        if self._file is None:
            return ""
        try:
            self._cut()
            self._valid_bytes = os.fstat(self._file).st_size
            if os.write(self._file, _framed(record)) != _HEAD + len(record):
                raise OSError(28, "no space left on device")
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # else it is cut before the next record
                self._cut()
            return error.strerror or str(error)
        self._valid_bytes = None
        return ""

    def _cut(self) -> None:
        """Nothing of a record that was refused may stand before the next one."""
        if self._valid_bytes is not None and self._file is not None:
            os.ftruncate(self._file, self._valid_bytes)
            self._valid_bytes = None

    def rewrite(self, records: Sequence[bytes]) -> None:
        """Replace all records; the old ones stay until the new ones are on disk, if they fit."""
        if self.path is None or records == self.records:
            return
        temporary = self.path.with_name(f"{self.path.name}.new")
        try:
            new = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            data = _MAGIC + b"".join(map(_framed, records))
            if os.write(new, data) != len(data):
                raise OSError(28, "no space left on device")
            os.fsync(new)
            os.replace(temporary, self.path)
            Disk().sync_folder(self.path.parent)
        except OSError:
            os.close(new)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        self.close()
        self._file, self._valid_bytes, self.records = new, None, list(records)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _framed(record: bytes) -> bytes:
    return len(record).to_bytes(4, "little") + zlib.crc32(record).to_bytes(4, "little") + record


def _record_at(data: bytes, at: int) -> bytes | None:
    if at + _HEAD > len(data):
        return None
    size = int.from_bytes(data[at : at + 4], "little")
    if size == 0:  # zeros after a power cut: eight of them would pass for an empty record
        return None
    record = data[at + _HEAD : at + _HEAD + size]
    if len(record) != size or zlib.crc32(record) != int.from_bytes(data[at + 4 : at + _HEAD], "little"):
        return None
    return record

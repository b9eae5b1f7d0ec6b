"""Reads complete lines from a plain or compressed file, a few megabytes at a time.

The first bytes of a file determine its type, not its name. Memory is bounded: a line that is too
long is truncated just past the limit, so that it is still recognised as too long, and a compressed
file that grows without end is refused.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.limits import CHUNK, EXPANSION, EXPANSION_FROM, LINE, MB

Bytes = npt.NDArray[np.uint8]

UNPACK: dict[bytes, Callable[[IO[bytes]], AbstractContextManager[Any]]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
FOREIGN = {
    b"PK\x03\x04": "a zip archive and not called .npz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"PAR1": "a Parquet file",
}
MARK = b"\xef\xbb\xbf"  # some editors write it before the first line
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class TextChunks:
    """``for stop in lines``: complete lines are in ``data[:stop]``, the last one terminated."""

    def __init__(self, path: Path, chunk: int = CHUNK, longest: int = LINE) -> None:
        self.path, self._chunk, self._longest = path, chunk, longest
        self._memory = bytearray(longest + 1 + chunk + 1)
        self.data: Bytes = np.frombuffer(self._memory, np.uint8)
        self.size = 0  # bytes decompressed so far

    def __iter__(self) -> Iterator[int]:
        with _reading(self.path) as (file, raw):
            used, room = 0, memoryview(self._memory)
            while taken := self._fill(file, room[used : used + self._chunk]):
                if self.size == 0:
                    taken = self._begin(taken)
                self.size += taken
                if file is not raw:
                    _bounded(self.path, self.size, raw.tell())
                stop = self._memory.rfind(b"\n", used, used + taken) + 1
                used += taken
                if not stop:
                    # drop the rest of a line that is already too long
                    used = min(used, self._longest + 1)
                    continue
                yield stop
                self.data[: used - stop] = self.data[stop:used]
                used -= stop
            if used:
                self._memory[used] = 10
                yield used + 1

    def _begin(self, taken: int) -> int:
        if (place := self._memory.find(0, 0, min(taken, 1 << 16))) >= 0:
            raise Invalid(f"{self.path} is no text: byte {place:,} of it is zero; give LIBSVM or Criteo lines")
        if self._memory.startswith(MARK):
            taken -= len(MARK)
            self.data[:taken] = self.data[len(MARK) : taken + len(MARK)]
        return taken

    def _fill(self, file: Any, room: memoryview) -> int:
        try:
            return int(file.readinto(room))
        except BROKEN as error:
            cut = "ends in the middle" if isinstance(error, EOFError) else f"is damaged ({error})"
            raise Invalid(f"{self.path}, a compressed file, {cut}: fetch it again") from None
        except OSError as error:
            raise _unreadable(self.path, error) from None


@contextmanager
def _reading(path: Path) -> Iterator[tuple[Any, IO[bytes]]]:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise Invalid(f"{path} is a folder: name a file in it")
        if not stat.S_ISREG(kind):
            raise Invalid(f"{path} is no regular file: write the rows to one first, they are read more than once")
        with path.open("rb", buffering=0) as raw:
            start = raw.read(8)
            raw.seek(0)
            if not start:
                raise Invalid(f"{path} is empty: rows are needed, one a line")
            for magic, what in FOREIGN.items():
                if start.startswith(magic):
                    raise Invalid(f"{path} is {what}: give plain text, .gz, .bz2 or .xz")
            unpack = next((one for magic, one in UNPACK.items() if start.startswith(magic)), nullcontext)
            with unpack(raw) as file:
                yield file, raw
    except OSError as error:
        raise _unreadable(path, error) from None


def _bounded(path: Path, size: int, taken: int) -> None:
    if size > EXPANSION_FROM and size > EXPANSION * max(taken, 1):
        raise Invalid(
            f"{path} has grown to {size // MB:,} MB from {taken:,} bytes, more than {EXPANSION}-fold, as no text does: "
            f"if it is what you want, unpack it first"
        )


def _unreadable(path: Path, error: OSError) -> Invalid:
    if isinstance(error, FileNotFoundError):
        return Invalid(f"no file {path}: is the path right?")
    return Invalid(f"{path} cannot be read: {error.strerror or error}: give a file that can")

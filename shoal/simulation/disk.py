"""Simulates a disk with a page cache, and what survives a crash: the twin of ``files.Disk``.

    write            goes to the cache, in blocks. A crash keeps any subset of the unsynced blocks,
                     and zeros for the others
    a name           that is new, renamed or removed is cached until its folder is synced; a crash
                     keeps any subset of these changes
    crash(seed)      returns the disk as it is found when power is back. A process that dies alone
                     loses nothing: go on with the same disk

Every operation that changes something has a number and a line in ``trace``. It can be the last one
(``stop_at``), fail (``failing``) or take time (``slow``, summed up in ``spent``). ``flips`` makes
reads return a wrong bit.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import BinaryIO

from shoal.files import Disk

BLOCK = 512


class Crashed(BaseException):
    """The machine stopped here. Only tests may catch it."""


@dataclass(slots=True, eq=False)
class _SimulatedFile:
    cached: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass(slots=True, eq=False)
class _SimulatedFolder:
    cached: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    # since it was synced, each whole or not at all
    changes: list[dict[str, _Node | None]] = field(default_factory=list)

    def change(self, names: dict[str, _Node | None]) -> None:
        self.changes.append(names)
        _apply(self.cached, names)


_Node = _SimulatedFile | _SimulatedFolder


def _apply(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimulatedDisk(Disk):
    def __init__(self, seed: int | str = 0, capacity: int | None = None) -> None:
        self.capacity = capacity  # bytes; None: unlimited
        self.stop_at: int | None = None  # the first operation that never happens
        self.failing: dict[int, int] = {}  # operation -> errno
        self.flips: dict[Path, int] = {}  # file -> the bit that is read wrong
        self.slow = 0  # nanoseconds that an operation takes, at most
        self.spent = 0  # nanoseconds that all operations took
        self.trace: list[str] = []
        self._random = Random(f"{seed}/slow")
        self._root = _SimulatedFolder()

    def make_folder(self, folder: Path) -> None:
        self._folder(folder, make=True)

    def write(self, path: Path, chunks: Iterable[bytes | memoryview]) -> None:
        folder = self._folder(path.parent)
        if path.name in folder.cached:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._operation("create", path)
        file = _SimulatedFile()
        folder.change({path.name: file})
        try:
            for chunk in chunks:
                self._operation("write", path)
                room = len(chunk) if self.capacity is None else max(0, self.capacity - self.used)
                file.cached += chunk[:room]
                if room < len(chunk):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._sync(path, file)
        except OSError:
            self.remove(path)
            raise

    def _sync(self, path: Path, file: _SimulatedFile) -> None:
        self._operation("sync", path)
        file.durable = bytes(file.cached)

    def rename(self, old: Path, new: Path) -> None:
        folder = self._folder(old.parent)
        if old.name not in folder.cached or new.parent != old.parent:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._operation("rename", new)
        folder.change({new.name: folder.cached[old.name], old.name: None})

    def sync_folder(self, folder: Path) -> None:
        found = self._folder(folder)
        self._operation("sync folder", folder)
        found.durable = dict(found.cached)
        found.changes.clear()

    def open(self, path: Path) -> BinaryIO:
        file = self._folder(path.parent).cached.get(path.name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not isinstance(file, _SimulatedFile):
            raise OSError(errno.EINVAL, "it is not a plain file")
        found = bytearray(file.cached)
        if path in self.flips and found:
            bit = self.flips[path] % (8 * len(found))
            found[bit // 8] ^= 1 << bit % 8
        return io.BytesIO(found)

    def names(self, folder: Path) -> list[str]:
        try:
            return sorted(self._folder(folder).cached)
        except FileNotFoundError:
            return []

    def remove(self, path: Path) -> None:
        try:
            folder = self._folder(path.parent)
        except FileNotFoundError:
            return
        node = folder.cached.get(path.name)
        for name in self.names(path) if isinstance(node, _SimulatedFolder) else []:
            self.remove(path / name)
        if node is not None:
            self._operation("remove", path)
            folder.change({path.name: None})

    @property
    def used(self) -> int:
        return sum(len(file.cached) for file in _files(self._root))

    def damage(self, path: Path, contents: bytes | None) -> None:
        """Overwrite a file, or remove it (None), for good."""
        folder = self._folder(path.parent)
        file = None if contents is None else _SimulatedFile(bytearray(contents), contents)
        for names in (folder.cached, folder.durable):
            _apply(names, {path.name: file})

    def crash(self, seed: int | str) -> SimulatedDisk:
        """The disk after a crash: none, some or all of the unsynced data survive."""
        random = Random(f"{seed}/crash")
        after = SimulatedDisk(seed, self.capacity)
        after._root = _survivor(self._root, random, random.choice((0.0, 0.5, 0.9, 1.0)), random.choice((0.0, 0.5, 1.0)))
        return after

    def _operation(self, what: str, path: Path) -> None:
        number = len(self.trace)
        if self.stop_at is not None and number >= self.stop_at:
            raise Crashed
        self.trace.append(f"{what} {path}")
        self.spent += self._random.randrange(self.slow + 1)
        if (reason := self.failing.get(number)) is not None:
            raise OSError(reason, os.strerror(reason))

    def _folder(self, path: Path, make: bool = False) -> _SimulatedFolder:
        at = self._root
        for name in path.relative_to(path.anchor).parts:
            if name not in at.cached and make:
                self._operation("make", path)
                at.change({name: _SimulatedFolder()})
            node = at.cached.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if not isinstance(node, _SimulatedFolder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            at = node
        return at


def _files(folder: _SimulatedFolder) -> Iterable[_SimulatedFile]:
    for node in folder.cached.values():
        yield from _files(node) if isinstance(node, _SimulatedFolder) else [node]


def _survivor(folder: _SimulatedFolder, random: Random, names: float, blocks: float) -> _SimulatedFolder:
    found = dict(folder.durable)
    for change in folder.changes:
        if random.random() < names:
            _apply(found, change)
    for name, node in found.items():
        if isinstance(node, _SimulatedFolder):
            found[name] = _survivor(node, random, names, blocks)
        else:
            contents = _torn(node, random, blocks)
            found[name] = _SimulatedFile(bytearray(contents), contents)
    return _SimulatedFolder(found, dict(found))


def _torn(file: _SimulatedFile, random: Random, keep: float) -> bytes:
    """A file after a crash: any unsynced blocks; else the old contents, or zeros."""
    cached, durable = bytes(file.cached), file.durable
    if cached == durable:
        return durable
    ends = [len(durable), len(cached), random.randrange(len(cached) + 1)]
    size = random.choice(ends)
    found = bytearray(durable[:size].ljust(size, b"\0"))
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        if random.random() < keep:
            found[start:stop] = cached[start:stop].ljust(stop - start, b"\0")
    return bytes(found)

"""Atomic file replacement, folder locks, and the disk operations of checkpoints."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from shoal.errors import Invalid

_LONG = 1 << 20  # bytes worth a second thread


@contextlib.contextmanager
def or_refuse(what: str, move: str) -> Iterator[None]:
    """Turns an OSError into Invalid: what cannot be done, why, and the next move."""
    try:
        yield
    except OSError as error:
        raise Invalid(f"cannot {what}: {error.strerror or error}: {move}") from None


def replace_file(path: Path, contents: bytes) -> None:
    with replacing(path) as file:
        file.write(contents)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a new file, sync, rename: readers see the old or the new one, even after a crash."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


class Lock:
    """Locks a folder for one run (or sweep, or store); the lock ends with its process."""

    def __init__(self, folder: Path, named: Path, what: str = "run") -> None:
        self._path = folder / "lock"
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(handle, 20, 0).decode(errors="replace") or "unknown"
                os.close(handle)
                raise Invalid(
                    f"{named} has a {what} in it already, which goes on right now (process {holder}): choose another folder, "
                    f"or wait until it has ended"
                ) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                    break
            os.close(handle)  # its last holder has just removed it
        self._close = weakref.finalize(self, os.close, handle)  # also if the next lines fail
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        if self._close.alive:
            self._path.unlink(missing_ok=True)
            self._close()


class Digest:
    """SHA-256, computed in parallel to disk access, which takes about as long."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._beside: ThreadPoolExecutor | None = None

    def update(self, chunk: bytes | memoryview) -> None:
        """Add a chunk; do not change it before ``hexdigest`` returns."""
        if self._beside is None and len(chunk) < _LONG:
            self._hash.update(chunk)
            return
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._beside.submit(self._hash.update, chunk)

    def hexdigest(self) -> str:
        if self._beside is not None:
            self._beside.shutdown(wait=True)
        return self._hash.hexdigest()


class Disk:
    """The real disk; ``simulation.disk`` has a faulty twin. All methods raise OSError.

    ``write`` syncs the file but not its name: names of new or renamed files survive a crash once
    their folder is synced.
    """

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a new file: complete and synced when this returns, absent if it raises."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest.nbytes:
                    rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """Rename within a folder; replaces what has the new name."""
        os.replace(old, new)

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def open(self, path: Path) -> BinaryIO:
        """Open a regular file for reading; refuses links and pipes, which could block."""
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is no plain file")
        return os.fdopen(handle, "rb", buffering=0)

    def names(self, folder: Path) -> list[str]:
        """The sorted names in a folder; none if it does not exist."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def cache_folder() -> Path | None:
    """The folder, or None: what others could write to is neither imported from nor believed."""
    try:
        if chosen := os.environ.get("SHOAL_CACHE"):
            folder = Path(chosen)
        else:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except (OSError, RuntimeError):
        return None
    private = facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder.absolute() if private and os.access(folder, os.W_OK | os.X_OK) else None

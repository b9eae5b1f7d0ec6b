"""A small disk that can stall, fail or fill up: a file as a loop device with a file system.

    with Volume() as volume:             needs root; ``missing()`` says what is missing
        volume.folder                    it is mounted here
        volume.freeze(); volume.thaw()   writes and syncs wait in between
        volume.read_only(); volume.writable()
        volume.fail()                    from now on every write is an error, for good

Leaving the context thaws and removes it in any case.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.sandbox import soon

_TOOLS = ("losetup", "mkfs.ext4", "mount", "umount", "fsfreeze")
_SIZE = 16 << 20  # bytes
_WITHIN = 20.0  # seconds for one command
_SHUTDOWN, _AT_ONCE = 0x8004587D, 2  # ext4: stop at once, flush nothing


def missing() -> str:
    """What this machine lacks; empty if nothing."""
    if os.geteuid() != 0:
        return "a disk of its own needs root"
    if tools := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(tools)}"
    try:
        with Volume():
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        return f"no file can be mounted as a disk here: {error}"


class Volume:
    """A small ext4 file system. Use as a context."""

    def __init__(self, folder: Path | None = None) -> None:
        """Mounts it at ``folder``, which exists, or at a new one."""
        self._given = folder

    def __enter__(self) -> Volume:
        with contextlib.ExitStack() as undo:
            place = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="shoal-volume-")))
            self.folder = self._given or place / "disk"
            self.folder.mkdir(exist_ok=True)
            image = place / "image"
            with open(image, "wb") as file:
                file.truncate(_SIZE)
            _run("mkfs.ext4", "-q", "-O", "^has_journal", str(image))
            _run("mount", "-o", "loop", str(image), str(self.folder))
            undo.callback(self._unmount)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def freeze(self) -> None:
        _run("fsfreeze", "-f", str(self.folder))

    def thaw(self) -> None:
        _run("fsfreeze", "-u", str(self.folder))

    def read_only(self) -> None:
        """Makes it read-only, as soon as no process writes."""
        assert soon(lambda: _tried("mount", "-o", "remount,ro", str(self.folder)), _WITHIN), "somebody always writes"

    def writable(self) -> None:
        _run("mount", "-o", "remount,rw", str(self.folder))

    def fail(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, _AT_ONCE.to_bytes(4, "little"))
        finally:
            os.close(folder)

    def _unmount(self) -> None:
        _tried("fsfreeze", "-u", str(self.folder))  # otherwise processes that wait for it never end
        if not _tried("umount", str(self.folder)):
            # A process has a file open: it is unmounted when that process ends.
            _run("umount", "-l", str(self.folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN, check=False)
    if done.returncode != 0:
        raise subprocess.SubprocessError(f"{' '.join(command)}: {done.stderr.strip()}")


def _tried(*command: str) -> bool:
    try:
        _run(*command)
    except subprocess.SubprocessError:
        return False
    return True

"""A run folder, from its first line to its last.

    job.toml              all settings, as they were in effect
    coordinator.journal   what was counted, for whoever takes the run up again
    events.jsonl          what happened, line by line, written while it happens
    model.safetensors     the weights (with patience the best ones, otherwise the last)
    summary.json          the figures; written after all of these, so a folder that has it is whole
    loss.png              the picture, where matplotlib is installed

Every file is there whole or not at all, but for the two that are written line by line.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import Invalid, RunFailed
from shoal.events import RunEvent
from shoal.files import replace_file
from shoal.job import Job

if TYPE_CHECKING:
    from shoal.run import Run

EventCall = Callable[[RunEvent], None]

FILES = ("events.jsonl", "model.safetensors", "loss.png", "summary.json", "coordinator.journal")  # beside job.toml


class Log:
    """Keeps the events, writes them down, and passes them on. Called from the coordinator's thread."""

    def __init__(self, folder: Folder | None, also: EventCall | None) -> None:
        self.events: list[RunEvent] = []
        self.error = ""  # why events could not be written
        self._folder, self._also = folder, also
        self._lock = threading.Lock()

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            self.events.append(event)
            if self._folder is not None and not self.error:
                try:
                    self._folder.append("events.jsonl", msgspec.json.encode(event) + b"\n")
                except OSError as error:  # training goes on: what cannot be written now is written, or said, at the end
                    self.error = error.strerror or str(error)
        if self._also is not None:
            try:
                self._also(event)
            except Exception as error:
                print(
                    f"shoal: {type(error).__name__}: {error} in on_event, which is not called any more", file=sys.stderr
                )
                self._also = None


class Folder:
    """A run folder: nobody else's, and every file in it whole or not there."""

    def __init__(self, path: Path, job: Job, new: bool = False) -> None:
        self.path, text = path.absolute(), job.toml()
        self._made: list[Path] = []  # folders that were not there before, the innermost last
        claimed = False
        try:
            self._make(new)
            with open(self.path / "job.toml", "x", encoding="utf-8") as file:  # who makes this file has the folder
                claimed = True
                file.write(text)
        except OSError as error:
            if claimed:
                self.discard()
            self._unmake()
            if not isinstance(error, FileExistsError):
                raise Invalid(f"cannot write to {path}: {error.strerror}: choose another folder (--out)") from None
            what = "has a run in it already" if self.path.is_dir() else "is a file"
            raise Invalid(f"{path} {what}: choose another folder, or remove it") from error
        if theirs := [name for name in FILES if os.path.lexists(self.path / name)]:
            (self.path / "job.toml").unlink()
            raise Invalid(f"{path} has {theirs[0]} in it already: choose another folder, or remove it")

    @classmethod
    def numbered(cls, path: Path, job: Job) -> Folder:
        """path-1, or the next number that nobody has, also if others ask at the same moment."""
        for number in itertools.count(1):
            one = path.with_name(f"{path.name}-{number}")
            if not one.exists():
                try:
                    return cls(one, job, new=True)
                except Invalid as error:
                    if not isinstance(error.__cause__, FileExistsError):  # else somebody was faster
                        raise
        raise AssertionError

    def append(self, name: str, line: bytes) -> None:
        with open(self.path / name, "ab", buffering=0) as file:
            if file.write(line) != len(line):  # the rest did not fit: a last line that is cut is left out when read
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def discard(self) -> None:
        """The run never began."""
        with contextlib.suppress(OSError):
            for name in ("job.toml", "events.jsonl", "coordinator.journal"):
                (self.path / name).unlink(missing_ok=True)
            self._unmake()

    def _make(self, new: bool) -> None:
        for again in (True, True, False):  # somebody who discards theirs may take a folder away under our feet
            try:
                for parent in reversed([one for one in self.path.parents if not one.exists()]):
                    with contextlib.suppress(FileExistsError):  # somebody else was faster: theirs will do
                        parent.mkdir()
                        self._made.append(parent)
                if new or not self.path.exists():
                    self.path.mkdir()
                    self._made.append(self.path)
                break
            except FileNotFoundError:
                if not again:
                    raise
        if not self.path.is_dir():
            raise FileExistsError

    def _unmake(self) -> None:
        with contextlib.suppress(OSError):  # one that somebody else has put something into stays
            for folder in reversed(self._made):
                folder.rmdir()

    def save(self, run: Run) -> Path:
        """Write what a run leaves. If that cannot be, it is written elsewhere: hours of work are not lost to a full disk."""
        try:
            self._write(self.path, run)
            return self.path
        except OSError as error:
            reason = error.strerror or str(error)
        other: Path | None = None
        try:
            other = Path(tempfile.mkdtemp(prefix=f"{self.path.name[:64]}-"))
            (other / "job.toml").write_text(run.job.toml(), encoding="utf-8")
            self._write(other, run)
        except OSError:
            if other is not None:
                shutil.rmtree(other, ignore_errors=True)
            raise RunFailed(
                f"cannot write to {self.path} ({reason}), nor to {other.parent if other else 'a temporary folder'}: "
                f"the model is in memory only, as error.run.model; make room and save it"
            ) from None
        print(f"shoal: cannot write to {self.path} ({reason}): the run is in {other}", file=sys.stderr)
        return other

    def _write(self, folder: Path, run: Run) -> None:
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in run.events)
        replace_file(folder / "events.jsonl", lines)
        if run.model is not None:
            run.model.save(folder / "model.safetensors")
        replace_file(folder / "summary.json", msgspec.json.format(msgspec.json.encode(run.summary)) + b"\n")
        try:
            run.plot(folder / "loss.png")
        except Exception as error:  # no matplotlib, a broken one, no room: a picture is not worth a run
            print(f"shoal: no loss.png: {error}", file=sys.stderr)

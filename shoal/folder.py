"""A run folder, from its first line to its last.

job.toml              all settings, as they were in effect
events.jsonl          what happened, line by line, written while it happens
model.safetensors     the weights (with patience the best ones, otherwise the last)
loss.png              the picture, where matplotlib is installed
summary.json          the figures; written last, so a folder that has it is whole
coordinator.journal   what was counted, for whoever takes the run up again
"""

from __future__ import annotations

import contextlib
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

    def __init__(self, path: Path, job: Job) -> None:
        self.path = path.absolute()
        self._made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with open(self.path / "job.toml", "x") as file:  # who makes this file has the folder
                file.write(job.toml())
        except FileExistsError:
            what = "has a run in it already" if self.path.is_dir() else "is a file"
            raise Invalid(f"{path} {what}: choose another folder, or remove it") from None
        except OSError as error:
            raise Invalid(f"cannot write to {path}: {error.strerror}: choose another folder (--out)") from None

    def append(self, name: str, line: bytes) -> None:
        with open(self.path / name, "ab", buffering=0) as file:
            file.write(line)

    def discard(self) -> None:
        """The run never began."""
        with contextlib.suppress(OSError):
            for name in ("job.toml", "events.jsonl", "coordinator.journal"):
                (self.path / name).unlink(missing_ok=True)
            if self._made:
                self.path.rmdir()

    def save(self, run: Run) -> Path:
        """Write what a run leaves. If that cannot be, it is written elsewhere: hours of work are not lost to a full disk."""
        try:
            self._write(self.path, run)
            return self.path
        except OSError as error:
            reason = error.strerror or str(error)
        try:
            other = Path(tempfile.mkdtemp(prefix=f"{self.path.name}-"))
            (other / "job.toml").write_text(run.job.toml())
            self._write(other, run)
        except OSError:
            raise RunFailed(
                f"cannot write to {self.path} ({reason}), nor to {tempfile.gettempdir()}: the model is in memory only, "
                f"as error.run.model; make room and save it"
            ) from None
        print(f"shoal: cannot write to {self.path} ({reason}): the run is in {other}", file=sys.stderr)
        return other

    def _write(self, folder: Path, run: Run) -> None:
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in run.events)
        replace_file(folder / "events.jsonl", lines)
        if run.model is not None:
            run.model.save(folder / "model.safetensors")
        try:
            run.plot(folder / "loss.png")
        except Invalid as error:  # without matplotlib there is no picture
            print(f"shoal: no loss.png: {error}", file=sys.stderr)
        replace_file(folder / "summary.json", msgspec.json.format(msgspec.json.encode(run.summary)) + b"\n")

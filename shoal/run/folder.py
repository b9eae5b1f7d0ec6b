"""The folder of a run: every file it writes, and the lock that guards it.

    job.toml              all settings in effect
    coordinator.journal   the slots counted so far, for a resumed run
    checkpoints/          snapshots of the whole run: `shoal train --resume` continues from one
    best.safetensors      the weights with the best evaluation so far
    events.jsonl          every event, one per line, written as it happens
    log.txt               the same in words, without frequent events (verbosity = 3: with them)
    model.safetensors     the final weights (with patience the best, otherwise the last)
    summary.json          the figures; written last, so a folder that has it is complete
    loss.png              the loss curve, if matplotlib is installed
    topology.png          the gossip graph of a run without servers
    topology.txt          the same as a list, if it was read from a file; a resumed run uses it

Files other than those written line by line exist whole or not at all. A run holds a lock on its
folder, so that no other run uses it; the lock ends with the process, however that ends.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import itertools
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal import limits
from shoal.background import BackgroundQueue, mutter
from shoal.errors import Invalid, RunFailed
from shoal.events import RunEvent, counted, read_legible
from shoal.files import Lock, replace_file
from shoal.job import Job
from shoal.views import graph
from shoal.views.lines import EventLines

if TYPE_CHECKING:
    from shoal.models.trained import Trained, TrainedModule
    from shoal.run.finished import Run

EventCall = Callable[[RunEvent], None]

_PICTURES = ("loss.png", "topology.png", "topology.txt")
FILES = (
    "events.jsonl",
    "model.safetensors",
    *_PICTURES,
    "summary.json",
    "coordinator.journal",
    "log.txt",
)  # besides job.toml

LOGGED = 2  # verbosity of log.txt, whatever the terminal shows
_WITHIN = limits.HEAR_WITHIN / limits.SECOND


class EventLog:
    """Keeps the events, writes them to disk, and passes them on. Never blocks its caller."""

    def __init__(
        self,
        folder: RunFolder | None,
        also: EventCall | Sequence[EventCall] | None,
        before: Iterable[RunEvent] = (),
        verbosity: int = 1,
    ) -> None:
        self.events: list[RunEvent] = list(before)  # including those before a resume
        self._resumed_count = len(self.events)
        self.error = ""  # why events could not be written
        self._folder = folder
        self._files: BackgroundQueue[tuple[str, bytes]] = BackgroundQueue(
            lambda one: None if folder is None else folder.append(*one), "log", failed=self._unwritten
        )
        calls = () if also is None else (also,) if callable(also) else also
        self._listeners = [EventListener(call) for call in calls]
        self._lock = threading.Lock()
        self._lines = EventLines(max(LOGGED, verbosity))
        for event in self.events:
            self._lines.take(event)

    @property
    def new(self) -> list[RunEvent]:
        return self.events[self._resumed_count :]

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            self.events.append(event)
            if self._folder is not None:
                self._files.put(("events.jsonl", msgspec.json.encode(event) + b"\n"))
                if lines := self._lines.take(event):
                    self._files.put(("log.txt", "".join(f"{line}\n" for line in lines).encode()))
            for listener in self._listeners:
                listener(event)

    def settle(self) -> None:
        """Finish writing: everything is on disk afterwards, or the error is known."""
        left = self._files.close(_WITHIN)
        if left and not self.error:
            self.error = f"its disk accepted no write for {_WITHIN:g} s"
            mutter(f"shoal: {counted(left, 'line')} of log.txt and events.jsonl were not written: {self.error}")

    def close(self) -> None:
        """Give callbacks time for the remaining events."""
        for listener in self._listeners:
            listener.close()

    def _unwritten(self, error: BaseException) -> bool:
        # Training goes on: what cannot be written now is written, or reported, at the end.
        self.error = (isinstance(error, OSError) and error.strerror) or str(error)
        return False


class EventListener:
    """A user's callback. Dropped if it raises; events it is too slow for are counted."""

    def __init__(self, call: Callable[[Any], None], name: str = "on_event") -> None:
        self._ends_main = threading.current_thread() is threading.main_thread()
        self._name, self._calls = name, 0
        self._queue = BackgroundQueue(call, name, limits.EVENTS_WAITING, self._failed)

    def __call__(self, what: Any) -> None:
        self._calls += 1
        self._queue.put(what)

    def close(self) -> None:
        broken = self._queue.over
        missed = self._queue.close(_WITHIN)
        if missed and not broken:
            what = f"{self._name} missed {missed:,} of {self._calls:,} calls: it is too slow ({self._queue.busy:.0f} s for one)"
            mutter(f"shoal: {what}; all events are in run.events")

    def _failed(self, error: BaseException) -> bool:
        if not isinstance(error, Exception) and self._ends_main and callable(signal.getsignal(signal.SIGINT)):
            _thread.interrupt_main()  # the user wants the run to end
            return True
        mutter(f"shoal: {type(error).__name__}: {error} in {self._name}, which is not called any more")
        return False


class RunFolder:
    """A locked run folder whose files are whole or absent."""

    def __init__(self, path: Path, job: Job, new: bool = False) -> None:
        self.path, text = path.absolute(), job.toml()
        self._created: list[Path] = []  # parent folders that were created, innermost last
        self._lock: Lock | None = None
        self.is_new = False
        self.rescued = ""  # why the results were saved elsewhere
        try:
            self._make(new)
            self._lock = Lock(self.path, path)
            # creating this file claims the folder
            with open(self.path / "job.toml", "x", encoding="utf-8") as file:
                self.is_new = True
                file.write(text)
        except OSError as error:
            self.discard()
            if not isinstance(error, FileExistsError):
                raise Invalid(f"cannot write to {path}: {error.strerror}: choose another folder (--out)") from None
            what = "has a run in it already" if self.path.is_dir() else "is a file"
            raise Invalid(f"{path} {what}: choose another folder, or remove it") from error
        except Invalid:
            self._unmake()
            raise
        if theirs := [name for name in FILES if os.path.lexists(self.path / name)]:
            (self.path / "job.toml").unlink()
            self.release()
            raise Invalid(f"{path} has {theirs[0]} in it already: choose another folder, or remove it")

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of an existing run, to resume it."""
        self = cls.__new__(cls)
        self.path, self._created, self.is_new, self.rescued = path.absolute(), [], False, ""
        try:
            self._lock = Lock(self.path, path)
        except OSError as error:
            what = f"cannot write to {path}: {error.strerror}: a resumed run needs to"
            raise Invalid(f"{what}; make that possible, or copy it elsewhere") from None
        return self

    @classmethod
    def numbered(cls, path: Path, job: Job) -> RunFolder:
        """Creates path-1 or the next free number, safely beside other processes."""
        for number in itertools.count(1):
            one = path.with_name(f"{path.name}-{number}")
            if not one.exists():
                try:
                    return cls(one, job, new=True)
                except Invalid as error:
                    # otherwise another process was faster
                    if not isinstance(error.__cause__, FileExistsError):
                        raise
        raise AssertionError

    def append(self, name: str, line: bytes) -> None:
        with open(self.path / name, "ab", buffering=0) as file:
            # it did not fit: readers skip a truncated last line
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def events(self) -> tuple[list[RunEvent], int]:
        """The events so far and the number of damaged lines; a cut last line is removed."""
        path = self.path / "events.jsonl"
        if not os.path.lexists(path):
            return [], 0
        if not path.is_file():
            raise Invalid(f"{path} is not a file: move it away, and the run goes on without its earlier events")
        try:
            with open(path, "r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
            return read_legible(path)
        except OSError as error:
            raise Invalid(f"cannot change {path}: {error.strerror}: make that possible, or move it away") from None

    def begin_again(self, job: Job, fresh: bool) -> None:
        """Write the settings of a resumed run; ``fresh``: start over and delete its results."""
        results = ("model.safetensors", "loss.png", "topology.png", "events.jsonl", "log.txt", "best.safetensors")
        draft = self.path / "job.toml.new"
        try:
            replace_file(draft, job.toml().encode())  # if that fails, nothing has changed
            # a model stays until there is a new one
            for name in ("summary.json", *(results if fresh else ())):
                (self.path / name).unlink(missing_ok=True)
            os.replace(draft, self.path / "job.toml")
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise Invalid(f"cannot write to {self.path}: {error.strerror}: make room, or make it writable") from None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def discard(self) -> None:
        """Remove the folder of a run that never began; a resumed run's folder stays as it is."""
        self.release()
        with contextlib.suppress(OSError):
            written = ("job.toml", "events.jsonl", "log.txt", "coordinator.journal", "topology.txt")
            for name in written if self.is_new else ():
                (self.path / name).unlink(missing_ok=True)
            self._unmake()

    def _make(self, new: bool) -> None:
        for again in (True, True, False):  # another process may remove its folder meanwhile
            try:
                for parent in reversed([one for one in self.path.parents if not one.exists()]):
                    # another process was faster: use its folder
                    with contextlib.suppress(FileExistsError):
                        parent.mkdir()
                        self._created.append(parent)
                if new or not self.path.exists():
                    self.path.mkdir()
                    self._created.append(self.path)
                break
            except FileNotFoundError:
                if not again:
                    raise
        if not self.path.is_dir():
            raise FileExistsError

    def _unmake(self) -> None:
        with contextlib.suppress(OSError):  # a folder with others' files stays
            for folder in reversed(self._created):
                folder.rmdir()

    def save(self, run: Run) -> Path:
        """Write the results; if that fails, elsewhere, so that a full disk loses no model."""
        try:
            _write(self.path, run)
            return self.path
        except OSError as error:
            reason = error.strerror or str(error)
        spare = "a temporary folder"
        try:
            spare = tempfile.gettempdir()
            other = save_elsewhere(run, f"{self.path.name[:64]}-")
        except OSError:
            raise RunFailed(
                f"cannot write to {self.path} ({reason}), nor to {spare}: "
                f"the model is in memory only, as error.run.model; make room and save it"
            ) from None
        self.rescued = f"cannot write to {self.path} ({reason})"
        mutter(f"shoal: {self.rescued}: the run is in {other}")
        return other

    def keep(self, model: Trained | TrainedModule) -> None:
        with contextlib.suppress(OSError):
            model.save(self.path / "model.safetensors")


def save_elsewhere(run: Run, prefix: str) -> Path:
    """Write the results to a new temporary folder; on an OSError nothing is left of it."""
    other = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        (other / "job.toml").write_text(run.job.toml(), encoding="utf-8")
        _write(other, run)
    except OSError:
        shutil.rmtree(other, ignore_errors=True)
        raise
    return other


def _write(folder: Path, run: Run) -> None:
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in run.events)
    replace_file(folder / "events.jsonl", lines)
    if run.model is not None:
        run.model.save(folder / "model.safetensors")
    replace_file(folder / "summary.json", msgspec.json.format(msgspec.json.encode(run.summary)) + b"\n")
    try:
        run.plot(folder / "loss.png")
    except Exception as error:  # no matplotlib, or no room: a picture must not fail the run
        mutter(f"shoal: no loss.png: {error}")
        return
    try:
        graph.draw_last(run.events, folder / "topology.png")
    except Exception as error:
        mutter(f"shoal: no topology.png: {error}")

"""Writes one archive of a run or a sweep, to keep or to send (``shoal export``).

    NAME/README.txt             describes the files
    NAME/job.toml               its settings
    NAME/model.safetensors      the weights; best.safetensors: those of the best evaluation
    NAME/validation.csv         every evaluation
    NAME/training.csv           training between the evaluations
    NAME/log.txt, events.jsonl  the events: filtered, and all of them
    NAME/summary.json, *.png    figures and pictures
    NAME/SHA256SUMS             of all of these: sha256sum -c SHA256SUMS

Only regular files with these names are included, and no user names. The archive is written beside
its target and renamed, so it exists whole or not at all. An active run can be exported: incomplete
lines are left out.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from shoal.errors import Invalid
from shoal.events import Evaluated, Progress, counted, read_legible

WHAT = {
    "study.toml": "the study: which runs there are",
    "table.csv": "the figures of every run",
    "table.json": "the figures of every point and run",
    "job.toml": "all settings: shoal train job.toml runs it again",
    "topology.txt": "who hears whom: to run it again, --set strategy.edges=topology.txt",
    "model.safetensors": "the weights",
    "best.safetensors": "the weights with the best evaluation",
    "validation.csv": "every evaluation on held-out rows",
    "training.csv": "how training went on: losses, rows, workers, where time went",
    "log.txt": "what happened, in words, without what happens all the time",
    "events.jsonl": "what happened, all of it, line by line",
    "summary.json": "the figures at the end",
    "report.html": "the page about it",
    "machine.json": "the cores it had, and how much of them others took",
    "output.log": "what it printed",
    "failed.txt": "why it failed",
}
OF_RUN = (
    "job.toml",
    "topology.txt",
    "model.safetensors",
    "best.safetensors",
    "log.txt",
    "events.jsonl",
    "summary.json",
)
OF_RUN_OF_SWEEP = (*OF_RUN, "loss.png", "topology.png", "machine.json", "output.log", "failed.txt")
OF_SWEEP = ("study.toml", "table.csv", "table.json")
PICTURES = (".png", ".svg")
SUMS = "SHA256SUMS"
FIGURES = 65_536  # most bytes of figures that are printed
FIRST = ("seconds", "passes", "steps", "examples", "train_loss")


@dataclass(frozen=True, slots=True)
class ExportResult:
    path: Path
    files: int
    bytes: int
    notes: list[str]  # what is missing or damaged
    figures: str  # the summary, printed if the upload fails


@dataclass(slots=True)
class _Writer:
    """Writes a tar file: every name once, every file with a checksum."""

    tar: tarfile.TarFile
    top: str
    sums: list[tuple[str, str]] = field(default_factory=list)
    newest: int = 0  # mtime of the newest file; tables made from them get the same
    notes: list[str] = field(default_factory=list)  # what is missing or damaged

    def file(self, name: str, path: Path) -> bool:
        """Add a regular file at its current length; False if it does not exist."""
        source = _opened(path)
        if source is None:
            if os.path.lexists(path):
                self.notes.append(f"{name} is no plain file, and left out")
            return False
        with source:
            about = os.fstat(source.fileno())
            self._add(name, source, _whole_lines(source, about.st_size, path.suffix), int(about.st_mtime))
        return True

    def text(self, name: str, text: str) -> None:
        self._add(name, io.BytesIO(text.encode()), len(text.encode()), self.newest)

    def _add(self, name: str, source: IO[bytes], size: int, changed: int) -> None:
        about = tarfile.TarInfo(f"{self.top}/{name}")  # a regular file, mode 644, without owner
        about.size, about.mtime = size, changed
        self.newest = max(self.newest, changed)
        summed = _Summed(source)
        self.tar.addfile(about, summed)  # type: ignore[arg-type]  # it is only read
        self.sums.append((name, summed.sum.hexdigest()))


class _Summed:
    """A file that computes its checksum while it is read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self.sum = source, hashlib.sha256()

    def read(self, size: int) -> bytes:
        piece = self._source.read(size)
        self.sum.update(piece)
        return piece


def export(folder: Path, out: Path | None = None) -> ExportResult:
    """Write the archive of a run or sweep; by default beside its folder."""
    runs, is_sweep = _runs(folder)
    name = _plain(folder.resolve().name)
    target = _target(folder.resolve().with_name(f"{name}.tar.gz") if out is None else out)
    try:
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                with (
                    gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
                    tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
                ):
                    writer = _Writer(tar, name)
                    _fill(writer, folder, runs, is_sweep)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            os.chmod(aside, 0o644)
            os.replace(aside, target)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
    except OSError as error:
        why = error.strerror or error
        raise Invalid(f"cannot write {target}: {why}: make room, or choose another place (--out)") from None
    return ExportResult(target, len(writer.sums), size, writer.notes, _figures(folder, is_sweep))


def _fill(writer: _Writer, folder: Path, runs: dict[str, Path], is_sweep: bool) -> None:
    for name in (*(OF_SWEEP if is_sweep else ()), "report.html"):
        writer.file(name, folder / name)
    for inside, path in runs.items():
        _fill_run(writer, inside, path, OF_RUN_OF_SWEEP if is_sweep else OF_RUN)
    for path in sorted(folder.iterdir()):
        if path.suffix in PICTURES and path.name == _plain(path.name):
            writer.file(path.name, path)
    writer.text("README.txt", _readme(writer, is_sweep))
    writer.text(SUMS, "".join(f"{digest}  {name}\n" for name, digest in writer.sums))


def _fill_run(writer: _Writer, inside: str, path: Path, names: Sequence[str]) -> None:
    there = [name for name in names if writer.file(f"{inside}{name}", path / name)]
    of_run = f" of {inside.rstrip('/')}" if inside else ""
    if "summary.json" not in there:
        running = "it is still running, or was interrupted: this is what exists so far"
        writer.notes.append(f"there is no summary{of_run}: {running}")
    elif "model.safetensors" not in there:
        writer.notes.append(f"there is no model{of_run}")
    if "events.jsonl" not in there:
        writer.notes.append(f"there are no events{of_run}, and no tables, which are made of them")
        return
    events, damaged = read_legible(path / "events.jsonl")
    if damaged:
        lines = f"{counted(damaged, 'line')} of events.jsonl{of_run}"
        writer.notes.append(f"{lines} cannot be read, and the tables are without")
    judged, trained = list[dict[str, Any]](), list[dict[str, Any]]()
    for one in events:
        if isinstance(one, Progress):
            trained.append({name: getattr(one, name) for name in (*FIRST, "workers")} | one.spent)
        elif isinstance(one, Evaluated):
            row = {name: getattr(one, name) for name in ("number", *FIRST, "test_loss", "workers", "best", "by")}
            row |= {"read": one.seconds if one.read is None else one.read, **one.metrics}
            judged.append(row | {f"nodes_{name}": value for name, value in one.spread.items()})
    writer.text(f"{inside}validation.csv", as_csv(judged))
    writer.text(f"{inside}training.csv", as_csv(trained))


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV; missing values are empty."""
    heads = list(dict.fromkeys(name for row in rows for name in row)) or list(FIRST)
    text = io.StringIO()
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _runs(folder: Path) -> tuple[dict[str, Path], bool]:
    """The run folders by their prefix in the archive, and whether it is a sweep."""
    if not folder.is_dir():
        raise Invalid(f"there is no folder {folder}: give the folder of a run or sweep")
    if (folder / "events.jsonl").is_file():
        return {"": folder}, False
    if not (folder / "study.toml").is_file() or not (folder / "runs").is_dir():
        raise Invalid(f"{folder} is no run and no sweep: give a folder that `shoal train` or `shoal sweep` has written")
    found: dict[str, Path] = {}
    for path in sorted((folder / "runs").iterdir()):
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            inside, number = f"runs/{_plain(path.name)}/", 2
            while inside in found:
                inside, number = f"runs/{_plain(path.name)}-{number}/", number + 1
            found[inside] = path
    return found, True


def _target(path: Path) -> Path:
    if not path.name.endswith((".tar.gz", ".tgz")):
        raise Invalid(f"{path.name} is no name of an archive: end it in .tar.gz")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Invalid(f"{path} is there, and is no plain file: choose another name (--out)")
    if not path.parent.is_dir():
        raise Invalid(f"there is no folder {path.parent} to write {path.name} to: make it first")
    return path


def _plain(name: str) -> str:
    """A name without characters that need quoting."""
    return re.sub(r"[^A-Za-z0-9.,=+_-]", "_", name).lstrip(".-")[:120] or "run"


def _opened(path: Path) -> IO[bytes] | None:
    """Open a regular file; None if there is none, or it is a folder, link or pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if not path.is_file() or path.is_symlink():
            return None
        raise Invalid(f"cannot read {path}: {error.strerror}: make that possible, or move it away") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return os.fdopen(handle, "rb")


def _whole_lines(source: IO[bytes], size: int, suffix: str) -> int:
    """The final length of a file: for line-based files, up to the last complete line."""
    if suffix not in (".jsonl", ".txt") or not size:
        return size
    step = end = 0
    while end < size and not step:
        end = min(size, end + 65_536)
        source.seek(size - end)
        step = source.read(end).rfind(b"\n") + 1
    source.seek(0)
    return size - end + step if step else size


def _readme(writer: _Writer, is_sweep: bool) -> str:
    names = [name for name, _ in writer.sums]
    lines = [f"{writer.top}: {'a sweep' if is_sweep else 'a run'} of shoal, as `shoal export` found it.", ""]
    for name in names:
        last = name.rsplit("/", 1)[-1]
        lines.append(f"{name}    {WHAT.get(last, 'a picture')}")
    lines += ["README.txt    this page", f"{SUMS}    checksums of all files: sha256sum -c {SUMS}"]
    return "\n".join(lines + [f"\nNote: {one}." for one in writer.notes]) + "\n"


def _figures(folder: Path, is_sweep: bool) -> str:
    """The start of a text file, without control characters; printed if the upload fails."""
    source = _opened(folder / ("table.csv" if is_sweep else "summary.json"))
    if source is None:
        return ""
    with source:
        text = source.read(FIGURES + 1)
    more = f"\n... and more: {source.name}" if len(text) > FIGURES else ""
    lines = text[:FIGURES].decode("utf-8", "replace").splitlines()
    return "\n".join("".join(char if char.isprintable() else "?" for char in line) for line in lines) + more

"""A run without servers, kept on disk: the model and how far it came, in one file for each time.

    checkpoints/00000012.safetensors     slab: weights and what the rule keeps of them; left: slots of the pass that are to be done

The file appears whole or not at all, and its hash covers all numbers and facts in it. So any number of workers can go on from it:
who computed what is not in it. The last few (``checkpoint.keep``) stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from shoal.data.batch import Ids
from shoal.errors import BadCheckpoint, OtherRun
from shoal.events import RunEvent, Saved, Warned
from shoal.files import Disk
from shoal.job import Job
from shoal.models.linear import Floats
from shoal.schedule.stop_rules import Patience

FORMAT = 1
CHECKPOINTS = "checkpoints"
_BEGUN = re.compile(r"\.\d{8,18}\.safetensors\..+")  # what a run that was killed then has left


class LocalProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run stood when it was kept."""

    done: int  # slots
    examples: int
    evaluations: int
    seconds: float
    patience: Patience
    counts: dict[str, int]
    sent: int
    received: int
    steps: int | None = None  # as many as slots, unless said


class CheckpointFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of the numbers."""

    format: int
    number: int
    job: str  # what makes it this run and no other, hashed
    about: str  # of a module: what must be the same when it is taken up again
    of_pass: int
    standing: LocalProgress
    sha256: str  # of the numbers, and of all this without it


@dataclass(frozen=True, slots=True, eq=False)
class LocalCheckpoint:
    """One of them, read back."""

    path: Path
    facts: CheckpointFacts
    slab: Floats
    left: Ids  # slots: pass * slots in a pass + number

    @property
    def position(self) -> tuple[int, Ids]:
        return self.facts.of_pass, self.left

    def check_left(self, per_pass: int) -> None:
        """Its slots are of its pass, each there once."""
        of_pass, left = self.position
        first = of_pass * per_pass
        if (
            of_pass < 0
            or (np.diff(left) < 1).any()
            or (len(left) and not first <= left[0] <= left[-1] < first + per_pass)
        ):
            raise BadCheckpoint(str(self.path), f"has slots that pass {of_pass} has not")

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if self.slab.shape != shape:
            raise BadCheckpoint(str(self.path), f"has a model of {self.slab.shape}, and this run's is of {shape}")

    def later(self, seconds: float) -> LocalCheckpoint:
        """The same, when its run has told of so many seconds: they are never taken back."""
        standing = msgspec.structs.replace(self.facts.standing, seconds=max(seconds, self.facts.standing.seconds))
        return replace(self, facts=msgspec.structs.replace(self.facts, standing=standing))


class LocalCheckpoints:
    """Writes them, now and then. A disk that refuses is a warning: the run goes on. Its folder is this run's alone."""

    rest = (
        9  # times as long as the last one took, at least, until the next: no more than a tenth of the time goes to them
    )

    def __init__(self, folder: Path | None, job: Job, about: str, listener: Callable[[RunEvent], None]) -> None:
        self._root = None if folder is None else folder / CHECKPOINTS
        self._job, self._about, self._listener = job, about, listener
        self._last, self._took = time.monotonic(), 0.0  # when the last one was written, and how long it took
        self._steps = -1  # of the one that was written last
        if self._root is not None:
            _sweep(self._root)

    @property
    def due(self) -> bool:
        wait = max(self._job.checkpoint.every, self.rest * self._took)
        return self._root is not None and time.monotonic() - self._last >= wait

    @property
    def has_some(self) -> bool:
        """There is one: whoever takes the run up again goes back to the newest, so the end is kept, too."""
        return self._root is not None and bool(_numbers(self._root))

    def keep(self, slab: Floats, of_pass: int, left: Ids, standing: LocalProgress, steps: int) -> None:
        """Write one now, unless the last one was of this very step."""
        began = time.monotonic()
        if self._root is None or steps == self._steps:
            self._last = began
            return
        try:
            if not is_finite(slab):
                self._warn(standing, "its weights are not finite: what was kept before stays")
                return
            number, size = _write(self._root, self._job, self._about, slab, of_pass, left, standing)
        except (OSError, MemoryError) as error:
            why = "no memory" if isinstance(error, MemoryError) else error.strerror or error
            self._warn(standing, f"{why}: make room, or it cannot be taken up again from here")
            return
        finally:
            self._last = time.monotonic()
            self._took = self._last - began
        self._steps = steps
        self._listener(Saved(seconds=standing.seconds, number=number, steps=steps, bytes=size, took=self._took))

    def _warn(self, standing: LocalProgress, why: str) -> None:
        self._listener(Warned(seconds=standing.seconds, what=f"cannot keep the run: {why}"))


def is_finite(slab: Floats) -> bool:
    """All of it. Of a large one no copy is made, of no kind."""
    return not slab.size or (math.isfinite(slab.min()) and math.isfinite(slab.max()))  # either is NaN if one is


def newest(root: Path, job: str) -> tuple[LocalCheckpoint | None, list[BadCheckpoint]]:
    """The newest that is whole and of this job, with what is wrong with those that are newer. OSError: nothing can be read."""
    refused: list[BadCheckpoint] = []
    for number in reversed(_numbers(root)):
        path = _path(root, number)
        try:
            kept = read(path)
            if kept.facts.job != job:
                raise OtherRun(str(path), number)
            return kept, refused
        except BadCheckpoint as error:
            refused.append(error)
    return None, refused


def read(path: Path) -> LocalCheckpoint:
    from safetensors import SafetensorError, safe_open

    try:
        Disk().open(path).close()  # a pipe would keep us waiting
        with safe_open(str(path), "numpy") as file:
            facts = msgspec.json.decode((file.metadata() or {}).get("shoal", "{}"), type=CheckpointFacts)
            slab, left = file.get_tensor("slab"), file.get_tensor("left")
    except (OSError, SafetensorError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error}") from None
    if facts.format != FORMAT:
        raise BadCheckpoint(str(path), f"has format {facts.format}, this version of shoal reads {FORMAT}")
    if (slab.dtype, slab.ndim, left.dtype, left.ndim) != (np.float32, 2, np.int64, 1):
        raise BadCheckpoint(str(path), "has arrays of another kind than a run keeps")
    if _hash(msgspec.structs.replace(facts, sha256=""), slab, left) != facts.sha256:
        raise BadCheckpoint(str(path), "is damaged: its hash differs")
    if path.name != _path(path.parent, facts.number).name:
        raise BadCheckpoint(str(path), f"is checkpoint {facts.number}")
    if not is_finite(slab):
        raise BadCheckpoint(str(path), "has weights that are not finite")
    return LocalCheckpoint(path, facts, slab, left)


def _write(
    root: Path, job: Job, about: str, slab: Floats, of_pass: int, left: Ids, standing: LocalProgress
) -> tuple[int, int]:
    disk = Disk()
    disk.make_folder(root)
    number = max(_numbers(root), default=0) + 1
    slab, left = np.ascontiguousarray(slab, "<f4"), np.ascontiguousarray(left, "<i8")
    facts = CheckpointFacts(FORMAT, number, job.identity, about, of_pass, standing, "")
    facts = msgspec.structs.replace(facts, sha256=_hash(facts, slab, left))
    path = _path(root, number)
    parts: list[bytes | memoryview] = [_head(facts, left, slab), _bytes(left), _bytes(slab)]
    beside = path.with_name(f".{path.name}.new")
    disk.write(beside, parts)
    disk.rename(beside, path)
    disk.sync_folder(root)
    for old in _numbers(root)[: -job.checkpoint.keep]:
        disk.remove(_path(root, old))
    return number, sum(len(part) for part in parts)


def _head(facts: CheckpointFacts, left: Ids, slab: Floats) -> bytes:
    """What a safetensors file begins with, if these arrays follow: so none of them is copied."""
    end = left.nbytes + slab.nbytes
    head = msgspec.json.encode(
        {
            "__metadata__": {"shoal": msgspec.json.encode(facts).decode()},
            "left": {"dtype": "I64", "shape": left.shape, "data_offsets": [0, left.nbytes]},
            "slab": {"dtype": "F32", "shape": slab.shape, "data_offsets": [left.nbytes, end]},
        }
    )
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def _bytes(array: Ids | Floats) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _sweep(root: Path) -> None:
    disk = Disk()
    with contextlib.suppress(OSError):  # whoever writes hears of it
        for name in disk.names(root):
            if _BEGUN.fullmatch(name):
                disk.remove(root / name)


def _hash(facts: CheckpointFacts, slab: Floats, left: Ids) -> str:
    found = hashlib.sha256(msgspec.json.encode(facts))
    for array in (slab, left):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _path(root: Path, number: int) -> Path:
    return root / f"{number:08d}.safetensors"


def _numbers(root: Path) -> list[int]:
    found = (re.fullmatch(r"(\d{8,18})\.safetensors", name) for name in Disk().names(root))
    return sorted(int(one[1]) for one in found if one)

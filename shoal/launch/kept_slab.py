"""A run without servers, kept on disk: the model and how far it came, in one file for each time.

    checkpoints/00000012.safetensors     slab: weights and what the rule keeps of them; left: slots of the pass that are to be done

The file appears whole or not at all, and its hash covers all numbers and facts in it. So any number of workers can go on from it:
who computed what is not in it. The last few (``checkpoint.keep``) stay.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from shoal.cluster.stopping import Patience
from shoal.data.batch import Ids
from shoal.errors import BadCheckpoint, OtherRun
from shoal.events import RunEvent, Saved, Warned
from shoal.files import Disk, replace_file
from shoal.job import Job
from shoal.models.linear import Floats

FORMAT = 1
CHECKPOINTS = "checkpoints"


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of the numbers."""

    format: int
    number: int
    job: str  # what makes it this run and no other, hashed
    about: str  # of a module: what must be the same when it is taken up again
    of_pass: int
    standing: Standing
    sha256: str  # of the numbers, and of all this without it


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One of them, read back."""

    path: Path
    facts: Facts
    slab: Floats
    left: Ids  # slots: pass * slots in a pass + number

    @property
    def position(self) -> tuple[int, Ids]:
        return self.facts.of_pass, self.left

    def later(self, seconds: float) -> Kept:
        """The same, when its run has told of so many seconds: they are never taken back."""
        standing = msgspec.structs.replace(self.facts.standing, seconds=max(seconds, self.facts.standing.seconds))
        return replace(self, facts=msgspec.structs.replace(self.facts, standing=standing))


class Keeper:
    """Writes them, now and then. A disk that refuses is a warning: the run goes on."""

    def __init__(self, folder: Path | None, job: Job, about: str, listener: Callable[[RunEvent], None]) -> None:
        self._root = None if folder is None else folder / CHECKPOINTS
        self._job, self._about, self._listener = job, about, listener
        self._last = time.monotonic()
        self._steps = -1  # of the one that was written last

    @property
    def due(self) -> bool:
        return self._root is not None and time.monotonic() - self._last >= self._job.checkpoint.every

    def keep(self, slab: Floats, of_pass: int, left: Ids, standing: Standing, steps: int) -> None:
        """Write one now, unless the last one was of this very step."""
        self._last = began = time.monotonic()
        if self._root is None or steps == self._steps:
            return
        try:
            number, size = _write(self._root, self._job, self._about, slab, of_pass, left, standing)
        except OSError as error:
            what = (
                f"cannot keep the run: {error.strerror or error}: make room, or it cannot be taken up again from here"
            )
            self._listener(Warned(seconds=standing.seconds, what=what))
            return
        self._steps = steps
        took = time.monotonic() - began
        self._listener(Saved(seconds=standing.seconds, number=number, steps=steps, bytes=size, took=took))


def newest(root: Path, job: str) -> tuple[Kept | None, list[BadCheckpoint]]:
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


def read(path: Path) -> Kept:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "numpy") as file:
            facts = msgspec.json.decode((file.metadata() or {}).get("shoal", "{}"), type=Facts)
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
    return Kept(path, facts, slab, left)


def _write(
    root: Path, job: Job, about: str, slab: Floats, of_pass: int, left: Ids, standing: Standing
) -> tuple[int, int]:
    from safetensors.numpy import save

    disk = Disk()
    disk.make_folder(root)
    number = max(_numbers(root), default=0) + 1
    slab, left = np.ascontiguousarray(slab, "<f4"), np.ascontiguousarray(left, "<i8")
    facts = Facts(FORMAT, number, job.identity, about, of_pass, standing, "")
    facts = msgspec.structs.replace(facts, sha256=_hash(facts, slab, left))
    contents = save({"slab": slab, "left": left}, metadata={"shoal": msgspec.json.encode(facts).decode()})
    replace_file(_path(root, number), contents)
    disk.sync_folder(root)
    for old in _numbers(root)[: -job.checkpoint.keep]:
        disk.remove(_path(root, old))
    return number, len(contents)


def _hash(facts: Facts, slab: Floats, left: Ids) -> str:
    found = hashlib.sha256(msgspec.json.encode(facts))
    for array in (slab, left):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _path(root: Path, number: int) -> Path:
    return root / f"{number:08d}.safetensors"


def _numbers(root: Path) -> list[int]:
    found = (re.fullmatch(r"(\d{8,18})\.safetensors", name) for name in Disk().names(root))
    return sorted(int(one[1]) for one in found if one)

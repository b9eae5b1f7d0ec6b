"""Checkpoints and the best model of a run without servers.

    checkpoints/00000012.safetensors    slab: weights and the state of the update rule
                                        left: slots of the epoch that are not computed yet
    best.safetensors                    the weights with the lowest loss up to now, a model file

A file appears complete or not at all, with a hash of its contents. It does not depend on the
workers, so any number of them can continue from it. A full disk causes a warning only.
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
from shoal.errors import BadCheckpoint, Invalid, OtherRun
from shoal.events import RunEvent, Saved, Warned
from shoal.files import Disk
from shoal.job import Job
from shoal.models.learner import Learner
from shoal.models.linear import Floats
from shoal.models.trained import facts_of
from shoal.nodes.evaluator import EvaluatedModel
from shoal.schedule.stop_rules import Patience

FORMAT = 1
CHECKPOINTS = "checkpoints"
_BEGUN = re.compile(r"\.\d{8,18}\.safetensors\..+")  # left by a run that was killed while writing


class LocalProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of a run when the checkpoint was written."""

    done: int  # slots
    examples: int
    evaluations: int
    seconds: float
    patience: Patience
    counts: dict[str, int]
    sent: int
    received: int
    steps: int | None = None  # None: as many as slots


class CheckpointFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    number: int
    job: str  # Job.identity
    about: str  # of a module: it must be the same when the run is resumed
    of_pass: int
    standing: LocalProgress
    sha256: str  # of the arrays, and of these facts without it


@dataclass(frozen=True, slots=True, eq=False)
class LocalCheckpoint:
    path: Path
    facts: CheckpointFacts
    slab: Floats
    left: Ids  # slots: epoch * slots in an epoch + number

    @property
    def position(self) -> tuple[int, Ids]:
        return self.facts.of_pass, self.left

    def check_left(self, per_pass: int) -> None:
        """Refuse slots that its epoch does not have, or has twice."""
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
        standing = msgspec.structs.replace(self.facts.standing, seconds=max(seconds, self.facts.standing.seconds))
        return replace(self, facts=msgspec.structs.replace(self.facts, standing=standing))


Snapshot = tuple[Floats, int, Ids, LocalProgress, int]  # the arguments of ``LocalCheckpoints.keep``


class LocalCheckpoints:
    """Writes the checkpoints of one run into a folder that no other run uses."""

    # Least pause between two, in durations of the last one: they take at most a tenth.
    rest = 9

    def __init__(self, folder: Path | None, job: Job, about: str, listener: Callable[[RunEvent], None]) -> None:
        self._root = None if folder is None else folder / CHECKPOINTS
        self._job, self._about, self._listener = job, about, listener
        self._last, self._took = time.monotonic(), 0.0  # of the last one
        self._steps = -1  # of the one that was written last
        if self._root is not None:
            _sweep(self._root)

    @property
    def due(self) -> bool:
        wait = max(self._job.checkpoint.every, self.rest * self._took)
        return self._root is not None and time.monotonic() - self._last >= wait

    @property
    def has_some(self) -> bool:
        """Whether there are checkpoints; then the end is written, too, for a resume."""
        return self._root is not None and bool(_numbers(self._root))

    def keep(self, slab: Floats, of_pass: int, left: Ids, standing: LocalProgress, steps: int) -> None:
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
    """All values are finite. Makes no copy, however large the slab is."""
    return not slab.size or (math.isfinite(slab.min()) and math.isfinite(slab.max()))


def newest(root: Path, job: str) -> tuple[LocalCheckpoint | None, list[BadCheckpoint]]:
    """The newest good checkpoint of this job, and the errors of newer ones."""
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
        Disk().open(path).close()  # a pipe would block
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
    """The header of a safetensors file with these arrays, which are then written without a copy."""
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
    with contextlib.suppress(OSError):  # the next write reports it
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


class BestModel:
    """The file with the best model up to now; written on the thread that evaluates."""

    def __init__(self, path: Path, learner: Learner, listener: Callable[[RunEvent], None]) -> None:
        self._path, self._learner, self._listener = path, learner, listener
        self._warned = False

    def write(self, judged: EvaluatedModel) -> None:
        found = {"number": judged.number, "loss": judged.loss, "metrics": judged.metrics}
        try:
            self._learner.keep(judged.weights).save(self._path, judged=msgspec.json.encode(found).decode())
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._listener(Warned(seconds=0.0, what=f"cannot write {self._path.name}: {error.strerror}"))

    def read(self) -> EvaluatedModel | None:
        """The best model; None if missing or damaged: then the next model is the best."""
        try:
            weights = self._learner.read(self._path)
            found = msgspec.json.decode(facts_of(self._path)["judged"])
            return EvaluatedModel(int(found["number"]), weights, float(found["loss"]), dict(found["metrics"]))
        except (Invalid, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None

"""Accounts for every push by the values on the servers: the counting model.

Beside the model there is a table, ``tally``. A worker that computes a slot adds 1 to the slot's own
key there, under the slot's number, and reports the slot only when both pushes are counted. Whatever
dies, is started again, or is computed twice: at the end every slot of the run must read 1.

    0               lost: it was acknowledged, but is missing
    2 and more      doubled

A client of our own does the same with keys of its own, one in every segment: it may have added more
than was acknowledged to it, never less. Keys sit on segments at random, and every slot is sent to
every server, so that all ledgers take part. The version of the model's own table counts pushes too.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.job import Job
from shoal.keys import Keys, Values, mixed
from shoal.tables import Sparse, Update

PROBES = 1 << 62  # slots have numbers below this, our own keys lie above
SHOWN = 10
_TRIED = 1 << 14  # keys among which one is found for every segment

TABLE = Sparse(hashed=True, update=Update("sum"), max_delay=None)


class PushAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The balance, in numbers of pushes."""

    sent: int = 0  # made by workers (slots assigned, and reassigned) and by our own client
    acknowledged: int = 0
    counted: int = 0  # found in the values
    lost: int = 0  # acknowledged, and not found
    doubled: int = 0  # found once too often
    wrong: list[str] = []  # the first few, in words

    @property
    def balanced(self) -> bool:
        return not self.lost and not self.doubled


@dataclass(slots=True)
class PushProbes:
    """Sent and acknowledged pushes of each key of our own client."""

    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))  # one in each segment
    sent: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    acknowledged: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def for_segments(cls, starts: Sequence[int]) -> PushProbes:
        ids = np.arange(PROBES, PROBES + _TRIED, dtype=np.uint64)
        segments = np.searchsorted(np.array(starts, np.uint64), mixed(ids), side="right") - 1
        found, first = np.unique(segments, return_index=True)
        if len(found) < len(starts):
            raise AssertionError(f"{len(starts)} segments, and keys for {len(found)} of them only")
        keys = ids[first]
        return cls(keys, np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64))


def balance(
    keys: Keys,
    values: npt.NDArray[Any],
    acknowledged: int,
    sent: int,
    probes: PushProbes,
    versions: Mapping[str, int],
    per_pass: int = 0,
) -> PushAudit:
    """Compare ``keys`` and ``values`` of the tally with the slots that were ``acknowledged``.

    ``per_pass`` is the number of slots in an epoch of a run that ended: all slots of its complete
    epochs must be there. 0: which slots they are is not known, so that a slot that is counted and
    not yet reported may stand in for a lost one. ``versions`` say how many slots the segments of
    the model have counted, by their names.
    """
    counts = np.rint(values).astype(np.int64).reshape(-1)
    ours = keys >= PROBES
    slots, of_slots = keys[~ours].astype(np.int64), counts[~ours]
    seen = np.zeros(max(acknowledged, int(slots.max(initial=-1)) + 1), np.int64)
    seen[slots] = of_slots
    whole = acknowledged - acknowledged % per_pass if per_pass else 0
    missing, twice = np.flatnonzero(seen[:whole] < 1), np.flatnonzero(seen > 1)
    short = max(0, acknowledged - whole - int((seen[whole:] > 0).sum()))
    lost, doubled = len(missing) + short, int((seen[twice] - 1).sum())
    wrong = [f"slot {slot:,} is acknowledged and not counted" for slot in missing[:SHOWN].tolist()]
    wrong += [f"{short:,} slots that are acknowledged are not counted"] if short else []
    wrong += [f"slot {slot:,} is counted {seen[slot]} times" for slot in twice[:SHOWN].tolist()]

    found = dict(zip(keys[ours].tolist(), counts[ours].tolist(), strict=True))
    of_ours = np.array([found.pop(key, 0) for key in probes.keys.tolist()], np.int64)
    lost += int(np.maximum(probes.acknowledged - of_ours, 0).sum())
    # the rest was never sent
    doubled += int(np.maximum(of_ours - probes.sent, 0).sum()) + len(found)
    for i in np.flatnonzero((of_ours < probes.acknowledged) | (of_ours > probes.sent))[:SHOWN].tolist():
        wrong.append(
            f"the probe key in segment {i} reads {of_ours[i]}: {probes.sent[i]} sent, {probes.acknowledged[i]} acknowledged"
        )
    for name, version in versions.items():
        if version != acknowledged:  # do not count it again if the tally found it
            lost, doubled = max(lost, acknowledged - version), max(doubled, version - acknowledged)
            wrong.append(f"{name} of the model counted {version:,} slots of {acknowledged:,}")
    return PushAudit(
        sent=sent + int(probes.sent.sum()),
        acknowledged=acknowledged + int(probes.acknowledged.sum()),
        counted=int(seen.sum() + of_ours.sum()),
        lost=lost,
        doubled=doubled,
        wrong=wrong[:SHOWN],
    )


PACKAGE = Path(__file__).parent.parent
LIBRARIES = ("numpy", "numba", "torch")


def promises_same_bits(job: Job) -> bool:
    """Whether runs are reproducible: sync without delay or filters, which depend on workers."""
    return job.strategy.name == "sync" and not getattr(job.strategy, "max_delay", 0) and not job.filters


def model_digest(weights: Values) -> str:
    return hashlib.sha256(weights.tobytes()).hexdigest()


def fingerprint() -> str:
    """A digest of code, libraries and machine, which determine a model's bits."""
    found = hashlib.sha256(f"{platform.machine()} {platform.processor()} {platform.python_version()}".encode())
    for name in LIBRARIES:
        try:
            found.update(f"{name} {metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            continue
    for file in sorted(PACKAGE.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()

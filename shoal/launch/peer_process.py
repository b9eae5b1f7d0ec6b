"""One peer, in a process or a thread of its own, from its first word until it may go.

It may have several lives: one that was held for gone by the others (it was stopped, or cut off) comes back under a new name on the wire,
with what they know and none of what it had not told. Where a run is kept on disk all founders begin with what was kept.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.cluster.book import State
from shoal.cluster.mesh import Mesh
from shoal.data.datasets import Dataset
from shoal.data.slots import Slots
from shoal.errors import ClusterError, ShoalError
from shoal.job import Job
from shoal.launch.child import Line, Orders
from shoal.launch.kept_slab import read
from shoal.launch.peer_core import PeerCore
from shoal.launch.peer_keeping import begin_of
from shoal.models.learning import learner_of
from shoal.models.linear import Linear
from shoal.nodes.loop import Loop
from shoal.nodes.peer import Facts, PeerNode
from shoal.wire import Transport
from shoal.wire.effects import Received
from shoal.wire.peers import Peer, Stop
from shoal.wire.zmq import ZmqTransport

_LOOK = 0.5  # seconds at most between two looks at whether it may go

Open = Callable[[str], Transport]  # for a life of this name


class PeerWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a peer needs to know, as plain data."""

    job: str  # as TOML
    data: str  # the folder of the packed set
    number: int = 0
    life: str = ""
    through: Peer | None = None  # one that is there, for a newcomer
    kept: str = ""  # what to go on from


class Founders(Line, frozen=True):
    """Top process to a peer: "these begin"."""

    peers: list[Peer]


def work_of(job: Job, dataset: Dataset, kept: Path | None) -> PeerWork:
    return PeerWork(job.toml(), str(dataset.folder), kept=str(kept or ""))


def life_of(name: str) -> str:
    """Another one for every life."""
    return f"{name}.{secrets.token_hex(4)}"


class Made:
    """What a peer learns and judges with."""

    def __init__(self, work: PeerWork) -> None:
        self.work = work
        self.job = Job.of(tomllib.loads(work.job))
        self.dataset = Dataset.open(Path(work.data))
        train = self.dataset.train
        self.learner = learner_of(self.job.model, train, self.job.seed, work.number)
        self.slots = Slots(train.rows, self.job.data.batch, self.job.seed)
        self.core = PeerCore(self.job, train, self.learner, self.slots)
        self.begin: State | None = None
        if work.kept:
            kept = read(Path(work.kept))
            self.begin = begin_of(kept, self.slots.per_pass)
            self.core.restore(kept.slab)

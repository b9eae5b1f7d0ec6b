"""Draws a training run and its faults from one seed, as plain data (see ``faults``).

A seed draws the strategy and its settings, the data, the stop rule and the size of the cluster,
then the families of faults. In some seeds the run is ended and resumed from its checkpoints with
other numbers of workers and servers; in some a worker group's scheduler assigns the slots, not the
coordinator.

    hire     one more worker joins
    leave    a worker finishes its step, returns its other slots, and leaves

The rows are made in memory. ``mixed`` rows share features, so that what one slot learns changes
what others compute. In ``separate`` rows every slot has a feature of its own: with hinge loss,
whose slope is constant while margins are small, its weight counts how often the slot is in the
model.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from shoal.data.batch import Floats
from shoal.data.csr_file import FORMAT, CsrFile, CsrMeta, LabelCount
from shoal.data.datasets import Dataset
from shoal.job import Job
from shoal.limits import INLINE_ELEMENTS
from shoal.simulation import faults
from shoal.simulation.faults import Fault, FaultPlan
from shoal.wire.messages.groups import SCHEDULER, member_name

EVALUATOR, LAUNCHER = "evaluator", "launcher"
GROUP = "group"  # the name of the worker group, where there is one
STEP = 2.0**-6  # of the update: a power of two, so that counts are exact
FAMILIES = (
    "loss", "repeat", "slow", "corrupt", "partition", "swizzle", "pause", "crash", "crash", "drift", "twin", "evaluator",
    "coordinator", "full disk", "comings", "comings", "stragglers", "stragglers",
)  # fmt: skip


class TrainingPlan(FaultPlan, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The plan of one seed. ``slots`` is the largest number of slots of the run."""

    of = "training"
    strategy: Literal["sync", "bounded", "async", "block-proximal"] = "sync"
    settings: dict[str, Any] = {}  # of the strategy
    batch: int = 2
    features: int = 24
    poisoned: int = -1  # a row whose value is NaN
    stop: dict[str, Any] = {}
    evaluate: float = 1.0  # epochs; 0: only at the beginning and the end
    ahead: int = 16  # slots that a worker asks for at first
    group: str = ""
    ends: int = 0  # milliseconds until all nodes end and the run is resumed; 0: never
    next_workers: int = 1  # then
    next_servers: int = 1
    filters: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Weights are exact counts of slots, since no slot's gradient depends on another's."""
        return self.kind == "each"

    @property
    def worker_names(self) -> list[str]:
        return [member_name(f"worker-{i}", self.group) for i in range(self.workers)]

    @property
    def others(self) -> list[str]:
        """Nodes that are neither workers nor servers nor the coordinator."""
        names = [EVALUATOR, *([SCHEDULER] if self.group else [])]
        return [member_name(name, self.group) for name in names]

    @property
    def names(self) -> list[str]:
        return ["coordinator", *self.server_names, *self.worker_names, *self.others]

    def newcomer_worker(self, number: int) -> str:
        return member_name(f"worker-{self.workers + number}", self.group)

    @property
    def job(self) -> Job:
        every = self.checkpoint / 1_000 if self.checkpoint else float("inf")
        model = {"loss": "hinge", "bias": False} if self.counts else {"loss": "logistic"}
        update = {} if self.strategy == "block-proximal" else {"rule": "sgd", "step": STEP if self.counts else 0.5}
        return Job.of(
            {
                "data": {"source": "small", "batch": self.batch},
                "model": model,
                "strategy": {"name": self.strategy, **self.settings},
                "update": update,
                "stop": self.stop,
                "evaluate": {"every": self.evaluate or float("inf")},
                "checkpoint": {"every": every},
                "moves": {"balance": self.balance},
                "filters": list(self.filters),
                "workers": self.workers,
                "servers": self.servers,
                "copies": self.copies,
                "seed": self.seed & 0xFFFF,
            }
        )

    def resumed(self) -> TrainingPlan:
        """The plan of the resumed run: other numbers of nodes, no faults."""
        servers, workers = self.next_servers, min(self.next_workers, self.settings.get("parts", self.next_workers))
        copies = min(self.copies, servers)
        return replace(self, ends=0, workers=workers, servers=servers, copies=copies, faults=(), beyond=False)


def draw(seed: int) -> TrainingPlan:
    random = Random(f"{seed}/training")
    strategy = random.choice(["sync", "sync", "bounded", "async", "block-proximal"])
    in_steps = strategy in ("sync", "block-proximal")
    servers = random.choice([1, 1, 2, 2, 3])
    copies = min(servers, random.choice([1, 1, 2, 2, 3]))
    workers = random.choice([1, 2, 2, 3, 3, 4])
    beyond = random.random() < 0.15
    ends = random.random() < 0.2
    lasts = random.choice([1_000, 2_000, 4_000, 7_000])
    per_pass, batch = random.choice([4, 6, 9, 12, 16]), random.choice([1, 2, 4])
    settings = _settings(strategy, workers, random)
    if strategy == "block-proximal":
        per_pass, batch = settings["parts"] * settings["blocks"], 4
    stop = _stop(random, per_pass, in_steps)
    epochs = min(stop.get("epochs", 3), 3)
    plan = TrainingPlan(
        seed=seed,
        strategy=strategy,  # type: ignore[arg-type]
        settings=settings,
        kind="step" if in_steps else "each",
        max_delay=settings.get("max_delay"),
        slots_per_pass=per_pass,
        slots=round(per_pass * epochs),
        batch=batch,
        features=random.choice([9, 24, 40]),
        poisoned=random.randrange(per_pass * batch) if strategy == "sync" and random.random() < 0.1 else -1,
        stop=stop,
        evaluate=random.choice([0.3, 0.5, 1.0, 1.0, 0.0]),
        ahead=random.choice([0, 0, 4, 16]),
        servers=servers,
        copies=copies,
        workers=workers,
        beyond=beyond,
        checkpoint=random.choice([100, 200, 500]) if beyond or ends or random.random() < 0.2 else 0,
        group=GROUP if random.random() < 0.15 else "",
        ends=random.randrange(lasts // 3, lasts) if ends else 0,
        next_workers=random.choice([1, 2, 3]),
        next_servers=random.choice([1, 2, 3]),
        inline=random.choice([0, 16, INLINE_ELEMENTS]),
        think=max(5, min(1_500, (2 if ends else 1) * lasts * workers // per_pass)),
        delay=random.choice([1, 3, 10]),
        lasts=lasts,
        habits=tuple(one for one in ("early faults", "elsewhere", "inline") if random.random() < 0.2),
        filters=random.choice([(), (), (), ("delta",)]) if in_steps else (),
    )
    return replace(plan, faults=_faults(plan, random))


def _settings(strategy: str, workers: int, random: Random) -> dict[str, Any]:
    prefetch = {"prefetch": random.choice([0, 1, 1, 2])}
    match strategy:
        case "sync":
            second = {"second_copies": True} if random.random() < 0.4 else {}
            delay = {"max_delay": random.choice([1, 2])} if random.random() < 0.15 else {}
            combine = {"combine": "sum"} if random.random() < 0.2 else {}
            return {"slots_per_step": random.choice([1, 2, 3, 4]), **prefetch, **second, **delay, **combine}
        case "bounded":
            return {"max_delay": random.choice([0, 0, 1, 1, 2, 4, "auto", "auto"]), **prefetch}
        case "async":
            return prefetch
    parts, blocks = max(workers, random.choice([1, 2, 3])), random.choice([2, 3, 4])
    return {"parts": parts, "blocks": blocks, "max_delay": random.choice([0, 0, 1])}


def _stop(random: Random, per_pass: int, in_steps: bool) -> dict[str, Any]:
    """Draw stop rules: epochs bound every run; half have another rule, too."""
    epochs: float = random.choice([1, 2, 3]) if per_pass < 12 else random.choice([1, 1.5, 2])
    match random.choice(["epochs", "epochs", "epochs", "steps", "target", "patience", "seconds"]):
        case "steps":
            return {"steps": random.randrange(1, max(2, round(epochs * per_pass) // (2 if in_steps else 1)))}
        case "target":
            return {"epochs": epochs, "target_loss": random.choice([0.5, 0.6, 0.68, 0.95, 0.98])}
        case "patience":
            delta = random.choice([0.0, 0.01, 0.5])
            return {"epochs": epochs, "patience": random.choice([1, 2]), "min_delta": delta}
        case "seconds":
            return {"epochs": epochs, "seconds": random.choice([0.5, 1.0, 3.0])}
    return {"epochs": epochs}


def _faults(plan: TrainingPlan, random: Random) -> tuple[Fault, ...]:
    found: list[Fault] = []
    if plan.beyond:
        found += faults.beyond(plan, random)
    for family in random.sample(FAMILIES, random.choice([0, 1, 1, 2, 2, 3])):
        found += (_OWN.get(family) or faults.DRAW[family])(plan, random)
    if plan.group and random.random() < 0.5:
        found += _scheduler(plan, random)
    if plan.copies > 1 and random.random() < 0.6:
        for family in random.sample(faults.SERVER_FAMILIES, random.choice([1, 1, 2])):
            found += faults.DRAW[family](plan, random)
    return faults.by_time(found)


def _evaluator(plan: TrainingPlan, random: Random) -> list[Fault]:
    """The evaluator dies, pauses, or is cut off from servers or the scheduler."""
    who, at = plan.others[0], random.randrange(plan.lasts)
    match random.choice(["crash", "crash", "pause", "cut"]):
        case "crash":
            return [Fault("crash", at, random.choice([0, 500, 3_000]), who, how=random.choice(["seen", ""]))]
        case "pause":
            return [Fault("pause", at, random.choice([500, 3_000, 7_000]), who)]
    others = random.sample([*plan.server_names, "coordinator"], random.choice([1, plan.servers + 1]))
    return [Fault("cut", at, random.choice([500, 3_000, 7_000]), who, tuple(others))]


def _scheduler(plan: TrainingPlan, random: Random) -> list[Fault]:
    """A group's scheduler is gone for a while, and comes back with its journal."""
    who = plan.others[1]
    lasts = random.choice([0, 300, 2_000, 4_000])
    return [Fault("crash", random.randrange(plan.lasts), lasts, who) for _ in range(random.choice([1, 2]))]


def _joins_and_leaves(plan: TrainingPlan, random: Random) -> list[Fault]:
    found: list[Fault] = []
    for number in range(random.choice([0, 1, 2])):
        found.append(Fault("hire", random.randrange(plan.lasts), who=plan.newcomer_worker(number)))
    for _ in range(random.choice([0, 1, 1, 2])):
        found.append(Fault("leave", random.randrange(plan.lasts), who=random.choice(plan.worker_names)))
    if random.random() < 0.4:
        found.append(Fault("join", random.randrange(plan.lasts), who=plan.newcomer(0)))
    if random.random() < 0.4:
        how, back = random.choice(["drain", "leave"]), random.choice([0, 0, 500])
        found.append(Fault("drain", random.randrange(plan.lasts), back, random.choice(plan.server_names), how=how))
    return found


_OWN = {"evaluator": _evaluator, "comings": _joins_and_leaves, "stragglers": faults.stragglers}


PER_ROW = 3  # features of a row, where rows are mixed
FOLDER = Path("/memory")


def mixed(rows: int, features: int, seed: int, test_rows: int = 16, poisoned: int = -1) -> Dataset:
    """Labels that a linear model can learn in part; the value of row ``poisoned`` is NaN."""
    random = np.random.Generator(np.random.PCG64([seed, rows, features]))
    truth = random.standard_normal(features)
    train = _mixed(rows, features, random, truth)
    if poisoned >= 0:
        assert train.values is not None
        train.values[PER_ROW * poisoned] = np.nan
    return Dataset("small", train, _mixed(test_rows, features, random, truth), [], FOLDER)


def separate(slots: int, batch: int) -> Dataset:
    """Rows for so many slots an epoch, each slot with a feature of its own."""
    columns = np.repeat(np.arange(slots, dtype=np.uint32), batch)
    train = _packed(columns, 1, slots, None, np.ones(slots * batch, np.float32))
    test = _packed(np.arange(slots, dtype=np.uint32), 1, slots, None, np.ones(slots, np.float32))
    return Dataset("separate", train, test, [], FOLDER)


def _mixed(rows: int, features: int, random: np.random.Generator, truth: npt.NDArray[np.float64]) -> CsrFile:
    columns = np.concatenate([np.sort(random.choice(features, PER_ROW, replace=False)) for _ in range(rows)])
    values = random.standard_normal(len(columns)).astype(np.float32)
    margins = (values * truth[columns]).reshape(rows, PER_ROW).sum(axis=1) + random.standard_normal(rows)
    labels = np.where(margins > 0, 1, -1).astype(np.float32)
    labels[:2] = 1, -1  # both classes are there
    return _packed(columns.astype(np.uint32), PER_ROW, features, values, labels)


def _packed(columns: np.ndarray, per_row: int, features: int, values: Floats | None, labels: Floats) -> CsrFile:
    rows = len(labels)
    known = [LabelCount(float(one), int((labels == one).sum()), 1) for one in np.unique(labels)]
    meta = CsrMeta(FORMAT, rows, features, len(columns), values is None, known, False, "memory")
    indptr = np.arange(rows + 1, dtype=np.int64) * per_row
    counts = np.bincount(columns, minlength=features).astype(np.uint32)
    return CsrFile(FOLDER, meta, indptr, columns, values, labels, counts)

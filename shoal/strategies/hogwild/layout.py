"""What the workers of a Hogwild run share, laid out in one piece of memory; and which runs there cannot be."""

from __future__ import annotations

from shoal.data.datasets import Dataset
from shoal.errors import Invalid
from shoal.job import Job
from shoal.launch.shared_memory import SharedMemory
from shoal.models.learner import Learner
from shoal.models.linear import Linear
from shoal.store.table.update import rule_named
from shoal.strategies.hogwild import loop
from shoal.strategies.hogwild.loop import HogwildLoop
from shoal.strategies.hogwild.settings import Hogwild
from shoal.strategies.hogwild.worker import PLAN, race_of


def shared(
    job: Job, dataset: Dataset, learner: Learner, slots: int, seats: int
) -> tuple[SharedMemory, HogwildLoop | None]:
    """With the weights to begin with in it, for rounds of so many slots at most. Of threads also the loop that they run.

    slab        the model: of a linear one a row for each key, its weight and what the rule keeps of it; of a module one row, all weights side by side,
                as its parameters, and after them what the rule keeps of each
    desk, sums, tally, order        as ``racing`` has them
    pass, numbers                   which slots these are, by which a module draws
    plan ...                        what repeats, made once
    """
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "desk": (loop.desk(seats), "int64"),
        "sums": ((seats, loop.LINE), "float64"),
        "tally": ((slots,), "int8"),
        "order": ((slots,), "int64"),
        "numbers": ((slots,), "int64"),
        "pass": ((1,), "int64"),
    }
    if not isinstance(job.model, Linear):
        count, state = learner.keys * learner.width, rule_named(job.update.update().name).state
        segment = SharedMemory.make({"slab": ((1, count * (1 + state)), "float32"), **shapes})
        start = learner.start()
        assert start is not None
        segment["slab"][0, :count] = start[0].reshape(-1)
        return segment, None
    race = race_of(job, dataset.train)
    if job.launch.how == "threads":
        return SharedMemory.make({"slab": (race.shape, "float32"), **shapes}), race
    plan = {PLAN + name: one for name, one in race.plan.items()}
    of_plan = {name: (one.shape, one.dtype.str) for name, one in plan.items()}
    segment = SharedMemory.make({"slab": (race.shape, "float32"), **shapes, **of_plan})
    for name, one in plan.items():
        segment[name][...] = one
    return segment, None


def check_possible(job: Job, strategy: Hogwild) -> None:
    if isinstance(job.model, Linear):
        return
    if job.launch.how == "threads":
        raise Invalid(
            "of several threads one computes with a module at a time, as PyTorch's generator belongs to the whole process: "
            "--set launch.how=processes"
        )
    if strategy.way not in (None, "batched"):
        raise Invalid(
            f"strategy.way={strategy.way!r}: a module's gradient has all keys, so a slot is one step: --set strategy.way=batched"
        )
